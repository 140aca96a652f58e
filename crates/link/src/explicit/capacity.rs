//! What a link carries: what it is said to carry, or what it turns out to.

use std::time::Duration;

use bentpipe_units::{Rate, Time};

use super::round::Rates;

/// The part of the capacity that is given out where a queue of [`NOISE`] stands, and how much more where none does: senders that
/// fall short of their rates by less than that fill the link all the same, and the queue settles at half of it.
const UTILISATION: (f64, f64) = (0.995, 0.0125);
/// The part of the standing queue that is drained in a round trip. As the queue is seen a round trip late, more than π/2 would
/// make it swing.
const DRAIN: f64 = 0.5;
/// Round trips vary by this without a queue.
pub(super) const NOISE: Duration = Duration::from_millis(5);
/// Rates and queues are measured over some time: so much later than it could show, what has been decided does.
const SETTLED: Duration = Duration::from_millis(200);
/// A queue of this, or of this part of a round trip, says that something is wrong with what is known of the capacity.
const STANDING: (Duration, u32) = (Duration::from_millis(15), 20);
/// However long the queue, this part of the capacity is given out.
const LEAST: f64 = 0.3;
/// Below this part of what it should carry, with a standing queue, it does not carry that much. A few per cent may be lost.
const CARRIES_LESS: f64 = 0.93;
/// The first step of growth, and the largest later on. Each that works doubles the next.
const GROWTH: (f64, f64) = (1.0 / 64.0, 0.25);
/// While nothing is known, each round trip doubles the rate, as slow start does.
const FIRST_GROWTH: f64 = 1.0;
/// What is sent at first where nothing is known: the initial window of RFC 6928, in a round trip.
const FIRST_WINDOW: f64 = 10.0 * 1500.0;
/// So many round trips after growth that was too much it is tried again, and twice as many each time, up to the second.
const PAUSE: (u32, u32) = (8, 64);
/// Losses beyond the usual that are put down to too high a rate.
const TOO_MANY: f64 = 0.12;
/// Losses beyond the usual that a step of growth has made.
const BY_GROWTH: f64 = 0.01;
/// So many standard deviations above what is expected are no chance; of full packets.
const CHANCE: f64 = 2.0;
const PACKET: f64 = 1500.0;
/// A rate that was lowered because of losses was not their cause if so much of them remains.
const STILL: f64 = 0.6;
/// So many round trips with its queue a queue should take to be drained; one that is not is none.
const PATIENCE: u32 = 3;
/// It should shrink while less than this part of the capacity is sent.
const DRAINING: f64 = 0.92;
/// What is left at least of the estimate when it is lowered. A link that carries less than that is found by the next decisions, a round
/// trip apart; a moment that was misunderstood, as after an outage, has not cost everything.
const STEP: f64 = 0.25;
/// An estimate below this part of what the link has once carried was lowered, or misunderstood. When nothing has been amiss for so many
/// round trips, the link is asked once whether it still carries that much.
const APPEAL: (f64, u32) = (0.75, 2);
/// Nothing is lower, bytes per second.
const FLOOR: f64 = 100.0;

/// What a link carries, and what of it is to be given out.
#[derive(Debug, Clone)]
pub(super) struct Capacity {
    configured: Option<f64>,
    estimate: f64,
    growth: f64,
    pause: u32,
    /// What has been decided shows only then.
    hold_until: Time,
    no_growth_until: Time,
    /// The estimate before the last step of growth, until it is known how it went.
    grown_from: Option<f64>,
    usual_loss: f64,
    /// The estimate before it was lowered because of losses, and the losses.
    blamed: Option<(f64, f64)>,
    /// Since when a queue stands, and how long it was then.
    standing: Option<(Time, Duration)>,
    /// Since when it is not longer, and how long it was then.
    longest: Option<(Time, Duration)>,
    /// What has been sent without a queue, and has arrived but for the usual losses; until that is asked for again.
    proven: f64,
    /// Since when nothing has been amiss.
    calm_since: Option<Time>,
}

/// What is seen of the link.
#[derive(Debug, Clone, Copy)]
pub(super) struct Observation {
    pub(super) now: Time,
    /// Over the last round trip, if there were acknowledgements for so long.
    pub(super) rates: Option<Rates>,
    /// Over the time in which a queue has stood, if that is long enough: this is what the link carries.
    pub(super) carried: Option<f64>,
    pub(super) queue: Duration,
    /// Of the empty link.
    pub(super) rtt: Duration,
    /// Somebody would have more.
    pub(super) wanted: bool,
}

impl Capacity {
    pub(super) fn new(configured: Option<Rate>, rtt: Duration) -> Self {
        let configured = configured.map(|rate| rate.bps() as f64 / 8.0);
        let growth = if configured.is_some() { GROWTH.0 } else { FIRST_GROWTH };
        Self {
            configured,
            estimate: configured.unwrap_or(FIRST_WINDOW / rtt.as_secs_f64().max(0.001)),
            growth,
            pause: PAUSE.0,
            hold_until: Time::ZERO,
            no_growth_until: Time::ZERO,
            grown_from: None,
            usual_loss: 0.0,
            blamed: None,
            standing: None,
            longest: None,
            proven: 0.0,
            calm_since: None,
        }
    }

    /// What the link is thought to carry.
    pub(super) fn bytes_per_second(&self) -> f64 {
        self.estimate
    }

    /// What all senders together may send, with this queue and this round trip of the empty link.
    pub(super) fn budget(&self, queue: Duration, rtt: Duration) -> f64 {
        let rtt = rtt.max(8 * NOISE).as_secs_f64();
        let drained = DRAIN * queue.saturating_sub(NOISE).as_secs_f64() / rtt;
        let short = 1.0 - queue.min(NOISE).as_secs_f64() / NOISE.as_secs_f64();
        self.estimate * (UTILISATION.0 + UTILISATION.1 * short - drained).max(LEAST)
    }

    /// No decision before then.
    pub(super) fn hold(&mut self, until: Time) {
        self.hold_until = self.hold_until.max(until);
        // Losses just before an outage were its beginning, and not too high a rate.
        if let Some((before, _)) = self.blamed.take() {
            self.estimate = before;
        }
        (self.grown_from, self.standing, self.longest, self.calm_since) = (None, None, None, None);
    }

    /// Takes in what is seen. True where the queue is none: it does not shrink however little is sent.
    pub(super) fn observe(&mut self, seen: &Observation) -> bool {
        let high = STANDING.0.max(seen.rtt / STANDING.1);
        if self.is_no_queue(seen, high) {
            return true;
        }
        let Some(rates) = seen.rates.filter(|_| seen.now >= self.hold_until) else { return false };
        let loss = if rates.lost > 0.0 { rates.lost / (rates.lost + rates.delivered) } else { 0.0 };
        if let Some((before, then)) = self.blamed.take() {
            self.judge_blame(before, then, loss);
        } else if seen.queue > high {
            let stands = self.standing.is_some_and(|(since, then)| seen.now - since > 2 * (seen.rtt + then));
            let carries_less = |carried: f64| stands || carried < CARRIES_LESS * self.estimate;
            if let Some(carried) = seen.carried.filter(|&carried| carries_less(carried)) {
                self.lower(carried, seen);
            }
        } else if rates.whole && self.has_lost_more(rates, seen.rtt, TOO_MANY) {
            self.blamed = Some((self.estimate, loss));
            self.lower(rates.delivered, seen);
            self.hold_until = seen.now + 2 * (seen.rtt + seen.queue);
        } else if rates.whole {
            self.judge_growth(rates, loss, seen);
            if seen.queue <= NOISE {
                self.prove(rates, seen);
                self.grow(rates, seen);
                return false;
            }
        }
        self.calm_since = None;
        false
    }

    fn is_no_queue(&mut self, seen: &Observation, high: Duration) -> bool {
        if seen.queue <= high {
            (self.standing, self.longest) = (None, None);
            return false;
        }
        self.standing.get_or_insert((seen.now, seen.queue));
        // It goes on growing for as long as it takes to see it.
        let (since, then) = *self.longest.get_or_insert((seen.now, seen.queue));
        if seen.queue > then + NOISE {
            self.longest = Some((seen.now, seen.queue));
            return false;
        }
        if seen.now - since < PATIENCE * (seen.rtt + then) {
            return false;
        }
        let sent = seen.rates.map_or(self.estimate, |rates| rates.sent);
        let stays = seen.queue > then / 2 && sent < DRAINING * self.estimate;
        if stays || seen.queue < then / 2 {
            (self.standing, self.longest) = (None, None);
        }
        stays
    }

    fn lower(&mut self, to: f64, seen: &Observation) {
        self.estimate = to.clamp((STEP * self.estimate).max(FLOOR), self.estimate.max(FLOOR));
        self.step_back(seen);
        self.hold_until = seen.now + seen.rtt + seen.queue + SETTLED;
    }

    /// Growth was too much: it goes on in small steps, and later.
    fn step_back(&mut self, seen: &Observation) {
        self.grown_from = None;
        self.growth = GROWTH.0;
        self.no_growth_until = seen.now + self.pause * seen.rtt;
        self.pause = (2 * self.pause).min(PAUSE.1);
    }

    /// Whether fewer were lost at the lower rate.
    fn judge_blame(&mut self, before: f64, then: f64, loss: f64) {
        if loss > STILL * then {
            self.estimate = before;
            self.usual_loss = loss;
        }
    }

    fn judge_growth(&mut self, rates: Rates, loss: f64, seen: &Observation) {
        let too_much = self.has_lost_more(rates, seen.rtt, BY_GROWTH.max(self.usual_loss));
        match self.grown_from.take() {
            Some(before) if too_much => {
                self.estimate = before;
                self.step_back(seen);
            }
            Some(_) => self.growth = (2.0 * self.growth).min(GROWTH.1.max(self.growth)),
            None => self.usual_loss += (loss - self.usual_loss) / 8.0,
        }
    }

    /// Whether in the last round trip more was lost than usual and `margin` of everything, and more than chance makes of that: a
    /// lone loss among ten packets is none in ten.
    fn has_lost_more(&self, rates: Rates, rtt: Duration, margin: f64) -> bool {
        let packets = |bytes_per_second: f64| bytes_per_second * rtt.as_secs_f64() / PACKET;
        let expected = packets(rates.lost + rates.delivered) * (self.usual_loss + margin);
        packets(rates.lost) > expected + CHANCE * (expected + 1.0).sqrt()
    }

    /// What nothing is amiss with the link carries. What it has carried before it is asked for again, but once: if it fails, only
    /// small steps lead there.
    fn prove(&mut self, rates: Rates, seen: &Observation) {
        if rates.delivered + rates.lost >= 0.9 * self.estimate {
            self.proven = self.proven.max(self.estimate);
        }
        let calm_since = *self.calm_since.get_or_insert(seen.now);
        if self.estimate < APPEAL.0 * self.proven
            && seen.wanted
            && seen.now - calm_since >= APPEAL.1 * seen.rtt
        {
            self.grown_from = Some(self.estimate);
            self.estimate = std::mem::take(&mut self.proven);
            self.calm_since = None;
            self.hold_until = seen.now + 3 * seen.rtt / 2 + SETTLED;
        }
    }

    fn grow(&mut self, rates: Rates, seen: &Observation) {
        let ceiling = self.configured.unwrap_or(f64::INFINITY);
        let used = rates.sent >= 0.9 * self.budget(seen.queue, seen.rtt);
        if self.estimate >= ceiling || !seen.wanted || !used || seen.now < self.no_growth_until {
            return;
        }
        self.grown_from = Some(self.estimate);
        self.estimate = (self.estimate * (1.0 + self.growth)).min(ceiling);
        if self.estimate == ceiling {
            self.pause = PAUSE.0;
        }
        // Half a round trip, or one and a half, in which the effect is seen; while nothing is known, time is dearer.
        let known = if self.growth < FIRST_GROWTH { 5 } else { 3 };
        self.hold_until = seen.now
            + known * seen.rtt / 2
            + if self.growth < FIRST_GROWTH { SETTLED } else { Duration::ZERO };
    }
}
