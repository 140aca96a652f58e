//! The comparison with the TCP of this machine's kernel, in real time, and the Snoop of the daemon.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::super::lossy_link::Measured;
use super::super::lossy_link::kernel::Download;
use super::super::{Findings, Lab};
use super::{Case, Comparison, Pair, Sender, WAYS, cases};
use crate::Error;

/// Under the names that the kernel has for them.
const SENDERS: [Sender; 3] = [
    Sender { name: "Reno", key: "reno", must_gain: true },
    Sender { name: "CUBIC", key: "cubic", must_gain: true },
    Sender { name: "BBR", key: "bbr", must_gain: false },
];
/// How long a download runs.
const TIME: Duration = Duration::from_secs(60);

pub(super) fn run(lab: &Lab<'_>) -> Result<Findings, Error> {
    let cases = cases(&SENDERS);
    let trials = cases.len() * lab.seeds().count() * WAYS.len();
    lab.progress.planned.fetch_add(trials as u64, Ordering::Relaxed);
    let of_case = |case: &Case| lab.seeds().map(|seed| side_by_side(lab, case, seed)).collect();
    let runs = cases.iter().map(of_case).collect::<Result<Vec<Vec<Pair>>, Error>>()?;
    Ok(Comparison::of(&cases, &runs).findings())
}

/// Without and with Snoop at the same time, so that what disturbs the machine disturbs both alike; and no more than these
/// two, so that they do not disturb each other.
fn side_by_side(lab: &Lab<'_>, case: &Case, seed: u64) -> Result<Pair, Error> {
    std::thread::scope(|scope| {
        let runs = WAYS.map(|way| {
            scope.spawn(move || -> Result<Measured, Error> {
                let (sender, queue) = (case.sender.key, Some(case.queue()));
                let measured = Download { way, sender, queue, per: case.per, lasts: TIME, seed }.measure()?;
                lab.progress.done.fetch_add(1, Ordering::Relaxed);
                Ok(measured)
            })
        });
        let [without, with] = runs.map(|run| run.join().expect("a measurement does not panic"));
        Ok([without?, with?])
    })
}
