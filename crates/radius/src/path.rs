//! The inverse question: which protocols work over a given path, and which settings the others need.

use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::{Catalogue, Protocol, Role, Timer, kilometres};

/// A path between two hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Path {
    /// The one-way delay, each way.
    pub delay: Duration,
    /// The longest interruption.
    pub outage: Duration,
}

impl Path {
    /// There and back.
    pub fn rtt(self) -> Duration {
        self.delay.saturating_mul(2)
    }

    /// How far light gets in the one-way delay, km.
    pub fn kilometres(self) -> f64 {
        kilometres(self.delay)
    }

    /// The lifetime that a bundle needs to cross it (RFC 9171 §4.3.1): the delay after the longest
    /// interruption.
    pub fn bundle_lifetime(self) -> Duration {
        self.delay.saturating_add(self.outage)
    }
}

/// Whether a protocol works over a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As anywhere.
    Works,
    /// Beyond the inner radius: everything at first is sent more than once.
    Reduced,
    /// A timer expires.
    Fails,
}

impl Verdict {
    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Works => "works",
            Verdict::Reduced => "reduced",
            Verdict::Fails => "fails",
        }
    }
}

/// The answer for a protocol on a path, and a remedy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// Whether it works.
    pub verdict: Verdict,
    /// Why.
    pub why: String,
    /// The timers that expire, each with the wait that it needs.
    pub needs: Vec<Need>,
    /// Whether a timer expires that no setting makes patient enough: only store and forward remains.
    pub only_store_and_forward: bool,
    /// From the first message to the first useful answer, if no timer were in the way.
    #[serde(rename = "first_answer_s", serialize_with = "as_seconds")]
    pub first_answer: Duration,
}

/// A timer that expires.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Need {
    /// The protocol that it belongs to.
    pub protocol: String,
    /// The timer.
    pub timer: String,
    /// How long it waits by default.
    #[serde(rename = "has_s", serialize_with = "as_seconds")]
    pub has: Duration,
    /// How long it would have to wait.
    #[serde(rename = "needs_s", serialize_with = "as_seconds")]
    pub needed: Duration,
    /// The setting with the smallest value that is enough, or why there is none.
    pub setting: String,
    /// Whether there is such a value.
    pub possible: bool,
}

impl Catalogue {
    /// The answer for `protocol`, and for those that it runs over, on `path`.
    pub fn verdict(&self, protocol: &Protocol, path: Path) -> Answer {
        let expired: Vec<(&Protocol, &Timer)> = self
            .stack(protocol)
            .flat_map(|layer| layer.timers.iter().map(move |timer| (layer, timer)))
            .filter(|(layer, timer)| expires(self, layer, timer, path))
            .collect();
        let repeated = self.stack(protocol).find_map(|layer| repetition(layer, path));
        let (verdict, why) = match (expired.is_empty(), repeated) {
            (false, _) => (Verdict::Fails, reasons(protocol, &expired, path)),
            (true, Some(why)) => (Verdict::Reduced, why),
            (true, None) => (Verdict::Works, "none of these timers is in the way".to_owned()),
        };
        let needs: Vec<Need> = expired.iter().map(|(layer, timer)| need(layer, timer, path)).collect();
        Answer {
            verdict,
            why,
            only_store_and_forward: needs.iter().any(|need| !need.possible),
            needs,
            first_answer: path.rtt().mul_f64(protocol.round_trips),
        }
    }
}

fn expires(catalogue: &Catalogue, protocol: &Protocol, timer: &Timer, path: Path) -> bool {
    if timer.role == Role::HalfOpen {
        let index = protocol.timers.iter().position(|other| other == timer);
        let reach = catalogue.reach(protocol);
        return index.and_then(|index| reach.timers[index].limit).is_some_and(|limit| path.delay > limit);
    }
    timer.schedule.total.is_some_and(|total| total < needed(timer, path))
}

/// How long a timer must wait on this path.
fn needed(timer: &Timer, path: Path) -> Duration {
    let answer = path.rtt().mul_f64(timer.round_trips);
    match timer.role {
        Role::SetUp | Role::HalfOpen | Role::Distance => answer,
        // The last try before the path returns may be a whole interval early (PSATS09 §2.2).
        Role::Exchange if !path.outage.is_zero() => answer + path.outage + timer.every,
        Role::Exchange => answer,
        Role::Silence => path.outage + timer.every,
    }
}

fn need(protocol: &Protocol, timer: &Timer, path: Path) -> Need {
    let needed = needed(timer, path);
    let value = timer.setting.as_ref().map(|setting| (setting, setting.value_for(needed)));
    let setting = match value {
        Some((setting, Some(value))) => setting.at_least(value),
        Some((setting, None)) => format!("{} ends at {}", setting.name(), setting.most()),
        None => format!("the {} timer cannot be set", timer.name),
    };
    Need {
        protocol: protocol.name.clone(),
        timer: timer.name.clone(),
        has: timer.schedule.total.unwrap_or(Duration::MAX),
        needed,
        setting,
        possible: matches!(value, Some((_, Some(_)))),
    }
}

fn reasons(protocol: &Protocol, expired: &[(&Protocol, &Timer)], path: Path) -> String {
    let reason = |(layer, timer): &(&Protocol, &Timer)| {
        let whose = if layer.name == protocol.name { String::new() } else { format!(" of {}", layer.name) };
        let has = span(timer.schedule.total.unwrap_or_default());
        format!("{}{whose}: waits {has}, needs {}", timer.name, span(needed(timer, path)))
    };
    expired.iter().map(reason).collect::<Vec<_>>().join("; ")
}

/// The behaviour of the first timer that repeats its message on this path.
fn repetition(protocol: &Protocol, path: Path) -> Option<String> {
    let timer = protocol.timers.iter().find(|timer| {
        let first = timer.schedule.first_repetition().filter(|_| timer.role == Role::SetUp);
        first.is_some_and(|first| first < needed(timer, path))
    })?;
    let copies = timer.schedule.copies_before(needed(timer, path));
    let at_least = if timer.schedule.waits.len() < copies { "at least " } else { "" };
    Some(format!("{}: sent {at_least}{copies} times before the first answer", timer.name))
}

fn as_seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

/// A length of time as people say it: `0.53 s`, `960 s (16 min)`, `7680 s (2 h 8 min)`.
pub(crate) fn span(time: Duration) -> String {
    let seconds = (time.as_secs_f64() * 100.0).round() / 100.0;
    let minutes = (seconds / 60.0).round() as u64;
    match minutes {
        0..3 => format!("{seconds} s"),
        3..120 => format!("{seconds} s ({minutes} min)"),
        120..5760 if minutes.is_multiple_of(60) => format!("{seconds} s ({} h)", minutes / 60),
        120..5760 => format!("{seconds} s ({} h {} min)", minutes / 60, minutes % 60),
        _ => format!("{seconds} s ({:.1} days)", seconds / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_said_in_the_unit_that_fits() {
        let said = |seconds| span(Duration::from_secs(seconds));
        assert_eq!(said(131), "131 s");
        assert_eq!(said(960), "960 s (16 min)");
        assert_eq!(said(7200), "7200 s (2 h)");
        assert_eq!(said(8160), "8160 s (2 h 16 min)");
        assert_eq!(span(Duration::from_millis(278)), "0.28 s");
    }
}
