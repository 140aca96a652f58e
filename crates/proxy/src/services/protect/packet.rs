//! Packets that are too long for a protected leg: their senders are told (RFC 792, RFC 4443 §3.2), and TCP is
//! told before.

use bentpipe_link::ip::internet_checksum;

/// The smallest MTU that IPv4 hosts must take (RFC 791 §3.1), and IPv6 ones (RFC 8200 §5).
const LEAST_MTU: [usize; 2] = [68, 1280];
/// What an error quotes of the packet: IPv4, its header and eight bytes and more, up to 576 bytes in all (RFC
/// 1812 §4.3.2.3); IPv6, as much as fits into 1280 (RFC 4443 §2.4).
const QUOTE: [usize; 2] = [576 - 28, 1280 - 48];
const TCP: u8 = 6;
const ICMPV6: u8 = 58;
const SYN: u8 = 2;
const MSS: u8 = 2;

/// What becomes of a packet that is longer than the MTU.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// It fits, or its sender lets it be cut.
    Fits,
    /// This error goes to its sender.
    TooBig(Vec<u8>),
    /// It does not fit, and nobody may be told: it is an error itself, or too short to be read.
    Silent,
}

/// Whether a packet fits.
pub(super) fn fit(packet: &[u8], mtu: usize) -> Fit {
    if packet.len() <= mtu {
        return Fit::Fits;
    }
    match packet[0] >> 4 {
        4 if packet.len() >= 20 => fit_ipv4(packet, mtu),
        6 if packet.len() >= 40 => fit_ipv6(packet, mtu),
        _ => Fit::Silent,
    }
}

fn fit_ipv4(packet: &[u8], mtu: usize) -> Fit {
    let (flags, offset) = (packet[6] >> 5, u16::from_be_bytes([packet[6], packet[7]]) & 0x1fff);
    let may_be_cut = flags & 2 == 0;
    if may_be_cut || mtu < LEAST_MTU[0] {
        return Fit::Fits;
    }
    let header = usize::from(packet[0] & 15) * 4;
    let is_error = packet[9] == 1 && packet.get(header).is_none_or(|kind| ![0, 8, 13, 14].contains(kind));
    if offset != 0 || is_error {
        return Fit::Silent;
    }
    let quoted = &packet[..packet.len().min(QUOTE[0])];
    let mut error = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 1, 0, 0];
    // From where the packet was to go, so that it arrives by the leg, as from a router beyond.
    error.extend_from_slice(&packet[16..20]);
    error.extend_from_slice(&packet[12..16]);
    error.extend_from_slice(&[3, 4, 0, 0, 0, 0]);
    error.extend_from_slice(&u16::try_from(mtu).unwrap_or(u16::MAX).to_be_bytes());
    error.extend_from_slice(quoted);
    let length = (error.len() as u16).to_be_bytes();
    error[2..4].copy_from_slice(&length);
    let sum = internet_checksum(&error[..20]).to_be_bytes();
    error[10..12].copy_from_slice(&sum);
    let sum = internet_checksum(&error[20..]).to_be_bytes();
    error[22..24].copy_from_slice(&sum);
    Fit::TooBig(error)
}

fn fit_ipv6(packet: &[u8], mtu: usize) -> Fit {
    if mtu < LEAST_MTU[1] {
        return Fit::Fits;
    }
    let is_error = packet[6] == ICMPV6 && packet.get(40).is_none_or(|kind| *kind < 128);
    if is_error || packet[8] == 0xff {
        return Fit::Silent;
    }
    let quoted = &packet[..packet.len().min(QUOTE[1])];
    let mut message = vec![2, 0, 0, 0];
    message.extend_from_slice(&u32::try_from(mtu).unwrap_or(u32::MAX).to_be_bytes());
    message.extend_from_slice(quoted);
    let (source, destination) = (&packet[24..40], &packet[8..24]);
    let length = (message.len() as u32).to_be_bytes();
    let covered = [source, destination, &length, &[0, 0, 0, ICMPV6], &message].concat();
    message[2..4].copy_from_slice(&internet_checksum(&covered).to_be_bytes());
    let mut error = vec![0x60, 0, 0, 0];
    error.extend_from_slice(&(message.len() as u16).to_be_bytes());
    error.extend_from_slice(&[ICMPV6, 64]);
    error.extend_from_slice(source);
    error.extend_from_slice(destination);
    error.extend_from_slice(&message);
    Fit::TooBig(error)
}

/// Lowers the maximum segment size that a SYN announces, so that what comes back fits, too.
pub(super) fn clamp_mss(packet: &mut [u8], mtu: usize) {
    let Some((tcp, headers)) = tcp_of(packet) else { return };
    let most = u16::try_from(mtu.saturating_sub(headers)).unwrap_or(u16::MAX);
    let segment = &mut packet[tcp..];
    let end = usize::from(segment[12] >> 4) * 4;
    if segment[13] & SYN == 0 || end < 20 || end > segment.len() {
        return;
    }
    let mut at = 20;
    while at + 4 <= end {
        match segment[at..end] {
            [0, ..] => return,
            [1, ..] => at += 1,
            [MSS, 4, high, low, ..] => {
                let before = u16::from_be_bytes([high, low]);
                if before > most {
                    replace(segment, at + 2, before, most);
                }
                return;
            }
            [_, length, ..] if length >= 2 => at += usize::from(length),
            _ => return,
        }
    }
}

/// Where the TCP header of an unfragmented packet begins, and the bytes of the least headers of IP and TCP.
fn tcp_of(packet: &[u8]) -> Option<(usize, usize)> {
    let (protocol, start, headers) = match packet.first()? >> 4 {
        4 if packet.len() >= 20 && u16::from_be_bytes([packet[6], packet[7]]) & 0x3fff == 0 => {
            (packet[9], usize::from(packet[0] & 15) * 4, 20 + 20)
        }
        6 if packet.len() >= 40 => (packet[6], 40, 40 + 20),
        _ => return None,
    };
    (protocol == TCP && start >= 20 && packet.len() >= start + 20).then_some((start, headers))
}

/// Writes a number of 16 bits at an even or odd place of a segment, and corrects the checksum (RFC 1624).
fn replace(segment: &mut [u8], at: usize, before: u16, after: u16) {
    segment[at..at + 2].copy_from_slice(&after.to_be_bytes());
    // At an odd place the bytes of the number count in the other order.
    let [before, after] =
        [before, after].map(|number| if at.is_multiple_of(2) { number } else { number.swap_bytes() });
    let sum = u16::from_be_bytes([segment[16], segment[17]]);
    let mut new = u32::from(!sum) + u32::from(!before) + u32::from(after);
    while new > 0xffff {
        new = (new & 0xffff) + (new >> 16);
    }
    segment[16..18].copy_from_slice(&(!(new as u16)).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ipv4(length: usize, protocol: u8, dont_fragment: bool) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 63, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        packet.resize(length, 7);
        packet[2..4].copy_from_slice(&(length as u16).to_be_bytes());
        packet[6] = u8::from(dont_fragment) << 6;
        packet
    }

    #[test]
    fn a_sender_that_forbids_cutting_is_told_the_mtu() {
        let packet = ipv4(1500, 17, true);
        let Fit::TooBig(error) = fit(&packet, 1430) else { panic!("it does not fit") };
        assert_eq!((error.len(), &error[12..20]), (576, &[10, 0, 0, 2, 10, 0, 0, 1][..]));
        assert_eq!((error[20], error[21], &error[26..28]), (3, 4, &1430_u16.to_be_bytes()[..]));
        assert_eq!(&error[28..56], &packet[..28]);
        assert_eq!((internet_checksum(&error[..20]), internet_checksum(&error[20..])), (0, 0));
        assert_eq!(fit(&ipv4(1500, 17, false), 1430), Fit::Fits);
        assert_eq!(fit(&ipv4(1430, 17, true), 1430), Fit::Fits);
    }

    #[test]
    fn errors_are_not_answered_by_errors() {
        let mut packet = ipv4(1500, 1, true);
        packet[20] = 3;
        assert_eq!(fit(&packet, 1430), Fit::Silent);
        packet[20] = 8;
        assert!(matches!(fit(&packet, 1430), Fit::TooBig(_)));
    }

    #[test]
    fn ipv6_is_told_as_well() {
        let mut packet = vec![0x60, 0, 0, 0, 5, 0, 17, 63];
        packet.extend_from_slice(&[1; 16]);
        packet.extend_from_slice(&[2; 16]);
        packet.resize(1500, 9);
        let Fit::TooBig(error) = fit(&packet, 1410) else { panic!("it does not fit") };
        assert_eq!((error.len(), error[40], &error[44..48]), (1280, 2, &1410_u32.to_be_bytes()[..]));
        let length = (error.len() as u32 - 40).to_be_bytes();
        let covered = [&error[8..40], &length, &[0, 0, 0, ICMPV6], &error[40..]].concat();
        assert_eq!(internet_checksum(&covered), 0);
    }

    fn syn(options: &[u8]) -> Vec<u8> {
        let mut packet = ipv4(40 + options.len(), TCP, true);
        packet[20..40].fill(0);
        packet[32] = ((20 + options.len()) as u8 / 4) << 4;
        packet[33] = SYN;
        packet[40..].copy_from_slice(options);
        let sum = tcp_sum(&packet).to_be_bytes();
        packet[36..38].copy_from_slice(&sum);
        packet
    }

    fn tcp_sum(packet: &[u8]) -> u16 {
        let length = (packet.len() as u16 - 20).to_be_bytes();
        internet_checksum(&[&packet[12..20], &[0, TCP], &length, &packet[20..]].concat())
    }

    #[test]
    fn a_syn_announces_what_fits() {
        for (options, at) in [
            (&[2, 4, 5, 0xb4][..], 42),
            (&[1, 2, 4, 5, 0xb4, 0, 0, 0], 43),
            (&[4, 2, 1, 1, 2, 4, 5, 0xb4], 46),
        ] {
            let mut packet = syn(options);
            clamp_mss(&mut packet, 1430);
            assert_eq!(packet[at..at + 2], 1390_u16.to_be_bytes(), "{options:?}");
            assert_eq!(tcp_sum(&packet), 0, "{options:?}");
        }
        let small = syn(&[2, 4, 2, 24]);
        let mut packet = small.clone();
        clamp_mss(&mut packet, 1430);
        assert_eq!(packet, small);
    }

    proptest! {
        #[test]
        fn no_packet_makes_it_panic(mut packet in prop::collection::vec(any::<u8>(), 1..200), mtu in 20usize..200) {
            fit(&packet, mtu);
            clamp_mss(&mut packet, mtu);
        }
    }
}
