//! A set of byte ranges: of a stream or a block, those that arrived out of order, or were selectively
//! acknowledged.

use std::collections::VecDeque;

/// Disjoint half-open ranges in ascending order; ranges that touch are one.
///
/// Ranges are few beside the bytes in them, so they lie in a sorted queue: finding one takes O(log n), and
/// taking away from the front, which is what a cumulative acknowledgement does, O(1).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranges {
    ranges: VecDeque<(u64, u64)>,
    bytes: u64,
}

impl Ranges {
    /// Bytes in the set.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether no byte is in the set.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The ranges, ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().copied()
    }

    /// The end of the last range.
    #[inline]
    pub fn end(&self) -> Option<u64> {
        self.ranges.back().map(|range| range.1)
    }

    /// The range that contains `offset`.
    #[inline]
    pub fn containing(&self, offset: u64) -> Option<(u64, u64)> {
        // Most questions are about the newest range, or about what lies before all of them.
        let (first, last) = (self.ranges.front()?, self.ranges.back()?);
        if offset < first.0 {
            return None;
        }
        if offset >= last.0 {
            return (offset < last.1).then_some(*last);
        }
        let next = self.ranges.partition_point(|range| range.0 <= offset);
        next.checked_sub(1).map(|at| self.ranges[at]).filter(|range| offset < range.1)
    }

    /// The start of the first range at or behind `offset`.
    #[inline]
    pub fn next_start(&self, offset: u64) -> Option<u64> {
        let next = self.ranges.partition_point(|range| range.0 < offset);
        self.ranges.get(next).map(|range| range.0)
    }

    /// Adds a range and calls `fresh` with each part of it that was not in the set, ascending.
    pub fn insert(&mut self, start: u64, end: u64, mut fresh: impl FnMut(u64, u64)) {
        if start >= end {
            return;
        }
        // The ranges that overlap or touch: from the first that ends at or behind the start …
        let first = self.ranges.partition_point(|range| range.1 < start);
        let (mut merged, mut covered, mut last) = ((start, end), start, first);
        // … to the last that starts at or before the end.
        while let Some(&(from, to)) = self.ranges.get(last).filter(|range| range.0 <= end) {
            if covered < from {
                fresh(covered, from);
                self.bytes += from - covered;
            }
            covered = covered.max(to);
            merged = (merged.0.min(from), merged.1.max(to));
            last += 1;
        }
        if covered < end {
            fresh(covered, end);
            self.bytes += end - covered;
        }
        self.replace(first, last, merged);
    }

    /// Takes away everything before `offset`.
    pub fn remove_before(&mut self, offset: u64) {
        while let Some(front) = self.ranges.front_mut() {
            let cut = offset.min(front.1).saturating_sub(front.0);
            self.bytes -= cut;
            front.0 += cut;
            if front.0 < front.1 {
                return;
            }
            self.ranges.pop_front();
        }
    }

    fn replace(&mut self, first: usize, last: usize, merged: (u64, u64)) {
        if first == last {
            self.ranges.insert(first, merged);
        } else {
            self.ranges[first] = merged;
            self.ranges.drain(first + 1..last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn insert(ranges: &mut Ranges, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut fresh = Vec::new();
        ranges.insert(start, end, |from, to| fresh.push((from, to)));
        fresh
    }

    #[test]
    fn only_new_segments_are_called_fresh() {
        let mut ranges = Ranges::default();
        assert_eq!(insert(&mut ranges, 10, 20), [(10, 20)]);
        assert_eq!(insert(&mut ranges, 30, 40), [(30, 40)]);
        assert_eq!(insert(&mut ranges, 5, 35), [(5, 10), (20, 30)]);
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(5, 40)]);
    }

    #[test]
    fn ranges_that_touch_become_one() {
        let mut ranges = Ranges::default();
        insert(&mut ranges, 0, 10);
        insert(&mut ranges, 20, 30);
        insert(&mut ranges, 10, 20);
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(0, 30)]);
    }

    proptest! {
        #[test]
        fn it_is_the_set_of_its_bytes(steps in prop::collection::vec((0u64..200, 0u64..30, any::<bool>()), 1..60)) {
            let (mut ranges, mut bytes) = (Ranges::default(), BTreeSet::new());
            for (start, length, cut) in steps {
                if cut && length < 3 {
                    ranges.remove_before(start);
                    bytes.retain(|&byte| byte >= start);
                } else {
                    let fresh = insert(&mut ranges, start, start + length);
                    let new: Vec<u64> = (start..start + length).filter(|&byte| bytes.insert(byte)).collect();
                    prop_assert_eq!(fresh.iter().flat_map(|&(from, to)| from..to).collect::<Vec<_>>(), new);
                }
                prop_assert_eq!(ranges.bytes(), bytes.len() as u64);
                prop_assert!(ranges.iter().flat_map(|(from, to)| from..to).eq(bytes.iter().copied()));
                prop_assert!(ranges.iter().zip(ranges.iter().skip(1)).all(|(a, b)| a.1 < b.0));
                prop_assert_eq!(ranges.containing(start).is_some(), bytes.contains(&start));
            }
        }
    }
}
