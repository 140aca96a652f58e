//! The TOML form of a scenario, described key by key in `docs/scenarios.md`.
//!
//! The walk of a file: [`Source::parse`] makes a document whose values know their lines, [`Source::with`]
//! writes settings from outside into it, deserialises the sections (`link.rs`, `tcp.rs`, `flow.rs`) and makes
//! a checked [`Scenario`] of them. Everything that can be wrong is found here, before a run, and named with
//! file, line, key and what is accepted.

mod budget;
mod bundles;
mod flow;
mod link;
mod link_ends;
mod outages;
mod protect;
mod route;
mod sharing;
mod sweep;
mod tcp;
#[cfg(test)]
mod tests;
mod trace;
mod udp;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bentpipe_config::{Document, InTable, Name, Node, Plain, Problem, SpanFrom, Value, keyword};
use serde::Deserialize;

use crate::extensions::custom_names;
use crate::scenario::{FlowSpec, LinkSpec, MAX_FLOWS, Scenario};

pub use bentpipe_config::{Error, MAX_FILE as MAX_SCENARIO_FILE, NotASetting, Setting};
pub use budget::{MAX_EVENTS, MAX_SEGMENTS_IN_FLIGHT};
pub use flow::DEFAULT_SPLITTER_BUFFER;
pub use link::MAX_LINKS;
pub use outages::MAX_OUTAGE_FILE;
pub use sweep::{CASE, NotASweep, Sweep, SweepError};

use budget::Budget;
use flow::{Flow, FlowGroup, Surroundings};
use link::Link;
use route::Topology;
use tcp::{Named, Tcp};
use trace::Origin;
use udp::Udp;

/// How often variables are sampled where the scenario does not say.
pub const DEFAULT_SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// The longest title, characters.
const MAX_TITLE: usize = 200;
/// The example in an error about a missing key.
const EXAMPLES: &[(&str, &str)] = &[
    ("duration", "\"60s\""),
    ("name", "\"satellite\""),
    ("between", "[\"server\", \"client\"]"),
    ("from", "\"server\""),
    ("to", "\"client\""),
    ("at", "\"gateway\""),
    ("start", "\"10s\""),
    ("delay", "\"600ms\""),
    ("good_to_bad", "\"0.1%\""),
    ("bad_to_good", "\"25%\""),
];
/// The table of named TCP parameters.
const TCP: &str = "tcp";
/// Tables in which a setting adds no entry, because their entries are named. Where the file has no TCP
/// parameters, settings name them.
const CLOSED: [&str; 2] = ["", TCP];

keyword!(Unlimited = "unlimited");
keyword!(Bdp = "bdp");
keyword!(Endless = "endless");
keyword!(Unknown = "unknown");

/// Writes the values of these keys, where they are given, over those of the configuration.
macro_rules! overlay {
    ($section:expr => $config:expr; $($key:ident)*) => {
        $(if let Some(value) = $section.$key { $config.$key = bentpipe_config::Plain::get(value); })*
    };
}
use overlay;

/// A scenario's file, parsed but not yet checked: settings from outside may still change it.
#[derive(Debug, Clone)]
pub struct Source {
    directory: PathBuf,
    document: Document,
    sweeps: Vec<Sweep>,
    /// The names of congestion controls from outside that there are.
    custom: Vec<String>,
}

/// The whole file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    title: Option<Title>,
    duration: SpanFrom<1_000>,
    sample_interval: Option<SpanFrom<1_000>>,
    #[serde(default)]
    link: Vec<Link>,
    #[serde(default)]
    tcp: BTreeMap<Name, Tcp>,
    #[serde(default)]
    flow: Vec<Flow>,
    #[serde(default)]
    udp: Vec<Udp>,
}

#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Title(String);

impl TryFrom<String> for Title {
    type Error = String;

    fn try_from(title: String) -> Result<Self, String> {
        if title.chars().count() > MAX_TITLE || title.contains(char::is_control) {
            return Err(format!("a title is one line of at most {MAX_TITLE} characters"));
        }
        Ok(Self(title))
    }
}

impl Source {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read or is longer than [`MAX_SCENARIO_FILE`], or if its sweeps are none.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::of(Document::load(path)?)
    }

    /// Reads a text. `name` is what errors call it, and outage files are looked for beside it.
    ///
    /// # Errors
    /// If it is longer than [`MAX_SCENARIO_FILE`], or if its sweeps are none.
    pub fn parse(name: &str, text: &str) -> Result<Self, Error> {
        Self::of(Document::parse(name, text)?)
    }

    /// Whether a document's tables are those of a scenario rather than of a configuration.
    pub fn is_meant_by(document: &Document) -> bool {
        ["link", "flow", "duration", "sweep"].iter().any(|key| document.get(key).is_some())
    }

    /// Takes a document; what is not TOML in it is an error of [`with`](Self::with).
    ///
    /// # Errors
    /// If its sweeps are none.
    pub fn of(document: Document) -> Result<Self, Error> {
        let mut document = document.with_examples(EXAMPLES);
        let sweeps = document.get("sweep").map_or(Ok(Vec::new()), sweep::read);
        let sweeps = sweeps.map_err(|problem| document.error(problem.inside("sweep")))?;
        document.remove("sweep");
        let directory = Path::new(document.file()).parent().map(Path::to_owned).unwrap_or_default();
        Ok(Self { directory, document, sweeps, custom: Vec::new() })
    }

    /// The same where the TCP parameters may name these congestion controls from outside, as `custom:NAME`.
    /// Only [`run_with`](crate::run_with) runs such a scenario.
    pub fn with_custom(self, names: impl IntoIterator<Item = String>) -> Self {
        Self { custom: names.into_iter().collect(), ..self }
    }

    /// What errors call it: the file's path.
    pub fn name(&self) -> &str {
        self.document.file()
    }

    /// The text of the file.
    pub fn text(&self) -> &str {
        self.document.text()
    }

    /// The sweeps of its section `[sweep]`, in the order of the lines.
    pub fn sweeps(&self) -> &[Sweep] {
        &self.sweeps
    }

    /// The scenario with these parameters set, later ones over earlier ones.
    ///
    /// # Errors
    /// Everything that no run can have, in the file or in a setting: of values all, of what follows from them
    /// all of the links, or else all of the flows.
    pub fn with(&self, settings: &[Setting]) -> Result<Scenario, Error> {
        let mut document = self.document.clone();
        let begins_tcp =
            document.get(TCP).is_none() && settings.iter().any(|setting| names_tcp(&setting.key));
        if begins_tcp {
            let empty = Setting { key: TCP.to_owned(), value: "{}".to_owned() };
            document.set(&empty, &[])?;
        }
        let closed = if begins_tcp { &CLOSED[..1] } else { &CLOSED[..] };
        for setting in settings {
            document.set(setting, closed)?;
        }
        if begins_tcp {
            refuse_unused_tcp(&document).map_err(|problem| document.error(problem))?;
        }
        let file = document.read()?;
        let scenario = self.scenario(file).map_err(|problems| document.errors(problems))?;
        let missing = custom_names(&scenario).find(|name| !self.custom.contains(name));
        match missing {
            Some(name) => {
                let what =
                    format!("there is no congestion control custom:{name}; give it to simulate() in Python");
                Err(document.error(Problem::new(what).inside(TCP)))
            }
            None => Ok(scenario),
        }
    }

    fn scenario(&self, file: File) -> Result<Scenario, Vec<Problem>> {
        let duration = file.duration.get();
        let (topology, links) = read_links(file.link, Origin { directory: &self.directory, duration })?;
        let tcp = Named::read(&file.tcp).inside("tcp").map_err(|problem| vec![problem])?;
        let surroundings = Surroundings { topology: &topology, tcp: &tcp, duration };
        let udp = udp::read(file.udp, &surroundings, &links)?;
        Ok(Scenario {
            title: file.title.map_or_else(|| self.name().to_owned(), |title| title.0),
            duration,
            sample_interval: file.sample_interval.map_or(DEFAULT_SAMPLE_INTERVAL, Plain::get),
            nodes: topology.names().to_vec(),
            flows: read_flows(file.flow, &surroundings, &links, udp.is_empty())?,
            links,
            udp,
        })
    }
}

/// Whether a setting's key is that of a named TCP parameter.
fn names_tcp(key: &str) -> bool {
    key.split_once('.').is_some_and(|(table, _)| table == TCP)
}

/// TCP parameters that settings alone name are a mistake if no flow uses them: nothing would come of it.
fn refuse_unused_tcp(document: &Document) -> Result<(), Problem> {
    let Some(Value::Table(tcp)) = document.get(TCP).map(|node| &node.value) else { return Ok(()) };
    let users = [document.get("flow")].into_iter().flatten().chain(tcp.values());
    let users: Vec<&Node> = users.collect();
    match tcp.keys().find(|name| !users.iter().any(|user| mentions(user, name))) {
        Some(name) => {
            let message = format!("no flow uses it: add --set flow.FLOW.tcp={name}");
            Err(Problem::of(name, message).inside(TCP))
        }
        None => Ok(()),
    }
}

fn mentions(node: &Node, name: &str) -> bool {
    match &node.value {
        Value::Text(text) | Value::Word(text) => text == name,
        Value::List(elements) => elements.iter().any(|element| mentions(element, name)),
        Value::Table(table) => table.values().any(|value| mentions(value, name)),
        _ => false,
    }
}

/// The links, and the topology that they make.
fn read_links(links: Vec<Link>, origin: Origin<'_>) -> Result<(Topology, Vec<LinkSpec>), Vec<Problem>> {
    if links.is_empty() {
        let message = "there is no link: add a section [[link]] with name, between, rate and delay";
        return Err(vec![Problem::new(message)]);
    }
    if links.len() > MAX_LINKS {
        let message = format!("{} links; a scenario has 1 to {MAX_LINKS}", links.len());
        return Err(vec![Problem::of("link", message)]);
    }
    let mut topology = Topology::default();
    let mut specs: Vec<LinkSpec> = Vec::with_capacity(links.len());
    let mut problems = Vec::new();
    for (index, link) in links.into_iter().enumerate() {
        match add_link(link, &mut topology, &specs, origin).inside(index).inside("link") {
            Ok(spec) => specs.push(spec),
            Err(problem) => problems.push(problem),
        }
    }
    if problems.is_empty() { Ok((topology, specs)) } else { Err(problems) }
}

fn add_link(
    link: Link,
    topology: &mut Topology,
    earlier: &[LinkSpec],
    origin: Origin<'_>,
) -> Result<LinkSpec, Problem> {
    let spec = link.read(topology, origin)?;
    let name = &spec.name;
    if earlier.iter().any(|link| link.name == *name) {
        return Err(Problem::new(format!("two links are called {name}: give each its own name")));
    }
    topology.join(earlier.len(), spec.between).map_err(|other| {
        let [from, to] = spec.between.map(|node| &topology.names()[node]);
        let other = &earlier[other].name;
        Problem::new(format!("{name} and {other} both join {from} and {to}: put a node between"))
    })?;
    Ok(spec)
}

/// The flows, copies as flows of their own. They are counted before there is memory for them. There must be
/// one where nothing else is sent.
fn read_flows(
    flows: Vec<Flow>,
    surroundings: &Surroundings<'_>,
    links: &[LinkSpec],
    required: bool,
) -> Result<Vec<FlowSpec>, Vec<Problem>> {
    if flows.is_empty() && required {
        let message = "there is no flow: add a section [[flow]] with name, from and to";
        return Err(vec![Problem::new(message)]);
    }
    let mut budget = Budget::new(links, surroundings.duration);
    let (mut groups, mut total, mut problems) = (Vec::<FlowGroup>::new(), 0, Vec::new());
    for (index, flow) in flows.into_iter().enumerate() {
        let group = flow.read(surroundings).and_then(|group| {
            sharing::check(&group.flow, surroundings.topology, links)?;
            total += group.len();
            if total > MAX_FLOWS {
                let message =
                    format!("with this one there are {total} flows: at most {MAX_FLOWS} are simulated");
                return Err(Problem::new(message));
            }
            budget.add(&group.flow, group.len()).map_err(Problem::new)?;
            Ok(group)
        });
        match group.inside(index).inside("flow") {
            Ok(group) => groups.push(group),
            Err(problem) => problems.push(problem),
        }
    }
    if problems.is_empty() && total == 0 && required {
        let problem = Problem::new("there is no flow: the count of at least one must be 1 or more");
        problems.push(problem.inside(0).inside("flow"));
    }
    if problems.is_empty() { expand(&groups, total).map_err(|problem| vec![problem]) } else { Err(problems) }
}

fn expand(groups: &[FlowGroup], total: usize) -> Result<Vec<FlowSpec>, Problem> {
    let mut names = HashSet::with_capacity(total);
    let mut flows = Vec::with_capacity(total);
    for (index, group) in groups.iter().enumerate() {
        for flow in group.flows() {
            if !names.insert(flow.name.clone()) {
                let message = format!("two flows are called {}: give each its own name", flow.name);
                return Err(Problem::new(message).inside(index).inside("flow"));
            }
            flows.push(flow);
        }
    }
    Ok(flows)
}
