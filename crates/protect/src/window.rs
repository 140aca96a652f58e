//! Which source symbols a repair symbol is made of.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// The number of a source symbol, from 0 for the first packet of its class in a session (the ESI of RFC 8681
/// §4.1.1, which has 32 bits; here only frames cut it).
pub type Esi = u64;

/// Source symbols that a repair symbol combines: at least one, at most [`MAX_SYMBOLS`](Self::MAX_SYMBOLS), in
/// at most [`MAX_RANGES`](Self::MAX_RANGES) ranges of consecutive numbers.
///
/// The sliding window itself is one range. The answer to a request covers what was asked for, which has gaps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Ascending, none empty, none touching the next.
    ranges: Vec<Range<Esi>>,
}

impl Window {
    /// Symbols of a window at most. The field of RFC 8681 §4.1.3 (NSS) would allow 4095; but what a window
    /// costs its receiver grows with it.
    pub const MAX_SYMBOLS: u64 = 1024;
    /// Ranges of a window at most: each further one makes a frame longer by two bytes.
    pub const MAX_RANGES: usize = 4;
    /// The length of a range behind the first one, and the gap before it, at most: what a byte holds.
    pub const MAX_FURTHER: u64 = 255;

    /// The window of these ranges, if they are ascending, not empty, do not touch, and are neither too many, too
    /// long nor too far apart.
    pub fn new(ranges: Vec<Range<Esi>>) -> Option<Self> {
        let ascending = ranges.windows(2).all(|pair| pair[0].end < pair[1].start);
        let filled = ranges.iter().all(|range| range.start < range.end);
        let short = |pair: &[Range<Esi>]| {
            pair[1].start - pair[0].end <= Self::MAX_FURTHER
                && pair[1].end - pair[1].start <= Self::MAX_FURTHER
        };
        let told = ascending && filled && ranges.windows(2).all(short);
        let fits = (1..=Self::MAX_RANGES).contains(&ranges.len()) && told && {
            let symbols = ranges.iter().try_fold(0u64, |sum, range| sum.checked_add(range.end - range.start));
            symbols.is_some_and(|symbols| symbols <= Self::MAX_SYMBOLS)
        };
        fits.then_some(Self { ranges })
    }

    /// The window of these ascending numbers; those that do not fit any more are left out. `None` without
    /// any.
    pub fn of(symbols: impl IntoIterator<Item = Esi>) -> Option<Self> {
        let mut ranges: Vec<Range<Esi>> = Vec::new();
        for (count, esi) in symbols.into_iter().enumerate() {
            if count as u64 == Self::MAX_SYMBOLS {
                break;
            }
            let is_first = ranges.len() == 1;
            let full = ranges.len() == Self::MAX_RANGES;
            match ranges.last_mut() {
                Some(last) if last.end > esi => return None,
                Some(last) if last.end == esi && (is_first || last.end - last.start < Self::MAX_FURTHER) => {
                    last.end += 1;
                }
                Some(last) if last.end == esi || esi - last.end > Self::MAX_FURTHER => break,
                _ if full => break,
                _ => ranges.push(esi..esi + 1),
            }
        }
        Self::new(ranges)
    }

    /// Its ranges.
    pub fn ranges(&self) -> &[Range<Esi>] {
        &self.ranges
    }

    /// The numbers of its symbols, ascending.
    pub fn symbols(&self) -> impl Iterator<Item = Esi> {
        self.ranges.iter().cloned().flatten()
    }

    /// How many symbols it has.
    pub fn count(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// Its first symbol.
    pub fn first(&self) -> Esi {
        self.ranges[0].start
    }

    /// The number behind its last symbol.
    pub fn end(&self) -> Esi {
        self.ranges[self.ranges.len() - 1].end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_ranges_and_numbers_again() {
        let window = Window::of([3, 4, 5, 9, 11, 12]).unwrap();
        assert_eq!(window.ranges(), [3..6, 9..10, 11..13]);
        assert_eq!((window.first(), window.end(), window.count()), (3, 13, 6));
        assert_eq!(window.symbols().collect::<Vec<_>>(), [3, 4, 5, 9, 11, 12]);
    }

    #[test]
    fn what_is_empty_descends_touches_or_is_too_long_is_no_window() {
        let of =
            |ranges: &[(Esi, Esi)]| Window::new(ranges.iter().map(|(start, end)| *start..*end).collect());
        for ranges in [
            &[][..],
            &[(3, 3)],
            &[(5, 6), (3, 4)],
            &[(3, 4), (4, 5)],
            &[(0, Window::MAX_SYMBOLS + 1)],
            &[(0, u64::MAX), (u64::MAX - 1, u64::MAX)],
        ] {
            assert_eq!(of(ranges), None, "{ranges:?}");
        }
        let far = Window::MAX_FURTHER + 1;
        assert_eq!(of(&[(3, 4), (4 + far, 5 + far)]), None, "too far apart");
        assert_eq!(of(&[(3, 4), (5, 5 + far)]), None, "too long");
        assert!(of(&[(3, 4), (3 + far, 2 + 2 * far)]).is_some());
        let many: Vec<_> = (0..5).map(|i| 2 * i..2 * i + 1).collect();
        assert_eq!(Window::new(many), None);
        assert_eq!(Window::of([]), None);
        assert_eq!(Window::of([4, 3]), None);
    }

    #[test]
    fn numbers_that_do_not_fit_are_left_out() {
        assert_eq!(Window::of((0..100).map(|i| 2 * i)).unwrap().ranges().len(), Window::MAX_RANGES);
        assert_eq!(Window::of(0..5000).unwrap().count(), Window::MAX_SYMBOLS);
        assert_eq!(Window::of([1, 2, 300]).unwrap().symbols().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(Window::of([1].into_iter().chain(3..900)).unwrap().ranges(), [1..2, 3..258]);
    }
}
