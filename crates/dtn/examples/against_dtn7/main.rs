//! bentpipe's bundle node and dtn7-rs: whether they understand each other, and what each of them costs.
//!
//! `against_dtn7 [interop|compare]… [--rounds N] [--dtn7 DIR] [--bentpipe FILE]`, both parts unless one is named. `--rounds` (5) is
//! how often each load is measured, `--dtn7` (target/peers/dtn7/bin) where `scripts/setup-peers dtn7` has put it, `--bentpipe`
//! (beside this program's folder) the program whose node is tried. The exit code is 0 if every bundle has arrived as it was sent.
//! Everything is on loopback and in temporary folders, and ends with this program.

mod compare;
mod interop;
mod nodes;
mod web;

use std::path::PathBuf;
use std::process::ExitCode;

use compare::{LOADS, Load, Run};
use interop::{Opener, SIZES, Scheme};
use nodes::Programs;

/// The payloads whose memory is looked at, bytes.
const FILES: [usize; 4] = [1_000_000, 10_000_000, 100_000_000, 1_000_000_000];

struct Options {
    interop: bool,
    compare: bool,
    rounds: usize,
    programs: Programs,
}

fn main() -> ExitCode {
    let outcome = Options::parse(std::env::args().skip(1)).and_then(|options| {
        if let Some(missing) = options.programs.missing() {
            return Err(missing);
        }
        if options.interop {
            interop(&options.programs)?;
        }
        if options.compare { compare(&options) } else { Ok(()) }
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let own = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
        let programs = Programs {
            dtn7: "target/peers/dtn7/bin".into(),
            bentpipe: own.ancestors().nth(2).unwrap_or(&own).join("bentpipe"),
        };
        let mut options = Self { interop: false, compare: false, rounds: 5, programs };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} takes a value"));
            match argument.as_str() {
                "interop" => options.interop = true,
                "compare" => options.compare = true,
                "--rounds" => {
                    let rounds = value()?.parse().ok().filter(|rounds| (1..=100).contains(rounds));
                    options.rounds = rounds.ok_or("--rounds takes a number from 1 to 100")?;
                }
                "--dtn7" => options.programs.dtn7 = PathBuf::from(value()?),
                "--bentpipe" => options.programs.bentpipe = PathBuf::from(value()?),
                _ => {
                    return Err(format!(
                        "\"{argument}\" is neither a part (interop, compare) nor an option (--rounds N, --dtn7 DIR, \
                         --bentpipe FILE)"
                    ));
                }
            }
        }
        if !options.interop && !options.compare {
            (options.interop, options.compare) = (true, true);
        }
        Ok(options)
    }
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

fn compare(options: &Options) -> Result<(), String> {
    let programs = &options.programs;
    println!("| payloads | | bentpipe | dtn7-rs | bentpipe / dtn7-rs |\n|---|---|---|---|---|");
    for load in LOADS {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..options.rounds {
            eprintln!("{} × {} bytes, round {} of {}", load.count, load.size, round + 1, options.rounds);
            // Each round begins with the other one, so that none always comes after a rest.
            if round % 2 == 0 {
                ours.push(compare::bentpipe(programs, load)?);
                theirs.push(compare::dtn7(programs, load)?);
            } else {
                theirs.push(compare::dtn7(programs, load)?);
                ours.push(compare::bentpipe(programs, load)?);
            }
        }
        print_load(load, &ours, &theirs);
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
    let name = format!("{} × {}", load.count, bytes(load.size));
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
    match load.total() {
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
