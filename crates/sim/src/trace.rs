//! A trace of a run: the variables of TCP, queues and splitters over time as CSV, and every packet as pcap.

mod pcap;

use std::fmt::{Display, Write};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use bentpipe_link::{Cause, Counters};
use bentpipe_tcp::congestion::NO_SSTHRESH;
use bentpipe_tcp::{Statistics, Variables};
use bentpipe_units::{ByteCount, Time};

use crate::Scenario;
use crate::observer::{Observer, OfferedPacket};
use crate::scenario::{FlowSpec, SplitterSpec};
use pcap::Capture;

/// A file of a trace could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the trace {}: {source}; what was written before is complete", path.display())]
pub struct TraceError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
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
/// | `LINK.pcap` | with packets: each packet offered to the link that is delivered, both directions |
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
    captures: Option<Vec<Capture>>,
    failed: Option<TraceError>,
}

impl Trace {
    /// Starts a trace of `scenario` in `folder`, which is created if needed; with every packet if `packets`.
    ///
    /// # Errors
    /// If a file cannot be created.
    pub fn create(folder: &Path, scenario: &Scenario, packets: bool) -> Result<Self, TraceError> {
        let fail = |source| TraceError { path: folder.to_owned(), source };
        std::fs::create_dir_all(folder).map_err(fail)?;
        let file = |name: &str, header: &str| CsvFile::create(folder.join(name), header);
        let capture = |link: &String| Capture::create(folder.join(format!("{}.pcap", file_name(link))));
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
            captures: packets.then(|| links.iter().map(capture).collect()).transpose()?,
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
        self.captures.iter_mut().flatten().try_for_each(Capture::flush)
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

const LEGS_HEADER: &str = "time_s,flow,leg,cwnd_bytes,ssthresh_bytes,srtt_s,rto_s,backoff,in_flight_bytes,\
                          recovering,sent_bytes,acknowledged_bytes,retransmissions,timeouts";

impl Observer for Trace {
    fn progress(&mut self, _: Time) -> bool {
        self.failed.is_none()
    }

    fn wants_samples(&self) -> bool {
        true
    }

    fn watches_packets(&self) -> bool {
        self.captures.is_some()
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

    fn packet(&mut self, offered: &OfferedPacket<'_>) {
        let Some(captures) = &mut self.captures else { return };
        let outcome = captures[offered.link].packet(offered);
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

/// A link's name as the name of a file: other characters become hyphens.
fn file_name(link: &str) -> String {
    link.chars().map(|char| if char.is_alphanumeric() || "-_.".contains(char) { char } else { '-' }).collect()
}
