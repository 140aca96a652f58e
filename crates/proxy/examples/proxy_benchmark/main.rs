//! Transparent proxies side by side: the same traffic through plain forwarding, bentpipe, HAProxy and any
//! other proxy that a file describes, on the same machine in the same minutes. `proxy_benchmark --help`, as
//! root.
//!
//! Each round makes new networks, client – gateway – server, one for each way; each measurement goes round
//! all ways before the next one begins, so that whatever else the machine does meets them alike. Compare
//! ratios within one run.

#[path = "../../tests/common/mod.rs"]
mod common;

mod bulk;
mod cpu;
mod exchange;
mod options;
mod peer;
mod report;
mod short;
mod way;

use std::process::ExitCode;

use clap::Parser;
use options::{Measurement, Options};
use report::Report;
use way::Way;

fn main() -> ExitCode {
    let options = Options::parse();
    if !rustix::process::geteuid().is_root() {
        return fail("this needs root: network namespaces and transparent sockets");
    }
    match run(&options) {
        Ok(report) if options.json => println!("{}", report.json()),
        Ok(report) => print!("{}", report.markdown()),
        Err(error) => return fail(&error),
    }
    ExitCode::SUCCESS
}

fn run(options: &Options) -> Result<Report, String> {
    let peers = options.ways()?;
    let mut report = Report::new(options, &peers);
    for round in 0..options.rounds() {
        eprintln!("round {} of {}", round + 1, options.rounds());
        let ways: Vec<Way> = peers.iter().map(|peer| Way::set_up(peer.as_ref())).collect::<Result<_, _>>()?;
        // Each round begins with another way, so that none always has the same neighbour.
        let order: Vec<usize> = (0..ways.len()).map(|place| (place + round) % ways.len()).collect();
        measure(&ways, &order, options, &mut report)?;
        ways.into_iter().try_for_each(Way::take_down)?;
    }
    Ok(report)
}

/// Every measurement once, through every way.
fn measure(ways: &[Way], order: &[usize], options: &Options, report: &mut Report) -> Result<(), String> {
    let time = options.time();
    for flows in bulk::FLOWS.into_iter().filter(|_| options.measures(Measurement::Bulk)) {
        for direction in bulk::DIRECTIONS {
            for &index in order {
                let outcome = bulk::measure(&ways[index], direction, flows, time)?;
                report.add_bulk(index, direction, flows, &outcome);
            }
        }
    }
    for concurrency in short::CONCURRENCIES.into_iter().filter(|_| options.measures(Measurement::Short)) {
        for &index in order {
            let outcome = short::measure(&ways[index], concurrency, time)?;
            report.add_short(index, concurrency, &outcome);
        }
    }
    for &index in order.iter().filter(|_| options.measures(Measurement::Latency)) {
        let outcome = exchange::measure(&ways[index], time)?;
        report.add_latency(index, &outcome);
    }
    Ok(())
}

fn fail(error: &str) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::FAILURE
}
