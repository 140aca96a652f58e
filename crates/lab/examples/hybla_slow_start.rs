//! `hybla_slow_start FILE.svg`, as root: Hybla's window in slow start beside the formula.

use std::path::PathBuf;
use std::time::Duration;

use bentpipe_lab::slow_start::{figure, record};
use bentpipe_lab::topology::symmetric;
use bentpipe_units::{Probability, Rate};

fn main() {
    let path = PathBuf::from(std::env::args().nth(1).expect("the file to write"));
    let mut recordings = Vec::new();
    for (mbps, rtt_ms) in [(100, 25), (100, 100), (10, 300), (10, 600)] {
        let link = symmetric(Rate::mbps(mbps), Duration::from_millis(rtt_ms), Probability::ZERO);
        let recording = record(&link, 1_500_000, Duration::from_micros(200)).expect("the recording");
        recordings.push((format!("{rtt_ms} ms"), recording.samples));
    }
    figure(&recordings).write(&path).expect("the figure");
}
