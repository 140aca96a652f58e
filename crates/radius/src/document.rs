//! The answers as one JSON document: times in seconds, distances in kilometres, and `null` for events that
//! never happen.

use std::time::Duration;

use serde::Serialize;

use crate::{Answer, Catalogue, Path, Place, Protocol, Role, Timer, TimerReach, kilometres, text};

/// The whole document.
#[derive(Debug, Clone, Serialize)]
pub struct Document {
    /// The path that was asked about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathDocument>,
    /// Every protocol.
    pub protocols: Vec<ProtocolDocument>,
    /// Every place.
    pub places: Vec<PlaceDocument>,
    /// The sentence on store and forward over the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conclusion: Option<String>,
}

/// A path.
#[derive(Debug, Clone, Serialize)]
pub struct PathDocument {
    /// One way.
    pub delay_s: f64,
    /// There and back.
    pub rtt_s: f64,
    /// The longest interruption.
    pub outage_s: f64,
    /// One way.
    pub distance_km: f64,
    /// The least lifetime of a bundle that crosses it.
    pub bundle_lifetime_s: f64,
}

/// A protocol with its radii, as one-way delays, and its answer for the path.
#[derive(Debug, Clone, Serialize)]
pub struct ProtocolDocument {
    /// Its name.
    pub name: String,
    /// Its description.
    pub what: String,
    /// The protocol that it runs over.
    pub over: Option<String>,
    /// The inner radius.
    pub inner_s: Option<f64>,
    /// The ceiling radius.
    pub ceiling_s: Option<f64>,
    /// The limiting radius; `null` never gives up.
    pub limit_s: Option<f64>,
    /// The limiting radius as a distance.
    pub limit_km: Option<f64>,
    /// Beyond this it never works.
    pub perhaps_s: Option<f64>,
    /// The timer that makes the limit.
    pub limited_by: Option<String>,
    /// The places within the limit.
    pub places: Vec<String>,
    /// Where the numbers stand.
    pub source: String,
    /// Its own timers.
    pub timers: Vec<TimerDocument>,
    /// The answer for the path.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
}

/// A timer.
#[derive(Debug, Clone, Serialize)]
pub struct TimerDocument {
    /// Its name.
    pub name: String,
    /// The events that start and end it.
    pub role: Role,
    /// The first wait before a repetition.
    pub first_s: Option<f64>,
    /// When it gives up.
    pub total_s: Option<f64>,
    /// The round trips that must fit into that time.
    pub round_trips: f64,
    /// How far it lets the protocol reach.
    pub limit_s: Option<f64>,
    /// The setting that changes it.
    pub setting: Option<String>,
    /// Where its numbers stand.
    pub source: String,
}

/// A place.
#[derive(Debug, Clone, Serialize)]
pub struct PlaceDocument {
    /// Its name.
    pub name: String,
    /// How far it is.
    pub distance_km: f64,
    /// The one-way light time.
    pub delay_s: f64,
    /// Where that stands.
    pub source: String,
}

impl Document {
    /// The radii of all protocols, and the answers for `path` if there is one.
    pub fn new(catalogue: &Catalogue, path: Option<Path>) -> Self {
        let protocol = |protocol: &Protocol| ProtocolDocument::new(catalogue, protocol, path);
        Self {
            path: path.map(PathDocument::from),
            protocols: catalogue.protocols().iter().map(protocol).collect(),
            places: catalogue.places().iter().map(PlaceDocument::from).collect(),
            conclusion: path.map(|path| text::conclusion(catalogue, path)),
        }
    }
}

impl From<Path> for PathDocument {
    fn from(path: Path) -> Self {
        Self {
            delay_s: path.delay.as_secs_f64(),
            rtt_s: path.rtt().as_secs_f64(),
            outage_s: path.outage.as_secs_f64(),
            distance_km: path.kilometres(),
            bundle_lifetime_s: path.bundle_lifetime().as_secs_f64(),
        }
    }
}

impl From<&Place> for PlaceDocument {
    fn from(place: &Place) -> Self {
        Self {
            name: place.name.clone(),
            distance_km: kilometres(place.delay).round(),
            delay_s: place.delay.as_secs_f64(),
            source: place.source.clone(),
        }
    }
}

impl ProtocolDocument {
    fn new(catalogue: &Catalogue, protocol: &Protocol, path: Option<Path>) -> Self {
        let reach = catalogue.reach(protocol);
        Self {
            name: protocol.name.clone(),
            what: protocol.what.clone(),
            over: protocol.over.clone(),
            inner_s: seconds(reach.inner),
            ceiling_s: seconds(reach.ceiling),
            limit_s: seconds(reach.limit),
            limit_km: reach.limit.map(kilometres),
            perhaps_s: seconds(reach.perhaps),
            limited_by: reach.limited_by,
            places: catalogue.places_within(reach.limit).map(|place| place.name.clone()).collect(),
            source: protocol.source(),
            timers: protocol.timers.iter().zip(reach.timers).map(TimerDocument::from).collect(),
            answer: path.map(|path| catalogue.verdict(protocol, path)),
        }
    }
}

impl From<(&Timer, TimerReach)> for TimerDocument {
    fn from((timer, reach): (&Timer, TimerReach)) -> Self {
        Self {
            name: timer.name.clone(),
            role: timer.role,
            first_s: seconds(timer.schedule.first_repetition()),
            total_s: seconds(timer.schedule.total),
            round_trips: timer.round_trips,
            limit_s: seconds(reach.limit),
            setting: timer.setting.as_ref().map(|setting| setting.name().to_owned()),
            source: timer.source.clone(),
        }
    }
}

fn seconds(time: Option<Duration>) -> Option<f64> {
    time.map(|time| time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_promised_keys_are_there_and_never_is_null() {
        let json = serde_json::to_value(Document::new(&Catalogue::embedded(), None)).unwrap();
        let protocols = json["protocols"].as_array().unwrap();
        for protocol in protocols {
            for key in ["name", "inner_s", "ceiling_s", "limit_s", "source"] {
                assert!(protocol.get(key).is_some(), "{key} is missing: {protocol}");
            }
            assert!(protocol.get("verdict").is_none(), "nobody asked about a path");
        }
        let ns = protocols.iter().find(|protocol| protocol["name"] == "TCP, ns-2").unwrap();
        assert!(ns["limit_s"].is_null() && ns["inner_s"] == 1.5, "{ns}");
    }

    #[test]
    fn a_path_adds_its_object_and_a_verdict_for_each_protocol() {
        let path = Path { delay: Duration::from_secs(480), outage: Duration::from_secs(7200) };
        let json = serde_json::to_value(Document::new(&Catalogue::embedded(), Some(path))).unwrap();
        assert_eq!(json["path"]["rtt_s"], 960.0);
        for protocol in json["protocols"].as_array().unwrap() {
            assert!(protocol["verdict"].is_string() && protocol["needs"].is_array(), "{protocol}");
        }
        assert!(json["conclusion"].as_str().unwrap().contains("RFC 9171"));
    }
}
