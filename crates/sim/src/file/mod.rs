//! The TOML form of a scenario, described key by key in `docs/scenarios.md`.
//!
//! The walk of a file: [`Source::parse`] makes a tree whose values know their lines (`document.rs`), [`Source::with`]
//! writes settings from outside into it and reads it section by section (`link.rs`, `tcp.rs`, `flow.rs`) into a checked
//! [`Scenario`]. Everything that can be wrong is found here, before a run, and named with file, line, key and what
//! would be accepted.

mod budget;
mod bundles;
mod document;
mod error;
mod flow;
mod link;
mod outages;
mod route;
mod section;
mod sharing;
mod stations;
mod tcp;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::scenario::{FlowSpec, LinkSpec, MAX_FLOWS, Scenario};
use crate::sweep::Sweep;

pub use budget::{MAX_EVENTS, MAX_SEGMENTS_IN_FLIGHT};
pub use document::{NotASetting, Setting};
pub use error::Error;
pub use flow::DEFAULT_SPLITTER_BUFFER;
pub use link::MAX_LINKS;
pub use outages::MAX_OUTAGE_FILE;

use budget::Budget;
pub(crate) use document::{Node, Value};
pub(crate) use error::{Fault, Place};
use flow::{FlowGroup, Surroundings};
use link::NamedLink;
use route::Network;
use section::{Field, Section};
use tcp::Named;

/// The longest scenario that is read, bytes.
pub const MAX_SCENARIO_FILE: u64 = 1 << 20;
/// How often variables are sampled where the scenario does not say.
pub const DEFAULT_SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

const KEYS: [&str; 6] = ["title", "duration", "sample_interval", "link", "tcp", "flow"];
/// The shortest duration and sample interval.
const SHORTEST_SPAN: Duration = Duration::from_micros(1);
/// The longest title, characters.
const MAX_TITLE: usize = 200;

/// A scenario's file, read but not yet checked: settings from outside may still change it.
#[derive(Debug, Clone)]
pub struct Source {
    name: String,
    directory: PathBuf,
    document: Node,
    sweeps: Vec<Sweep>,
}

impl Source {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, is longer than [`MAX_SCENARIO_FILE`] or is not TOML.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        let file = path.as_ref().display().to_string();
        let mut text = String::new();
        let read = std::fs::File::open(&path).and_then(|opened| {
            // One byte more than is accepted tells a file that is too long, and a device that never ends.
            opened.take(MAX_SCENARIO_FILE + 1).read_to_string(&mut text)
        });
        match read {
            Ok(_) => Self::parse(&file, &text),
            Err(source) => Err(Error::Read { file, source }),
        }
    }

    /// Reads a text. `name` is what errors call it, and outage files are looked for beside it.
    ///
    /// # Errors
    /// If it is longer than [`MAX_SCENARIO_FILE`] or is not TOML.
    pub fn parse(name: &str, text: &str) -> Result<Self, Error> {
        if text.len() as u64 > MAX_SCENARIO_FILE {
            return Err(Error::TooLong { file: name.to_owned(), limit: MAX_SCENARIO_FILE });
        }
        let mut document = Node::parse(text).map_err(|fault| fault.in_file(name))?;
        let sweep = match &mut document.value {
            Value::Table(table) => table.remove("sweep"),
            _ => None,
        };
        let sweeps =
            sweep.as_ref().map(crate::sweep::read).transpose().map_err(|fault| fault.in_file(name))?;
        let directory = Path::new(name).parent().map(Path::to_owned).unwrap_or_default();
        Ok(Self { name: name.to_owned(), directory, document, sweeps: sweeps.unwrap_or_default() })
    }

    /// What errors call it: the file's path.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The sweeps of its section `[sweep]`, in the order of the lines.
    pub fn sweeps(&self) -> &[Sweep] {
        &self.sweeps
    }

    /// The scenario with these parameters set, later ones over earlier ones.
    ///
    /// # Errors
    /// The first thing that no run can have, in the file or in a setting.
    pub fn with(&self, settings: &[Setting]) -> Result<Scenario, Error> {
        self.read(settings).map_err(|fault| fault.in_file(&self.name))
    }

    fn read(&self, settings: &[Setting]) -> Result<Scenario, Fault> {
        let mut document = self.document.clone();
        for setting in settings {
            document.set(setting)?;
        }
        let section = Section::new("", &document, &KEYS)?;
        let duration = section.required("duration", "\"60s\"")?.span_from(SHORTEST_SPAN)?;
        let sample_interval = section.read("sample_interval", |field| field.span_from(SHORTEST_SPAN))?;
        let (network, links) = self.read_links(&section)?;
        let tcp = Named::read(section.get("tcp").as_ref())?;
        let surroundings = Surroundings { network: &network, tcp: &tcp, duration };
        let flows = read_flows(&section, &surroundings, &links)?;
        Ok(Scenario {
            title: section.read("title", read_title)?.unwrap_or_else(|| self.name.clone()),
            duration,
            sample_interval: sample_interval.unwrap_or(DEFAULT_SAMPLE_INTERVAL),
            nodes: network.names().to_vec(),
            links,
            flows,
        })
    }

    /// The links, and the network that they make.
    fn read_links(&self, section: &Section<'_>) -> Result<(Network, Vec<LinkSpec>), Fault> {
        let missing =
            || section.fault("there is no link: add a section [[link]] with name, between, rate and delay");
        let list = section.get("link").ok_or_else(missing)?;
        let fields = list.list()?;
        if fields.is_empty() || fields.len() > MAX_LINKS {
            return Err(list.fault(format!("{} links; a scenario has 1 to {MAX_LINKS}", fields.len())));
        }
        let mut network = Network::default();
        let mut links: Vec<LinkSpec> = Vec::with_capacity(fields.len());
        for field in &fields {
            let NamedLink { name, between, config, stations, shared, section } =
                link::read(field, &self.directory)?;
            if links.iter().any(|link| link.name == name) {
                return Err(section.fault(format!("two links are called {name}: give each its own name")));
            }
            let nodes = between.map(|node| network.add_node(node));
            network.join(links.len(), nodes).map_err(|other| {
                let [from, to] = between;
                let other = &links[other].name;
                section.fault(format!("{name} and {other} both join {from} and {to}: put a node between"))
            })?;
            links.push(LinkSpec { name: name.to_owned(), between: nodes, config, stations, shared });
        }
        Ok((network, links))
    }
}

fn read_title(field: &Field<'_>) -> Result<String, Fault> {
    let title = field.text()?;
    if title.chars().count() > MAX_TITLE || title.contains(char::is_control) {
        return Err(field.fault(format!("a title is one line of at most {MAX_TITLE} characters")));
    }
    Ok(title.to_owned())
}

/// The flows, copies as flows of their own. They are counted before there is memory for them.
fn read_flows(
    section: &Section<'_>,
    surroundings: &Surroundings<'_>,
    links: &[LinkSpec],
) -> Result<Vec<FlowSpec>, Fault> {
    let missing = || section.fault("there is no flow: add a section [[flow]] with name, from and to");
    let fields = section.get("flow").ok_or_else(missing)?.list()?;
    let mut budget = Budget::new(links, surroundings.duration);
    let (mut groups, mut total) = (Vec::<FlowGroup<'_>>::new(), 0);
    for field in fields {
        let group = flow::read(&field, surroundings)?;
        sharing::check(&group, surroundings.network, links)?;
        total += group.len();
        if total > MAX_FLOWS {
            let message = format!("with this one there are {total} flows: at most {MAX_FLOWS} are simulated");
            return Err(group.section.fault(message));
        }
        budget.add(&group.flow, group.len()).map_err(|message| group.section.fault(message))?;
        groups.push(group);
    }
    match groups.first() {
        None => Err(missing()),
        Some(first) if total == 0 => {
            Err(first.section.fault("there is no flow: the count of at least one must be 1 or more"))
        }
        Some(_) => expand(&groups, total),
    }
}

fn expand(groups: &[FlowGroup<'_>], total: usize) -> Result<Vec<FlowSpec>, Fault> {
    let mut names = HashSet::with_capacity(total);
    let mut flows = Vec::with_capacity(total);
    for group in groups {
        for flow in group.flows() {
            if !names.insert(flow.name.clone()) {
                let message = format!("two flows are called {}: give each its own name", flow.name);
                return Err(group.section.fault(message));
            }
            flows.push(flow);
        }
    }
    Ok(flows)
}
