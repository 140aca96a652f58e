//! The memory of SYNs that are settled, so that their copies meet the same fate.

use std::collections::{HashMap, VecDeque};

use super::book::Pair;
use super::syn::Syn;
use crate::handover::FateDeed;

/// How many are remembered. A copy comes within the minute or two in which a client repeats its SYN; one that is not
/// remembered any more begins anew.
const CAPACITY: usize = 4096;

/// What became of a SYN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It went on to the server. Split now, the client's connection would meet its own double there.
    Passed,
    /// The server had answered, and the client was.
    Answered,
}

/// The latest fates, of one SYN for each pair of ends.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    fates: HashMap<Pair, Settled>,
    order: VecDeque<(Pair, u64)>,
    next: u64,
}

#[derive(Debug)]
struct Settled {
    isn: u32,
    fate: Fate,
    number: u64,
}

impl Memory {
    /// Remembers what became of a SYN, and forgets the oldest where there is no room.
    pub(crate) fn note(&mut self, pair: Pair, isn: u32, fate: Fate) {
        let number = self.next;
        self.next += 1;
        self.fates.insert(pair, Settled { isn, fate, number });
        self.order.push_back((pair, number));
        if self.order.len() > CAPACITY {
            self.forget_oldest();
        }
    }

    /// What became of this very SYN.
    pub(crate) fn fate(&self, syn: &Syn) -> Option<Fate> {
        self.fates.get(&Pair::of(syn)).filter(|settled| settled.isn == syn.isn).map(|settled| settled.fate)
    }

    /// What goes to the next process, the oldest first.
    pub(crate) fn deeds(&self) -> Vec<FateDeed> {
        let newest = |(pair, number): &(Pair, u64)| {
            let settled = self.fates.get(pair).filter(|settled| settled.number == *number)?;
            let [client, server] = pair.ends();
            Some(FateDeed { client, server, isn: settled.isn, is_answered: settled.fate == Fate::Answered })
        };
        self.order.iter().filter_map(newest).collect()
    }

    /// The memory of another process.
    pub(crate) fn inherited(deeds: Vec<FateDeed>) -> Self {
        let mut memory = Self::default();
        for FateDeed { client, server, isn, is_answered } in deeds {
            let fate = if is_answered { Fate::Answered } else { Fate::Passed };
            memory.note(Pair::new(client, server), isn, fate);
        }
        memory
    }

    fn forget_oldest(&mut self) {
        if let Some((pair, number)) = self.order.pop_front()
            && self.fates.get(&pair).is_some_and(|settled| settled.number == number)
        {
            self.fates.remove(&pair);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn syn(port: u16, isn: u32) -> Syn {
        let (client, server) = (([10, 0, 0, 1], port).into(), ([10, 0, 0, 2], 80).into());
        Syn { client, server, dscp: 0, isn, weight: Default::default() }
    }

    #[test]
    fn a_copy_is_known_and_a_new_connection_from_the_same_port_is_not() {
        let mut memory = Memory::default();
        memory.note(Pair::of(&syn(1, 7)), 7, Fate::Passed);
        assert_eq!(memory.fate(&syn(1, 7)), Some(Fate::Passed));
        assert_eq!((memory.fate(&syn(1, 8)), memory.fate(&syn(2, 7))), (None, None));
        memory.note(Pair::of(&syn(1, 8)), 8, Fate::Answered);
        assert_eq!((memory.fate(&syn(1, 7)), memory.fate(&syn(1, 8))), (None, Some(Fate::Answered)));
    }

    #[test]
    fn another_process_knows_the_same() {
        let mut memory = Memory::default();
        memory.note(Pair::of(&syn(1, 7)), 7, Fate::Passed);
        memory.note(Pair::of(&syn(2, 7)), 7, Fate::Answered);
        memory.note(Pair::of(&syn(1, 8)), 8, Fate::Answered);
        let over = Memory::inherited(memory.deeds());
        assert_eq!([syn(1, 7), syn(1, 8)].map(|syn| over.fate(&syn)), [None, Some(Fate::Answered)]);
        assert_eq!((over.fate(&syn(2, 7)), over.order.len()), (Some(Fate::Answered), 2));
    }

    #[test]
    fn the_oldest_make_room_and_what_was_noted_again_stays() {
        let mut memory = Memory::default();
        for port in [1, 2, 1] {
            memory.note(Pair::of(&syn(port, 0)), 0, Fate::Passed);
        }
        for port in 10..10 + CAPACITY as u16 - 1 {
            memory.note(Pair::of(&syn(port, 0)), 0, Fate::Passed);
        }
        assert_eq!((memory.fate(&syn(1, 0)), memory.fate(&syn(2, 0))), (Some(Fate::Passed), None));
        assert!(memory.order.len() == CAPACITY && memory.fates.len() <= CAPACITY);
    }
}
