//! Segments as bytes: the TCP header of RFC 9293 §3.1 with the options that this endpoint knows.

use crate::segment::{CongestionOption, Flags, MAX_SACK_BLOCKS, SackBlocks, Segment, SynOptions, Timestamps};

const HEADER: usize = 20;
const MAX_HEADER: usize = 60;

const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;
const EXPERIMENTAL: u8 = 254;
/// The identifier among the experimental options (RFC 6994 §3).
const CONGESTION: [u8; 2] = [0x42, 0x50];
/// RFC 7323 §2.3: a larger shift is taken as this one.
const MAX_WINDOW_SCALE: u8 = 14;

/// Bytes that are no TCP segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Shorter than a TCP header.
    #[error("{0} bytes are too few for a TCP header, which has at least 20")]
    Short(usize),
    /// The data offset points before the end of the fixed header or beyond the segment.
    #[error("the data offset says {offset} bytes of header, and the segment has {length} bytes")]
    DataOffset {
        /// The length that it announces, bytes.
        offset: usize,
        /// The bytes that there are.
        length: usize,
    },
}

impl Segment {
    /// Bytes of the TCP header with its options, a multiple of four.
    // Each link asks for it.
    #[inline(always)]
    pub fn header_length(&self) -> usize {
        let syn = if self.syn.is_some() { self.syn_options_length() } else { 0 };
        let timestamps = 12 * usize::from(self.timestamps.is_some());
        let sack = if self.sack.is_empty() { 0 } else { 4 + 8 * self.sack.len() };
        HEADER + syn + timestamps + sack + self.congestion.length()
    }

    #[cold]
    fn syn_options_length(&self) -> usize {
        self.syn.map_or(0, |syn| {
            4 * usize::from(syn.mss.is_some())
                + 4 * usize::from(syn.window_scale.is_some())
                // In the two bytes of padding that timestamps would need, where there are timestamps.
                + 4 * usize::from(syn.sack_permitted && self.timestamps.is_none())
        })
    }

    /// Appends the TCP header to `wire`; the checksum, which covers payload and addresses too, is left zero.
    /// SACK blocks for which the header has no room are left out; the congestion option has its room before
    /// them.
    pub fn encode_header(&self, source_port: u16, destination_port: u16, wire: &mut Vec<u8>) {
        let start = wire.len();
        wire.extend_from_slice(&source_port.to_be_bytes());
        wire.extend_from_slice(&destination_port.to_be_bytes());
        wire.extend_from_slice(&self.seq.to_be_bytes());
        wire.extend_from_slice(&self.ack.to_be_bytes());
        wire.extend_from_slice(&[0, self.flags.bits()]);
        wire.extend_from_slice(&self.window.to_be_bytes());
        wire.extend_from_slice(&[0; 4]);
        self.encode_options(start, wire);
        let words = (wire.len() - start) / 4;
        wire[start + 12] = (words as u8) << 4;
    }

    fn encode_options(&self, start: usize, wire: &mut Vec<u8>) {
        let syn = self.syn.unwrap_or_default();
        if let Some(mss) = syn.mss {
            wire.extend_from_slice(&[MSS, 4]);
            wire.extend_from_slice(&mss.to_be_bytes());
        }
        let padding = if syn.sack_permitted { [SACK_PERMITTED, 2] } else { [NO_OPERATION; 2] };
        if let Some(Timestamps { value, echo }) = self.timestamps {
            wire.extend_from_slice(&padding);
            wire.extend_from_slice(&[TIMESTAMPS, 10]);
            wire.extend_from_slice(&value.to_be_bytes());
            wire.extend_from_slice(&echo.to_be_bytes());
        } else if syn.sack_permitted {
            wire.extend_from_slice(&[NO_OPERATION, NO_OPERATION, SACK_PERMITTED, 2]);
        }
        if let Some(shift) = syn.window_scale {
            wire.extend_from_slice(&[NO_OPERATION, WINDOW_SCALE, 3, shift]);
        }
        self.encode_congestion(wire);
        let room = (MAX_HEADER - (wire.len() - start)).saturating_sub(4) / 8;
        let blocks = &self.sack.as_slice()[..self.sack.len().min(room)];
        if !blocks.is_empty() {
            wire.extend_from_slice(&[NO_OPERATION, NO_OPERATION, SACK, 2 + 8 * blocks.len() as u8]);
            for (first, end) in blocks {
                wire.extend_from_slice(&first.to_be_bytes());
                wire.extend_from_slice(&end.to_be_bytes());
            }
        }
    }

    fn encode_congestion(&self, wire: &mut Vec<u8>) {
        if self.congestion == CongestionOption::None {
            return;
        }
        wire.extend_from_slice(&[EXPERIMENTAL, self.congestion.length() as u8]);
        wire.extend_from_slice(&CONGESTION);
        match self.congestion {
            CongestionOption::None | CongestionOption::Offer => {}
            CongestionOption::Request { rtt, spacing, feedback } => {
                wire.extend_from_slice(&rtt.to_be_bytes());
                wire.extend_from_slice(&spacing.to_be_bytes());
                wire.extend_from_slice(&feedback.to_be_bytes());
            }
            CongestionOption::Total(total) => wire.extend_from_slice(&total.to_be_bytes()),
        }
    }
}

impl Segment {
    /// Reads a segment, header and payload; the checksum is not looked at. Options that are unknown or
    /// malformed are passed over, as RFC 9293 §3.1 asks.
    ///
    /// # Errors
    /// The bytes are too few for the header that they claim.
    pub fn decode(wire: &[u8]) -> Result<Segment, WireError> {
        if wire.len() < HEADER {
            return Err(WireError::Short(wire.len()));
        }
        let offset = usize::from(wire[12] >> 4) * 4;
        if offset < HEADER || offset > wire.len() {
            return Err(WireError::DataOffset { offset, length: wire.len() });
        }
        let mut segment = Segment {
            seq: word(wire, 4),
            ack: word(wire, 8),
            len: (wire.len() - offset) as u32,
            window: u16::from_be_bytes([wire[14], wire[15]]),
            flags: Flags::from_bits(wire[13]),
            ..Segment::default()
        };
        if segment.is_syn() {
            segment.syn = Some(SynOptions::default());
        }
        segment.decode_options(&wire[HEADER..offset]);
        Ok(segment)
    }

    fn decode_options(&mut self, mut options: &[u8]) {
        while let [kind, rest @ ..] = options {
            match (*kind, rest) {
                (END, _) => return,
                (NO_OPERATION, _) => options = rest,
                (_, [length, ..]) if (2..=options.len()).contains(&usize::from(*length)) => {
                    self.decode_option(*kind, &options[2..usize::from(*length)]);
                    options = &options[usize::from(*length)..];
                }
                _ => return,
            }
        }
    }

    fn decode_option(&mut self, kind: u8, value: &[u8]) {
        match (kind, value, &mut self.syn) {
            (MSS, [high, low], Some(syn)) => syn.mss = Some(u16::from_be_bytes([*high, *low])),
            (WINDOW_SCALE, [shift], Some(syn)) => syn.window_scale = Some((*shift).min(MAX_WINDOW_SCALE)),
            (SACK_PERMITTED, [], Some(syn)) => syn.sack_permitted = true,
            (TIMESTAMPS, [_, _, _, _, _, _, _, _], _) => {
                self.timestamps = Some(Timestamps { value: word(value, 0), echo: word(value, 4) });
            }
            (SACK, blocks, _) if blocks.len() % 8 == 0 && blocks.len() <= 8 * MAX_SACK_BLOCKS => {
                self.sack = SackBlocks::default();
                blocks.chunks_exact(8).for_each(|block| self.sack.push(word(block, 0), word(block, 4)));
            }
            (EXPERIMENTAL, [high, low, value @ ..], _) if [*high, *low] == CONGESTION => {
                self.decode_congestion(value);
            }
            _ => {}
        }
    }

    /// The bytes after the identifier: their number says which option it is, and where it may be.
    fn decode_congestion(&mut self, value: &[u8]) {
        self.congestion = match (value.len(), self.is_syn()) {
            (0, true) => CongestionOption::Offer,
            (12, false) => CongestionOption::Request {
                rtt: word(value, 0),
                spacing: word(value, 4),
                feedback: word(value, 8) as i32,
            },
            (4, false) => CongestionOption::Total(word(value, 0)),
            _ => self.congestion,
        };
    }
}

fn word(wire: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([wire[at], wire[at + 1], wire[at + 2], wire[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encode(segment: &Segment) -> Vec<u8> {
        let mut wire = Vec::new();
        segment.encode_header(1000, 80, &mut wire);
        wire.resize(wire.len() + segment.len as usize, 0);
        wire
    }

    #[test]
    fn the_syn_of_linux_has_a_header_of_40_bytes() {
        let syn = SynOptions { mss: Some(1460), window_scale: Some(7), sack_permitted: true };
        let timestamps = Some(Timestamps { value: 1, echo: 0 });
        let segment = Segment { flags: Flags::SYN, syn: Some(syn), timestamps, ..Segment::default() };
        let wire = encode(&segment);
        assert_eq!((wire.len(), segment.header_length()), (40, 40));
        let options = [2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7];
        assert_eq!(wire[20..], options);
    }

    #[test]
    fn three_sack_blocks_fit_beside_timestamps_and_the_fourth_is_left_out() {
        let mut sack = SackBlocks::default();
        (0..4).for_each(|n| sack.push(n * 10, n * 10 + 5));
        let timestamps = Some(Timestamps::default());
        let segment = Segment { flags: Flags::ACK, timestamps, sack, ..Segment::default() };
        let wire = encode(&segment);
        assert_eq!(wire.len(), 60);
        assert_eq!(Segment::decode(&wire).unwrap().sack.len(), 3);
    }

    #[test]
    fn a_request_is_16_bytes_of_the_experimental_kind() {
        let congestion = CongestionOption::Request { rtt: 600_000, spacing: 0x0102_0304, feedback: -2 };
        let wire = encode(&Segment { flags: Flags::ACK, congestion, ..Segment::default() });
        assert_eq!(wire[20..], [254, 16, 0x42, 0x50, 0, 9, 0x27, 0xc0, 1, 2, 3, 4, 255, 255, 255, 254]);
        let mut other = wire.clone();
        other[23] = 0x51;
        assert_eq!(Segment::decode(&other).unwrap().congestion, CongestionOption::None, "another experiment");
    }

    #[test]
    fn a_truncated_option_ends_the_options_and_no_more() {
        let mut wire = encode(&Segment { flags: Flags::ACK, seq: 7, ..Segment::default() });
        wire[12] = 6 << 4;
        wire.extend_from_slice(&[TIMESTAMPS, 10, 0, 0]);
        let segment = Segment::decode(&wire).unwrap();
        assert_eq!((segment.seq, segment.timestamps, segment.len), (7, None, 0));
    }

    #[test]
    fn a_header_beyond_the_end_is_an_error() {
        let mut wire = [0u8; 24];
        assert_eq!(Segment::decode(&wire[..19]), Err(WireError::Short(19)));
        wire[12] = 4 << 4;
        assert_eq!(Segment::decode(&wire), Err(WireError::DataOffset { offset: 16, length: 24 }));
        wire[12] = 7 << 4;
        assert_eq!(Segment::decode(&wire), Err(WireError::DataOffset { offset: 28, length: 24 }));
    }

    fn segments() -> impl Strategy<Value = Segment> {
        let syn = (any::<Option<u16>>(), prop::option::of(0u8..=14), any::<bool>())
            .prop_map(|(mss, window_scale, sack_permitted)| SynOptions { mss, window_scale, sack_permitted });
        let timestamps = any::<(u32, u32)>().prop_map(|(value, echo)| Timestamps { value, echo });
        let blocks = prop::collection::vec(any::<(u32, u32)>(), 0..=3);
        let congestion = prop_oneof![
            Just(CongestionOption::None),
            Just(CongestionOption::Offer),
            any::<(u32, u32, i32)>().prop_map(|(rtt, spacing, feedback)| CongestionOption::Request {
                rtt,
                spacing,
                feedback
            }),
            any::<u32>().prop_map(CongestionOption::Total),
        ];
        (any::<(u32, u32, u16, u8)>(), 0u32..2000, syn, prop::option::of(timestamps), blocks, congestion)
            .prop_map(|((seq, ack, window, bits), len, syn, timestamps, blocks, congestion)| {
                let flags = Flags::from_bits(bits);
                let syn = flags.has(Flags::SYN).then_some(syn);
                let mut sack = SackBlocks::default();
                if syn.is_none() {
                    blocks.iter().for_each(|&(first, end)| sack.push(first, end));
                }
                let segment =
                    Segment { seq, ack, len, window, flags, syn, timestamps, sack, ..Segment::default() };
                let is_in_place = (congestion == CongestionOption::Offer) == syn.is_some();
                let has_room = segment.header_length() + congestion.length() <= MAX_HEADER;
                let congestion = if is_in_place && has_room { congestion } else { CongestionOption::None };
                Segment { congestion, ..segment }
            })
    }

    proptest! {
        #[test]
        fn written_values_are_read_back(segment in segments()) {
            let wire = encode(&segment);
            prop_assert_eq!(wire.len(), segment.header_length() + segment.len as usize);
            prop_assert_eq!(Segment::decode(&wire), Ok(segment));
        }

        #[test]
        fn any_bytes_are_a_segment_or_an_error(wire: Vec<u8>) {
            let _ = Segment::decode(&wire);
        }

        #[test]
        fn any_options_are_read_without_a_panic(options in prop::collection::vec(any::<u8>(), 40), bits: u8) {
            let mut wire = vec![0; 20];
            wire[12] = 15 << 4;
            wire[13] = bits;
            wire.extend_from_slice(&options);
            prop_assert!(Segment::decode(&wire).is_ok());
        }
    }
}
