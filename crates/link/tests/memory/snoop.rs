//! 10⁵ connections through Snoop: its memory has a bound, whatever they do.

use std::net::Ipv4Addr;
use std::time::Duration;

use bentpipe_link::IpPacket;
use bentpipe_link::agent::snoop::{Snoop, SnoopConfig, SnoopCounters};
use bentpipe_link::agent::{Agent, AgentReport, Outbox};
use bentpipe_units::{ByteCount, Time};

use crate::Count;
use crate::common::Segment;

const FLOWS: u32 = 100_000;
/// What a connection may cost beside the packets that are kept: its state, its place in the tables, its
/// alarms.
const BYTES_PER_FLOW: usize = 700;
/// What a kept packet may cost beside its bytes, as a multiple of the cache: full-size packets here.
const CACHE: u64 = 20_000_000;

fn segment(flow: u32, number: u32) -> IpPacket {
    let segment = Segment {
        source: (Ipv4Addr::new(198, 51, 100, 1), 443),
        destination: (Ipv4Addr::from_bits(0x0a00_0000 + flow), 40_000),
        seq: number.wrapping_mul(1000),
        ack: 1,
        flags: 0x10,
        window: 500,
        sack: &[],
        payload: 1000,
    };
    IpPacket::new(segment.bytes())
}

fn acknowledgement(flow: u32, number: u32) -> IpPacket {
    let segment = Segment {
        source: (Ipv4Addr::from_bits(0x0a00_0000 + flow), 40_000),
        destination: (Ipv4Addr::new(198, 51, 100, 1), 443),
        seq: 1,
        ack: number.wrapping_mul(1000),
        flags: 0x10,
        window: 500,
        sack: &[],
        payload: 0,
    };
    IpPacket::new(segment.bytes())
}

fn counters(snoop: &Snoop<IpPacket>) -> SnoopCounters {
    let AgentReport::Snoop(counters) = snoop.report() else { panic!("a Snoop's report") };
    counters
}

#[test]
fn a_hundred_thousand_flows_stay_within_the_bound() {
    let count = Count::begin();
    let config = SnoopConfig { flows: FLOWS as usize, ..SnoopConfig::with_cache(ByteCount::new(CACHE)) };
    let mut snoop = Snoop::new(&config);
    let mut out = Outbox::default();
    let before = count.now();
    let used = || count.now() - before;
    let mut now = Time::ZERO;

    // More flows than there is room for, and more segments than the cache holds.
    for number in 0..3 {
        for flow in 0..FLOWS + 1000 {
            now += Duration::from_micros(1);
            snoop.outbound(now, segment(flow, number), &mut out);
            out.to_link.clear();
        }
    }
    let full = counters(&snoop);
    assert_eq!(full.flows, u64::from(FLOWS));
    assert_eq!(full.flows_passed, 3 * 1000);
    assert!(full.held_bytes <= CACHE && full.held_bytes > CACHE * 9 / 10, "{full:?}");
    let bound = FLOWS as usize * BYTES_PER_FLOW + CACHE as usize * 5 / 4;
    assert!(used() < bound, "{} bytes, {bound} are allowed", used());

    // All is acknowledged: what remains is the flows' own state.
    for flow in 0..FLOWS {
        now += Duration::from_micros(1);
        snoop.inbound(now, acknowledgement(flow, 3), &mut out);
        out.to_host.clear();
    }
    assert_eq!(counters(&snoop).held_bytes, 0);
    now += Duration::from_secs(60);
    snoop.on_timer(now, &mut out);
    eprintln!("{} bytes for each idle flow", used() / FLOWS as usize);
    assert!(used() < FLOWS as usize * BYTES_PER_FLOW, "{} bytes", used());

    // Nobody says anything any more.
    now += Duration::from_secs(300);
    while snoop.wake_at() <= now {
        snoop.on_timer(now, &mut out);
    }
    assert_eq!(counters(&snoop).flows, 0);
}
