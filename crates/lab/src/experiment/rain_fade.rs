//! Downloads through rain fronts, with adaptive coding and modulation.

use std::time::Duration;

use bentpipe_link::RainFront;

use super::Experiment;
use super::varying::{Study, VaryingLink};
use crate::results::Plan;

pub(super) const RAIN_FADE: Experiment = Experiment {
    name: "rain-fade",
    title: "Explicit rates below rain fronts, where nobody knows the rate",
    source: "ours",
    plan: Plan::doubling(2),
    run: Some(|lab| study(DRAWN, 1.0).virtual_time(lab)),
    on_kernel: Some((1, |lab| study(DRAWN, TIME_COMPRESSION).kernel(lab))),
};

/// How many fronts are drawn.
const DRAWN: u64 = 20;
/// How long a download lasts, seconds; before compression.
const LASTS: f64 = 600.0;
/// On the kernel, eight minutes of weather pass in one.
const TIME_COMPRESSION: f64 = 8.0;
/// How long the sky is clear, and how long the attenuation rises, stays and falls, seconds; before
/// compression.
const TIMES: [[u64; 2]; 4] = [[90, 120], [120, 240], [60, 120], [120, 240]];

fn study(drawn: u64, time_compression: f64) -> Study {
    let lasts = Duration::from_secs_f64(LASTS / time_compression);
    let fixed = RainFront {
        peak_db: [8.0; 2],
        times: TIMES.map(|[low, high]| [Duration::from_secs((low + high) / 2); 2]),
        ..drawn_front(time_compression)
    };
    let fixed = VaryingLink { name: "fixed".into(), config: fixed.link(0, lasts) };
    let front = drawn_front(time_compression);
    let drawn =
        (1..=drawn).map(|seed| VaryingLink { name: format!("seed {seed}"), config: front.link(seed, lasts) });
    Study {
        link: ["front", "fronts"],
        links: std::iter::once(fixed).chain(drawn).collect(),
        lasts: lasts.as_secs_f64(),
    }
}

fn drawn_front(time_compression: f64) -> RainFront {
    RainFront {
        time_compression,
        times: TIMES.map(|range| range.map(Duration::from_secs)),
        ..RainFront::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::{Level, Outcome};
    use crate::experiment::{Lab, Progress};
    use crate::results::Seeds;

    #[test]
    fn in_virtual_time_a_leg_that_is_told_nothing_has_what_one_that_is_told_has() {
        let progress = Progress::default();
        let lab = Lab::in_virtual_time(Seeds { first: 1, count: 1 }, &progress);
        // Not compressed: in a minute the seconds count in which a rate is found.
        let output = study(1, 1.0).virtual_time(&lab).unwrap();
        assert_eq!(output.tables[0].content.rows().len(), 2);
        assert_eq!(output.claims.len(), 3);
        // One run of each front refutes nothing; to show something takes more.
        let verdicts: Vec<_> = output.claims.iter().map(|claim| claim.judge(Level::of_looks(1))).collect();
        assert_eq!(verdicts[2].outcome, Outcome::Undecided, "{verdicts:#?}");
    }
}
