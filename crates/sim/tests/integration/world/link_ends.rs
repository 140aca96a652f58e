//! Links with agents and ARQs at their ends.

use bentpipe_link::Fate;
use bentpipe_link::agent::arq::ArqConfig;
use bentpipe_link::agent::delayed_dup_ack::DelayedDupAckConfig;
use bentpipe_link::agent::snoop::{SnoopConfig, SnoopCounters};
use bentpipe_link::agent::{AgentConfig, AgentReport};
use bentpipe_sim::file::Source;
use bentpipe_sim::scenario::{Hop, Scenario};
use bentpipe_sim::sweep::{Job, Plan};
use bentpipe_sim::{LinkResult, Observer, OfferedPacket, Trace, TraceContent, Unobserved, run};
use bentpipe_tcp::congestion::Algorithm;
use bentpipe_tcp::{Config, Recovery};
use bentpipe_units::{ByteCount, Time};

use crate::world::capture;
use crate::world::scene::{chain, direction, flow, ms, split_at, symmetric};
use crate::world::{MB, go};

/// The satellite, between node 1, the gateway, and node 2.
const SATELLITE: usize = 1;
const GATEWAY: usize = 0;
const TERMINAL: usize = 1;

/// Terrestrial in front, satellite, and a network behind it.
fn three_links(per: f64) -> Scenario {
    chain(vec![
        symmetric(direction(100, ms(20), 0.0)),
        symmetric(direction(10, ms(300), per)),
        symmetric(direction(100, ms(2), 0.0)),
    ])
}

fn reno() -> Config {
    Config {
        congestion: Algorithm::NewReno,
        recovery: Recovery::NewRenoImpatient,
        sack: false,
        ..Config::default()
    }
}

fn snoop() -> SnoopConfig {
    SnoopConfig::with_cache(ByteCount::new(3 * 750_000))
}

/// A download by Reno over three links, and Snoop at the gateway.
fn snooped(per: f64, snoop: SnoopConfig) -> Scenario {
    let mut scenario = three_links(per);
    scenario.links[SATELLITE].ends[GATEWAY].agents.push(AgentConfig::Snoop(snoop));
    scenario.flows.push(flow(&scenario, Some(2 * MB), reno()));
    scenario
}

/// A flow on a link of its own that keeps the run going when all that the others have sent has long arrived.
fn outlast(scenario: &mut Scenario) {
    let (nodes, links) = (scenario.nodes.len(), scenario.links.len());
    scenario.nodes.extend(["apart".into(), "far apart".into()]);
    let mut link = scenario.links[0].clone();
    (link.name, link.between) = ("apart".into(), [nodes, nodes + 1]);
    scenario.links.push(link);
    let mut late = flow(scenario, Some(1), Config::default());
    late.start = Time::ZERO + ms(1_000_000);
    late.legs[0].path = vec![Hop { link: links, forward: true }];
    scenario.flows.push(late);
}

fn counters(link: &LinkResult) -> SnoopCounters {
    match link.ends[0].report.agents[..] {
        [AgentReport::Snoop(counters)] => counters,
        _ => panic!("{link:?}"),
    }
}

/// What an observer is told, as text.
#[derive(Default)]
struct Log(Vec<String>);

impl Observer for Log {
    fn watches_packets(&self) -> bool {
        true
    }

    fn packet(&mut self, offered: &OfferedPacket<'_>) {
        self.0.push(format!("{offered:?}"));
    }
}

/// Agents that look after no connection at all, on two of three links, under flows both ways.
fn passing() -> Scenario {
    let mut scenario = three_links(0.01);
    let snoop = AgentConfig::Snoop(SnoopConfig { flows: 0, ..snoop() });
    let delayed = DelayedDupAckConfig { flows: 0, ..DelayedDupAckConfig::with_delay(ms(600)) };
    scenario.links[0].ends[TERMINAL].agents.push(snoop.clone());
    scenario.links[SATELLITE].ends[GATEWAY].agents.push(snoop);
    scenario.links[SATELLITE].ends[TERMINAL].agents.push(AgentConfig::DelayedDupAck(delayed));
    scenario.flows.push(flow(&scenario, Some(MB), Config::default()));
    let whole = flow(&scenario, Some(MB), reno());
    scenario.flows.push(split_at(whole, 1, 300_000, Config::default()));
    let mut upload = flow(&scenario, Some(MB), Config::default());
    upload.legs[0].path = (0..3).rev().map(|link| Hop { link, forward: false }).collect();
    scenario.flows.push(upload);
    scenario
}

#[test]
fn agents_that_let_everything_pass_change_nothing_to_the_last_event_and_packet() {
    let with = passing();
    let mut without = with.clone();
    without.links.iter_mut().for_each(|link| link.ends = Default::default());
    for seed in 1..4 {
        let (mut log, mut expected_log) = (Log::default(), Log::default());
        let (mut result, expected) = (run(&with, seed, &mut log), run(&without, seed, &mut expected_log));
        assert!(expected.flows.iter().all(|flow| flow.finished), "{expected:?}");
        let ends: Vec<usize> = result.links.iter().map(|link| link.ends.len()).collect();
        assert_eq!(ends, [1, 2, 0]);
        result.links.iter_mut().for_each(|link| link.ends.clear());
        assert_eq!(result, expected);
        assert!(log.0 == expected_log.0, "seed {seed}: packets pass in another order or at other times");
    }
}

#[test]
fn a_gateways_retransmission_takes_the_route_of_the_original() {
    let mut scenario = snooped(0.01, snoop());
    outlast(&mut scenario);
    let result = go(&scenario, 1);
    assert!(result.flows[0].finished, "{result:?}");
    let snoop = counters(&result.links[SATELLITE]);
    assert!(snoop.retransmitted > 10, "{snoop:?}");
    let [before, satellite, behind, _] = &result.links[..] else { panic!() };
    let copies = u64::from(self::snoop().copies) * snoop.retransmitted;
    assert_eq!(satellite.forward.offered, before.forward.delivered + copies);
    assert_eq!(behind.forward.offered, satellite.forward.delivered, "all that crosses goes on");
    assert_eq!(satellite.reverse.offered, behind.reverse.delivered);
    assert_eq!(before.reverse.offered, satellite.reverse.delivered - snoop.suppressed);
    let plain = go(&snooped(0.01, SnoopConfig { flows: 0, ..self::snoop() }), 1);
    assert!(result.flows[0].goodput_bps > 3.0 * plain.flows[0].goodput_bps, "{result:?} {plain:?}");
    assert!(result.flows[0].retransmissions < plain.flows[0].retransmissions / 5, "{result:?}");
}

#[test]
fn a_link_end_wakes_without_a_packet() {
    // The last packets are on the link, and nothing comes behind them of which a duplicate ACK could speak.
    let mut scenario = snooped(0.0, snoop());
    let result = go(&scenario, 1);
    assert_eq!(counters(&result.links[SATELLITE]).timed_out, 0);
    let last = result.flows[0].seconds - 0.3;
    let outage = (Time::ZERO + ms((last * 1e3) as u64 - 30), ms(500));
    scenario.links[SATELLITE].config.forward.outages = [outage].into_iter().collect();
    let result = go(&scenario, 1);
    let snoop = counters(&result.links[SATELLITE]);
    assert!(result.flows[0].finished && snoop.timed_out > 0, "{snoop:?}, {result:?}");
}

/// The packets told of, by link and direction, as how many were offered, and delivered.
#[derive(Default)]
struct FateCounts([[(u64, u64); 2]; 4]);

impl Observer for FateCounts {
    fn watches_packets(&self) -> bool {
        true
    }

    fn packet(&mut self, offered: &OfferedPacket<'_>) {
        let counts = &mut self.0[offered.link][usize::from(!offered.forward)];
        counts.0 += 1;
        counts.1 += u64::from(matches!(offered.fate, Fate::Deliver { .. }));
    }
}

#[test]
fn an_observer_sees_each_packet_that_a_link_end_sends_and_its_fate() {
    let mut told = FateCounts::default();
    let result = run(&snooped(0.01, snoop()), 1, &mut told);
    assert!(counters(&result.links[SATELLITE]).retransmitted > 10, "{result:?}");
    let counted = |link: &LinkResult| [link.forward, link.reverse].map(|way| (way.offered, way.delivered));
    assert_eq!(told.0[..3].to_vec(), result.links.iter().map(counted).collect::<Vec<_>>());
}

/// The bytes that link ends hold, at each sample.
#[derive(Default)]
struct Held(Vec<(usize, usize, u64)>);

impl Observer for Held {
    fn wants_samples(&self) -> bool {
        true
    }

    fn held(&mut self, _: Time, link: usize, end: usize, bytes: u64) {
        self.0.push((link, end, bytes));
    }
}

#[test]
fn the_bytes_that_a_link_end_holds_are_measured_at_all_times_and_sampled() {
    let mut held = Held::default();
    let result = run(&snooped(0.01, snoop()), 1, &mut held);
    let [end] = &result.links[SATELLITE].ends[..] else { panic!("{result:?}") };
    assert_eq!(end.node, "node1");
    assert_eq!(end.most_held_bytes, counters(&result.links[SATELLITE]).most_held_bytes);
    assert!(held.0.iter().all(|&(link, end, _)| (link, end) == (SATELLITE, GATEWAY)));
    let most = held.0.iter().map(|sample| sample.2).max().unwrap();
    let mean = held.0.iter().map(|sample| sample.2 as f64).sum::<f64>() / held.0.len() as f64;
    assert!(most > 20_000 && most <= end.most_held_bytes, "{most}, {end:?}");
    assert!((0.9..1.1).contains(&(mean / end.mean_held_bytes)), "{mean}, {end:?}");
}

#[test]
fn the_results_name_link_ends_with_agents_and_no_others() {
    let result = serde_json::to_value(go(&snooped(0.01, snoop()), 1)).unwrap();
    assert!(result["links"][0].get("stations").is_none(), "{result}");
    let ends = result["links"][SATELLITE]["stations"].as_array().unwrap();
    assert_eq!(ends.len(), 1);
    assert_eq!(ends[0]["node"], "node1");
    assert_eq!(ends[0]["report"]["agents"][0]["agent"], "snoop");
    assert!(ends[0]["most_held_bytes"].is_u64() && ends[0]["mean_held_bytes"].is_f64(), "{result}");
}

#[test]
fn a_trace_has_the_bytes_held_at_link_ends_and_retransmissions_are_in_the_capture() {
    let folder = tempfile::tempdir().unwrap();
    let traced = |name: &str, scenario: &Scenario| {
        let path = folder.path().join(name);
        let mut trace =
            Trace::create(&path, scenario, TraceContent { packets: true, ..TraceContent::default() })
                .unwrap();
        let result = run(scenario, 1, &mut trace);
        trace.finish().unwrap();
        let capture = std::fs::read(path.join("packets.pcapng")).unwrap();
        (result, std::fs::read_to_string(path.join("stations.csv")), capture)
    };
    let (_, ends, _) = traced("without", &{
        let mut scenario = three_links(0.01);
        scenario.flows.push(flow(&scenario, Some(MB), reno()));
        scenario
    });
    assert!(ends.is_err(), "{ends:?}");
    let (result, ends, capture) = traced("with", &snooped(0.01, snoop()));
    let ends = ends.unwrap();
    let mut lines = ends.lines();
    assert_eq!(lines.next(), Some("time_s,link,node,held_bytes"));
    assert_eq!(lines.next(), Some("0,link1,node1,0"));
    assert!(lines.all(|line| line.contains(",link1,node1,")) && ends.lines().count() > 50);
    let packets = capture::packets(&capture);
    let count = |interface: u32, inbound: bool| {
        let at = |packet: &&capture::Packet| packet.interface == interface && packet.is_inbound == inbound;
        packets.iter().filter(at).count() as u64
    };
    // The interfaces of the satellite's ends; the gateway's is its first.
    let (gateway, terminal) = (2 * SATELLITE as u32, 2 * SATELLITE as u32 + 1);
    let LinkResult { forward, reverse, .. } = &result.links[SATELLITE];
    assert_eq!([count(gateway, false), count(terminal, false)], [forward.offered, reverse.offered]);
    // What ends a connection may still be on its way.
    for (received, delivered) in
        [(count(terminal, true), forward.delivered), (count(gateway, true), reverse.delivered)]
    {
        assert!((delivered - 3..=delivered).contains(&received), "{received} of {delivered}");
    }
}

/// Each agent alone, and all of them.
const AGENTS: [&str; 6] = [
    "snoop = { at = 'gateway' }",
    "delayed_dup_acks = { at = 'terminal', delay = '700ms' }",
    "arq = {}",
    "ack_filter = { at = 'terminal', rate = '50kbit/s' }",
    "delayed_dup_acks = { at = 'terminal', delay = '700ms' }\narq = { delivery = 'immediate' }",
    "snoop = { at = 'gateway' }\ndelayed_dup_acks = { at = 'terminal', delay = '700ms' }\narq = {}",
];

/// Twelve flows, some of which the link has for themselves for a while, with losses in bursts both ways.
fn many_flows(agents: &str) -> Source {
    let text = format!(
        "duration = '2000s'
        [[link]]
        name = 'ground'
        between = ['server', 'gateway']
        rate = '100M'
        delay = '5ms'
        [[link]]
        name = 'satellite'
        between = ['gateway', 'terminal']
        rate = '10M'
        delay = '300ms'
        per = '1%'
        gilbert_elliott = {{ good_to_bad = '0.1%', bad_to_good = '20%' }}
        {agents}
        [tcp.sack]
        congestion = 'cubic'
        [[flow]]
        name = 'download'
        from = 'server'
        to = 'terminal'
        bytes = '500kB'
        start_within = '5s'
        count = 6
        [[flow]]
        name = 'upload'
        from = 'terminal'
        to = 'server'
        bytes = '300kB'
        start_within = '5s'
        tcp = 'sack'
        count = 6"
    );
    Source::parse("many.toml", &text).unwrap()
}

#[test]
fn with_each_agent_everything_arrives_and_results_are_the_same_on_any_number_of_threads() {
    for agents in AGENTS {
        let source = many_flows(agents);
        let plan = Plan::new(&source, &[], &[], &[1, 2, 3]).unwrap();
        let results = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let job = |job: &Job<'_>| run(&job.scenario, job.seed, &mut Unobserved);
            pool.install(|| plan.run(job, |_| {})).unwrap()
        };
        let alone = results(1);
        assert!(alone.iter().flat_map(|run| &run.result.flows).all(|flow| flow.finished), "{agents}");
        assert!(alone == results(7), "{agents}");
    }
}

#[test]
fn between_two_arqs_all_packets_get_through_and_only_frames_with_a_packet_are_told_of() {
    let mut scenario = three_links(0.01);
    let arq = Some(ArqConfig::for_link(&scenario.links[SATELLITE].config));
    scenario.links[SATELLITE].ends.iter_mut().for_each(|end| end.arq = arq);
    scenario.flows.push(flow(&scenario, Some(2 * MB), reno()));
    outlast(&mut scenario);
    let mut told = FateCounts::default();
    let result = run(&scenario, 1, &mut told);
    let [before, satellite, behind, _] = &result.links[..] else { panic!() };
    assert!(result.flows[0].finished && satellite.forward.dropped.packet_error > 10, "{result:?}");
    assert_eq!(behind.forward.offered, before.forward.delivered);
    assert_eq!(before.reverse.offered, behind.reverse.delivered);
    for (index, way) in [satellite.forward, satellite.reverse].iter().enumerate() {
        let arq = satellite.ends[index].report.arq.unwrap();
        let with_packet = arq.packets + arq.retransmitted;
        assert_eq!(told.0[SATELLITE][index].0, with_packet);
        assert_eq!(way.offered, with_packet + arq.reports_sent + arq.floors_sent, "{arq:?}");
        assert!(satellite.ends[index].most_held_bytes > 0, "{arq:?}");
    }
}
