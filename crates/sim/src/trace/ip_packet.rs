//! Captured packets as bytes: headers of IPv4, TCP and UDP with right checksums.
//!
//! | packet | source | destination | captured |
//! |---|---|---|---|
//! | segment | 10.0.0.0/8 + number of the endpoint, port 40000 of a leg's sender, 80 of its receiver | the same of its peer | headers; the payload is zeros |
//! | datagram | 172.16.0.0/16 + number of the stream, port 40000 | 172.17.0.0/16, or 239.1.0.0/16 if several receive, + the same, port 9 | headers and its number, 4 bytes; zeros behind it |
//! | frame of a protected leg | 172.18.0.0/16 at the link's first node, 172.19.0.0/16 at the second, + number of the link, port 25200 | the other | all |

use bentpipe_tcp::Segment;

use crate::observer::{CaptureEvent, CapturedContent, CapturedPacket};

const IPV4_HEADER: usize = 20;
const UDP_HEADER: usize = 8;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Where the transport checksum lies behind the IP header (RFC 9293 §3.1, RFC 768).
const TCP_CHECKSUM: usize = 16;
const UDP_CHECKSUM: usize = 6;

const CLIENT_PORT: u16 = 40_000;
const SERVER_PORT: u16 = 80;
/// RFC 863.
const DISCARD_PORT: u16 = 9;
/// The one between protected legs.
const PROTECT_PORT: u16 = 25_200;

/// A packet as it is captured.
#[derive(Debug, Default)]
pub(super) struct CapturedBytes {
    /// Its first bytes.
    pub(super) captured: Vec<u8>,
    /// How many it has.
    pub(super) length: usize,
}

/// The ends of a packet.
struct Ends {
    addresses: [[u8; 4]; 2],
    ports: [u16; 2],
}

/// Puts a packet into `out`. `multicast` says for each UDP stream whether it has several receivers. The
/// checksum of a corrupted packet is wrong.
pub(super) fn write(packet: &CapturedPacket<'_>, multicast: &[bool], out: &mut CapturedBytes) {
    out.captured.clear();
    match packet.content {
        CapturedContent::Segment { endpoint, segment } => write_segment(endpoint, segment, out),
        CapturedContent::Datagram { stream, number, ip_bytes } => {
            let to = if multicast.get(stream) == Some(&true) { [239, 1] } else { [172, 17] };
            let addresses = [[172, 16], to].map(|network| host(network, stream));
            let ends = Ends { addresses, ports: [CLIENT_PORT, DISCARD_PORT] };
            write_datagram(&ends, ip_bytes.into(), &number.to_be_bytes(), out);
        }
        CapturedContent::Frame(frame) => {
            let mut addresses = [[172, 18], [172, 19]].map(|network| host(network, packet.link));
            let from_first = (packet.end == 0) == matches!(packet.event, CaptureEvent::Sent(_));
            if !from_first {
                addresses.reverse();
            }
            let ends = Ends { addresses, ports: [PROTECT_PORT; 2] };
            write_datagram(&ends, IPV4_HEADER + UDP_HEADER + frame.len(), frame, out);
        }
    }
    if packet.event == (CaptureEvent::Received { is_corrupted: true }) {
        let checksum = match packet.content {
            CapturedContent::Segment { .. } => TCP_CHECKSUM,
            CapturedContent::Datagram { .. } | CapturedContent::Frame(_) => UDP_CHECKSUM,
        };
        out.captured[IPV4_HEADER + checksum] ^= 0x80;
    }
}

fn write_segment(endpoint: usize, segment: &Segment, out: &mut CapturedBytes) {
    let ends = [endpoint, endpoint ^ 1];
    let port = |end: usize| if end.is_multiple_of(2) { CLIENT_PORT } else { SERVER_PORT };
    let ends = Ends { addresses: ends.map(endpoint_address), ports: ends.map(port) };
    out.length = segment.ip_length();
    write_ipv4(&ends, TCP, out);
    segment.encode_header(ends.ports[0], ends.ports[1], &mut out.captured);
    write_checksum(&ends, TCP, TCP_CHECKSUM, out);
}

/// A datagram in a packet of `length` bytes, which begins with `payload` and has zeros behind it.
fn write_datagram(ends: &Ends, length: usize, payload: &[u8], out: &mut CapturedBytes) {
    out.length = length;
    write_ipv4(ends, UDP, out);
    for field in [ends.ports[0], ends.ports[1], (length - IPV4_HEADER) as u16, 0] {
        out.captured.extend_from_slice(&field.to_be_bytes());
    }
    out.captured.extend_from_slice(&payload[..payload.len().min(length - IPV4_HEADER - UDP_HEADER)]);
    write_checksum(ends, UDP, UDP_CHECKSUM, out);
}

fn write_ipv4(ends: &Ends, protocol: u8, out: &mut CapturedBytes) {
    let packet = &mut out.captured;
    packet.extend_from_slice(&[0x45, 0]);
    packet.extend_from_slice(&(out.length as u16).to_be_bytes());
    packet.extend_from_slice(&[0, 0, 0x40, 0, 64, protocol, 0, 0]);
    ends.addresses.iter().for_each(|address| packet.extend_from_slice(address));
    let sum = fold(sum_of(packet));
    packet[10..12].copy_from_slice(&(!sum).to_be_bytes());
}

/// What is not captured is zeros, which add nothing to a checksum.
fn write_checksum(ends: &Ends, protocol: u8, at: usize, out: &mut CapturedBytes) {
    let length = (out.length - IPV4_HEADER) as u32;
    let pseudo = sum_of(ends.addresses.as_flattened()) + u32::from(protocol) + length;
    let sum = match !fold(pseudo + sum_of(&out.captured[IPV4_HEADER..])) {
        // RFC 768: zero says that there is none.
        0 if protocol == UDP => u16::MAX,
        sum => sum,
    };
    out.captured[IPV4_HEADER + at..][..2].copy_from_slice(&sum.to_be_bytes());
}

/// An endpoint's address: 10.0.0.0/8 with its number.
fn endpoint_address(endpoint: usize) -> [u8; 4] {
    let [_, a, b, c] = (endpoint as u32).to_be_bytes();
    [10, a, b, c]
}

fn host([a, b]: [u8; 2], number: usize) -> [u8; 4] {
    let [c, d] = (number as u16).to_be_bytes();
    [a, b, c, d]
}

/// RFC 1071.
fn sum_of(bytes: &[u8]) -> u32 {
    bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])))
        .sum()
}

fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use bentpipe_link::Fate;
    use bentpipe_tcp::{Flags, SackBlocks, Timestamps};
    use bentpipe_units::Time;

    use super::*;

    const SENT: CaptureEvent = CaptureEvent::Sent(Fate::Deliver { at: Time::ZERO });

    fn bytes(event: CaptureEvent, content: CapturedContent<'_>) -> CapturedBytes {
        let packet = CapturedPacket { now: Time::ZERO, link: 3, end: 0, event, content };
        let mut out = CapturedBytes::default();
        write(&packet, &[false, true], &mut out);
        out
    }

    fn segment(len: u32) -> Segment {
        let mut sack = SackBlocks::default();
        sack.push(7, 11);
        let timestamps = Some(Timestamps { value: 0xdead_beef, echo: 5 });
        let (seq, ack, flags) = (u32::MAX, 12, Flags::ACK);
        Segment { seq, ack, len, window: 99, flags, timestamps, sack, ..Segment::default() }
    }

    /// The sums over the header of IP, and over what it carries: all ones if they are right.
    fn sums(packet: &CapturedBytes) -> [u16; 2] {
        let bytes = &packet.captured;
        let length = (packet.length - IPV4_HEADER) as u32;
        let pseudo = sum_of(&bytes[12..20]) + u32::from(bytes[9]) + length;
        [fold(sum_of(&bytes[..IPV4_HEADER])), fold(pseudo + sum_of(&bytes[IPV4_HEADER..]))]
    }

    #[test]
    fn all_checksums_are_right_but_that_of_a_corrupted_packet() {
        let segments = [0, 1, 1448].map(segment);
        let frame = [7; 33];
        let mut contents =
            segments.each_ref().map(|segment| CapturedContent::Segment { endpoint: 259, segment }).to_vec();
        contents.push(CapturedContent::Frame(&frame));
        let datagram = |(stream, number)| CapturedContent::Datagram { stream, number, ip_bytes: 1200 };
        contents.extend([(0, 0), (1, 99), (0, u32::MAX)].map(datagram));
        for content in contents {
            assert_eq!(sums(&bytes(SENT, content)), [0xffff; 2], "{content:?}");
            let corrupted = CaptureEvent::Received { is_corrupted: true };
            let [ip, transport] = sums(&bytes(corrupted, content));
            assert!(ip == 0xffff && transport != 0xffff, "{content:?}");
        }
    }

    #[test]
    fn addresses_are_the_endpoints_numbers_and_the_length_counts_the_payload_left_out() {
        let packet = bytes(SENT, CapturedContent::Segment { endpoint: 259, segment: &segment(1000) });
        assert_eq!(packet.captured[12..20], [10, 0, 1, 3, 10, 0, 1, 2]);
        assert_eq!(packet.length, packet.captured.len() + 1000);
        assert_eq!(packet.captured[2..4], (packet.length as u16).to_be_bytes());
        assert_eq!(packet.captured[IPV4_HEADER + 4..IPV4_HEADER + 8], u32::MAX.to_be_bytes());
    }

    #[test]
    fn datagrams_for_several_go_to_a_group_and_carry_their_number() {
        let packet = bytes(SENT, CapturedContent::Datagram { stream: 1, number: 5, ip_bytes: 200 });
        assert_eq!(packet.captured[12..20], [172, 16, 0, 1, 239, 1, 0, 1]);
        assert_eq!((&packet.captured[28..], packet.length), (&[0, 0, 0, 5][..], 200));
    }

    #[test]
    fn a_frame_of_a_protected_leg_is_whole_and_goes_between_its_ends() {
        let frame = [1, 2, 3];
        let sent = bytes(SENT, CapturedContent::Frame(&frame));
        let received = bytes(CaptureEvent::Received { is_corrupted: false }, CapturedContent::Frame(&frame));
        assert_eq!(sent.captured[12..20], [172, 18, 0, 3, 172, 19, 0, 3]);
        assert_eq!(received.captured[12..20], [172, 19, 0, 3, 172, 18, 0, 3]);
        assert_eq!((&sent.captured[28..], sent.length), (&frame[..], 31));
    }
}
