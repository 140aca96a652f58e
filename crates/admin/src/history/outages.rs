//! When legs were gone.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Outages that are remembered, of all legs together.
pub(super) const MAX_OUTAGES: usize = 1000;

/// What a look can be wrong by, s: looks are a second apart, and reports are up to a second old.
const SLACK_S: f64 = 2.0;

/// A time in which something was waited for on a leg, and nothing was heard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outage {
    /// The leg.
    pub leg: String,
    /// When something was last heard, seconds since 1970, to 0.1.
    pub began: f64,
    /// When something was heard again, or nothing was waited for any more; none while it lasts.
    pub ended: Option<f64>,
}

/// The last [`MAX_OUTAGES`] of them, in the order in which they were noticed.
#[derive(Debug, Clone, Default)]
pub(super) struct Outages(VecDeque<Outage>);

impl Outages {
    /// Takes for how long nothing has been heard on each leg, s; a leg that is not named is not there any more.
    pub(super) fn note<'a>(&mut self, now: u64, legs: impl Iterator<Item = (&'a str, Option<f64>)> + Clone) {
        let now = now as f64;
        // Where the clock was set back.
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
            // It goes on, or it was thought to be over, by a process that had just taken over perhaps, and is not.
            if (began - last.began).abs() <= SLACK_S || began < last.began {
                last.ended = None;
                return;
            }
            // Something was heard between two looks.
            last.ended.get_or_insert(began);
        }
        while self.0.len() >= MAX_OUTAGES {
            self.0.pop_front();
        }
        self.0.push_back(Outage { leg: leg.to_owned(), began, ended: None });
    }
}
