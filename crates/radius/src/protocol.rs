//! A protocol and its timers.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A protocol, or one implementation of it, with the timers that bound its reach.
#[derive(Debug, Clone, PartialEq)]
pub struct Protocol {
    /// Its name, unique in the catalogue.
    pub name: String,
    /// Its description in one line.
    pub what: String,
    /// The name of the protocol that it runs over, whose timers bound it, too.
    pub over: Option<String>,
    /// Round trips from the first message to the first useful answer, those of the protocol below included.
    pub round_trips: f64,
    /// Whether it is made for paths without an answer in time: a link of a store-and-forward network.
    pub store_and_forward: bool,
    /// Its timers, one at least.
    pub timers: Vec<Timer>,
}

impl Protocol {
    /// The sources of its numbers, joined.
    pub fn source(&self) -> String {
        self.timers.iter().map(|timer| timer.source.as_str()).collect::<Vec<_>>().join("; ")
    }

    pub(crate) fn timer(&self, role: Role) -> Option<&Timer> {
        self.timers.iter().find(|timer| timer.role == role)
    }
}

/// A timer that something must happen before.
#[derive(Debug, Clone, PartialEq)]
pub struct Timer {
    /// The event that it waits for.
    pub name: String,
    /// The events that start and end it.
    pub role: Role,
    /// How long it waits.
    pub schedule: Schedule,
    /// Round trips that must fit into its schedule, above zero.
    pub round_trips: f64,
    /// The longest time between two tries, or between two messages that keep it quiet; zero if it does not
    /// matter.
    pub every: Duration,
    /// Where its numbers stand.
    pub source: String,
    /// The setting that changes it; `None` if it is fixed.
    pub setting: Option<Setting>,
}

/// The events that start and end a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// From a message to its answer, before there is a connection. It is tried when the path is there.
    SetUp,
    /// From the arrival of a SYN to the end of the handshake, at the server; see
    /// [`handshake`](crate::handshake).
    HalfOpen,
    /// From a message to its answer on an established connection: an outage adds to the wait.
    Exchange,
    /// Restarted by any message. Messages that leave at equal intervals arrive at equal intervals, however
    /// far they travel, so this timer bounds outages and not the distance.
    Silence,
    /// Not a timer but a threshold that the delay itself is compared with.
    Distance,
}

impl Role {
    pub(crate) fn bounds_distance(self) -> bool {
        self != Role::Silence
    }
}

/// How long a timer waits: for ever, or until its total; and when it sends copies meanwhile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    /// The waits between one copy of a message and the next, as far as they are known.
    pub waits: Vec<Duration>,
    /// After how long it gives up; `None` is never.
    pub total: Option<Duration>,
}

impl Schedule {
    /// How long after the first copy of a message the second one leaves, if there is one.
    pub fn first_repetition(&self) -> Option<Duration> {
        let first = *self.waits.first()?;
        self.total.is_none_or(|total| first < total).then_some(first)
    }

    /// How many copies have left, the first one included, when `answer` has passed; a lower bound where not
    /// all waits are known.
    pub fn copies_before(&self, answer: Duration) -> usize {
        let mut at = Duration::ZERO;
        let repetitions = self.waits.iter().take_while(|&&wait| {
            at += wait;
            at < answer && self.total.is_none_or(|total| at < total)
        });
        1 + repetitions.count()
    }
}

/// A setting of a timer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Setting {
    /// A length of time.
    Seconds {
        /// The setting's name.
        name: String,
        /// The largest value; `None` if its source gives no bound.
        max: Option<Duration>,
    },
    /// A number of repetitions.
    Retries {
        /// The setting's name.
        name: String,
        /// The first wait.
        first: Duration,
        /// How many waits of the first one's length come before the doubling begins.
        linear: u32,
        /// The longest wait.
        ceiling: Duration,
        /// The most repetitions that it takes.
        max: u32,
    },
}

impl Setting {
    /// The setting's name.
    pub fn name(&self) -> &str {
        match self {
            Setting::Seconds { name, .. } | Setting::Retries { name, .. } => name,
        }
    }

    /// The smallest value with which the timer waits for `needed` at least; `None` if its largest is too
    /// small.
    ///
    /// Seconds are rounded up, repetitions are counted.
    pub fn value_for(&self, needed: Duration) -> Option<u64> {
        match *self {
            Setting::Seconds { max, .. } => {
                let seconds = needed.as_secs() + u64::from(needed.subsec_nanos() > 0);
                max.is_none_or(|max| Duration::from_secs(seconds) <= max).then_some(seconds)
            }
            Setting::Retries { first, linear, ceiling, max, .. } => {
                let mut total = first * linear;
                let mut wait = first.min(ceiling);
                (0..=max)
                    .find(|_| {
                        total += wait;
                        wait = wait.saturating_mul(2).min(ceiling);
                        total >= needed
                    })
                    .map(u64::from)
            }
        }
    }

    /// The value with its unit, as a sentence has it.
    pub(crate) fn at_least(&self, value: u64) -> String {
        match self {
            Setting::Seconds { name, .. } => format!("{name}: at least {value} s"),
            Setting::Retries { name, .. } => format!("{name}: at least {value}"),
        }
    }

    /// The largest value with its unit.
    pub(crate) fn most(&self) -> String {
        match self {
            Setting::Seconds { max: Some(max), .. } => format!("{} s", max.as_secs()),
            Setting::Seconds { max: None, .. } => "unbounded".into(),
            Setting::Retries { max, .. } => max.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(values: &[u64]) -> Vec<Duration> {
        values.iter().copied().map(Duration::from_secs).collect()
    }

    fn syn_retries() -> Setting {
        let (first, ceiling) = (Duration::from_secs(1), Duration::from_secs(120));
        Setting::Retries { name: "tcp_syn_retries".into(), first, linear: 4, ceiling, max: 127 }
    }

    #[test]
    fn six_syn_retries_last_131_seconds_and_each_further_one_two_minutes() {
        let value = |seconds| syn_retries().value_for(Duration::from_secs(seconds));
        assert_eq!((value(131), value(132), value(251), value(252)), (Some(6), Some(7), Some(7), Some(8)));
        assert_eq!(value(4 + 127 + 121 * 120), Some(127));
        assert_eq!(value(4 + 127 + 121 * 120 + 1), None, "the setting ends at 127");
    }

    #[test]
    fn a_length_of_time_is_rounded_up_and_bounded() {
        let setting = Setting::Seconds { name: "hold time".into(), max: Some(Duration::from_secs(65_535)) };
        assert_eq!(setting.value_for(Duration::from_millis(1500)), Some(2));
        assert_eq!(setting.value_for(Duration::from_secs(65_536)), None);
    }

    #[test]
    fn a_copy_leaves_at_each_wait_but_the_last() {
        let schedule = Schedule { waits: seconds(&[3, 6, 12, 24]), total: Some(Duration::from_secs(45)) };
        let copies = |seconds| schedule.copies_before(Duration::from_secs(seconds));
        assert_eq!((copies(3), copies(4), copies(10), copies(100)), (1, 2, 3, 4));
    }

    #[test]
    fn a_single_wait_is_no_repetition() {
        let once = Schedule { waits: seconds(&[90]), total: Some(Duration::from_secs(90)) };
        assert_eq!(once.first_repetition(), None);
    }
}
