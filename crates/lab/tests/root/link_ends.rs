//! Downloads end to end, over a link with agents at its ends.

use crate::common::{missing, symmetric};
use bentpipe_lab::download::{Download, Progress, Request, SAMPLE_INTERVAL};
use bentpipe_lab::topology::{FarEnd, Topology};
use bentpipe_link::LinkConfig;
use bentpipe_link::agent::snoop::{SnoopConfig, SnoopCounters};
use bentpipe_link::agent::{AgentConfig, AgentReport, LinkEndConfig};
use bentpipe_units::Rate;

/// From a server with standard TCP.
fn reno_download(topology: &Topology, bytes: u64) -> Download {
    let _server = topology.serve(Some("reno"), SAMPLE_INTERVAL).unwrap();
    let request = Request { seed: 1, bytes };
    let got = topology.download(request, &Progress::default()).unwrap();
    assert_eq!(topology.link.unintended_drops().unwrap(), 0);
    topology.link.check().unwrap();
    got
}

/// With room for a whole download of this file.
fn snoop() -> SnoopConfig {
    SnoopConfig::with_cache("2MB".parse().unwrap())
}

fn with_snoop(config: &LinkConfig, snoop: SnoopConfig) -> Topology {
    let gateway = LinkEndConfig { agents: vec![AgentConfig::Snoop(snoop)], arq: None };
    Topology::build_with(config, &[gateway, LinkEndConfig::default()], 1, FarEnd::Client).unwrap()
}

fn snoop_counters(topology: &Topology) -> SnoopCounters {
    match topology.link.link_end_reports()[0].agents[..] {
        [AgentReport::Snoop(counters)] => counters,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn snoop_repairs_a_download_of_standard_tcp_and_leaves_it_identical() {
    if missing() {
        return;
    }
    let mut config = symmetric(Rate::mbps(10), 100, 0.01);
    // Room for all, so that errors of the radio are all that is to be repaired.
    config.forward.queue = Some("2MB".parse().unwrap());
    let topology = with_snoop(&config, snoop());
    let got = reno_download(&topology, 1_000_000);
    assert!(got.identical, "{} bytes", got.bytes);
    let (lost, counters) = (topology.link.counters().0.dropped.packet_error, snoop_counters(&topology));
    println!("{:?}, {:?}, {counters:?}", got.duration, topology.link.counters().0);
    assert!(lost > 0, "the link was not lossy");
    assert!(counters.retransmitted > 0 && counters.not_cached == 0, "{counters:?}");
    assert!(counters.most_held_bytes <= snoop().cache.get(), "{counters:?}");
}

#[test]
fn snoop_without_room_for_any_connection_passes_a_download_unchanged() {
    if missing() {
        return;
    }
    let config = symmetric(Rate::mbps(10), 100, 0.001);
    let topology = with_snoop(&config, SnoopConfig { flows: 0, ..snoop() });
    assert!(reno_download(&topology, 1_000_000).identical);
    let counters = snoop_counters(&topology);
    assert_eq!((counters.cached, counters.retransmitted, counters.suppressed), (0, 0, 0));
    assert_eq!(topology.link.held_bytes(), [0, 0]);
}

#[test]
fn a_topology_without_agents_has_nothing_to_report() {
    if missing() {
        return;
    }
    let topology = Topology::build(&symmetric(Rate::mbps(10), 20, 0.0), 1).unwrap();
    assert!(reno_download(&topology, 100_000).identical);
    let [gateway, client] = topology.link.link_end_reports();
    assert!(gateway.agents.is_empty() && client.agents.is_empty());
}
