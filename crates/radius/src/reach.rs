//! The radii of a protocol.

use std::time::Duration;

use crate::{Catalogue, Protocol, Role, Timer, handshake};

/// How far a protocol reaches, as one-way delays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reach {
    /// The inner radius: beyond it the first message is sent again before its answer is there. `None` if
    /// nothing is ever sent again.
    pub inner: Option<Duration>,
    /// The ceiling radius: beyond it the round trip is longer than the longest retransmission timeout, so
    /// that on an established connection every first transmission of a window is repeated before its answer
    /// is there, however well the round trip is known. `None` without such a ceiling.
    pub ceiling: Option<Duration>,
    /// The limiting radius: up to it the protocol works, beyond it that is not to be relied on. `None` if
    /// nothing ever gives up.
    pub limit: Option<Duration>,
    /// Beyond this it never works. It differs from `limit` where two clocks race: see [`handshake`].
    pub perhaps: Option<Duration>,
    /// The timer that makes the limit, with the protocol below it that it belongs to.
    pub limited_by: Option<String>,
    /// The reach that each of its own timers allows, in their order.
    pub timers: Vec<TimerReach>,
}

/// How far one timer lets a protocol reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimerReach {
    /// Up to this one-way delay it does not expire; `None` if no distance makes it.
    pub limit: Option<Duration>,
    /// Beyond this one it always does.
    pub perhaps: Option<Duration>,
}

impl Catalogue {
    /// The radii of `protocol`, bounded by the protocols that it runs over too.
    pub fn reach(&self, protocol: &Protocol) -> Reach {
        let below = protocol.over.as_deref().and_then(|name| self.protocol(name)).map(|below| {
            let reach = self.reach(below);
            let limited_by = reach.limited_by.map(|timer| format!("{timer} of {}", below.name));
            Reach { limited_by, ..reach }
        });
        let own = own_reach(protocol);
        match below {
            None => own,
            Some(below) => {
                let limited_by =
                    if is_less(below.limit, own.limit) { below.limited_by } else { own.limited_by };
                Reach {
                    inner: least([own.inner, below.inner]),
                    ceiling: least([own.ceiling, below.ceiling]),
                    limit: least([own.limit, below.limit]),
                    perhaps: least([own.perhaps, below.perhaps]),
                    limited_by,
                    timers: own.timers,
                }
            }
        }
    }
}

fn own_reach(protocol: &Protocol) -> Reach {
    let timers: Vec<TimerReach> = protocol.timers.iter().map(|timer| timer_reach(protocol, timer)).collect();
    let limit = least(timers.iter().map(|timer| timer.limit));
    let limiting = timers.iter().position(|timer| limit.is_some() && timer.limit == limit);
    Reach {
        inner: least(protocol.timers.iter().map(inner_radius)),
        ceiling: least(protocol.timers.iter().map(ceiling_radius)),
        limit,
        perhaps: least(timers.iter().map(|timer| timer.perhaps)),
        limited_by: limiting.map(|index| protocol.timers[index].name.clone()),
        timers,
    }
}

/// Only the first timeout of a set-up is fixed; that of a connection follows the round trips that it has
/// measured.
fn inner_radius(timer: &Timer) -> Option<Duration> {
    let first = (timer.role == Role::SetUp).then(|| timer.schedule.first_repetition())??;
    Some(one_way(first, timer.round_trips))
}

/// The longest time between two tries of a connection's data is the ceiling of its timeout.
fn ceiling_radius(timer: &Timer) -> Option<Duration> {
    let repeats = timer.role == Role::Exchange && !timer.every.is_zero();
    repeats.then(|| one_way(timer.every, timer.round_trips))
}

fn timer_reach(protocol: &Protocol, timer: &Timer) -> TimerReach {
    if timer.role == Role::HalfOpen {
        let syn = protocol.timer(Role::SetUp).map_or(&[][..], |syn| &syn.schedule.waits);
        let reach = handshake::reach(syn, &timer.schedule.waits);
        return TimerReach { limit: Some(reach.sure), perhaps: Some(reach.perhaps) };
    }
    let total = timer.schedule.total.filter(|_| timer.role.bounds_distance());
    let limit = total.map(|total| one_way(total, timer.round_trips));
    TimerReach { limit, perhaps: limit }
}

/// The delay at which `round_trips` round trips take that long.
fn one_way(time: Duration, round_trips: f64) -> Duration {
    time.div_f64(2.0 * round_trips)
}

fn least(delays: impl IntoIterator<Item = Option<Duration>>) -> Option<Duration> {
    delays.into_iter().flatten().min()
}

/// Whether `one` is nearer than `other`, where `None` is infinitely far.
fn is_less(one: Option<Duration>, other: Option<Duration>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one < other,
        (one, other) => one.is_some() && other.is_none(),
    }
}
