//! Two bundle nodes across an emulated satellite link, by LTP and by TCPCLv4: what they carry of it. The nodes are
//! in this process, each in a network namespace of its own, with stores in temporary folders.

mod trial;

use std::process::ExitCode;

use bentpipe_table::{Align, markdown};
use bentpipe_testbed::{LINK_NEEDS, require};
use bentpipe_units::{Probability, Rate, Span};
use clap::{Parser, ValueEnum};

use trial::{Layer, Trial};

/// What bundle nodes carry over a satellite link.
#[derive(Debug, Parser)]
struct Options {
    /// The link's rate.
    #[arg(long, default_value = "100Mbit/s")]
    rate: Rate,
    /// Its round trip.
    #[arg(long, default_value = "600ms")]
    rtt: Span,
    /// The packet error rates.
    #[arg(long, value_delimiter = ',', default_value = "0%,0.1%,1%,5%")]
    per: Vec<Probability>,
    /// How long each trial lasts, after the first bundle has arrived.
    #[arg(long, default_value = "30s")]
    span: Span,
    /// The seeds of the link's losses.
    #[arg(long, value_delimiter = ',', default_value = "1,2,3")]
    seeds: Vec<u64>,
    /// Bytes of a bundle's payload.
    #[arg(long, default_value_t = 500_000)]
    size: usize,
    /// The convergence layers.
    #[arg(long, value_delimiter = ',', default_value = "ltp,tcpcl,cubic")]
    layers: Vec<Layer>,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), String> {
    require(LINK_NEEDS).map_err(|missing| missing.to_string())?;
    let names: Vec<String> = options.layers.iter().map(|layer| value_name(*layer)).collect();
    let mut headings = vec![("PER", Align::Left)];
    headings.extend(names.iter().map(|name| (name.as_str(), Align::Right)));
    let mut rows = Vec::new();
    for &per in &options.per {
        let mut row = vec![per.to_string()];
        let mut parts = vec![Vec::new(); options.layers.len()];
        // All layers with one seed before any with the next: they meet the same machine.
        for &seed in &options.seeds {
            for (layer, parts) in options.layers.iter().zip(&mut parts) {
                let trial = Trial {
                    layer: *layer,
                    rate: options.rate,
                    one_way: options.rtt.get() / 2,
                    per,
                    span: options.span.get(),
                    seed,
                    size: options.size,
                };
                let part = trial.run()?;
                eprintln!("PER {per}, seed {seed}, {}: {part:.3} of the limit", value_name(*layer));
                parts.push(part);
            }
        }
        row.extend(parts.iter_mut().map(|parts| summary(parts)));
        rows.push(row);
    }
    println!(
        "Payload in the far node's store, as a part of rate × (1 − PER): {} a direction, {} round trip, bundles of {} \
         bytes,\n{} each, {} seeds: median (lowest–highest). Payloads were compared.\n",
        options.rate,
        options.rtt,
        options.size,
        options.span,
        options.seeds.len()
    );
    print!("{}", markdown(&headings, &rows));
    Ok(())
}

fn value_name(layer: Layer) -> String {
    layer.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

fn summary(parts: &mut [f64]) -> String {
    parts.sort_by(f64::total_cmp);
    match &*parts {
        [] => String::new(),
        [only] => format!("{only:.3}"),
        [first, .., last] => format!("{:.3} ({first:.3}–{last:.3})", parts[parts.len() / 2]),
    }
}
