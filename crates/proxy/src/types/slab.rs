//! A slab with generations, for a worker's flows, and the tokens by which epoll identifies them.

use super::Side;

/// Bits of a token's 64 that hold an index, and those that hold a generation above them.
const INDEX_BITS: u32 = 30;
const GENERATION_BITS: u32 = 30;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;
const GENERATION_MASK: u64 = (1 << GENERATION_BITS) - 1;

/// Identifies a flow. A flow that takes the same slot later gets another key, so that a late event
/// finds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

/// What an event of epoll is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token {
    Flow(Key, Side),
    Listener(usize),
    Wake,
    /// A connection whose upstream is not established yet.
    Pending(Key),
}

/// Values by key, in slots that are reused.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn insert(&mut self, value: T) -> Key {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, value: None });
            u32::try_from(self.slots.len() - 1).expect("descriptors run out before 2^32 flows")
        });
        let slot = &mut self.slots[index as usize];
        slot.value = Some(value);
        Key { index, generation: slot.generation }
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let slot = self.slots.get_mut(key.index as usize)?;
        if slot.generation == key.generation { slot.value.as_mut() } else { None }
    }

    /// The keys in the next `count` slots from the slot `from`.
    pub(crate) fn keys(&self, from: usize, count: usize) -> Vec<Key> {
        let living = |(index, slot): (usize, &Slot<T>)| {
            slot.value.as_ref().map(|_| Key { index: index as u32, generation: slot.generation })
        };
        self.slots.iter().enumerate().skip(from).take(count).filter_map(living).collect()
    }

    /// All values.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.value.as_ref())
    }

    /// Places, with a value or without.
    pub(crate) fn places(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let slot = self.slots.get_mut(key.index as usize).filter(|slot| slot.generation == key.generation)?;
        let value = slot.value.take()?;
        slot.generation = (slot.generation + 1) & GENERATION_MASK as u32;
        self.free.push(key.index);
        Some(value)
    }
}

impl Token {
    pub(crate) fn encode(self) -> u64 {
        match self {
            Token::Flow(key, side) => {
                u64::from(key.generation) << (INDEX_BITS + 1) | u64::from(key.index) << 1 | side as u64
            }
            Token::Listener(index) => 1 << 62 | index as u64,
            Token::Wake => 2 << 62,
            Token::Pending(key) => 3 << 62 | u64::from(key.generation) << INDEX_BITS | u64::from(key.index),
        }
    }

    pub(crate) fn decode(bits: u64) -> Self {
        match bits >> 62 {
            0 => {
                let side = if bits & 1 == 0 { Side::Client } else { Side::Server };
                let index = (bits >> 1 & INDEX_MASK) as u32;
                let generation = (bits >> (INDEX_BITS + 1) & GENERATION_MASK) as u32;
                Token::Flow(Key { index, generation }, side)
            }
            1 => Token::Listener((bits & INDEX_MASK) as usize),
            2 => Token::Wake,
            _ => {
                let index = (bits & INDEX_MASK) as u32;
                let generation = (bits >> INDEX_BITS & GENERATION_MASK) as u32;
                Token::Pending(Key { index, generation })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_key_of_a_removed_flow_does_not_find_the_next_flow() {
        let mut slab = Slab::new();
        let first = slab.insert("first");
        assert_eq!(slab.remove(first), Some("first"));
        let second = slab.insert("second");
        assert_eq!(second.index, first.index);
        assert_eq!(slab.get_mut(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get_mut(second), Some(&mut "second"));
    }

    #[test]
    fn a_walk_in_steps_meets_every_living_value_once() {
        let mut slab = Slab::new();
        let keys: Vec<Key> = (0..10).map(|number| slab.insert(number)).collect();
        slab.remove(keys[3]);
        let met: Vec<Key> = (0..slab.places()).step_by(4).flat_map(|from| slab.keys(from, 4)).collect();
        let living: Vec<Key> = keys.iter().copied().filter(|key| *key != keys[3]).collect();
        assert_eq!(met, living);
    }

    proptest! {
        #[test]
        fn tokens_read_back(index in 0..=INDEX_MASK as u32, generation in 0..=GENERATION_MASK as u32) {
            let key = Key { index, generation };
            for token in [Token::Flow(key, Side::Client), Token::Flow(key, Side::Server),
                          Token::Listener(index as usize), Token::Wake, Token::Pending(key)] {
                prop_assert_eq!(Token::decode(token.encode()), token);
            }
        }
    }
}
