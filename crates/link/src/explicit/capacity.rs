//! The capacity of a link: the configured one, or the one that measurements show.

use std::time::Duration;

use bentpipe_units::{Rate, Time};

use super::Memory;
use super::round::Rates;
use super::train::Carried;

/// The part of the capacity that is allocated with a standing queue of [`Capacity::noise`], and how much more
/// without one: senders that fall short of their rates by less than that still fill the link, and the queue
/// settles at half of it.
const UTILISATION: (f64, f64) = (0.995, 0.0125);
/// A queue is drained within this time: it is known ahead, so that the round trip does not matter.
const DRAINED_WITHIN: Duration = Duration::from_millis(100);
/// Round-trip times vary by this without a queue, or by the time that this takes on the link: the shortest
/// round trip may be that of a SYN, and a full packet takes longer.
const NOISE: (Duration, f64) = (Duration::from_millis(5), 1.25 * PACKET);
/// On a link so slow that this is not enough for the packets the estimate must do without.
const MOST_NOISE: Duration = Duration::from_millis(25);
/// Rates and queues are measured over some time, so that the effect of a decision shows this much later.
const SETTLED: Duration = Duration::from_millis(200);
/// A queue of this, or of this part of a round trip, shows that the estimate of the capacity is wrong.
const STANDING: (Duration, u32) = (Duration::from_millis(15), 20);
/// However long the queue, this part of the capacity is allocated.
const LEAST: f64 = 0.1;
/// A link that delivers less than this part of the estimate, with a standing queue, is slower than the
/// estimate. A few per cent may be lost.
const CARRIES_LESS: f64 = 0.93;
/// The first step of growth, and the largest later on. Each successful step doubles the next.
const GROWTH: (f64, f64) = (1.0 / 64.0, 0.25);
/// Before the first measurement each round trip doubles the rate, as slow start does.
const FIRST_GROWTH: f64 = 1.0;
/// The first rate without a configured capacity: the initial window of RFC 6928 in a round trip.
const FIRST_WINDOW: f64 = 10.0 * 1500.0;
/// The pause after growth that was too much, in round trips; each time it doubles, up to the second number.
const PAUSE: (u32, u32) = (4, 16);
/// Losses above the usual that count as the effect of too high a rate.
const TOO_MANY: f64 = 0.12;
/// If less than this part of the estimate was sent, the losses are not the effect of its height.
const BLAMED: f64 = 0.5;
/// Losses above the usual that count as the effect of a step of growth.
const BY_GROWTH: f64 = 0.01;
/// Losses this many standard deviations above the expected number are not chance; counted in full packets.
const CHANCE: f64 = 2.0;
const PACKET: f64 = 1500.0;
/// If this part of the losses remains after the rate was lowered for them, the rate was not their cause.
const STILL: f64 = 0.6;
/// A queue drains within this many round trips, its own delay included; a delay that stays is no queue.
const PATIENCE: u32 = 3;
/// A queue shrinks while less than this part of the capacity is sent.
const DRAINING: f64 = 0.92;
/// If the estimate has fallen by this factor while a delay stayed, the delay may be no queue, which the next
/// train shows.
const DOUBTED: f64 = 1.25;
/// One decision leaves at least this part of the estimate. If the link is slower still, the next decisions
/// find it, a round trip apart; one misleading moment, as after an outage, does not cost everything.
const STEP: f64 = 0.25;
/// The rate of a train, as a multiple of the estimate: usually, and while the first measurement is sought.
const TRAIN: (f64, f64) = (2.0, 4.0);
/// The first train without a configured capacity: the initial window of RFC 6928 in 20 ms.
const FIRST_TRAIN: f64 = FIRST_WINDOW / 0.02;
/// A remembered capacity is divided by this, and a train of this multiple of the rest tries it.
const MEMORY: f64 = TRAIN.0;
/// Arrivals of a train above the estimate by less than this part of it may be chance.
const SURELY: f64 = 0.08;
/// What arrives is known well if the most is less than this multiple of the least.
const PRECISE: f64 = 1.4;
/// A train that arrives at this part of its rate has not shown the limit of the link.
const ALL: f64 = 0.9;
/// The part of the difference to what a busy link carries by which the estimate is corrected each round trip.
const CORRECTED: f64 = 0.5;
/// The lowest estimate, bytes per second.
const FLOOR: f64 = 100.0;

/// The estimate of a link's capacity, and the part of it that may be allocated.
#[derive(Debug, Clone)]
pub(super) struct Capacity {
    configured: Option<f64>,
    estimate: f64,
    /// The estimate before anything is measured.
    first: f64,
    growth: f64,
    pause: u32,
    /// The effect of the last decision does not show before.
    hold_until: Time,
    no_growth_until: Time,
    /// When it was last corrected.
    corrected: Time,
    /// The estimate before the last step of growth, until its effect is known.
    grown_from: Option<f64>,
    /// The highest rate that was sent without a queue and arrived, until it is used again.
    proven: f64,
    /// The least and the most that the last train has shown, if it was more than the link carries.
    limit: Option<[f64; 2]>,
    /// What was found before, until a train has tried it; the estimate is half of it.
    memory: Option<f64>,
    usual_loss: f64,
    /// The estimate before it was lowered because of losses, and the losses.
    blamed: Option<(f64, f64)>,
    /// Since when there is a standing queue, and how long it was then.
    standing: Option<(Time, Duration)>,
    /// Since when it has not grown, and how long it was then.
    longest: Option<(Time, Duration)>,
    /// The delay that has not gone away.
    lasting: Option<Lasting>,
}

/// A delay above [`Capacity::noise`] that lasts.
#[derive(Debug, Clone, Copy)]
struct Lasting {
    since: Time,
    least: Duration,
    /// The highest estimate meanwhile.
    estimate: f64,
}

/// Measurements of the link.
#[derive(Debug, Clone, Copy)]
pub(super) struct Observation {
    pub(super) now: Time,
    /// Over the last round trip, if there were acknowledgements during all of it.
    pub(super) rates: Option<Rates>,
    /// The rate of arrivals while there was a standing queue, if that was long enough: the rate of the link.
    pub(super) carried: Option<f64>,
    /// The same if the queue has been standing for all of the last round trip.
    pub(super) carried_all: Option<f64>,
    pub(super) queue: Duration,
    /// The round-trip time of the empty link.
    pub(super) rtt: Duration,
    /// Some sender can use a higher rate.
    pub(super) wanted: bool,
}

impl Capacity {
    pub(super) fn new(configured: Option<Rate>, rtt: Duration) -> Self {
        let configured = configured.map(|rate| rate.bps() as f64 / 8.0);
        let growth = if configured.is_some() { GROWTH.0 } else { FIRST_GROWTH };
        let first = first_estimate(configured, rtt);
        Self {
            configured,
            estimate: first,
            first,
            growth,
            pause: PAUSE.0,
            hold_until: Time::ZERO,
            no_growth_until: Time::ZERO,
            corrected: Time::ZERO,
            grown_from: None,
            proven: 0.0,
            limit: None,
            memory: None,
            usual_loss: 0.0,
            blamed: None,
            standing: None,
            longest: None,
            lasting: None,
        }
    }

    /// The estimate.
    pub(super) fn bytes_per_second(&self) -> f64 {
        self.estimate
    }

    /// A shorter delay is no queue.
    pub(super) fn noise(&self) -> Duration {
        let (least, packets) = NOISE;
        if self.is_searched() {
            return least;
        }
        let on_the_link = Duration::try_from_secs_f64(packets / self.estimate).unwrap_or(MOST_NOISE);
        on_the_link.clamp(least, MOST_NOISE)
    }

    /// The rate of the first packets of all: without a configured capacity they are a train.
    pub(super) fn initial_rate(&self) -> f64 {
        let usual = self.budget(Duration::ZERO);
        if self.configured.is_some() { usual } else { usual.max(FIRST_TRAIN) }
    }

    /// The sum of all senders' rates, if what they send now will wait that long.
    pub(super) fn budget(&self, queue: Duration) -> f64 {
        let noise = self.noise();
        let drained = queue.saturating_sub(noise).as_secs_f64() / DRAINED_WITHIN.as_secs_f64();
        let short = 1.0 - queue.min(noise).as_secs_f64() / noise.as_secs_f64();
        self.estimate * (UTILISATION.0 + UTILISATION.1 * short - drained).max(LEAST)
    }

    /// Begins again with a capacity that was found before. If that is past, half of it is used, and the first
    /// train tries all of it, as Careful Resume does with a window (RFC 9959). False if it is configured.
    pub(super) fn remember(&mut self, capacity: f64, memory: Memory) -> bool {
        let is_taken = self.configured.is_none() && capacity.is_finite() && capacity > FLOOR;
        if is_taken {
            let usual_loss = self.usual_loss;
            *self = Self { usual_loss, ..Self::new(None, Duration::from_secs(1)) };
            self.growth = GROWTH.0;
            (self.estimate, self.proven, self.memory) = match memory {
                Memory::Present => (capacity, 0.0, None),
                Memory::Past => (capacity / MEMORY, capacity, Some(capacity)),
            };
        }
        is_taken
    }

    /// Before anything else is known, the search begins with a window in this round trip.
    pub(super) fn begin_with(&mut self, rtt: Duration) {
        if self.is_unknown() && self.estimate == self.first {
            self.first = first_estimate(self.configured, rtt);
            self.estimate = self.first;
        }
    }

    /// Begins the search above a rate that leaves over the link already, bytes per second.
    pub(super) fn begin_above(&mut self, rate: f64) {
        self.estimate += rate;
    }

    /// What to remember of it later.
    pub(super) fn memory(&self) -> f64 {
        self.memory.unwrap_or(self.estimate)
    }

    /// Decides nothing before then.
    pub(super) fn hold(&mut self, until: Time) {
        self.hold_until = self.hold_until.max(until);
        // Losses just before an outage were its beginning, and not the effect of too high a rate.
        if let Some((before, _)) = self.blamed.take() {
            self.estimate = before;
        }
        (self.grown_from, self.standing, self.longest, self.lasting) = (None, None, None, None);
    }

    /// Takes in measurements. True if the delay is no queue, because it does not shrink however little is
    /// sent.
    pub(super) fn observe(&mut self, seen: &Observation) -> bool {
        let high = STANDING.0.max(seen.rtt / STANDING.1);
        self.note_delay(seen);
        if self.is_no_queue(seen, high) {
            return true;
        }
        let Some(rates) = seen.rates.filter(|_| seen.now >= self.hold_until) else { return false };
        let loss = if rates.lost > 0.0 { rates.lost / (rates.lost + rates.delivered) } else { 0.0 };
        if let Some((before, then)) = self.blamed.take() {
            self.judge_blame(before, then, loss);
        } else if seen.queue > high {
            let persists =
                self.standing.is_some_and(|(since, then)| seen.now - since > 2 * (seen.rtt + then));
            let carries_less = |carried: f64| persists || carried < CARRIES_LESS * self.estimate;
            if let Some(carried) = seen.carried.filter(|&carried| carries_less(carried)) {
                self.lower(carried, seen);
            }
        } else if rates.whole
            && rates.sent > BLAMED * self.estimate
            && self.has_lost_more(rates, seen.rtt, TOO_MANY)
        {
            self.blamed = Some((self.estimate, loss));
            self.lower(rates.delivered, seen);
            self.hold_until = seen.now + 2 * (seen.rtt + seen.queue);
        } else if rates.whole {
            self.judge_growth(rates, loss, seen);
            if seen.queue <= self.noise() {
                if rates.delivered + rates.lost >= 0.9 * self.estimate {
                    self.proven = self.proven.max(self.estimate);
                }
                self.grow(rates, seen);
            } else if let Some(carried) = seen.carried_all {
                self.correct(carried, seen);
            }
        }
        false
    }

    fn note_delay(&mut self, seen: &Observation) {
        if seen.queue <= self.noise() {
            self.lasting = None;
            return;
        }
        let first = Lasting { since: seen.now, least: seen.queue, estimate: self.estimate };
        let lasting = self.lasting.get_or_insert(first);
        // At first it grows as the samples before it are forgotten.
        let grows = seen.now - lasting.since <= seen.rtt;
        lasting.least = if grows { seen.queue } else { lasting.least.min(seen.queue) };
        lasting.estimate = lasting.estimate.max(self.estimate);
    }

    /// Whether a lasting delay may be no queue: so little is sent that one would have drained, and the
    /// estimate has fallen so far that a train can show it.
    fn doubt(&self, now: Time, rtt: Duration) -> Option<Lasting> {
        self.lasting.filter(|lasting| {
            let patience = PATIENCE * (rtt + lasting.least);
            now - lasting.since >= patience && DOUBTED * self.estimate < lasting.estimate
        })
    }

    fn is_no_queue(&mut self, seen: &Observation, high: Duration) -> bool {
        if seen.queue <= high {
            (self.standing, self.longest) = (None, None);
            return false;
        }
        self.standing.get_or_insert((seen.now, seen.queue));
        // A queue goes on growing until its growth is noticed.
        let (since, then) = *self.longest.get_or_insert((seen.now, seen.queue));
        if seen.queue > then + self.noise() {
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
        self.memory = None;
        self.estimate = to.clamp((STEP * self.estimate).max(FLOOR), self.estimate.max(FLOOR));
        self.step_back(seen);
        self.hold_until = seen.now + seen.rtt + seen.queue + SETTLED;
    }

    /// A queue that stands for a round trip, but drains as expected: the estimate is a little too high.
    fn correct(&mut self, carried: f64, seen: &Observation) {
        let shown = carried / (1.0 - self.usual_loss.min(TOO_MANY));
        if shown < self.estimate && seen.now >= self.corrected + seen.rtt.max(SETTLED) {
            self.estimate -= CORRECTED * (self.estimate - shown);
            (self.corrected, self.grown_from) = (seen.now, None);
        }
    }

    /// Growth was too much: it resumes later, in small steps.
    fn step_back(&mut self, seen: &Observation) {
        self.grown_from = None;
        self.growth = GROWTH.0;
        self.no_growth_until = seen.now + self.pause * seen.rtt;
        self.pause = (2 * self.pause).min(PAUSE.1);
    }

    /// Restores the rate if the lower one has not reduced the losses.
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

    /// Whether more was lost in the last round trip than the usual part and `margin`, and more than by
    /// chance: one loss among ten packets does not show a loss rate of a tenth.
    fn has_lost_more(&self, rates: Rates, rtt: Duration, margin: f64) -> bool {
        let packets = |bytes_per_second: f64| bytes_per_second * rtt.as_secs_f64() / PACKET;
        let expected = packets(rates.lost + rates.delivered) * (self.usual_loss + margin);
        packets(rates.lost) > expected + CHANCE * (expected + 1.0).sqrt()
    }

    /// The rate of a train, if it may show that the link carries more than the estimate.
    pub(super) fn train(&self, seen: &Observation) -> Option<f64> {
        let ceiling = self.configured.unwrap_or(f64::INFINITY);
        let is_known = self.growth < FIRST_GROWTH;
        let used = !is_known
            || self.memory.is_some()
            || seen.rates.is_some_and(|rates| rates.sent >= 0.8 * self.budget(seen.queue));
        if self.estimate >= ceiling
            || !seen.wanted
            || !used
            || (seen.queue > 2 * self.noise() && self.doubt(seen.now, seen.rtt).is_none())
            || self.blamed.is_some()
        {
            return None;
        }
        let rate = match is_known {
            true => TRAIN.0 * self.estimate,
            // One that confirms the first limit need not be longer than the queue of a short link.
            false if self.limit.is_some() => (TRAIN.0 * self.estimate).max(FIRST_TRAIN),
            false => (TRAIN.1 * self.estimate).max(FIRST_TRAIN),
        };
        (rate > 0.0).then_some(rate)
    }

    /// Whether nothing is known of it yet.
    pub(super) fn is_unknown(&self) -> bool {
        self.is_searched() && self.limit.is_none()
    }

    /// Whether the first measurement is sought, or to be confirmed.
    pub(super) fn is_searched(&self) -> bool {
        self.growth >= FIRST_GROWTH
    }

    /// Whether it is a part of what was found before, until a train has tried all of that.
    pub(super) fn is_remembered(&self) -> bool {
        self.memory.is_some()
    }

    /// Whether it is not the configured one.
    pub(super) fn is_measured(&self) -> bool {
        self.configured.is_none() && !self.is_searched()
    }

    /// Whether the rate is lower on trial, because of losses: these packets did not queue.
    pub(super) fn is_on_trial(&self) -> bool {
        self.blamed.is_some()
    }

    /// How much of a lasting delay is no queue: behind a queue, a train would not arrive faster than the
    /// estimate.
    pub(super) fn no_queue(&mut self, carried: &Carried, seen: &Observation) -> Duration {
        let is_idle = carried.arrived[0] > (1.0 + SURELY) * self.estimate.max(carried.usual);
        match self.doubt(carried.sent[0], seen.rtt).filter(|_| is_idle) {
            Some(lasting) => {
                self.lasting = None;
                lasting.least
            }
            None => Duration::ZERO,
        }
    }

    /// Takes in what a train has shown; whether the estimate has grown.
    pub(super) fn judge_train(&mut self, carried: &Carried, seen: &Observation) -> bool {
        let [least, most] = carried.arrived;
        // Fewer arrivals than usual say that the train was not sent.
        let was_sent = least >= 0.8 * carried.usual;
        if was_sent {
            self.memory = None;
        }
        let all = most >= ALL * carried.train;
        // What the link has carried before is what it carries now, if the train does not contradict.
        let known = self.proven > (1.0 + SURELY) * self.estimate && (least..=most).contains(&self.proven);
        if known {
            self.estimate = std::mem::take(&mut self.proven);
            self.hold_until = self.hold_until.max(seen.now + 3 * seen.rtt / 2);
            return true;
        }
        let more = least > carried.usual * (1.0 + SURELY) && least > self.estimate;
        let limit = (!all && was_sent).then_some(carried.arrived);
        // The first one may have ended for lack of data: only the second says that the search is over.
        if limit.is_some() && self.limit.is_some_and(|[_, before]| least <= before) {
            self.growth = self.growth.min(GROWTH.0);
        }
        self.limit = limit;
        if more {
            let ceiling = self.configured.unwrap_or(f64::INFINITY);
            // At low rates a few packets more or less leave much room: what is certain counts then.
            let is_precise = self.is_unknown() || most < PRECISE * least;
            let shown =
                if all && is_precise { carried.train.max(least.min(2.0 * carried.train)) } else { least };
            self.estimate = shown.max(self.estimate).min(ceiling);
            // While trains find more, doubling besides would only overshoot.
            let next_trains = if self.is_unknown() { 2 * (SETTLED + seen.rtt) } else { Duration::ZERO };
            (self.grown_from, self.pause, self.no_growth_until) = (None, PAUSE.0, seen.now + next_trains);
            self.hold_until = self.hold_until.max(seen.now + 3 * seen.rtt / 2);
        }
        more
    }

    fn grow(&mut self, rates: Rates, seen: &Observation) {
        let ceiling = self.configured.unwrap_or(f64::INFINITY);
        let used = rates.sent >= 0.9 * self.budget(seen.queue);
        let awaits_train = self.is_searched() && self.limit.is_some();
        if self.estimate >= ceiling
            || !seen.wanted
            || !used
            || awaits_train
            || seen.now < self.no_growth_until
        {
            return;
        }
        self.grown_from = Some(self.estimate);
        let shown = self.limit.map_or(f64::INFINITY, |[least, most]| 0.51 * (least + most));
        let limit = shown.max(self.estimate * (1.0 + GROWTH.0));
        self.estimate = (self.estimate * (1.0 + self.growth)).min(ceiling).min(limit);
        if self.estimate == ceiling {
            self.pause = PAUSE.0;
        }
        // The effect shows after one and a half round trips, or two and a half; before the first measurement,
        // speed matters more.
        let known = if self.growth < FIRST_GROWTH { 5 } else { 3 };
        self.hold_until = seen.now
            + known * seen.rtt / 2
            + if self.growth < FIRST_GROWTH { SETTLED } else { Duration::ZERO };
    }
}

/// The configured capacity, or the initial window in a round trip.
fn first_estimate(configured: Option<f64>, rtt: Duration) -> f64 {
    configured.unwrap_or(FIRST_WINDOW / rtt.as_secs_f64().max(0.001))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_on_a_slow_link_is_no_queue() {
        let noise = |mbps_tenths: u64| {
            let capacity = Capacity::new(Rate::from_bps(mbps_tenths * 100_000), Duration::from_millis(600));
            capacity.noise()
        };
        let expected = [(100, 5.0), (20, 7.5), (10, 15.0), (1, 25.0)];
        for (mbps_tenths, ms) in expected {
            let found = noise(mbps_tenths).as_secs_f64() * 1e3;
            assert!((found - ms).abs() < 1e-6, "{mbps_tenths}: {found} ms");
        }
        // Nothing is known of a link that is searched.
        assert_eq!(Capacity::new(None, Duration::from_millis(600)).noise(), Duration::from_millis(5));
    }
}
