//! The totals of each interval, while the command runs.

use std::time::{Duration, Instant};

use crate::SatelliteLink;

/// Prints a line for each interval on standard error.
#[derive(Debug)]
pub(super) struct Totals {
    interval: Duration,
    started: Instant,
    printed: Instant,
    before: [Sums; 2],
}

/// The sums of a direction since the start.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    packets: u64,
    bytes: u64,
    lost: u64,
}

const HEADER: &str = "\
link:   time s | to the command  Mbit/s   packets     lost  queue B | from the command  Mbit/s   packets     lost  queue B";

impl Totals {
    pub(super) fn new(interval: Duration, link: &SatelliteLink) -> Self {
        let now = Instant::now();
        eprintln!("{HEADER}");
        Self { interval, started: now, printed: now, before: sums(link) }
    }

    /// Prints the interval if it is over. Returns when to call again.
    pub(super) fn print_due(&mut self, link: &SatelliteLink) -> Duration {
        let span = self.printed.elapsed();
        if span < self.interval {
            return self.interval - span;
        }
        let (now, (down_queue, up_queue)) = (sums(link), link.backlog());
        let [down, up] = [0, 1].map(|at| now[at].since(&self.before[at]));
        let down = columns(&down, span, down_queue.get());
        let up = columns(&up, span, up_queue.get());
        eprintln!("link: {:>8.2} | {:14}{down} | {:16}{up}", self.started.elapsed().as_secs_f64(), "", "");
        self.before = now;
        self.printed += span;
        self.interval
    }
}

fn sums(link: &SatelliteLink) -> [Sums; 2] {
    let (down, up) = link.counters();
    let (down_arrived, up_arrived) = link.arrived();
    let sums = |(packets, bytes), lost| Sums { packets, bytes, lost };
    [sums(down_arrived, down.dropped_total()), sums(up_arrived, up.dropped_total())]
}

impl Sums {
    fn since(&self, before: &Self) -> Self {
        Self {
            packets: self.packets - before.packets,
            bytes: self.bytes - before.bytes,
            lost: self.lost - before.lost,
        }
    }
}

fn columns(sums: &Sums, span: Duration, queue: u64) -> String {
    let mbit = sums.bytes as f64 * 8.0 / 1e6 / span.as_secs_f64();
    format!("{mbit:>8.3}  {:>8} {:>8} {queue:>8}", sums.packets, sums.lost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_packet_in_a_second_is_seen() {
        let sums = Sums { packets: 1, bytes: 1500, lost: 0 };
        let text = columns(&sums, Duration::from_secs(1), 0);
        assert_eq!(text.split_whitespace().collect::<Vec<_>>(), ["0.012", "1", "0", "0"]);
    }
}
