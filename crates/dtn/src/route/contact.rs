//! A contact of the plan: one time in which a node can send to another, or a series of them.

use std::time::Duration;

use bentpipe_units::{Rate, Span};
use serde::{Deserialize, Deserializer};

use crate::{DtnTime, Eid};

/// A time in which one node can send to another; the other direction needs a contact of its own. In a
/// configuration it is one of `[[contacts]]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contact {
    /// The sending node.
    pub from: Eid,
    /// The receiving node.
    pub to: Eid,
    /// When it begins, or the first of a series.
    #[serde(deserialize_with = "DtnTime::from_date")]
    pub start: DtnTime,
    /// When it ends: the last byte has to be sent before.
    #[serde(deserialize_with = "DtnTime::from_date")]
    pub end: DtnTime,
    /// How fast it is.
    pub rate: Rate,
    /// The propagation delay.
    #[serde(default, deserialize_with = "span")]
    pub delay: Duration,
    /// The time from the beginning of one contact of a series to that of the next, at least as long as a
    /// contact; without it there is one contact.
    pub every: Option<Span>,
    /// Contacts of the series begin before; without it the series has no end.
    #[serde(default, deserialize_with = "date")]
    pub until: Option<DtnTime>,
}

/// A contact that is not possible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the contact from {from} to {to} cannot be: {reason}")]
pub struct ContactError {
    from: Eid,
    to: Eid,
    /// The key of the value that is wrong.
    pub(crate) key: &'static str,
    /// What is wrong, and what to write.
    pub(crate) reason: &'static str,
}

/// One contact of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) start: DtnTime,
    pub(super) end: DtnTime,
}

impl Contact {
    /// Checks what concerns more than a single value.
    pub(crate) fn check(&self) -> Result<(), ContactError> {
        let error = |key, reason| {
            let (from, to) = (self.from.clone(), self.to.clone());
            Err(ContactError { from, to, key, reason })
        };
        if self.from.node() == self.to.node() || self.from == Eid::None || self.to == Eid::None {
            return error("to", "it is between two nodes; name both");
        }
        if self.start >= self.end {
            return error("end", "the contact ends before it starts; write an end after start");
        }
        match (self.every, self.until) {
            (Some(every), _) if every.get() < self.end.since(self.start) => {
                error("every", "the next contact begins before this one ends; write at least end - start")
            }
            (None, Some(_)) => {
                error("until", "a single contact ends at end; write every, or leave until out")
            }
            (Some(_), Some(until)) if until <= self.start => {
                error("until", "the series ends before its first contact; write an until after start")
            }
            _ => Ok(()),
        }
    }

    /// Milliseconds from one contact of the series to the next.
    fn period(&self) -> Option<u64> {
        self.every.map(|every| u64::try_from(every.get().as_millis()).unwrap_or(u64::MAX).max(1))
    }

    /// A contact of the series by its number, from zero.
    pub(super) fn window(&self, occurrence: u64) -> Option<Window> {
        let later = match self.period() {
            Some(period) => period.checked_mul(occurrence)?,
            None if occurrence == 0 => 0,
            None => return None,
        };
        let start = DtnTime::from_millis(self.start.millis().checked_add(later)?);
        let end = DtnTime::from_millis(self.end.millis().checked_add(later)?);
        self.until.is_none_or(|until| start < until).then_some(Window { start, end })
    }

    /// The number of the first contact of the series that ends after `time`, whether or not there is one.
    pub(super) fn first_after(&self, time: DtnTime) -> u64 {
        match (self.end > time, self.period()) {
            (true, _) => 0,
            (false, Some(period)) => (time.millis() - self.end.millis()) / period + 1,
            (false, None) => 1,
        }
    }

    /// Whether one of the series is going on.
    pub(super) fn is_open(&self, now: DtnTime) -> bool {
        self.current(now).is_some_and(|window| window.start <= now)
    }

    /// The first contact of the series that ends after `time`.
    pub(super) fn current(&self, time: DtnTime) -> Option<Window> {
        self.window(self.first_after(time))
    }
}

fn span<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    Span::deserialize(deserializer).map(Span::get)
}

fn date<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<DtnTime>, D::Error> {
    DtnTime::from_date(deserializer).map(Some)
}
