//! What a packet costs Snoop: `cargo bench -p bentpipe-link --bench snoop`.
//!
//! A download in full-size packets with a window of 500, an acknowledgement for every second packet and
//! duplicates where one is missing. The time includes reading the packets, their checksums among it, as they
//! come from a device. Criterion counts packets of both directions.

#[path = "../tests/common/mod.rs"]
mod common;

use std::collections::VecDeque;
use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::Duration;

use bentpipe_link::IpPacket;
use bentpipe_link::agent::snoop::{Pace, Snoop, SnoopConfig};
use bentpipe_link::agent::{Agent, Outbox};
use bentpipe_units::{ByteCount, Time};
use common::Segment;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const PAYLOAD: u32 = 1448;
const WINDOW: u32 = 500;
const SERVER: (Ipv4Addr, u16) = (Ipv4Addr::new(198, 51, 100, 1), 443);

fn client(flow: u32) -> (Ipv4Addr, u16) {
    (Ipv4Addr::from_bits(0x0a00_0001 + flow), 40_000)
}

/// Packets as bytes in the order in which they pass, and whether they go to the link.
fn traffic(packets: u32, flows: u32, lose_every: Option<u32>) -> Vec<(bool, Vec<u8>)> {
    let mut all = Vec::new();
    let mut receivers: Vec<Receiver> = (0..flows).map(|_| Receiver::default()).collect();
    let mut on_the_way = VecDeque::new();
    for index in 0..packets {
        let (flow, number) = (index % flows, index / flows);
        let data = Segment {
            source: SERVER,
            destination: client(flow),
            seq: number * PAYLOAD,
            ack: 1,
            flags: 0x10,
            window: 500,
            sack: &[],
            payload: PAYLOAD as usize,
        };
        all.push((true, data.bytes()));
        on_the_way.push_back((flow, number, lose_every.is_some_and(|every| index % every == every - 1)));
        if on_the_way.len() as u32 > WINDOW {
            let Some((flow, number, lost)) = on_the_way.pop_front() else { break };
            if let Some(ack) = receivers[flow as usize].receive(flow, number, lost) {
                all.push((false, ack));
            }
        }
    }
    all
}

/// A receiver with one hole at a time, which a retransmission fills a window later.
#[derive(Default)]
struct Receiver {
    hole: Option<u32>,
    since_ack: u32,
}

impl Receiver {
    fn receive(&mut self, flow: u32, number: u32, lost: bool) -> Option<Vec<u8>> {
        if self.hole.is_some_and(|hole| number > hole + WINDOW) {
            self.hole = None;
        }
        if lost {
            self.hole.get_or_insert(number);
            return None;
        }
        let blocks = self.hole.map(|hole| [((hole + 1) * PAYLOAD, (number + 1) * PAYLOAD)]);
        self.since_ack += 1;
        if blocks.is_none() && self.since_ack.is_multiple_of(2) {
            return None;
        }
        let ack = Segment {
            source: client(flow),
            destination: SERVER,
            seq: 1,
            ack: self.hole.unwrap_or(number + 1) * PAYLOAD,
            flags: 0x10,
            window: 500,
            sack: blocks.as_ref().map_or(&[][..], |blocks| &blocks[..]),
            payload: 0,
        };
        Some(ack.bytes())
    }
}

/// With a packet each 0.6 ms, 18 Mbit/s of them are to the link: at this pace they all wait a little.
fn pace() -> Pace {
    Pace { rate: "15Mbit/s".parse().expect("a rate"), queue: ByteCount::new(3_000_000) }
}

fn run(traffic: &[(bool, Vec<u8>)], pace: Option<Pace>) -> u64 {
    let mut snoop = Snoop::new(&SnoopConfig { pace, ..SnoopConfig::with_cache(ByteCount::new(3_000_000)) });
    let mut out = Outbox::default();
    let mut now = Time::ZERO;
    for (to_link, bytes) in traffic {
        now += Duration::from_micros(600);
        if snoop.wake_at() <= now {
            snoop.on_timer(now, &mut out);
        }
        let packet = IpPacket::new(&bytes[..]);
        if *to_link {
            snoop.outbound(now, packet, &mut out);
        } else {
            snoop.inbound(now, packet, &mut out);
        }
        black_box((&out.to_link, &out.to_host));
        out.to_link.clear();
        out.to_host.clear();
    }
    snoop.held_bytes()
}

fn benchmarks(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("snoop");
    group.sample_size(20);
    for (name, flows, lose_every, pace) in [
        ("no losses", 1, None, None),
        ("one in 100 lost", 1, Some(100), None),
        ("one in 100 lost, 1000 flows", 1000, Some(100), None),
        ("one in 100 lost, paced", 1, Some(100), Some(pace())),
        ("one in 100 lost, 1000 flows, paced", 1000, Some(100), Some(pace())),
    ] {
        let traffic = traffic(20_000, flows, lose_every);
        group.throughput(Throughput::Elements(traffic.len() as u64));
        group.bench_function(name, |bencher| bencher.iter(|| run(&traffic, pace)));
    }
    group.finish();
}

criterion_group!(benches, benchmarks);
criterion_main!(benches);
