//! `[[link]]`: what happens to packets between two nodes.

use std::num::{NonZeroU32, NonZeroU64};

use bentpipe_config::{InTable, Name, Off, Or, Plain, Problem, SpanFrom, Whole, Written};
use bentpipe_link::{
    DirectionConfig, Encapsulation, Frame, GilbertElliott, Impairments, LinkConfig, PrescribedLosses,
};
use bentpipe_units::{ByteCount, Probability, Rate};
use serde::Deserialize;

use super::link_ends::{AckFilter, Arq, DelayedDupAcks, LinkView, Snoop, Xcp, link_ends};
use super::outages::Outages;
use super::protect::{Protect, protect};
use super::route::Topology;
use super::sharing::{Explicit, shared};
use super::trace::{Origin, Trace};
use super::{Bdp, Unlimited, overlay};
use crate::scenario::LinkSpec;

/// The most links of a scenario.
pub const MAX_LINKS: usize = 1000;
/// The most bytes that an encapsulation may add or carry in one piece.
const MAX_ENCAPSULATION: u64 = 65_535;

/// The most losses that a direction may prescribe.
const MAX_LOSSES: usize = 100_000;
/// The largest number of a packet: that of TOML's integers.
const MAX_PACKET_NUMBER: u64 = i64::MAX as u64;

/// One `[[link]]`. The keys from `rate` on are those of its forward [`Direction`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Link {
    name: Name,
    between: Vec<Name>,
    reverse: Option<Direction>,
    snoop: Option<Or<Off, Snoop>>,
    delayed_dup_acks: Option<Or<Off, DelayedDupAcks>>,
    ack_filter: Option<Or<Off, AckFilter>>,
    arq: Option<Or<Off, Arq>>,
    xcp: Option<Or<Off, Xcp>>,
    explicit: Option<Or<Off, Explicit>>,
    protect: Option<Or<Off, Protect>>,
    rate: Option<Or<Unlimited, Written<Rate>>>,
    delay: Option<SpanFrom<0>>,
    per: Option<Written<Probability>>,
    queue: Option<Or<Bdp, Written<ByteCount>>>,
    losses: Option<Losses>,
    gilbert_elliott: Option<Or<Off, Channel>>,
    outages: Option<Outages>,
    trace: Option<Trace>,
    encapsulation: Option<EncapsulationKey>,
    reorder: Option<Written<Probability>>,
    reorder_by: Option<SpanFrom<1>>,
    duplicate: Option<Written<Probability>>,
    corrupt: Option<Written<Probability>>,
}

/// The keys of a direction.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Direction {
    rate: Option<Or<Unlimited, Written<Rate>>>,
    delay: Option<SpanFrom<0>>,
    per: Option<Written<Probability>>,
    queue: Option<Or<Bdp, Written<ByteCount>>>,
    losses: Option<Losses>,
    gilbert_elliott: Option<Or<Off, Channel>>,
    outages: Option<Outages>,
    trace: Option<Trace>,
    encapsulation: Option<EncapsulationKey>,
    reorder: Option<Written<Probability>>,
    reorder_by: Option<SpanFrom<1>>,
    duplicate: Option<Written<Probability>>,
    corrupt: Option<Written<Probability>>,
}

/// The numbers of the packets that are lost.
#[derive(Deserialize)]
#[serde(try_from = "Vec<Whole<u64, 1, MAX_PACKET_NUMBER>>")]
struct Losses(PrescribedLosses);

/// Gilbert's channel, unless the losses in its two states are given.
#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Channel {
    good_to_bad: Written<Probability>,
    bad_to_good: Written<Probability>,
    loss_in_good: Option<Written<Probability>>,
    loss_in_bad: Option<Written<Probability>>,
    slot: Option<SpanFrom<1>>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename = "$shape", rename_all = "lowercase")]
enum EncapsulationKey {
    Text(KnownEncapsulation),
    Table(OwnEncapsulation),
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum KnownEncapsulation {
    None,
    DvbMpe,
    Aal5Atm,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "OwnKeys")]
struct OwnEncapsulation(Encapsulation);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnKeys {
    overhead: Option<Whole<u64, 0, MAX_ENCAPSULATION>>,
    frame_payload: Option<Whole<u32, 1, MAX_ENCAPSULATION>>,
    frame_header: Option<Whole<u32, 0, MAX_ENCAPSULATION>>,
}

impl Link {
    /// The checked link, whose nodes are added to the topology; `origin` has its outages and traces.
    pub(super) fn read(self, topology: &mut Topology, origin: Origin<'_>) -> Result<LinkSpec, Problem> {
        let wrong = |why| Err(Problem::of("between", why));
        let between = match &self.between[..] {
            [from, to] if from != to => [&**from, &**to],
            [from, _] => return wrong(format!("a link joins two nodes, not {} with itself", &**from)),
            nodes => return wrong(format!("{} nodes are given: a link joins two", nodes.len())),
        };
        let Self { rate, delay, per, queue, losses, gilbert_elliott, outages, trace, encapsulation, .. } =
            self;
        let Self { reorder, reorder_by, duplicate, corrupt, .. } = self;
        let forward = Direction {
            rate,
            delay,
            per,
            queue,
            losses,
            gilbert_elliott,
            outages,
            trace,
            encapsulation,
            reorder,
            reorder_by,
            duplicate,
            corrupt,
        };
        let LinkConfig { forward, reverse } = directions(forward, self.reverse, origin)?;
        for (direction, name) in [(&forward, "it"), (&reverse, "its reverse")] {
            if direction.highest_rate().is_none() && direction.delay.is_zero() {
                return Err(Problem::new(format!(
                    "{name} has neither a rate nor a delay, so that virtual time would stand still: give \
                     one, for example \
                     delay = \"1ms\""
                )));
            }
        }
        let config = LinkConfig { forward, reverse };
        let view = LinkView { between, config: &config };
        let others = [
            ("snoop", is_on(&self.snoop)),
            ("delayed_dup_acks", is_on(&self.delayed_dup_acks)),
            ("ack_filter", is_on(&self.ack_filter)),
            ("arq", is_on(&self.arq)),
            ("xcp", is_on(&self.xcp)),
            ("explicit", is_on(&self.explicit)),
        ];
        let others: Vec<&str> = others.into_iter().filter(|(_, is_on)| *is_on).map(|(key, _)| key).collect();
        Ok(LinkSpec {
            protect: protect(&view, self.protect, &others)?,
            ends: link_ends(&view, self.snoop, self.delayed_dup_acks, self.ack_filter, self.xcp, self.arq)?,
            shared: shared(&view, self.explicit)?,
            between: between.map(|node| topology.add_node(node)),
            name: self.name.into(),
            config,
        })
    }
}

/// Whether a key is there, and not `"off"`.
fn is_on<T>(key: &Option<Or<Off, T>>) -> bool {
    key.as_ref().is_some_and(|key| key.value.is_some())
}

/// Both directions: the reverse one is as the forward one where it has no keys of its own. A profile knows
/// both by itself.
fn directions(
    mut forward: Direction,
    reverse: Option<Direction>,
    origin: Origin<'_>,
) -> Result<LinkConfig, Problem> {
    let base = forward.trace.take().map_or(Ok(LinkConfig::default()), |trace| trace.read(origin));
    let base = base.inside("trace")?;
    let (has_rate, has_delay) = (forward.rate.is_some(), forward.delay.is_some());
    let forward = forward.over(base.forward, origin)?;
    let mut config = LinkConfig { reverse: forward.clone(), forward };
    config.reverse.trace = base.reverse.trace;
    if !has_rate {
        config.reverse.rate = base.reverse.rate;
    }
    if !has_delay {
        config.reverse.delay = base.reverse.delay;
    }
    if let Some(reverse) = reverse {
        config.reverse = reverse.over(config.reverse, origin).inside("reverse")?;
    }
    Ok(config)
}

impl Direction {
    /// Its values, and those of `base` where a key is missing.
    fn over(self, base: DirectionConfig, origin: Origin<'_>) -> Result<DirectionConfig, Problem> {
        let mut direction = base;
        overlay!(self => direction; rate delay per queue losses gilbert_elliott encapsulation);
        let impairments = &mut direction.impairments;
        overlay!(self => impairments; reorder reorder_by duplicate corrupt);
        if impairments.reorder != Probability::ZERO && impairments.reorder_by.is_zero() {
            impairments.reorder_by = Impairments::DEFAULT_REORDER_BY;
        }
        if let Some(outages) = self.outages {
            direction.outages = outages.read(origin.directory).inside("outages")?;
        }
        // The forward direction's has been read with that of the link.
        if let Some(trace) = self.trace {
            direction.trace = trace.read(origin).inside("trace")?.reverse.trace;
        }
        Ok(direction)
    }
}

impl Plain for Losses {
    type Value = PrescribedLosses;

    fn get(self) -> PrescribedLosses {
        self.0
    }
}

impl TryFrom<Vec<Whole<u64, 1, MAX_PACKET_NUMBER>>> for Losses {
    type Error = String;

    fn try_from(numbers: Vec<Whole<u64, 1, MAX_PACKET_NUMBER>>) -> Result<Self, String> {
        if numbers.len() > MAX_LOSSES {
            return Err(format!("{} losses are prescribed: at most {MAX_LOSSES} may be", numbers.len()));
        }
        Ok(Self(numbers.into_iter().filter_map(|number| NonZeroU64::new(number.get())).collect()))
    }
}

impl Plain for Channel {
    type Value = GilbertElliott;

    fn get(self) -> GilbertElliott {
        let certain = Probability::new(1.0).expect("1 is a probability");
        GilbertElliott {
            good_to_bad: self.good_to_bad.get(),
            bad_to_good: self.bad_to_good.get(),
            loss_in_good: self.loss_in_good.map_or(Probability::ZERO, Plain::get),
            loss_in_bad: self.loss_in_bad.map_or(certain, Plain::get),
            slot: self.slot.map(Plain::get),
        }
    }
}

impl Plain for EncapsulationKey {
    type Value = Encapsulation;

    fn get(self) -> Encapsulation {
        match self {
            Self::Text(KnownEncapsulation::None) => Encapsulation::default(),
            Self::Text(KnownEncapsulation::DvbMpe) => Encapsulation::dvb_mpe(),
            Self::Text(KnownEncapsulation::Aal5Atm) => Encapsulation::aal5_atm(),
            Self::Table(OwnEncapsulation(own)) => own,
        }
    }
}

impl TryFrom<OwnKeys> for OwnEncapsulation {
    type Error = &'static str;

    fn try_from(keys: OwnKeys) -> Result<Self, &'static str> {
        let overhead = ByteCount::new(keys.overhead.map_or(0, Plain::get));
        let header = keys.frame_header.map(Plain::get);
        let frame = match keys.frame_payload.and_then(|payload| NonZeroU32::new(payload.get())) {
            Some(payload) => Some(Frame { payload, header: header.unwrap_or(0) }),
            None if header.is_some() => {
                return Err("frame_header needs frame_payload, the bytes that a frame carries");
            }
            None => None,
        };
        Ok(Self(Encapsulation { overhead, frame }))
    }
}
