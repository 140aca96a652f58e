//! The command line.

use std::path::PathBuf;
use std::str::FromStr;

/// What to compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Flow,
    Hybla,
    Handshake,
    Speed,
}

impl Part {
    const ALL: [Part; 4] = [Part::Flow, Part::Hybla, Part::Handshake, Part::Speed];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Part::Flow => "flow",
            Part::Hybla => "hybla",
            Part::Handshake => "handshake",
            Part::Speed => "speed",
        }
    }
}

/// What was asked for.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) parts: Vec<Part>,
    pub(crate) seeds: u64,
    pub(crate) rounds: u64,
    pub(crate) both: bool,
    pub(crate) json: bool,
    pub(crate) trace: Option<PathBuf>,
    pub(crate) ns3: PathBuf,
}

impl Options {
    /// Reads the arguments; the error is a line for the user.
    pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            parts: Vec::new(),
            seeds: 10,
            rounds: 5,
            both: false,
            json: false,
            trace: None,
            ns3: "target/ns3".into(),
        };
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--json" => options.json = true,
                "--both" => options.both = true,
                "--seeds" => options.seeds = number(&argument, arguments.next(), 2)?,
                "--rounds" => options.rounds = number(&argument, arguments.next(), 1)?,
                "--trace" => options.trace = Some(folder(&argument, arguments.next())?),
                "--ns3" => options.ns3 = folder(&argument, arguments.next())?,
                name => options.parts.push(part(name)?),
            }
        }
        if options.parts.is_empty() {
            options.parts = Part::ALL.to_vec();
        }
        Ok(options)
    }
}

fn part(name: &str) -> Result<Part, String> {
    let found = Part::ALL.into_iter().find(|part| part.name() == name);
    found.ok_or_else(|| {
        format!(
            "\"{name}\" is neither a part (flow, hybla, handshake, speed) nor an option (--seeds N, --rounds N, \
             --both, --json, --trace DIR, --ns3 DIR)"
        )
    })
}

fn number(option: &str, value: Option<String>, least: u64) -> Result<u64, String> {
    let value = value.unwrap_or_default();
    let found = u64::from_str(&value).ok().filter(|number| (least..=10_000).contains(number));
    found.ok_or_else(|| format!("{option} takes a number from {least} to 10000, not \"{value}\""))
}

fn folder(option: &str, value: Option<String>) -> Result<PathBuf, String> {
    value.map(PathBuf::from).ok_or_else(|| format!("{option} takes a folder"))
}
