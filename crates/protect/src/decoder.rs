//! The receiving end of the code: Gaussian elimination as symbols arrive.
//!
//! Each repair symbol is an equation over those source symbols of its window that are unknown when it
//! arrives. The equations are kept in reduced row echelon form: the first unknown of each, its pivot, has the
//! coefficient 1 and is in no other. A symbol is determined by what has arrived exactly if it is the only
//! unknown of an equation, so that each packet is known at the earliest moment at which any decoder could
//! know it.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::coefficients::coefficients;
use crate::encoder::{LENGTH_BYTES, Memory, add_symbol};
use crate::gf256::{inverse, mul, mul_add, scale};
use crate::window::{Esi, Window};

/// Equations at most: as many packets as one gap can have that the code repairs, with room to spare. Each
/// costs as much as a packet.
const MAX_EQUATIONS: usize = 256;

/// What became of a symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It tells something new.
    Useful,
    /// It tells nothing that was not known.
    Redundant,
    /// It concerns what has been forgotten.
    TooOld,
    /// It contradicts what is known, or what it repairs is no packet: the other end is broken.
    Contradiction,
}

/// Puts packets together again.
#[derive(Debug, Serialize, Deserialize)]
pub struct Decoder {
    /// From `base` on; `None` is unknown.
    packets: VecDeque<Option<ByteBuf>>,
    base: Esi,
    bytes: usize,
    memory: Memory,
    /// By pivot, ascending.
    equations: Vec<Equation>,
}

/// The sum of some unknown symbols times coefficients is `sum`.
#[derive(Debug, Serialize, Deserialize)]
struct Equation {
    /// Ascending by number; none is 0, and the first one is 1.
    terms: Vec<(Esi, u8)>,
    #[serde(with = "serde_bytes")]
    sum: Vec<u8>,
}

impl Equation {
    fn pivot(&self) -> Esi {
        self.terms[0].0
    }

    fn coefficient(&self, esi: Esi) -> Option<u8> {
        self.terms.binary_search_by_key(&esi, |term| term.0).ok().map(|index| self.terms[index].1)
    }

    /// Takes an unknown out that has become known.
    fn substitute(&mut self, esi: Esi, packet: &[u8]) {
        if let Ok(index) = self.terms.binary_search_by_key(&esi, |term| term.0) {
            let (_, coefficient) = self.terms.remove(index);
            self.subtract(coefficient, packet);
        }
    }

    fn subtract(&mut self, coefficient: u8, packet: &[u8]) {
        self.lengthen(LENGTH_BYTES + packet.len());
        add_symbol(&mut self.sum, coefficient, packet);
    }

    fn lengthen(&mut self, length: usize) {
        if self.sum.len() < length {
            self.sum.resize(length, 0);
        }
    }

    /// self ⊕= c·other.
    fn add(&mut self, c: u8, other: &Equation) {
        self.lengthen(other.sum.len());
        mul_add(&mut self.sum, c, &other.sum);
        let mut merged = Vec::with_capacity(self.terms.len() + other.terms.len());
        let (mut mine, mut theirs) = (self.terms.iter().peekable(), other.terms.iter().peekable());
        loop {
            let (esi, coefficient) = match (mine.peek(), theirs.peek()) {
                (Some(a), Some(b)) if a.0 == b.0 => {
                    let sum = (a.0, a.1 ^ mul(c, b.1));
                    mine.next();
                    theirs.next();
                    sum
                }
                (Some(a), Some(b)) if a.0 > b.0 => (b.0, mul(c, theirs.next().map_or(0, |term| term.1))),
                (Some(a), _) => (a.0, mine.next().map_or(0, |term| term.1)),
                (None, Some(b)) => (b.0, mul(c, theirs.next().map_or(0, |term| term.1))),
                (None, None) => break,
            };
            if coefficient != 0 {
                merged.push((esi, coefficient));
            }
        }
        self.terms = merged;
    }

    fn normalise(&mut self) {
        let factor = inverse(self.terms[0].1);
        self.terms.iter_mut().for_each(|term| term.1 = mul(term.1, factor));
        scale(&mut self.sum, factor);
    }

    /// The packet that an equation with one unknown gives; `None` if it is none.
    fn into_packet(mut self) -> Option<Vec<u8>> {
        let (length, rest) = self.sum.split_first_chunk::<LENGTH_BYTES>()?;
        let length = usize::from(u16::from_be_bytes(*length));
        let (_, padding) = rest.split_at_checked(length)?;
        if padding.iter().any(|byte| *byte != 0) {
            return None;
        }
        self.sum.truncate(LENGTH_BYTES + length);
        self.sum.drain(..LENGTH_BYTES);
        Some(self.sum)
    }
}

impl Decoder {
    /// A decoder before its first symbol.
    pub fn new(memory: Memory) -> Self {
        Self { packets: VecDeque::new(), base: 0, bytes: 0, memory, equations: Vec::new() }
    }

    /// The number of the oldest symbol that is not forgotten.
    pub fn base(&self) -> Esi {
        self.base
    }

    /// The number behind the last symbol that was heard of.
    pub fn end(&self) -> Esi {
        self.base + self.packets.len() as u64
    }

    /// A packet that has arrived or has been recovered, unless it is forgotten.
    pub fn packet(&self, esi: Esi) -> Option<&[u8]> {
        let index = usize::try_from(esi.checked_sub(self.base)?).ok()?;
        self.packets.get(index)?.as_ref().map(|packet| packet.as_slice())
    }

    /// How many equations there are; each makes up for one symbol that is unknown.
    pub fn equations(&self) -> usize {
        self.equations.len()
    }

    /// Bytes of memory that packets and equations use.
    pub fn held_bytes(&self) -> usize {
        self.bytes + self.equations.iter().map(|equation| equation.sum.len()).sum::<usize>()
    }

    /// Takes a packet that arrived. The numbers of all packets that are known now and were not before are
    /// appended to `known`, this one among them.
    pub fn on_source(&mut self, esi: Esi, packet: &[u8], known: &mut Vec<Esi>) -> Outcome {
        if esi < self.base {
            return Outcome::TooOld;
        }
        self.extend(esi + 1);
        if self.packet(esi).is_some() {
            return Outcome::Redundant;
        }
        self.set_known(esi, packet.to_vec(), known);
        let position = self.equations.binary_search_by_key(&esi, Equation::pivot);
        let with_this_pivot = position.ok().map(|index| self.equations.remove(index));
        self.equations.iter_mut().for_each(|equation| equation.substitute(esi, packet));
        if let Some(mut equation) = with_this_pivot {
            equation.substitute(esi, packet);
            if !equation.terms.is_empty() {
                self.insert(equation);
            }
        }
        self.take_solved(known);
        self.shrink_to_memory();
        Outcome::Useful
    }

    /// Takes a repair symbol of this window.
    pub fn on_repair(&mut self, key: u16, window: &Window, symbol: &[u8], known: &mut Vec<Esi>) -> Outcome {
        if window.first() < self.base {
            return Outcome::TooOld;
        }
        self.extend(window.end());
        if window.first() < self.base {
            return Outcome::TooOld;
        }
        let all = || window.symbols().zip(coefficients(key));
        let terms: Vec<_> = all().filter(|(esi, _)| self.packet(*esi).is_none()).collect();
        if terms.is_empty() || symbol.len() < LENGTH_BYTES {
            return Outcome::Redundant;
        }
        if self.equations.len() >= MAX_EQUATIONS {
            self.equations.remove(0);
        }
        let mut equation = Equation { terms, sum: symbol.to_vec() };
        for (esi, coefficient) in all() {
            if let Some(packet) = self.packet(esi) {
                equation.subtract(coefficient, packet);
            }
        }
        for index in 0..self.equations.len() {
            let other = &self.equations[index];
            if let Some(coefficient) = equation.coefficient(other.pivot()) {
                equation.add(coefficient, other);
            }
        }
        if equation.terms.is_empty() {
            let contradicts = equation.sum.iter().any(|byte| *byte != 0);
            return if contradicts { Outcome::Contradiction } else { Outcome::Redundant };
        }
        self.insert(equation);
        let outcome = if self.take_solved(known) { Outcome::Useful } else { Outcome::Contradiction };
        self.shrink_to_memory();
        outcome
    }

    /// Makes room for the symbols before `end`, as unknown ones.
    fn extend(&mut self, end: Esi) {
        let first = end.saturating_sub(self.memory.symbols as u64);
        if first >= self.end() {
            // So far ahead that nothing remains.
            self.packets.clear();
            self.equations.clear();
            self.bytes = 0;
            self.base = first;
        }
        self.forget_before(first);
        while self.end() < end {
            self.packets.push_back(None);
        }
    }

    /// Forgets the symbols before this one, and what could only have repaired them.
    pub fn forget_before(&mut self, esi: Esi) {
        while self.base < esi && !self.packets.is_empty() {
            self.forget_first();
        }
        let base = self.base;
        self.equations.retain(|equation| equation.pivot() >= base);
    }

    fn forget_first(&mut self) {
        if let Some(first) = self.packets.pop_front() {
            self.bytes -= first.map_or(0, |packet| packet.len());
            self.base += 1;
        }
    }

    fn shrink_to_memory(&mut self) {
        if self.bytes <= self.memory.bytes {
            return;
        }
        while self.bytes > self.memory.bytes && self.packets.len() > 1 {
            self.forget_first();
        }
        self.forget_before(self.base);
    }

    fn set_known(&mut self, esi: Esi, packet: Vec<u8>, known: &mut Vec<Esi>) {
        let index = (esi - self.base) as usize;
        self.bytes += packet.len();
        self.packets[index] = Some(packet.into());
        known.push(esi);
    }

    /// Adds an equation that has no pivot of another one among its unknowns.
    fn insert(&mut self, mut equation: Equation) {
        equation.normalise();
        let pivot = equation.pivot();
        for other in &mut self.equations {
            if let Some(coefficient) = other.coefficient(pivot) {
                other.add(coefficient, &equation);
            }
        }
        let index = self.equations.partition_point(|other| other.pivot() < pivot);
        self.equations.insert(index, equation);
    }

    /// Turns equations with one unknown into packets. Whether all of them were packets.
    fn take_solved(&mut self, known: &mut Vec<Esi>) -> bool {
        let mut sound = true;
        while let Some(index) = self.equations.iter().position(|equation| equation.terms.len() == 1) {
            let equation = self.equations.remove(index);
            let esi = equation.pivot();
            match equation.into_packet() {
                Some(packet) => self.set_known(esi, packet, known),
                None => sound = false,
            }
        }
        sound
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::encoder::Encoder;

    /// A packet whose bytes and length depend on its number.
    fn packet(esi: Esi) -> Vec<u8> {
        let length = 1 + esi * 37 % 61;
        (0..length).map(|i| (esi * 131 + i * 17 + 5) as u8).collect()
    }

    struct Pair {
        encoder: Encoder,
        decoder: Decoder,
        known: Vec<Esi>,
    }

    impl Pair {
        fn new(symbols: usize) -> Self {
            let memory = Memory::of_packets(symbols);
            Self { encoder: Encoder::new(memory), decoder: Decoder::new(memory), known: Vec::new() }
        }

        fn send(&mut self, arrives: bool) {
            let esi = self.encoder.push(packet(self.encoder.end()));
            if arrives {
                self.decoder.on_source(esi, &packet(esi), &mut self.known);
            }
        }

        fn repair(&mut self, window: &Window) -> Outcome {
            let mut symbol = Vec::new();
            let key = self.encoder.repair(window, &mut symbol).unwrap();
            self.decoder.on_repair(key, window, &symbol, &mut self.known)
        }
    }

    #[test]
    fn one_repair_symbol_makes_up_for_one_loss() {
        let mut pair = Pair::new(100);
        (0..10).for_each(|i| pair.send(i != 4));
        pair.known.clear();
        assert_eq!(pair.repair(&Window::of(0..10).unwrap()), Outcome::Useful);
        assert_eq!(pair.known, [4]);
        assert_eq!(pair.decoder.packet(4), Some(&packet(4)[..]));
        assert_eq!(pair.repair(&Window::of(0..10).unwrap()), Outcome::Redundant);
    }

    #[test]
    fn a_burst_is_repaired_by_the_last_symbol_that_is_needed() {
        let mut pair = Pair::new(100);
        (0..30).for_each(|i| pair.send(!(5..12).contains(&i)));
        pair.known.clear();
        for _ in 0..6 {
            assert_eq!(pair.repair(&Window::of(0..30).unwrap()), Outcome::Useful);
            assert_eq!((pair.known.len(), pair.decoder.packet(5)), (0, None));
        }
        pair.repair(&Window::of(0..30).unwrap());
        pair.known.sort_unstable();
        assert_eq!(pair.known, (5..12).collect::<Vec<_>>());
        assert!((5..12).all(|esi| pair.decoder.packet(esi) == Some(&packet(esi)[..])));
    }

    #[test]
    fn a_repair_symbol_that_overtakes_its_sources_repairs_one_that_never_comes() {
        let mut pair = Pair::new(100);
        (0..3).for_each(|_| pair.send(false));
        pair.repair(&Window::of(0..3).unwrap());
        assert_eq!(pair.known, []);
        for esi in [2, 0] {
            pair.decoder.on_source(esi, &packet(esi), &mut pair.known);
        }
        assert_eq!(pair.known, [2, 0, 1]);
    }

    #[test]
    fn what_contradicts_or_is_no_packet_is_told_and_never_delivered() {
        let mut pair = Pair::new(100);
        (0..3).for_each(|i| pair.send(i == 0));
        let window = Window::of(0..3).unwrap();
        let mut symbol = Vec::new();
        let mut key = pair.encoder.repair(&window, &mut symbol).unwrap();
        pair.decoder.on_repair(key, &window, &symbol, &mut pair.known);
        symbol[1] ^= 1;
        // The same equation with another sum.
        assert_eq!(pair.decoder.on_repair(key, &window, &symbol, &mut pair.known), Outcome::Contradiction);
        symbol.clear();
        key = pair.encoder.repair(&window, &mut symbol).unwrap();
        symbol[0] ^= 0xff;
        assert_eq!(pair.decoder.on_repair(key, &window, &symbol, &mut pair.known), Outcome::Contradiction);
        assert_eq!((pair.decoder.packet(1), pair.decoder.packet(2)), (None, None));
    }

    #[test]
    fn memory_is_bounded_whatever_the_numbers_are() {
        let memory = Memory { symbols: 50, bytes: 3000 };
        let mut decoder = Decoder::new(memory);
        let mut known = Vec::new();
        for esi in [0, 10, 49, 50, 1 << 40, 5, (1 << 40) + 49, u64::MAX - 1, 7] {
            decoder.on_source(esi, &[1; 1400], &mut known);
            assert!(decoder.held_bytes() <= memory.bytes && decoder.end() - decoder.base() <= 50);
        }
        let far = Window::of(u64::MAX - 60..u64::MAX - 1).unwrap();
        assert_eq!(decoder.on_repair(0, &far, &[0; 1400], &mut known), Outcome::TooOld);
        let mut decoder = Decoder::new(Memory::of_packets(1000));
        for key in 0..300 {
            decoder.on_repair(key, &Window::of(0..1000).unwrap(), &[key as u8; 20], &mut known);
            assert!(decoder.equations() <= MAX_EQUATIONS);
        }
    }

    /// RFC 8681 says nothing of it, but every random matrix does: n equations for n unknowns over GF(256) are
    /// dependent with a probability of about 1/256 + 1/256² + …, 0.4%, and with d more of them 256 times less
    /// for each.
    #[test]
    fn repairs_fail_as_often_as_theory_says() {
        const TRIALS: usize = 6000;
        let mut failures = [0; 2];
        for trial in 0..TRIALS {
            for (extra, failed) in failures.iter_mut().enumerate() {
                let mut pair = Pair::new(64);
                pair.encoder.repair_key_for_tests((trial * 11) as u16);
                let lost = 2 + trial as u64 % 7;
                (0..24).for_each(|i| pair.send(i % 3 != 0 || i / 3 >= lost));
                let window = Window::of(0..24).unwrap();
                for _ in 0..lost as usize + extra {
                    pair.repair(&window);
                }
                *failed += usize::from(pair.known.len() < 24);
            }
        }
        // 24 ± 5 of 6000, and 0.1.
        assert!((8..=44).contains(&failures[0]) && failures[1] <= 2, "{failures:?}");
    }

    /// What could be known: all equations at once, without any state.
    fn oracle(sources: &[Esi], repairs: &[(u16, Window)], end: Esi) -> Vec<Esi> {
        let row = |(key, window): &(u16, Window)| {
            let mut row = vec![0u8; end as usize];
            window.symbols().zip(coefficients(*key)).for_each(|(esi, c)| row[esi as usize] = c);
            row
        };
        let unit = |esi: &Esi| (0..end).map(|i| u8::from(i == *esi)).collect::<Vec<u8>>();
        let mut rows: Vec<Vec<u8>> = sources.iter().map(unit).chain(repairs.iter().map(row)).collect();
        let mut rank = 0;
        for column in 0..end as usize {
            let Some(pivot) = (rank..rows.len()).find(|r| rows[*r][column] != 0) else { continue };
            rows.swap(rank, pivot);
            let factor = inverse(rows[rank][column]);
            scale(&mut rows[rank], factor);
            let lead = rows[rank].clone();
            for (index, row) in rows.iter_mut().enumerate() {
                if index != rank && row[column] != 0 {
                    let factor = row[column];
                    mul_add(row, factor, &lead);
                }
            }
            rank += 1;
        }
        let alone = |row: &&Vec<u8>| row.iter().filter(|c| **c != 0).count() == 1;
        let mut all: Vec<Esi> = rows
            .iter()
            .filter(alone)
            .filter_map(|row| row.iter().position(|c| *c == 1))
            .map(|i| i as Esi)
            .collect();
        all.sort_unstable();
        all
    }

    proptest! {
        /// Any losses, order and duplicates: after each symbol exactly that is known which can be known, and
        /// each packet is the one that was sent.
        #[test]
        fn it_knows_what_can_be_known_and_nothing_wrong(
            count in 1u64..40,
            windows in proptest::collection::vec((0u64..40, 1u64..40, 1u64..4), 0..25),
            order in proptest::collection::vec((any::<prop::sample::Index>(), 0u8..4), 1..90),
        ) {
            let mut pair = Pair::new(64);
            for esi in 0..count {
                pair.encoder.push(packet(esi));
            }
            let mut repairs = Vec::new();
            for (first, length, step) in windows {
                let symbols = (first..first + length).step_by(step as usize).filter(|esi| *esi < count);
                if let Some(window) = Window::of(symbols) {
                    let mut symbol = Vec::new();
                    let key = pair.encoder.repair(&window, &mut symbol).unwrap();
                    repairs.push((key, window, symbol));
                }
            }
            let (mut sources, mut used) = (Vec::new(), Vec::new());
            for (index, kind) in order {
                if kind > 0 && !repairs.is_empty() {
                    let (key, window, symbol) = index.get(&repairs);
                    pair.decoder.on_repair(*key, window, symbol, &mut pair.known);
                    used.push((*key, window.clone()));
                } else {
                    let esi = index.index(count as usize) as Esi;
                    pair.decoder.on_source(esi, &packet(esi), &mut pair.known);
                    sources.push(esi);
                }
                let mut known = pair.known.clone();
                known.sort_unstable();
                prop_assert_eq!(&known, &oracle(&sources, &used, count));
            }
            for esi in 0..count {
                let expected = pair.known.contains(&esi).then(|| packet(esi));
                prop_assert_eq!(pair.decoder.packet(esi), expected.as_deref());
            }
        }

        /// A small memory that forgets while symbols come from all over: nothing wrong, and nothing panics.
        #[test]
        fn what_is_forgotten_makes_nothing_wrong(
            losses in proptest::collection::vec(any::<bool>(), 1..200),
            span in 1u64..30,
            symbols in 5usize..40,
        ) {
            let mut pair = Pair::new(symbols);
            for (index, lost) in losses.iter().enumerate() {
                pair.send(!lost);
                if index % 3 == 0 {
                    let end = pair.encoder.end();
                    let first = end.saturating_sub(span).max(pair.encoder.base());
                    pair.repair(&Window::of(first..end).unwrap());
                }
            }
            for esi in pair.decoder.base()..pair.decoder.end() {
                if let Some(known) = pair.decoder.packet(esi) {
                    prop_assert_eq!(known, &packet(esi)[..]);
                }
            }
            let mut once = pair.known.clone();
            once.sort_unstable();
            once.dedup();
            prop_assert_eq!(once.len(), pair.known.len(), "each is told once");
        }
    }
}
