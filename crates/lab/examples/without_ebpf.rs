//! `without_ebpf [SEEDS]`: what explicit rates lose on a kernel without eBPF.
//!
//! Downloads over 10 Mbit/s and 600 ms that lose 1% and 5% of the packets, with explicit rates by eBPF, with
//! ceilings in their place (`paced`), and with the kernel's own congestion controls: a minute after a start-up
//! of five seconds, and for the first two a minute from the first SYN. Two trials run at a time. As root.

use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use bentpipe_lab::trial::{Measured, Trial};
use bentpipe_units::Rate;

const RATE: Rate = Rate::mbps(10);
const RTT: Duration = Duration::from_millis(600);
const MINUTE: Duration = Duration::from_secs(60);
const START_UP: Duration = Duration::from_secs(5);
const AT_ONCE: usize = 2;

type Row = (&'static str, f64, Duration);

fn main() {
    let seeds: u64 = std::env::args().nth(1).map_or(1, |text| text.parse().expect("a number of seeds"));
    let pers = [0.01, 0.05];
    let settled = ["explicit", "paced", "bbr", "cubic"].map(|control| (control, START_UP));
    let at_once = ["explicit", "paced"].map(|control| (control, Duration::ZERO));
    let rows: Vec<Row> = pers
        .iter()
        .flat_map(|&per| settled.iter().chain(&at_once).map(move |&(control, warmup)| (control, per, warmup)))
        .collect();
    let jobs = Mutex::new(rows.iter().flat_map(|&row| (1..=seeds).map(move |seed| (row, seed))));
    let results: Mutex<Vec<(Row, Measured)>> = Mutex::default();
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                let next = || jobs.lock().unwrap().next();
                while let Some((row, seed)) = next() {
                    let measured = trial(row, seed).run().unwrap();
                    results.lock().unwrap().push((row, measured));
                }
            });
        }
    });
    let results = results.into_inner().unwrap();
    println!("| | PER | measured | Mbit/s | of the limit | queue, median | queue, 95% |");
    println!("|---|---|---|---:|---:|---:|---:|");
    for row in rows {
        let runs: Vec<&Measured> =
            results.iter().filter(|(of, _)| *of == row).map(|(_, measured)| measured).collect();
        println!("{}", line(row, &runs));
    }
}

fn trial((control, per, warmup): Row, seed: u64) -> Trial {
    Trial { warmup, lasts: warmup + MINUTE, ..Trial::of_a_minute(RATE, RTT, per, control, seed) }
}

/// The means over the seeds.
fn line((control, per, warmup): Row, runs: &[&Measured]) -> String {
    let mean = |measure: &dyn Fn(&Measured) -> f64| {
        runs.iter().map(|run| measure(run)).sum::<f64>() / runs.len() as f64
    };
    let since = if warmup.is_zero() { "from the first SYN" } else { "after the start-up" };
    format!(
        "| {control} | {}% | {since} | {:.2} | {:.1}% | {:.0} ms | {:.0} ms |",
        100.0 * per,
        mean(&|run| run.goodputs_bps[0]) / 1e6,
        100.0 * mean(&Measured::of_limit),
        1e3 * mean(&Measured::median_queue_s),
        1e3 * mean(&|run| run.queue_s[run.queue_s.len() * 95 / 100]),
    )
}
