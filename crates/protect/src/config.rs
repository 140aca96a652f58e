//! What an operator may choose of a protected leg.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::compress::MAX_CONTEXTS;
use crate::encoder::Memory;
use crate::frame::Class;

/// The settings of one end of a leg. Both ends should have the same.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Of the class `latency`.
    pub latency: ClassConfig,
    /// Of the class `bulk`.
    pub bulk: ClassConfig,
    /// Repair symbols for each packet at most, whatever the peer says of losses.
    pub max_redundancy: f64,
    /// The round trip before one has been measured.
    pub initial_rtt: Duration,
    /// How often a packet of the class `bulk` is asked for before it is skipped, 1 or more.
    pub arq_rounds: u32,
    /// Flows whose headers are compressed at the same time in what this end sends, at most 256; 0 for none.
    /// The other end expands them in any case.
    pub contexts: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            latency: ClassConfig {
                window: 256,
                memory: Memory::of_packets(2048),
                failure: 300.0,
                rtt_share: 8,
                code_time: (Duration::from_millis(10), Duration::from_millis(100)),
            },
            bulk: ClassConfig {
                window: 256,
                memory: Memory::of_packets(8192),
                failure: 0.6,
                rtt_share: 4,
                code_time: (Duration::from_millis(10), Duration::from_millis(200)),
            },
            max_redundancy: 0.5,
            initial_rtt: Duration::from_millis(600),
            arq_rounds: 1,
            contexts: MAX_CONTEXTS,
        }
    }
}

impl Config {
    /// The settings of a class.
    pub fn class(&self, class: Class) -> &ClassConfig {
        match class {
            Class::Latency => &self.latency,
            Class::Bulk => &self.bulk,
        }
    }
}

/// The settings of a class.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ClassConfig {
    /// Packets that a repair symbol combines at most; 1024 or fewer.
    pub window: u64,
    /// How much is remembered at each end. For `bulk` it is two round trips of the link's rate or more.
    pub memory: Memory,
    /// What a burst of losses costs that the code does not repair in its time, in units of that time: the
    /// redundancy is what makes the sum of both costs least.
    ///
    /// For `bulk` such a burst is sent again, and what is behind it waits for 1.25 round trips: 0.6 gives a
    /// connection with CUBIC most over GEO in virtual time, of values between 0.3 and 4. For `latency` it is
    /// a packet that is lost for good.
    pub failure: f64,
    /// The code has the round trip divided by this to repair a packet …
    pub rtt_share: u32,
    /// … within these limits.
    pub code_time: (Duration, Duration),
}

impl ClassConfig {
    /// The time in which the code should repair a packet.
    pub fn code_time(&self, rtt: Duration) -> Duration {
        (rtt / self.rtt_share).clamp(self.code_time.0, self.code_time.1)
    }
}
