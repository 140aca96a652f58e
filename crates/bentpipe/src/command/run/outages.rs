//! Log messages on outages of the satellite legs: one at the start and one at the end, for a flapping leg at
//! most once a minute.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use bentpipe_proxy::telemetry::LegReport;

/// The least interval between messages on outages of one leg. Outages in between are only counted.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The known outages of the legs.
#[derive(Debug, Default)]
pub(super) struct Outages {
    legs: BTreeMap<String, Leg>,
}

#[derive(Debug, Default)]
struct Leg {
    silence: Option<Silence>,
    /// When an outage was last logged.
    logged: Option<Instant>,
    /// Unlogged outages since then.
    unlogged: u32,
}

#[derive(Debug, Clone, Copy)]
struct Silence {
    since: Instant,
    /// The bytes that the leg had carried at its start. They grow when the leg is back.
    carried: u64,
    is_logged: bool,
}

/// A change to log.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum OutageChange {
    /// Nothing arrives over a leg.
    Silent { leg: String, length: Duration, unlogged: u32 },
    /// The leg is back.
    Back { leg: String, length: Duration },
    /// The leg is not back, but no flow waits for it any more.
    Abandoned { leg: String, length: Duration },
}

impl Outages {
    /// Updates the legs and returns the changes.
    pub(super) fn update(&mut self, now: Instant, reports: &[LegReport]) -> Vec<OutageChange> {
        let satellites: Vec<_> = reports.iter().filter(|report| report.interface.is_some()).collect();
        // A leg that is no longer configured is forgotten.
        self.legs.retain(|name, _| satellites.iter().any(|report| report.name == *name));
        let changes =
            |report: &&LegReport| self.legs.entry(report.name.clone()).or_default().update(now, report);
        satellites.iter().filter_map(changes).collect()
    }
}

impl Leg {
    fn update(&mut self, now: Instant, report: &LegReport) -> Option<OutageChange> {
        let carried = report.sent_bytes.saturating_add(report.received_bytes);
        let length = report.outage_s.and_then(|length| Duration::try_from_secs_f64(length).ok());
        match (self.silence, length) {
            (None, Some(length)) => {
                let is_logged =
                    self.logged.is_none_or(|logged| now.saturating_duration_since(logged) >= LOG_INTERVAL);
                let since = now.checked_sub(length).unwrap_or(now);
                self.silence = Some(Silence { since, carried, is_logged });
                if !is_logged {
                    self.unlogged = self.unlogged.saturating_add(1);
                    return None;
                }
                self.logged = Some(now);
                let unlogged = std::mem::take(&mut self.unlogged);
                Some(OutageChange::Silent { leg: report.name.clone(), length, unlogged })
            }
            (Some(silence), None) => {
                self.silence = None;
                let (leg, length) = (report.name.clone(), now.saturating_duration_since(silence.since));
                let changes = if carried > silence.carried {
                    OutageChange::Back { leg, length }
                } else {
                    OutageChange::Abandoned { leg, length }
                };
                silence.is_logged.then_some(changes)
            }
            _ => None,
        }
    }
}

impl OutageChange {
    /// Writes it to the log.
    pub(super) fn log(&self) {
        match self {
            Self::Silent { .. } => tracing::warn!("{self}"),
            Self::Back { .. } | Self::Abandoned { .. } => tracing::info!("{self}"),
        }
    }
}

impl fmt::Display for OutageChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |length: &Duration| length.as_secs_f64().round();
        match self {
            Self::Silent { leg, length, unlogged } => {
                write!(f, "the leg {leg} has been silent for {} s", seconds(length))?;
                match unlogged {
                    0 => Ok(()),
                    1 => write!(f, ", after one more outage since the last message"),
                    more => write!(f, ", after {more} more outages since the last message"),
                }
            }
            Self::Back { leg, length } => write!(f, "the leg {leg} is back after {} s", seconds(length)),
            Self::Abandoned { leg, length } => {
                write!(
                    f,
                    "the leg {leg} is idle after {} s of silence: no flow waits for it",
                    seconds(length)
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Watched {
        start: Instant,
        outages: Outages,
    }

    impl Watched {
        fn new() -> Self {
            Self { start: Instant::now(), outages: Outages::default() }
        }

        /// What is logged at a second, of a leg that has carried so many bytes.
        fn at(&mut self, second: u64, outage_s: Option<f64>, carried: u64) -> Vec<String> {
            let satellite = LegReport {
                name: "satellite".into(),
                interface: Some("sat0".into()),
                outage_s,
                received_bytes: carried,
                ..LegReport::default()
            };
            let terrestrial =
                LegReport { name: "terrestrial".into(), outage_s: Some(9.0), ..LegReport::default() };
            let now = self.start + Duration::from_secs(second);
            let changes = self.outages.update(now, &[satellite, terrestrial]);
            changes.iter().map(OutageChange::to_string).collect()
        }
    }

    #[test]
    fn an_outage_is_told_of_when_it_begins_and_when_it_is_over() {
        let mut watched = Watched::new();
        assert!(watched.at(0, None, 5).is_empty());
        assert_eq!(watched.at(10, Some(3.2), 5), ["the leg satellite has been silent for 3 s"]);
        for second in 11..49 {
            assert!(watched.at(second, Some(second as f64 - 6.8), 5).is_empty());
        }
        assert_eq!(watched.at(49, None, 6), ["the leg satellite is back after 42 s"]);
        assert!(watched.at(50, None, 7).is_empty());
    }

    #[test]
    fn a_leg_without_waiting_connections_is_not_reported_as_recovered() {
        let mut watched = Watched::new();
        watched.at(10, Some(3.0), 5);
        let logged = watched.at(20, None, 5);
        assert_eq!(logged, ["the leg satellite is idle after 13 s of silence: no flow waits for it"]);
    }

    #[test]
    fn of_a_leg_that_comes_and_goes_little_is_told_and_all_is_counted() {
        let mut watched = Watched::new();
        let mut logged = Vec::new();
        for round in 0..8 {
            logged.extend(watched.at(round * 10, Some(3.0), round));
            logged.extend(watched.at(round * 10 + 5, None, round + 1));
        }
        let again = "the leg satellite has been silent for 3 s, after 5 more outages since the last message";
        let back = "the leg satellite is back after 8 s";
        assert_eq!(logged, ["the leg satellite has been silent for 3 s", back, again, back]);
    }
}
