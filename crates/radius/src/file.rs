//! The data file, parsed strictly: an error names the entry and the accepted values.

use std::collections::HashSet;
use std::time::Duration;

use serde::Deserialize;

use crate::{Place, Protocol, Role, Schedule, Setting, Timer, light_time};

/// Why a data file was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DataError {
    /// It is not TOML, or a key is missing, unknown or of the wrong type.
    #[error("cannot read the timers of the protocols: {0}")]
    Syntax(String),
    /// A value does not make sense.
    #[error("cannot use the timers of the protocols: {entry}: {found}; {accepted}")]
    Value {
        /// The protocol, timer or place.
        entry: String,
        /// The invalid value.
        found: String,
        /// The accepted values.
        accepted: &'static str,
    },
}

/// Reads protocols and places.
pub(crate) fn parse(text: &str) -> Result<(Vec<Protocol>, Vec<Place>), DataError> {
    let file: RawFile = toml::from_str(text)
        .map_err(|error| DataError::Syntax(error.to_string().trim_end().replace('\n', " ")))?;
    let places = file.place.into_iter().map(RawPlace::check).collect::<Result<Vec<_>, _>>()?;
    let protocols = file.protocol.into_iter().map(RawProtocol::check).collect::<Result<Vec<_>, _>>()?;
    unique(places.iter().map(|place| &place.name))?;
    unique(protocols.iter().map(|protocol| &protocol.name))?;
    order(&protocols)?;
    Ok((protocols, places))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    #[serde(default)]
    place: Vec<RawPlace>,
    #[serde(default)]
    protocol: Vec<RawProtocol>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPlace {
    name: String,
    distance_km: f64,
    source: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawProtocol {
    name: String,
    what: String,
    over: Option<String>,
    round_trips: f64,
    #[serde(default)]
    store_and_forward: bool,
    timer: Vec<RawTimer>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTimer {
    name: String,
    role: Role,
    waits_s: Option<Vec<f64>>,
    first_s: Option<f64>,
    total_s: Option<f64>,
    #[serde(default)]
    forever: bool,
    round_trips: f64,
    every_s: Option<f64>,
    source: String,
    setting: Option<RawSetting>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
enum RawSetting {
    Seconds { name: String, max_s: Option<f64> },
    Retries { name: String, first_s: f64, linear: u32, ceiling_s: f64, max: u32 },
}

impl RawPlace {
    fn check(self) -> Result<Place, DataError> {
        let entry = format!("place \"{}\"", self.name);
        text(&entry, "name", &self.name)?;
        text(&entry, "source", &self.source)?;
        if !(self.distance_km > 0.0 && self.distance_km <= 1e13) {
            let found = format!("distance_km is {}", self.distance_km);
            return Err(value(&entry, found, "it must lie above 0 and not beyond 1e13"));
        }
        Ok(Place { delay: light_time(self.distance_km), name: self.name, source: self.source })
    }
}

impl RawProtocol {
    fn check(self) -> Result<Protocol, DataError> {
        let entry = format!("protocol \"{}\"", self.name);
        text(&entry, "name", &self.name)?;
        text(&entry, "what", &self.what)?;
        round_trips(&entry, self.round_trips)?;
        let timers: Vec<Timer> =
            self.timer.into_iter().map(|timer| timer.check(&entry)).collect::<Result<_, _>>()?;
        let protocol = Protocol {
            name: self.name,
            what: self.what,
            over: self.over,
            round_trips: self.round_trips,
            store_and_forward: self.store_and_forward,
            timers,
        };
        if protocol.timers.is_empty() {
            return Err(value(&entry, "it has no timer", "give it one at least, with its source"));
        }
        let listed = |role| protocol.timer(role).is_some_and(|timer| timer.schedule.waits.len() > 1);
        if protocol.timer(Role::HalfOpen).is_some() && !(listed(Role::SetUp) && listed(Role::HalfOpen)) {
            let accepted = "it needs waits_s, and so does the set-up timer whose SYNs restart it";
            return Err(value(&entry, "a half-open timer without all waits", accepted));
        }
        Ok(protocol)
    }
}

impl RawTimer {
    fn check(self, protocol: &str) -> Result<Timer, DataError> {
        let entry = format!("{protocol}, timer \"{}\"", self.name);
        text(&entry, "name", &self.name)?;
        text(&entry, "source", &self.source)?;
        round_trips(&entry, self.round_trips)?;
        let every = self.every_s.map(|every| seconds(&entry, "every_s", every)).transpose()?;
        if self.role == Role::Silence && (every.is_none() || self.total_s.is_none()) {
            return Err(value(&entry, "a silence without its lengths", "it needs total_s and every_s"));
        }
        Ok(Timer {
            schedule: self.schedule(&entry)?,
            setting: self.setting.map(|setting| setting.check(&entry)).transpose()?,
            name: self.name,
            role: self.role,
            round_trips: self.round_trips,
            every: every.unwrap_or_default(),
            source: self.source,
        })
    }

    fn schedule(&self, entry: &str) -> Result<Schedule, DataError> {
        let wait = |key, value| seconds(entry, key, value);
        let first = self.first_s.map(|first| wait("first_s", first)).transpose()?;
        let total = self.total_s.map(|total| wait("total_s", total)).transpose()?;
        let accepted =
            "give waits_s, or total_s and perhaps first_s below it, or forever = true with neither total";
        match (&self.waits_s, first, total, self.forever) {
            (Some(waits), None, None, forever) if !waits.is_empty() => {
                let waits: Vec<Duration> =
                    waits.iter().map(|&value| wait("waits_s", value)).collect::<Result<_, _>>()?;
                let total = (!forever).then(|| waits.iter().sum());
                Ok(Schedule { waits, total })
            }
            (None, first, Some(total), false) if first.is_none_or(|first| first < total) => {
                Ok(Schedule { waits: first.into_iter().collect(), total: Some(total) })
            }
            (None, first, None, true) => Ok(Schedule { waits: first.into_iter().collect(), total: None }),
            _ => Err(value(entry, "how long it waits is not said, or said twice", accepted)),
        }
    }
}

impl RawSetting {
    fn check(self, entry: &str) -> Result<Setting, DataError> {
        match self {
            RawSetting::Seconds { name, max_s } => {
                text(entry, "setting.name", &name)?;
                Ok(Setting::Seconds { name, max: max_s.map(|max| seconds(entry, "max_s", max)).transpose()? })
            }
            RawSetting::Retries { name, first_s, linear, ceiling_s, max } => {
                text(entry, "setting.name", &name)?;
                if max > 1000 || linear > 1000 {
                    let found = format!("linear {linear}, max {max}");
                    return Err(value(entry, found, "neither may exceed 1000"));
                }
                let (first, ceiling) =
                    (seconds(entry, "first_s", first_s)?, seconds(entry, "ceiling_s", ceiling_s)?);
                Ok(Setting::Retries { name, first, linear, ceiling, max })
            }
        }
    }
}

fn value(entry: &str, found: impl Into<String>, accepted: &'static str) -> DataError {
    DataError::Value { entry: entry.to_owned(), found: found.into(), accepted }
}

fn text(entry: &str, key: &str, content: &str) -> Result<(), DataError> {
    if content.trim().is_empty() {
        return Err(value(entry, format!("{key} is empty"), "it must say something"));
    }
    Ok(())
}

/// A length of time above zero; 2^62 ms, the longest that any setting takes, is 146 million years.
fn seconds(entry: &str, key: &str, number: f64) -> Result<Duration, DataError> {
    if number > 0.0 && number <= 5e15 {
        return Ok(Duration::from_secs_f64(number));
    }
    Err(value(entry, format!("{key} has {number}"), "it must be seconds above 0, up to 5e15"))
}

fn round_trips(entry: &str, number: f64) -> Result<(), DataError> {
    if (0.5..=1000.0).contains(&number) {
        return Ok(());
    }
    Err(value(entry, format!("round_trips is {number}"), "it must lie between 0.5 and 1000"))
}

fn unique<'a>(names: impl Iterator<Item = &'a String>) -> Result<(), DataError> {
    let mut seen = HashSet::new();
    match names.into_iter().find(|name| !seen.insert(name.as_str())) {
        Some(name) => Err(value(&format!("\"{name}\""), "it is there twice", "names must be unique")),
        None => Ok(()),
    }
}

/// A protocol stands behind the one that it runs over, so that there is no loop.
fn order(protocols: &[Protocol]) -> Result<(), DataError> {
    for (position, protocol) in protocols.iter().enumerate() {
        let Some(over) = &protocol.over else { continue };
        if !protocols[..position].iter().any(|below| below.name == *over) {
            let entry = format!("protocol \"{}\"", protocol.name);
            let accepted = "it must be the name of a protocol that stands before it";
            return Err(value(&entry, format!("over is \"{over}\""), accepted));
        }
    }
    Ok(())
}
