//! What the log says of outages of the satellite legs: when one has begun and when it is over, for a leg that comes and goes once a
//! minute at the most.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use bentpipe_proxy::telemetry::LegReport;

/// After an outage was told of, others of the same leg are only counted for so long.
const REST: Duration = Duration::from_secs(60);

/// The outages of the legs as far as they are known.
#[derive(Debug, Default)]
pub(super) struct Outages {
    legs: BTreeMap<String, Leg>,
}

#[derive(Debug, Default)]
struct Leg {
    silence: Option<Silence>,
    /// When an outage was last told of.
    told: Option<Instant>,
    /// Outages since then.
    untold: u32,
}

#[derive(Debug, Clone, Copy)]
struct Silence {
    since: Instant,
    /// What the leg had carried when it began: it grows when something is heard.
    carried: u64,
    is_told: bool,
}

/// What is to be told.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum News {
    /// Nothing is heard of a leg.
    Silent { leg: String, length: Duration, untold: u32 },
    /// It is heard again.
    Back { leg: String, length: Duration },
    /// It was not heard again, but nobody waits for it any more.
    Abandoned { leg: String, length: Duration },
}

impl Outages {
    /// Looks at the legs and says what is new.
    pub(super) fn look(&mut self, now: Instant, reports: &[LegReport]) -> Vec<News> {
        let satellites: Vec<_> = reports.iter().filter(|report| report.interface.is_some()).collect();
        // A leg that has gone from the configuration is nobody's any more.
        self.legs.retain(|name, _| satellites.iter().any(|report| report.name == *name));
        let news = |report: &&LegReport| self.legs.entry(report.name.clone()).or_default().look(now, report);
        satellites.iter().filter_map(news).collect()
    }
}

impl Leg {
    fn look(&mut self, now: Instant, report: &LegReport) -> Option<News> {
        let carried = report.sent_bytes.saturating_add(report.received_bytes);
        let length = report.outage_s.and_then(|length| Duration::try_from_secs_f64(length).ok());
        match (self.silence, length) {
            (None, Some(length)) => {
                let is_told = self.told.is_none_or(|told| now.saturating_duration_since(told) >= REST);
                let since = now.checked_sub(length).unwrap_or(now);
                self.silence = Some(Silence { since, carried, is_told });
                if !is_told {
                    self.untold = self.untold.saturating_add(1);
                    return None;
                }
                self.told = Some(now);
                let untold = std::mem::take(&mut self.untold);
                Some(News::Silent { leg: report.name.clone(), length, untold })
            }
            (Some(silence), None) => {
                self.silence = None;
                let (leg, length) = (report.name.clone(), now.saturating_duration_since(silence.since));
                let news = if carried > silence.carried {
                    News::Back { leg, length }
                } else {
                    News::Abandoned { leg, length }
                };
                silence.is_told.then_some(news)
            }
            _ => None,
        }
    }
}

impl News {
    /// Writes it into the log.
    pub(super) fn tell(&self) {
        match self {
            Self::Silent { .. } => tracing::warn!("{self}"),
            Self::Back { .. } | Self::Abandoned { .. } => tracing::info!("{self}"),
        }
    }
}

impl fmt::Display for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |length: &Duration| length.as_secs_f64().round();
        match self {
            Self::Silent { leg, length, untold } => {
                write!(f, "the leg {leg} has been silent for {} s", seconds(length))?;
                match untold {
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

        /// What is told at a second, of a leg that has carried so many bytes.
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
            let news = self.outages.look(now, &[satellite, terrestrial]);
            news.iter().map(News::to_string).collect()
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
    fn a_leg_that_nobody_waits_for_any_more_is_not_said_to_be_back() {
        let mut watched = Watched::new();
        watched.at(10, Some(3.0), 5);
        let told = watched.at(20, None, 5);
        assert_eq!(told, ["the leg satellite is idle after 13 s of silence: no flow waits for it"]);
    }

    #[test]
    fn of_a_leg_that_comes_and_goes_little_is_told_and_all_is_counted() {
        let mut watched = Watched::new();
        let mut told = Vec::new();
        for round in 0..8 {
            told.extend(watched.at(round * 10, Some(3.0), round));
            told.extend(watched.at(round * 10 + 5, None, round + 1));
        }
        let again = "the leg satellite has been silent for 3 s, after 5 more outages since the last message";
        let back = "the leg satellite is back after 8 s";
        assert_eq!(told, ["the leg satellite has been silent for 3 s", back, again, back]);
    }
}
