//! What clients notice of an upgrade, a reload and draining: the longest pause of any of many paced
//! downloads, beside a period of the same length in which nothing happens.
//!
//! ```sh
//! make bench-upgrade                              # as root: network namespaces
//! target/release/examples/upgrades 1000 5         # so many downloads, so many upgrades
//! ```
//!
//! The program is the one beside the example's folder. How long the flows stood still each time is what the
//! next process says of it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

#[path = "../tests/operated/mod.rs"]
mod operated;

use operated::{Seen, Topology};

const LEG: &str = "rate = \"1Gbit/s\"\nrtt = \"50ms\"\n";
/// A download gets a piece of so many bytes at each interval: 1.6 Mbit/s.
const PIECE: usize = 2000;
const INTERVAL: Duration = Duration::from_millis(10);
/// Between two upgrades, and before and after all of them.
const REST: Duration = Duration::from_secs(2);

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<usize>().expect("a number"));
    let (downloads, times) = (arguments.next().unwrap_or(200), arguments.next().unwrap_or(3));
    let Some(mut topology) = Topology::new(&program(), None) else { return };
    topology.configure(LEG, "listen = \"off\"");
    topology.start();
    let mut rows = Vec::new();
    for (name, arguments) in [("upgrade", &["upgrade"][..]), ("reload", &["reload"])] {
        let took = measure(&topology, downloads, times, &mut rows, name, || order(&topology, arguments));
        let quiet = took / times.max(1) as u32;
        let nothing = || std::thread::sleep(quiet);
        measure(&topology, downloads, times, &mut rows, &format!("nothing, as long as {name}"), nothing);
    }
    // It ends the daemon when the last download is over, so that it comes last.
    let drain = || order(&topology, &["drain", "--no-deadline", "--no-wait"]);
    measure(&topology, downloads, 1, &mut rows, "drain", drain);
    println!("\n{downloads} downloads, a piece each {INTERVAL:?}; the longest time without one, of any:\n");
    println!("| what happens | times | worst pause | median of the downloads' worst | bytes lost |");
    println!("|---|---|---|---|---|");
    rows.iter().for_each(|row| println!("{row}"));
}

/// The program of the same build.
fn program() -> PathBuf {
    let here = std::env::current_exe().expect("this program has a file");
    let target = here.ancestors().nth(2).expect("examples are built into a folder of the program's");
    target.join("bentpipe")
}

fn order(topology: &Topology, arguments: &[&str]) {
    let output = topology.command(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    // The next process says it before it has the log of the one before.
    said.lines().filter(|line| line.contains("after a pause of")).for_each(|line| println!("{line}"));
}

/// One row of the table, and how long what happens took in all.
fn measure(
    topology: &Topology,
    count: usize,
    times: usize,
    rows: &mut Vec<String>,
    name: &str,
    happen: impl Fn(),
) -> Duration {
    let downloads = topology.downloads(count, PIECE, INTERVAL);
    std::thread::sleep(REST);
    let mut took = Duration::ZERO;
    for _ in 0..times {
        let start = Instant::now();
        happen();
        took += start.elapsed();
        std::thread::sleep(REST);
    }
    // Fails where one of them is not whole.
    let mut pauses: Vec<Duration> =
        downloads.finish().iter().map(|Seen { longest_pause, .. }| *longest_pause).collect();
    pauses.sort_unstable();
    let ms = |pause: Option<&Duration>| pause.map_or(0.0, |pause| pause.as_secs_f64() * 1000.0);
    let (worst, median) = (ms(pauses.last()), ms(pauses.get(pauses.len() / 2)));
    rows.push(format!("| {name} | {times} | {worst:.1} ms | {median:.1} ms | 0 |"));
    took
}
