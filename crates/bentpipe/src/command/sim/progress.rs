//! How far the runs are: a bar that appears when they take more than a second.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use bentpipe_sim::{Observer, Scenario};
use bentpipe_units::Time;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const BAR: &str = "{bar:40} {percent:>3}%  {elapsed} of {duration}";
const BAR_DELAY: Duration = Duration::from_secs(1);
/// A run counts as this many steps, by its virtual time.
const STEPS: u64 = 1000;

/// The progress of all runs together.
pub(super) struct Meter {
    bar: ProgressBar,
    started: Instant,
    shown: OnceLock<()>,
}

impl Meter {
    pub(super) fn new(runs: u64) -> Self {
        let style = ProgressStyle::with_template(BAR).expect("the template is valid");
        let bar =
            ProgressBar::with_draw_target(Some(runs.saturating_mul(STEPS)), ProgressDrawTarget::hidden());
        Self { bar: bar.with_style(style), started: Instant::now(), shown: OnceLock::new() }
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn advance(&self, steps: u64) {
        self.bar.inc(steps);
        if self.started.elapsed() > BAR_DELAY {
            // Where standard error is no terminal, nothing is drawn there either.
            self.shown.get_or_init(|| self.bar.set_draw_target(ProgressDrawTarget::stderr()));
        }
    }
}

/// Reports the progress of one run to the bar.
pub(super) struct Watch<'a> {
    meter: &'a Meter,
    duration: Duration,
    steps: u64,
}

impl<'a> Watch<'a> {
    pub(super) fn new(meter: &'a Meter, scenario: &Scenario) -> Self {
        Self { meter, duration: scenario.duration, steps: 0 }
    }

    /// The run is over, perhaps before its time.
    pub(super) fn finish(mut self) {
        self.reach(STEPS);
    }

    fn reach(&mut self, steps: u64) {
        self.meter.advance(steps.saturating_sub(self.steps));
        self.steps = self.steps.max(steps);
    }
}

impl Observer for Watch<'_> {
    fn progress(&mut self, now: Time) -> bool {
        let share = now.as_secs_f64() / self.duration.as_secs_f64();
        self.reach((share.min(1.0) * STEPS as f64) as u64);
        true
    }
}
