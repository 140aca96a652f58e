//! The history of the legs: a sample per second for a quarter of an hour, one per minute for a day, and the
//! outages.
//!
//! ```text
//! StatsHandle ──once a second──► Recorder ──► History: seconds ──when a minute is over──► minutes
//!                                             └► outages
//!                          Recorder ◄── GET /history?since=UNIX_S&step=1|60
//!                          Recorder ──save()──► the next process ──restore()──► Recorder
//! ```
//!
//! [`History`] has no clock: the caller gives the time in seconds since 1970, which browsers and successors
//! share. If the host's clock is set back, samples in the future are dropped; if it is set forward, there is
//! a gap.

mod columns;
mod outages;
mod recorder;

use std::collections::VecDeque;
use std::sync::Arc;

use bentpipe_proxy::config::MAX_LEGS;
use bentpipe_proxy::telemetry::{Gain, LegReport};

pub use columns::{Columns, HistoryAnswer, LegColumns, SavedHistory};
pub use outages::Outage;
pub use recorder::{Recorder, routes};

use outages::Outages;

/// Kept samples of one second: a quarter of an hour.
pub const SECONDS: usize = 15 * 60;
/// Kept samples of one minute: a day.
pub const MINUTES: usize = 24 * 60;
/// The most legs in a sample: all satellite legs that a configuration may have, and the terrestrial one.
pub const LEGS: usize = MAX_LEGS + 1;

/// The interval of samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// One second, over the last [`SECONDS`].
    Second,
    /// One minute, over the last [`MINUTES`].
    Minute,
}

/// What is recorded each second.
#[derive(Debug, Clone, Copy)]
pub struct Observation<'a> {
    /// The legs; those beyond [`LEGS`] are left out.
    pub legs: &'a [LegReport],
    /// The gain of splitting.
    pub gain: &'a Gain,
    /// Open flows.
    pub flows: u64,
}

/// The samples and the outages.
///
/// Its memory is bounded: (900 + 1440) samples of at most 9 legs of 48 bytes each are 1.0 MB, and 1000
/// outages are 70 kB with names of 20 bytes.
#[derive(Debug, Clone, Default)]
pub struct History {
    seconds: VecDeque<Sample>,
    minutes: VecDeque<Sample>,
    outages: Outages,
}

/// Everything at one moment.
#[derive(Debug, Clone, PartialEq)]
struct Sample {
    /// Seconds since 1970; of a minute, its beginning.
    at: u64,
    gain: Option<f32>,
    flows: u32,
    legs: Box<[LegSample]>,
}

/// A leg at one moment.
#[derive(Debug, Clone, PartialEq)]
struct LegSample {
    /// Shared by the leg's samples.
    name: Arc<str>,
    satellite: bool,
    sent_bps: f32,
    received_bps: f32,
    flows: u32,
    active: u32,
    srtt_s: Option<f32>,
    loss: Option<f32>,
    /// The outage at that time; of a minute, the longest.
    outage_s: Option<f32>,
}

impl History {
    /// Records an observation at `now`, seconds since 1970. A second one within the same second only updates
    /// the outages.
    pub fn record(&mut self, now: u64, look: &Observation<'_>) {
        self.forget_the_future(now);
        let legs = &look.legs[..look.legs.len().min(LEGS)];
        self.outages.note(now, legs.iter().map(|leg| (leg.name.as_str(), leg.outage_s)));
        if self.seconds.back().is_some_and(|last| last.at == now) {
            return;
        }
        if let Some(minute) =
            self.seconds.back().map(|last| last.at / 60).filter(|minute| *minute != now / 60)
        {
            self.finish_minute(minute);
        }
        let sample = self.sample(now, legs, look);
        push(&mut self.seconds, sample, SECONDS);
        // After a pause, or after the clock was set forward, old samples go although there is room.
        drop_before(&mut self.seconds, now.saturating_sub(SECONDS as u64));
        drop_before(&mut self.minutes, now.saturating_sub(60 * MINUTES as u64));
    }

    /// The samples after `since`, seconds since 1970, and the outages that had not ended by then.
    pub fn since(&self, now: u64, since: u64, step: Step) -> HistoryAnswer {
        let (samples, step_s) = match step {
            Step::Second => (&self.seconds, 1),
            Step::Minute => (&self.minutes, 60),
        };
        let first = samples.partition_point(|sample| sample.at <= since);
        HistoryAnswer {
            now,
            step: step_s,
            samples: Columns::of(samples.range(first..)),
            outages: self.outages.since(since),
        }
    }

    /// Everything, for the next process.
    pub fn save(&self) -> SavedHistory {
        SavedHistory {
            seconds: Columns::of(self.seconds.iter()),
            minutes: Columns::of(self.minutes.iter()),
            outages: self.outages.since(0),
        }
    }

    /// Continues the history of another process. Samples in `saved` that are too many or out of order are
    /// left out.
    pub fn restore(saved: &SavedHistory) -> Self {
        let mut outages = Outages::default();
        outages.restore(&saved.outages);
        Self { seconds: saved.seconds.samples(SECONDS), minutes: saved.minutes.samples(MINUTES), outages }
    }

    fn sample(&self, now: u64, legs: &[LegReport], look: &Observation<'_>) -> Sample {
        let before = self.seconds.back().map_or(&[] as &[_], |last| &last.legs);
        Sample {
            at: now,
            gain: look.gain.ratio.map(|ratio| ratio as f32),
            flows: small(look.flows),
            legs: legs.iter().map(|leg| LegSample::of(leg, before)).collect(),
        }
    }

    /// Merges the samples of a minute.
    fn finish_minute(&mut self, minute: u64) {
        let first = self.seconds.partition_point(|sample| sample.at < minute * 60);
        let samples: Vec<&Sample> = self.seconds.range(first..).collect();
        let Some(last) = samples.last() else { return };
        let legs = last.legs.iter().map(|leg| {
            let of_leg =
                |sample: &&'_ Sample| sample.legs.iter().find(|other| other.name == leg.name).cloned();
            leg.over(&samples.iter().filter_map(of_leg).collect::<Vec<_>>())
        });
        let gain = mean(samples.iter().filter_map(|sample| sample.gain));
        let flows = samples.iter().map(|sample| sample.flows).max().unwrap_or(0);
        let sample = Sample { at: minute * 60, gain, flows, legs: legs.collect() };
        push(&mut self.minutes, sample, MINUTES);
    }

    fn forget_the_future(&mut self, now: u64) {
        for samples in [&mut self.seconds, &mut self.minutes] {
            while samples.back().is_some_and(|last| last.at > now) {
                samples.pop_back();
            }
        }
        // A minute that the clock has been set back into ends again.
        while self.minutes.back().is_some_and(|last| last.at / 60 == now / 60) {
            self.minutes.pop_back();
        }
    }
}

impl LegSample {
    fn of(leg: &LegReport, before: &[Self]) -> Self {
        let known = before.iter().find(|sample| *sample.name == *leg.name);
        Self {
            name: known.map_or_else(|| leg.name.as_str().into(), |sample| Arc::clone(&sample.name)),
            satellite: leg.interface.is_some(),
            sent_bps: leg.sent_bps as f32,
            received_bps: leg.received_bps as f32,
            flows: small(leg.flows),
            active: small(leg.active),
            srtt_s: leg.srtt_s.map(|s| s as f32),
            loss: leg.loss.map(|share| share as f32),
            outage_s: leg.outage_s.map(|s| s as f32),
        }
    }

    /// This leg over several moments: the means of what varies, the most of what counts.
    fn over(&self, samples: &[Self]) -> Self {
        let all = |value: fn(&Self) -> f32| mean(samples.iter().map(value)).unwrap_or(0.0);
        Self {
            name: Arc::clone(&self.name),
            satellite: self.satellite,
            sent_bps: all(|leg| leg.sent_bps),
            received_bps: all(|leg| leg.received_bps),
            flows: samples.iter().map(|leg| leg.flows).max().unwrap_or(0),
            active: samples.iter().map(|leg| leg.active).max().unwrap_or(0),
            srtt_s: mean(samples.iter().filter_map(|leg| leg.srtt_s)),
            loss: mean(samples.iter().filter_map(|leg| leg.loss)),
            outage_s: samples.iter().filter_map(|leg| leg.outage_s).reduce(f32::max),
        }
    }
}

fn push(samples: &mut VecDeque<Sample>, sample: Sample, most: usize) {
    while samples.len() >= most {
        samples.pop_front();
    }
    samples.push_back(sample);
}

fn drop_before(samples: &mut VecDeque<Sample>, oldest: u64) {
    while samples.front().is_some_and(|first| first.at < oldest) {
        samples.pop_front();
    }
}

fn mean(values: impl Iterator<Item = f32>) -> Option<f32> {
    let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + f64::from(value), count + 1));
    (count > 0).then(|| (sum / f64::from(count)) as f32)
}

/// Counts of flows are far below this bound; a wrong one must not become a small one.
fn small(count: u64) -> u32 {
    count.try_into().unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
