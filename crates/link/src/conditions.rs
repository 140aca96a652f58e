//! What a direction is like from time to time, as its configuration says it.

use std::time::Duration;

use bentpipe_units::{Probability, Time};

use crate::DirectionConfig;
use crate::effect::Steps;

/// A span of time in which nothing changes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Conditions {
    /// When it begins.
    pub from: Time,
    /// When it ends; [`Time::MAX`] if nothing changes any more.
    pub until: Time,
    /// Bits per second on the wire: `None` is infinitely fast, zero a pause in which the queue waits.
    pub bps: Option<u64>,
    /// One-way propagation delay.
    pub delay: Duration,
    /// The part of the packets sent that is lost; in an outage all. Of errors in bursts it is the part that
    /// they lose in the long run. Prescribed losses, which have numbers and no times, do not count.
    pub lost: Probability,
}

impl DirectionConfig {
    /// What it is like from the beginning on, span by span; without end if its trace begins anew.
    pub fn conditions(&self) -> impl Iterator<Item = Conditions> + use<> {
        let mut rates = self.trace.rates(self.rate);
        let mut delays = self.trace.delays(self.delay);
        let mut error_rates = self.trace.error_rates(self.per);
        let (delay, per) = (self.delay, self.per);
        let in_bursts = self.gilbert_elliott.map_or(Probability::ZERO, |model| model.stationary_loss());
        let outages = Downtime(self.outages.outages().map(|(at, lasts)| [at, at + lasts]).collect());
        let mut next = Some(Time::ZERO);
        std::iter::from_fn(move || {
            let from = next?;
            let now = from.as_nanos();
            let per = error_rates.as_mut().map_or(per, |steps| steps.at(now));
            let (down, outage_changes) = outages.at(from);
            let bps = rates.as_mut().map(|steps| steps.at(now));
            let delay = delays.as_mut().map_or(delay, |steps| steps.at(now));
            let ends = [end(&rates), end(&delays), end(&error_rates), outage_changes];
            let until = ends.into_iter().min().unwrap_or(Time::MAX);
            next = (until < Time::MAX).then_some(until);
            Some(Conditions { from, until, bps, delay, lost: either(down, either(per, in_bursts)) })
        })
    }
}

/// When a value changes next.
fn end<T: Copy>(steps: &Option<Steps<T>>) -> Time {
    steps.as_ref().and_then(Steps::end).map_or(Time::MAX, Time::from_nanos)
}

/// The probability of one thing or the other, which do not depend on each other.
fn either(one: Probability, other: Probability) -> Probability {
    let neither = (1.0 - one.get()) * (1.0 - other.get());
    Probability::new(1.0 - neither).expect("a product of probabilities is one")
}

/// Starts and ends of outages.
struct Downtime(Vec<[Time; 2]>);

impl Downtime {
    /// Whether all is lost at a time, as a probability, and until when that holds.
    fn at(&self, now: Time) -> (Probability, Time) {
        let all = Probability::new(1.0).expect("1 is a probability");
        let ended = self.0.partition_point(|[_, end]| *end <= now);
        match self.0.get(ended) {
            Some([start, end]) if *start <= now => (all, *end),
            Some([start, _]) => (Probability::ZERO, *start),
            None => (Probability::ZERO, Time::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use bentpipe_units::Rate;

    use super::*;
    use crate::{GilbertElliott, LinkTrace, OutageTrace};

    fn probability(value: f64) -> Probability {
        Probability::new(value).unwrap()
    }

    /// Spans as seconds, Mbit/s, milliseconds and losses.
    fn spans(direction: &DirectionConfig, most: usize) -> Vec<(f64, f64, u64, u128, f64)> {
        let span = |span: Conditions| {
            let mbit = span.bps.unwrap() / 1_000_000;
            let millis = span.delay.as_millis();
            (span.from.as_secs_f64(), span.until.as_secs_f64(), mbit, millis, span.lost.get())
        };
        direction.conditions().take(most).map(span).collect()
    }

    #[test]
    fn spans_end_where_anything_changes_and_have_what_holds_in_them() {
        let trace = LinkTrace::from_csv("at_s,rate,delay,per\n2,5M,,\n4,,20ms,50%\n10,repeat\n").unwrap();
        let second = Duration::from_secs(1);
        let direction = DirectionConfig {
            rate: Some(Rate::mbps(8)),
            delay: Duration::from_millis(30),
            outages: OutageTrace::from_iter([(Time::ZERO + 3 * second, second), (Time::ZERO, second)]),
            trace,
            ..DirectionConfig::default()
        };
        let expected = [
            (0.0, 1.0, 8, 30, 1.0),
            (1.0, 2.0, 8, 30, 0.0),
            (2.0, 3.0, 5, 30, 0.0),
            (3.0, 4.0, 5, 30, 1.0),
            (4.0, 10.0, 5, 20, 0.5),
            (10.0, 12.0, 8, 30, 0.0),
        ];
        assert_eq!(spans(&direction, 6), expected);
    }

    #[test]
    fn a_constant_direction_is_one_span() {
        let (always, never) = (probability(1.0), Probability::ZERO);
        let burst = GilbertElliott {
            good_to_bad: probability(0.1),
            bad_to_good: probability(0.3),
            loss_in_good: never,
            loss_in_bad: always,
            slot: None,
        };
        let direction = DirectionConfig {
            rate: Some(Rate::mbps(8)),
            per: probability(0.5),
            gilbert_elliott: Some(burst),
            ..DirectionConfig::default()
        };
        let spans: Vec<_> = direction.conditions().collect();
        assert_eq!((spans.len(), spans[0].until), (1, Time::MAX));
        // A quarter in bursts, and half of the rest.
        assert!((spans[0].lost.get() - 0.625).abs() < 1e-12);
        assert_eq!(DirectionConfig::default().conditions().next().unwrap().bps, None);
    }
}
