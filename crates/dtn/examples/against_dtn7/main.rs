//! bentpipe's bundle node beside dtn7-rs; `--help` lists the options. The exit code is 0 if every bundle has
//! arrived as it was sent. Everything is on loopback and in temporary folders, and ends with this program.

mod compare;
mod interop;
mod nodes;
mod web;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};

use compare::{LOADS, Load, Run};
use interop::{Opener, SIZES, Scheme};
use nodes::Programs;

/// The payloads whose memory is looked at, bytes.
const FILES: [usize; 4] = [1_000_000, 10_000_000, 100_000_000, 1_000_000_000];

/// bentpipe's bundle node and dtn7-rs: whether they understand each other, and what each of them costs.
#[derive(Debug, Parser)]
struct Options {
    /// The parts to run; both unless one is named.
    parts: Vec<Part>,
    /// How often each load is measured.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..=100))]
    rounds: u8,
    /// The folder where `scripts/setup-peers dtn7` has put dtn7-rs.
    #[arg(long, value_name = "DIR", default_value = "target/peers/dtn7/bin")]
    dtn7: PathBuf,
    /// The program whose node is tried; by default the one beside this program's folder.
    #[arg(long, value_name = "FILE")]
    bentpipe: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Interop,
    Compare,
}

fn main() -> ExitCode {
    match run(Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> Result<(), String> {
    let own = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let beside = || own.ancestors().nth(2).unwrap_or(&own).join("bentpipe");
    let programs = Programs { dtn7: options.dtn7, bentpipe: options.bentpipe.unwrap_or_else(beside) };
    if let Some(missing) = programs.missing() {
        return Err(missing);
    }
    let wanted = |part| options.parts.is_empty() || options.parts.contains(&part);
    if wanted(Part::Interop) {
        interop(&programs)?;
    }
    if wanted(Part::Compare) { compare(&programs, options.rounds) } else { Ok(()) }
}

fn interop(programs: &Programs) -> Result<(), String> {
    let mut outcomes = Vec::new();
    for scheme in Scheme::ALL {
        for opener in Opener::ALL {
            outcomes.extend(interop::exchange(programs, scheme, opener, &SIZES)?);
        }
    }
    println!("{}", interop::table(&outcomes));
    match outcomes.iter().filter(|outcome| outcome.failure.is_some()).count() {
        0 => Ok(()),
        failed => Err(format!("{failed} of {} bundles have not arrived as they were sent", outcomes.len())),
    }
}

fn compare(programs: &Programs, rounds: u8) -> Result<(), String> {
    println!("| payloads | | bentpipe | dtn7-rs | bentpipe / dtn7-rs |\n|---|---|---|---|---|");
    for load in LOADS {
        let (mut ours, mut theirs, mut failures) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..rounds {
            eprintln!("{} × {} bytes, round {} of {}", load.count, load.size, round + 1, rounds);
            // Each round begins with the other one, so that none always comes after a rest.
            for is_ours in [round % 2 == 0, round % 2 != 0] {
                let (name, runs) = if is_ours { ("bentpipe", &mut ours) } else { ("dtn7-rs", &mut theirs) };
                let run =
                    if is_ours { compare::bentpipe(programs, load) } else { compare::dtn7(programs, load) };
                match run {
                    Ok(run) => {
                        eprintln!("{name}: {:.2} s", run.seconds);
                        runs.push(run);
                    }
                    // It may lose bundles where many applications send at once.
                    Err(error) if !is_ours => failures.push(error),
                    Err(error) => return Err(format!("{name}: {error}")),
                }
            }
        }
        if theirs.is_empty() {
            return Err(format!("dtn7-rs: {}", failures.join("; ")));
        }
        print_load(load, &ours, &theirs);
        failures.iter().for_each(|error| eprintln!("not counted: {error}"));
    }
    println!(
        "\n| one payload, `bentpipe dtn send` to `recv` | s | sender, MB | receiver, MB |\n|---|---|---|---|"
    );
    for size in FILES {
        let Run { seconds, memory: [sender, receiver] } = compare::one_file(programs, size)?;
        println!(
            "| {} | {seconds:.2} | {:.1} | {:.1} |",
            bytes(size),
            megabytes(sender),
            megabytes(receiver)
        );
    }
    Ok(())
}

fn print_load(load: Load, ours: &[Run], theirs: &[Run]) {
    let batches = if load.batch > 1 { format!(", {} in a request", load.batch) } else { String::new() };
    let crowd = if load.at_once > 4 { format!(", {} applications", load.at_once) } else { String::new() };
    let name = format!("{} × {}{batches}{crowd}", load.count, bytes(load.size));
    let line = |what: &str, of: fn(&Run) -> f64, digits: usize| {
        let [here, there] = [ours, theirs].map(|runs| median(runs.iter().map(of).collect()));
        let ratios = ours.iter().zip(theirs).map(|(here, there)| of(here) / of(there));
        let (least, most) = ratios
            .fold((f64::MAX, 0.0), |(least, most): (f64, f64), ratio| (least.min(ratio), most.max(ratio)));
        println!(
            "| {name} | {what} | {here:.digits$} | {there:.digits$} | {:.2} ({least:.2}–{most:.2}) |",
            here / there
        );
    };
    line("s", |run| run.seconds, 2);
    line("sender, MB", |run| megabytes(run.memory[0]), 0);
    line("receiver, MB", |run| megabytes(run.memory[1]), 0);
    let rate = |runs: &[Run]| load.count as f64 / median(runs.iter().map(|run| run.seconds).collect());
    let throughput = |runs: &[Run]| rate(runs) * load.size as f64 / 1e6;
    match load.size {
        1_000_000.. => println!("| {name} | MB/s | {:.0} | {:.0} | |", throughput(ours), throughput(theirs)),
        _ => println!("| {name} | bundles/s | {:.0} | {:.0} | |", rate(ours), rate(theirs)),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

fn bytes(size: usize) -> String {
    match size {
        1_000_000_000.. => format!("{} GB", size / 1_000_000_000),
        1_000_000.. => format!("{} MB", size / 1_000_000),
        _ => format!("{size} B"),
    }
}
