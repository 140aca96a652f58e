//! `[tcp.NAME]`: TCP's parameters under a name, begun from the RFCs', Linux' or those of another name.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use bentpipe_tcp::congestion::{Algorithm, Components};
use bentpipe_tcp::{Config, RtoLimits, SynSchedule};
use bentpipe_units::ByteCount;

use super::document::unknown;
use super::error::Fault;
use super::section::{Field, Section, is_name};

/// The parameters that need no section.
pub(crate) const BUILT_IN: [&str; 2] = ["rfc", "linux"];
/// The longest chain of bases.
const MAX_CHAIN: usize = 16;
/// The largest weight of a share, as in the daemon's rules.
const MAX_WEIGHT: u64 = 100;
/// Timers below this would fill virtual time with their expiries; no TCP has such.
const SHORTEST_TIMER: Duration = Duration::from_millis(1);

const KEYS: [&str; 24] = [
    "base",
    "congestion",
    "hybla",
    "weight",
    "recovery",
    "mss",
    "initial_window",
    "send_buffer",
    "receive_buffer",
    "window_scaling",
    "timestamps",
    "sack",
    "delayed_ack",
    "limited_transmit",
    "proportional_rate_reduction",
    "lost_retransmissions",
    "nagle",
    "restart_after_idle",
    "byte_counting_limit",
    "rto",
    "retries",
    "user_timeout",
    "syn",
    "syn_ack",
];
const HYBLA_KEYS: [&str; 5] = ["rho", "pacing", "hoe", "recovery_growth", "queue"];
const RTO_KEYS: [&str; 4] = ["initial", "min", "max", "granularity"];
const SYN_KEYS: [&str; 4] = ["first", "linear", "max", "waits"];

/// The parameters by name, the built-in ones among them.
pub(crate) struct Named(BTreeMap<String, Config>);

impl Named {
    /// Reads the tables of `[tcp]`, if there are any, and checks each of them.
    pub(crate) fn read(field: Option<&Field<'_>>) -> Result<Self, Fault> {
        let mut configs = BTreeMap::from(BUILT_IN.map(|name| (name.to_owned(), built_in(name).config)));
        let entries = field.map(Field::entries).transpose()?.unwrap_or_default();
        let mut sections = BTreeMap::new();
        for (name, field) in &entries {
            if BUILT_IN.contains(name) || !is_name(name) {
                let accepted =
                    "write up to 64 letters, digits, - or _, and neither rfc nor linux, which are built in";
                return Err(
                    field.fault(format!("\"{name}\" cannot be the name of TCP parameters: {accepted}"))
                );
            }
            sections.insert(*name, field.section(&KEYS)?);
        }
        for name in sections.keys() {
            configs.insert((*name).to_owned(), resolve(name, &sections)?);
        }
        Ok(Self(configs))
    }

    /// The parameters that the field names.
    pub(crate) fn get(&self, field: &Field<'_>) -> Result<Config, Fault> {
        let name = field.text()?;
        self.0.get(name).copied().ok_or_else(|| {
            let known: Vec<&str> = self.0.keys().map(String::as_str).collect();
            field.fault(format!("{}; name a section [tcp.NAME]", unknown(name, &known)))
        })
    }
}

/// A configuration in the making: what belongs to one algorithm is kept where another is chosen for a while.
#[derive(Clone, Copy)]
struct Draft {
    config: Config,
    hybla: Components,
    weight: NonZeroU32,
}

fn built_in(name: &str) -> Draft {
    let config = if name == "linux" { Config::linux() } else { Config::default() };
    Draft { config, hybla: Components::ALL, weight: NonZeroU32::MIN }
}

/// The configuration of `name`: its chain of bases, the farthest first.
fn resolve(name: &str, sections: &BTreeMap<&str, Section<'_>>) -> Result<Config, Fault> {
    let own = &sections[name];
    let mut chain = vec![name];
    let origin = loop {
        let section = &sections[chain[chain.len() - 1]];
        let Some(base) = section.get("base") else { break "rfc" };
        let next = base.text()?;
        if BUILT_IN.contains(&next) {
            break next;
        }
        if chain.contains(&next) {
            let first = own.get("base").unwrap_or(base);
            return Err(first.fault(format!("{} → {next} goes round in circles", chain.join(" → "))));
        }
        let Some((&next, _)) = sections.get_key_value(next) else {
            let known: Vec<&str> = BUILT_IN.iter().chain(sections.keys()).copied().collect();
            return Err(base.fault(unknown(next, &known)));
        };
        chain.push(next);
        if chain.len() > MAX_CHAIN {
            return Err(base.fault(format!("more than {MAX_CHAIN} bases, one upon the other, are too many")));
        }
    };
    let mut draft = built_in(origin);
    for name in chain.iter().rev() {
        apply(&sections[name], &mut draft)?;
    }
    let config = draft.config;
    config.check().map_err(|error| match own.get(error.parameter) {
        Some(field) => field.fault(format!("{} is not possible: {}", error.found, error.accepted)),
        None => own.fault(error),
    })?;
    Ok(config)
}

/// Writes what the section says over the draft.
fn apply(section: &Section<'_>, draft: &mut Draft) -> Result<(), Fault> {
    let config = &mut draft.config;
    section.update("mss", &mut config.mss, |field| Ok(field.whole(88..=65_535)? as u16))?;
    section
        .update("initial_window", &mut config.initial_window, |field| Ok(field.whole(1..=10_000)? as u32))?;
    for (key, buffer) in
        [("send_buffer", &mut config.send_buffer), ("receive_buffer", &mut config.receive_buffer)]
    {
        section.update(key, buffer, |field| Ok(field.value::<ByteCount>()?.get()))?;
    }
    for (key, switch) in [
        ("window_scaling", &mut config.window_scaling),
        ("timestamps", &mut config.timestamps),
        ("sack", &mut config.sack),
        ("limited_transmit", &mut config.limited_transmit),
        ("proportional_rate_reduction", &mut config.proportional_rate_reduction),
        ("lost_retransmissions", &mut config.lost_retransmissions),
        ("nagle", &mut config.nagle),
        ("restart_after_idle", &mut config.restart_after_idle),
    ] {
        section.update(key, switch, Field::boolean)?;
    }
    section.update("delayed_ack", &mut config.delayed_ack, span_or_off)?;
    section.update("byte_counting_limit", &mut config.byte_counting_limit, |field| {
        field.whole_or("off", 1..=u32::MAX)
    })?;
    section.update("retries", &mut config.retries, |field| field.whole_or("endless", 0..=u32::MAX))?;
    section.update("user_timeout", &mut config.user_timeout, span_or_off)?;
    config.rto = read_rto(section, config.rto)?;
    config.syn = read_syn(section, "syn", config.syn, SynSchedule::LINUX)?;
    config.syn_ack = read_syn(section, "syn_ack", config.syn_ack, SynSchedule::LINUX_SYN_ACK)?;
    section.update("recovery", &mut config.recovery, Field::value)?;
    apply_congestion(section, draft)
}

fn apply_congestion(section: &Section<'_>, draft: &mut Draft) -> Result<(), Fault> {
    let components = section.read("hybla", |field| read_components(field, draft.hybla))?;
    draft.hybla = components.unwrap_or(draft.hybla);
    let weight = section.read("weight", |field| field.whole(1..=MAX_WEIGHT))?;
    draft.weight = weight.and_then(|weight| NonZeroU32::new(weight as u32)).unwrap_or(draft.weight);
    section.update("congestion", &mut draft.config.congestion, Field::value)?;
    match &mut draft.config.congestion {
        Algorithm::Hybla(components) => *components = draft.hybla,
        Algorithm::Explicit { weight } => *weight = draft.weight,
        Algorithm::NewReno | Algorithm::Cubic | Algorithm::Xcp(_) => {}
    }
    Ok(())
}

fn read_components(field: &Field<'_>, mut base: Components) -> Result<Components, Fault> {
    if field.is("all") {
        return Ok(Components::ALL);
    }
    if field.is("published") {
        return Ok(Components::PUBLISHED);
    }
    if !field.is_table() {
        let accepted = "write \"all\", \"published\" or a table as { pacing = false }";
        return Err(field.fault(format!("these are not components of Hybla: {accepted}")));
    }
    let section = field.section(&HYBLA_KEYS)?;
    for (key, component) in [
        ("rho", &mut base.rho),
        ("pacing", &mut base.pacing),
        ("hoe", &mut base.hoe),
        ("recovery_growth", &mut base.recovery_growth),
        ("queue", &mut base.queue),
    ] {
        section.update(key, component, Field::boolean)?;
    }
    Ok(base)
}

fn read_rto(section: &Section<'_>, mut limits: RtoLimits) -> Result<RtoLimits, Fault> {
    let Some(field) = section.get("rto") else { return Ok(limits) };
    let section = field.section(&RTO_KEYS)?;
    for (key, limit) in [("initial", &mut limits.initial), ("min", &mut limits.min), ("max", &mut limits.max)]
    {
        section.update(key, limit, |field| field.span_from(SHORTEST_TIMER))?;
    }
    section.update("granularity", &mut limits.granularity, Field::span)?;
    Ok(limits)
}

/// A schedule by name, or what a table says over the `base`. `linux` differs between a SYN and its answer.
fn read_syn(
    section: &Section<'_>,
    key: &str,
    base: SynSchedule,
    linux: SynSchedule,
) -> Result<SynSchedule, Fault> {
    let Some(field) = section.get(key) else { return Ok(base) };
    if field.is_table() {
        return read_own_syn(&field.section(&SYN_KEYS)?, base);
    }
    match field.text()? {
        "linux" => Ok(linux),
        "rfc6298" => Ok(SynSchedule::RFC6298),
        "opnet" => Ok(SynSchedule::OPNET),
        "windows-2003" => Ok(SynSchedule::WINDOWS_2003),
        "ns" => Ok(SynSchedule::NS),
        other => {
            let accepted = "choose linux, rfc6298, opnet, windows-2003, ns or { first = \"3s\", waits = 4 }";
            Err(field.fault(format!("\"{other}\" is not a schedule: {accepted}")))
        }
    }
}

fn read_own_syn(section: &Section<'_>, mut schedule: SynSchedule) -> Result<SynSchedule, Fault> {
    section.update("first", &mut schedule.first, |field| field.span_from(SHORTEST_TIMER))?;
    section.update("linear", &mut schedule.linear, |field| Ok(field.whole(0..=u32::MAX.into())? as u32))?;
    section.update("max", &mut schedule.max, |field| field.span_from(SHORTEST_TIMER))?;
    section.update("waits", &mut schedule.waits, |field| field.whole_or("endless", 1..=u32::MAX))?;
    Ok(schedule)
}

fn span_or_off(field: &Field<'_>) -> Result<Option<Duration>, Fault> {
    if field.is("off") { Ok(None) } else { field.span().map(Some) }
}
