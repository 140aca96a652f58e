//! A path that reorders, duplicates and corrupts: what striped trunks, link-layer retransmission and bad memory do.

use std::time::Duration;

use bentpipe_units::{Probability, Time};
use serde::Serialize;

use crate::random::{Bernoulli, derive_seeds};

/// How a path mangles the packets that it delivers. The default leaves them alone.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Mangling {
    /// Probability that a packet is held back, so that later ones overtake it.
    pub reorder: Probability,
    /// How long a packet is held back. One that nobody follows within this time is late and not reordered.
    pub reorder_by: Duration,
    /// Probability that a packet arrives twice.
    pub duplicate: Probability,
    /// Probability that one bit of a copy is flipped, anywhere in the IP packet.
    ///
    /// The Internet checksum (RFC 1071) finds every single flipped bit that it covers: in IPv4 all of the packet, in
    /// IPv6, whose header has none, the addresses and what TCP or UDP carries.
    pub corrupt: Probability,
}

impl Mangling {
    /// True if packets pass as they are.
    pub fn is_nothing(&self) -> bool {
        [self.reorder, self.duplicate, self.corrupt] == [Probability::ZERO; 3]
    }
}

/// What arrives of one packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mangled {
    /// The packet itself.
    pub packet: Arrival,
    /// Its copy, if it was duplicated.
    pub duplicate: Option<Arrival>,
}

/// One copy of a packet at the far end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// When its last bit arrives.
    pub at: Time,
    /// The bit that is wrong, counted from the most significant one of the first byte.
    pub flipped_bit: Option<usize>,
}

/// Packets mangled so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct MangledCounters {
    /// Copies that were held back.
    pub held_back: u64,
    /// Packets that arrived twice.
    pub duplicated: u64,
    /// Copies with a flipped bit.
    pub corrupted: u64,
}

/// A running path that mangles. It stands behind a [`Direction`](crate::Direction), which delivers in order and goes on
/// to do so: what leaves here is in no order.
#[derive(Debug, Clone)]
pub struct Mangler {
    mangling: Mangling,
    reordering: Bernoulli,
    duplication: Bernoulli,
    corruption: Bernoulli,
    counters: MangledCounters,
}

impl Mangler {
    /// The same `mangling` and `seed` do the same to the same packets. Each effect has a generator of its own and takes
    /// equally many draws for each packet, so that one effect's rate does not change which packets another one hits.
    pub fn new(mangling: &Mangling, seed: u64) -> Self {
        let [reordering, duplication, corruption] = derive_seeds(seed).map(Bernoulli::new);
        Self {
            mangling: *mangling,
            reordering,
            duplication,
            corruption,
            counters: MangledCounters::default(),
        }
    }

    /// Decides what arrives of a packet of `bytes` (IP length) that the link delivers `at` this time.
    pub fn mangle(&mut self, at: Time, bytes: usize) -> Mangled {
        let duplicated = self.duplication.happens(self.mangling.duplicate);
        let [packet, duplicate] = [true, duplicated].map(|exists| {
            let arrival = Arrival { at: at + self.hold_back(exists), flipped_bit: self.flip(exists, bytes) };
            exists.then_some(arrival)
        });
        self.counters.duplicated += u64::from(duplicated);
        Mangled { packet: packet.expect("the packet itself exists"), duplicate }
    }

    /// What this path has done so far.
    pub fn counters(&self) -> &MangledCounters {
        &self.counters
    }

    /// How long a copy waits. Takes one draw, also for a copy that does not exist.
    fn hold_back(&mut self, exists: bool) -> Duration {
        let held_back = self.reordering.happens(self.mangling.reorder) && exists;
        self.counters.held_back += u64::from(held_back);
        if held_back { self.mangling.reorder_by } else { Duration::ZERO }
    }

    /// Which bit of a copy is flipped. Takes two draws, also for a copy that does not exist.
    fn flip(&mut self, exists: bool, bytes: usize) -> Option<usize> {
        let happens = self.corruption.happens(self.mangling.corrupt) && exists;
        let bit = self.corruption.below(bytes * 8).filter(|_| happens);
        self.counters.corrupted += u64::from(bit.is_some());
        bit
    }
}

impl Mangled {
    /// A packet that arrives `at` this time as it was sent, once.
    pub fn unharmed(at: Time) -> Self {
        Self { packet: Arrival { at, flipped_bit: None }, duplicate: None }
    }
}

impl Arrival {
    /// Does to the bytes of the packet what happened to it.
    pub fn apply_to(&self, packet: &mut [u8]) {
        if let Some(bit) = self.flipped_bit
            && let Some(byte) = packet.get_mut(bit / 8)
        {
            *byte ^= 0x80 >> (bit % 8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALWAYS: &str = "1";

    fn probability(text: &str) -> Probability {
        text.parse().unwrap()
    }

    #[test]
    fn nothing_asked_is_nothing_done() {
        let mut mangler = Mangler::new(&Mangling::default(), 7);
        for nanos in 0..1000 {
            let at = Time::from_nanos(nanos);
            assert_eq!(mangler.mangle(at, 1500), Mangled::unharmed(at));
        }
        assert_eq!(*mangler.counters(), MangledCounters::default());
        assert!(Mangling::default().is_nothing());
    }

    #[test]
    fn a_packet_held_back_is_late_by_what_was_asked() {
        let reorder_by = Duration::from_millis(3);
        let mut mangler =
            Mangler::new(&Mangling { reorder: probability(ALWAYS), reorder_by, ..Default::default() }, 1);
        let Mangled { packet, duplicate } = mangler.mangle(Time::from_nanos(5), 100);
        assert_eq!((packet.at, packet.flipped_bit), (Time::from_nanos(3_000_005), None));
        assert_eq!((duplicate, mangler.counters().held_back), (None, 1));
    }

    #[test]
    fn each_copy_has_its_own_luck() {
        let mangling = Mangling {
            duplicate: probability(ALWAYS),
            corrupt: probability("50%"),
            reorder: probability("50%"),
            reorder_by: Duration::from_secs(1),
        };
        let mut mangler = Mangler::new(&mangling, 1);
        let both = (0..1000).map(|_| mangler.mangle(Time::ZERO, 1500));
        let both: Vec<_> = both.map(|mangled| (mangled.packet, mangled.duplicate.unwrap())).collect();
        let late = both.iter().filter(|(packet, copy)| packet.at != copy.at).count();
        let flipped = both.iter().filter(|(packet, copy)| packet.flipped_bit != copy.flipped_bit).count();
        // Half of the pairs differ in what happens to one of them, and two flipped bits are hardly ever the same.
        assert!((400..600).contains(&late) && (650..850).contains(&flipped), "{late}, {flipped}");
        assert_eq!(mangler.counters().duplicated, 1000);
    }

    #[test]
    fn one_bit_of_the_packet_is_flipped_and_none_of_an_empty_one() {
        let mut mangler = Mangler::new(&Mangling { corrupt: probability(ALWAYS), ..Default::default() }, 1);
        for length in 1..200 {
            let mut bytes = vec![0x5a; length];
            mangler.mangle(Time::ZERO, length).packet.apply_to(&mut bytes);
            assert_eq!(bytes.iter().map(|byte| (byte ^ 0x5a).count_ones()).sum::<u32>(), 1, "{length}");
        }
        assert_eq!(mangler.mangle(Time::ZERO, 0).packet.flipped_bit, None);
        assert_eq!(mangler.counters().corrupted, 199);
    }

    #[test]
    fn the_first_bit_is_the_most_significant_of_the_first_byte() {
        let flip = |bit| {
            let mut bytes = [0; 3];
            Arrival { at: Time::ZERO, flipped_bit: Some(bit) }.apply_to(&mut bytes);
            bytes
        };
        assert_eq!([flip(0), flip(15), flip(23)], [[0x80, 0, 0], [0, 1, 0], [0, 0, 1]]);
        assert_eq!(flip(24), [0; 3], "beyond the packet");
    }
}
