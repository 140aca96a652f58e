//! The link and its two directions: configuration, state, and the path of a packet through the effects.

use std::time::Duration;

use bentpipe_units::{ByteCount, Probability, Rate, Time};

use crate::loss::{BurstErrors, PacketErrors};
use crate::random::derive_seeds;
use crate::transmitter::Transmitter;
use crate::{Cause, Counters, Encapsulation, Fate, GilbertElliott, OutageTrace};

/// A satellite link: two directions, which may differ in everything.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LinkConfig {
    /// From the gateway to the terminal.
    pub forward: DirectionConfig,
    /// From the terminal to the gateway.
    pub reverse: DirectionConfig,
}

/// A running link. The directions share nothing but the seed from which their random streams are derived.
#[derive(Debug, Clone)]
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
    /// When the sky is obstructed.
    pub outages: OutageTrace,
    /// What the link layer adds to each packet.
    pub encapsulation: Encapsulation,
}

/// IP bytes of a full-size packet: the Ethernet MTU (RFC 894).
pub const FULL_SIZE_PACKET: ByteCount = ByteCount::new(1500);

/// The default queue takes at least this many full-size packets.
///
/// On a short link one BDP is a packet or two, which not even the initial window of ten segments (RFC 6928)
/// passes.
pub const MIN_DEFAULT_QUEUE_PACKETS: u64 = 16;

impl DirectionConfig {
    /// The drop-tail limit in wire bytes: `queue` if given, else one bandwidth-delay product, but at least
    /// [`MIN_DEFAULT_QUEUE_PACKETS`] full-size packets. `None` where the rate is infinite and nothing is
    /// given.
    pub fn queue_limit(&self) -> Option<ByteCount> {
        let wire_packet = self.encapsulation.wire_bytes(FULL_SIZE_PACKET.get());
        let default = |bdp: ByteCount| ByteCount::new(bdp.get().max(MIN_DEFAULT_QUEUE_PACKETS * wire_packet));
        self.queue.or_else(|| self.bdp().map(default))
    }

    /// The bandwidth-delay product in wire bytes: `rate` times the round trip of `2·delay`, as if the other
    /// direction were as long as this one. `None` where the rate is infinite.
    pub fn bdp(&self) -> Option<ByteCount> {
        self.rate.map(|rate| ByteCount::new(rate.bytes_in(self.delay.saturating_mul(2))))
    }

    /// What the encapsulation leaves of the rate for the IP bytes of full-size packets. `None` where the rate is infinite.
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
#[derive(Debug, Clone)]
pub struct Direction {
    encapsulation: Encapsulation,
    transmitter: Option<Transmitter>,
    outages: OutageTrace,
    burst_errors: Option<BurstErrors>,
    packet_errors: PacketErrors,
    delay: Duration,
    latest: Time,
    counters: Counters,
}

impl Direction {
    /// A direction at rest. The same `config` and `seed` give the same fates to the same packets.
    ///
    /// Bursts and packet errors have generators of their own, so switching one effect on or off does not
    /// change which of the packets sent another one hits: two runs that differ in one parameter share the
    /// rest of their luck. A packet that the queue drops is not sent: the radio never sees it, and it uses up
    /// no luck.
    pub fn new(config: &DirectionConfig, seed: u64) -> Self {
        let [burst_seed, packet_seed] = derive_seeds(seed);
        Self {
            encapsulation: config.encapsulation,
            transmitter: config.rate.map(|rate| Transmitter::new(rate, config.queue_limit())),
            outages: config.outages.clone(),
            burst_errors: config.gilbert_elliott.map(|model| BurstErrors::new(model, burst_seed)),
            packet_errors: PacketErrors::new(config.per, packet_seed),
            delay: config.delay,
            latest: Time::ZERO,
            counters: Counters::default(),
        }
    }

    /// Decides what becomes of a packet of `bytes` (IP length) that arrives at the transmitter `now`.
    ///
    /// Time never goes back: a `now` before that of an earlier call is taken as the latest one.
    pub fn offer(&mut self, now: Time, bytes: usize) -> Fate {
        self.latest = self.latest.max(now);
        let bytes = bytes as u64;
        let fate = match self.send(bytes) {
            Some(departure) => self.cross(departure),
            None => Fate::Drop(Cause::QueueFull),
        };
        self.counters.count(bytes, fate);
        fate
    }

    /// What this direction has done so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Wire bytes that wait or are being sent at `now`. The packet being sent counts with the part that has
    /// not left.
    pub fn backlog(&self, now: Time) -> ByteCount {
        let now = now.max(self.latest);
        ByteCount::new(self.transmitter.as_ref().map_or(0, |transmitter| transmitter.backlog(now)))
    }

    /// Queue and transmitter: when the last bit leaves, or nothing if the queue is full.
    fn send(&mut self, bytes: u64) -> Option<Time> {
        let wire_bytes = self.encapsulation.wire_bytes(bytes);
        let departure = match &mut self.transmitter {
            Some(transmitter) => transmitter.send(self.latest, wire_bytes)?,
            None => self.latest,
        };
        self.counters.wire_bytes += wire_bytes;
        Some(departure)
    }

    /// The radio, for a packet whose last bit leaves at `departure`.
    fn cross(&mut self, departure: Time) -> Fate {
        // Both draws are made for every packet sent, also for one that is lost anyway: see `new`.
        let burst_error = self.burst_errors.as_mut().is_some_and(BurstErrors::lose_next);
        let packet_error = self.packet_errors.lose_next();
        if self.outages.covers(departure) {
            Fate::Drop(Cause::Outage)
        } else if burst_error {
            Fate::Drop(Cause::BurstError)
        } else if packet_error {
            Fate::Drop(Cause::PacketError)
        } else {
            Fate::Deliver { at: departure + self.delay }
        }
    }
}
