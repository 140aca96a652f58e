//! The values of a configuration that have a form of their own: one that exists is valid.

use std::num::NonZeroUsize;

use bentpipe_config::Whole;
use serde::Deserialize;

/// A TCP port, 1–65535.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "i64")]
pub struct Port(u16);

impl Port {
    /// The port of this number, if it is one.
    pub const fn new(number: u16) -> Option<Self> {
        if number == 0 { None } else { Some(Self(number)) }
    }

    /// The port's number.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl TryFrom<i64> for Port {
    type Error = String;

    fn try_from(number: i64) -> Result<Self, String> {
        let port = u16::try_from(number).ok().and_then(Self::new);
        port.ok_or_else(|| format!("{number} is not a port; write 1 to 65535"))
    }
}

impl Default for Port {
    fn default() -> Self {
        Self(7600)
    }
}

/// A number of worker threads, 1–256.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "i64")]
pub struct Workers(usize);

impl Workers {
    /// The number of threads.
    pub const fn get(self) -> usize {
        self.0
    }
}

impl Default for Workers {
    fn default() -> Self {
        Self(std::thread::available_parallelism().map_or(1, NonZeroUsize::get).min(4))
    }
}

impl TryFrom<i64> for Workers {
    type Error = String;

    fn try_from(number: i64) -> Result<Self, String> {
        match usize::try_from(number) {
            Ok(workers @ 1..=256) => Ok(Self(workers)),
            _ => Err(format!("{number} is not a number of workers; write 1 to 256")),
        }
    }
}

/// A number of things, at least one.
pub type Count = Whole<usize, 1, 1_000_000_000>;

/// Connections per second, at least one.
pub type PerSecond = Whole<u32, 1, 1_000_000>;
