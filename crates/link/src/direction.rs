//! The link and its two directions: configuration, state, and the list of effects that a packet walks
//! through.

#[cfg(feature = "planted-faults")]
mod fault;

use std::time::Duration;

use bentpipe_units::{ByteCount, Probability, Rate, Time};

#[cfg(feature = "planted-faults")]
pub use fault::Fault;

use crate::effect::{
    AnyEffect, BurstErrors, Copies, Custom, CustomEffect, Effect, Encapsulation, GilbertElliott,
    ImpairmentCounters, Impairments, LinkTrace, OutageTrace, Outages, PacketCopy, PacketErrors,
    PrescribedErrors, PrescribedLosses, Transit, Transmitter, VaryingDelay, VaryingPacketErrors,
    VaryingTransmitter,
};
use crate::random::derive_seeds;
use crate::{Cause, Counters, Fate};

/// A satellite link: two directions, which may differ in everything.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LinkConfig {
    /// From the gateway to the terminal.
    pub forward: DirectionConfig,
    /// From the terminal to the gateway.
    pub reverse: DirectionConfig,
}

impl LinkConfig {
    /// A link whose directions are alike.
    pub fn symmetric(direction: DirectionConfig) -> Self {
        Self { forward: direction.clone(), reverse: direction }
    }
}

/// A running link. The directions share nothing but the seed from which their random streams are derived.
#[derive(Debug)]
pub struct Link {
    /// From the gateway to the terminal.
    pub forward: Direction,
    /// From the terminal to the gateway.
    pub reverse: Direction,
}

impl Link {
    /// A link at rest. The same configuration and `seed` give the same fates to the same packets.
    pub fn new(config: &LinkConfig, seed: u64) -> Self {
        let [forward, reverse] = derive_seeds(seed);
        Self {
            forward: Direction::new(&config.forward, forward),
            reverse: Direction::new(&config.reverse, reverse),
        }
    }
}

/// One direction of a link. The default is ideal: infinitely fast, no delay, no loss.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DirectionConfig {
    /// Bit rate on the wire, encapsulation included; `None` is infinitely fast, and then nothing queues.
    pub rate: Option<Rate>,
    /// One-way propagation delay.
    pub delay: Duration,
    /// Drop-tail limit in wire bytes; `None` is the default of [`queue_limit`](Self::queue_limit).
    pub queue: Option<ByteCount>,
    /// Uniform packet error rate: each packet is lost with this probability, whatever its size.
    pub per: Probability,
    /// Errors that come in bursts.
    pub gilbert_elliott: Option<GilbertElliott>,
    /// The packets that are lost in any case.
    pub losses: PrescribedLosses,
    /// When the sky is obstructed.
    pub outages: OutageTrace,
    /// How rate, delay and `per` change with time; where it says nothing, they are those above.
    pub trace: LinkTrace,
    /// The bytes that the link layer adds to each packet.
    pub encapsulation: Encapsulation,
    /// How packets that the link delivers are reordered, duplicated and corrupted.
    pub impairments: Impairments,
}

/// IP bytes of a full-size packet: the Ethernet MTU (RFC 894).
pub const FULL_SIZE_PACKET: ByteCount = ByteCount::new(1500);

/// The default queue takes at least this many full-size packets.
///
/// On a short link one BDP is a packet or two, which not even the initial window of ten segments (RFC 6928)
/// passes.
pub const MIN_DEFAULT_QUEUE_PACKETS: u64 = 16;

impl DirectionConfig {
    /// The drop-tail limit in wire bytes: `queue` if set, else one bandwidth-delay product, but at least
    /// [`MIN_DEFAULT_QUEUE_PACKETS`] full-size packets. `None` where the rate is infinite and nothing is
    /// given.
    pub fn queue_limit(&self) -> Option<ByteCount> {
        let wire_packet = self.encapsulation.wire_bytes(FULL_SIZE_PACKET.get());
        let default = |bdp: ByteCount| ByteCount::new(bdp.get().max(MIN_DEFAULT_QUEUE_PACKETS * wire_packet));
        self.queue.or_else(|| self.bdp().map(default))
    }

    /// The bandwidth-delay product in wire bytes: the rate times the round trip of `2·delay`, as if the other
    /// direction were as long as this one; where they change, the highest and the longest. `None` where the
    /// rate is infinite.
    pub fn bdp(&self) -> Option<ByteCount> {
        let rate = self.highest_rate()?;
        let delay = self.trace.longest_delay().map_or(self.delay, |longest| longest.max(self.delay));
        Some(ByteCount::new(rate.bytes_in(delay.saturating_mul(2))))
    }

    /// The rate, or the highest one if it changes; `None` where it is infinite.
    pub fn highest_rate(&self) -> Option<Rate> {
        self.rate.max(self.trace.highest_rate())
    }

    /// The part of the rate that the encapsulation leaves for the IP bytes of full-size packets. `None` where
    /// the rate is infinite.
    pub fn rate_of_packets(&self) -> Option<Rate> {
        let packet = FULL_SIZE_PACKET.get();
        let on_the_wire = self.encapsulation.wire_bytes(packet);
        self.rate.map(|rate| {
            let bits = u128::from(rate.bps()) * u128::from(packet) / u128::from(on_the_wire);
            u64::try_from(bits).ok().and_then(Rate::from_bps).unwrap_or(rate)
        })
    }
}

/// A running direction: decides the fate of each packet that is offered to it.
#[derive(Debug)]
pub struct Direction {
    /// Propagation, nanoseconds; in the list of effects where it changes with time.
    delay: u64,
    effects: Vec<AnyEffect>,
    impairments: Vec<AnyEffect>,
    latest: Time,
    counters: Counters,
    impairment_counters: ImpairmentCounters,
    #[cfg(feature = "planted-faults")]
    fault: Option<Fault>,
}

/// The copies that arrive of a packet that is not lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrivals {
    /// When the packet's last bit left the transmitter.
    pub departure: Time,
    /// The packet itself.
    pub packet: Arrival,
    /// A second copy of it, if it was duplicated.
    pub duplicate: Option<Arrival>,
}

/// One copy of a packet at the far end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// When its last bit arrives.
    pub at: Time,
    /// The bit that is wrong, counted from the most significant one of the first byte of the IP packet.
    pub flipped_bit: Option<usize>,
}

impl Direction {
    /// A direction at rest. The same `config` and `seed` give the same fates to the same packets.
    ///
    /// Each random effect has a generator of its own, so switching one effect on or off does not change which
    /// of the packets sent another one hits: two runs that differ in one parameter share the rest of their
    /// luck. A packet that the queue drops is not sent: no further effect sees it, and it takes no draws.
    pub fn new(config: &DirectionConfig, seed: u64) -> Self {
        let [burst_seed, packet_seed, impairment_seed] = derive_seeds(seed);
        let mut direction = Self {
            delay: config.constant_delay(),
            effects: config.effects(burst_seed, packet_seed),
            impairments: Vec::new(),
            latest: Time::ZERO,
            counters: Counters::default(),
            impairment_counters: ImpairmentCounters::default(),
            #[cfg(feature = "planted-faults")]
            fault: None,
        };
        direction.impair(&config.impairments, impairment_seed);
        direction
    }

    /// The same with something wrong in it.
    #[cfg(feature = "planted-faults")]
    pub fn with_fault(config: &DirectionConfig, seed: u64, fault: Fault) -> Self {
        Self { fault: Some(fault), ..Self::new(&fault.misread(config), seed) }
    }

    /// Adds an effect behind those of the link itself, before the impairments.
    pub fn add_effect(&mut self, effect: Box<dyn CustomEffect>) {
        self.effects.push(Custom(effect).into());
    }

    /// Impairs the packets offered from now on in this way, in place of the way before, and counts them anew.
    pub fn impair(&mut self, impairments: &Impairments, seed: u64) {
        self.impairments = impairments.effects(seed);
        self.impairment_counters = ImpairmentCounters::default();
    }

    /// Decides what becomes of a packet of `bytes` (IP length) that arrives at the transmitter `now`. Of its
    /// copies, this is the fate of the packet itself.
    ///
    /// Time never goes back: a `now` before that of an earlier call is taken as the latest one.
    #[inline(always)]
    pub fn offer(&mut self, now: Time, bytes: usize) -> Fate {
        if self.is_impaired() {
            return match self.transmit(now, bytes, bytes) {
                Ok(arrivals) => Fate::Deliver { at: arrivals.packet.at },
                Err(cause) => Fate::Drop(cause),
            };
        }
        let packet = self.apply_effects(now, bytes);
        match packet.loss() {
            None => Fate::Deliver { at: packet.in_order() },
            Some(cause) => Fate::Drop(cause),
        }
    }

    /// Whether a packet that is not lost may arrive otherwise than once, in order and unchanged.
    #[inline]
    pub fn is_impaired(&self) -> bool {
        #[cfg(feature = "planted-faults")]
        if self.fault.is_some() {
            return true;
        }
        !self.impairments.is_empty()
    }

    /// As [`offer`](Self::offer), for `bytes` of which `ip_bytes` are an IP packet, and with all that arrives
    /// of it. Corruption flips bits of the IP packet only.
    ///
    /// # Errors
    /// Why the packet is lost, if it is.
    #[inline]
    pub fn transmit(&mut self, now: Time, bytes: usize, ip_bytes: usize) -> Result<Arrivals, Cause> {
        #[cfg(feature = "planted-faults")]
        if let Some(fault) = self.fault {
            return self.transmit_with(fault, now, bytes, ip_bytes);
        }
        self.carry(now, bytes, ip_bytes)
    }

    fn carry(&mut self, now: Time, bytes: usize, ip_bytes: usize) -> Result<Arrivals, Cause> {
        let packet = self.apply_effects(now, bytes);
        if let Some(cause) = packet.loss() {
            return Err(cause);
        }
        if self.impairments.is_empty() {
            let packet_itself = Arrival { at: packet.in_order(), flipped_bit: None };
            return Ok(Arrivals { departure: packet.departure, packet: packet_itself, duplicate: None });
        }
        Ok(self.impaired(&packet, ip_bytes))
    }

    /// Lets all effects of the link act on a packet.
    // As `offer`: the path of every packet in virtual time, which takes 1.4% more instructions if it has calls.
    #[inline(always)]
    fn apply_effects(&mut self, now: Time, bytes: usize) -> Transit {
        self.latest = self.latest.max(now);
        let mut packet = Transit::new(self.latest, bytes, self.delay);
        for effect in &mut self.effects {
            effect.apply(&mut packet);
            if packet.loss() == Some(Cause::QueueFull) {
                break;
            }
        }
        self.counters.count(bytes as u64, packet.wire_bytes, packet.loss());
        packet
    }

    #[cfg(feature = "planted-faults")]
    fn transmit_with(
        &mut self,
        fault: Fault,
        now: Time,
        bytes: usize,
        ip_bytes: usize,
    ) -> Result<Arrivals, Cause> {
        let number = self.counters.offered + 1;
        if fault.idles_before(number) {
            let mut nothing = Transit::new(self.latest.max(now), 100, 0);
            self.effects.iter_mut().for_each(|effect| effect.apply(&mut nothing));
        }
        if fault.spares(bytes) {
            let is_loss = |effect: &AnyEffect| matches!(effect, AnyEffect::PacketErrors(_));
            let index = self.effects.iter().position(is_loss);
            let losses = index.map(|index| (index, self.effects.remove(index)));
            let fate = self.carry(now, bytes, ip_bytes);
            if let Some((index, losses)) = losses {
                self.effects.insert(index, losses);
            }
            return fate;
        }
        let fate = self.carry(now, bytes, ip_bytes);
        self.counters.offered += u64::from(fault.miscounts(number));
        fault.tamper(number, bytes, fate)
    }

    #[inline(never)]
    fn impaired(&mut self, packet: &Transit, ip_bytes: usize) -> Arrivals {
        let mut copies = Copies::of(ip_bytes);
        self.impairments.iter_mut().for_each(|effect| effect.impair(&mut copies));
        self.impairment_counters.count(&copies);
        let arrival = |copy: PacketCopy| Arrival {
            at: packet.in_order() + copy.held_back.unwrap_or_default(),
            flipped_bit: copy.flipped_bit,
        };
        Arrivals {
            departure: packet.departure,
            packet: arrival(copies.packet),
            duplicate: copies.duplicate.map(arrival),
        }
    }

    /// The counters of this direction.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The counters of the impairments since the direction was made, or since [`impair`](Self::impair).
    pub fn impairment_counters(&self) -> &ImpairmentCounters {
        &self.impairment_counters
    }

    /// Wire bytes that wait or are being sent at `now`. The packet being sent counts with the part that has
    /// not left.
    pub fn backlog(&self, now: Time) -> ByteCount {
        let now = now.max(self.latest);
        ByteCount::new(self.effects.iter().map(|effect| effect.backlog(now)).sum())
    }
}

impl DirectionConfig {
    /// The effects of the link itself, in the order in which a packet meets them; effects that do nothing are
    /// left out.
    fn effects(&self, burst_seed: u64, packet_seed: u64) -> Vec<AnyEffect> {
        let mut effects = Vec::new();
        if self.encapsulation != Encapsulation::default() {
            effects.push(self.encapsulation.into());
        }
        let rates = self.trace.has_rates().then(|| self.trace.rates(self.rate)).flatten();
        if let Some(rates) = rates {
            effects.push(VaryingTransmitter::new(rates, self.queue_limit()).into());
        } else if let Some(rate) = self.rate {
            effects.push(Transmitter::new(rate, self.queue_limit()).into());
        }
        if !self.outages.is_empty() {
            effects.push(Outages::new(self.outages.clone()).into());
        }
        if let Some(model) = self.gilbert_elliott {
            effects.push(BurstErrors::new(model, burst_seed).into());
        }
        if !self.losses.is_empty() {
            effects.push(PrescribedErrors::new(&self.losses).into());
        }
        if let Some(error_rates) = self.trace.error_rates(self.per) {
            effects.push(VaryingPacketErrors::new(error_rates, packet_seed).into());
        } else if self.per != Probability::ZERO {
            effects.push(PacketErrors::new(self.per, packet_seed).into());
        }
        if let Some(delays) = self.trace.delays(self.delay) {
            effects.push(VaryingDelay::new(delays).into());
        }
        effects
    }

    /// Nanoseconds of propagation; none here where they change with time.
    fn constant_delay(&self) -> u64 {
        match self.trace.delays(self.delay) {
            Some(_) => 0,
            None => u64::try_from(self.delay.as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

impl Arrival {
    /// Flips the wrong bit, if there is one, in the bytes of the IP packet.
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

    /// An ideal direction that impairs the packets that it delivers.
    fn impaired(impairments: Impairments) -> Direction {
        Direction::new(&DirectionConfig { impairments, ..DirectionConfig::default() }, 1)
    }

    fn transmit(direction: &mut Direction, at: Time, bytes: usize) -> Arrivals {
        direction.transmit(at, bytes, bytes).unwrap()
    }

    #[test]
    fn without_impairments_a_packet_arrives_once_and_unchanged() {
        let mut direction = impaired(Impairments::default());
        for nanos in 0..1000 {
            let at = Time::from_nanos(nanos);
            let packet = Arrival { at, flipped_bit: None };
            let unimpaired = Arrivals { departure: at, packet, duplicate: None };
            assert_eq!(transmit(&mut direction, at, 1500), unimpaired);
        }
        assert_eq!(*direction.impairment_counters(), ImpairmentCounters::default());
        assert!(Impairments::default().is_nothing());
    }

    #[test]
    fn a_packet_held_back_is_late_by_the_configured_time() {
        let reorder_by = Duration::from_millis(3);
        let mut direction =
            impaired(Impairments { reorder: probability(ALWAYS), reorder_by, ..Default::default() });
        let Arrivals { packet, duplicate, .. } = transmit(&mut direction, Time::from_nanos(5), 100);
        assert_eq!((packet.at, packet.flipped_bit), (Time::from_nanos(3_000_005), None));
        assert_eq!((duplicate, direction.impairment_counters().held_back), (None, 1));
    }

    #[test]
    fn each_copy_has_its_own_luck() {
        let mut direction = impaired(Impairments {
            duplicate: probability(ALWAYS),
            corrupt: probability("50%"),
            reorder: probability("50%"),
            reorder_by: Duration::from_secs(1),
        });
        let both = (0..1000).map(|_| transmit(&mut direction, Time::ZERO, 1500));
        let both: Vec<_> = both.map(|arrivals| (arrivals.packet, arrivals.duplicate.unwrap())).collect();
        let late = both.iter().filter(|(packet, copy)| packet.at != copy.at).count();
        let flipped = both.iter().filter(|(packet, copy)| packet.flipped_bit != copy.flipped_bit).count();
        // Half of the pairs differ in what happens to one of them, and two flipped bits are hardly ever the
        // same.
        assert!((400..600).contains(&late) && (650..850).contains(&flipped), "{late}, {flipped}");
        assert_eq!(direction.impairment_counters().duplicated, 1000);
    }

    #[test]
    fn one_bit_of_the_packet_is_flipped_and_none_of_an_empty_one() {
        let mut direction = impaired(Impairments { corrupt: probability(ALWAYS), ..Default::default() });
        for length in 1..200 {
            let mut bytes = vec![0x5a; length];
            transmit(&mut direction, Time::ZERO, length).packet.apply_to(&mut bytes);
            assert_eq!(bytes.iter().map(|byte| (byte ^ 0x5a).count_ones()).sum::<u32>(), 1, "{length}");
        }
        assert_eq!(transmit(&mut direction, Time::ZERO, 0).packet.flipped_bit, None);
        assert_eq!(direction.impairment_counters().corrupted, 199);
    }

    #[test]
    fn the_header_of_a_link_layer_is_never_corrupted() {
        let mut direction = impaired(Impairments { corrupt: probability(ALWAYS), ..Default::default() });
        let bits =
            (0..100).filter_map(|_| direction.transmit(Time::ZERO, 1520, 1).unwrap().packet.flipped_bit);
        assert!(bits.map(|bit| usize::from(bit < 8)).sum::<usize>() == 100);
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
