//! Whole scenarios: what is read, and what is refused with which words.

use std::num::NonZeroU64;
use std::path::Path;

use bentpipe_link::agent::ack_filter::AckFilterConfig;
use bentpipe_link::agent::arq::{ArqConfig, Delivery};
use bentpipe_link::agent::delayed_dup_ack::DelayedDupAckConfig;
use bentpipe_link::agent::snoop::{Detection, Pace, SnoopConfig};
use bentpipe_link::agent::xcp::control::Gains;
use bentpipe_link::agent::xcp::{Variant, XcpConfig};
use bentpipe_link::agent::{AgentConfig, LinkEndConfig};
use bentpipe_link::{Encapsulation, Impairments, LinkConfig};
use bentpipe_protect::Choice;
use bentpipe_tcp::congestion::{Algorithm, Components};
use bentpipe_tcp::{Config, MetricsCache, Recovery, SynSchedule};
use bentpipe_units::{ByteCount, Probability, Rate, Time};
use proptest::prelude::*;

use super::*;
use crate::scenario::{BundleSpec, Hop, PROTECTED_MTU, Side};
use crate::sweep::Plan;

/// Every key once.
const FULL: &str = r#"title = "everything"
duration = "100s"
sample_interval = "50ms"

[[link]]
name = "sat"
between = ["gw", "client"]
rate = "10Mbit/s"
delay = "300ms"
per = "1%"
queue = "750kB"
losses = [30, 7]
gilbert_elliott = { good_to_bad = "0.1%", bad_to_good = 0.25, loss_in_good = 0, loss_in_bad = "90%" }
outages = [{ start = "10s", duration = "5s" }, { start = "30s", duration = "1s" }]
encapsulation = "dvb-mpe"
duplicate = "1%"
reorder = 0.02
reorder_by = "3ms"
corrupt = "1e-4"
snoop = { at = "gw", cache = "2MB", retransmissions = 4, timer_floor = "100ms", flows = 9, hide_sack = false, hide_congestion = true, detection = "published", copies = 3, pace = "9Mbit/s", queue = "500kB" }
delayed_dup_acks = { at = "client", delay = "600ms", flows = 8, hide_sack = false }
[link.arq]
retransmissions = 2
delivery = "immediate"
buffer = "4MB"
report_every = 4
report_within = "10ms"
[link.reverse]
rate = "2Mbit/s"
encapsulation = { overhead = 8, frame_payload = 48, frame_header = 5 }
gilbert_elliott = "off"
outages = []
queue = "bdp"
duplicate = 0

[[link]]
name = "net"
between = ["server", "gw"]
delay = "10ms"

[tcp.sat]
base = "lab"
congestion = "hybla"
hybla = { pacing = false }
recovery = "newreno-impatient"
initial_window = 4

[tcp.lab]
base = "linux"
mss = 1000
send_buffer = "4MB"
receive_buffer = "2MiB"
window_scaling = true
timestamps = false
sack = false
delayed_ack = "off"
ack_every = 8
limited_transmit = false
proportional_rate_reduction = false
nagle = false
restart_after_idle = false
each_timeout_reduces = true
byte_counting_limit = "off"
rto = { initial = "3s", min = "1s", max = "10s", granularity = "10ms" }
retries = "endless"
user_timeout = "20m"
syn = "opnet"
syn_ack = { first = "3s", linear = 1, max = "60s", waits = "endless" }

[[flow]]
name = "download"
from = "server"
to = "client"
via = ["gw"]
bytes = "10MB"
start = "1s"
start_within = "100ms"
opened_by = "destination"
count = 2
tcp = "linux"
receiver_tcp = "rfc"
split = [{ at = "gw", buffer = "2MB", quota = "5MB", tcp = "sat", receiver_tcp = "lab" }]
bundles = "off"

[sweep]
link.sat.per = ["0", 0.01]
"#;

fn read(text: &str) -> Result<Scenario, String> {
    let source = Source::parse("dir/s.toml", text).map_err(|error| error.to_string())?;
    source.with(&[]).map_err(|error| error.to_string())
}

fn with(settings: &[&str]) -> Result<Scenario, String> {
    let settings: Vec<Setting> = settings.iter().map(|setting| setting.parse().unwrap()).collect();
    Source::parse("dir/s.toml", FULL).unwrap().with(&settings).map_err(|error| error.to_string())
}

fn line_of(needle: &str) -> usize {
    FULL.lines().position(|line| line.starts_with(needle)).unwrap() + 1
}

#[test]
fn every_key_of_a_link_is_read_and_its_reverse_differs_where_it_says_so() {
    let scenario = read(FULL).unwrap();
    assert_eq!((scenario.title.as_str(), scenario.duration), ("everything", Duration::from_secs(100)));
    assert_eq!(scenario.sample_interval, Duration::from_millis(50));
    assert_eq!(scenario.nodes, ["gw", "client", "server"]);
    let link = &scenario.links[0].config;
    assert_eq!((link.forward.rate, link.reverse.rate), (Some(Rate::mbps(10)), Some(Rate::mbps(2))));
    assert_eq!((link.forward.queue, link.reverse.queue), (Some(ByteCount::new(750_000)), None));
    assert_eq!((link.forward.per, link.forward.delay), (link.reverse.per, link.reverse.delay));
    assert_eq!(link.forward.gilbert_elliott.unwrap().loss_in_bad.get(), 0.9);
    assert_eq!(link.reverse.gilbert_elliott, None);
    assert_eq!(link.forward.outages.total(), Duration::from_secs(6));
    assert!(link.reverse.outages.is_empty());
    assert_eq!(link.forward.encapsulation, Encapsulation::dvb_mpe());
    assert_eq!(link.reverse.encapsulation, Encapsulation::aal5_atm());
    let probability = |p| Probability::new(p).unwrap();
    let impairments = Impairments {
        reorder: probability(0.02),
        reorder_by: Duration::from_millis(3),
        duplicate: probability(0.01),
        corrupt: probability(1e-4),
    };
    assert_eq!(link.forward.impairments, impairments);
    assert_eq!(link.reverse.impairments, Impairments { duplicate: Probability::ZERO, ..impairments });
    assert_eq!(scenario.links[1].config.forward, scenario.links[1].config.reverse);
}

#[test]
fn a_link_that_reorders_holds_packets_back_for_ten_milliseconds_by_default() {
    let impairments = |settings: &[&str]| with(settings).unwrap().links[1].config.forward.impairments;
    assert!(impairments(&[]).is_nothing());
    assert_eq!(impairments(&["link.net.reorder=1%"]).reorder_by, Duration::from_millis(10));
    let error = with(&["link.net.reorder_by=0s"]).unwrap_err().to_string();
    assert!(error.contains("link.net.reorder_by"), "{error}");
}

#[test]
fn every_key_of_a_links_ends_is_read_for_its_own_node() {
    let links = read(FULL).unwrap().links;
    let arq = ArqConfig {
        retransmissions: 2,
        delivery: Delivery::Immediate,
        buffer: ByteCount::new(4_000_000),
        report_every: 4,
        report_within: Duration::from_millis(10),
        rtt: Duration::from_millis(600),
    };
    let snoop = SnoopConfig {
        cache: ByteCount::new(2_000_000),
        flows: 9,
        retransmissions: 4,
        timer_floor: Duration::from_millis(100),
        hide_sack: false,
        hide_congestion: true,
        detection: Detection::Published,
        copies: 3,
        pace: Some(Pace { rate: Rate::mbps(9), queue: ByteCount::new(500_000) }),
    };
    let delay = Duration::from_millis(600);
    let delayed = DelayedDupAckConfig { delay, flows: 8, hide_sack: false };
    let end = |agent| LinkEndConfig { agents: vec![agent], arq: Some(arq) };
    let ends = [AgentConfig::Snoop(snoop), AgentConfig::DelayedDupAck(delayed)].map(end);
    assert_eq!(links[0].ends, ends);
    assert!(links[1].ends.iter().all(LinkEndConfig::is_nothing));
}

#[test]
fn agents_at_a_links_ends_are_set_moved_and_removed_from_the_command_line() {
    let ends = |settings: &[&str]| with(settings).unwrap().links[0].ends.clone();
    let agents = |settings: &[&str]| ends(settings).map(|end| end.agents);
    let [gateway, client] = agents(&["link.sat.snoop=off", "link.sat.delayed_dup_acks.delay=300ms"]);
    assert_eq!(gateway, []);
    let [AgentConfig::DelayedDupAck(delayed)] = client[..] else { panic!("{client:?}") };
    assert_eq!((delayed.delay, delayed.flows), (Duration::from_millis(300), 8));
    let [gateway, client] = agents(&["link.sat.delayed_dup_acks=off", "link.sat.snoop.at=client"]);
    assert!(gateway.is_empty() && matches!(client[..], [AgentConfig::Snoop(_)]), "{client:?}");
    let [gateway, client] = ends(&["link.sat.snoop=off", "link.sat.delayed_dup_acks=off"]);
    assert!(gateway == client && gateway.arq.is_some());
    let all_off = ["link.sat.snoop=off", "link.sat.delayed_dup_acks=off", "link.sat.arq=off"];
    assert!(ends(&all_off).iter().all(LinkEndConfig::is_nothing));
    let [gateway, client] = agents(&["link.sat.delayed_dup_acks.at=gw"]);
    assert_eq!((gateway.len(), client.len()), (2, 0), "both at one node, Snoop nearer to its hosts");
    let net = with(&["link.net.arq={}"]).unwrap().links[1].clone();
    assert_eq!(net.ends[0].arq, Some(ArqConfig::for_link(&net.config)));
    assert_eq!(net.ends[0], net.ends[1]);
    let arq = with(&["link.net.arq.retransmissions=7"]).unwrap().links[1].ends[1].arq.unwrap();
    assert_eq!((arq.retransmissions, arq.delivery), (7, Delivery::InOrder), "begun by a setting");
}

#[test]
fn an_xcp_router_takes_the_rate_of_its_direction_and_needs_a_capacity_where_that_is_none() {
    let bare = ["link.sat.encapsulation=none", "link.sat.reverse={ rate = '2Mbit/s' }"];
    let xcp = |xcp: &str| {
        let ends = with(&[bare[0], bare[1], &format!("link.sat.xcp={xcp}")]).unwrap().links[0].ends.clone();
        let mut agents = ends.into_iter().flat_map(|end| end.agents);
        agents.find_map(|agent| if let AgentConfig::Xcp(xcp) = agent { Some(xcp) } else { None }).unwrap()
    };
    assert_eq!(xcp("{ at = 'gw' }"), XcpConfig::with_capacity(Rate::mbps(10)));
    let mut expected = XcpConfig::with_capacity(Rate::mbps(2));
    assert_eq!(xcp("{ at = 'client' }"), expected, "its own direction leads back");
    expected.capacity = Rate::mbps(9);
    expected.variant = Variant::PXcp;
    expected.gains = Gains { spare: 0.5, queue: 0.3, shuffled: 0.2 };
    expected.max_rtt = Duration::from_secs(3);
    expected.idle_offer = 0.75;
    let all =
        "capacity = '9Mbit/s', variant = 'p-xcp', spare_gain = 0.5, queue_gain = 0.3, shuffled_gain = 0.2";
    assert_eq!(xcp(&format!("{{ at = 'gw', {all}, max_rtt = '3s', idle_offer = '75%' }}")), expected);
    for (settings, message) in [
        (["link.sat.xcp.at=gw", "link.sat.encapsulation=dvb-mpe"], "link.sat.xcp: capacity is missing"),
        (["link.sat.xcp.at=gw", "link.sat.rate=unlimited"], "link.sat.xcp: capacity is missing"),
        (
            ["link.sat.xcp={ at = 'gw', capacity = '9Mbit/s' }", "link.sat.xcp.variant=q"],
            "link.sat.xcp.variant: \"q\" is not accepted: choose xcp or p-xcp",
        ),
        (["link.sat.xcp.at=gw", "link.sat.xcp.idle_offer=110%"], "link.sat.xcp.idle_offer: \"110%\""),
    ] {
        let error = with(&settings).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn rate_control_uses_the_links_rate_unless_another_or_none_is_configured() {
    let plain = ["link.sat.encapsulation=none", "link.sat.reverse={ rate = '2Mbit/s' }"];
    let shared = |explicit: &str| {
        let scenario = with(&[plain[0], plain[1], &format!("link.sat.explicit={explicit}")]).unwrap();
        scenario.links[0].shared.map(|shared| shared.map(|config| (config.capacity, config.rtt)))
    };
    let rtt = Duration::from_millis(600);
    assert_eq!(shared("off"), [None, None]);
    assert_eq!(shared("{ at = 'gw' }"), [Some((Some(Rate::mbps(10)), rtt)), None]);
    assert_eq!(shared("{ at = 'client' }"), [None, Some((Some(Rate::mbps(2)), rtt))]);
    assert_eq!(shared("{ at = 'gw', capacity = '9M' }"), [Some((Some(Rate::mbps(9)), rtt)), None]);
    assert_eq!(shared("{ at = 'gw', capacity = 'unknown' }"), [Some((None, rtt)), None]);
    for (settings, message) in [
        (
            ["link.sat.explicit.at=gw", "link.sat.encapsulation=dvb-mpe"],
            "link.sat.explicit: capacity is missing",
        ),
        (["link.sat.explicit.at=gw", "link.sat.rate=unlimited"], "link.sat.explicit: capacity is missing"),
        (["link.sat.explicit={ at = 'x' }", "title=t"], "link.sat.explicit.at: there is no x"),
    ] {
        let error = with(&settings).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn a_sender_with_explicit_rates_must_precede_a_rate_controlled_link() {
    let read = |at: &str, tcp: &str| {
        let text = format!(
            "duration = '1s'\n[[link]]\nname = 'sat'\nbetween = ['gw', 'ut']\nrate = '1M'\n{at}\n\
             [tcp.x]\ncongestion = 'explicit'\nweight = 3\n[[flow]]\nname = 'f'\nfrom = 'gw'\nto = 'ut'\ntcp = '{tcp}'\n"
        );
        Source::parse("s", &text).unwrap().with(&[]).map_err(|error| error.to_string())
    };
    let weight =
        |scenario: Scenario| scenario.flows[0].legs[0].sender.congestion.weight().map(|weight| weight.get());
    assert_eq!(read("explicit = { at = 'gw' }", "x").map(weight), Ok(Some(3)));
    assert_eq!(read("", "linux").map(weight), Ok(None));
    for at in ["", "explicit = { at = 'ut' }"] {
        let error = read(at, "x").unwrap_err();
        assert!(error.contains("flow.f") && error.contains("no allocator shares out sat there"), "{error}");
    }
}

#[test]
fn an_ack_filter_knows_the_rate_of_the_direction_that_leads_away_from_it() {
    let filter = |settings: &[&str]| {
        let [_, client] = with(settings).unwrap().links[0].ends.clone();
        match client.agents[..] {
            [AgentConfig::DelayedDupAck(_), AgentConfig::AckFilter(filter)] => filter,
            _ => panic!("{client:?}"),
        }
    };
    let plain = "link.sat.reverse={ rate = '200kbit/s', encapsulation = 'none' }";
    let of_link = filter(&[plain, "link.sat.ack_filter.at=client"]);
    assert_eq!(of_link, AckFilterConfig::with_rate(Rate::from_bps(197_000).unwrap()));
    let written = "link.sat.ack_filter={ at = 'client', rate = '1Mbit/s', delay = '20ms', flows = 7 }";
    let (rate, delay) = (Rate::mbps(1), Duration::from_millis(20));
    assert_eq!(filter(&[plain, written]), AckFilterConfig { rate, delay, flows: 7 });
    let error = with(&["link.net.ack_filter.at=gw"]).unwrap_err();
    assert!(error.contains("link.net.ack_filter: rate is missing"), "{error}");
}

#[test]
fn snoops_cache_is_counted_in_bandwidth_delay_products_of_the_direction_that_leads_away_from_it() {
    // 10 Mbit/s forward, 2 Mbit/s back, and 600 ms there and back: 750 kB and 150 kB.
    let cache = |snoop: &str| {
        let ends = with(&[&format!("link.sat.snoop={snoop}")]).unwrap().links[0].ends.clone();
        let agents = ends.into_iter().flat_map(|end| end.agents);
        let caches = agents.filter_map(|agent| match agent {
            AgentConfig::Snoop(snoop) => Some(snoop.cache.get()),
            AgentConfig::DelayedDupAck(_) | AgentConfig::AckFilter(_) | AgentConfig::Xcp(_) => None,
        });
        caches.collect::<Vec<_>>()
    };
    assert_eq!(cache("{ at = 'gw' }"), [2_250_000], "three by default");
    assert_eq!(cache("{ at = 'gw', cache_bdps = 0.5 }"), [375_000]);
    assert_eq!(cache("{ at = 'client', cache_bdps = 2 }"), [300_000]);
    assert_eq!(cache("{ at = 'client', cache_bdps = 0.01 }"), [24_000], "16 packets at the least");
    assert_eq!(cache("{ at = 'client', cache = '64KiB' }"), [65_536]);
}

#[test]
fn snoops_pace_is_that_of_the_direction_that_leads_away_from_it_unless_it_is_told_another_or_none() {
    // Without the overhead of the frames, which the rate of packets does not have.
    let plain = ["link.sat.encapsulation=none", "link.sat.reverse={ rate = '2Mbit/s' }"];
    let pace = |snoop: &str, more: &[&str]| {
        let snoop = format!("link.sat.snoop={snoop}");
        let settings: Vec<&str> = [snoop.as_str()].into_iter().chain(more.iter().copied()).collect();
        let ends = with(&settings).unwrap().links[0].ends.clone();
        let mut agents = ends.into_iter().flat_map(|end| end.agents);
        let pace = agents.find_map(|agent| match agent {
            AgentConfig::Snoop(snoop) => Some(snoop.pace),
            AgentConfig::DelayedDupAck(_) | AgentConfig::AckFilter(_) | AgentConfig::Xcp(_) => None,
        });
        pace.unwrap().map(|pace| (pace.rate.bps(), pace.queue.get()))
    };
    assert_eq!(pace("{ at = 'gw' }", &plain), Some((9_850_000, 1_500_000)), "two products");
    assert_eq!(pace("{ at = 'client' }", &plain), Some((1_970_000, 300_000)), "its own direction");
    assert_eq!(
        pace("{ at = 'gw', pace = '8Mbit/s' }", &plain),
        Some((8_000_000, 1_200_000)),
        "as it is written"
    );
    assert_eq!(pace("{ at = 'gw', queue = '9kB' }", &plain), Some((9_850_000, 9_000)));
    assert_eq!(pace("{ at = 'gw', pace = 'off' }", &plain), None);
    let unlimited = ["link.sat.rate=unlimited", "link.sat.encapsulation=none"];
    assert_eq!(pace("{ at = 'gw', cache = '1MB' }", &unlimited), None, "no rate, no pace");
    assert_eq!(pace("{ at = 'gw', cache = '1MB', pace = '1M' }", &unlimited), Some((1_000_000, 150_000)));
    // 1500 bytes and 17 of DVB-MPE's are 9 cells of 184, of 188 with their headers.
    let (rate, _) = pace("{ at = 'gw' }", &[]).unwrap();
    let of_frames = 10_000_000 * 1500 / Encapsulation::dvb_mpe().wire_bytes(1500);
    assert!(rate == of_frames * 985 / 1000 && rate < 9_600_000, "{rate}");
}

#[test]
fn every_key_of_a_flow_is_read_and_legs_have_the_parameters_of_their_ends() {
    let scenario = read(FULL).unwrap();
    let [first, second] = &scenario.flows[..] else { panic!("{:?}", scenario.flows) };
    assert_eq!((first.name.as_str(), second.name.as_str()), ("download-1", "download-2"));
    assert_eq!((first.bytes, first.start), (Some(10_000_000), Time::from_nanos(1_000_000_000)));
    assert_eq!((first.start_within, first.opened_by), (Duration::from_millis(100), Side::Destination));
    assert_eq!((first.splitters[0].node, first.splitters[0].buffer), (0, 2_000_000));
    let [terrestrial, space] = &first.legs[..] else { panic!("{:?}", first.legs) };
    assert_eq!(terrestrial.path, [Hop { link: 1, forward: true }]);
    assert_eq!(space.path, [Hop { link: 0, forward: true }]);
    assert_eq!((terrestrial.sender, terrestrial.receiver.mss), (Config::linux(), 1000));
    assert_eq!((space.sender.initial_window, space.receiver), (4, Config::default()));
}

#[test]
fn a_flow_in_bundles_has_nodes_where_it_would_be_split_and_they_write_without_delay() {
    let in_bundles = |bundles: &str, more: &str| {
        with(&["flow.download.opened_by=source", &format!("flow.download.bundles={bundles}"), more])
    };
    let flow = in_bundles("{}", "title=t").unwrap().flows.remove(0);
    let spec = |size, segment, reconnect, keepalive| {
        let [reconnect, keepalive] = [reconnect, keepalive].map(Duration::from_secs);
        Some(BundleSpec { size, segment, reconnect, keepalive })
    };
    assert_eq!(flow.bundles, spec(1_000_000, 64_000, 1, 60));
    assert_eq!((flow.splitters[0].node, flow.splitters[0].quota), (0, Some(5_000_000)));
    assert!(flow.legs.iter().all(|leg| !leg.sender.nagle && !leg.receiver.nagle));
    let all = "{ size = '50kB', segment = '1kB', reconnect = '5s', keepalive = '9s' }";
    assert_eq!(in_bundles(all, "title=t").unwrap().flows[0].bundles, spec(50_000, 1_000, 5, 9));
    assert_eq!(in_bundles("off", "title=t").unwrap().flows[0].bundles, None);
    let error = in_bundles("{}", "flow.download.split.gw.quota=1MB").unwrap_err();
    assert!(
        error.contains("flow.download: a quota of 1MB holds no bundle: write 1.0001MB or more"),
        "{error}"
    );
}

#[test]
fn every_key_of_tcp_is_read_over_its_base() {
    let sender = read(FULL).unwrap().flows[0].legs[1].sender;
    let components = Components { pacing: false, ..Components::ALL };
    assert_eq!(sender.congestion, Algorithm::Hybla(components));
    assert_eq!((sender.recovery, sender.mss), (Recovery::NewRenoImpatient, 1000));
    assert_eq!((sender.send_buffer, sender.receive_buffer), (4_000_000, 2 << 20));
    let switches = [
        sender.window_scaling,
        sender.timestamps,
        sender.sack,
        sender.limited_transmit,
        sender.proportional_rate_reduction,
    ];
    assert_eq!(switches, [true, false, false, false, false]);
    assert_eq!([sender.nagle, sender.restart_after_idle, sender.each_timeout_reduces], [false, false, true]);
    assert_eq!((sender.delayed_ack, sender.byte_counting_limit, sender.retries), (None, None, None));
    assert_eq!(sender.ack_every, 8);
    assert_eq!((sender.rto.initial, sender.rto.min), (Duration::from_secs(3), Duration::from_secs(1)));
    assert_eq!(
        (sender.rto.max, sender.rto.granularity),
        (Duration::from_secs(10), Duration::from_millis(10))
    );
    assert_eq!(sender.user_timeout, Some(Duration::from_secs(1200)));
    assert_eq!(sender.syn, SynSchedule::OPNET);
    let answer =
        SynSchedule { first: Duration::from_secs(3), linear: 1, max: Duration::from_secs(60), waits: None };
    assert_eq!(sender.syn_ack, answer);
}

#[test]
fn a_buffer_has_a_size_or_grows_from_a_first_one() {
    let sizes = |setting: &str| {
        let sender = with(&[setting]).unwrap().flows[0].legs[1].sender;
        [(sender.send_autotuning, sender.send_buffer), (sender.receive_autotuning, sender.receive_buffer)]
    };
    let auto = "tcp.sat.receive_buffer={ auto = [\"128KiB\", \"32MiB\"] }";
    assert_eq!(sizes(auto)[1], (Some(64 << 10), 16 << 20), "half of the memory");
    let auto = "tcp.sat.receive_buffer={ auto = [\"128KiB\", \"32MiB\"], payload = \"75%\" }";
    assert_eq!(sizes(auto)[1], (Some(96 << 10), 24 << 20));
    let auto = "tcp.sat.send_buffer={ auto = [16384, \"4MiB\"] }";
    assert_eq!(sizes(auto), [(Some(16_384), 4 << 20), (None, 2 << 20)]);
    let stock = "tcp.sat.base=linux-stock";
    assert_eq!(sizes(stock), [(Some(16 << 10), 4 << 20), (Some(64 << 10), 16 << 20)]);
    let error = with(&["tcp.sat.send_buffer={ auto = [\"4MiB\", \"1MiB\"] }"]).unwrap_err();
    assert!(error.contains("tcp.sat.send_buffer: 4194304 bytes at first is not possible"), "{error}");
}

#[test]
fn a_size_takes_the_place_of_growth() {
    let stock = ["tcp.sat.base=linux-stock", "tcp.sat.receive_buffer=3MB", "tcp.sat.send_buffer=500000"];
    let sender = with(&stock).unwrap().flows[0].legs[1].sender;
    assert_eq!((sender.send_autotuning, sender.send_buffer), (None, 500_000));
    assert_eq!((sender.receive_autotuning, sender.receive_buffer), (None, 3_000_000));
}

#[test]
fn a_flow_may_begin_with_what_is_known_of_its_path() {
    let sender = |settings: &[&str]| with(settings).unwrap().flows[0].legs[1].sender;
    let told = sender(&["tcp.sat.ssthresh=100kB", "tcp.sat.srtt=600ms", "tcp.sat.metrics_cache=rtt"]);
    assert_eq!((told.ssthresh, told.srtt), (Some(100_000), Some(Duration::from_millis(600))));
    assert_eq!(told.metrics_cache, MetricsCache::RoundTrip);
    let off = ["tcp.lab.ssthresh=1MB", "tcp.sat.ssthresh=off", "tcp.sat.srtt=off"];
    assert_eq!((sender(&off).ssthresh, sender(&off).srtt), (None, None));
    let error = with(&["tcp.sat.metrics_cache=on"]).unwrap_err();
    assert!(error.contains("choose off, rtt or rtt-and-ssthresh"), "{error}");
}

#[test]
fn little_needs_to_be_said() {
    let text = "duration='1s'\n[[link]]\nname='l'\nbetween=['a','b']\ndelay='1s'\n[[flow]]\nname='f'\nfrom='a'\nto='b'";
    let scenario = read(text).unwrap();
    assert_eq!((scenario.title.as_str(), scenario.sample_interval), ("dir/s.toml", DEFAULT_SAMPLE_INTERVAL));
    let flow = &scenario.flows[0];
    assert_eq!((flow.name.as_str(), flow.bytes, flow.opened_by), ("f", None, Side::Source));
    assert_eq!((flow.legs.len(), flow.legs[0].sender), (1, Config::default()));
}

#[test]
fn components_of_hybla_wait_while_another_algorithm_is_chosen() {
    let sender = |settings: &[&str]| with(settings).unwrap().flows[0].legs[1].sender.congestion;
    assert_eq!(sender(&["tcp.sat.congestion=cubic"]), Algorithm::Cubic);
    assert_eq!(sender(&["tcp.sat.hybla=published"]), Algorithm::Hybla(Components::PUBLISHED));
    assert_eq!(sender(&["tcp.sat.hybla.hoe=false", "tcp.sat.hybla.pacing=true"]), {
        Algorithm::Hybla(Components { hoe: false, ..Components::ALL })
    });
}

#[test]
fn settings_from_outside_take_the_place_of_values() {
    let scenario = with(&[
        "duration=7s",
        "title=2024",
        "link.sat.per=0.5",
        "link.net.reverse.rate=1M",
        "flow.download.count=3",
        "flow.download.split.gw.buffer=1MB",
        "tcp.lab.sack=true",
        "tcp.lab.retries=3",
        "tcp.lab.rto.max=20s",
        "link.sat.outages=[{ start = '1s', duration = '1s' }]",
    ])
    .unwrap();
    assert_eq!((scenario.title.as_str(), scenario.duration), ("2024", Duration::from_secs(7)));
    assert_eq!(scenario.links[0].config.reverse.per.get(), 0.5);
    assert_eq!(scenario.links[0].config.forward.outages.total(), Duration::from_secs(1));
    let net = &scenario.links[1].config;
    assert_eq!((net.forward.rate, net.reverse.rate), (None, Some(Rate::mbps(1))));
    assert_eq!((scenario.flows.len(), scenario.flows[0].splitters[0].buffer), (3, 1_000_000));
    let sender = scenario.flows[0].legs[1].sender;
    assert_eq!((sender.sack, sender.retries, sender.rto.max), (true, Some(3), Duration::from_secs(20)));
}

#[test]
fn settings_name_tcp_parameters_where_the_file_has_none() {
    let text = "duration = '1s'\n[[link]]\nname = 'sat'\nbetween = ['a', 'b']\ndelay = '1ms'\n\
                [[flow]]\nname = 'f'\nfrom = 'a'\nto = 'b'\n";
    let with = |settings: &[&str]| {
        let settings: Vec<Setting> = settings.iter().map(|setting| setting.parse().unwrap()).collect();
        Source::parse("s.toml", text).unwrap().with(&settings).map_err(|error| error.to_string())
    };
    let scenario = with(&[
        "tcp.space.congestion=cubic",
        "tcp.space.rto.max=10s",
        "tcp.other.base=space",
        "flow.f.tcp=other",
    ]);
    let sender = scenario.unwrap().flows[0].legs[0].sender;
    assert_eq!((sender.congestion, sender.rto.max), (Algorithm::Cubic, Duration::from_secs(10)));
    let unused = with(&["tcp.space.congestion=cubic"]).unwrap_err();
    assert!(unused.contains("tcp.space: no flow uses it: add --set flow.FLOW.tcp=space"), "{unused}");
    let misspelt = with(&["tcp.space.congestion=cubic", "flow.f.tcp=spaec"]).unwrap_err();
    assert!(misspelt.contains("space"), "{misspelt}");
    assert!(with(&["tpc.space.congestion=cubic"]).unwrap_err().contains("there is no tpc"));
}

/// In place of the line that begins with the first text stands the second; the error is in that line and says
/// the third.
const REFUSED: &[(&str, &str, &str)] = &[
    ("duration", "duration = \"0s\"", "duration: 0ns is too short: write 1us or more"),
    ("duration", "duration = \"31y\"", "duration: \"31y\" is not a time span: unknown unit"),
    (
        "duration",
        "duration = \"300000h\"",
        "duration: \"300000h\" is not a time span: it must not exceed 30 years",
    ),
    ("duration", "duration = ", "string values must be quoted, expected literal string in \"duration =\""),
    ("title", "title = \"two\\nlines\"", "title: a title is one line of at most 200 characters"),
    (
        "title",
        "titel = \"x\"",
        "titel: there is no such key (did you mean title?); there is title, duration, sample_interval, link",
    ),
    ("sample_interval", "sample_interval = \"0\"", "sample_interval: 0ns is too short"),
    ("name = \"sat\"", "name = \"a b\"", "link[1].name: \"a b\" is not a name: write 1 to 64 letters"),
    ("name = \"net\"", "", "link[2]: name is missing; write for example name = \"satellite\""),
    ("between", "between = [\"gw\"]", "link.sat.between: 1 nodes are given: a link joins two"),
    ("between", "between = [\"gw\", \"gw\"]", "link.sat.between: a link joins two nodes, not gw with itself"),
    ("rate = \"10M", "rate = \"-1M\"", "link.sat.rate: \"-1M\" is not a bit rate: it must be zero or more"),
    ("rate = \"10M", "rate = 0", "link.sat.rate: \"0\" is not a bit rate: it must lie between 1 bit/s"),
    ("rate = \"2M", "rate = \"fast\"", "link.sat.reverse.rate: \"fast\" is not a bit rate"),
    ("per", "per = \"101%\"", "link.sat.per: \"101%\" is not a probability: it must lie between 0 and 1"),
    ("per", "per = 1.5", "link.sat.per: \"1.5\" is not a probability"),
    ("per", "per = 2007-05-01", "link.sat.per: the date 2007-05-01 is not a text or a number"),
    ("losses = [30", "losses = [4, 0]", "link.sat.losses[2]: 0 is not a whole number between 1 and"),
    ("losses = [30", "losses = 4", "link.sat.losses: "),
    ("gilbert_elliott = {", "gilbert_elliott = { good_to_bad = 0.1 }", "bad_to_good is missing"),
    ("outages = [{", "outages = [{ start = \"1s\" }]", "link.sat.outages[1]: duration is missing"),
    (
        "outages = [{",
        "outages = [{ start = \"4s\", duration = \"1s\" }, { start = \"1s\", duration = \"3.5s\" }]",
        "link.sat.outages: row 1 (4s for 1s) overlaps row 2 (1s for 3.5s): an outage begins when the one before has \
         ended, at 4.5s or later",
    ),
    (
        "outages = [{",
        "outages = { file = \"none.csv\" }",
        "link.sat.outages.file: cannot read dir/none.csv: No such file",
    ),
    (
        "outages = [{",
        "outages = { trace = \"tokaido\" }",
        "link.sat.outages.trace: there is no tokaido; there is direttissima",
    ),
    ("outages = [{", "outages = { trace = \"direttissima\" }", "a trace in kilometres needs speed_kmh"),
    ("outages = [{", "outages = { speed_kmh = 60 }", "link.sat.outages: write either file = "),
    ("outages = [{", "outages = { file = \"/dev/zero\" }", "cannot read /dev/zero: it is not a regular file"),
    (
        "outages = [{",
        "outages = { file = \"x\", speed_kmh = -5 }",
        "link.sat.outages.speed_kmh: -5 is not a number above 0",
    ),
    (
        "outages = [{",
        "trace = { profile = \"geo\" }",
        "link.sat.trace.profile: there is no geo; there is leo-handovers, rain-front, aircraft, ship",
    ),
    ("outages = [{", "trace = { profile = \"ship\", seed = -1 }", "link.sat.trace.seed: -1 is not"),
    ("outages = [{", "trace = { seed = 1 }", "link.sat.trace.seed: it belongs to a profile"),
    ("outages = [{", "trace = { file = \"none.csv\" }", "link.sat.trace.file: cannot read dir/none.csv"),
    (
        "outages = [{",
        "trace = { file = \"x\", delays = \"y\" }",
        "link.sat.trace.delays: it belongs to mahimahi",
    ),
    ("outages = [{", "trace = { file = \"x\", profile = \"ship\" }", "link.sat.trace: write one of file = "),
    (
        "encapsulation = \"dvb",
        "encapsulation = \"atm\"",
        "link.sat.encapsulation: \"atm\" is not accepted: choose none, dvb-mpe or aal5-atm",
    ),
    ("encapsulation = {", "encapsulation = { frame_header = 5 }", "frame_header needs frame_payload"),
    (
        "encapsulation = {",
        "encapsulation = { frame_payload = 0 }",
        "0 is not a whole number between 1 and 65535",
    ),
    (
        "snoop",
        "snoop = { at = \"moon\" }",
        "link.sat.snoop.at: there is no moon; there is gw, client: name one of the link's two nodes",
    ),
    (
        "snoop",
        "snoop = { cache = 2000 }",
        "link.sat.snoop: at is missing; write for example at = \"gateway\"",
    ),
    ("snoop", "snoop = { at = \"server\" }", "link.sat.snoop.at: there is no server; there is gw, client"),
    (
        "snoop",
        "snoop = { at = \"gw\", cache = \"1MB\", cache_bdps = 2 }",
        "link.sat.snoop.cache: give either cache or cache_bdps, not both",
    ),
    (
        "snoop",
        "snoop = { at = \"gw\", cache = 1499 }",
        "link.sat.snoop.cache: 1.499kB is not possible: write 1.5kB to",
    ),
    (
        "snoop",
        "snoop = { at = \"gw\", cache_bdps = 0 }",
        "link.sat.snoop.cache_bdps: 0 is not a number above 0",
    ),
    ("snoop", "snoop = { at = \"gw\", cache_bdps = 1e300 }", "link.sat.snoop: a cache of 1000"),
    ("snoop", "snoop = { at = \"gw\", timer_floor = \"1us\" }", "1us is too short: write 1ms or more"),
    ("snoop", "snoop = { at = \"gw\", flows = 0 }", "0 is not a whole number between 1 and 1000000"),
    ("snoop", "snoop = { at = \"gw\", copies = 0 }", "0 is not a whole number between 1 and 10"),
    ("snoop", "snoop = { at = \"gw\", copies = 11 }", "11 is not a whole number between 1 and 10"),
    ("snoop", "snoop = { at = \"gw\", hide_congestion = 1 }", "1 is neither true nor false"),
    (
        "snoop",
        "snoop = { at = \"gw\", detection = \"luck\" }",
        "link.sat.snoop.detection: \"luck\" is not accepted: choose order or published",
    ),
    ("snoop", "snoop = { at = \"gw\", pace = \"fast\" }", "link.sat.snoop.pace: \"fast\" is not a"),
    (
        "snoop",
        "snoop = { at = \"gw\", queue = 1499 }",
        "link.sat.snoop.queue: 1.499kB is not possible: write 1.5kB to",
    ),
    (
        "snoop",
        "snoop = { at = \"gw\", pace = \"off\", queue = \"1MB\" }",
        "link.sat.snoop.queue: nothing waits without a pace",
    ),
    (
        "snoop",
        "snoop = { at = \"gw\", congested_above = 0.5 }",
        "link.sat.snoop.congested_above: there is no such key; there is at, cache,",
    ),
    (
        "snoop",
        "snoop = { at = \"gw\", size = 1 }",
        "link.sat.snoop.size: there is no such key; there is at, cache,",
    ),
    ("snoop", "snoop = \"gw\"", "link.sat.snoop: \"gw\" is not a table with at, cache, cache_bdps,"),
    ("delayed_dup_acks", "delayed_dup_acks = { at = \"gw\" }", "link.sat.delayed_dup_acks: delay is missing"),
    (
        "delayed_dup_acks",
        "delayed_dup_acks = { at = \"gw\", delay = \"-1s\" }",
        "link.sat.delayed_dup_acks.delay: \"-1s\" is not a time span",
    ),
    ("delayed_dup_acks", "delayed_dup_acks = true", "true is not a table with at, delay, flows, hide_sack"),
    (
        "delayed_dup_acks",
        "ack_filter = { at = \"gw\", flows = 0 }",
        "link.sat.ack_filter.flows: 0 is not a whole number between 1",
    ),
    (
        "delayed_dup_acks",
        "ack_filter = { at = \"moon\" }",
        "link.sat.ack_filter.at: there is no moon; there is gw, client",
    ),
    (
        "retransmissions = 2",
        "retransmissions = -1",
        "link.sat.arq.retransmissions: -1 is not a whole number between 0",
    ),
    (
        "delivery",
        "delivery = \"sometimes\"",
        "link.sat.arq.delivery: \"sometimes\" is not accepted: choose in-order or immediate",
    ),
    ("buffer = \"4MB\"", "buffer = \"1kB\"", "link.sat.arq.buffer: 1kB is not possible: write 1.5kB to"),
    (
        "report_every",
        "report_every = 0",
        "link.sat.arq.report_every: 0 is not a whole number between 1 and 10000",
    ),
    ("report_within", "report_within = \"0s\"", "link.sat.arq.report_within: 0ns is too short: write 1us"),
    (
        "base = \"lab\"",
        "base = \"moon\"",
        "tcp.sat.base: there is no moon; there is rfc, linux, linux-stock, lab, sat",
    ),
    ("base = \"lab\"", "base = \"sat\"", "tcp.sat.base: sat → sat goes round in circles"),
    ("base = \"linux\"", "base = \"sat\"", "tcp.lab.base: lab → sat → lab goes round in circles"),
    (
        "congestion",
        "congestion = \"vegas\"",
        "tcp.sat.congestion: \"vegas\" is not a congestion control: choose newreno",
    ),
    ("congestion", "congestion = true", "tcp.sat.congestion: true is not a text or a number"),
    ("hybla", "hybla = 3", "tcp.sat.hybla: 3 is not a text or table"),
    ("recovery", "recovery = \"tahoe\"", "tcp.sat.recovery: \"tahoe\" is not a loss recovery: choose reno"),
    ("mss", "mss = 40", "tcp.lab.mss: 40 is not a whole number between 88 and 65535"),
    (
        "send_buffer",
        "send_buffer = 10",
        "tcp.lab.send_buffer: 10 is not possible: it must lie between one mss",
    ),
    (
        "receive_buffer",
        "receive_buffer = \"2GB\"",
        "tcp.lab.receive_buffer: 2000000000 is not possible: it must lie",
    ),
    (
        "delayed_ack",
        "delayed_ack = \"1s\"",
        "tcp.lab.delayed_ack: 1s is not possible: it must not exceed 500ms",
    ),
    ("nagle", "nagle = \"yes\"", "tcp.lab.nagle: \"yes\" is neither true nor false"),
    ("rto", "rto = { min = \"2s\", max = \"1s\" }", "tcp.lab.rto: "),
    ("rto", "rto = { max = \"1us\" }", "tcp.lab.rto.max: 1us is too short: write 1ms or more"),
    (
        "retries",
        "retries = -1",
        "tcp.lab.retries: -1 is not a whole number between 0 and 4294967295; or write \"endless\"",
    ),
    (
        "syn = ",
        "syn = \"osx\"",
        "tcp.lab.syn: \"osx\" is not accepted: choose linux, rfc6298, opnet, windows-2003 or ns",
    ),
    (
        "syn_ack",
        "syn_ack = { waits = 0 }",
        "tcp.lab.syn_ack.waits: 0 is not a whole number between 1 and 4294967295; or write \"endless\"",
    ),
    ("[tcp.lab]", "[tcp.rfc]", "\"rfc\" cannot be the name of TCP parameters"),
    (
        "from",
        "from = \"mars\"",
        "flow.download.from: there is no mars; there is gw, client, server; links name the nodes",
    ),
    ("to", "to = \"server\"", "flow.download.to: server is where the flow comes from"),
    (
        "via",
        "via = [\"gw\", \"server\"]",
        "flow.download.via: the path comes to server twice: a route has no loops",
    ),
    ("via", "via = []", "flow.download.via: no link joins server and client; from server links lead to gw"),
    ("bytes", "bytes = 0", "flow.download.bytes: a flow of 0 bytes is none"),
    ("bytes", "bytes = \"-1MB\"", "flow.download.bytes: \"-1MB\" is not a byte count"),
    ("start = ", "start = \"100s\"", "flow.download.start: 100s is not before the end of the run"),
    (
        "opened_by",
        "opened_by = \"client\"",
        "flow.download.opened_by: \"client\" is not accepted: choose source or destination",
    ),
    (
        "count",
        "count = 1000000000",
        "flow.download.count: 1000000000 is not a whole number between 0 and 10000",
    ),
    ("count", "count = -1", "flow.download.count: -1 is not a whole number"),
    (
        "tcp = \"linux\"",
        "tcp = \"bsd\"",
        "flow.download.tcp: there is no bsd; there is lab, linux, linux-stock, rfc, sat; name a section",
    ),
    (
        "split",
        "split = [{ at = \"client\" }]",
        "flow.download.split[1].at: the flow cannot be split at client: choose a node between the flow's ends: gw",
    ),
    ("split", "split = [{ at = \"gw\" }, { at = \"gw\" }]", "flow.download.split: gw splits the flow twice"),
    (
        "split",
        "split = [{ at = \"gw\", buffer = \"1kB\" }]",
        "flow.download.split[1].buffer: 1kB is not possible: write 1.5kB to 1.073741824GB",
    ),
    ("split", "split = { at = \"gw\" }", "flow.download.split: a table is not a list"),
    (
        "split",
        "split = [{ at = \"gw\", quota = \"much\" }]",
        "flow.download.split[1].quota: \"much\" is not a byte count",
    ),
    (
        "bundles",
        "bundles = {}",
        "flow.download.bundles: a bundle node connects when it has a bundle, so the source",
    ),
    (
        "bundles",
        "bundles = \"yes\"",
        "flow.download.bundles: \"yes\" is not a table with size, segment, reconnect",
    ),
    ("bundles", "bundles = { at = \"gw\" }", "flow.download.bundles.at: there is no such key; there is size"),
    (
        "bundles",
        "bundles = { size = \"999B\" }",
        "flow.download.bundles.size: 999B is not possible: write 1kB to",
    ),
    (
        "bundles",
        "bundles = { segment = 99 }",
        "flow.download.bundles.segment: 99B is not possible: write 100B",
    ),
    (
        "bundles",
        "bundles = { reconnect = \"1us\" }",
        "flow.download.bundles.reconnect: 1us is too short: write 1ms",
    ),
    (
        "bundles",
        "bundles = { keepalive = \"0s\" }",
        "flow.download.bundles.keepalive: 0ns is too short: write 1ms",
    ),
    ("link.sat.per", "link.sat.per = 3", "sweep.link.sat.per: 3 is not a list of values"),
];

/// A kind of flow may be switched off, as by a setting, but not all of them.
#[test]
fn flows_may_be_none_of_a_kind_but_not_none_at_all() {
    let error = read(&FULL.replace("count = 2", "count = 0")).expect_err("no flow");
    assert!(error.contains("the count of at least one must be 1 or more"), "{error}");
}

#[test]
fn impossible_runs_are_refused_with_file_line_key_and_accepted_values() {
    for &(line, replacement, expected) in REFUSED {
        let number = line_of(line);
        let lines = FULL.lines().enumerate();
        let text: Vec<&str> = lines.map(|(i, old)| if i + 1 == number { replacement } else { old }).collect();
        let error = read(&text.join("\n")).expect_err(replacement);
        // What is missing is missed in the section's first line.
        let number = if replacement.is_empty() { number - 1 } else { number };
        assert!(error.starts_with(&format!("dir/s.toml:{number}: ")), "{replacement}: {error}");
        assert!(error.contains(expected), "{replacement}: {error}\nlacks {expected}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn errors_of_a_whole_section_name_its_first_line() {
    let refused = |more: &str, expected: &str| {
        let error = read(&FULL.replace("[sweep]", &format!("{more}\n[sweep]"))).expect_err(more);
        let number = line_of("[sweep]");
        assert!(error.starts_with(&format!("dir/s.toml:{number}: {expected}")), "{error}\nis not {expected}");
    };
    let link = |text: &str| format!("[[link]]\n{text}");
    refused(&link("name='sat'\nbetween=['x','y']\ndelay='1s'"), "link.sat: two links are called sat");
    refused(
        &link("name='l'\nbetween=['client','gw']\ndelay='1s'"),
        "link.l: l and sat both join client and gw",
    );
    refused(
        &link("name='l'\nbetween=['x','y']"),
        "link.l: it has neither a rate nor a delay, so that virtual time",
    );
    refused(
        &link("name='l'\nbetween=['x','y']\nrate='1M'\nreverse={rate='unlimited'}"),
        "link.l: its reverse has neither",
    );
    let flow = |text: &str| format!("[[flow]]\nname='f'\nfrom='server'\nto='client'\n{text}");
    refused(&flow("count=9999"), "flow.f: with this one there are 10001 flows: at most 10000");
    refused(&flow("count=5000"), "flow.f: with this flow, 57");
    refused(
        "[[flow]]\nname='download-2'\nfrom='gw'\nto='client'",
        "flow.download-2: two flows are called download-2",
    );
    let island = read(
        &FULL
            .replace("from = \"server\"", "from = \"x\"")
            .replace("via = [\"gw\"]", "")
            .replace("[tcp.sat]", "[[link]]\nname='l'\nbetween=['x','y']\ndelay='1s'\n[tcp.sat]"),
    );
    assert!(island.unwrap_err().ends_with("flow.download: no links lead from x to client"));
    assert!(read("").unwrap_err().starts_with("dir/s.toml:1: duration is missing"));
    assert!(
        read("duration='1s'").unwrap_err().contains("dir/s.toml:1: there is no link: add a section [[link]]")
    );
    let text = "duration='1s'\nflow=[]\n[[link]]\nname='l'\nbetween=['a','b']\ndelay='1s'";
    assert!(read(text).unwrap_err().contains("there is no flow: add a section [[flow]]"));
}

/// Two terminals behind one satellite.
const STREAMS: &str = r#"duration = "10s"
[[link]]
name = "uplink"
between = ["studio", "hub"]
rate = "1Mbit/s"
[[link]]
name = "east"
between = ["hub", "east"]
delay = "10ms"
[[link]]
name = "west"
between = ["hub", "west"]
delay = "10ms"
[[udp]]
name = "broadcast"
from = "studio"
to = ["east", "west"]
rate = "400kbit/s"
packet_size = "500B"
start = "1s"
end = "4s"
[[udp]]
name = "call"
from = "west"
to = "hub"
rate = "80kbit/s"
"#;

fn streams(settings: &[&str]) -> Result<Scenario, String> {
    let settings: Vec<Setting> = settings.iter().map(|setting| setting.parse().unwrap()).collect();
    let scenario = Source::parse("dir/s.toml", STREAMS).unwrap().with(&settings);
    scenario.map_err(|error| error.to_string())
}

#[test]
fn udp_streams_have_their_paths_and_need_no_flow() {
    let scenario = streams(&["udp.call.packet_size=200B"]).unwrap();
    let [broadcast, call] = &scenario.udp[..] else { panic!("{scenario:?}") };
    let paths: Vec<Vec<usize>> =
        broadcast.receivers.iter().map(|to| to.path.iter().map(|hop| hop.link).collect()).collect();
    assert_eq!((paths, broadcast.source), (vec![vec![0, 1], vec![0, 2]], 0));
    assert_eq!((broadcast.packet, broadcast.datagrams()), (500, 300));
    let back = Hop { link: 2, forward: false };
    assert_eq!((&call.receivers[0].path[..], call.packet, call.datagrams()), (&[back][..], 200, 500));
    assert_eq!((call.end, scenario.flows.len()), (Time::from_nanos(10_000_000_000), 0));
}

#[test]
fn udp_streams_that_cannot_be_are_refused() {
    for (setting, expected) in [
        ("udp.call.to=west", "udp.call.to: west is where the stream comes from"),
        ("udp.broadcast.to=['east', 'east']", "udp.broadcast.to: east is there twice"),
        ("udp.call.to=north", "udp.call.to: there is no north; there is studio, hub, east, west"),
        ("udp.broadcast.via=['hub']", "udp.broadcast.via: a stream to several nodes takes the shortest path"),
        ("udp.broadcast.start=4s", "udp.broadcast.start: 4s is not before the end, 4s"),
        ("udp.call.packet_size=2kB", "udp.call.packet_size: "),
        ("udp.call.rate=1Tbit/s", "udp.call: with this stream, "),
        ("udp.call.rate=fast", "udp.call.rate: "),
    ] {
        let error = streams(&[setting]).unwrap_err();
        assert!(error.contains(expected), "{error}\nis not {expected}");
    }
    let nameless = STREAMS.replace("rate = \"80kbit/s\"\n", "");
    let error = Source::parse("s.toml", &nameless).unwrap().with(&[]).unwrap_err().to_string();
    assert!(error.contains("udp.call: rate is missing"), "{error}");
    let twice = STREAMS.replace("\"call\"", "\"broadcast\"");
    let error = Source::parse("s.toml", &twice).unwrap().with(&[]).unwrap_err().to_string();
    assert!(error.contains("two streams are called broadcast"), "{error}");
}

#[test]
fn a_protected_leg_has_the_rates_of_its_link_and_queues_of_four_products_unless_it_is_told_others() {
    let off = ["snoop", "delayed_dup_acks", "arq"].map(|key| format!("link.sat.{key}=off"));
    let plain = ["link.sat.encapsulation=none", "link.sat.reverse={ rate = '2Mbit/s' }"];
    let protect = |protect: &str| {
        let protect = format!("link.sat.protect={protect}");
        let settings = off.iter().map(String::as_str).chain(plain).chain([protect.as_str()]);
        let spec = with(&settings.collect::<Vec<_>>()).unwrap().links[0].protect.clone();
        spec.map(|spec| {
            (spec.choice, spec.rates.map(|rate| rate.map(Rate::bps)), spec.queues.map(ByteCount::get))
        })
    };
    let megabits = |rates: [u64; 2]| rates.map(|rate| Some(rate * 1_000_000));
    assert_eq!(protect("off"), None);
    assert_eq!(protect("{}"), Some((Choice::Auto, megabits([10, 2]), [3_000_000, 600_000])));
    let told = "{ class = 'latency', rate = '8Mbit/s', reverse_rate = '1Mbit/s', queue = '9kB' }";
    assert_eq!(protect(told), Some((Choice::Latency, megabits([8, 1]), [9000; 2])));
    let spec = with(&["link.net.protect.class=bulk"]).unwrap().links[1].protect.clone().unwrap();
    assert_eq!(
        (spec.rates, spec.queues),
        ([None; 2], [ByteCount::new(4_000_000); 2]),
        "a link without rates"
    );
}

#[test]
fn a_protected_leg_that_cannot_be_is_refused() {
    let line = line_of("snoop");
    let protected = FULL.replace("snoop = ", "protect = {}\nsnoop = ");
    let error = read(&protected).unwrap_err();
    let expected = format!(
        "dir/s.toml:{line}: link.sat.protect: the link has snoop, too: give it either snoop or protect"
    );
    assert!(error.starts_with(&expected), "{error}");
    for (setting, expected) in [
        (
            "link.net.protect.class=fast",
            "link.net.protect.class: \"fast\" is not accepted: choose auto, latency or bulk",
        ),
        ("link.net.protect.rate=0", "link.net.protect.rate: "),
        ("link.net.protect.reverse_rate=x", "link.net.protect.reverse_rate: "),
        ("link.net.protect.queue=1499", "link.net.protect.queue: 1.499kB is not possible: write 1.5kB to"),
        ("link.net.protect=on", "link.net.protect: "),
    ] {
        let error = with(&[setting]).unwrap_err();
        assert!(error.contains(expected), "{error}\nis not {expected}");
    }
    let both = ["link.net.protect={}", "link.net.xcp={ at = 'gw', capacity = '1Mbit/s' }"];
    assert!(with(&both).unwrap_err().contains("the link has xcp, too"));
    assert!(with(&["link.net.protect={}", "link.net.xcp=off"]).is_ok());
}

#[test]
fn datagrams_that_do_not_fit_into_a_protected_leg_are_refused() {
    let sized = |bytes: u16| {
        let size = format!("udp.broadcast.packet_size={bytes}B");
        streams(&["link.east.protect={}", &size]).map(|scenario| scenario.udp[0].packet)
    };
    assert_eq!(sized(PROTECTED_MTU), Ok(PROTECTED_MTU));
    let error = sized(PROTECTED_MTU + 1).unwrap_err();
    let expected = format!(
        "udp.broadcast.packet_size: {} bytes do not fit into the frames of the protected leg over east: write \
         {PROTECTED_MTU} or less",
        PROTECTED_MTU + 1
    );
    assert!(error.contains(&expected), "{error}");
}

#[test]
fn an_unsuitable_agent_at_a_links_end_is_refused() {
    let error = with(&["link.net.snoop={ at = 'gw' }"]).unwrap_err();
    let expected =
        "link.net.snoop: cache is missing, and without a rate the link has no bandwidth-delay product";
    assert!(error.contains(expected), "{error}");
    assert!(with(&["link.net.snoop={ at = 'gw', cache = '1MB' }"]).is_ok());
    let endless = ["link.sat.rate=1e6Gbit/s", "link.sat.delay=200000h"];
    let error = with(&endless).unwrap_err();
    let expected = "link.sat.arq: 2e23 bytes would be on the link: lower its rate or its delay";
    assert!(error.contains(expected), "{error}");
    let snoop = "link.sat.snoop={ at = 'gw', cache = '1MB' }";
    let error = with(&[&endless[..], &["link.sat.arq=off", snoop]].concat()).unwrap_err();
    assert!(error.contains("too much for a queue: write for example queue"), "{error}");
    let error = with(&["link.sat.delayed_dup_acks=off", "link.sat.delayed_dup_acks.delay=1s"]).unwrap_err();
    assert!(error.contains("link.sat.delayed_dup_acks: \"off\" has no delay"), "{error}");
}

#[test]
fn a_run_without_end_is_refused() {
    let text = |settings: &[&str]| with(settings).expect_err(&settings.join(" "));
    let error = text(&["duration=200000h", "flow.download.bytes=100000GB"]);
    assert!(error.contains("flow.download: with this flow, the run could send"), "{error}");
    assert!(with(&["duration=200000h"]).is_ok(), "a bounded transfer may take its time");
    let long = ["duration=200000h", "flow.download.bytes=20GB"];
    assert!(with(&long).is_ok());
    let error = text(&[long[0], long[1], "link.sat.arq.retransmissions=1000"]);
    assert!(
        error.contains("the run could send 4e10 segments") && error.ends_with("or retransmissions"),
        "{error}"
    );
}

#[test]
fn the_built_in_trace_is_travelled_at_the_speed_that_is_set() {
    let outages = "link.sat.outages={ trace = 'direttissima', speed_kmh = 60 }";
    let scenario = with(&[outages, "link.sat.outages.speed_kmh=120"]).unwrap();
    let total = scenario.links[0].config.forward.outages.total().as_secs_f64();
    assert!((total - 37.4 / 120.0 * 3600.0).abs() < 0.5, "{total} s of 37.4 km at 120 km/h");
}

#[test]
fn rows_of_an_outage_file_that_overlap_are_named_by_their_lines() {
    let directory = Directory::new();
    let write = |name: &str, text: &str| std::fs::write(directory.0.join(name), text).unwrap();
    write("good.csv", "# tunnels\nstart_s,duration_s\n10,5\n15,1\n\n30,2,with a name\n");
    write("bad.csv", "\u{feff}# tunnels\n\nstart_s,duration_s\n30,2\n# more\n10,5\n14.5,1\n");
    write("km.csv", "start_km,length_km\n14.010,0.051\n14.061,7\n21.0,1\n");
    write("text.csv", "start_s,duration_s\n1,2\nx,3\n");
    std::fs::write(directory.0.join("latin.csv"), b"start_s,duration_s\n1,2,\xe9\n").unwrap();
    let file = directory.0.join("s.toml").display().to_string();
    let read = |outages: &str| {
        let line = format!("outages = {{ {outages} }}");
        let text: Vec<&str> = FULL
            .lines()
            .map(|old| if old.starts_with("outages = [{") { line.as_str() } else { old })
            .collect();
        let scenario = Source::parse(&file, &text.join("\n")).unwrap().with(&[]);
        scenario
            .map(|scenario| scenario.links[0].config.forward.outages.total())
            .map_err(|error| error.to_string())
    };
    assert_eq!(read("file = 'good.csv'"), Ok(Duration::from_secs(8)), "rows that touch do not overlap");
    let error = read("file = 'bad.csv'").unwrap_err();
    let expected = "line 7 of the outage file (14.5s for 1s) overlaps line 6 of the outage file (10s for 5s)";
    assert!(error.contains(expected) && error.contains("s.toml:14: link.sat.outages: "), "{error}");
    let error = read("file = 'km.csv', speed_kmh = 120").unwrap_err();
    assert!(error.contains("line 4 of the outage file (630s for 30s) overlaps line 3"), "{error}");
    let error = read("file = 'km.csv'").unwrap_err();
    assert!(
        error.contains("km.csv: line 1 of the outage trace") && error.contains("needs speed_kmh"),
        "{error}"
    );
    assert!(read("file = 'text.csv'").unwrap_err().contains("line 3, column start_s"));
    assert!(read("file = 'latin.csv'").unwrap_err().contains("cannot read"));
    assert!(read("file = '.'").unwrap_err().contains("it is not a regular file"));
}

#[test]
fn a_file_that_is_no_scenario_is_refused_before_it_fills_the_memory() {
    let text = Source::load("/dev/zero").unwrap_err().to_string();
    assert!(text.starts_with("/dev/zero is longer than 1048576 bytes"), "{text}");
    let text = Source::load("/no/such.toml").unwrap_err().to_string();
    assert!(text.starts_with("cannot read /no/such.toml: No such file"), "{text}");
    let deep = format!("x = {}", "[".repeat(500_000));
    let deep = Source::parse("s", &deep).and_then(|source| source.with(&[]));
    assert!(deep.unwrap_err().to_string().starts_with("s:1: "));
    let chain: String = (0..20_000).map(|n| format!("[tcp.t{n}]\nbase='t{}'\n", n + 1)).collect();
    assert!(read(&FULL.replace("[sweep]", &format!("{chain}[sweep]"))).unwrap_err().contains("are too many"));
}

#[test]
fn the_scenarios_of_the_project_run() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let mut count = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let source = Source::load(entry.unwrap().path()).unwrap();
        let plan = Plan::new(&source, &[], &[], &[1]).unwrap_or_else(|error| panic!("{error}"));
        let scenario = plan.scenario(&plan.points()[0]).unwrap();
        assert_ne!(scenario.title, source.name(), "a scenario has a title");
        let result = crate::run(&scenario, 1, &mut crate::Unobserved);
        assert!(result.flows.iter().all(|flow| flow.bytes > 0), "{}: {:?}", source.name(), result.flows);
        count += 1;
    }
    assert!(count >= 4, "{count} scenarios");
}

#[test]
fn prescribed_losses_are_those_of_both_directions_unless_the_reverse_one_has_its_own() {
    let both = |text: &str| {
        let LinkConfig { forward, reverse } = read(text).unwrap().links.remove(0).config;
        [forward, reverse]
            .map(|direction| direction.losses.numbers().map(NonZeroU64::get).collect::<Vec<_>>())
    };
    assert_eq!(both(FULL), [[7, 30], [7, 30]]);
    assert_eq!(both(&FULL.replace("[link.reverse]", "[link.reverse]\nlosses = []")), [vec![7, 30], vec![]]);
}

#[test]
fn the_reference_describes_every_key() {
    let reference = include_str!("../../../../docs/scenarios.md");
    let bogus = |line: &str, more: &str| FULL.replace(line, &format!("{line}\n{more}"));
    let texts = [
        format!("zzz = 1\n{FULL}"),
        bogus("name = \"sat\"", "zzz = 1"),
        bogus("[link.reverse]", "zzz = 1"),
        bogus("[tcp.lab]", "zzz = 1"),
        bogus("name = \"download\"", "zzz = 1"),
        FULL.replace("good_to_bad", "zzz"),
        FULL.replace("overhead", "zzz"),
        FULL.replace("receive_buffer = \"2MiB\"", "receive_buffer = { zzz = 1 }"),
        FULL.replace("start = \"10s\"", "zzz = 1"),
        FULL.replace(
            "[{ start = \"10s\", duration = \"5s\" }, { start = \"30s\", duration = \"1s\" }]",
            "{ zzz = 1 }",
        ),
        FULL.replace("pacing = false", "zzz = 1"),
        FULL.replace("initial = \"3s\"", "zzz = 1"),
        FULL.replace("linear = 1", "zzz = 1"),
        FULL.replace("buffer = \"2MB\"", "zzz = 1"),
        FULL.replace("bundles = \"off\"", "bundles = { zzz = 1 }"),
        FULL.replace("timer_floor = \"100ms\"", "zzz = 1"),
        FULL.replace("delay = \"600ms\"", "zzz = 1"),
        FULL.replace("delivery = \"immediate\"", "zzz = 1"),
        bogus(
            "delayed_dup_acks = { at = \"client\", delay = \"600ms\", flows = 8, hide_sack = false }",
            "xcp = { zzz = 1 }",
        ),
        bogus(
            "delayed_dup_acks = { at = \"client\", delay = \"600ms\", flows = 8, hide_sack = false }",
            "ack_filter = { zzz = 1 }",
        ),
        bogus("name = \"sat\"", "explicit = { zzz = 1 }"),
        bogus("name = \"sat\"", "protect = { zzz = 1 }"),
    ];
    for text in texts {
        let error = read(&text).unwrap_err();
        let (_, keys) =
            error.split_once("there is no such key; there is ").unwrap_or_else(|| panic!("{error}"));
        let keys = keys.lines().next().unwrap();
        for key in keys.split(", ") {
            assert!(reference.contains(&format!("`{key}`")), "docs/scenarios.md does not describe {key}");
        }
    }
}

proptest! {
    #[test]
    fn any_text_is_a_scenario_or_lines_of_errors(text in "\\PC*") {
        if let Err(error) = read(&text) {
            prop_assert!(names_its_file(&error), "{error}");
        }
    }

    #[test]
    fn any_change_of_a_good_text_is_a_scenario_or_lines_of_errors(
        position in 0..FULL.len(), length in 0usize..30, insert in "[\\[\\]={}\"a-z0-9.,%\\n é-]{0,8}"
    ) {
        let start = (0..=position).rev().find(|&at| FULL.is_char_boundary(at)).unwrap();
        let end = (start + length).min(FULL.len());
        let text = format!("{}{insert}{}", &FULL[..start], &FULL[end..]);
        match read(&text) {
            Ok(scenario) => prop_assert!(is_sound(&scenario)),
            Err(error) => prop_assert!(names_its_file(&error), "{error}"),
        }
    }

    #[test]
    fn any_setting_makes_a_scenario_or_lines_of_errors(
        key in prop::sample::select(&[
            "duration", "link.sat.rate", "link.sat.delay", "link.sat.per", "link.sat.queue", "link.sat.outages",
            "link.net.reverse.delay", "tcp.lab.mss", "tcp.lab.send_buffer", "tcp.sat.rto.max", "tcp.sat.syn.first",
            "tcp.lab.initial_window", "flow.download.bytes", "flow.download.count", "flow.download.start",
            "flow.download.split.gw.buffer", "flow.download.split.gw.quota", "flow.download.bundles",
            "flow.download.bundles.size", "flow.download.via", "link.sat.snoop", "link.sat.snoop.cache",
            "link.sat.snoop.flows", "link.sat.delayed_dup_acks.delay", "link.sat.arq", "link.net.arq.report_within", "link.net.protect",
            "link.net.protect.rate", "link.net.protect.queue", "x.y", "", "link..per", "flow",
        ][..]),
        value in "(-?[0-9]{1,20}(\\.[0-9]{1,9})?(e-?[0-9]{1,3})?(s|ms|ns|h|M|G|MB|GB|B|%)?|\\PC{0,20}|[\\[{\"'\\]},=a-z0-9]{0,20})",
    ) {
        let setting = Setting { key: key.to_owned(), value };
        match Source::parse("s", FULL).unwrap().with(&[setting]) {
            Ok(scenario) => prop_assert!(is_sound(&scenario)),
            Err(error) => prop_assert!(names_its_file(&error.to_string()), "{error}"),
        }
    }
}

/// Each error is one line.
fn names_its_file(error: &str) -> bool {
    error.lines().all(|line| line.starts_with("s") || line.starts_with("dir/s.toml"))
}

/// What the simulator relies on.
fn is_sound(scenario: &Scenario) -> bool {
    let advances = |link: &LinkSpec| {
        let config = &link.config;
        [&config.forward, &config.reverse].iter().all(|way| way.rate.is_some() || !way.delay.is_zero())
    };
    let legs = |flow: &FlowSpec| {
        let sound = |leg: &crate::scenario::LegSpec| {
            !leg.path.is_empty() && leg.sender.check().is_ok() && leg.receiver.check().is_ok()
        };
        flow.legs.iter().all(sound) && flow.splitters.len() + 1 == flow.legs.len()
    };
    !scenario.duration.is_zero()
        && scenario.links.iter().all(advances)
        && (1..=MAX_FLOWS).contains(&scenario.flows.len())
        && scenario.flows.iter().all(legs)
}

/// A folder of its own, removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("bentpipe-scenario-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
