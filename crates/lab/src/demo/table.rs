//! The results of a demonstration as a table for people.

use bentpipe_table::Align::{Left, Right};
use bentpipe_table::aligned;

use super::{Comparison, Run};
use crate::results::World;

/// See [`Comparison::to_text`].
pub(super) fn text(comparison: &Comparison) -> String {
    let slowest = comparison.runs.iter().map(|run| run.goodput_bps).fold(f64::INFINITY, f64::min);
    let headings = [
        ("", Left),
        ("time", Right),
        ("goodput", Right),
        ("of limit", Right),
        ("gain", Right),
        ("file", Left),
    ];
    let rows: Vec<_> = comparison.runs.iter().map(|run| row(run, comparison.limit_bps, slowest)).collect();
    format!(
        "{}\nThe limit is {:.2} Mbit/s: rate × payload share × (1 − PER). Seed {}, {}.\n",
        aligned(&headings, &rows).join("\n"),
        comparison.limit_bps / 1e6,
        comparison.seed,
        match comparison.world {
            World::Kernel => format!("Linux {}", comparison.kernel),
            World::Sim => "in virtual time".to_owned(),
        }
    )
}

fn row(run: &Run, limit_bps: f64, slowest_bps: f64) -> [String; 6] {
    // Without a single byte received there is nothing to compare with.
    let gain = match slowest_bps > 0.0 {
        true => format!("{:.1}×", run.goodput_bps / slowest_bps),
        false => "–".to_owned(),
    };
    let time = if run.finished { format!("{:.1} s", run.seconds) } else { format!("> {:.1} s", run.seconds) };
    let file = match (run.identical, run.finished) {
        (true, true) => "identical".to_owned(),
        (true, false) => format!("stopped at {:.1} MB", run.bytes as f64 / 1e6),
        (false, _) => "DIFFERS".to_owned(),
    };
    [
        run.label(),
        time,
        format!("{:.2} Mbit/s", run.goodput_bps / 1e6),
        format!("{:.0}%", 100.0 * run.goodput_bps / limit_bps),
        gain,
        file,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str, goodput_bps: f64, identical: bool) -> Run {
        let (congestion, timeline) = (name.to_owned(), Vec::new());
        let (seconds, finished) = (1.0, true);
        Run { name: name.into(), congestion, goodput_bps, bytes: 1, seconds, identical, finished, timeline }
    }

    #[test]
    fn the_gain_is_over_the_slowest_and_a_damaged_file_stands_out() {
        let comparison = Comparison {
            world: World::Kernel,
            limit_bps: 10e6,
            seed: 1,
            kernel: "6.18".into(),
            runs: vec![run("reno", 0.25e6, true), run("bbr", 5e6, false)],
        };
        let text = text(&comparison);
        assert!(text.contains("20.0×") && text.contains("DIFFERS") && text.contains("50%"), "{text}");
    }

    #[test]
    fn a_stopped_download_shows_how_far_it_came() {
        let stopped = Run { finished: false, bytes: 1_530_000, seconds: 61.25, ..run("reno", 0.2e6, true) };
        let text = row(&stopped, 10e6, 0.2e6).join("  ");
        assert!(text.contains("> 61.2 s") && text.contains("stopped at 1.5 MB"), "{text}");
    }
}
