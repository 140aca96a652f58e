//! Our simulator beside ns-3; `--help` lists the options, and `docs/validation.md` says what came out.

mod handshake;
mod ns3;
mod pairs;
mod scene;
mod show;
mod single_flow;
mod speed;
mod trace;

use std::path::PathBuf;
use std::process::ExitCode;

use bentpipe_lab::table::Table;
use clap::{Parser, ValueEnum, value_parser};
use serde_json::{Value, json};

use crate::ns3::{Error, Ns3};
use crate::pairs::{HYBLA, PAIRS, Pair};
use crate::single_flow::{Losses, Row};

/// Our simulator beside ns-3.
#[derive(Debug, Parser)]
struct Options {
    /// What to compare; everything by default
    parts: Vec<Part>,
    /// How many runs an interval comes from
    #[arg(long, default_value_t = 10, value_parser = value_parser!(u64).range(2..=10_000))]
    seeds: u64,
    /// How often the speed is measured
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u64).range(1..=10_000))]
    rounds: u64,
    /// Acknowledgements are lost, too
    #[arg(long)]
    both: bool,
    /// One JSON document instead of tables
    #[arg(long)]
    json: bool,
    /// Writes the windows of both senders for the first seed into this folder
    #[arg(long, value_name = "DIR")]
    trace: Option<PathBuf>,
    /// Where peers/ns3/build has put its programs
    #[arg(long, value_name = "DIR", default_value = "target/ns3")]
    ns3: PathBuf,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Part {
    Flow,
    Hybla,
    Handshake,
    Speed,
}

fn main() -> ExitCode {
    match compare(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn compare(options: &Options) -> Result<(), Error> {
    let ns3 = Ns3::new(&options.ns3);
    let mut document = serde_json::Map::new();
    let parts = if options.parts.is_empty() { Part::value_variants() } else { &options.parts };
    for part in parts {
        let (table, value) = match part {
            Part::Flow => flows(&ns3, options, PAIRS, "One flow of 10 MB, 10 Mbit/s, 300 ms one way")?,
            Part::Hybla => flows(&ns3, options, HYBLA, "Hybla, with a rho of 24, and ns-3's")?,
            Part::Handshake => {
                let reaches = handshake::compare(&ns3)?;
                (handshake::table(&reaches), json!(reaches))
            }
            Part::Speed => {
                let speed = speed::compare(&ns3, options.rounds)?;
                (speed::table(&speed), json!(speed))
            }
        };
        if options.json {
            let name = part.to_possible_value().expect("every part has a name");
            document.insert(name.get_name().to_owned(), value);
        } else {
            println!("{}", table.to_text());
        }
    }
    if options.json {
        println!("{}", Value::Object(document));
    }
    Ok(())
}

fn flows(ns3: &Ns3, options: &Options, pairs: &[Pair], title: &str) -> Result<(Table, Value), Error> {
    let losses = if options.both { Losses::Both } else { Losses::Data };
    if let Some(folder) = &options.trace {
        trace::write(ns3, pairs, folder)?;
    }
    let rows: Vec<Row> = single_flow::compare(ns3, pairs, options.seeds, losses)?;
    let which = if options.both { "both directions lose" } else { "acknowledgements arrive" };
    Ok((show::table(&rows, format!("{title}; {which}; {} seeds", options.seeds)), json!(rows)))
}
