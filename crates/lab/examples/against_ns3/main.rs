//! Our simulator beside ns-3: `against_ns3 [--seeds N] [--rounds N] [--both] [--json] [--trace DIR] [--ns3 DIR] [PART]…`.
//!
//! The parts are `flow`, `hybla`, `handshake` and `speed`; all of them unless some are named. `--seeds` (10) is how many
//! runs an interval comes from, `--rounds` (5) how often the speed is measured, `--both` loses acknowledgements too,
//! `--trace DIR` writes the windows of both senders for the first seed, and `--ns3 DIR` (target/ns3) is where
//! `peers/ns3/build` has put its programs. `docs/validation.md` says what came out.

mod handshake;
mod ns3;
mod options;
mod pairs;
mod scene;
mod show;
mod single_flow;
mod speed;
mod trace;

use std::process::ExitCode;

use bentpipe_lab::table::Table;
use serde_json::{Value, json};

use crate::ns3::{Error, Ns3};
use crate::options::{Options, Part};
use crate::pairs::{HYBLA, PAIRS, Pair};
use crate::single_flow::{Losses, Row};

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    match compare(&options) {
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
    for part in &options.parts {
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
            document.insert(part.name().to_owned(), value);
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
