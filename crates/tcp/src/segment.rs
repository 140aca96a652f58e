//! A TCP segment: what its header says, and how long its payload is (RFC 9293 §3.1).

use std::fmt;

/// A TCP segment. Its payload is a length: what the bytes are makes no difference to the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Segment {
    /// Sequence number of the first payload byte, or of the SYN.
    pub seq: u32,
    /// The next sequence number that the sender of this segment expects; meaningless without the ACK flag.
    pub ack: u32,
    /// Payload bytes.
    pub len: u32,
    /// The receive window, in units of the scale that the SYN announced; a SYN's own is never scaled (RFC
    /// 7323 §2.2).
    pub window: u16,
    /// SYN, ACK, FIN, RST, PSH.
    pub flags: Flags,
    /// What a SYN says of its sender; `None` on all other segments.
    pub syn: Option<SynOptions>,
    /// RFC 7323 §3.
    pub timestamps: Option<Timestamps>,
    /// RFC 2018.
    pub sack: SackBlocks,
    /// The congestion header of XCP.
    pub congestion: CongestionOption,
}

/// The congestion header of XCP as a TCP option: kind 254, of the shared experimental ones (RFC 6994).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CongestionOption {
    /// There is none.
    #[default]
    None,
    /// On a SYN: its sender would use it. On the answer: and so would the other.
    Offer,
    /// On a segment with data, from the sender to the routers and to the receiver.
    Request {
        /// The sender's round-trip time, microseconds; 0 before the first measurement.
        rtt: u32,
        /// X, the time between its segments, nanoseconds, at most as long as fits.
        spacing: u32,
        /// Bytes per second: what the sender asks for, and what routers leave of it.
        feedback: i32,
    },
    /// On a segment without data, from the receiver: the running sum of the feedback that it has received,
    /// modulo 2³². The sender takes differences, so that a lost one loses nothing.
    Total(u32),
}

impl CongestionOption {
    /// Bytes of the option, a multiple of four; 0 for none.
    #[inline]
    pub fn length(self) -> usize {
        match self {
            CongestionOption::None => 0,
            CongestionOption::Offer => 4,
            CongestionOption::Request { .. } => REQUEST_LENGTH,
            CongestionOption::Total(_) => 8,
        }
    }
}

/// Bytes of [`CongestionOption::Request`].
pub(crate) const REQUEST_LENGTH: usize = 16;

/// Options that only a SYN carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SynOptions {
    /// The largest payload that the sender of the SYN wants to receive (RFC 9293 §3.7.1).
    pub mss: Option<u16>,
    /// The shift of the windows that the sender of the SYN will announce, 0–14 (RFC 7323 §2).
    pub window_scale: Option<u8>,
    /// The sender of the SYN understands selective acknowledgements.
    pub sack_permitted: bool,
}

/// The timestamps option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timestamps {
    /// The sender's clock.
    pub value: u32,
    /// The other side's clock, as last received.
    pub echo: u32,
}

/// The control bits.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(u8);

impl Flags {
    /// No more data from the sender.
    pub const FIN: Flags = Flags(0x01);
    /// Synchronize sequence numbers.
    pub const SYN: Flags = Flags(0x02);
    /// Reset the connection.
    pub const RST: Flags = Flags(0x04);
    /// Push.
    pub const PSH: Flags = Flags(0x08);
    /// The acknowledgement number counts.
    pub const ACK: Flags = Flags(0x10);

    /// From the byte of the header.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// As the byte of the header.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Whether all of `flags` are set.
    pub const fn has(self, flags: Flags) -> bool {
        self.0 & flags.0 == flags.0
    }
}

impl std::ops::BitOr for Flags {
    type Output = Flags;
    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [(Flags, char); 5] =
            [(Flags::SYN, 'S'), (Flags::FIN, 'F'), (Flags::RST, 'R'), (Flags::PSH, 'P'), (Flags::ACK, '.')];
        NAMES.iter().filter(|(flag, _)| self.has(*flag)).try_for_each(|(_, name)| write!(f, "{name}"))
    }
}

/// As many SACK blocks as fit beside nothing but themselves (RFC 2018 §3); three beside timestamps.
pub const MAX_SACK_BLOCKS: usize = 4;

/// The blocks of a SACK option: first sequence number, and the one after the last. The newest comes first.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct SackBlocks {
    blocks: [(u32, u32); MAX_SACK_BLOCKS],
    count: u8,
}

impl SackBlocks {
    /// Adds a block behind the others; one that has no room is left out.
    pub fn push(&mut self, first: u32, end: u32) {
        if usize::from(self.count) < MAX_SACK_BLOCKS {
            self.blocks[usize::from(self.count)] = (first, end);
            self.count += 1;
        }
    }

    /// The blocks.
    pub fn as_slice(&self) -> &[(u32, u32)] {
        &self.blocks[..usize::from(self.count)]
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }
}

impl fmt::Debug for SackBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

impl Segment {
    /// Whether the SYN flag is set.
    pub fn is_syn(&self) -> bool {
        self.flags.has(Flags::SYN)
    }

    /// Whether the FIN flag is set.
    pub fn is_fin(&self) -> bool {
        self.flags.has(Flags::FIN)
    }

    /// Whether the RST flag is set.
    pub fn is_rst(&self) -> bool {
        self.flags.has(Flags::RST)
    }

    /// Whether the acknowledgement number counts.
    pub fn is_ack(&self) -> bool {
        self.flags.has(Flags::ACK)
    }

    /// The sequence space that it takes: payload, and one each for SYN and FIN (RFC 9293 §3.4).
    pub fn sequence_length(&self) -> u32 {
        self.len + u32::from(self.is_syn()) + u32::from(self.is_fin())
    }

    /// Bytes of an IPv4 packet that carries it: 20 of IPv4 without options, the TCP header, the payload.
    #[inline]
    pub fn ip_length(&self) -> usize {
        const IPV4_HEADER: usize = 20;
        IPV4_HEADER + self.header_length() + self.len as usize
    }
}

/// The sequence number of `offset`, counted from `initial`.
pub(crate) fn sequence_of(initial: u32, offset: u64) -> u32 {
    initial.wrapping_add(offset as u32)
}

/// The offset whose sequence number is `seq`, the nearest to `near` (RFC 7323 §2.2 keeps windows below 2^30,
/// so the nearest is the right one). `None` for one that would lie before the start of the stream.
pub(crate) fn offset_of(initial: u32, seq: u32, near: u64) -> Option<u64> {
    let distance = seq.wrapping_sub(sequence_of(initial, near)) as i32;
    near.checked_add_signed(i64::from(distance))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_syn_and_a_fin_each_take_one_sequence_number() {
        let segment = Segment { len: 10, flags: Flags::SYN | Flags::FIN, ..Segment::default() };
        assert_eq!(segment.sequence_length(), 12);
    }

    #[test]
    fn a_fifth_sack_block_has_no_room() {
        let mut blocks = SackBlocks::default();
        (0..5).for_each(|n| blocks.push(n, n + 1));
        assert_eq!(blocks.as_slice(), [(0, 1), (1, 2), (2, 3), (3, 4)]);
    }

    #[test]
    fn an_offset_before_the_stream_is_none() {
        assert_eq!(offset_of(100, 99, 0), None);
        assert_eq!(offset_of(u32::MAX, 1, 0), Some(2), "across the wrap");
    }

    proptest! {
        #[test]
        fn a_sequence_number_is_unwrapped_across_any_number_of_wraps(
            initial: u32,
            near in 0u64..1 << 50,
            distance in -(1i64 << 30)..1 << 30,
        ) {
            prop_assume!(near as i64 + distance >= 0);
            let offset = near.wrapping_add_signed(distance);
            prop_assert_eq!(offset_of(initial, sequence_of(initial, offset), near), Some(offset));
        }
    }
}
