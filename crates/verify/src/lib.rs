//! Checks a run against its scenario, packet by packet.
//!
//! [`verify`] reads the packet log of a run, which `bentpipe sim --log` writes in virtual time and `bentpipe
//! link --log` in the testbed, and the scenario, and works out anew what must become of each packet: whether
//! the queue has room for it, when its last bit leaves the transmitter, whether an outage covers that moment,
//! when it arrives. What the scenario leaves to chance (errors, bursts, duplicates, reordering, corruption)
//! is tested as statistics, with a probability of a false alarm of 10⁻⁹ for each test. At the end the
//! counters of the link must be the sums of the packets.
//!
//! This crate depends on no other of the workspace: it has its own reading of scenarios and its own
//! arithmetic, so that a fault of the link, or a misunderstanding in it, is not repeated here.
//!
//! The log is read once, row by row; what is kept in memory are the packets in flight.
#![forbid(unsafe_code)]

mod chance;
mod direction;
mod findings;
mod log;
mod losses;
mod quantity;
mod scenario;
mod steps;
mod transmitter;

use std::collections::HashMap;
use std::io::BufRead;
use std::time::Duration;

pub use findings::{Check, Finding};
pub use scenario::Scenario;

use direction::Checker;
use findings::Findings;
use log::{Event, Row};

/// What cannot be checked: a log or a scenario that cannot be read, or that do not belong together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InputError(String);

impl InputError {
    /// An error that says this.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// What a log says about a scenario.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// What is wrong, by link and direction: of each kind the first few, and how many more there are.
    pub findings: Vec<Finding>,
    /// Packets that were offered to links.
    pub packets: u64,
    /// Directions of links.
    pub directions: usize,
    /// When the run ended, nanoseconds.
    pub end: u64,
}

/// Checks a packet log against the scenario of its run. `late` is by how much a packet may arrive later than
/// the model says: zero in virtual time; on the testbed the machine has to wake up for it.
///
/// # Errors
/// If the log is none, is not complete, or is not of this scenario's links.
pub fn verify(log: impl BufRead, scenario: &Scenario, late: Duration) -> Result<Report, InputError> {
    let late = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
    let mut run = Run::new(scenario, late);
    log::read(log, |row| run.row(row))?;
    run.finish()
}

/// What the applications of a flow have done.
#[derive(Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Application {
    written: u64,
    received: u64,
    is_finished: bool,
}

/// The checkers of all directions.
struct Run<'a> {
    scenario: &'a Scenario,
    checkers: Vec<Checker<'a>>,
    flows: HashMap<String, Application>,
    /// The link of the last row, which is often that of the next.
    recent: usize,
    end: u64,
}

impl<'a> Run<'a> {
    fn new(scenario: &'a Scenario, late: u64) -> Self {
        let directions = scenario.links.iter().flat_map(|link| &link.directions);
        let checkers = directions.map(|direction| Checker::new(direction, late)).collect();
        Self { scenario, checkers, flows: HashMap::new(), recent: 0, end: 0 }
    }

    fn row(&mut self, row: &Row<'_>) -> Result<(), String> {
        self.end = self.end.max(row.at);
        match row.event {
            Event::Missing => {
                return Err(format!("{} rows are missing, so that nothing can be told", row.number));
            }
            Event::Application { is_received } => {
                let name = String::from_utf8_lossy(row.link).into_owned();
                let flow = self.flows.entry(name).or_default();
                *if is_received { &mut flow.received } else { &mut flow.written } = row.bytes;
                flow.is_finished = row.number > 0;
                return Ok(());
            }
            _ => {}
        }
        let links = &self.scenario.links;
        if links[self.recent].name.as_bytes() != row.link {
            let found = links.iter().position(|link| link.name.as_bytes() == row.link);
            self.recent = found.ok_or_else(|| {
                format!("the scenario has no link \"{}\"", String::from_utf8_lossy(row.link))
            })?;
        }
        self.checkers[2 * self.recent + usize::from(row.is_reverse)].row(row)
    }

    fn finish(self) -> Result<Report, InputError> {
        let (mut findings, mut packets) = (Vec::new(), 0);
        let directions = self.checkers.len();
        for (index, checker) in self.checkers.into_iter().enumerate() {
            let name = &self.scenario.links[index / 2].name;
            let place = format!("{name} {}", if index % 2 == 0 { "forward" } else { "reverse" });
            packets += checker.packets();
            let found = checker.finish(self.end).map_err(|why| InputError(format!("{place}: {why}")))?;
            findings.extend(found.finish(&place));
        }
        let mut flows: Vec<_> = self.flows.into_iter().collect();
        flows.sort_unstable();
        for (name, flow) in flows {
            let mut found = Findings::default();
            let told = self.scenario.bytes_of_flow(&name);
            let told = told.ok_or_else(|| InputError(format!("the scenario has no flow \"{name}\"")))?;
            check_flow(&mut found, told, &flow);
            findings.extend(found.finish(&format!("flow {name}")));
        }
        Ok(Report { findings, packets, directions, end: self.end })
    }
}

fn check_flow(findings: &mut Findings, told: Option<u64>, flow: &Application) {
    let Application { written, received, is_finished } = *flow;
    if received > written {
        findings.add(Check::Application, || format!("{received} bytes received of {written} written"));
    }
    if is_finished && received < written {
        findings.add(Check::Application, || {
            format!("ended well, though of {written} bytes written only {received} were received")
        });
    }
    let Some(told) = told else { return };
    if written > told || (is_finished && written < told) {
        findings.add(Check::Application, || format!("{written} bytes written, {told} by the scenario"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_that_ends_well_has_all_its_bytes_and_none_has_more() {
        let count = |told, written, received, is_finished| {
            let mut findings = Findings::default();
            check_flow(&mut findings, told, &Application { written, received, is_finished });
            findings.finish("flow").len()
        };
        assert_eq!(count(Some(100), 100, 100, true), 0);
        assert_eq!(count(Some(100), 100, 60, false), 0);
        assert_eq!(count(None, 500, 60, false), 0);
        assert_eq!(count(Some(100), 100, 99, true), 1, "truncated");
        assert_eq!(count(Some(100), 99, 99, true), 1, "not all sent");
        assert_eq!(count(Some(100), 101, 101, false), 1, "more than told");
        assert_eq!(count(None, 100, 101, false), 1, "out of nothing");
    }
}
