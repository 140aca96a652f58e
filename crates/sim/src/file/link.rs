//! `[[link]]`: what happens to packets between two nodes.

use std::num::NonZeroU32;
use std::path::Path;

use bentpipe_link::agent::LinkEndConfig;
use bentpipe_link::explicit::RateAllocatorConfig;
use bentpipe_link::{DirectionConfig, Encapsulation, Frame, GilbertElliott, LinkConfig};
use bentpipe_units::{ByteCount, Probability};

use super::error::Fault;
use super::outages;
use super::section::{Field, Section};
use super::sharing;
use super::stations;

/// The most links of a scenario.
pub const MAX_LINKS: usize = 1000;

const KEYS: [&str; 15] = [
    "name",
    "between",
    "reverse",
    "rate",
    "delay",
    "per",
    "queue",
    "gilbert_elliott",
    "outages",
    "encapsulation",
    "snoop",
    "delayed_dup_acks",
    "arq",
    "xcp",
    "explicit",
];
const DIRECTION_KEYS: [&str; 7] =
    ["rate", "delay", "per", "queue", "gilbert_elliott", "outages", "encapsulation"];
const GILBERT_ELLIOTT_KEYS: [&str; 4] = ["good_to_bad", "bad_to_good", "loss_in_good", "loss_in_bad"];
const ENCAPSULATION_KEYS: [&str; 3] = ["overhead", "frame_payload", "frame_header"];
/// The most bytes that an encapsulation may add or carry in one piece.
const MAX_ENCAPSULATION: u64 = 65_535;

/// A link with the names of its nodes.
pub(crate) struct NamedLink<'a> {
    pub(crate) name: &'a str,
    pub(crate) between: [&'a str; 2],
    pub(crate) config: LinkConfig,
    pub(crate) stations: [LinkEndConfig; 2],
    pub(crate) shared: [Option<RateAllocatorConfig>; 2],
    /// For what is found wrong with it later.
    pub(crate) section: Section<'a>,
}

/// One `[[link]]`; `directory` is where its outage files are.
pub(crate) fn read<'a>(field: &Field<'a>, directory: &Path) -> Result<NamedLink<'a>, Fault> {
    let section = field.named_section("link", &KEYS)?;
    let name = section.required("name", "\"satellite\"")?.name()?;
    let between = read_between(&section)?;
    let forward = read_direction(&section, DirectionConfig::default(), directory)?;
    let reverse = match section.get("reverse") {
        Some(reverse) => read_direction(&reverse.section(&DIRECTION_KEYS)?, forward.clone(), directory)?,
        None => forward.clone(),
    };
    for (direction, way) in [(&forward, "it"), (&reverse, "its reverse")] {
        if direction.rate.is_none() && direction.delay.is_zero() {
            let message = "has neither a rate nor a delay, so that virtual time would stand still";
            return Err(section.fault(format!("{way} {message}: give one, for example delay = \"1ms\"")));
        }
    }
    let config = LinkConfig { forward, reverse };
    let stations = stations::read(&section, between, &config)?;
    let shared = sharing::read(&section, between, &config)?;
    Ok(NamedLink { name, between, config, stations, shared, section })
}

fn read_between<'a>(section: &Section<'a>) -> Result<[&'a str; 2], Fault> {
    let field = section.required("between", "[\"server\", \"client\"]")?;
    let names = field.list()?.iter().map(Field::name).collect::<Result<Vec<_>, _>>()?;
    match names[..] {
        [from, to] if from != to => Ok([from, to]),
        [from, _] => Err(field.fault(format!("a link joins two nodes, not {from} with itself"))),
        _ => Err(field.fault(format!("{} nodes are given: a link joins two", names.len()))),
    }
}

/// What the section says, and `base` where it is silent.
fn read_direction(
    section: &Section<'_>,
    base: DirectionConfig,
    directory: &Path,
) -> Result<DirectionConfig, Fault> {
    let mut direction = base;
    section.update("rate", &mut direction.rate, |field| unless(field, "unlimited", Field::value))?;
    section.update("delay", &mut direction.delay, Field::span)?;
    section.update("per", &mut direction.per, Field::value)?;
    section.update("queue", &mut direction.queue, |field| unless(field, "bdp", Field::value))?;
    section.update("gilbert_elliott", &mut direction.gilbert_elliott, |field| {
        unless(field, "off", read_gilbert_elliott)
    })?;
    section.update("outages", &mut direction.outages, |field| outages::read(field, directory))?;
    section.update("encapsulation", &mut direction.encapsulation, read_encapsulation)?;
    Ok(direction)
}

/// Nothing where the field is the word `none`, else what `read` reads.
pub(super) fn unless<'a, T>(
    field: &Field<'a>,
    none: &str,
    read: impl FnOnce(&Field<'a>) -> Result<T, Fault>,
) -> Result<Option<T>, Fault> {
    if field.is(none) { Ok(None) } else { read(field).map(Some) }
}

/// Gilbert's channel, unless the losses in its two states are given.
fn read_gilbert_elliott(field: &Field<'_>) -> Result<GilbertElliott, Fault> {
    let section = field.section(&GILBERT_ELLIOTT_KEYS)?;
    let certain = Probability::new(1.0).expect("1 is a probability");
    Ok(GilbertElliott {
        good_to_bad: section.required("good_to_bad", "\"0.1%\"")?.value()?,
        bad_to_good: section.required("bad_to_good", "\"25%\"")?.value()?,
        loss_in_good: section.read("loss_in_good", Field::value)?.unwrap_or(Probability::ZERO),
        loss_in_bad: section.read("loss_in_bad", Field::value)?.unwrap_or(certain),
    })
}

fn read_encapsulation(field: &Field<'_>) -> Result<Encapsulation, Fault> {
    if field.is_table() {
        return read_own_encapsulation(&field.section(&ENCAPSULATION_KEYS)?);
    }
    match field.text()? {
        "none" => Ok(Encapsulation::default()),
        "dvb-mpe" => Ok(Encapsulation::dvb_mpe()),
        "aal5-atm" => Ok(Encapsulation::aal5_atm()),
        other => {
            let accepted =
                "choose none, dvb-mpe, aal5-atm or { overhead = 8, frame_payload = 48, frame_header = 5 }";
            Err(field.fault(format!("\"{other}\" is not an encapsulation: {accepted}")))
        }
    }
}

fn read_own_encapsulation(section: &Section<'_>) -> Result<Encapsulation, Fault> {
    let bytes = |field: &Field<'_>| field.whole(0..=MAX_ENCAPSULATION);
    let overhead = ByteCount::new(section.read("overhead", bytes)?.unwrap_or(0));
    let payload = section.read("frame_payload", |field| field.whole(1..=MAX_ENCAPSULATION))?;
    let header = section.read("frame_header", bytes)?;
    let Some(payload) = payload.and_then(|payload| NonZeroU32::new(payload as u32)) else {
        return match header {
            Some(_) => Err(section.fault("frame_header needs frame_payload, the bytes that a frame carries")),
            None => Ok(Encapsulation { overhead, frame: None }),
        };
    };
    Ok(Encapsulation { overhead, frame: Some(Frame { payload, header: header.unwrap_or(0) as u32 }) })
}
