//! The comparison with the TCP of this machine's kernel, in real time, and the daemon's Snoop.

use std::time::Duration;

use super::super::lossy_link::kernel::Download;
use super::super::{Lab, Output, rows};
use super::{COMPARED, Comparison, Pair, Sender, cases};
use crate::Error;

/// With the kernel's names.
const SENDERS: [Sender; 3] = [
    Sender { name: "Reno", key: "reno", must_gain: true },
    Sender { name: "CUBIC", key: "cubic", must_gain: true },
    Sender { name: "BBR", key: "bbr", must_gain: false },
];
/// The length of a download.
const TIME: Duration = Duration::from_secs(60);

/// A download without Snoop and the one with it run at the same time; no others do, so that they do not disturb each other.
pub(super) fn run(lab: &Lab<'_>) -> Result<Output, Error> {
    let cases = cases(&SENDERS);
    let mut jobs = Vec::new();
    for case in &cases {
        for seed in lab.seeds() {
            for mitigation in COMPARED {
                let (sender, queue) = (case.sender.key, Some(case.queue()));
                let download = Download { mitigation, sender, queue, per: case.per, lasts: TIME, seed };
                jobs.push(move || download.measure());
            }
        }
    }
    let measured = lab.side_by_side(COMPARED.len(), jobs)?;
    let pairs: Vec<Pair> = measured.chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect();
    Ok(Comparison::of(&cases, &rows(pairs, lab.seeds().count())).output())
}
