//! Traces of a link: how its rate, delay and errors change, in a file beside the scenario, or made of a seed.

use std::path::Path;
use std::time::Duration;

use bentpipe_config::{InTable, Plain, Problem, Whole, unknown};
use bentpipe_link::{LinkConfig, LinkTrace, LinkTraceError, Profile};
use serde::Deserialize;

use super::outages::text_of;

const MAX_SEED: u64 = i64::MAX as u64;
/// The seed of a profile where none is given.
const DEFAULT_SEED: u64 = 1;

/// `trace`: where it is, and in which format; or the profile that it is made of.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Trace {
    file: Option<String>,
    mahimahi: Option<String>,
    delays: Option<String>,
    profile: Option<String>,
    seed: Option<Whole<u64, 0, MAX_SEED>>,
}

/// Where traces come from.
#[derive(Clone, Copy)]
pub(super) struct Origin<'a> {
    /// The folder of the scenario, in which their files are.
    pub(super) directory: &'a Path,
    /// How long the run is, for which they are made.
    pub(super) duration: Duration,
}

impl Trace {
    /// A link with the trace, where it has one, and with the profile's rate and delay for where that says
    /// nothing.
    pub(super) fn read(self, origin: Origin<'_>) -> Result<LinkConfig, Problem> {
        if self.delays.is_some() && self.mahimahi.is_none() {
            return Err(Problem::of("delays", "it belongs to mahimahi, the rates of the same link"));
        }
        if self.seed.is_some() && self.profile.is_none() {
            return Err(Problem::of("seed", "it belongs to a profile; a file is always the same"));
        }
        match (self.file, self.mahimahi, self.profile) {
            (Some(file), None, None) => {
                from_file(origin, &file, LinkTrace::from_csv).inside("file").map(both_ways)
            }
            (None, Some(file), None) => {
                let trace = from_file(origin, &file, LinkTrace::from_mahimahi).inside("mahimahi")?;
                let Some(delays) = self.delays else { return Ok(both_ways(trace)) };
                let add = |text: &str| trace.with_leoreplayer_delays(text);
                from_file(origin, &delays, add).inside("delays").map(both_ways)
            }
            (None, None, Some(name)) => {
                let seed = self.seed.map_or(DEFAULT_SEED, Plain::get);
                profile(&name).inside("profile").map(|profile| profile.generate(seed, origin.duration))
            }
            _ => Err(Problem::new(
                "write one of file = \"trace.csv\", mahimahi = \"trace.down\" or profile = \"leo-handovers\"",
            )),
        }
    }
}

fn both_ways(trace: LinkTrace) -> LinkConfig {
    let mut link = LinkConfig::default();
    (link.forward.trace, link.reverse.trace) = (trace.clone(), trace);
    link
}

/// A profile whose links vary.
fn profile(name: &str) -> Result<Profile, Problem> {
    let generated = || Profile::ALL.into_iter().filter(|profile| profile.is_generated());
    let names: Vec<String> = generated().map(|profile| profile.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    generated().find(|profile| profile.to_string() == name).ok_or_else(|| Problem::new(unknown(name, &names)))
}

fn from_file(
    origin: Origin<'_>,
    file: &str,
    parse: impl FnOnce(&str) -> Result<LinkTrace, LinkTraceError>,
) -> Result<LinkTrace, Problem> {
    let path = origin.directory.join(file);
    let name = path.display();
    let text = text_of(&path).map_err(|why| Problem::new(format!("cannot read {name}: {why}")))?;
    parse(&text).map_err(|error| Problem::new(format!("cannot use {name}: {error}")))
}
