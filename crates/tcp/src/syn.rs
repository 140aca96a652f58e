//! When SYNs are sent, and when the caller gives up: what bounds TCP's reach (RADIUS07).

use std::time::Duration;

/// The waits between SYNs: some of equal length, then each twice the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SynSchedule {
    /// The first wait.
    pub first: Duration,
    /// How many waits of the first one's length come before the doubling begins (Linux:
    /// `tcp_syn_linear_timeouts`).
    pub linear: u32,
    /// The longest wait.
    pub max: Duration,
    /// How many waits there are; after the last one the connection is given up. `None` never gives up.
    pub waits: Option<u32>,
}

impl SynSchedule {
    /// Linux since 6.5: four repetitions a second apart, then six doubling from 1 s (`tcp_syn_retries`,
    /// ip-sysctl); given up after 131 s.
    pub const LINUX: SynSchedule = SynSchedule {
        first: Duration::from_secs(1),
        linear: 4,
        max: Duration::from_secs(120),
        waits: Some(11),
    };

    /// Linux' answer to a SYN: five repetitions (`tcp_synack_retries`), given up after 63 s.
    pub const LINUX_SYN_ACK: SynSchedule = SynSchedule { linear: 0, waits: Some(6), ..Self::LINUX };

    /// RFC 6298 §2.1 and §5.5, given up after the first wait that ends beyond RFC 1122's three minutes
    /// (§4.2.3.5).
    pub const RFC6298: SynSchedule = SynSchedule { linear: 0, waits: Some(8), ..Self::LINUX };

    /// OPNET 11.5 as RADIUS07 found it: waits of 3, 6, 12 and 24 s, given up after 45 s.
    pub const OPNET: SynSchedule =
        SynSchedule { first: Duration::from_secs(3), waits: Some(4), ..Self::LINUX_SYN_ACK };

    /// Windows 2003 as RADIUS07 quotes it: waits of 3 and 6 s, given up after 9 s.
    pub const WINDOWS_2003: SynSchedule = SynSchedule { waits: Some(2), ..Self::OPNET };

    /// ns-2 as RADIUS07 found it: waits from 3 s doubling, for ever. The ceiling is that of its timeout, 64
    /// s.
    pub const NS: SynSchedule = SynSchedule { waits: None, max: Duration::from_secs(64), ..Self::OPNET };

    /// The wait after the SYN number `n`, counted from 0; `None` when there is no such SYN.
    pub fn wait(&self, n: u32) -> Option<Duration> {
        if self.waits.is_some_and(|waits| n >= waits) {
            return None;
        }
        let doublings = n.saturating_sub(self.linear);
        let factor = 1u32.checked_shl(doublings).unwrap_or(u32::MAX);
        Some(self.first.checked_mul(factor).map_or(self.max, |wait| wait.min(self.max)))
    }

    /// How long after the first SYN the connection is given up; `None` is never.
    pub fn give_up_after(&self) -> Option<Duration> {
        // Waits beyond the ceiling are all alike, so that a schedule of 10⁹ of them is summed at once.
        let waits = self.waits?;
        let growing = waits.min(self.linear.saturating_add(64));
        let sum: Duration = (0..growing).filter_map(|n| self.wait(n)).sum();
        Some(sum + self.max.saturating_mul(waits - growing))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn give_up(schedule: SynSchedule) -> Option<f64> {
        schedule.give_up_after().map(|span| span.as_secs_f64())
    }

    #[test]
    fn the_schedules_give_up_when_their_sources_say() {
        assert_eq!(give_up(SynSchedule::OPNET), Some(45.0));
        assert_eq!(give_up(SynSchedule::WINDOWS_2003), Some(9.0));
        assert_eq!(give_up(SynSchedule::NS), None);
        assert_eq!(give_up(SynSchedule::LINUX), Some(131.0));
        assert_eq!(give_up(SynSchedule::LINUX_SYN_ACK), Some(63.0));
        assert!(give_up(SynSchedule::RFC6298) >= Some(180.0));
    }

    #[test]
    fn linux_repeats_its_syn_for_the_last_time_after_67_seconds() {
        let starts = (0..).map_while(|n| SynSchedule::LINUX.wait(n)).scan(0.0, |at, wait| {
            *at += wait.as_secs_f64();
            Some(*at)
        });
        let starts: Vec<f64> = starts.collect();
        assert_eq!(starts, [1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 11.0, 19.0, 35.0, 67.0, 131.0]);
    }

    #[test]
    fn a_billion_waits_are_summed_at_once() {
        let schedule = SynSchedule { waits: Some(1_000_000_000), ..SynSchedule::LINUX };
        assert!(give_up(schedule) > Some(1.1e11));
    }
}
