//! How busy the processors are while something is measured in real time.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{fmt, fs};

use serde::{Deserialize, Serialize};

/// How busy the processors were during a measurement, whoever used them: the part of the time in which they
/// were not idle, all together, 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Busy {
    /// From beginning to end.
    pub mean: f64,
    /// In the busiest ten seconds; from beginning to end where that is less.
    pub most: f64,
}

impl Busy {
    /// Beyond this packets wait for a processor, and delays are the machine's: measured with two, on which a
    /// round trip of 25 ms became longer. What else has been busy with a lower priority counts all the same.
    pub const TOO_MUCH: f64 = 0.75;

    /// Whether packets may have waited for a processor.
    pub fn is_too_much(&self) -> bool {
        self.most > Self::TOO_MUCH
    }
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [mean, most] = [self.mean, self.most].map(|part| 100.0 * part);
        write!(f, "processors busy for {mean:.0}% of the time, {most:.0}% in the busiest ten seconds")?;
        if self.is_too_much() {
            f.write_str(": packets may have waited for one, and delays be longer than the links'")?;
        }
        Ok(())
    }
}

/// The time over which the processors are looked at.
const PERIOD: Duration = Duration::from_secs(10);

/// Looks at the processors until it is ended, or dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    end: Sender<()>,
    watching: JoinHandle<Option<Busy>>,
}

impl Watch {
    pub(crate) fn begin() -> Self {
        let (end, ended) = mpsc::channel();
        Self { end, watching: thread::spawn(move || watch(&ended)) }
    }

    /// `None` where the system does not tell.
    pub(crate) fn end(self) -> Option<Busy> {
        drop(self.end);
        self.watching.join().ok()?
    }
}

fn watch(ended: &Receiver<()>) -> Option<Busy> {
    let first = Ticks::now()?;
    let (mut last, mut most) = (first, None::<f64>);
    loop {
        let is_over = ended.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout);
        let now = Ticks::now()?;
        if is_over {
            let mean = first.busy_until(now);
            return Some(Busy { mean, most: most.unwrap_or(mean) });
        }
        most = Some(last.busy_until(now).max(most.unwrap_or_default()));
        last = now;
    }
}

/// What the processors have done since the machine began, in ticks of its clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ticks {
    all: u64,
    idle: u64,
}

impl Ticks {
    fn now() -> Option<Self> {
        Self::parse(&fs::read_to_string("/proc/stat").ok()?)
    }

    /// The first line of `/proc/stat` (proc(5)): user, nice, system, idle, iowait, irq, softirq and steal.
    /// Guests are counted among the first two. Stolen time is not idle: nobody here can use it.
    fn parse(stat: &str) -> Option<Self> {
        let times: Vec<u64> = stat
            .strip_prefix("cpu ")?
            .lines()
            .next()?
            .split_whitespace()
            .take(8)
            .map(|ticks| ticks.parse().ok())
            .collect::<Option<_>>()?;
        let &[_, _, _, idle, waiting, ..] = &times[..] else { return None };
        Some(Self { all: times.iter().sum(), idle: idle + waiting })
    }

    /// The part of the time between the two that is not idle; 0 where no time has passed.
    fn busy_until(self, later: Self) -> f64 {
        let all = later.all.saturating_sub(self.all);
        let idle = later.idle.saturating_sub(self.idle).min(all);
        if all == 0 { 0.0 } else { (all - idle) as f64 / all as f64 }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn all_but_idling_and_waiting_for_disks_is_busy() {
        let ticks = |text| Ticks::parse(text).unwrap();
        let before = ticks("cpu  100 10 50 800 40 0 0 0 7 7\ncpu0 1 2 3\n");
        assert_eq!(before, Ticks { all: 1000, idle: 840 });
        let after = ticks("cpu  130 10 60 830 50 5 10 5 9 9\n");
        assert_eq!(before.busy_until(after), 0.6, "30 of user, 10 of system, 5, 10 and 5 of a hundred");
        assert_eq!(before.busy_until(before), 0.0);
        assert_eq!(after.busy_until(before), 0.0, "a counter that went back");
        for wrong in ["", "intr 1 2 3", "cpu  1 2 3", "cpu  1 2 x 4 5 6 7 8"] {
            assert_eq!(Ticks::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_watched_machine_is_as_busy_as_it_is_kept() {
        let watch = Watch::begin();
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(300) {
            std::hint::spin_loop();
        }
        let busy = watch.end().unwrap();
        assert!(busy.mean > 0.0 && busy.mean <= 1.0 && busy.most == busy.mean, "{busy:?}");
    }

    #[test]
    fn a_machine_that_is_too_busy_is_told_of() {
        let busy = |most| Busy { mean: 0.5, most }.to_string();
        assert_eq!(busy(0.75), "processors busy for 50% of the time, 75% in the busiest ten seconds");
        assert!(
            busy(0.76).ends_with("packets may have waited for one, and delays be longer than the links'")
        );
    }
}
