//! What is wrong with a log.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

/// The most findings of a kind, in a direction, that are kept; the others are counted.
const MOST_OF_A_KIND: u64 = 3;

/// What was checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Check {
    /// Each packet has one number and one fate.
    Fate,
    /// Packets leave at the rate of the link, one after the other, without a pause.
    Departure,
    /// The bytes that wait are those that have come and not left.
    Backlog,
    /// A packet is dropped exactly if the queue has no room for it.
    Queue,
    /// A packet arrives one propagation delay after it has left.
    Delay,
    /// A packet arrives when it is due.
    Arrival,
    /// Packets arrive in order.
    Order,
    /// A packet arrives once, and unchanged.
    Copies,
    /// Exactly the packets that leave in an outage are lost to it.
    Outage,
    /// Packets are lost to errors as often as configured.
    Losses,
    /// Errors do not depend on size or on the packet before.
    Independence,
    /// The counters of the link are the sums of the packets.
    Counters,
    /// Applications receive what was sent.
    Application,
}

/// A packet, or a sum, that is not as the scenario says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What was checked.
    pub check: Check,
    /// The link and the direction, or the flow.
    pub place: String,
    /// The packet, and what was expected and found.
    pub text: String,
}

impl Display for Check {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fate => "fate",
            Self::Departure => "departure",
            Self::Backlog => "backlog",
            Self::Queue => "queue",
            Self::Delay => "delay",
            Self::Arrival => "arrival",
            Self::Order => "order",
            Self::Copies => "copies",
            Self::Outage => "outage",
            Self::Losses => "losses",
            Self::Independence => "independence",
            Self::Counters => "counters",
            Self::Application => "application",
        })
    }
}

impl Display for Finding {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.place, self.check, self.text)
    }
}

/// The findings of a direction: the first of each kind, and how many there are.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    kept: Vec<(Check, String)>,
    counts: BTreeMap<Check, u64>,
}

impl Findings {
    /// Adds one; the text is only made where it is kept.
    pub(crate) fn add(&mut self, check: Check, text: impl FnOnce() -> String) {
        let count = self.counts.entry(check).or_default();
        *count += 1;
        if *count <= MOST_OF_A_KIND {
            self.kept.push((check, text()));
        }
    }

    /// All of them, in order; with how many more there are of each kind.
    pub(crate) fn finish(self, place: &str) -> Vec<Finding> {
        let finding = |check, text| Finding { check, place: place.to_owned(), text };
        let more = self.counts.into_iter().filter(|(_, count)| *count > MOST_OF_A_KIND);
        let more = more.map(|(check, count)| finding(check, format!("and {} more", count - MOST_OF_A_KIND)));
        self.kept.into_iter().map(|(check, text)| finding(check, text)).chain(more).collect()
    }
}
