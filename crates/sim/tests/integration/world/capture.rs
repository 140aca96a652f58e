//! Captures of runs, read back: by a reader of the format here, and by the programs that people have.

use std::path::Path;
use std::process::Command;

use bentpipe_link::Cause;
use bentpipe_sim::file::{Setting, Source};
use bentpipe_sim::{RunResult, Scenario, Trace, TraceContent, run};

/// A packet of a capture.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) interface: u32,
    pub(super) nanos: u64,
    pub(super) is_inbound: bool,
    pub(super) bytes: Vec<u8>,
    pub(super) length: usize,
    pub(super) comment: String,
}

/// The packets of a file in pcapng.
pub(super) fn packets(mut file: &[u8]) -> Vec<Packet> {
    let mut packets = Vec::new();
    while !file.is_empty() {
        let (block, rest) = file.split_at(word(file, 4) as usize);
        if word(block, 0) == 6 {
            packets.push(packet(&block[8..block.len() - 4]));
        }
        file = rest;
    }
    packets
}

fn packet(body: &[u8]) -> Packet {
    let (captured, length) = (word(body, 12) as usize, word(body, 16) as usize);
    let mut packet = Packet {
        interface: word(body, 0),
        nanos: u64::from(word(body, 4)) << 32 | u64::from(word(body, 8)),
        is_inbound: false,
        bytes: body[20..20 + captured].to_vec(),
        length,
        comment: String::new(),
    };
    let mut options = &body[20 + captured.next_multiple_of(4)..];
    while options.len() > 4 {
        let (code, length) = (word(options, 0) & 0xffff, (word(options, 0) >> 16) as usize);
        match code {
            1 => packet.comment = String::from_utf8(options[4..4 + length].to_vec()).unwrap(),
            2 => packet.is_inbound = word(options, 4) == 1,
            _ => {}
        }
        options = &options[4 + length.next_multiple_of(4)..];
    }
    packet
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().unwrap())
}

/// Runs a scenario of the project, and writes its packets into `folder`.
pub(super) fn captured(folder: &Path, name: &str, settings: &[&str]) -> (Scenario, RunResult) {
    traced(folder, name, settings, TraceContent { packets: true, ..TraceContent::default() })
}

/// Runs a scenario of the project, and writes a trace of it into `folder`.
pub(super) fn traced(
    folder: &Path,
    name: &str,
    settings: &[&str],
    content: TraceContent,
) -> (Scenario, RunResult) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios").join(name);
    let settings: Vec<Setting> = settings.iter().map(|setting| setting.parse().unwrap()).collect();
    let scenario = Source::load(&file).unwrap().with(&settings).unwrap();
    let mut trace = Trace::create(folder, &scenario, content).unwrap();
    let result = run(&scenario, 1, &mut trace);
    trace.finish().unwrap();
    (scenario, result)
}

/// What a program that reads captures prints; `None` if it is not here. It may say nothing on standard error
/// but that it is root.
pub(super) fn reader(program: &str, arguments: &[&str]) -> Option<String> {
    let Ok(output) = Command::new(program).args(arguments).output() else {
        println!("skipped: needs {program}: scripts/setup-peers readers");
        return None;
    };
    let stderr = String::from_utf8_lossy(&output.stderr);
    let noise = |line: &&str| line.contains("Running as user") || line.starts_with("reading from file");
    let said: Vec<&str> = stderr.lines().filter(|line| !noise(line)).collect();
    assert!(output.status.success() && said.is_empty(), "{program} {arguments:?}: {stderr}");
    Some(String::from_utf8(output.stdout).unwrap())
}

const GEO: &str = "geo-download.toml";
const LOSSY: [&str; 3] = ["flow.split.bytes=1MB", "link.satellite.per=2%", "link.satellite.queue=4kB"];

#[test]
fn a_lost_packet_is_captured_where_it_is_sent_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let (scenario, result) = captured(folder.path(), GEO, &LOSSY);
    let packets = packets(&std::fs::read(folder.path().join("packets.pcapng")).unwrap());
    assert!(packets.is_sorted_by_key(|packet| packet.nanos));
    for (index, link) in result.links.iter().enumerate() {
        for (end, counters) in [&link.forward, &link.reverse].into_iter().enumerate() {
            let of = |packet: &&Packet| packet.interface as usize == 2 * index + end && !packet.is_inbound;
            let lost =
                |comment: &str| packets.iter().filter(of).filter(|packet| packet.comment == comment).count();
            let name = &scenario.links[index].name;
            let expected = [counters.dropped(Cause::QueueFull), counters.dropped(Cause::PacketError)];
            let found = ["lost: queue full", "lost: packet error"].map(|comment| lost(comment) as u64);
            assert_eq!(
                (found, packets.iter().filter(of).count() as u64),
                (expected, counters.offered),
                "{name}"
            );
        }
    }
    let satellite = &result.links[1].forward;
    assert!(satellite.dropped.queue_full > 0 && satellite.dropped.packet_error > 0, "{satellite:?}");
}

#[test]
fn tshark_capinfos_and_tcpdump_read_it() {
    let folder = tempfile::tempdir().unwrap();
    let (scenario, result) = captured(folder.path(), GEO, &LOSSY);
    let path = folder.path().join("packets.pcapng");
    let (file, packets) = (path.to_str().unwrap(), packets(&std::fs::read(&path).unwrap()));
    let fields =
        ["frame.interface_name", "frame.packet_flags_direction", "frame.comment", "tcp.checksum.status"];
    let fields: Vec<&str> = fields.iter().flat_map(|field| ["-e", field]).collect();
    let arguments = [&["-r", file, "-o", "tcp.check_checksum:TRUE", "-T", "fields"], &fields[..]].concat();
    if let Some(text) = reader("tshark", &arguments) {
        let satellite = scenario.links.iter().find(|link| link.name == "satellite").unwrap();
        let [gateway, _] = satellite.between.map(|node| &scenario.nodes[node]);
        let lost = format!("satellite@{gateway}\t0x00000002\tlost: packet error\t");
        let found = text.lines().filter(|line| line.starts_with(&lost)).count() as u64;
        assert_eq!(found, result.links[1].forward.dropped.packet_error, "{text}");
        assert_eq!(text.lines().count(), packets.len());
    }
    if let Some(text) = reader("capinfos", &["-M", file]) {
        let says = |what: &str, value: usize| {
            let line = text.lines().find(|line| line.starts_with(what)).expect(&text);
            assert!(line.ends_with(&format!(" {value}")), "{line}");
        };
        says("Number of packets:", packets.len());
        says("Number of interfaces in file:", 2 * scenario.links.len());
        assert!(text.contains("Time resolution = 0x09"), "{text}");
    }
    if let Some(text) = reader("tcpdump", &["-nn", "--nano", "-r", file]) {
        assert_eq!(text.lines().count(), packets.len());
    }
}
