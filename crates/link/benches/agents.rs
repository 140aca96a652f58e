//! What agents cost: `cargo bench -p bentpipe-link --bench agents`. Time is virtual; the figure is the
//! processor's time for one packet.

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::Duration;

use bentpipe_link::agent::arq::{Arq, ArqConfig, ArqFrame, Delivery};
use bentpipe_link::agent::delayed_dup_ack::{DelayedDupAck, DelayedDupAckConfig};
use bentpipe_link::agent::{Agent, AgentReport, Outbox};
use bentpipe_link::ip::internet_checksum;
use bentpipe_link::{Direction, DirectionConfig, Fate, IpPacket, LinkConfig};
use bentpipe_units::{Probability, Time};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

/// 12 Mbit/s of full-size packets over a geostationary link.
const GAP: Duration = Duration::from_millis(1);
const RTT: Duration = Duration::from_millis(600);

fn arq(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("arq pair");
    group.throughput(Throughput::Elements(1));
    let packet = segment(1, 1, &[], 1460);
    for (name, per, delivery) in [
        ("PER 0", 0.0, Delivery::InOrder),
        ("PER 1%", 0.01, Delivery::InOrder),
        ("PER 1%, immediate delivery", 0.01, Delivery::Immediate),
    ] {
        let mut pair = Pair::new(per, delivery);
        group.bench_function(name, |bencher| bencher.iter(|| pair.carry(black_box(packet.clone()))));
    }
    group.finish();
}

fn delayed_dup_ack(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("delayed dup-ACKs");
    group.throughput(Throughput::Elements(1));
    // A hundred ACKs of each flow, over and over. With holes, the numbers stand still for forty of them and
    // advance then.
    for (name, flows, has_holes) in
        [("1 flow", 1, false), ("1 flow with holes", 1, true), ("10000 flows with holes", 10_000, true)]
    {
        let acks: Vec<IpPacket> = (0..flows).flat_map(|flow| acks_of(flow, has_holes)).collect();
        let mut agent = DelayedDupAck::new(&DelayedDupAckConfig::with_delay(RTT));
        let mut out = Outbox::default();
        let mut now = Time::ZERO;
        // One of each flow after the other, which is unkind to the caches, as the world is.
        let order = (0..100).flat_map(|ack| (0..flows as usize).map(move |flow| flow * 100 + ack));
        let order: Vec<usize> = order.collect();
        let mut next = order.iter().cycle();
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                now += Duration::from_micros(10);
                if agent.wake_at() <= now {
                    agent.on_timer(now, &mut out);
                }
                let packet = acks[*next.next().unwrap_or(&0)].clone();
                agent.outbound(now, black_box(packet), &mut out);
                out.to_link.clear();
            });
        });
        let AgentReport::DelayedDupAck(counters) = agent.report() else { continue };
        assert_eq!(counters.held > 0, has_holes, "{counters:?}");
    }
    group.finish();
}

/// Parsing and checksum: what comes before any agent.
fn reading(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("reading");
    group.throughput(Throughput::Elements(1));
    for (name, packet) in
        [("an ACK with SACK", segment(1, 1, &[(5, 9)], 0)), ("1500 bytes", segment(1, 1, &[], 1460))]
    {
        group.bench_function(name, |bencher| bencher.iter(|| IpPacket::new(black_box(packet.bytes()))));
    }
    group.finish();
}

/// Two ARQs and a link.
struct Pair {
    ends: [Arq<IpPacket>; 2],
    directions: [Direction; 2],
    links: [VecDeque<(Time, ArqFrame<IpPacket>)>; 2],
    now: Time,
}

impl Pair {
    fn new(per: f64, delivery: Delivery) -> Self {
        let per = Probability::new(per).expect("a probability");
        let direction = DirectionConfig { delay: RTT / 2, per, ..Default::default() };
        let link = LinkConfig { forward: direction.clone(), reverse: direction.clone() };
        let config = ArqConfig { delivery, ..ArqConfig::for_link(&link) };
        Self {
            ends: [(); 2].map(|()| Arq::new(&config)),
            directions: [1, 2].map(|seed| Direction::new(&direction, seed)),
            links: Default::default(),
            now: Time::ZERO,
        }
    }

    /// Sends a packet, and lets a millisecond pass.
    fn carry(&mut self, packet: IpPacket) {
        self.now += GAP;
        for from in 0..2 {
            while self.links[from].front().is_some_and(|(at, _)| *at <= self.now) {
                if let Some((_, frame)) = self.links[from].pop_front() {
                    self.ends[1 - from].on_frame(self.now, frame);
                }
            }
            if self.ends[from].wake_at() <= self.now {
                self.ends[from].on_timer(self.now);
            }
        }
        self.ends[0].send(self.now, packet);
        for from in 0..2 {
            while let Some(frame) = self.ends[from].poll_frame() {
                if let Fate::Deliver { at } = self.directions[from].offer(self.now, frame.length()) {
                    self.links[from].push_back((at, frame));
                }
            }
        }
        while let Some(packet) = self.ends[1].poll_packet() {
            black_box(packet);
        }
    }
}

fn acks_of(flow: u32, has_holes: bool) -> impl Iterator<Item = IpPacket> {
    (0..100u32).map(move |index| match index {
        10..50 if has_holes => segment(flow, 10, &[(20, 21 + index)], 0),
        _ => segment(flow, index, &[], 0),
    })
}

/// A segment from one of many ports and addresses. Acknowledgement numbers are counted in hundredths of their
/// space, so that a hundred of them lead back to the first.
fn segment(flow: u32, ack: u32, sack: &[(u32, u32)], payload: usize) -> IpPacket {
    const STEP: u32 = u32::MAX / 100 + 1;
    let mut tcp = vec![0; 20];
    tcp[..4].copy_from_slice(&[(flow >> 8) as u8, flow as u8, 0, 80]);
    tcp[8..12].copy_from_slice(&(ack * STEP).to_be_bytes());
    (tcp[13], tcp[15]) = (0x10, 0xff);
    for &(start, end) in sack {
        tcp.extend([1, 1, 5, 10]);
        [start, end].iter().for_each(|edge| tcp.extend(edge.wrapping_mul(STEP).to_be_bytes()));
    }
    tcp[12] = (tcp.len() as u8) << 2;
    tcp.resize(tcp.len() + payload, 0);
    let mut ip = [0; 20];
    (ip[0], ip[8], ip[9]) = (0x45, 64, 6);
    ip[2..4].copy_from_slice(&(20 + tcp.len() as u16).to_be_bytes());
    ip[12..20].copy_from_slice(&[10, 0, (flow >> 16) as u8, 1, 192, 0, 2, 1]);
    let length = (tcp.len() as u16).to_be_bytes();
    let checksum = internet_checksum(&[&ip[12..20], &[0, 6], &length, &tcp].concat());
    tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
    IpPacket::new([&ip[..], &tcp].concat())
}

criterion_group!(benches, arq, delayed_dup_ack, reading);
criterion_main!(benches);
