//! A trace of a run: the variables of TCP, queues and splitters over time as CSV, and every packet as pcapng,
//! and what senders do as qlog.

mod capture;
mod ip_packet;
mod mahimahi;
mod qlog;

use std::collections::HashSet;
use std::fmt::{Display, Write};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use bentpipe_link::{Cause, Counters};
use bentpipe_tcp::congestion::NO_SSTHRESH;
use bentpipe_tcp::{Statistics, Variables};
use bentpipe_units::{ByteCount, Time};

use crate::Scenario;
use crate::observer::{CapturedPacket, Observer, PacketStep, SenderEvent};
use crate::scenario::{FlowSpec, LinkSpec, SplitterSpec};
use capture::Capture;
use mahimahi::MahimahiFile;
use qlog::Qlog;

/// A file of a trace could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the trace {}: {source}; what was written before is complete", path.display())]
pub struct TraceError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// What a trace has beside the samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TraceContent {
    /// Every packet at both ends of each link, as pcapng.
    pub packets: bool,
    /// What the sending end of each leg does, as qlog.
    pub qlog: bool,
    /// The packets of each direction of each link, as mahimahi logs them.
    pub mahimahi: bool,
}

/// Writes a trace into the files of a folder. It holds no more than the files' buffers, however long the run
/// is.
///
/// | file | a row for each sample of |
/// |---|---|
/// | `legs.csv` | the sending end of each connection: window, RTT, timeout, backoff, flight, counters |
/// | `flows.csv` | the bytes that each destination has received |
/// | `links.csv` | each direction of each link: queue, and counters of packets by fate |
/// | `splitters.csv` | the bytes that each splitter holds |
/// | `stations.csv` | where a link has agents or an ARQ: the bytes that each of its ends holds |
/// | `packets.pcapng` | with packets: each packet at both ends of each link, an interface for each end |
/// | `FLOW-LEG.sqlog` | with qlog: what the sending end of a leg does, legs from 1 on |
/// | `LINK-forward.log`, `LINK-reverse.log` | with mahimahi: the packets of a direction, in mahimahi's format |
#[derive(Debug)]
pub struct Trace {
    flows: Vec<String>,
    links: Vec<String>,
    /// The nodes of each flow's splitters.
    splitter_nodes: Vec<Vec<String>>,
    legs: CsvFile,
    received: CsvFile,
    queues: CsvFile,
    splitters: CsvFile,
    /// With the nodes at the ends of each link; `None` where no link has anything there.
    held: Option<(CsvFile, Vec<[String; 2]>)>,
    capture: Option<Capture>,
    /// Of each leg of each flow; empty without.
    qlogs: Vec<Vec<Qlog>>,
    /// Of both directions of each link; empty without.
    mahimahi: Vec<[MahimahiFile; 2]>,
    failed: Option<TraceError>,
}

impl Trace {
    /// Starts a trace of `scenario` in `folder`, which is created if needed.
    ///
    /// # Errors
    /// If a file cannot be created.
    pub fn create(folder: &Path, scenario: &Scenario, content: TraceContent) -> Result<Self, TraceError> {
        let fail = |source| TraceError { path: folder.to_owned(), source };
        std::fs::create_dir_all(folder).map_err(fail)?;
        let file = |name: &str, header: &str| CsvFile::create(folder.join(name), header);
        let capture = || Capture::create(folder.join("packets.pcapng"), scenario);
        let node = |splitter: &SplitterSpec| scenario.nodes[splitter.node].clone();
        let nodes = |flow: &FlowSpec| flow.splitters.iter().map(node).collect();
        let links: Vec<String> = scenario.links.iter().map(|link| link.name.clone()).collect();
        let causes: String = Cause::ALL.iter().map(|cause| format!(",dropped_{}", key(*cause))).collect();
        Ok(Self {
            flows: scenario.flows.iter().map(|flow| flow.name.clone()).collect(),
            legs: file("legs.csv", LEGS_HEADER)?,
            received: file("flows.csv", "time_s,flow,received_bytes")?,
            queues: file(
                "links.csv",
                &format!("time_s,link,direction,queue_bytes,offered,delivered{causes}"),
            )?,
            splitters: file("splitters.csv", "time_s,flow,node,held_bytes")?,
            held: has_agents(scenario)
                .then(|| file("stations.csv", "time_s,link,node,held_bytes"))
                .transpose()?
                .map(|file| (file, link_ends(scenario))),
            capture: content.packets.then(capture).transpose()?,
            qlogs: if content.qlog { qlogs(folder, scenario)? } else { Vec::new() },
            mahimahi: if content.mahimahi { mahimahi(folder, scenario)? } else { Vec::new() },
            links,
            splitter_nodes: scenario.flows.iter().map(nodes).collect(),
            failed: None,
        })
    }

    /// Ends the trace and writes the buffers.
    ///
    /// # Errors
    /// If the buffers, or anything before them, could not be written. The run has then been stopped.
    pub fn finish(mut self) -> Result<(), TraceError> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        for file in [&mut self.legs, &mut self.received, &mut self.queues, &mut self.splitters] {
            file.flush()?;
        }
        if let Some((held, _)) = &mut self.held {
            held.flush()?;
        }
        self.qlogs.iter_mut().flatten().try_for_each(Qlog::flush)?;
        self.mahimahi.iter_mut().flatten().try_for_each(MahimahiFile::flush)?;
        self.capture.iter_mut().try_for_each(Capture::finish)
    }

    fn note(&mut self, outcome: Result<(), TraceError>) {
        if let Err(error) = outcome {
            self.failed.get_or_insert(error);
        }
    }
}

fn has_agents(scenario: &Scenario) -> bool {
    scenario.links.iter().any(|link| link.protect.is_some() || link.ends.iter().any(|end| !end.is_nothing()))
}

fn link_ends(scenario: &Scenario) -> Vec<[String; 2]> {
    scenario.links.iter().map(|link| link.between.map(|node| scenario.nodes[node].clone())).collect()
}

fn qlogs(folder: &Path, scenario: &Scenario) -> Result<Vec<Vec<Qlog>>, TraceError> {
    let mut names = HashSet::new();
    let mut of_flow = |flow: &FlowSpec| {
        let name = unique(file_name(&flow.name), &mut names);
        let of_leg = |leg| Qlog::create(folder.join(format!("{name}-{leg}.sqlog")), &flow.name, leg);
        (1..=flow.legs.len()).map(of_leg).collect()
    };
    scenario.flows.iter().map(&mut of_flow).collect()
}

fn mahimahi(folder: &Path, scenario: &Scenario) -> Result<Vec<[MahimahiFile; 2]>, TraceError> {
    let mut names = HashSet::new();
    let mut of_link = |link: &LinkSpec| {
        let name = unique(file_name(&link.name), &mut names);
        let file = |direction: &str, config| {
            let path = folder.join(format!("{name}-{direction}.log"));
            MahimahiFile::create(path, &format!("{} {direction}", link.name), config)
        };
        Ok([file("forward", &link.config.forward)?, file("reverse", &link.config.reverse)?])
    };
    scenario.links.iter().map(&mut of_link).collect()
}

/// A name as that of a file: other characters become hyphens.
fn file_name(name: &str) -> String {
    name.chars().map(|char| if char.is_alphanumeric() || "-_.".contains(char) { char } else { '-' }).collect()
}

/// This name, or with a number behind it if it is taken.
fn unique(name: String, taken: &mut HashSet<String>) -> String {
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    let free = std::iter::once(name.clone()).chain(numbered).find(|name| taken.insert(name.clone()));
    free.unwrap_or(name)
}

const LEGS_HEADER: &str = "time_s,flow,leg,cwnd_bytes,ssthresh_bytes,srtt_s,rto_s,backoff,in_flight_bytes,\
                          recovering,sent_bytes,acknowledged_bytes,retransmissions,timeouts";

impl Observer for Trace {
    fn progress(&mut self, _: Time) -> bool {
        self.failed.is_none()
    }

    fn wants_samples(&self) -> bool {
        true
    }

    fn captures_packets(&self) -> bool {
        self.capture.is_some()
    }

    fn follows_senders(&self) -> bool {
        !self.qlogs.is_empty()
    }

    fn sender(&mut self, now: Time, flow: usize, leg: usize, event: &SenderEvent<'_>) {
        let Some(legs) = self.qlogs.get_mut(flow) else { return };
        let outcome = legs[leg].event(now, event);
        self.note(outcome);
    }

    fn follows_packets(&self) -> bool {
        !self.mahimahi.is_empty()
    }

    fn step(&mut self, now: Time, step: &PacketStep) {
        // Another observer may have asked for the steps.
        let Some(files) = self.mahimahi.get_mut(step.link) else { return };
        let outcome = files[usize::from(!step.forward)].step(now, step);
        self.note(outcome);
    }

    fn variables(&mut self, now: Time, flow: usize, leg: usize, tcp: &Variables, done: &Statistics) {
        let ssthresh = match tcp.ssthresh {
            NO_SSTHRESH => String::new(),
            bytes => bytes.to_string(),
        };
        let outcome = self.legs.row(&[
            &now.as_secs_f64(),
            &self.flows[flow],
            &(leg + 1),
            &tcp.cwnd,
            &ssthresh,
            &tcp.srtt.as_secs_f64(),
            &tcp.rto.as_secs_f64(),
            &tcp.backoff,
            &tcp.in_flight,
            &u8::from(tcp.recovering),
            &done.bytes_sent,
            &done.bytes_acknowledged,
            &done.retransmissions,
            &done.timeouts,
        ]);
        self.note(outcome);
    }

    fn occupancy(&mut self, now: Time, flow: usize, splitter: usize, bytes: u64) {
        let (name, node) = (&self.flows[flow], &self.splitter_nodes[flow][splitter]);
        let outcome = self.splitters.row(&[&now.as_secs_f64(), name, node, &bytes]);
        self.note(outcome);
    }

    fn received(&mut self, now: Time, flow: usize, bytes: u64) {
        let outcome = self.received.row(&[&now.as_secs_f64(), &self.flows[flow], &bytes]);
        self.note(outcome);
    }

    fn queue(&mut self, now: Time, link: usize, forward: bool, backlog: ByteCount, counters: &Counters) {
        let direction = if forward { "forward" } else { "reverse" };
        let dropped = Cause::ALL.map(|cause| counters.dropped(cause));
        let now = now.as_secs_f64();
        let mut row: Vec<&dyn Display> = vec![&now, &self.links[link], &direction];
        let backlog = backlog.get();
        row.extend([&backlog as &dyn Display, &counters.offered, &counters.delivered]);
        row.extend(dropped.iter().map(|count| count as &dyn Display));
        let outcome = self.queues.row(&row);
        self.note(outcome);
    }

    fn held(&mut self, now: Time, link: usize, end: usize, bytes: u64) {
        let Some((file, ends)) = &mut self.held else { return };
        let (name, node) = (&self.links[link], &ends[link][end]);
        let outcome = file.row(&[&now.as_secs_f64(), name, node, &bytes]);
        self.note(outcome);
    }

    fn captured(&mut self, packet: &CapturedPacket<'_>) {
        let Some(capture) = &mut self.capture else { return };
        let outcome = capture.packet(packet);
        self.note(outcome);
    }
}

#[derive(Debug)]
struct CsvFile {
    path: PathBuf,
    writer: csv::Writer<File>,
    /// The text of one field.
    field: String,
}

impl CsvFile {
    /// `header` has the names of the columns, separated by commas.
    fn create(path: PathBuf, header: &str) -> Result<Self, TraceError> {
        let fail = |source| TraceError { path: path.clone(), source };
        let mut writer = csv::Writer::from_writer(File::create(&path).map_err(fail)?);
        writer.write_record(header.split(',')).map_err(|error| fail(error.into()))?;
        Ok(Self { path, writer, field: String::new() })
    }

    fn row(&mut self, fields: &[&dyn Display]) -> Result<(), TraceError> {
        self.write(fields).map_err(|error| TraceError { path: self.path.clone(), source: error.into() })
    }

    fn write(&mut self, fields: &[&dyn Display]) -> Result<(), csv::Error> {
        for field in fields {
            self.field.clear();
            // Memory takes any text.
            let _ = write!(self.field, "{field}");
            self.writer.write_field(&self.field)?;
        }
        self.writer.write_record(None::<&[u8]>)
    }

    fn flush(&mut self) -> Result<(), TraceError> {
        self.writer.flush().map_err(|source| TraceError { path: self.path.clone(), source })
    }
}

fn key(cause: Cause) -> String {
    cause.to_string().replace(' ', "_")
}
