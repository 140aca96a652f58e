//! Hybla (Caini and Firrincieli, "TCP Hybla: a TCP enhancement for heterogeneous networks", Int. J. Satell.
//! Commun. Network 22, 2004): a connection of long round-trip time gets the rate that one of [`RTT0`] would
//! have had.
//!
//! There are two of them. [`Hybla`] is bentpipe's, with two additions to the published algorithm that
//! `docs/hybla.md` explains; it runs the code that the kernel runs. [`PublishedHybla`] is the algorithm of
//! the paper, in bytes and floating point, for experiments that reproduce publications. Both have parts that
//! can be switched off.

mod kernel;
mod path;
mod published;
mod rate;
#[cfg(test)]
mod tests;
mod train;

use std::time::Duration;

pub use kernel::Hybla;
pub use published::PublishedHybla;

use super::{CongestionControl, Parameters};

/// The reference round-trip time RTT₀: a connection of this length, or a shorter one, is a standard TCP.
pub const RTT0: Duration = Duration::from_millis(25);

/// Segments that a sender sends back to back at the beginning, before the pacing: Hoe's estimate is made of
/// their ACKs.
const BURST_SEGMENTS: u64 = 10;

/// Hybla's parts, each on or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Components {
    /// The growth and the initial window are multiplied as the normalised round-trip time ρ asks. Off, ρ is
    /// 1: a standard TCP's window with the other components.
    pub rho: bool,
    /// A segment leaves every RTT / W. Off, segments leave as soon as the window allows.
    pub pacing: bool,
    /// The initial ssthresh is Hoe's: capacity · RTT, the capacity from the spacing of the first burst's
    /// ACKs. Until it is known the pacing stays at the rate of the initial window, or twice what the path has
    /// delivered. Off, the first loss sets ssthresh; with ρ = 24 one ACK has opened the window by 2²⁴
    /// segments by then.
    pub hoe: bool,
    /// The window goes on growing while losses are repaired, as that of the short connection that Hybla wants
    /// to equal would. Not in the published algorithm.
    pub recovery_growth: bool,
    /// The delivery rate keeps the estimate of the capacity up to date, the estimate bounds the pacing, and a
    /// standing queue reduces W to what the path carries. Not in the published algorithm.
    pub queue: bool,
}

impl Components {
    /// All: bentpipe's kernel program.
    pub const ALL: Self = Self { rho: true, pacing: true, hoe: true, recovery_growth: true, queue: true };
    /// The complete Hybla as its authors published it, without bentpipe's two additions.
    pub const PUBLISHED: Self = Self { recovery_growth: false, queue: false, ..Self::ALL };

    /// Whether these components are of the published algorithm only, which [`PublishedHybla`] implements.
    pub const fn are_published(self) -> bool {
        !self.recovery_growth && !self.queue
    }

    /// A controller for a new connection.
    pub(super) fn build(self, parameters: Parameters) -> Box<dyn CongestionControl> {
        if self.are_published() {
            Box::new(PublishedHybla::new(parameters, self))
        } else {
            Box::new(Hybla::new(parameters, self))
        }
    }
}
