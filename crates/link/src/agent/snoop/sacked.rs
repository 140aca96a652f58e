//! The ranges that a receiver has selectively acknowledged.

use super::super::packet::is_before;

/// Ranges of sequence numbers above the cumulative acknowledgement, disjoint and in order.
#[derive(Debug, Clone, Default)]
pub(super) struct Sacked {
    ranges: Vec<(u32, u32)>,
}

impl Sacked {
    /// Adds a block and calls `new` with each part of it that was not there before, in order. A block that
    /// would make more than `most` ranges is reported, but not stored.
    pub(super) fn add(&mut self, (first, end): (u32, u32), most: usize, mut new: impl FnMut(u32, u32)) {
        let from = self.ranges.partition_point(|range| is_before(range.1, first));
        let to = self.ranges.partition_point(|range| !is_before(end, range.0));
        let mut merged = (first, end);
        let mut at = first;
        for &(start, stop) in &self.ranges[from..to] {
            if is_before(at, start) {
                new(at, start);
            }
            if is_before(at, stop) {
                at = stop;
            }
            merged = (earlier(merged.0, start), later(merged.1, stop));
        }
        if is_before(at, end) {
            new(at, end);
        }
        if from < to || self.ranges.len() < most {
            self.ranges.splice(from..to, [merged]);
        }
    }

    /// Removes the ranges before the cumulative acknowledgement.
    pub(super) fn acknowledge(&mut self, ack: u32) {
        let done = self.ranges.partition_point(|range| !is_before(ack, range.1));
        self.ranges.drain(..done);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.ranges.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.ranges.clear();
    }

    /// Frees memory that is not needed now.
    pub(super) fn shrink(&mut self) {
        self.ranges.shrink_to_fit();
    }
}

fn earlier(a: u32, b: u32) -> u32 {
    if is_before(a, b) { a } else { b }
}

fn later(a: u32, b: u32) -> u32 {
    if is_before(a, b) { b } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn add(sacked: &mut Sacked, block: (u32, u32)) -> Vec<(u32, u32)> {
        let mut new = Vec::new();
        sacked.add(block, usize::MAX, |first, end| new.push((first, end)));
        new
    }

    #[test]
    fn a_block_beyond_the_bound_is_reported_and_not_stored() {
        let mut sacked = Sacked::default();
        add(&mut sacked, (10, 20));
        let mut reported = Vec::new();
        for block in [(30, 40), (30, 40), (15, 25)] {
            sacked.add(block, 1, |first, end| reported.push((first, end)));
        }
        assert_eq!((reported, sacked.ranges), (vec![(30, 40), (30, 40), (20, 25)], vec![(10, 25)]));
    }

    #[test]
    fn only_the_new_part_of_a_block_is_reported() {
        let mut sacked = Sacked::default();
        assert_eq!(add(&mut sacked, (10, 20)), [(10, 20)]);
        assert_eq!(add(&mut sacked, (10, 30)), [(20, 30)]);
        assert_eq!(add(&mut sacked, (40, 50)), [(40, 50)]);
        assert_eq!(add(&mut sacked, (5, 60)), [(5, 10), (30, 40), (50, 60)]);
        assert_eq!(add(&mut sacked, (12, 15)), []);
        assert_eq!(sacked.ranges, [(5, 60)]);
        sacked.acknowledge(60);
        assert!(sacked.is_empty());
    }

    #[test]
    fn ranges_across_the_wrap_are_in_order() {
        let mut sacked = Sacked::default();
        let near = u32::MAX - 9;
        assert_eq!(add(&mut sacked, (5, 9)), [(5, 9)]);
        assert_eq!(add(&mut sacked, (near, 7)), [(near, 5)]);
        sacked.acknowledge(3);
        assert_eq!(sacked.ranges, [(near, 9)]);
    }

    proptest! {
        #[test]
        fn every_number_is_reported_once(
            base: u32,
            blocks in prop::collection::vec((0u32..200, 1u32..50), 1..40),
        ) {
            let mut sacked = Sacked::default();
            let mut reported = vec![false; 300];
            let mut covered = vec![false; 300];
            for (first, length) in blocks {
                covered[first as usize..(first + length) as usize].fill(true);
                let (first, end) = (base.wrapping_add(first), base.wrapping_add(first + length));
                sacked.add((first, end), usize::MAX, |first, end| {
                    let (mut at, end) = (first.wrapping_sub(base), end.wrapping_sub(base));
                    while at < end {
                        assert!(!std::mem::replace(&mut reported[at as usize], true));
                        at += 1;
                    }
                });
                prop_assert_eq!(&reported, &covered);
            }
            for pair in sacked.ranges.windows(2) {
                prop_assert!(is_before(pair[0].1, pair[1].0));
            }
        }
    }
}
