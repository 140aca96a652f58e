//! Downloads from a low orbit, where another satellite takes over every 15 s.

use std::time::Duration;

use bentpipe_link::LeoHandovers;
use bentpipe_units::Rate;

use super::Experiment;
use super::varying::{Study, VaryingLink};
use crate::results::Plan;

pub(super) const LEO: Experiment = Experiment {
    name: "leo",
    title: "Explicit rates on low-orbit links that change at handovers every 15 s, and nobody knows the rate",
    source: "ours",
    plan: Plan::doubling(2),
    run: Some(|lab| study(DRAWN).virtual_time(lab)),
    on_kernel: Some((1, |lab| study(DRAWN).kernel(lab))),
};

/// How many links are drawn.
const DRAWN: u64 = 20;
/// How long a download lasts, seconds: three slots.
const LASTS: f64 = 45.0;

fn study(drawn: u64) -> Study {
    let lasts = Duration::from_secs_f64(LASTS);
    let fixed = VaryingLink { name: "fixed".into(), config: fixed().link(0, lasts) };
    let leo = LeoHandovers::default();
    let drawn =
        (1..=drawn).map(|seed| VaryingLink { name: format!("seed {seed}"), config: leo.link(seed, lasts) });
    Study { link: ["trace", "traces"], links: std::iter::once(fixed).chain(drawn).collect(), lasts: LASTS }
}

/// The middle of what the drawn ones are: each slot between 80 and 120 Mbit/s, interruptions of 60 ms, bursts
/// of 5%.
fn fixed() -> LeoHandovers {
    LeoHandovers {
        forward: [80, 120].map(Rate::mbps),
        interruption: [Duration::from_millis(60); 2],
        burst_per: [0.05; 2],
        ..LeoHandovers::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::{Level, Outcome};
    use crate::experiment::{Lab, Progress};
    use crate::results::Seeds;

    #[test]
    fn in_virtual_time_each_trace_has_its_row_and_most_of_it_is_used() {
        let progress = Progress::default();
        let lab = Lab::in_virtual_time(Seeds { first: 1, count: 1 }, &progress);
        let study = Study { lasts: 20.0, ..study(1) };
        let output = study.virtual_time(&lab).unwrap();
        assert_eq!(output.tables[0].content.rows().len(), 2);
        assert_eq!(output.claims.len(), 3);
        let verdicts: Vec<_> = output.claims.iter().map(|claim| claim.judge(Level::of_looks(1))).collect();
        assert_eq!(verdicts[1].outcome, Outcome::Undecided, "one run refutes nothing: {verdicts:#?}");
        let share: f64 = verdicts[0].observed.split('%').next().unwrap().parse().unwrap();
        assert!(share >= 95.0, "{verdicts:#?}");
    }
}
