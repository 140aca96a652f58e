//! `snoop`, `delayed_dup_acks`, `ack_filter`, `arq` and `xcp` of a `[[link]]`: the agents at its ends.

use std::time::Duration;

use bentpipe_config::{Bytes, InTable, Off, Or, Plain, Positive, Problem, SpanFrom, Whole, Written, unknown};
use bentpipe_link::agent::ack_filter::AckFilterConfig;
use bentpipe_link::agent::arq::{ArqConfig, Delivery};
use bentpipe_link::agent::delayed_dup_ack::DelayedDupAckConfig;
use bentpipe_link::agent::snoop::{Detection, Pace, SnoopConfig};
use bentpipe_link::agent::xcp::{Variant, XcpConfig};
use bentpipe_link::agent::{AgentConfig, LinkEndConfig};
use bentpipe_link::{
    DirectionConfig, Encapsulation, FULL_SIZE_PACKET, LinkConfig, MIN_DEFAULT_QUEUE_PACKETS,
};
use bentpipe_units::{ByteCount, Probability, Rate};
use serde::Deserialize;

use super::overlay;

/// Snoop's cache where none is given, bandwidth-delay products: a segment is kept for a round trip, which a
/// full queue doubles, and for one more if it is lost.
const DEFAULT_CACHE_BDPS: f64 = 3.0;
/// The most bytes that anything is given: the bound of byte counts.
const MAX_BYTES: u64 = 1_000_000_000_000_000;
const PACKET: u64 = FULL_SIZE_PACKET.get();

/// Memory for at least a packet.
type PacketBytes = Bytes<PACKET, MAX_BYTES>;
/// How often one packet is sent again.
type Retransmissions = Whole<u32, 0, 1000>;
/// How many connections an agent serves.
type Flows = Whole<usize, 1, 1_000_000>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Snoop {
    at: String,
    cache: Option<PacketBytes>,
    cache_bdps: Option<Positive>,
    retransmissions: Option<Retransmissions>,
    copies: Option<Whole<u32, 1, 10>>,
    timer_floor: Option<SpanFrom<1_000_000>>,
    flows: Option<Flows>,
    hide_sack: Option<bool>,
    hide_congestion: Option<bool>,
    detection: Option<SnoopDetection>,
    pace: Option<Or<Off, Written<Rate>>>,
    queue: Option<PacketBytes>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum SnoopDetection {
    Order,
    Published,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DelayedDupAcks {
    at: String,
    delay: SpanFrom<0>,
    flows: Option<Flows>,
    hide_sack: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AckFilter {
    at: String,
    rate: Option<Written<Rate>>,
    delay: Option<SpanFrom<0>>,
    flows: Option<Flows>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Xcp {
    at: String,
    capacity: Option<Written<Rate>>,
    variant: Option<XcpVariant>,
    spare_gain: Option<Positive>,
    queue_gain: Option<Positive>,
    shuffled_gain: Option<Positive>,
    max_rtt: Option<SpanFrom<10_000_000>>,
    idle_offer: Option<Written<Probability>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum XcpVariant {
    Xcp,
    PXcp,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arq {
    retransmissions: Option<Retransmissions>,
    delivery: Option<ArqDelivery>,
    buffer: Option<PacketBytes>,
    report_every: Option<Whole<u32, 1, 10_000>>,
    report_within: Option<SpanFrom<1_000>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ArqDelivery {
    InOrder,
    Immediate,
}

/// A link, as the agents at its ends see it.
pub(super) struct LinkView<'a> {
    /// The names of its nodes.
    pub(super) between: [&'a str; 2],
    pub(super) config: &'a LinkConfig,
}

impl LinkView<'_> {
    /// Which of the two nodes `at` names, and the direction that leads away from it.
    pub(super) fn end(&self, at: &str) -> Result<(usize, &DirectionConfig), Problem> {
        let end = self.between.iter().position(|&node| node == at).ok_or_else(|| {
            let message = format!("{}: name one of the link's two nodes", unknown(at, &self.between));
            Problem::of("at", message)
        })?;
        Ok((end, [&self.config.forward, &self.config.reverse][end]))
    }

    pub(super) fn round_trip(&self) -> Duration {
        self.config.forward.delay + self.config.reverse.delay
    }

    fn bytes_in_flight(&self, rate: Option<Rate>) -> f64 {
        rate.map_or(0.0, |rate| rate.bps() as f64 / 8.0 * self.round_trip().as_secs_f64())
    }
}

/// The rate of a direction without encapsulation, with which it would depend on the size of packets.
pub(super) fn plain_rate(direction: &DirectionConfig) -> Option<Rate> {
    direction.rate.filter(|_| direction.encapsulation == Encapsulation::default())
}

/// The agents and ARQs at the two ends of a link.
pub(super) fn link_ends(
    link: &LinkView<'_>,
    snoop: Option<Or<Off, Snoop>>,
    delayed_dup_acks: Option<Or<Off, DelayedDupAcks>>,
    ack_filter: Option<Or<Off, AckFilter>>,
    xcp: Option<Or<Off, Xcp>>,
    arq: Option<Or<Off, Arq>>,
) -> Result<[LinkEndConfig; 2], Problem> {
    let mut ends: [LinkEndConfig; 2] = Default::default();
    if let Some(snoop) = snoop.and_then(|snoop| snoop.value) {
        let (at, config) = snoop.read(link).inside("snoop")?;
        ends[at].agents.push(AgentConfig::Snoop(config));
    }
    if let Some(delayed) = delayed_dup_acks.and_then(|delayed| delayed.value) {
        let (at, config) = delayed.read(link).inside("delayed_dup_acks")?;
        ends[at].agents.push(AgentConfig::DelayedDupAck(config));
    }
    // Of duplicate ACKs it sees those that have not been dropped.
    if let Some(filter) = ack_filter.and_then(|filter| filter.value) {
        let (at, config) = filter.read(link).inside("ack_filter")?;
        ends[at].agents.push(AgentConfig::AckFilter(config));
    }
    // After the others, nearest to the link: their retransmissions pass it too.
    if let Some(xcp) = xcp.and_then(|xcp| xcp.value) {
        let (at, config) = xcp.read(link).inside("xcp")?;
        ends[at].agents.push(AgentConfig::Xcp(config));
    }
    if let Some(arq) = arq.and_then(|arq| arq.value) {
        let config = arq.read(link).inside("arq")?;
        ends.iter_mut().for_each(|end| end.arq = Some(config));
    }
    Ok(ends)
}

impl Snoop {
    fn read(self, link: &LinkView<'_>) -> Result<(usize, SnoopConfig), Problem> {
        let (at, outgoing) = link.end(&self.at)?;
        let mut config = SnoopConfig::with_cache(self.cache(outgoing, link)?);
        config.pace = self.pace(outgoing, link)?;
        match self.detection {
            Some(SnoopDetection::Order) => config.detection = Detection::Order,
            Some(SnoopDetection::Published) => config.detection = Detection::Published,
            None => {}
        }
        overlay!(self => config; retransmissions timer_floor flows hide_sack hide_congestion copies);
        Ok((at, config))
    }

    fn cache(&self, outgoing: &DirectionConfig, link: &LinkView<'_>) -> Result<ByteCount, Problem> {
        let example = |what: String| Problem::new(format!("{what}: write for example cache = \"2MB\""));
        let bdps = match (self.cache, self.cache_bdps) {
            (Some(_), Some(_)) => {
                return Err(Problem::of("cache", "give either cache or cache_bdps, not both"));
            }
            (Some(cache), None) => return Ok(cache.get()),
            (None, bdps) => bdps.map_or(DEFAULT_CACHE_BDPS, Plain::get),
        };
        if outgoing.rate.is_none() {
            let what =
                "cache is missing, and without a rate the link has no bandwidth-delay product to make it of";
            return Err(example(what.into()));
        }
        let bytes = bdps * link.bytes_in_flight(outgoing.rate);
        if bytes > MAX_BYTES as f64 {
            return Err(example(format!("a cache of {bdps} bandwidth-delay products is {bytes:.0e} bytes")));
        }
        // No fewer full packets than the shortest queue has.
        Ok(ByteCount::new((bytes as u64).max(MIN_DEFAULT_QUEUE_PACKETS * PACKET)))
    }

    /// The link's rate by default.
    fn pace(&self, outgoing: &DirectionConfig, link: &LinkView<'_>) -> Result<Option<Pace>, Problem> {
        let of_link = outgoing.rate_of_packets();
        let (rate, of_link) = match self.pace {
            Some(Or { value, .. }) => (value.map(Plain::get), value.map(Plain::get)),
            None => (of_link.map(|rate| Pace::for_link(rate, Duration::ZERO).rate), of_link),
        };
        let (Some(rate), Some(of_link)) = (rate, of_link) else {
            let idle = "nothing waits without a pace, which is \"off\" or that of a link without a rate: \
                write for example \
                        pace = \"9.8Mbit/s\", or leave queue out";
            return if self.queue.is_some() { Err(Problem::of("queue", idle)) } else { Ok(None) };
        };
        let queue = match self.queue {
            Some(queue) => queue.get(),
            None if 2.0 * link.bytes_in_flight(Some(of_link)) > MAX_BYTES as f64 => {
                let what = format!("two bandwidth-delay products at {of_link} are too much for a queue");
                return Err(Problem::new(format!("{what}: write for example queue = \"2MB\"")));
            }
            None => Pace::for_link(of_link, link.round_trip()).queue,
        };
        Ok(Some(Pace { rate, queue }))
    }
}

impl DelayedDupAcks {
    fn read(self, link: &LinkView<'_>) -> Result<(usize, DelayedDupAckConfig), Problem> {
        let (at, _) = link.end(&self.at)?;
        let mut config = DelayedDupAckConfig::with_delay(self.delay.get());
        overlay!(self => config; flows hide_sack);
        Ok((at, config))
    }
}

impl AckFilter {
    fn read(self, link: &LinkView<'_>) -> Result<(usize, AckFilterConfig), Problem> {
        let (at, outgoing) = link.end(&self.at)?;
        let written = self.rate.map(|rate| AckFilterConfig::with_rate(rate.get()));
        let of_link = || outgoing.rate_of_packets().map(AckFilterConfig::for_link);
        let mut config = written.or_else(of_link).ok_or_else(|| {
            let what = "rate is missing, and that way the link has none, so that nothing has to wait";
            Problem::new(format!("{what}: write for example rate = \"200kbit/s\""))
        })?;
        overlay!(self => config; delay flows);
        Ok((at, config))
    }
}

impl Xcp {
    fn read(self, link: &LinkView<'_>) -> Result<(usize, XcpConfig), Problem> {
        let (at, outgoing) = link.end(&self.at)?;
        let capacity = self.capacity.map(Plain::get).or(plain_rate(outgoing)).ok_or_else(|| {
            let what =
                "capacity is missing, and it is not that of the link, which has no rate or encapsulates";
            Problem::new(format!("{what}: write for example capacity = \"10Mbit/s\""))
        })?;
        let mut config = XcpConfig::with_capacity(capacity);
        match self.variant {
            Some(XcpVariant::Xcp) => config.variant = Variant::Xcp,
            Some(XcpVariant::PXcp) => config.variant = Variant::PXcp,
            None => {}
        }
        let gains = &mut config.gains;
        for (gain, written) in [
            (&mut gains.spare, self.spare_gain),
            (&mut gains.queue, self.queue_gain),
            (&mut gains.shuffled, self.shuffled_gain),
        ] {
            *gain = written.map_or(*gain, Plain::get);
        }
        overlay!(self => config; max_rtt);
        config.idle_offer = self.idle_offer.map_or(config.idle_offer, |offer| offer.get().get());
        Ok((at, config))
    }
}

impl Arq {
    fn read(self, link: &LinkView<'_>) -> Result<ArqConfig, Problem> {
        let in_flight = link.bytes_in_flight(link.config.forward.rate.max(link.config.reverse.rate));
        if in_flight * 4.0 > MAX_BYTES as f64 {
            let message = format!("{in_flight:.0e} bytes would be on the link: lower its rate or its delay");
            return Err(Problem::new(message));
        }
        let mut config = ArqConfig::for_link(link.config);
        match self.delivery {
            Some(ArqDelivery::InOrder) => config.delivery = Delivery::InOrder,
            Some(ArqDelivery::Immediate) => config.delivery = Delivery::Immediate,
            None => {}
        }
        overlay!(self => config; retransmissions buffer report_every report_within);
        Ok(config)
    }
}
