//! Propagation delay.

use std::time::Duration;

use super::{Effect, Transit};

/// The time that a signal takes from one end of the link to the other.
#[derive(Debug)]
pub(crate) struct Delay(pub(crate) Duration);

impl Effect for Delay {
    fn apply(&mut self, packet: &mut Transit) {
        packet.delay += self.0;
    }
}
