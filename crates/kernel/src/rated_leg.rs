//! A leg whose connections are given explicit rates, by one of two means: the eBPF congestion control
//! ([`explicit`](crate::explicit)), or ceilings above one of the kernel's ([`paced`](crate::paced)).
//!
//! Both report the same of each connection and take a rate for it, so that what decides the rates does not
//! know which it is.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::explicit::{Flow, SharedLeg};
use crate::paced::PacedLeg;

/// One of these legs. Clones share it.
#[derive(Debug, Clone)]
pub enum RatedLeg {
    /// An eBPF congestion control measures and obeys.
    Ebpf(SharedLeg),
    /// The kernel's own pacing has ceilings.
    Paced(PacedLeg),
}

impl RatedLeg {
    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Ebpf(leg) => leg.name(),
            Self::Paced(leg) => leg.name(),
        }
    }

    /// Whether both are the same leg, by the same means.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Ebpf(leg), Self::Ebpf(other)) => leg.number() == other.number(),
            (Self::Paced(leg), Self::Paced(other)) => leg.is_same(other),
            _ => false,
        }
    }

    /// Its connections that have reported. The report on one that begins or ends meanwhile may be half that of
    /// another.
    pub fn flows(&self) -> Vec<Flow> {
        let has_reported = |flow: &Flow| !flow.at.is_zero();
        match self {
            Self::Ebpf(leg) => {
                let all = leg.explicit().flows();
                all.filter(|flow| flow.leg == leg.number() && has_reported(flow)).collect()
            }
            Self::Paced(leg) => leg.flows().into_iter().filter(has_reported).collect(),
        }
    }

    /// Says that a socket which is not of TCP sends with a rate of this leg, so that it is not taken for cross
    /// traffic. Without eBPF the allocator knows that from the sender's reports.
    ///
    /// # Errors
    /// The kernel has no memory for it.
    pub fn join(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        match self {
            Self::Ebpf(leg) => leg.join(socket, 1),
            Self::Paced(_) => Ok(()),
        }
    }

    /// Sets the rate of the connection in this slot, bytes on the wire per second; with zero it has the initial
    /// rate.
    pub fn set_rate(&self, slot: usize, rate: u64) {
        match self {
            Self::Ebpf(leg) => leg.explicit().set_rate(slot, rate),
            Self::Paced(leg) => leg.set_rate(slot, rate),
        }
    }

    /// Sets the initial rate of connections that begin before the next call: one of weight w has
    /// `rate`·w/(`weight` + w) bytes on the wire per second, and w is then added to `weight`; and the
    /// round trip of the empty link, which they use until they have measured one.
    pub fn set_initial_rate(&self, rate: u64, weight: u32, rtt: Duration) {
        match self {
            Self::Ebpf(leg) => leg.set_initial_rate(rate, weight, rtt),
            Self::Paced(leg) => leg.set_initial_rate(rate, weight, rtt),
        }
    }
}
