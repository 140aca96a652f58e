//! What connections take: counted by an allocator.

use std::net::Ipv4Addr;
use std::time::Duration;

use bentpipe_link::IpPacket;
use bentpipe_link::agent::delayed_dup_ack::{DelayedDupAck, DelayedDupAckConfig};
use bentpipe_link::agent::{Agent, AgentReport, Outbox};
use bentpipe_link::ip::internet_checksum;
use bentpipe_units::Time;

use crate::Count;

/// An ACK of 1000 from one of many ports and addresses.
fn ack(connection: u32) -> IpPacket {
    let source = Ipv4Addr::from(0x0a00_0000 + connection / 50_000);
    let mut bytes = [0; 40];
    (bytes[0], bytes[3], bytes[8], bytes[9]) = (0x45, 40, 64, 6);
    bytes[12..16].copy_from_slice(&source.octets());
    bytes[16..20].copy_from_slice(&[192, 0, 2, 1]);
    bytes[20..22].copy_from_slice(&((connection % 50_000) as u16 + 1024).to_be_bytes());
    bytes[23] = 80;
    bytes[30] = 3;
    (bytes[32], bytes[33]) = (0x50, 0x10);
    let pseudo_header = [&bytes[12..20], &[0, 6, 0, 20]].concat();
    let checksum = internet_checksum(&[&pseudo_header, &bytes[20..]].concat());
    bytes[36..38].copy_from_slice(&checksum.to_be_bytes());
    IpPacket::new(&bytes[..])
}

/// A hundred thousand connections of real packets are 35 MB at the most, also while the tables grow; and the
/// duplicate ACKs that may be held are 20 MB more, however many connections there are.
#[test]
fn a_hundred_thousand_connections_stay_within_the_documented_bound() {
    const CONNECTIONS: u32 = 100_000;
    let count = Count::begin();
    let mut agent = DelayedDupAck::new(&DelayedDupAckConfig::with_delay(Duration::from_secs(1)));
    let before = count.now();
    let mut out = Outbox::default();
    for connection in 0..CONNECTIONS {
        agent.outbound(Time::ZERO, ack(connection), &mut out);
        out.to_link.clear();
    }
    let AgentReport::DelayedDupAck(counters) = agent.report() else { panic!("another report") };
    assert_eq!(counters.flows, u64::from(CONNECTIONS));
    let most = count.peak() - before;
    println!("{} bytes for a connection, {} while growing", (count.now() - before) / 100_000, most / 100_000);
    assert!(most < 350 * CONNECTIONS as usize, "{most} bytes");

    let connections = count.now();
    count.forget_peak();
    for connection in 0..200 {
        let first = ack(connection);
        for _ in 0..2000 {
            // Bytes of its own for each, as if it came from a device.
            agent.outbound(Time::ZERO, IpPacket::new(first.bytes()), &mut out);
            out.to_link.clear();
        }
    }
    let held = count.peak() - connections;
    assert_eq!(agent.held_bytes(), 65_536 * 40);
    println!("{} bytes for a duplicate ACK that is held", held / 65_536);
    assert!(held < 20_000_000, "{held} bytes");

    // And when they are released, all that is given back.
    agent.on_timer(Time::ZERO + Duration::from_secs(1), &mut out);
    assert_eq!(out.to_link.len(), 65_536);
    drop(out);
    let left = count.now().saturating_sub(connections);
    assert!(left < 500_000, "{left} bytes");
}
