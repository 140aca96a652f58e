//! `snoop`, `delayed_dup_acks`, `arq` and `xcp` of a `[[link]]`: what sits at its ends.

use std::time::Duration;

use bentpipe_link::agent::arq::{ArqConfig, Delivery};
use bentpipe_link::agent::delayed_dup_ack::DelayedDupAckConfig;
use bentpipe_link::agent::snoop::{Pace, SnoopConfig};
use bentpipe_link::agent::xcp::{Variant, XcpConfig};
use bentpipe_link::agent::{AgentConfig, LinkEndConfig};
use bentpipe_link::{
    DirectionConfig, Encapsulation, FULL_SIZE_PACKET, LinkConfig, MIN_DEFAULT_QUEUE_PACKETS,
};
use bentpipe_units::{ByteCount, Rate};

use super::document::unknown;
use super::error::Fault;
use super::link::unless;
use super::section::{Field, Section};

const SNOOP_KEYS: [&str; 11] = [
    "at",
    "cache",
    "cache_bdps",
    "retransmissions",
    "copies",
    "timer_floor",
    "flows",
    "hide_sack",
    "hide_congestion",
    "pace",
    "queue",
];
const DELAYED_DUP_ACKS_KEYS: [&str; 4] = ["at", "delay", "flows", "hide_sack"];
const XCP_KEYS: [&str; 7] =
    ["at", "capacity", "variant", "spare_gain", "queue_gain", "shuffled_gain", "max_rtt"];
const ARQ_KEYS: [&str; 5] = ["retransmissions", "delivery", "buffer", "report_every", "report_within"];

/// Snoop's cache where none is given, bandwidth-delay products: a segment is kept for a round trip, which a full queue
/// doubles, and for one more if it is lost.
const DEFAULT_CACHE_BDPS: f64 = 3.0;
/// The most bytes that anything is given: the bound of byte counts.
const MAX_BYTES: f64 = 1e15;
/// The most that one packet is sent again.
const MAX_RETRANSMISSIONS: u64 = 1000;
/// The most copies of one packet that go out at a time.
const MAX_COPIES: u64 = 10;
/// The most connections that an agent looks after.
const MAX_AGENT_FLOWS: u64 = 1_000_000;
const MAX_REPORT_EVERY: u64 = 10_000;
const SHORTEST_TIMER_FLOOR: Duration = Duration::from_millis(1);
/// The shortest bound of the round trips that an XCP router believes.
const SHORTEST_MAX_RTT: Duration = Duration::from_millis(10);
const SHORTEST_REPORT: Duration = Duration::from_micros(1);

/// What sits at the two ends of the link that `section` is about.
pub(super) fn read(
    section: &Section<'_>,
    between: [&str; 2],
    link: &LinkConfig,
) -> Result<[LinkEndConfig; 2], Fault> {
    let mut stations: [LinkEndConfig; 2] = Default::default();
    if let Some((at, snoop)) = read_unless_off(section, "snoop", |field| read_snoop(field, between, link))? {
        stations[at].agents.push(AgentConfig::Snoop(snoop));
    }
    let delayed =
        read_unless_off(section, "delayed_dup_acks", |field| read_delayed_dup_acks(field, between))?;
    if let Some((at, delayed)) = delayed {
        stations[at].agents.push(AgentConfig::DelayedDupAck(delayed));
    }
    // Behind the others, nearest to the link: what they send again passes it too.
    if let Some((at, xcp)) = read_unless_off(section, "xcp", |field| read_xcp(field, between, link))? {
        stations[at].agents.push(AgentConfig::Xcp(xcp));
    }
    let arq = read_unless_off(section, "arq", |field| read_arq(field, link))?;
    stations.iter_mut().for_each(|station| station.arq = arq);
    Ok(stations)
}

pub(super) fn read_unless_off<'a, T>(
    section: &Section<'a>,
    key: &str,
    read: impl FnOnce(&Field<'a>) -> Result<T, Fault>,
) -> Result<Option<T>, Fault> {
    section.read(key, |field| unless(field, "off", read)).map(Option::flatten)
}

/// With the index of its node among the link's two.
fn read_snoop(
    field: &Field<'_>,
    between: [&str; 2],
    link: &LinkConfig,
) -> Result<(usize, SnoopConfig), Fault> {
    let section = field.section(&SNOOP_KEYS)?;
    let at = read_end(&section, between)?;
    let outgoing = [&link.forward, &link.reverse][at];
    let mut config = SnoopConfig::with_cache(read_cache(&section, outgoing, round_trip(link))?);
    section.update("retransmissions", &mut config.retransmissions, read_retransmissions)?;
    section.update("timer_floor", &mut config.timer_floor, |field| field.span_from(SHORTEST_TIMER_FLOOR))?;
    section.update("flows", &mut config.flows, read_flows)?;
    section.update("hide_sack", &mut config.hide_sack, Field::boolean)?;
    section.update("hide_congestion", &mut config.hide_congestion, Field::boolean)?;
    section.update("copies", &mut config.copies, |field| Ok(field.whole(1..=MAX_COPIES)? as u32))?;
    config.pace = read_pace(&section, outgoing, round_trip(link))?;
    Ok((at, config))
}

/// That of the link, unless there is another or none.
fn read_pace(
    section: &Section<'_>,
    outgoing: &DirectionConfig,
    round_trip: Duration,
) -> Result<Option<Pace>, Fault> {
    let queue = section.get("queue");
    let whole_link = outgoing.rate_of_packets();
    let (rate, of_link) = match section.read("pace", |field| unless(field, "off", Field::value::<Rate>))? {
        Some(written) => (written, written),
        None => (whole_link.map(|rate| Pace::for_link(rate, Duration::ZERO).rate), whole_link),
    };
    let (Some(rate), Some(of_link)) = (rate, of_link) else {
        let idle = |queue: Field<'_>| {
            queue.fault(
                "nothing waits without a pace, which is \"off\" or that of a link without a rate: write for example \
                 pace = \"9.8Mbit/s\", or leave queue out",
            )
        };
        return queue.map_or(Ok(None), |queue| Err(idle(queue)));
    };
    let queue = match queue {
        Some(field) => read_bytes(&field)?,
        None if 2.0 * of_link.bps() as f64 / 8.0 * round_trip.as_secs_f64() > MAX_BYTES => {
            let message = format!("two bandwidth-delay products at {of_link} are too much for a queue");
            return Err(section.fault(format!("{message}: write for example queue = \"2MB\"")));
        }
        None => Pace::for_link(of_link, round_trip).queue,
    };
    Ok(Some(Pace { rate, queue }))
}

fn read_cache(
    section: &Section<'_>,
    outgoing: &DirectionConfig,
    round_trip: Duration,
) -> Result<ByteCount, Fault> {
    let bdps = section.read("cache_bdps", Field::positive)?;
    match section.get("cache") {
        Some(field) if bdps.is_some() => Err(field.fault("give either cache or cache_bdps, not both")),
        Some(field) => read_bytes(&field),
        None => of_bdps(bdps.unwrap_or(DEFAULT_CACHE_BDPS), outgoing, round_trip)
            .map_err(|message| section.fault(format!("{message}: write for example cache = \"2MB\""))),
    }
}

/// So many bandwidth-delay products, but no fewer full packets than the shortest queue has.
fn of_bdps(bdps: f64, outgoing: &DirectionConfig, round_trip: Duration) -> Result<ByteCount, String> {
    let rate = outgoing.rate.ok_or(
        "cache is missing, and without a rate the link has no bandwidth-delay product to make it of",
    )?;
    let bytes = bdps * rate.bps() as f64 / 8.0 * round_trip.as_secs_f64();
    if bytes > MAX_BYTES {
        return Err(format!("a cache of {bdps} bandwidth-delay products is {bytes:.0e} bytes"));
    }
    Ok(ByteCount::new((bytes as u64).max(MIN_DEFAULT_QUEUE_PACKETS * FULL_SIZE_PACKET.get())))
}

/// With the index of its node among the link's two.
fn read_delayed_dup_acks(
    field: &Field<'_>,
    between: [&str; 2],
) -> Result<(usize, DelayedDupAckConfig), Fault> {
    let section = field.section(&DELAYED_DUP_ACKS_KEYS)?;
    let at = read_end(&section, between)?;
    let delay = section.required("delay", "\"600ms\"")?.span()?;
    let mut config = DelayedDupAckConfig::with_delay(delay);
    section.update("flows", &mut config.flows, read_flows)?;
    section.update("hide_sack", &mut config.hide_sack, Field::boolean)?;
    Ok((at, config))
}

/// With the index of its node among the link's two.
fn read_xcp(field: &Field<'_>, between: [&str; 2], link: &LinkConfig) -> Result<(usize, XcpConfig), Fault> {
    let section = field.section(&XCP_KEYS)?;
    let at = read_end(&section, between)?;
    let outgoing = [&link.forward, &link.reverse][at];
    // What an encapsulation leaves of the rate depends on the packets.
    let default = outgoing.rate.filter(|_| outgoing.encapsulation == Encapsulation::default());
    let capacity = section.read("capacity", Field::value)?.or(default).ok_or_else(|| {
        let what = "capacity is missing, and it is not that of the link, which has no rate or encapsulates";
        section.fault(format!("{what}: write for example capacity = \"10Mbit/s\""))
    })?;
    let mut config = XcpConfig::with_capacity(capacity);
    section.update("variant", &mut config.variant, read_variant)?;
    section.update("spare_gain", &mut config.gains.spare, Field::positive)?;
    section.update("queue_gain", &mut config.gains.queue, Field::positive)?;
    section.update("shuffled_gain", &mut config.gains.shuffled, Field::positive)?;
    section.update("max_rtt", &mut config.max_rtt, |field| field.span_from(SHORTEST_MAX_RTT))?;
    Ok((at, config))
}

fn read_variant(field: &Field<'_>) -> Result<Variant, Fault> {
    match field.text()? {
        "xcp" => Ok(Variant::Xcp),
        "p-xcp" => Ok(Variant::PXcp),
        other => Err(field.fault(format!("\"{other}\" is not a variant of XCP: choose xcp or p-xcp"))),
    }
}

fn read_arq(field: &Field<'_>, link: &LinkConfig) -> Result<ArqConfig, Fault> {
    let section = field.section(&ARQ_KEYS)?;
    let fastest = link.forward.rate.max(link.reverse.rate);
    let in_flight = fastest.map_or(0.0, |rate| rate.bps() as f64 / 8.0 * round_trip(link).as_secs_f64());
    if in_flight * 4.0 > MAX_BYTES {
        let message = format!("{in_flight:.0e} bytes would be on the link: lower its rate or its delay");
        return Err(section.fault(message));
    }
    let mut config = ArqConfig::for_link(link);
    section.update("retransmissions", &mut config.retransmissions, read_retransmissions)?;
    section.update("delivery", &mut config.delivery, read_delivery)?;
    section.update("buffer", &mut config.buffer, read_bytes)?;
    section.update("report_every", &mut config.report_every, |field| {
        Ok(field.whole(1..=MAX_REPORT_EVERY)? as u32)
    })?;
    section.update("report_within", &mut config.report_within, |field| field.span_from(SHORTEST_REPORT))?;
    Ok(config)
}

fn read_delivery(field: &Field<'_>) -> Result<Delivery, Fault> {
    match field.text()? {
        "in-order" => Ok(Delivery::InOrder),
        "immediate" => Ok(Delivery::Immediate),
        other => Err(field.fault(format!("\"{other}\" is not a delivery: choose in-order or immediate"))),
    }
}

/// Which of the link's two nodes `at` names.
pub(super) fn read_end(section: &Section<'_>, between: [&str; 2]) -> Result<usize, Fault> {
    let field = section.required("at", &format!("\"{}\"", between[0]))?;
    let name = field.text()?;
    let end = between.iter().position(|&node| node == name);
    end.ok_or_else(|| field.fault(format!("{}: name one of the link's two nodes", unknown(name, &between))))
}

fn read_bytes(field: &Field<'_>) -> Result<ByteCount, Fault> {
    let bytes = field.value::<ByteCount>()?;
    if bytes >= FULL_SIZE_PACKET {
        return Ok(bytes);
    }
    Err(field.fault(format!("{bytes} is not even a packet: write 1500B, a full packet, or more")))
}

fn read_retransmissions(field: &Field<'_>) -> Result<u32, Fault> {
    Ok(field.whole(0..=MAX_RETRANSMISSIONS)? as u32)
}

fn read_flows(field: &Field<'_>) -> Result<usize, Fault> {
    Ok(field.whole(1..=MAX_AGENT_FLOWS)? as usize)
}

pub(super) fn round_trip(link: &LinkConfig) -> Duration {
    link.forward.delay + link.reverse.delay
}
