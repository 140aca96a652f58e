//! A trace of a run: the variables of TCP, queues and splitters over time as CSV, and every packet as pcapng,
//! and what senders do as qlog.

mod capture;
mod ip_packet;
mod mahimahi;
mod qlog;

use std::collections::HashSet;
use std::fmt::Write;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use bentpipe_link::{Cause, Counters};
use bentpipe_tcp::congestion::NO_SSTHRESH;
use bentpipe_tcp::{Statistics, Variables};
use bentpipe_units::{ByteCount, Time};

use crate::Scenario;
use crate::columns::{Schema, Value, columns};
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

/// The tables of a trace: a row for each sample.
const LEGS: Schema = Schema {
    name: "legs",
    columns: columns![
        time_s: Number,
        flow: Text,
        leg: Count,
        cwnd_bytes: Count,
        ssthresh_bytes: Count,
        srtt_s: Number,
        rto_s: Number,
        backoff: Count,
        in_flight_bytes: Count,
        recovering: Flag,
        sent_bytes: Count,
        acknowledged_bytes: Count,
        retransmissions: Count,
        timeouts: Count,
    ],
};
const FLOWS: Schema =
    Schema { name: "flows", columns: columns![time_s: Number, flow: Text, received_bytes: Count] };
const LINKS: Schema = Schema {
    name: "links",
    columns: columns![
        time_s: Number,
        link: Text,
        direction: Text,
        queue_bytes: Count,
        offered: Count,
        delivered: Count,
        dropped_queue_full: Count,
        dropped_outage: Count,
        dropped_burst_error: Count,
        dropped_packet_error: Count,
    ],
};
const SPLITTERS: Schema = Schema {
    name: "splitters",
    columns: columns![time_s: Number, flow: Text, node: Text, held_bytes: Count],
};
const STATIONS: Schema =
    Schema { name: "stations", columns: columns![time_s: Number, link: Text, node: Text, held_bytes: Count] };

/// Takes the rows of samples.
pub trait SampleSink {
    /// A row of one of [`Samples::tables`], by its index there, with a value for every column.
    fn row(&mut self, table: usize, row: &[Value<'_>]);

    /// Whether the run is to go on.
    fn wants_more(&self) -> bool {
        true
    }
}

/// Turns the samples of a run into rows of tables:
///
/// | table | a row for each sample of |
/// |---|---|
/// | `legs` | the sending end of each connection: window, RTT, timeout, backoff, flight, counters |
/// | `flows` | the bytes that each destination has received |
/// | `links` | each direction of each link: queue, and counters of packets by fate |
/// | `splitters` | the bytes that each splitter holds |
/// | `stations` | where a link has agents or an ARQ: the bytes that each of its ends holds |
#[derive(Debug)]
pub struct Samples<S> {
    flows: Vec<String>,
    links: Vec<String>,
    /// The nodes of each flow's splitters.
    splitter_nodes: Vec<Vec<String>>,
    /// The nodes at the ends of each link.
    ends: Vec<[String; 2]>,
    /// What takes the rows.
    pub sink: S,
}

impl<S: SampleSink> Samples<S> {
    /// Samples of a run of `scenario`.
    pub fn new(scenario: &Scenario, sink: S) -> Self {
        let node = |splitter: &SplitterSpec| scenario.nodes[splitter.node].clone();
        let nodes = |flow: &FlowSpec| flow.splitters.iter().map(node).collect();
        Self {
            flows: scenario.flows.iter().map(|flow| flow.name.clone()).collect(),
            links: scenario.links.iter().map(|link| link.name.clone()).collect(),
            splitter_nodes: scenario.flows.iter().map(nodes).collect(),
            ends: link_ends(scenario),
            sink,
        }
    }
}

impl Samples<()> {
    /// The tables of a run of this scenario; that of stations is the last one, where there are any.
    pub fn tables(scenario: &Scenario) -> Vec<&'static Schema> {
        let tables = [&LEGS, &FLOWS, &LINKS, &SPLITTERS, &STATIONS];
        let count = if has_agents(scenario) { 5 } else { 4 };
        tables[..count].to_vec()
    }
}

impl<S: SampleSink> Observer for Samples<S> {
    fn progress(&mut self, _: Time) -> bool {
        self.sink.wants_more()
    }

    fn wants_samples(&self) -> bool {
        true
    }

    fn variables(&mut self, now: Time, flow: usize, leg: usize, tcp: &Variables, done: &Statistics) {
        let ssthresh = (tcp.ssthresh != NO_SSTHRESH).then_some(tcp.ssthresh);
        let row = [
            Value::Number(now.as_secs_f64()),
            (&self.flows[flow]).into(),
            (leg as u64 + 1).into(),
            tcp.cwnd.into(),
            ssthresh.into(),
            tcp.srtt.as_secs_f64().into(),
            tcp.rto.as_secs_f64().into(),
            u64::from(tcp.backoff).into(),
            tcp.in_flight.into(),
            tcp.recovering.into(),
            done.bytes_sent.into(),
            done.bytes_acknowledged.into(),
            done.retransmissions.into(),
            done.timeouts.into(),
        ];
        self.sink.row(0, &row);
    }

    fn received(&mut self, now: Time, flow: usize, bytes: u64) {
        let row = [Value::Number(now.as_secs_f64()), (&self.flows[flow]).into(), bytes.into()];
        self.sink.row(1, &row);
    }

    fn queue(&mut self, now: Time, link: usize, forward: bool, backlog: ByteCount, counters: &Counters) {
        let direction = if forward { "forward" } else { "reverse" };
        let [queue_full, outage, burst_error, packet_error] =
            Cause::ALL.map(|cause| Value::Count(counters.dropped(cause)));
        let row = [
            Value::Number(now.as_secs_f64()),
            (&self.links[link]).into(),
            direction.into(),
            backlog.get().into(),
            counters.offered.into(),
            counters.delivered.into(),
            queue_full,
            outage,
            burst_error,
            packet_error,
        ];
        self.sink.row(2, &row);
    }

    fn occupancy(&mut self, now: Time, flow: usize, splitter: usize, bytes: u64) {
        let (name, node) = (&self.flows[flow], &self.splitter_nodes[flow][splitter]);
        self.sink.row(3, &[Value::Number(now.as_secs_f64()), name.into(), node.into(), bytes.into()]);
    }

    fn held(&mut self, now: Time, link: usize, end: usize, bytes: u64) {
        let (name, node) = (&self.links[link], &self.ends[link][end]);
        self.sink.row(4, &[Value::Number(now.as_secs_f64()), name.into(), node.into(), bytes.into()]);
    }
}

/// Writes a trace into the files of a folder. It holds no more than the files' buffers, however long the run
/// is.
///
/// | file | what it has |
/// |---|---|
/// | `TABLE.csv` | each of the tables of [`Samples`] |
/// | `packets.pcapng` | with packets: each packet at both ends of each link, an interface for each end |
/// | `FLOW-LEG.sqlog` | with qlog: what the sending end of a leg does, legs from 1 on |
/// | `LINK-forward.log`, `LINK-reverse.log` | with mahimahi: the packets of a direction, in mahimahi's format |
#[derive(Debug)]
pub struct Trace {
    samples: Samples<CsvFiles>,
    capture: Option<Capture>,
    /// Of each leg of each flow; empty without.
    qlogs: Vec<Vec<Qlog>>,
    /// Of both directions of each link; empty without.
    mahimahi: Vec<[MahimahiFile; 2]>,
}

impl Trace {
    /// Starts a trace of `scenario` in `folder`, which is created if needed.
    ///
    /// # Errors
    /// If a file cannot be created.
    pub fn create(folder: &Path, scenario: &Scenario, content: TraceContent) -> Result<Self, TraceError> {
        let fail = |source| TraceError { path: folder.to_owned(), source };
        std::fs::create_dir_all(folder).map_err(fail)?;
        let file = |table: &&Schema| CsvFile::create(folder.join(format!("{}.csv", table.name)), table);
        let files = Samples::tables(scenario).iter().map(file).collect::<Result<_, _>>()?;
        let capture = || Capture::create(folder.join("packets.pcapng"), scenario);
        Ok(Self {
            samples: Samples::new(scenario, CsvFiles { files, failed: None }),
            capture: content.packets.then(capture).transpose()?,
            qlogs: if content.qlog { qlogs(folder, scenario)? } else { Vec::new() },
            mahimahi: if content.mahimahi { mahimahi(folder, scenario)? } else { Vec::new() },
        })
    }

    /// Ends the trace and writes the buffers.
    ///
    /// # Errors
    /// If the buffers, or anything before them, could not be written. The run has then been stopped.
    pub fn finish(mut self) -> Result<(), TraceError> {
        let CsvFiles { files, failed } = self.samples.sink;
        if let Some(failed) = failed {
            return Err(failed);
        }
        files.into_iter().try_for_each(|mut file| file.flush())?;
        self.qlogs.iter_mut().flatten().try_for_each(Qlog::flush)?;
        self.mahimahi.iter_mut().flatten().try_for_each(MahimahiFile::flush)?;
        self.capture.iter_mut().try_for_each(Capture::finish)
    }
}

/// The CSV files of a trace, and the first failure.
#[derive(Debug)]
struct CsvFiles {
    files: Vec<CsvFile>,
    failed: Option<TraceError>,
}

impl CsvFiles {
    fn note(&mut self, outcome: Result<(), TraceError>) {
        if let Err(error) = outcome {
            self.failed.get_or_insert(error);
        }
    }
}

impl SampleSink for CsvFiles {
    fn row(&mut self, table: usize, row: &[Value<'_>]) {
        let outcome = self.files[table].row(row);
        self.note(outcome);
    }

    fn wants_more(&self) -> bool {
        self.failed.is_none()
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

impl Observer for Trace {
    fn progress(&mut self, now: Time) -> bool {
        self.samples.progress(now)
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
        self.samples.sink.note(outcome);
    }

    fn follows_packets(&self) -> bool {
        !self.mahimahi.is_empty()
    }

    fn step(&mut self, now: Time, step: &PacketStep) {
        // Another observer may have asked for the steps.
        let Some(files) = self.mahimahi.get_mut(step.link) else { return };
        let outcome = files[usize::from(!step.forward)].step(now, step);
        self.samples.sink.note(outcome);
    }

    fn variables(&mut self, now: Time, flow: usize, leg: usize, tcp: &Variables, done: &Statistics) {
        self.samples.variables(now, flow, leg, tcp, done);
    }

    fn occupancy(&mut self, now: Time, flow: usize, splitter: usize, bytes: u64) {
        self.samples.occupancy(now, flow, splitter, bytes);
    }

    fn received(&mut self, now: Time, flow: usize, bytes: u64) {
        self.samples.received(now, flow, bytes);
    }

    fn queue(&mut self, now: Time, link: usize, forward: bool, backlog: ByteCount, counters: &Counters) {
        self.samples.queue(now, link, forward, backlog, counters);
    }

    fn held(&mut self, now: Time, link: usize, end: usize, bytes: u64) {
        self.samples.held(now, link, end, bytes);
    }

    fn captured(&mut self, packet: &CapturedPacket<'_>) {
        let Some(capture) = &mut self.capture else { return };
        let outcome = capture.packet(packet);
        self.samples.sink.note(outcome);
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
    fn create(path: PathBuf, table: &Schema) -> Result<Self, TraceError> {
        let fail = |source| TraceError { path: path.clone(), source };
        let mut writer = csv::Writer::from_writer(File::create(&path).map_err(fail)?);
        let header = table.columns.iter().map(|column| column.name);
        writer.write_record(header).map_err(|error| fail(error.into()))?;
        Ok(Self { path, writer, field: String::new() })
    }

    fn row(&mut self, fields: &[Value<'_>]) -> Result<(), TraceError> {
        self.write(fields).map_err(|error| TraceError { path: self.path.clone(), source: error.into() })
    }

    fn write(&mut self, fields: &[Value<'_>]) -> Result<(), csv::Error> {
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
