//! Outages of legs.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// The most remembered outages of all legs together.
pub(super) const MAX_OUTAGES: usize = 1000;

/// Uncertainty of an observation, s: observations are a second apart, and reports are up to a second old.
const SLACK_S: f64 = 2.0;

/// A time in which an answer was due on a leg and nothing was received.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outage {
    /// The leg.
    pub leg: String,
    /// When the last segment was received, seconds since 1970, to 0.1.
    pub began: f64,
    /// When a segment was received again, or no answer was due any more; `None` while it lasts.
    pub ended: Option<f64>,
}

/// The last [`MAX_OUTAGES`] of them, in the order of detection.
#[derive(Debug, Clone, Default)]
pub(super) struct Outages(VecDeque<Outage>);

impl Outages {
    /// Records for how long each leg has been silent, s. A leg that is missing no longer exists.
    pub(super) fn note<'a>(&mut self, now: u64, legs: impl Iterator<Item = (&'a str, Option<f64>)> + Clone) {
        let now = now as f64;
        // The clock may have been set back.
        self.0.retain(|outage| outage.began <= now);
        for outage in self.0.iter_mut().filter(|outage| outage.ended.is_none()) {
            if !legs.clone().any(|(leg, silent)| leg == outage.leg && silent.is_some()) {
                outage.ended = Some(now);
            }
        }
        for outage in &mut self.0 {
            outage.ended = outage.ended.map(|ended| ended.min(now));
        }
        for (leg, silent) in legs {
            if let Some(silent) = silent.filter(|silent| silent.is_finite()) {
                self.silent_since(leg, ((now - silent.max(0.0)) * 10.0).round() / 10.0);
            }
        }
    }

    /// Those that had not ended at `since`.
    pub(super) fn since(&self, since: u64) -> Vec<Outage> {
        let lasts = |outage: &&Outage| outage.ended.is_none_or(|ended| ended >= since as f64);
        self.0.iter().filter(lasts).cloned().collect()
    }

    pub(super) fn restore(&mut self, saved: &[Outage]) {
        self.0 = saved[saved.len().saturating_sub(MAX_OUTAGES)..].iter().cloned().collect();
    }

    fn silent_since(&mut self, leg: &str, began: f64) {
        if let Some(last) = self.0.iter_mut().rev().find(|outage| outage.leg == leg) {
            // It continues, or a process that had just taken over believed that it was over.
            if (began - last.began).abs() <= SLACK_S || began < last.began {
                last.ended = None;
                return;
            }
            // A segment was received between two observations.
            last.ended.get_or_insert(began);
        }
        while self.0.len() >= MAX_OUTAGES {
            self.0.pop_front();
        }
        self.0.push_back(Outage { leg: leg.to_owned(), began, ended: None });
    }
}
