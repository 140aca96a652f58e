//! Scenarios on the kernel.

use bentpipe_lab::on_kernel;
use bentpipe_link::Counters;
use bentpipe_sim::file::Source;
use bentpipe_sim::{Observer, Scenario};
use bentpipe_tcp::{Statistics, Variables};
use bentpipe_units::{ByteCount, Time};

use crate::common::missing;

/// Two flows by a gateway, one of them split and opened by its receiver, and one that nobody answers for.
const TEXT: &str = r#"
title = "Two flows"
duration = "20s"
sample_interval = "50ms"
[[link]]
name = "ground"
between = ["server", "gateway"]
rate = "100Mbit/s"
delay = "1ms"
[[link]]
name = "satellite"
between = ["gateway", "terminal"]
rate = "20Mbit/s"
delay = "50ms"
explicit = { at = "gateway" }
[tcp.host]
base = "linux"
[tcp.satellite]
base = "linux"
congestion = "explicit"
[[flow]]
name = "split"
from = "server"
to = "terminal"
bytes = "2MB"
start = "300ms"
opened_by = "destination"
tcp = "host"
split = [{ at = "gateway", tcp = "satellite" }]
[[flow]]
name = "upload"
from = "terminal"
to = "server"
bytes = "500kB"
tcp = "host"
"#;

#[derive(Default)]
struct Seen {
    windows: Vec<(usize, usize)>,
    most_held: u64,
    most_queued: u64,
    received: Vec<(usize, u64)>,
}

impl Observer for Seen {
    fn wants_samples(&self) -> bool {
        true
    }

    fn variables(&mut self, _: Time, flow: usize, leg: usize, variables: &Variables, _: &Statistics) {
        assert!(variables.cwnd > 0);
        self.windows.push((flow, leg));
    }

    fn occupancy(&mut self, _: Time, _: usize, _: usize, bytes: u64) {
        self.most_held = self.most_held.max(bytes);
    }

    fn received(&mut self, _: Time, flow: usize, bytes: u64) {
        self.received.push((flow, bytes));
    }

    fn queue(&mut self, _: Time, link: usize, forward: bool, backlog: ByteCount, _: &Counters) {
        if (link, forward) == (1, true) {
            self.most_queued = self.most_queued.max(backlog.get());
        }
    }
}

fn scenario(text: &str) -> Scenario {
    Source::parse("a test's scenario", text).unwrap().with(&[]).unwrap()
}

#[test]
fn a_scenario_moves_its_flows_and_says_what_they_did() {
    if missing() {
        return;
    }
    let mut seen = Seen::default();
    let result = on_kernel::run(&scenario(TEXT), 7, &mut seen).unwrap();
    let [split, upload] = &result.flows[..] else { panic!("{result:?}") };
    assert!(split.finished && upload.finished, "{result:?}");
    assert_eq!((split.bytes, split.end), (2_000_000, Some("closed")), "{split:?}");
    // Two round trips of handshake and request less, and 0.8 s at 20 Mbit/s.
    assert!((0.9..10.0).contains(&split.seconds), "{split:?}");
    assert_eq!((split.legs.len(), split.splitters.len(), upload.legs.len()), (2, 1, 1));
    for leg in split.legs.iter().chain(&upload.legs) {
        assert!(leg.established_s.is_some() && leg.segments > 100, "{leg:?}");
    }
    // Where the last look was before the last acknowledgement, some bytes are missing.
    assert!((1_500_000..=2_000_000).contains(&split.legs[1].bytes_acknowledged), "{split:?}");
    // The fast server fills the gateway.
    assert!(split.splitters[0].most_bytes > 100_000 && seen.most_held > 100_000, "{split:?}");
    for expected in [(0, 0), (0, 1), (1, 0)] {
        assert!(seen.windows.contains(&expected), "{:?}", seen.windows);
    }
    assert_eq!(
        seen.received.iter().filter(|(flow, _)| *flow == 0).map(|(_, bytes)| *bytes).max(),
        Some(2_000_000)
    );
    let satellite = &result.links[1];
    assert!(satellite.forward.delivered_bytes > 2_000_000 && satellite.reverse.delivered_bytes > 500_000);
    assert_eq!(
        result.events,
        result.links.iter().map(|link| link.forward.offered + link.reverse.offered).sum::<u64>()
    );
}

#[test]
fn a_flow_that_cannot_connect_ends_so_and_the_run_with_it() {
    if missing() {
        return;
    }
    let text = TEXT.replace(
        "name = \"satellite\"\nbetween",
        "name = \"satellite\"\noutages = [{ start = \"0s\", duration = \"1h\" }]\nbetween",
    );
    let text = text.replace("duration = \"20s\"", "duration = \"2s\"");
    let result = on_kernel::run(&scenario(&text), 7, &mut bentpipe_sim::Unobserved).unwrap();
    assert!(result.flows.iter().all(|flow| flow.bytes == 0 && !flow.finished), "{result:?}");
    assert!((1.9..2.5).contains(&result.seconds), "{result:?}");
    assert!(result.links[1].reverse.dropped.outage > 0, "{result:?}");
}

/// Data that never pauses keep no end from noticing that the run is over.
#[test]
fn a_flow_without_end_ends_with_the_run() {
    if missing() {
        return;
    }
    let text = TEXT.replace("bytes = \"2MB\"\n", "").replace("duration = \"20s\"", "duration = \"2s\"");
    let result = on_kernel::run(&scenario(&text), 7, &mut bentpipe_sim::Unobserved).unwrap();
    assert!(!result.flows[0].finished && result.flows[0].bytes > 100_000, "{result:?}");
    assert!((1.9..2.5).contains(&result.seconds), "{result:?}");
}

/// What the sender of a leg has on its way, once the connection is under way.
#[derive(Default)]
struct InFlight {
    most: u64,
}

impl Observer for InFlight {
    fn wants_samples(&self) -> bool {
        true
    }

    fn variables(&mut self, now: Time, _: usize, _: usize, variables: &Variables, _: &Statistics) {
        if now > Time::from_nanos(2_000_000_000) {
            self.most = self.most.max(variables.in_flight);
        }
    }
}

/// SURREY's window of 32 packets of 1000 bytes: the kernel counts more memory for each than it has bytes, and sets
/// the clamp anew when it has seen one.
#[test]
fn a_receive_buffer_is_the_window_of_small_segments_too() {
    if missing() {
        return;
    }
    let text = r#"
duration = "5s"
sample_interval = "20ms"
[[link]]
name = "link"
between = ["server", "client"]
rate = "10Mbit/s"
delay = "100ms"
[tcp.small]
base = "linux"
mss = 1012
receive_buffer = "32kB"
[[flow]]
name = "download"
from = "server"
to = "client"
tcp = "small"
"#;
    let mut seen = InFlight::default();
    on_kernel::run(&scenario(text), 7, &mut seen).unwrap();
    assert!((31_000..=32_000).contains(&seen.most), "{}", seen.most);
}

/// A stream of twice what a link carries, to two nodes behind it and to one of them a second one that fits.
const STREAMS: &str = r#"
title = "Streams"
duration = "13s"
[[link]]
name = "narrow"
between = ["studio", "hub"]
rate = "2Mbit/s"
delay = "50ms"
queue = "20kB"
[[link]]
name = "east"
between = ["hub", "east"]
delay = "10ms"
[[link]]
name = "west"
between = ["west", "hub"]
delay = "20ms"
[[udp]]
name = "broadcast"
from = "studio"
to = ["east", "west"]
rate = "3Mbit/s"
packet_size = "1000B"
start = "500ms"
end = "10500ms"
[[udp]]
name = "call"
from = "east"
to = "studio"
rate = "200kbit/s"
packet_size = "500B"
end = "10s"
"#;

#[test]
fn a_queue_that_overflows_loses_the_same_share_of_a_stream_in_both_worlds() {
    if missing() {
        return;
    }
    let scenario = scenario(STREAMS);
    let simulated = bentpipe_sim::run(&scenario, 7, &mut bentpipe_sim::Unobserved);
    let real = on_kernel::run(&scenario, 7, &mut bentpipe_sim::Unobserved).unwrap();
    for (simulated, real) in simulated.udp.iter().zip(&real.udp) {
        assert_eq!(simulated.sent, real.sent);
        for (simulated, real) in simulated.receivers.iter().zip(&real.receivers) {
            let what = format!("{}: {simulated:?}, on the kernel {real:?}", real.node);
            assert!((simulated.loss - real.loss).abs() < 0.01, "{what}");
            assert_eq!(
                (real.received + real.lost, real.duplicates),
                (simulated.received + simulated.lost, 0)
            );
            for (simulated, real) in
                [(simulated.delay_50_s, real.delay_50_s), (simulated.delay_95_s, real.delay_95_s)]
            {
                // A packet that takes its place by chance waits for a packet more or less: 4 ms.
                assert!((simulated.unwrap() - real.unwrap()).abs() < 0.015, "{what}");
            }
        }
    }
    // A third of the broadcast has no room; the call meets nothing but its own packets.
    let [broadcast, call] = &real.udp[..] else { panic!("{real:?}") };
    assert!((0.32..0.34).contains(&broadcast.receivers[0].loss), "{broadcast:?}");
    assert_eq!((broadcast.sent, call.sent, call.receivers[0].received), (3750, 500, 500), "{call:?}");
    // Over the common link each datagram went once, and behind it both ways.
    let offered: Vec<[u64; 2]> =
        real.links.iter().map(|link| [link.forward.offered, link.reverse.offered]).collect();
    assert_eq!(offered[0], [3750, 500], "and nothing that the scenario does not send");
    let received = broadcast.receivers[0].received;
    assert_eq!(offered[1..], [[received, 500], [0, received]]);
}

#[test]
fn a_flow_beside_a_stream_has_what_that_leaves() {
    if missing() {
        return;
    }
    let text = TEXT.replace("explicit = { at = \"gateway\" }", "").replace("\"explicit\"", "\"cubic\"");
    let stream = "[[udp]]\nname = \"load\"\nfrom = \"server\"\nto = \"terminal\"\nrate = \"15Mbit/s\"\n";
    let text = format!("{text}{stream}").replace("bytes = \"2MB\"", "bytes = \"4MB\"");
    let result = on_kernel::run(&scenario(&text), 7, &mut bentpipe_sim::Unobserved).unwrap();
    let flow = &result.flows[0];
    assert!(flow.finished && result.seconds < 19.0, "the run ends with its flows: {result:?}");
    // 20 Mbit/s less 15, without headers; a stream loses a part where they fight for the queue.
    assert!((2e6..7e6).contains(&flow.goodput_bps), "{flow:?}");
    let receiver = &result.udp[0].receivers[0];
    assert!(receiver.received > 1000 && receiver.loss < 0.3, "{:?}", result.udp);
}

#[test]
fn a_protected_leg_repairs_what_the_link_loses() {
    if missing() {
        return;
    }
    let protected = |settings: &[&str]| {
        let text = include_str!("../../../../scenarios/protected-leg.toml");
        let shorter = ["duration=20s", "flow.download.bytes=3MB", "link.satellite.delay=50ms"];
        let settings = shorter.iter().chain(&["link.satellite.per=2%"]).chain(settings);
        let settings: Vec<_> = settings.map(|setting| setting.parse().unwrap()).collect();
        let scenario = Source::parse("protected-leg.toml", text).unwrap().with(&settings).unwrap();
        on_kernel::run(&scenario, 7, &mut bentpipe_sim::Unobserved).unwrap()
    };
    let result = protected(&[]);
    let (flow, satellite) = (&result.flows[0], &result.links[1]);
    assert!(flow.finished && flow.bytes == 3_000_000, "{flow:?}");
    assert!(satellite.forward.dropped.packet_error > 10, "{satellite:?}");
    let [gateway, terminal] = &satellite.ends[..] else { panic!("{satellite:?}") };
    assert_eq!((&gateway.node[..], &terminal.node[..]), ("gateway", "terminal"));
    let [sent, received] = [gateway, terminal].map(|end| end.protect.unwrap());
    assert_eq!((sent.sessions, received.sessions, sent.unprotected), (1, 1, 0), "{sent:?} {received:?}");
    // 2150 full segments, and the call's datagrams.
    assert!(sent.packets > 2100 && received.delivered > 2100, "{sent:?} {received:?}");
    assert!(sent.repair_frames + sent.retransmissions > 10, "{sent:?}");
    assert!(gateway.most_held_bytes > 10_000, "{gateway:?}");
    let call = &result.udp[0].receivers[0];
    assert!(call.loss < 0.01, "the leg has repaired it: {call:?}");
    // The same without boxes loses a part of the call, and of the segments.
    let bare = protected(&["link.satellite.protect=off"]);
    assert!(bare.links[1].ends.is_empty() && bare.flows[0].legs[0].retransmissions > 10, "{bare:?}");
    // Through the leg the server repeats what the queue in front of it has dropped (how many, the machine's
    // timing decides: few if a drop ends the slow start early), and next to none of what the link lost.
    let of_the_links_losses = flow.legs[0].retransmissions.saturating_sub(sent.dropped);
    let lost = satellite.forward.dropped.packet_error;
    assert!(of_the_links_losses < lost / 4, "{lost} lost, {sent:?}, {flow:?}");
}
