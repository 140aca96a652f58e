//! Parts of bundles: cutting, and joining (RFC 9171 §5.8, §5.9). It deals in ranges; the bytes stay where
//! they are.

use std::ops::Range;

use super::{Bundle, Fragment};

/// Whether a bundle may be cut into fragments.
pub(crate) fn is_divisible(bundle: &Bundle) -> bool {
    !bundle.must_not_fragment && bundle.id.is_unique()
}

/// A fragment of a bundle, or of a fragment of one: `range` is a part of the *whole* payload, bytes. What
/// covers all that the bundle has is the bundle as it is.
///
/// Blocks without the flag "must be replicated in every fragment" go with the first fragment only; but hop
/// count, age, priority and previous node go with each, because what limits a bundle has to limit its parts.
///
/// `None` if the range is empty or not within what the bundle has, or the bundle must stay in one piece, as
/// one without a source has to (RFC 9171 §4.2.3).
pub fn cut(bundle: &Bundle, range: Range<u64>) -> Option<Bundle> {
    let has = bundle.range();
    if range == has {
        return Some(bundle.clone());
    }
    if !is_divisible(bundle) || range.is_empty() || range.start < has.start || range.end > has.end {
        return None;
    }
    let total = bundle.id.fragment.map_or(bundle.payload_len, |part| part.total);
    let mut part = bundle.clone();
    part.payload_len = range.end - range.start;
    part.id.fragment = Some(Fragment { offset: range.start, len: part.payload_len, total });
    if range.start > 0 {
        part.drop_unreplicated_blocks();
    }
    Some(part)
}

/// The ranges of as few pieces as there can be of a payload of `len` bytes, none longer than `at_most`; their
/// lengths differ by a byte at the most. A payload of no bytes is one piece.
///
/// # Panics
/// If `at_most` is zero.
pub fn pieces(len: u64, at_most: u64) -> impl ExactSizeIterator<Item = Range<u64>> {
    assert!(at_most > 0, "a piece has a byte at least");
    let count = len.div_ceil(at_most).max(1);
    // More pieces than an address space holds are not asked for one after the other.
    let pieces = usize::try_from(count).unwrap_or(usize::MAX);
    let at = move |index: usize| {
        let part = u128::from(len) * index as u128 / u128::from(count);
        u64::try_from(part).unwrap_or(len)
    };
    (0..pieces).map(move |index| at(index)..at(index + 1))
}

/// Which fragments to read, in order, to have the whole payload: each one's index in `fragments`, and the
/// range of *its own* bytes. They may overlap and come in any order. Those that speak of another total are of
/// another payload: the first total that is complete counts.
///
/// `None` while bytes are missing.
pub fn complete(fragments: &[Fragment]) -> Option<Vec<(usize, Range<u64>)>> {
    let mut totals: Vec<u64> = Vec::new();
    for fragment in fragments {
        if !totals.contains(&fragment.total) {
            totals.push(fragment.total);
        }
    }
    totals.into_iter().find_map(|total| complete_of(fragments, total))
}

fn complete_of(fragments: &[Fragment], total: u64) -> Option<Vec<(usize, Range<u64>)>> {
    let mut order: Vec<usize> =
        (0..fragments.len()).filter(|&index| fragments[index].total == total).collect();
    order.sort_by_key(|&index| fragments[index].offset);
    let mut order = order.into_iter().peekable();
    let mut parts = Vec::new();
    let mut at = 0;
    while at < total {
        // Of those that begin here or before, the one that reaches farthest, so that few are read.
        let mut best: Option<usize> = None;
        while let Some(index) = order.next_if(|&index| fragments[index].offset <= at) {
            if best.is_none_or(|best| fragments[index].end() > fragments[best].end()) {
                best = Some(index);
            }
        }
        let index = best?;
        let end = fragments[index].end().min(total);
        if end <= at {
            return None;
        }
        parts.push((index, at - fragments[index].offset..end - fragments[index].offset));
        at = end;
    }
    Some(parts)
}

/// The bundle that has been cut, from its first fragment, the one with offset 0: that has all blocks. Of a
/// whole bundle it is itself.
pub fn whole(first: &Bundle) -> Bundle {
    let mut whole = first.clone();
    if let Some(part) = whole.id.fragment.take() {
        whole.payload_len = part.total;
    }
    whole
}

impl Bundle {
    /// Which part of the whole payload it has.
    pub fn range(&self) -> Range<u64> {
        let offset = self.id.fragment.map_or(0, |part| part.offset);
        offset..offset.saturating_add(self.payload_len)
    }
}

impl Fragment {
    /// After its last byte.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::DtnTime;
    use crate::bundle::Priority;

    fn bundle(payload_len: u64) -> Bundle {
        let eid = |text: &str| text.parse().unwrap();
        let created = DtnTime::from_millis(7);
        let lifetime = Duration::from_secs(60);
        let mut bundle = Bundle::new(eid("dtn://a/x"), created, 1, eid("dtn://b/y"), lifetime);
        bundle.payload_len = payload_len;
        bundle.priority = Priority::Expedited;
        bundle
    }

    /// RFC 9171 §5.8: a fragment has its offset and the length of the whole payload.
    #[test]
    fn a_fragment_says_where_it_belongs() {
        let part = cut(&bundle(10), 4..7).unwrap();
        assert_eq!(part.id.fragment, Some(Fragment { offset: 4, len: 3, total: 10 }));
        assert_eq!((part.payload_len, part.range(), part.priority), (3, 4..7, Priority::Expedited));
        let smaller = cut(&part, 5..7).unwrap();
        assert_eq!(smaller.id.fragment, Some(Fragment { offset: 5, len: 2, total: 10 }));
        for outside in [3..5, 6..8, 5..5] {
            assert_eq!(cut(&part, outside), None);
        }
        assert_eq!(whole(&cut(&bundle(10), 0..3).unwrap()), bundle(10));
    }

    /// RFC 9171 §4.2.3, §5.8: a bundle that must not be fragmented is not.
    #[test]
    fn one_piece_stays_one_piece() {
        let mut bundle = bundle(10);
        bundle.must_not_fragment = true;
        assert_eq!(cut(&bundle, 0..5), None);
        assert_eq!(cut(&bundle, 0..10), Some(bundle.clone()));
        // Also where another implementation has not said so of a bundle without a source.
        (bundle.must_not_fragment, bundle.id.source) = (false, crate::Eid::None);
        assert_eq!(cut(&bundle, 0..5), None);
    }

    #[test]
    fn totals_are_not_mixed() {
        let part = |offset, len, total| Fragment { offset, len, total };
        assert_eq!(complete(&[part(0, 5, 10), part(5, 5, 11)]), None);
        assert_eq!(
            complete(&[part(0, 5, 11), part(5, 5, 10), part(0, 6, 10)]),
            Some(vec![(2, 0..6), (1, 1..5)])
        );
        assert_eq!(complete(&[]), None);
        assert_eq!(complete(&[part(0, 0, 0)]), Some(vec![]));
        assert_eq!(complete(&[part(0, 0, 1), part(u64::MAX, u64::MAX, 1)]), None);
    }

    /// Cuts into pieces that are cut again, some kept twice.
    fn cuts(bundle: &Bundle, choices: &[(u8, u8)]) -> Vec<Bundle> {
        let mut parts = vec![bundle.clone()];
        for &(which, place) in choices {
            let part = parts[usize::from(which) % parts.len()].clone();
            let range = part.range();
            let middle = range.start + (range.end - range.start) * u64::from(place) / 256;
            let halves = [cut(&part, range.start..middle), cut(&part, middle..range.end)];
            // An eighth of the parts stay beside their halves.
            if place % 8 != 0 && halves.iter().all(Option::is_some) {
                parts.retain(|other| other.id != part.id);
            }
            parts.extend(halves.into_iter().flatten());
        }
        parts
    }

    proptest! {
        /// RFC 9171 §5.9: fragments of fragments, overlapping and in any order, become the payload again.
        #[test]
        fn every_fragmentation_reassembles(
            payload in prop::collection::vec(any::<u8>(), 2..300),
            choices in prop::collection::vec(any::<(u8, u8)>(), 1..40),
            shuffle: u64,
        ) {
            let whole_bundle = bundle(payload.len() as u64);
            let mut parts = cuts(&whole_bundle, &choices);
            parts.retain(|part| part.id.fragment.is_some());
            prop_assume!(!parts.is_empty());
            parts.sort_by_key(|part| (part.range().start ^ shuffle).wrapping_mul(0x9e37_79b9_7f4a_7c15 | shuffle));
            let bytes_of = |part: &Bundle| {
                let range = part.range();
                &payload[usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()]
            };
            let fragments: Vec<_> = parts.iter().filter_map(|part| part.id.fragment).collect();
            let order = complete(&fragments).expect("all parts are there");
            let joined: Vec<u8> = order.iter().flat_map(|(index, range)| {
                let range = usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap();
                bytes_of(&parts[*index])[range].to_vec()
            }).collect();
            prop_assert_eq!(&joined, &payload);
            let first = parts.iter().find(|part| part.range().start == 0).expect("there is a first");
            prop_assert_eq!(whole(first), whole_bundle);
        }

        #[test]
        fn fragments_are_complete_when_a_bitmap_is(
            total in 0..64_u64, parts in prop::collection::vec((0..70_u64, 0..20_u64), 1..12),
        ) {
            let mut bitmap = vec![false; usize::try_from(total).unwrap()];
            let mut fragments = Vec::new();
            for (offset, len) in parts {
                fragments.push(Fragment { offset, len, total });
                bitmap.iter_mut().enumerate().for_each(|(at, there)| {
                    *there |= (offset..offset + len).contains(&(at as u64));
                });
            }
            prop_assert_eq!(complete(&fragments).is_some(), bitmap.iter().all(|&there| there));
        }

        #[test]
        fn pieces_are_few_and_even(len in 0..5000_u64, at_most in 1..600_u64) {
            let ranges: Vec<_> = pieces(len, at_most).collect();
            prop_assert_eq!(ranges.len() as u64, len.div_ceil(at_most).max(1));
            prop_assert_eq!((ranges[0].start, ranges[ranges.len() - 1].end), (0, len));
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            let lens = || ranges.iter().map(|range| range.end - range.start);
            prop_assert!(lens().max().unwrap() <= at_most);
            prop_assert!(lens().max().unwrap() - lens().min().unwrap() <= 1);
        }
    }
}
