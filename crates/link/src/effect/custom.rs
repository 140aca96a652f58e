//! An effect from outside of this crate, for experiments.

use std::fmt::Debug;
use std::time::Duration;

use bentpipe_units::Time;

use super::{Effect, Transit};
use crate::Cause;

/// A packet that has left the transmitter, as an effect from outside sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassingPacket {
    /// When its last bit left the transmitter.
    pub departure: Time,
    /// Its length on the wire.
    pub wire_bytes: u64,
    /// How long it is on its way after that; the effect may change it. Where a later packet would arrive
    /// before an earlier one, it overtakes.
    pub delay: Duration,
    /// Whether it is lost; the effect may lose it, and it then counts as a packet error. What another effect
    /// has lost stays lost.
    pub is_lost: bool,
}

/// Something else that happens to the packets of a direction, after the effects of the link itself. The
/// queue's drops do not come to it.
pub trait CustomEffect: Debug + Send {
    /// Acts on a packet. Packets come in the order in which they were offered.
    fn apply(&mut self, packet: &mut PassingPacket);
}

/// The effect in the list of a direction.
#[derive(Debug)]
pub(crate) struct Custom(pub(crate) Box<dyn CustomEffect>);

impl Effect for Custom {
    fn apply(&mut self, packet: &mut Transit) {
        let mut passing = PassingPacket {
            departure: packet.departure,
            wire_bytes: packet.wire_bytes,
            delay: Duration::from_nanos(packet.delay_nanos),
            is_lost: packet.loss().is_some(),
        };
        self.0.apply(&mut passing);
        packet.delay_nanos = u64::try_from(passing.delay.as_nanos()).unwrap_or(u64::MAX);
        if passing.is_lost {
            packet.lose(Cause::PacketError);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Direction, DirectionConfig, Fate};

    /// Loses every second packet, and lets the others take a second longer.
    #[derive(Debug)]
    struct EverySecond(u64);

    impl CustomEffect for EverySecond {
        fn apply(&mut self, packet: &mut PassingPacket) {
            self.0 += 1;
            packet.is_lost = self.0.is_multiple_of(2);
            packet.delay += Duration::from_secs(1);
        }
    }

    #[test]
    fn it_acts_after_the_effects_of_the_link() {
        let delay = Duration::from_millis(5);
        let mut direction = Direction::new(&DirectionConfig { delay, ..DirectionConfig::default() }, 1);
        direction.add_effect(Box::new(EverySecond(0)));
        let fates = [(); 3].map(|()| direction.offer(Time::ZERO, 100));
        let late = Fate::Deliver { at: Time::ZERO + Duration::from_millis(1005) };
        assert_eq!(fates, [late, Fate::Drop(Cause::PacketError), late]);
        assert_eq!(direction.counters().dropped.packet_error, 1);
    }
}
