//! All interleavings and crashes of the last part of an upgrade, on a small model whose claims are those of
//! the program on real shared memory.
//!
//! A step of the model is what a process does between two looks at anything that the other one can change. A
//! frozen process is one that takes no step, so every freeze, short or for ever, is among the interleavings;
//! and since the predecessor may lose its patience at any time, so is every duration. Messages only say when
//! to look, so the model has none: the predecessor looks at any time.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use super::*;

/// Steps of the successor before it has built everything.
const STEPS: u8 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Process {
    /// The predecessor waits, or the successor has so many steps to go; neither touches the connections.
    Waiting(u8),
    /// It has read the word, in a protocol that reads and writes it in two steps.
    Read(Option<Claimant>),
    /// It reads and writes connections.
    Serving,
    /// It never touches them again.
    Left,
    Dead,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    owner: Option<Claimant>,
    predecessor: Process,
    successor: Process,
}

/// How a process claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claiming {
    /// As the program does.
    CompareAndSwap,
    /// Reads the word and then writes it.
    ReadThenWrite,
    /// The predecessor resumes without asking, as one whose refusal gets lost does.
    PredecessorJustResumes,
}

/// What was found among all states.
#[derive(Debug, Default)]
struct Found {
    states: usize,
    /// States in which both read and write.
    both: Vec<State>,
    /// Ends in which somebody lives and nobody serves, though the owner has not died.
    none: Vec<State>,
    ends: HashSet<State>,
}

/// The memory, whose word the model sets before each claim.
struct Memory(Ownership);

impl Memory {
    fn claim(&self, state: &mut State, claimant: Claimant) -> bool {
        let word = self.0.word(OWNER);
        word.store(state.owner.map_or(OFFERED, |owner| owner as u64), Ordering::SeqCst);
        let claimed = self.0.claim(claimant);
        state.owner = owner(&self.0);
        claimed
    }
}

fn owner(ownership: &Ownership) -> Option<Claimant> {
    match ownership.word(OWNER).load(Ordering::SeqCst) {
        OFFERED => None,
        1 => Some(Claimant::Predecessor),
        2 => Some(Claimant::Successor),
        other => panic!("the word is {other}"),
    }
}

impl State {
    const START: Self =
        Self { owner: None, predecessor: Process::Waiting(0), successor: Process::Waiting(STEPS) };

    fn process(&mut self, which: Claimant) -> &mut Process {
        match which {
            Claimant::Predecessor => &mut self.predecessor,
            Claimant::Successor => &mut self.successor,
        }
    }

    /// The states after one step of either process, or the death of one.
    fn next(self, claiming: Claiming, memory: &Memory) -> Vec<Self> {
        let mut states = Vec::new();
        for which in [Claimant::Predecessor, Claimant::Successor] {
            let mut copy = self;
            let process = *copy.process(which);
            if process != Process::Dead {
                let mut dead = self;
                *dead.process(which) = Process::Dead;
                states.push(dead);
            }
            match process {
                Process::Waiting(0) => states.push(self.claim(which, claiming, memory)),
                Process::Waiting(left) => {
                    *copy.process(which) = Process::Waiting(left - 1);
                    states.push(copy);
                    // Something that it needs cannot be had.
                    *copy.process(which) = Process::Left;
                    states.push(copy);
                }
                Process::Read(None) => {
                    copy.owner = Some(which);
                    *copy.process(which) = Process::Serving;
                    states.push(copy);
                }
                Process::Read(Some(_)) => {
                    *copy.process(which) = Process::Left;
                    states.push(copy);
                }
                Process::Serving | Process::Left | Process::Dead => {}
            }
        }
        states
    }

    fn claim(mut self, which: Claimant, claiming: Claiming, memory: &Memory) -> Self {
        *self.process(which) = match claiming {
            Claiming::ReadThenWrite => Process::Read(self.owner),
            Claiming::PredecessorJustResumes if which == Claimant::Predecessor => Process::Serving,
            _ if memory.claim(&mut self, which) => Process::Serving,
            _ => Process::Left,
        };
        self
    }

    fn both_serve(self) -> bool {
        (self.predecessor, self.successor) == (Process::Serving, Process::Serving)
    }

    /// Whether this is an end, after which nobody takes a step but to die.
    fn is_end(self) -> bool {
        let rests = |process| matches!(process, Process::Serving | Process::Left | Process::Dead);
        rests(self.predecessor) && rests(self.successor)
    }

    /// Whether the connections are lost though no process died that could have been serving them. One that
    /// dies as the owner is a daemon that has died, and so is the last one that could claim.
    fn is_forsaken(mut self) -> bool {
        let both = [self.predecessor, self.successor];
        let owner_died = self.owner.is_some_and(|owner| *self.process(owner) == Process::Dead);
        let nobody_could = self.owner.is_none() && self.predecessor == Process::Dead;
        self.is_end() && !both.contains(&Process::Serving) && !owner_died && !nobody_could
    }
}

fn explore(claiming: Claiming) -> Found {
    let memory = Memory(Ownership::offer().unwrap().0);
    let (mut seen, mut queue) = (HashSet::from([State::START]), VecDeque::from([State::START]));
    let mut found = Found::default();
    while let Some(state) = queue.pop_front() {
        found.states += 1;
        found.both.extend(state.both_serve().then_some(state));
        found.none.extend(state.is_forsaken().then_some(state));
        found.ends.extend(state.is_end().then_some(state));
        for next in state.next(claiming, &memory) {
            if seen.insert(next) {
                queue.push_back(next);
            }
        }
    }
    found
}

#[test]
fn no_interleaving_and_no_crash_leaves_two_owners_or_none() {
    let found = explore(Claiming::CompareAndSwap);
    println!("{} states, {} ends", found.states, found.ends.len());
    assert!(found.both.is_empty(), "both serve in {:?}", found.both);
    assert!(found.none.is_empty(), "nobody serves in {:?}", found.none);
    // The ends that an upgrade is to have are among them.
    let end = |owner, predecessor, successor| State { owner: Some(owner), predecessor, successor };
    for expected in [
        end(Claimant::Successor, Process::Left, Process::Serving),
        end(Claimant::Predecessor, Process::Serving, Process::Left),
        end(Claimant::Successor, Process::Dead, Process::Serving),
        end(Claimant::Predecessor, Process::Serving, Process::Dead),
    ] {
        assert!(found.ends.contains(&expected), "{expected:?} is not reached");
    }
}

#[test]
fn protocols_with_a_fault_have_two_owners_and_the_model_finds_them() {
    for claiming in [Claiming::ReadThenWrite, Claiming::PredecessorJustResumes] {
        assert!(!explore(claiming).both.is_empty(), "{claiming:?}");
    }
}

#[test]
fn of_two_processes_that_claim_at_once_exactly_one_succeeds() {
    for _ in 0..2000 {
        let (ours, file) = Ownership::offer().unwrap();
        let theirs = Ownership::receive(&file).unwrap();
        let barrier = Arc::new(std::sync::Barrier::new(2));
        let there = barrier.clone();
        let claiming = std::thread::spawn(move || {
            there.wait();
            theirs.claim(Claimant::Successor)
        });
        barrier.wait();
        let (here, there) = (ours.claim(Claimant::Predecessor), claiming.join().unwrap());
        assert_ne!(here, there);
        assert_eq!(owner(&ours), Some(if here { Claimant::Predecessor } else { Claimant::Successor }));
        // Nothing changes it any more.
        assert!(!ours.claim(Claimant::Predecessor) && !ours.claim(Claimant::Successor));
    }
}
