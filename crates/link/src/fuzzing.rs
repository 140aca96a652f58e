//! The body of the fuzz target `snoop`; see `fuzz/README.md`.

use std::time::Duration;

use bentpipe_units::{ByteCount, Rate, Time};

use crate::agent::snoop::{Detection, Pace, Snoop, SnoopConfig};
use crate::agent::{Agent as _, Outbox, Packet as _};
use crate::ip::{IpPacket, internet_checksum};

/// The cache of the agent, bytes: little, so that it fills up.
const CACHE: u64 = 20_000;
/// The most packets of one input.
const MOST_PACKETS: usize = 64;

/// Packets that come from both sides at times that the input says. Each is a byte for its side, its flow and
/// the time since the one before, a byte for its length, and a TCP segment without its ports. One packet in
/// eight is taken as it is; the others get an IP header and the right checksum, or the agent would not look
/// at them.
///
/// # Panics
/// The agent sends something towards the link that never came from the host, or caches more than it may.
pub fn snoop(data: &[u8]) {
    let Some((&settings, mut rest)) = data.split_first() else { return };
    let mut config = SnoopConfig::with_cache(ByteCount::new(CACHE));
    config.flows = usize::from(settings & 3) + 1;
    config.hide_sack = settings & 4 != 0;
    config.hide_congestion = settings & 8 != 0;
    config.copies = u32::from(settings >> 4 & 1) + 1;
    if settings & 0x40 != 0 {
        config.detection = Detection::Published;
    }
    if settings & 0x20 != 0 {
        config.pace = Some(Pace { rate: Rate::mbps(1), queue: ByteCount::new(8_000) });
    }
    let (mut agent, mut out) = (Snoop::new(&config), Outbox::default());
    let (mut now, mut came) = (Time::ZERO, Vec::new());
    for _ in 0..MOST_PACKETS {
        let Some((&[head, length], tail)) = rest.split_first_chunk::<2>() else { break };
        let (bytes, tail) = tail.split_at(usize::from(length).min(tail.len()));
        rest = tail;
        now += Duration::from_micros(1 << (head >> 4));
        while agent.wake_at() <= now {
            agent.on_timer(now, &mut out);
            if out.to_link.is_empty() && agent.wake_at() <= now {
                break;
            }
            check(&mut out, &came, &agent);
        }
        let packet = IpPacket::new(if head & 7 == 7 { bytes.to_vec() } else { packet(head, bytes) });
        if head & 8 == 0 {
            came.push(packet.clone());
            agent.outbound(now, packet, &mut out);
        } else {
            agent.inbound(now, packet, &mut out);
        }
        check(&mut out, &came, &agent);
    }
    agent.flush(&mut out);
    check(&mut out, &came, &agent);
}

/// Takes what was sent.
fn check(out: &mut Outbox<IpPacket>, came: &[IpPacket], agent: &Snoop<IpPacket>) {
    for packet in out.to_link.drain(..) {
        assert!(came.contains(&packet), "it has made {packet:?}");
    }
    for packet in out.to_host.drain(..) {
        assert!(packet.ip_length() > 0 || packet.bytes().is_empty());
    }
    assert!(agent.held_bytes() <= CACHE + 8_000 + 3_000, "it holds {} bytes", agent.held_bytes());
}

/// An IPv4 packet of one of four flows whose TCP segment has `rest` behind its ports (RFC 791 §3.1, RFC 9293
/// §3.1).
fn packet(head: u8, rest: &[u8]) -> Vec<u8> {
    const LENGTH: usize = 20;
    let flow = head & 3;
    let (near, far) = ([10, 0, 0, 1], [10, 0, 0, 2]);
    let (ports, [source, destination]) = match head & 8 {
        0 => ([0, 80, 10, flow], [near, far]),
        _ => ([10, flow, 0, 80], [far, near]),
    };
    let mut segment = ports.to_vec();
    segment.extend_from_slice(rest);
    segment.resize(segment.len().max(LENGTH), 0);
    // A header that reaches beyond the segment is not what is looked for.
    let words = usize::from(segment[12] >> 4).clamp(5, segment.len() / 4);
    segment[12] = (words as u8) << 4;
    segment[16..18].fill(0);
    let length = (segment.len() as u16).to_be_bytes();
    let pseudo = [&source[..], &destination, &[0, 6], &length, &segment].concat();
    segment[16..18].copy_from_slice(&internet_checksum(&pseudo).to_be_bytes());
    let total = ((LENGTH + segment.len()) as u16).to_be_bytes();
    let mut packet = vec![0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, 6, 0, 0];
    packet.extend([source, destination].concat());
    let checksum = internet_checksum(&packet).to_be_bytes();
    packet[10..12].copy_from_slice(&checksum);
    packet.extend(segment);
    packet
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_packets_of_the_target_are_segments_that_agents_look_at() {
        assert!(IpPacket::new(packet(0, &[1; 30])).tcp().is_some());
        assert!(IpPacket::new(packet(8, &[])).tcp().is_some());
    }

    #[test]
    fn its_corpus_breaks_nothing() {
        replay::replay("snoop", snoop);
    }
}
