//! TCP's sequence numbers as the packet numbers of QUIC: each segment has a new one, also when it is sent again.

use std::collections::BTreeMap;

use bentpipe_tcp::{Flags, Segment};

/// The segments of a sender that are not acknowledged.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    next: u64,
    /// By the place of their first byte in the stream.
    outstanding: BTreeMap<u64, Outstanding>,
    /// Next to it are the places of sequence numbers; `None` before the SYN.
    place: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Outstanding {
    /// The place behind its last byte.
    end: u64,
    number: u64,
}

/// A segment that is sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Numbered {
    pub(super) number: u64,
    /// The number that its first byte had before, if it is sent again.
    pub(super) again: Option<u64>,
}

impl Numbers {
    /// A segment with data, SYN or FIN is sent.
    pub(super) fn sent(&mut self, segment: &Segment) -> Numbered {
        let place = self.place_of(segment.seq);
        self.place = Some(self.place.unwrap_or(place).max(place));
        let controls = [Flags::SYN, Flags::FIN].into_iter().filter(|flag| segment.flags.has(*flag));
        let end = place + u64::from(segment.len) + controls.count() as u64;
        let number = self.next;
        self.next += 1;
        let before = self.outstanding.insert(place, Outstanding { end, number });
        Numbered { number, again: before.map(|before| before.number) }
    }

    /// An acknowledgement comes: ranges of the numbers that it is the first to acknowledge, first and last.
    pub(super) fn acknowledged(&mut self, segment: &Segment) -> Vec<[u64; 2]> {
        if self.place.is_none() || !segment.flags.has(Flags::ACK) {
            return Vec::new();
        }
        let mut numbers = Vec::new();
        let ack = self.place_of(segment.ack);
        self.take(0, ack, &mut numbers);
        for &(first, end) in segment.sack.as_slice() {
            let (first, end) = (self.place_of(first), self.place_of(end));
            self.take(first, end, &mut numbers);
        }
        numbers.sort_unstable();
        let mut ranges: Vec<[u64; 2]> = Vec::new();
        for number in numbers {
            match ranges.last_mut() {
                Some([_, last]) if *last + 1 == number => *last = number,
                _ => ranges.push([number, number]),
            }
        }
        ranges
    }

    /// Takes what is wholly between two places.
    fn take(&mut self, first: u64, end: u64, numbers: &mut Vec<u64>) {
        if first > end {
            return;
        }
        let within = self.outstanding.range(first..end).filter(|(_, segment)| segment.end <= end);
        let places: Vec<u64> = within.map(|(place, _)| *place).collect();
        let taken = places.iter().filter_map(|place| self.outstanding.remove(place));
        numbers.extend(taken.map(|segment| segment.number));
    }

    /// The place next to the last one that has this sequence number.
    fn place_of(&self, seq: u32) -> u64 {
        // The first one is far from zero, so that none is below it.
        let near = self.place.unwrap_or(1 << 32 | u64::from(seq));
        near.wrapping_add_signed(i64::from(seq.wrapping_sub(near as u32) as i32))
    }
}

#[cfg(test)]
mod tests {
    use bentpipe_tcp::SackBlocks;

    use super::*;

    fn data(seq: u32, len: u32) -> Segment {
        Segment { seq, len, flags: Flags::ACK, ..Segment::default() }
    }

    fn ack(ack: u32, blocks: &[(u32, u32)]) -> Segment {
        let mut sack = SackBlocks::default();
        blocks.iter().for_each(|&(first, end)| sack.push(first, end));
        Segment { ack, sack, flags: Flags::ACK, ..Segment::default() }
    }

    #[test]
    fn a_segment_that_is_sent_again_has_a_new_number_and_tells_the_one_before() {
        let mut numbers = Numbers::default();
        let start = u32::MAX - 1500;
        let syn = Segment { seq: start, flags: Flags::SYN, ..Segment::default() };
        assert_eq!(numbers.sent(&syn), Numbered { number: 0, again: None });
        assert_eq!(numbers.acknowledged(&ack(start + 1, &[])), [[0, 0]]);
        // The third one begins beyond the end of the sequence numbers.
        for number in 1..=4 {
            let seq = (start + 1).wrapping_add(1000 * (number as u32 - 1));
            assert_eq!(numbers.sent(&data(seq, 1000)), Numbered { number, again: None });
        }
        let second = start + 1001;
        let third = second.wrapping_add(1000);
        assert_eq!(numbers.acknowledged(&ack(second, &[(third, third + 2000)])), [[1, 1], [3, 4]]);
        assert_eq!(numbers.sent(&data(second, 1000)), Numbered { number: 5, again: Some(2) });
        assert_eq!(numbers.acknowledged(&ack(third + 2000, &[])), [[5, 5]]);
        assert!(numbers.acknowledged(&ack(third + 2000, &[])).is_empty());
    }
}
