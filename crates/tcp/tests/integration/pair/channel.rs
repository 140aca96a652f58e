//! One direction of the path: what becomes of a segment that is sent into it.

use std::collections::BTreeMap;
use std::time::Duration;

use bentpipe_tcp::Segment;
use bentpipe_units::Time;

/// A generator of pseudo-random numbers whose sequence its seed fixes (Steele, Lea and Flood's SplitMix64).
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0 to below `limit`, which is not 0.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub(crate) fn happens(&mut self, permille: u64) -> bool {
        permille > 0 && self.below(1000) < permille
    }
}

/// What a channel does to what passes. A corrupted segment is a lost one: its checksum fails.
#[derive(Debug, Clone)]
pub(crate) struct Conditions {
    pub(crate) delay: Duration,
    /// Each segment is late by up to so much; one that overtakes another is reordered.
    pub(crate) jitter: Duration,
    /// A late segment holds back those behind it.
    pub(crate) fifo: bool,
    pub(crate) loss_permille: u64,
    /// No more than so many are lost at random.
    pub(crate) losses: u64,
    /// Segments lost for certain, counted from 0 in the order of sending.
    pub(crate) lost: Vec<u64>,
    pub(crate) duplicate_permille: u64,
    pub(crate) seed: u64,
}

impl Conditions {
    /// Everything arrives in order after `delay`.
    pub(crate) fn clean(delay: Duration) -> Self {
        Self {
            delay,
            jitter: Duration::ZERO,
            fifo: true,
            loss_permille: 0,
            losses: 0,
            lost: Vec::new(),
            duplicate_permille: 0,
            seed: 0,
        }
    }

    /// Nothing arrives.
    pub(crate) fn dead() -> Self {
        Self { loss_permille: 1000, losses: u64::MAX, ..Self::clean(Duration::ZERO) }
    }
}

/// A direction at work.
#[derive(Debug)]
pub(crate) struct Channel {
    conditions: Conditions,
    random: Random,
    on_its_way: BTreeMap<(Time, u64), Segment>,
    sent: u64,
    pub(crate) lost: u64,
    pub(crate) duplicated: u64,
    latest: Time,
}

impl Channel {
    pub(crate) fn new(conditions: Conditions) -> Self {
        let random = Random::new(conditions.seed);
        let on_its_way = BTreeMap::new();
        Self { conditions, random, on_its_way, sent: 0, lost: 0, duplicated: 0, latest: Time::ZERO }
    }

    /// From now on it is another one; what is on its way arrives all the same.
    pub(crate) fn becomes(&mut self, conditions: Conditions) {
        self.random = Random::new(conditions.seed);
        self.conditions = conditions;
    }

    pub(crate) fn send(&mut self, now: Time, segment: Segment) {
        let number = self.sent;
        self.sent += 1;
        let unlucky = self.conditions.losses > 0 && self.random.happens(self.conditions.loss_permille);
        if unlucky || self.conditions.lost.contains(&number) {
            self.conditions.losses -= u64::from(unlucky);
            self.lost += 1;
            return;
        }
        self.deliver(now, 2 * number, segment);
        if self.random.happens(self.conditions.duplicate_permille) {
            self.duplicated += 1;
            self.deliver(now, 2 * number + 1, segment);
        }
    }

    fn deliver(&mut self, now: Time, order: u64, segment: Segment) {
        let jitter = self.conditions.jitter.as_nanos() as u64;
        let late = Duration::from_nanos(if jitter > 0 { self.random.below(jitter) } else { 0 });
        let mut at = now + self.conditions.delay + late;
        if self.conditions.fifo {
            at = at.max(self.latest);
        }
        self.latest = self.latest.max(at);
        self.on_its_way.insert((at, order), segment);
    }

    /// When the next segment arrives.
    pub(crate) fn next_at(&self) -> Time {
        self.on_its_way.first_key_value().map_or(Time::MAX, |((at, _), _)| *at)
    }

    pub(crate) fn receive(&mut self, now: Time) -> Option<Segment> {
        if self.next_at() > now {
            return None;
        }
        self.on_its_way.pop_first().map(|(_, segment)| segment)
    }
}
