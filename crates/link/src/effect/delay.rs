//! Propagation delay.

use std::time::Duration;

use super::{Effect, Transit};

/// The time that a signal takes from one end of the link to the other.
#[derive(Debug)]
pub(crate) struct Delay {
    nanos: u64,
}

impl Delay {
    pub(crate) fn new(delay: Duration) -> Self {
        Self { nanos: u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX) }
    }
}

impl Effect for Delay {
    #[inline]
    fn apply(&mut self, packet: &mut Transit) {
        packet.delay_nanos = packet.delay_nanos.saturating_add(self.nanos);
    }
}
