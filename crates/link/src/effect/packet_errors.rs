//! Lone packet errors.

use bentpipe_units::Probability;

use super::trace::Steps;
use super::{Effect, Transit};
use crate::Cause;
use crate::random::Bernoulli;

/// Independent errors: every packet is lost with the same probability, whatever its size.
#[derive(Debug)]
pub(crate) struct PacketErrors {
    per: Probability,
    random: Bernoulli,
}

impl PacketErrors {
    pub(crate) fn new(per: Probability, seed: u64) -> Self {
        Self { per, random: Bernoulli::new(seed) }
    }
}

impl Effect for PacketErrors {
    /// Takes one draw.
    #[inline]
    fn apply(&mut self, packet: &mut Transit) {
        if self.random.happens(self.per) {
            packet.lose(Cause::PacketError);
        }
    }
}

/// The same with a probability that changes with time. While it is one, the link is down: such a loss counts
/// as an outage.
#[derive(Debug)]
pub(crate) struct VaryingPacketErrors {
    error_rates: Steps<Probability>,
    random: Bernoulli,
}

impl VaryingPacketErrors {
    pub(crate) fn new(error_rates: Steps<Probability>, seed: u64) -> Self {
        Self { error_rates, random: Bernoulli::new(seed) }
    }
}

impl Effect for VaryingPacketErrors {
    /// Takes one draw.
    fn apply(&mut self, packet: &mut Transit) {
        let per = self.error_rates.at(packet.departure.as_nanos());
        if self.random.happens(per) {
            packet.lose(if per.get() < 1.0 { Cause::PacketError } else { Cause::Outage });
        }
    }
}

#[cfg(test)]
mod tests {
    use bentpipe_units::Time;

    use super::*;

    #[test]
    fn what_is_lost_while_all_is_lost_is_lost_to_an_outage() {
        let steps = [(Time::from_nanos(10), 1.0), (Time::from_nanos(20), 0.5)];
        let steps = steps.map(|(at, per)| (at, Probability::new(per).unwrap()));
        let mut errors = VaryingPacketErrors::new(Steps::new(Probability::ZERO, &steps, None), 1);
        let mut loss = |nanos| {
            let mut packet = Transit::new(Time::from_nanos(nanos), 1500, 0);
            errors.apply(&mut packet);
            packet.loss()
        };
        assert_eq!([5, 10, 19].map(&mut loss), [None, Some(Cause::Outage), Some(Cause::Outage)]);
        let later: Vec<_> = (20..120).filter_map(loss).collect();
        assert!((25..75).contains(&later.len()) && later.iter().all(|cause| *cause == Cause::PacketError));
    }
}
