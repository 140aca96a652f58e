//! Our side: scenarios with the links of `peers/ns3`, and endpoints with the defaults of ns-3.

use std::time::Duration;

use bentpipe_link::{DirectionConfig, Encapsulation, LinkConfig};
use bentpipe_sim::scenario::{FlowSpec, Hop, LegSpec, LinkSpec, Scenario, Side};
use bentpipe_tcp::congestion::Algorithm;
use bentpipe_tcp::{Config, Recovery, RtoLimits, SynSchedule};
use bentpipe_units::{ByteCount, Probability, Rate, Time};

/// The bottleneck of every comparison.
pub(crate) const RATE: Rate = Rate::mbps(10);
/// A full-size packet on the line: 1448 bytes, their headers with timestamps, and 2 bytes of PPP.
pub(crate) const FULL_PACKET: u64 = 1502;
/// The bytes that ns-3's point-to-point device adds to each packet.
const PPP: ByteCount = ByteCount::new(2);

/// The defaults of ns-3's TCP: an initial window of ten segments, an
/// acknowledgement for every second segment or after 200 ms, a timeout of 1 s to 60 s, SYNs at 0, 3, 9, 21,
/// 45 and 93 s.
pub(crate) fn as_ns3() -> Config {
    let syn = SynSchedule { first: Duration::from_secs(3), waits: Some(6), ..SynSchedule::NS };
    Config {
        mss: 1460,
        initial_window: 10,
        send_buffer: 13_000_000,
        receive_buffer: 13_000_000,
        delayed_ack: Some(Duration::from_millis(200)),
        nagle: false,
        byte_counting_limit: None,
        rto: RtoLimits { max: Duration::from_secs(60), ..RtoLimits::RFC6298 },
        retries: Some(6),
        syn,
        syn_ack: syn,
        recovery: Recovery::Sack,
        congestion: Algorithm::NewReno,
        ..Config::default()
    }
}

/// The drop-tail limit that holds as many full-size packets as ns-3's queue of `bytes`. Ours counts the
/// packet that is being sent with what is left of it, ns-3's does not count it; rounded to whole packets the
/// two refuse the same ones.
pub(crate) fn queue_like_ns3(bytes: u64) -> ByteCount {
    ByteCount::new((bytes / FULL_PACKET + 1) * FULL_PACKET)
}

/// A direction of a link as in ns-3.
pub(crate) fn direction(rate: Rate, delay: Duration, queue_bytes: u64, per: Probability) -> DirectionConfig {
    DirectionConfig {
        rate: Some(rate),
        delay,
        queue: Some(queue_like_ns3(queue_bytes)),
        per,
        encapsulation: Encapsulation { overhead: PPP, frame: None },
        ..DirectionConfig::default()
    }
}

/// One link between two hosts.
pub(crate) fn one_link(forward: DirectionConfig, reverse: DirectionConfig, limit: Duration) -> Scenario {
    Scenario {
        title: "one link".into(),
        duration: limit,
        sample_interval: Duration::from_millis(100),
        nodes: vec!["sender".into(), "receiver".into()],
        links: vec![link("link", [0, 1], LinkConfig { forward, reverse })],
        flows: Vec::new(),
        udp: Vec::new(),
    }
}

/// A link by name between two nodes.
pub(crate) fn link(name: impl Into<String>, between: [usize; 2], config: LinkConfig) -> LinkSpec {
    LinkSpec {
        name: name.into(),
        between,
        config,
        ends: Default::default(),
        shared: [None, None],
        protect: None,
    }
}

/// A flow over some links, all of them forwards, from the time zero on.
pub(crate) fn flow(name: impl Into<String>, links: &[usize], bytes: Option<u64>, config: Config) -> FlowSpec {
    let path = links.iter().map(|&link| Hop { link, forward: true }).collect();
    FlowSpec {
        name: name.into(),
        bytes,
        start: Time::ZERO,
        start_within: Duration::ZERO,
        opened_by: Side::Source,
        legs: vec![LegSpec { path, sender: config, receiver: config }],
        splitters: Vec::new(),
        bundles: None,
    }
}
