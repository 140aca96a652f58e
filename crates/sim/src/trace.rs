//! A run written down: TCP's inner variables, queues and splitters over time as CSV, and every packet as pcap.

mod pcap;

use std::fs::File;
use std::io::{self, BufWriter, Write};
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

/// Writes what happens into files of a folder. It holds no more than the files' buffers, however long the run is.
///
/// | file | a row for each sample of |
/// |---|---|
/// | `legs.csv` | the sending end of each connection: window, threshold, round trip, timeout, backoff, flight, counters |
/// | `flows.csv` | the bytes that each destination has received |
/// | `links.csv` | each direction of each link: queue, and counters of packets by fate |
/// | `splitters.csv` | the bytes that each splitter holds |
/// | `stations.csv` | where a link has stations: the bytes that each holds |
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
    /// Where there are any, with the nodes at which they are by link.
    stations: Option<(CsvFile, Vec<[String; 2]>)>,
    captures: Option<Vec<Capture>>,
    failed: Option<TraceError>,
}

impl Trace {
    /// Begins a trace of `scenario` in `folder`, which is created if need be; with each packet if `packets`.
    ///
    /// # Errors
    /// If a file cannot be created.
    pub fn create(folder: &Path, scenario: &Scenario, packets: bool) -> Result<Self, TraceError> {
        let fail = |source| TraceError { path: folder.to_owned(), source };
        std::fs::create_dir_all(folder).map_err(fail)?;
        let sheet = |name: &str, header: &str| CsvFile::create(folder.join(name), header);
        let capture = |link: &String| Capture::create(folder.join(format!("{}.pcap", file_name(link))));
        let node = |splitter: &SplitterSpec| scenario.nodes[splitter.node].clone();
        let nodes = |flow: &FlowSpec| flow.splitters.iter().map(node).collect();
        let links: Vec<String> = scenario.links.iter().map(|link| link.name.clone()).collect();
        let causes: String = Cause::ALL.iter().map(|cause| format!(",dropped_{}", key(*cause))).collect();
        Ok(Self {
            flows: scenario.flows.iter().map(|flow| flow.name.clone()).collect(),
            legs: sheet("legs.csv", LEGS_HEADER)?,
            received: sheet("flows.csv", "time_s,flow,received_bytes")?,
            queues: sheet(
                "links.csv",
                &format!("time_s,link,direction,queue_bytes,offered,delivered{causes}"),
            )?,
            splitters: sheet("splitters.csv", "time_s,flow,node,held_bytes")?,
            stations: has_stations(scenario)
                .then(|| sheet("stations.csv", "time_s,link,node,held_bytes"))
                .transpose()?
                .map(|sheet| (sheet, link_ends(scenario))),
            captures: packets.then(|| links.iter().map(capture).collect()).transpose()?,
            links,
            splitter_nodes: scenario.flows.iter().map(nodes).collect(),
            failed: None,
        })
    }

    /// Ends the trace: what is still in buffers is written.
    ///
    /// # Errors
    /// If that, or anything before it, could not be written; the run has then been stopped.
    pub fn finish(mut self) -> Result<(), TraceError> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        for sheet in [&mut self.legs, &mut self.received, &mut self.queues, &mut self.splitters] {
            sheet.flush()?;
        }
        if let Some((stations, _)) = &mut self.stations {
            stations.flush()?;
        }
        self.captures.iter_mut().flatten().try_for_each(Capture::flush)
    }

    fn note(&mut self, outcome: Result<(), TraceError>) {
        if let Err(error) = outcome {
            self.failed.get_or_insert(error);
        }
    }
}

fn has_stations(scenario: &Scenario) -> bool {
    scenario.links.iter().flat_map(|link| &link.stations).any(|station| !station.is_nothing())
}

/// The names of the nodes at the ends of each link.
fn link_ends(scenario: &Scenario) -> Vec<[String; 2]> {
    scenario.links.iter().map(|link| link.between.map(|node| scenario.nodes[node].clone())).collect()
}

const LEGS_HEADER: &str = "time_s,flow,leg,cwnd_bytes,ssthresh_bytes,srtt_s,rto_s,backoff,in_flight_bytes,recovering,\
                          sent_bytes,acknowledged_bytes,retransmissions,timeouts";

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
        let row = format_args!(
            "{},{},{},{},{ssthresh},{},{},{},{},{},{},{},{},{}",
            now.as_secs_f64(),
            self.flows[flow],
            leg + 1,
            tcp.cwnd,
            tcp.srtt.as_secs_f64(),
            tcp.rto.as_secs_f64(),
            tcp.backoff,
            tcp.in_flight,
            u8::from(tcp.recovering),
            done.bytes_sent,
            done.bytes_acknowledged,
            done.retransmissions,
            done.timeouts,
        );
        let outcome = self.legs.row(row);
        self.note(outcome);
    }

    fn occupancy(&mut self, now: Time, flow: usize, splitter: usize, bytes: u64) {
        let (name, node) = (&self.flows[flow], &self.splitter_nodes[flow][splitter]);
        let outcome = self.splitters.row(format_args!("{},{name},{node},{bytes}", now.as_secs_f64()));
        self.note(outcome);
    }

    fn received(&mut self, now: Time, flow: usize, bytes: u64) {
        let name = &self.flows[flow];
        let outcome = self.received.row(format_args!("{},{name},{bytes}", now.as_secs_f64()));
        self.note(outcome);
    }

    fn queue(&mut self, now: Time, link: usize, forward: bool, backlog: ByteCount, counters: &Counters) {
        let direction = if forward { "forward" } else { "reverse" };
        let drops: String = Cause::ALL.iter().map(|cause| format!(",{}", counters.dropped(*cause))).collect();
        let outcome = self.queues.row(format_args!(
            "{},{},{direction},{},{},{}{drops}",
            now.as_secs_f64(),
            self.links[link],
            backlog.get(),
            counters.offered,
            counters.delivered,
        ));
        self.note(outcome);
    }

    fn held(&mut self, now: Time, link: usize, station: usize, bytes: u64) {
        let Some((sheet, ends)) = &mut self.stations else { return };
        let (name, node) = (&self.links[link], &ends[link][station]);
        let outcome = sheet.row(format_args!("{},{name},{node},{bytes}", now.as_secs_f64()));
        self.note(outcome);
    }

    fn packet(&mut self, offered: &OfferedPacket<'_>) {
        let Some(captures) = &mut self.captures else { return };
        let outcome = captures[offered.link].packet(offered);
        self.note(outcome);
    }
}

/// One CSV file.
#[derive(Debug)]
struct CsvFile {
    path: PathBuf,
    file: BufWriter<File>,
}

impl CsvFile {
    fn create(path: PathBuf, header: &str) -> Result<Self, TraceError> {
        let file = File::create(&path).map_err(|source| TraceError { path: path.clone(), source })?;
        let mut sheet = Self { path, file: BufWriter::new(file) };
        sheet.row(format_args!("{header}"))?;
        Ok(sheet)
    }

    fn row(&mut self, row: std::fmt::Arguments<'_>) -> Result<(), TraceError> {
        writeln!(self.file, "{row}").map_err(|source| TraceError { path: self.path.clone(), source })
    }

    fn flush(&mut self) -> Result<(), TraceError> {
        self.file.flush().map_err(|source| TraceError { path: self.path.clone(), source })
    }
}

fn key(cause: Cause) -> String {
    cause.to_string().replace(' ', "_")
}

/// A link's name as that of a file: whatever else it has becomes a hyphen.
fn file_name(link: &str) -> String {
    link.chars().map(|char| if char.is_alphanumeric() || "-_.".contains(char) { char } else { '-' }).collect()
}
