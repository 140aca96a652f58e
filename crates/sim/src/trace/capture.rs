//! The packets of a run for Wireshark and tcpdump: one file, with an interface for each end of each link.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use bentpipe_link::pcapng::{self, Heading, Interface, LinkType, Packet, Statistics};
use bentpipe_link::{Cause, DirectionConfig};
use bentpipe_units::Time;

use super::TraceError;
use super::ip_packet::{self, CapturedBytes};
use crate::Scenario;
use crate::observer::{CaptureEvent, CapturedPacket};
use crate::scenario::LinkSpec;

/// The comment on a packet that arrives with a wrong bit.
const CORRUPTED: &str = "corrupted by the link";

/// The packets of all links.
#[derive(Debug)]
pub(super) struct Capture {
    path: PathBuf,
    file: BufWriter<File>,
    /// For each stream of UDP, whether it has several receivers.
    multicast: Vec<bool>,
    /// Of each interface, so far.
    statistics: Vec<Statistics>,
    last: Time,
    bytes: CapturedBytes,
    block: Vec<u8>,
}

impl Capture {
    pub(super) fn create(path: PathBuf, scenario: &Scenario) -> Result<Self, TraceError> {
        let mut block = Vec::new();
        pcapng::section(&mut block, concat!("bentpipe ", env!("CARGO_PKG_VERSION")));
        for link in &scenario.links {
            (0..2).for_each(|end| describe(&mut block, scenario, link, end));
        }
        let file = match File::create(&path) {
            Ok(file) => BufWriter::new(file),
            Err(source) => return Err(TraceError { path, source }),
        };
        let mut capture = Self {
            path,
            file,
            multicast: scenario.udp.iter().map(|stream| stream.receivers.len() > 1).collect(),
            statistics: vec![Statistics::default(); 2 * scenario.links.len()],
            last: Time::ZERO,
            bytes: CapturedBytes::default(),
            block,
        };
        let written = capture.write_block();
        capture.result(written)?;
        Ok(capture)
    }

    /// Writes a packet. One that the link loses is seen where it is sent, with a comment that says why.
    pub(super) fn packet(&mut self, packet: &CapturedPacket<'_>) -> Result<(), TraceError> {
        let interface = 2 * packet.link + packet.end;
        let (heading, comment) = match packet.event {
            CaptureEvent::Sent(_) => (Heading::Outbound, packet.event.lost().map_or("", pcapng::lost)),
            CaptureEvent::Received { is_corrupted } => {
                (Heading::Inbound, if is_corrupted { CORRUPTED } else { "" })
            }
        };
        let statistics = &mut self.statistics[interface];
        match packet.event.lost() {
            Some(Cause::QueueFull) => statistics.dropped += 1,
            _ => statistics.received += 1,
        }
        ip_packet::write(packet, &self.multicast, &mut self.bytes);
        self.last = packet.now;
        let packet = Packet {
            interface: interface as u32,
            nanos: packet.now.as_nanos(),
            heading,
            bytes: &self.bytes.captured,
            length: self.bytes.length,
            comment,
        };
        pcapng::packet(&mut self.block, &packet);
        let written = self.write_block();
        self.result(written)
    }

    /// Writes the counters of the interfaces, and the buffer.
    pub(super) fn finish(&mut self) -> Result<(), TraceError> {
        for (interface, statistics) in (0..).zip(&self.statistics) {
            pcapng::statistics(&mut self.block, interface, self.last.as_nanos(), statistics);
        }
        let written = self.write_block().and_then(|()| self.file.flush());
        self.result(written)
    }

    fn write_block(&mut self) -> io::Result<()> {
        let written = self.file.write_all(&self.block);
        self.block.clear();
        written
    }

    fn result(&self, written: io::Result<()>) -> Result<(), TraceError> {
        written.map_err(|source| TraceError { path: self.path.clone(), source })
    }
}

/// The interface at an end of a link: `LINK@NODE`.
fn describe(block: &mut Vec<u8>, scenario: &Scenario, link: &LinkSpec, end: usize) {
    let [node, peer] = [end, 1 - end].map(|end| &scenario.nodes[link.between[end]]);
    let direction: &DirectionConfig = if end == 0 { &link.config.forward } else { &link.config.reverse };
    let name = format!("{}@{node}", link.name);
    let description = format!("the end of the link {} at {node}; outbound is to {peer}", link.name);
    let constant = direction.trace.highest_rate().is_none();
    let speed = direction.rate.filter(|_| constant).map(|rate| rate.bps());
    let (name, description) = (&*name, &*description);
    pcapng::interface(block, &Interface { link_type: LinkType::Ipv4, name, description, speed });
}
