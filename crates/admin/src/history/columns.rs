//! Samples in JSON: an array per value, because otherwise names and keys would be most of the document.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{LEGS, LegSample, Outage, Sample};

/// The answer to `GET /history`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HistoryAnswer {
    /// The daemon's clock, seconds since 1970.
    pub now: u64,
    /// The interval of samples, s: 1 or 60.
    pub step: u64,
    /// The samples.
    #[serde(flatten)]
    pub samples: Columns,
    /// Outages that had not ended at the requested time, the oldest first.
    pub outages: Vec<Outage>,
}

/// The history that one process passes to the next.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SavedHistory {
    /// Samples of the last quarter of an hour.
    pub seconds: Columns,
    /// Samples of the last day.
    pub minutes: Columns,
    /// The outages.
    pub outages: Vec<Outage>,
}

/// Samples, the oldest first; all arrays are of one length.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Columns {
    /// Times, seconds since 1970; of a minute, its beginning. Times at which the daemon was not running are
    /// missing.
    pub at: Vec<u64>,
    /// The gain of splitting.
    pub gain: Vec<Option<f64>>,
    /// Open flows.
    pub flows: Vec<u32>,
    /// Every leg that existed at one of the times.
    pub legs: Vec<LegColumns>,
}

/// The values of a leg: null at times when it did not exist.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LegColumns {
    /// Its name.
    pub name: String,
    /// Whether it is a satellite's.
    pub satellite: bool,
    /// From the gateway into the leg, bit/s.
    pub sent: Vec<Option<u64>>,
    /// From the leg, bit/s.
    pub received: Vec<Option<u64>>,
    /// Connections with an end on it.
    pub flows: Vec<Option<u32>>,
    /// Those of them that were active.
    pub active: Vec<Option<u32>>,
    /// Smoothed round-trip time, s, to 0.1 ms.
    pub srtt: Vec<Option<f64>>,
    /// The share of retransmitted segments, to 10⁻⁵.
    pub loss: Vec<Option<f64>>,
    /// For how long an outage had lasted, s, to 0.1.
    pub outage: Vec<Option<f64>>,
}

impl Columns {
    pub(super) fn of<'a>(samples: impl Iterator<Item = &'a Sample>) -> Self {
        let mut columns = Self::default();
        for sample in samples {
            columns.push(sample);
        }
        let length = columns.at.len();
        columns.legs.iter_mut().for_each(|leg| leg.fill_to(length));
        columns
    }

    /// The samples of these columns, the last `most` of them, as far as they are in order.
    pub(super) fn samples(&self, most: usize) -> VecDeque<Sample> {
        let mut samples = VecDeque::<Sample>::new();
        for index in self.at.len().saturating_sub(most)..self.at.len() {
            if samples.back().is_some_and(|last| last.at >= self.at[index]) {
                continue;
            }
            let before = samples.back().map_or(&[] as &[_], |last| &last.legs);
            let legs = self.legs.iter().filter_map(|leg| leg.sample(index, before)).take(LEGS).collect();
            let gain = self.gain.get(index).copied().flatten().map(|ratio| ratio as f32);
            let flows = self.flows.get(index).copied().unwrap_or(0);
            samples.push_back(Sample { at: self.at[index], gain, flows, legs });
        }
        samples
    }

    fn push(&mut self, sample: &Sample) {
        let index = self.at.len();
        self.at.push(sample.at);
        self.gain.push(sample.gain.map(|ratio| round(ratio, 100.0)));
        self.flows.push(sample.flows);
        for leg in &sample.legs {
            let place = self.legs.iter().position(|known| known.name == *leg.name).unwrap_or_else(|| {
                self.legs.push(LegColumns { name: leg.name.to_string(), ..LegColumns::default() });
                self.legs.len() - 1
            });
            self.legs[place].fill_to(index);
            self.legs[place].push(leg);
        }
    }
}

impl LegColumns {
    fn push(&mut self, leg: &LegSample) {
        self.satellite = leg.satellite;
        self.sent.push(Some(leg.sent_bps.round() as u64));
        self.received.push(Some(leg.received_bps.round() as u64));
        self.flows.push(Some(leg.flows));
        self.active.push(Some(leg.active));
        self.srtt.push(leg.srtt_s.map(|s| round(s, 1e4)));
        self.loss.push(leg.loss.map(|share| round(share, 1e5)));
        self.outage.push(leg.outage_s.map(|s| round(s, 10.0)));
    }

    fn fill_to(&mut self, length: usize) {
        self.sent.resize(length, None);
        self.received.resize(length, None);
        self.flows.resize(length, None);
        self.active.resize(length, None);
        self.srtt.resize(length, None);
        self.loss.resize(length, None);
        self.outage.resize(length, None);
    }

    fn sample(&self, index: usize, before: &[LegSample]) -> Option<LegSample> {
        let known = before.iter().find(|leg| *leg.name == *self.name);
        let at = |column: &[Option<f64>]| column.get(index).copied().flatten().map(|value| value as f32);
        Some(LegSample {
            name: known.map_or_else(|| self.name.as_str().into(), |leg| Arc::clone(&leg.name)),
            satellite: self.satellite,
            sent_bps: (*self.sent.get(index)?)? as f32,
            received_bps: self.received.get(index).copied().flatten().unwrap_or(0) as f32,
            flows: self.flows.get(index).copied().flatten().unwrap_or(0),
            active: self.active.get(index).copied().flatten().unwrap_or(0),
            srtt_s: at(&self.srtt),
            loss: at(&self.loss),
            outage_s: at(&self.outage),
        })
    }
}

fn round(value: f32, parts: f64) -> f64 {
    (f64::from(value) * parts).round() / parts
}
