//! The outcomes of recent SYNs, so that retransmissions get the same one.

use std::collections::{HashMap, VecDeque};

use serde::{Deserialize, Serialize, Serializer};

use super::pending_table::FourTuple;
use super::syn::Syn;

/// How many are remembered. A copy comes within the minute or two in which a client repeats its SYN; one that
/// is not remembered any more begins anew.
const CAPACITY: usize = 4096;

/// What became of a SYN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SynOutcome {
    /// It went on to the server. Split now, the client's connection would meet its own double there.
    Passed,
    /// The server had answered, and the client was.
    Answered,
}

/// The outcomes of recent SYNs, one per four-tuple.
#[derive(Debug, Default, Deserialize)]
#[serde(from = "Vec<(FourTuple, u32, SynOutcome)>")]
pub(crate) struct RecentSyns {
    syn_outcomes: HashMap<FourTuple, Settled>,
    order: VecDeque<(FourTuple, u64)>,
    next: u64,
}

#[derive(Debug)]
struct Settled {
    isn: u32,
    outcome_of: SynOutcome,
    number: u64,
}

impl RecentSyns {
    /// Remembers what became of a SYN, and forgets the oldest where there is no room.
    pub(crate) fn note(&mut self, pair: FourTuple, isn: u32, outcome_of: SynOutcome) {
        let number = self.next;
        self.next += 1;
        self.syn_outcomes.insert(pair, Settled { isn, outcome_of, number });
        self.order.push_back((pair, number));
        if self.order.len() > CAPACITY {
            self.forget_oldest();
        }
    }

    /// What became of this very SYN.
    pub(crate) fn outcome_of(&self, syn: &Syn) -> Option<SynOutcome> {
        self.syn_outcomes
            .get(&FourTuple::of(syn))
            .filter(|settled| settled.isn == syn.isn)
            .map(|settled| settled.outcome_of)
    }

    fn forget_oldest(&mut self) {
        if let Some((pair, number)) = self.order.pop_front()
            && self.syn_outcomes.get(&pair).is_some_and(|settled| settled.number == number)
        {
            self.syn_outcomes.remove(&pair);
        }
    }
}

/// The SYNs from the oldest to the newest, each with its outcome.
impl Serialize for RecentSyns {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let newest = |(pair, number): &(FourTuple, u64)| {
            let settled = self.syn_outcomes.get(pair).filter(|settled| settled.number == *number)?;
            Some((*pair, settled.isn, settled.outcome_of))
        };
        serializer.collect_seq(self.order.iter().filter_map(newest))
    }
}

impl From<Vec<(FourTuple, u32, SynOutcome)>> for RecentSyns {
    fn from(syns: Vec<(FourTuple, u32, SynOutcome)>) -> Self {
        let mut recent = Self::default();
        syns.into_iter().for_each(|(pair, isn, outcome)| recent.note(pair, isn, outcome));
        recent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Section;

    fn syn(port: u16, isn: u32) -> Syn {
        let (client, server) = (([10, 0, 0, 1], port).into(), ([10, 0, 0, 2], 80).into());
        Syn { client, server, dscp: 0, isn }
    }

    #[test]
    fn a_copy_is_known_and_a_new_connection_from_the_same_port_is_not() {
        let mut memory = RecentSyns::default();
        memory.note(FourTuple::of(&syn(1, 7)), 7, SynOutcome::Passed);
        assert_eq!(memory.outcome_of(&syn(1, 7)), Some(SynOutcome::Passed));
        assert_eq!((memory.outcome_of(&syn(1, 8)), memory.outcome_of(&syn(2, 7))), (None, None));
        memory.note(FourTuple::of(&syn(1, 8)), 8, SynOutcome::Answered);
        assert_eq!(
            (memory.outcome_of(&syn(1, 7)), memory.outcome_of(&syn(1, 8))),
            (None, Some(SynOutcome::Answered))
        );
    }

    #[test]
    fn another_process_knows_the_same() {
        let mut memory = RecentSyns::default();
        memory.note(FourTuple::of(&syn(1, 7)), 7, SynOutcome::Passed);
        memory.note(FourTuple::of(&syn(2, 7)), 7, SynOutcome::Answered);
        memory.note(FourTuple::of(&syn(1, 8)), 8, SynOutcome::Answered);
        let over = Section::of(&memory).unwrap().read::<RecentSyns>().unwrap();
        assert_eq!(
            [syn(1, 7), syn(1, 8)].map(|syn| over.outcome_of(&syn)),
            [None, Some(SynOutcome::Answered)]
        );
        assert_eq!((over.outcome_of(&syn(2, 7)), over.order.len()), (Some(SynOutcome::Answered), 2));
    }

    #[test]
    fn the_oldest_entries_make_room_and_refreshed_ones_stay() {
        let mut memory = RecentSyns::default();
        for port in [1, 2, 1] {
            memory.note(FourTuple::of(&syn(port, 0)), 0, SynOutcome::Passed);
        }
        for port in 10..10 + CAPACITY as u16 - 1 {
            memory.note(FourTuple::of(&syn(port, 0)), 0, SynOutcome::Passed);
        }
        assert_eq!(
            (memory.outcome_of(&syn(1, 0)), memory.outcome_of(&syn(2, 0))),
            (Some(SynOutcome::Passed), None)
        );
        assert!(memory.order.len() == CAPACITY && memory.syn_outcomes.len() <= CAPACITY);
    }
}
