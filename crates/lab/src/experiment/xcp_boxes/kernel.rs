//! The experiment with the TCP of this machine's kernel, in real time.

use super::super::{Lab, Output, rows};
use super::{CONTROLS, LINKS, RATE, Shares, TIME, rtt};
use crate::Error;
use crate::trial::Trial;

/// Trials that run at the same time; each takes a tenth of a CPU.
const AT_ONCE: usize = 3;

pub(super) fn run(lab: &Lab<'_>) -> Result<Output, Error> {
    let mut jobs = Vec::new();
    for control in CONTROLS {
        for (link, (per, _)) in LINKS.into_iter().enumerate() {
            for seed in lab.seeds() {
                let trial = Trial {
                    terminal: Some(control.to_owned()),
                    lasts: TIME,
                    ..Trial::of_a_minute(RATE, rtt(link), per, control, seed)
                };
                jobs.push(move || Ok(trial.run()?.goodputs_bps[0]));
            }
        }
    }
    let goodputs = rows(rows(lab.side_by_side(AT_ONCE, jobs)?, lab.seeds().count()), LINKS.len());
    Ok(Shares::of(&goodputs).output())
}
