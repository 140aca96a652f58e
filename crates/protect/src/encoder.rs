//! The sending end of the sliding-window code: RLC over GF(2⁸) in the manner of RFC 8681.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::coefficients::coefficients;
use crate::gf256::mul_add;
use crate::window::{Esi, Window};

/// Bytes of the length in front of a packet in its symbol, big-endian.
pub(crate) const LENGTH_BYTES: usize = 2;

/// How much of the past one end of the code remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Symbols at most.
    pub symbols: usize,
    /// Bytes of packets at most.
    pub bytes: usize,
}

impl Memory {
    /// A memory of so many packets of 1500 bytes.
    pub const fn of_packets(symbols: usize) -> Self {
        Self { symbols, bytes: symbols * 1500 }
    }
}

/// Numbers packets, remembers the last ones, and combines them into repair symbols.
///
/// A source symbol is an IP packet with its length (16 bits) in front, followed by as many zeros as the
/// longest symbol of a window needs: those are never written, as they change nothing.
#[derive(Debug, Serialize, Deserialize)]
pub struct Encoder {
    packets: VecDeque<ByteBuf>,
    /// The number of the first one of them.
    base: Esi,
    bytes: usize,
    memory: Memory,
    next_key: u16,
}

impl Encoder {
    /// An encoder before its first packet.
    pub fn new(memory: Memory) -> Self {
        Self { packets: VecDeque::new(), base: 0, bytes: 0, memory, next_key: 0 }
    }

    /// Takes the next packet, whose number is the result. The oldest ones are forgotten where memory ends;
    /// the last one never is.
    ///
    /// # Panics
    /// The packet is longer than an IP packet can be, 65,535 bytes.
    pub fn push(&mut self, packet: Vec<u8>) -> Esi {
        assert!(packet.len() <= usize::from(u16::MAX), "an IP packet has {} bytes", packet.len());
        self.bytes += packet.len();
        self.packets.push_back(packet.into());
        while self.packets.len() > 1
            && (self.packets.len() > self.memory.symbols || self.bytes > self.memory.bytes)
        {
            self.forget_first();
        }
        self.end() - 1
    }

    /// The number of the oldest packet that is remembered.
    pub fn base(&self) -> Esi {
        self.base
    }

    /// The number that the next packet gets.
    pub fn end(&self) -> Esi {
        self.base + self.packets.len() as u64
    }

    /// Bytes of the packets that are remembered.
    pub fn held_bytes(&self) -> usize {
        self.bytes
    }

    /// A packet that is remembered.
    pub fn packet(&self, esi: Esi) -> Option<&[u8]> {
        let index = usize::try_from(esi.checked_sub(self.base)?).ok()?;
        self.packets.get(index).map(|packet| packet.as_slice())
    }

    /// Forgets the packets before this one.
    pub fn forget_before(&mut self, esi: Esi) {
        while self.base < esi && !self.packets.is_empty() {
            self.forget_first();
        }
    }

    #[cfg(test)]
    pub(crate) fn repair_key_for_tests(&mut self, key: u16) {
        self.next_key = key;
    }

    fn forget_first(&mut self) {
        if let Some(first) = self.packets.pop_front() {
            self.bytes -= first.len();
            self.base += 1;
        }
    }

    /// Appends a repair symbol of this window to `out`; the result is its key. `None` if a symbol of the
    /// window is not remembered.
    pub fn repair(&mut self, window: &Window, out: &mut Vec<u8>) -> Option<u16> {
        if window.first() < self.base || window.end() > self.end() {
            return None;
        }
        let longest = window.symbols().filter_map(|esi| self.packet(esi)).map(<[u8]>::len).max()?;
        let key = self.next_key;
        self.next_key = key.wrapping_add(1);
        let start = out.len();
        out.resize(start + LENGTH_BYTES + longest, 0);
        for (esi, coefficient) in window.symbols().zip(coefficients(key)) {
            add_symbol(&mut out[start..], coefficient, self.packet(esi)?);
        }
        Some(key)
    }
}

/// sum ⊕= c·symbol, where the symbol is this packet with its length in front.
pub(crate) fn add_symbol(sum: &mut [u8], c: u8, packet: &[u8]) {
    let (length, rest) = sum.split_at_mut(LENGTH_BYTES);
    mul_add(length, c, &(packet.len() as u16).to_be_bytes());
    mul_add(rest, c, packet);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gf256::mul;

    #[test]
    fn a_repair_symbol_is_the_sum_of_products_of_padded_symbols() {
        let mut encoder = Encoder::new(Memory::of_packets(10));
        encoder.push(vec![7, 8]);
        encoder.push(vec![9]);
        let mut repair = Vec::new();
        let key = encoder.repair(&Window::of([0, 1]).unwrap(), &mut repair).unwrap();
        let c: Vec<u8> = coefficients(key).take(2).collect();
        let expected = [0, mul(c[0], 2) ^ mul(c[1], 1), mul(c[0], 7) ^ mul(c[1], 9), mul(c[0], 8)];
        assert_eq!(repair, expected);
    }

    #[test]
    fn the_past_is_forgotten_where_memory_ends() {
        let mut encoder = Encoder::new(Memory { symbols: 3, bytes: 100 });
        (0..5).for_each(|i| assert_eq!(encoder.push(vec![i; 10]), u64::from(i)));
        assert_eq!((encoder.base(), encoder.end()), (2, 5));
        assert_eq!((encoder.packet(1), encoder.packet(2)), (None, Some(&[2; 10][..])));
        encoder.push(vec![5; 90]);
        assert_eq!((encoder.base(), encoder.end()), (4, 6), "bytes");
        encoder.push(vec![6; 200]);
        assert_eq!((encoder.base(), encoder.end()), (6, 7), "the last one stays");
        assert_eq!(encoder.repair(&Window::of([5, 6]).unwrap(), &mut Vec::new()), None);
        encoder.forget_before(100);
        assert_eq!((encoder.base(), encoder.end()), (7, 7));
    }
}
