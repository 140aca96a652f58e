//! The boxes with the TCP of this machine's kernel, in real time.

use std::sync::atomic::Ordering;

use super::super::{Findings, Lab};
use super::{Comparison, LINKS, RATE, TIME, WAYS, rtt};
use crate::Error;
use crate::trial::Trial;

/// Trials at the same time: each takes a tenth of a processor.
const AT_ONCE: usize = 3;

pub(super) fn run(lab: &Lab<'_>) -> Result<Findings, Error> {
    let trials: Vec<Trial> = WAYS.iter().flat_map(|way| of_way(lab, way)).collect();
    lab.progress.planned.fetch_add(trials.len() as u64, Ordering::Relaxed);
    let mut goodputs = Vec::new();
    for together in trials.chunks(AT_ONCE) {
        goodputs.extend(side_by_side(lab, together)?);
    }
    let seeds = lab.seeds().count();
    let by_link: Vec<Vec<f64>> = goodputs.chunks(seeds).map(<[f64]>::to_vec).collect();
    let by_way: Vec<Vec<Vec<f64>>> = by_link.chunks(LINKS.len()).map(<[_]>::to_vec).collect();
    Ok(Comparison::of(&by_way).findings())
}

fn of_way(lab: &Lab<'_>, way: &'static str) -> Vec<Trial> {
    let trial = |link: usize, seed| Trial {
        terminal: Some(way.to_owned()),
        lasts: TIME,
        ..Trial::of_a_minute(RATE, rtt(link), LINKS[link].0, way, seed)
    };
    (0..LINKS.len()).flat_map(|link| lab.seeds().map(move |seed| trial(link, seed))).collect()
}

/// The goodputs of trials at the same time, bits per second.
fn side_by_side(lab: &Lab<'_>, trials: &[Trial]) -> Result<Vec<f64>, Error> {
    std::thread::scope(|scope| {
        let run = |trial: &Trial| {
            let outcome = trial.run();
            lab.progress.done.fetch_add(1, Ordering::Relaxed);
            Ok(outcome?.goodputs_bps[0])
        };
        let runs: Vec<_> = trials.iter().map(|trial| scope.spawn(move || run(trial))).collect();
        runs.into_iter().map(|run| run.join().expect("a trial does not panic")).collect()
    })
}
