//! The forms in which packets cross the leg: whole, or with what their flow has in common left out.
//!
//! ```text
//! whole IP packet    │ 4 or 6, and all that follows │
//! anything else      │ 0x00 │ itself │
//! compressed         │ 1, ECN 2 bits, CID 5 bits │ CID 1, if those are 31 │ IPv4 identification 2, if the
//!                      template has one │ UDP checksum 2, if it has UDP │ what is behind the header, less what the
//!                      template shares │
//!
//! template           │ header, up to 48 │ and, if packets share more: which bytes behind it 4 │ these bytes 32 │
//! ```
//!
//! A template is a header with zeros in the place of what differs from packet to packet: ECN, lengths, checksums.
//! In the place of the identification of IPv4 it has zeros where all of its packets do, as is usual with
//! "don't fragment" (RFC 6864 §4.1), else ones. Lengths follow from that of the packet and the checksum of IPv4 from
//! its header; that of UDP is carried, so that it protects data from end to end.
//!
//! Behind their headers, packets of a flow often share bytes, too, whatever the protocol: the connection ID of
//! QUIC (RFC 9000 §17.3), the receiver index of WireGuard and the upper bytes of its counter, of a TCP download
//! the acknowledgement number and the window. A longer template has those of the first 32 bytes that are the
//! same.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::ip::{IPV4_HEADER, IPV6_HEADER, UDP, checksum, has_ports};

/// Bytes of a template at most: IPv6, UDP, and what packets share behind them.
pub(crate) const MAX_TEMPLATE: usize = IPV6_HEADER + UDP_HEADER + MASK + Shared::SPAN;
/// Bytes that say which ones packets share behind the header.
const MASK: usize = 4;
const UDP_HEADER: usize = 8;
/// Ports, or an SPI.
const PORTS: usize = 4;
/// The first byte of what is no IP packet.
const OTHER: u8 = 0;
/// The bit of compressed packets.
const COMPRESSED: u8 = 0x80;
/// A CID that does not fit into the first byte.
const LONG_CID: u8 = 31;
/// In the place of an identification that packets carry.
const CARRIED: [u8; 2] = [0xff; 2];
/// "Don't fragment", in the upper byte of flags and offset.
const DONT_FRAGMENT: u8 = 0x40;

/// What the packets of a flow have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "ByteBuf", into = "ByteBuf")]
pub struct Template {
    /// Bytes of the header.
    header: u8,
    /// Bytes of the template: as many, or those of the mask and of what packets share as well.
    length: u8,
    /// Zeros behind its length.
    bytes: [u8; MAX_TEMPLATE],
}

/// What packets have in common of the first bytes behind their headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shared {
    /// Bit n is set if byte n is shared.
    mask: u32,
    /// Zeros where bytes are not shared.
    bytes: [u8; Self::SPAN],
}

impl Shared {
    /// Bytes that are compared.
    pub(crate) const SPAN: usize = u32::BITS as usize;

    /// All that this packet has, which is the first one. `body` is what is behind its header.
    pub(crate) fn of(body: &[u8]) -> Self {
        let mut bytes = [0; Self::SPAN];
        let length = body.len().min(Self::SPAN);
        bytes[..length].copy_from_slice(&body[..length]);
        Self { mask: first_bits(length), bytes }
    }

    /// Which of its bytes this packet has.
    fn in_common(&self, body: &[u8]) -> u32 {
        let other = Self::of(body);
        let equal = self.bytes.iter().zip(other.bytes).enumerate();
        let equal = equal.fold(0, |bits, (index, (ours, theirs))| bits | u32::from(*ours == theirs) << index);
        self.mask & other.mask & equal
    }

    /// Only what this packet has, too.
    pub(crate) fn narrow(&mut self, body: &[u8]) {
        self.mask = self.in_common(body);
        let mask = self.mask;
        let left_out = self.bytes.iter_mut().enumerate().filter(|(index, _)| mask & 1 << index == 0);
        left_out.for_each(|(_, byte)| *byte = 0);
    }

    /// How many bytes.
    pub(crate) fn count(&self) -> usize {
        self.mask.count_ones() as usize
    }

    /// The bytes up to the last one that is shared.
    fn span(&self) -> usize {
        (u32::BITS - self.mask.leading_zeros()) as usize
    }

    fn has(&self, index: usize) -> bool {
        self.mask & 1 << index != 0
    }
}

/// A mask of the first `length` of 32 bits.
fn first_bits(length: usize) -> u32 {
    u32::MAX.checked_shr(u32::BITS - length as u32).unwrap_or(0)
}

impl Template {
    /// The template of a packet; `None` if it is to be sent whole: it is no IP packet, has options of IPv4,
    /// is a fragment, or its lengths or its checksum would not be put together again as they are.
    pub fn of(packet: &[u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => Self::of_ipv4(packet),
            6 => Self::of_ipv6(packet),
            _ => None,
        }
    }

    fn of_ipv4(packet: &[u8]) -> Option<Self> {
        let mut header = *packet.first_chunk::<IPV4_HEADER>()?;
        let field = [header[10], header[11]];
        header[10..12].fill(0);
        let exact = header[0] == 0x45
            && usize::from(u16::from_be_bytes([header[2], header[3]])) == packet.len()
            && header[6] & !DONT_FRAGMENT == 0
            && header[7] == 0
            && field == checksum(&header).to_be_bytes();
        if !exact {
            return None;
        }
        header[1] &= !3;
        header[2..4].fill(0);
        if header[4..6] != [0; 2] {
            header[4..6].copy_from_slice(&CARRIED);
        }
        Some(Self::with_ports(&header, header[9], packet))
    }

    fn of_ipv6(packet: &[u8]) -> Option<Self> {
        let mut header = *packet.first_chunk::<IPV6_HEADER>()?;
        if usize::from(u16::from_be_bytes([header[4], header[5]])) != packet.len() - IPV6_HEADER {
            return None;
        }
        header[1] &= !0x30;
        header[4..6].fill(0);
        Some(Self::with_ports(&header, header[6], packet))
    }

    fn with_ports(ip: &[u8], protocol: u8, packet: &[u8]) -> Self {
        let payload = &packet[ip.len()..];
        let mut bytes = [0; MAX_TEMPLATE];
        bytes[..ip.len()].copy_from_slice(ip);
        let length = match protocol {
            UDP => {
                let whole = payload.len() >= UDP_HEADER
                    && usize::from(u16::from_be_bytes([payload[4], payload[5]])) == payload.len();
                if whole { UDP_HEADER } else { 0 }
            }
            protocol if has_ports(protocol) && payload.len() >= PORTS => PORTS,
            _ => 0,
        };
        let ports = length.min(PORTS);
        bytes[ip.len()..ip.len() + ports].copy_from_slice(&payload[..ports]);
        let length = (ip.len() + length) as u8;
        Self { header: length, length, bytes }
    }

    /// The longer template of packets that have this one, which is none, and share this.
    pub(crate) fn longer(&self, shared: &Shared) -> Self {
        let mut longer = *self;
        let header = self.header();
        longer.bytes[header..header + MASK].copy_from_slice(&shared.mask.to_be_bytes());
        longer.bytes[header + MASK..header + MASK + Shared::SPAN].copy_from_slice(&shared.bytes);
        longer.length = self.header + (MASK + Shared::SPAN) as u8;
        longer
    }

    /// Whether it leaves out more than the header.
    pub(crate) fn is_longer(&self) -> bool {
        self.length > self.header
    }

    /// What packets share behind the header.
    fn shared(&self) -> Shared {
        let behind = &self.bytes[self.header()..];
        let (Some((mask, bytes)), true) = (behind.split_first_chunk(), self.is_longer()) else {
            return Shared { mask: 0, bytes: [0; Shared::SPAN] };
        };
        let bytes = *bytes.first_chunk().expect("a longer template has them");
        Shared { mask: u32::from_be_bytes(*mask), bytes }
    }

    /// Whether a packet whose header is that of this template shares what it leaves out.
    pub(crate) fn fits(&self, body: &[u8]) -> bool {
        let shared = self.shared();
        shared.in_common(body) == shared.mask
    }

    /// Reads what [`as_bytes`](Self::as_bytes) has given; `None` if it is no template.
    pub fn parse(template: &[u8]) -> Option<Self> {
        let mut bytes = [0; MAX_TEMPLATE];
        bytes.get_mut(..template.len())?.copy_from_slice(template);
        let (fixed, ip, protocol) = match template.first()? >> 4 {
            4 => {
                let [first, tos, _, _, id_0, id_1, flags, offset, _, protocol, ..] = bytes;
                let zeros = tos & 3 == 0 && bytes[2..4] == [0; 2] && bytes[10..12] == [0; 2];
                let id = [id_0, id_1] == CARRIED || [id_0, id_1] == [0; 2];
                let fragment = flags & !DONT_FRAGMENT != 0 || offset != 0;
                (first == 0x45 && zeros && id && !fragment, IPV4_HEADER, protocol)
            }
            6 => (bytes[1] & 0x30 == 0 && bytes[4..6] == [0; 2], IPV6_HEADER, bytes[6]),
            _ => return None,
        };
        let behind = template.len().checked_sub(ip)?;
        let is_longer = behind >= MASK + Shared::SPAN;
        let header = ip + if is_longer { behind - MASK - Shared::SPAN } else { behind };
        let right = match header - ip {
            0 => true,
            PORTS => protocol != UDP && has_ports(protocol),
            UDP_HEADER => protocol == UDP && template[ip + PORTS..header] == [0; 4],
            _ => false,
        };
        let parsed = Self { header: header as u8, length: template.len() as u8, bytes };
        let shared = parsed.shared();
        let zeros = (0..Shared::SPAN).all(|index| shared.has(index) || shared.bytes[index] == 0);
        (fixed && right && zeros && (shared.count() > 0) == is_longer).then_some(parsed)
    }

    /// Itself.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// Bytes of the header.
    pub(crate) fn header(&self) -> usize {
        usize::from(self.header)
    }

    fn is_ipv4(&self) -> bool {
        self.bytes[0] >> 4 == 4
    }

    fn carries_id(&self) -> bool {
        self.is_ipv4() && self.bytes[4..6] == CARRIED
    }

    fn ip_header(&self) -> usize {
        if self.is_ipv4() { IPV4_HEADER } else { IPV6_HEADER }
    }

    fn has_udp(&self) -> bool {
        self.header() == self.ip_header() + UDP_HEADER
    }

    /// The compressed form of a packet that has this template, and [shares](Self::fits) what it leaves out.
    pub(crate) fn compress(&self, cid: u8, mut packet: Vec<u8>) -> Vec<u8> {
        let ecn = if self.is_ipv4() { packet[1] & 3 } else { packet[1] >> 4 & 3 };
        let mut front = [0; 6];
        front[0] = COMPRESSED | ecn << 5 | cid.min(LONG_CID);
        let mut length = 1;
        let mut put = |bytes: &[u8]| {
            front[length..length + bytes.len()].copy_from_slice(bytes);
            length += bytes.len();
        };
        if cid >= LONG_CID {
            put(&[cid]);
        }
        if self.carries_id() {
            put(&packet[4..6]);
        }
        let header = self.header();
        if self.has_udp() {
            put(&packet[header - 2..header]);
        }
        // What is not shared moves up to what follows.
        let (shared, mut end) = (self.shared(), header + self.shared().span());
        for index in (0..shared.span()).rev().filter(|index| !shared.has(*index)) {
            end -= 1;
            packet[end] = packet[header + index];
        }
        let start = end - length;
        packet[start..end].copy_from_slice(&front[..length]);
        packet.drain(..start);
        packet
    }

    /// Appends the packet whose compressed form this is; `None` if there is none.
    pub(crate) fn expand(&self, form: &Compressed<'_>, out: &mut Vec<u8>) -> Option<()> {
        let mut rest = form.rest;
        let mut take = |wanted: bool| -> Option<[u8; 2]> {
            let (taken, behind) = if wanted { rest.split_first_chunk::<2>()? } else { (&[0; 2], rest) };
            rest = behind;
            Some(*taken)
        };
        let id = take(self.carries_id())?;
        let udp_checksum = take(self.has_udp())?;
        let mut shared = self.shared();
        let span = shared.span();
        let (carried, rest) = rest.split_at_checked(span - shared.count())?;
        let mut carried = carried.iter();
        for index in (0..span).filter(|index| shared.mask & (1 << index) == 0) {
            shared.bytes[index] = *carried.next()?;
        }
        let (ip, total) = (self.ip_header(), self.header() + span + rest.len());
        let length_of = |bytes: usize| u16::try_from(bytes).ok().map(u16::to_be_bytes);
        let mut header = self.bytes;
        if self.is_ipv4() {
            header[1] |= form.ecn;
            header[2..4].copy_from_slice(&length_of(total)?);
            header[4..6].copy_from_slice(&id);
            let checksum = checksum(&header[..IPV4_HEADER]);
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
        } else {
            header[1] |= form.ecn << 4;
            header[4..6].copy_from_slice(&length_of(total - ip)?);
        }
        if self.has_udp() {
            header[ip + 4..ip + 6].copy_from_slice(&length_of(total - ip)?);
            header[ip + 6..ip + 8].copy_from_slice(&udp_checksum);
        }
        out.extend_from_slice(&header[..self.header()]);
        out.extend_from_slice(&shared.bytes[..span]);
        out.extend_from_slice(rest);
        Some(())
    }
}

impl From<Template> for ByteBuf {
    fn from(template: Template) -> Self {
        Self::from(template.as_bytes())
    }
}

impl TryFrom<ByteBuf> for Template {
    type Error = &'static str;

    fn try_from(bytes: ByteBuf) -> Result<Self, &'static str> {
        Self::parse(&bytes).ok_or("a template that is none")
    }
}

/// The form of a packet that is sent whole. It is longer by one byte if it is no IP packet.
pub(crate) fn whole(mut packet: Vec<u8>) -> Vec<u8> {
    if !is_ip(&packet) {
        packet.insert(0, OTHER);
    }
    packet
}

fn is_ip(packet: &[u8]) -> bool {
    matches!(packet.first().map(|first| first >> 4), Some(4 | 6))
}

/// A form, read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Form<'a> {
    /// The packet itself.
    Whole(&'a [u8]),
    /// What its template turns into the packet.
    Compressed(Compressed<'a>),
}

/// What is not in the template.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Compressed<'a> {
    pub(crate) cid: u8,
    ecn: u8,
    rest: &'a [u8],
}

impl<'a> Form<'a> {
    /// `None` if it is no form.
    pub(crate) fn read(form: &'a [u8]) -> Option<Self> {
        let (&first, rest) = form.split_first()?;
        if is_ip(form) {
            return Some(Form::Whole(form));
        }
        if first == OTHER {
            return Some(Form::Whole(rest));
        }
        if first & COMPRESSED == 0 {
            return None;
        }
        let (cid, rest) = match first & 31 {
            LONG_CID => rest.split_first().map(|(cid, rest)| (*cid, rest))?,
            cid => (cid, rest),
        };
        Some(Form::Compressed(Compressed { cid, ecn: first >> 5 & 3, rest }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ip::tests::{ipv4_udp, ipv6_udp};

    fn expanded(template: &Template, form: &[u8]) -> Vec<u8> {
        let Some(Form::Compressed(compressed)) = Form::read(form) else { panic!("{form:?}") };
        let mut out = Vec::new();
        template.expand(&compressed, &mut out).unwrap();
        out
    }

    /// Bytes of the compressed form, if there is one.
    fn form_of(packet: &[u8], cid: u8) -> Option<Vec<u8>> {
        let template = Template::of(packet)?;
        let form = template.compress(cid, packet.to_vec());
        assert_eq!(expanded(&template, &form), packet);
        Some(form)
    }

    fn with_checksum(mut packet: Vec<u8>) -> Vec<u8> {
        packet[10..12].fill(0);
        let right = checksum(&packet[..20]);
        packet[10..12].copy_from_slice(&right.to_be_bytes());
        packet
    }

    fn changed(at: usize, to: u8) -> Vec<u8> {
        let mut packet = ipv4_udp(7, 2, &[1; 100]);
        packet[at] = to;
        with_checksum(packet)
    }

    #[test]
    fn headers_shrink_to_a_few_bytes() {
        let saved = |packet: &[u8], cid| packet.len() - form_of(packet, cid).unwrap().len();
        assert_eq!(saved(&ipv4_udp(7, 2, &[1; 100]), 30), 25);
        assert_eq!(saved(&ipv4_udp(7, 2, &[1; 100]), 31), 24);
        assert_eq!(saved(&ipv6_udp(7, 1, &[1; 100]), 0), 45);
        assert_eq!(saved(&changed(4, 9), 0), 23, "with an identification");
        assert_eq!(saved(&changed(9, 50), 0), 23, "ESP");
        assert_eq!(saved(&changed(9, 1), 0), 19, "ICMP");
        assert_eq!(saved(&changed(25, 0), 0), 19, "UDP with a length of its own");
        assert_eq!(saved(&ipv4_udp(7, 3, &[]), 0), 25);
    }

    #[test]
    fn what_would_not_come_back_as_it_was_is_sent_whole() {
        for whole in [changed(0, 0x46), changed(3, 9), changed(6, 0x20), changed(6, 0x80), changed(7, 1)] {
            assert_eq!(Template::of(&whole), None, "{whole:?}");
        }
        let mut bad = ipv4_udp(7, 2, b"x");
        bad[11] ^= 1;
        assert_eq!(Template::of(&bad), None);
        let mut long = ipv6_udp(7, 2, b"x");
        long.push(0);
        assert_eq!(Template::of(&long), None);
    }

    #[test]
    fn a_longer_template_that_is_none_is_refused() {
        let template = Template::of(&ipv4_udp(7, 2, b"x")).unwrap();
        let longer = template.longer(&Shared::of(b"shared"));
        assert_eq!(Template::parse(longer.as_bytes()), Some(longer));
        let none = template.longer(&Shared { mask: 0, bytes: [0; Shared::SPAN] });
        assert_eq!(Template::parse(none.as_bytes()), None, "nothing is shared");
        let stray = template.longer(&Shared { mask: 1, ..Shared::of(b"shared") });
        assert_eq!(Template::parse(stray.as_bytes()), None, "a byte that is not");
        let mut form = longer.compress(3, ipv4_udp(7, 2, b"shared"));
        assert_eq!(form.len(), 3);
        form.pop();
        let Some(Form::Compressed(short)) = Form::read(&form) else { panic!("{form:?}") };
        assert_eq!(longer.expand(&short, &mut Vec::new()), None);
    }

    /// 0xffff is as right as 0 to who checks it, and must come back as 0xffff.
    #[test]
    fn the_other_zero_of_a_checksum_is_kept() {
        let zero = (0..=u16::MAX).map(|id| {
            let mut packet = ipv4_udp(7, 2, b"x");
            packet[4..6].copy_from_slice(&id.to_be_bytes());
            with_checksum(packet)
        });
        let mut packet = zero.into_iter().find(|packet| packet[10..12] == [0; 2]).unwrap();
        assert!(Template::of(&packet).is_some());
        packet[10..12].fill(0xff);
        assert_eq!((checksum(&packet[..20]), Template::of(&packet)), (0, None));
    }

    #[test]
    fn what_is_no_template_or_form_is_refused() {
        let template = *Template::of(&ipv4_udp(7, 2, b"x")).unwrap().as_bytes().first_chunk::<28>().unwrap();
        assert!(Template::parse(&template).is_some());
        for (at, to) in [(0, 0x46), (1, 1), (2, 1), (4, 1), (6, 0x20), (7, 1), (9, 50), (10, 1), (25, 1)] {
            let mut changed = template;
            changed[at] = to;
            assert_eq!(Template::parse(&changed), None, "{at}");
        }
        for cut in (1..20).chain(21..28) {
            assert_eq!(Template::parse(&template[..cut]), None, "{cut}");
        }
        assert_eq!(Template::parse(&[0x45; 60]), None);
        for none in [&[][..], &[1], &[0x7f, 0], &[0xff]] {
            assert_eq!(Form::read(none), None);
        }
        let short = Form::read(&[0x80, 1]).unwrap();
        let Form::Compressed(short) = short else { panic!("{short:?}") };
        assert_eq!(Template::parse(&template).unwrap().expand(&short, &mut Vec::new()), None);
        let long = [&[0x80][..], &[0; 65_530]].concat();
        let Some(Form::Compressed(long)) = Form::read(&long) else { panic!() };
        assert_eq!(Template::parse(&template).unwrap().expand(&long, &mut Vec::new()), None);
    }

    proptest! {
        #[test]
        fn any_bytes_come_back_as_they_were(
            packet in proptest::collection::vec(any::<u8>(), 0..120),
            start in prop::sample::select(vec![0u8, 0x45, 0x60, 0x80]),
            cid: u8,
        ) {
            let mut packet = packet;
            if let Some(first) = packet.first_mut() { *first = start }
            let form = whole(packet.clone());
            prop_assert_eq!(Form::read(&form), Some(Form::Whole(&packet)));
            prop_assert!(form.len() <= packet.len() + 1);
            form_of(&packet, cid);
        }

        /// Headers that are right but for a few bytes.
        #[test]
        fn headers_with_changes_come_back_as_they_were(
            v6: bool,
            ecn in 0u8..4,
            payload in proptest::collection::vec(any::<u8>(), 0..60),
            changes in proptest::collection::vec((0usize..48, any::<u8>()), 0..4),
            right: bool,
            cid: u8,
        ) {
            let mut packet = if v6 { ipv6_udp(7, ecn, &payload) } else { ipv4_udp(7, ecn, &payload) };
            for (at, to) in changes {
                if let Some(byte) = packet.get_mut(at) { *byte = to }
            }
            if right && !v6 { packet = with_checksum(packet) }
            if let Some(template) = Template::of(&packet) {
                prop_assert_eq!(Template::parse(template.as_bytes()), Some(template));
                let form = form_of(&packet, cid).unwrap();
                prop_assert!(form.len() < packet.len());
            }
        }

        #[test]
        fn what_is_shared_behind_the_header_comes_back(
            first in proptest::collection::vec(0u8..3, 0..48),
            others in proptest::collection::vec(proptest::collection::vec(0u8..3, 0..48), 1..6),
            v6: bool,
            cid: u8,
        ) {
            let packet = |payload: &[u8]| if v6 { ipv6_udp(7, 0, payload) } else { ipv4_udp(7, 0, payload) };
            let mut shared = Shared::of(&first);
            others.iter().for_each(|other| shared.narrow(other));
            prop_assume!(shared.count() > 0);
            let template = Template::of(&packet(&first)).unwrap();
            let longer = template.longer(&shared);
            prop_assert_eq!(Template::parse(longer.as_bytes()), Some(longer));
            for payload in others.iter().chain([&first]) {
                prop_assert!(longer.fits(payload));
                let form = longer.compress(cid, packet(payload));
                prop_assert_eq!(form.len() + shared.count(), template.compress(cid, packet(payload)).len());
                prop_assert_eq!(expanded(&longer, &form), packet(payload));
            }
        }

        #[test]
        fn whatever_is_read_expands_to_a_packet_or_is_refused(
            template in proptest::collection::vec(any::<u8>(), 0..90),
            first in prop::sample::select(vec![0x45u8, 0x60]),
            form in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let mut template = template;
            if let Some(byte) = template.first_mut() { *byte = first }
            if let (Some(template), Some(Form::Compressed(form))) = (Template::parse(&template), Form::read(&form)) {
                let mut out = Vec::new();
                if template.expand(&form, &mut out).is_some() {
                    prop_assert_eq!(out[0] >> 4, first >> 4);
                }
            }
        }
    }
}
