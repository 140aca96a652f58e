//! Faults of a direction, planted to see whether a verifier finds them. Only with the feature
//! `planted-faults`, which no program has.

use std::time::Duration;

use bentpipe_units::{ByteCount, Probability, Rate, Time};

use crate::effect::Encapsulation;
use crate::{Arrival, Arrivals, Cause, DirectionConfig, FULL_SIZE_PACKET, GilbertElliott};

/// What is wrong with a direction. Where packets are hit one by one, it is one in [`Fault::EVERY`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The rate is 1% higher than configured.
    TooFast,
    /// The transmitter sends 100 bytes that nobody has offered, so that packets behind them wait.
    Idles,
    /// Departures are cut to whole microseconds, as of a clock that has no more.
    CoarseClock,
    /// Encapsulation adds nothing.
    NoEncapsulation,
    /// The delay is 1 ms shorter.
    ShortDelay,
    /// A packet that was told to arrive does not.
    Vanishes,
    /// A packet arrives once more, and no counter knows.
    Duplicates,
    /// A packet is overtaken by those behind it.
    Swaps,
    /// The queue has room for one full-size packet more.
    DeepQueue,
    /// It has room for one less.
    ShallowQueue,
    /// The packet error rate is 20% higher.
    MoreLosses,
    /// Packets are lost, one in 1000, though no loss is configured.
    UntoldLosses,
    /// Only packets of at least half the full size are lost, so many more of them as there are losses.
    LargePacketsOnly,
    /// Bursts of errors are half as long, and twice as many.
    ShortBursts,
    /// Of the prescribed losses the first is forgotten.
    ForgetsLoss,
    /// Each outage ends 10 ms early.
    ShortOutages,
    /// A packet without room is told to have been lost to an outage.
    WrongCause,
    /// One packet is counted twice as offered.
    Miscounts,
    /// A bit of a packet is flipped.
    Corrupts,
}

impl Fault {
    /// Every fault.
    pub const ALL: [Fault; 19] = [
        Fault::TooFast,
        Fault::Idles,
        Fault::CoarseClock,
        Fault::NoEncapsulation,
        Fault::ShortDelay,
        Fault::Vanishes,
        Fault::Duplicates,
        Fault::Swaps,
        Fault::DeepQueue,
        Fault::ShallowQueue,
        Fault::MoreLosses,
        Fault::UntoldLosses,
        Fault::LargePacketsOnly,
        Fault::ShortBursts,
        Fault::ForgetsLoss,
        Fault::ShortOutages,
        Fault::WrongCause,
        Fault::Miscounts,
        Fault::Corrupts,
    ];

    /// Of so many packets one is hit.
    pub const EVERY: u64 = 10_000;

    /// The configuration as the fault reads it.
    pub(crate) fn misread(self, config: &DirectionConfig) -> DirectionConfig {
        let mut config = config.clone();
        let limit = config.queue_limit().unwrap_or_default().get();
        match self {
            Self::TooFast => {
                config.rate = config.rate.and_then(|rate| Rate::from_bps(rate.bps() + rate.bps() / 100));
                config.queue = Some(ByteCount::new(limit));
            }
            Self::NoEncapsulation => config.encapsulation = Encapsulation::default(),
            Self::ShortDelay => {
                config.delay = config.delay.saturating_sub(Duration::from_millis(1));
                config.queue = Some(ByteCount::new(limit));
            }
            Self::DeepQueue => config.queue = Some(ByteCount::new(limit + FULL_SIZE_PACKET.get())),
            Self::ShallowQueue => {
                config.queue = Some(ByteCount::new(limit.saturating_sub(FULL_SIZE_PACKET.get())))
            }
            Self::MoreLosses => config.per = scaled(config.per, 1.2),
            Self::UntoldLosses => config.per = Probability::new(0.001).unwrap_or_default(),
            Self::LargePacketsOnly => config.per = scaled(config.per, 2.0),
            Self::ShortBursts => {
                let twice = |model: GilbertElliott| GilbertElliott {
                    good_to_bad: scaled(model.good_to_bad, 2.0),
                    bad_to_good: scaled(model.bad_to_good, 2.0),
                    ..model
                };
                config.gilbert_elliott = config.gilbert_elliott.map(twice);
            }
            Self::ForgetsLoss => config.losses = config.losses.numbers().skip(1).collect(),
            Self::ShortOutages => {
                let shorter = |(start, lasts): (Time, Duration)| {
                    (start, lasts.saturating_sub(Duration::from_millis(10)))
                };
                config.outages = config.outages.outages().map(shorter).collect();
            }
            _ => {}
        }
        config
    }

    /// What it makes of the fate of the packet with this number, of `bytes`.
    pub(crate) fn tamper(
        self,
        number: u64,
        bytes: usize,
        fate: Result<Arrivals, Cause>,
    ) -> Result<Arrivals, Cause> {
        let is_hit = number.is_multiple_of(Self::EVERY);
        let mut arrivals = match (self, fate) {
            (Self::WrongCause, Err(Cause::QueueFull)) => return Err(Cause::Outage),
            (_, Err(cause)) => return Err(cause),
            (_, Ok(arrivals)) => arrivals,
        };
        let packet = &mut arrivals.packet;
        match self {
            Self::CoarseClock => {
                let beyond = arrivals.departure.as_nanos() % 1000;
                arrivals.departure = Time::from_nanos(arrivals.departure.as_nanos() - beyond);
                packet.at = Time::from_nanos(packet.at.as_nanos() - beyond);
            }
            Self::Vanishes if is_hit => packet.at = Time::MAX,
            Self::Duplicates if is_hit => arrivals.duplicate = Some(*packet),
            Self::Swaps if is_hit => packet.at += Duration::from_millis(5),
            Self::Corrupts if is_hit => *packet = Arrival { flipped_bit: Some(bytes), ..*packet },
            _ => {}
        }
        Ok(arrivals)
    }

    /// Whether the transmitter sends something of its own before the packet with this number.
    pub(crate) fn idles_before(self, number: u64) -> bool {
        self == Self::Idles && number.is_multiple_of(Self::EVERY)
    }

    /// Whether the packet with this number is counted once more.
    pub(crate) fn miscounts(self, number: u64) -> bool {
        self == Self::Miscounts && number == Self::EVERY
    }

    /// Whether a loss to packet errors is overlooked, because the packet of `bytes` is a small one.
    pub(crate) fn spares(self, bytes: usize) -> bool {
        self == Self::LargePacketsOnly && 2 * (bytes as u64) < FULL_SIZE_PACKET.get()
    }
}

fn scaled(probability: Probability, factor: f64) -> Probability {
    Probability::new((probability.get() * factor).min(1.0)).unwrap_or_default()
}
