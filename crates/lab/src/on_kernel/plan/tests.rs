//! What scenarios become on a machine.

use bentpipe_sim::file::{Setting, Source};

use super::*;

const GEO: &str = include_str!("../../../../../scenarios/geo-download.toml");
const AGREEMENT: &str = include_str!("../../../../../scenarios/agreement.toml");
const BOXES: &str = include_str!("../../../../../scenarios/xcp-boxes.toml");
const SURREY: &str = include_str!("../../../../../scenarios/surrey.toml");
const XCP: &str = include_str!("../../../../../scenarios/xcp.toml");
const PEPSAL: &str = include_str!("../../../../../scenarios/pepsal.toml");
const PROTECTED: &str = include_str!("../../../../../scenarios/protected-leg.toml");
const DISRUPTIVE: &str = include_str!("../../../../../scenarios/disruptive.toml");

fn scenario(text: &str, settings: &[&str]) -> Scenario {
    let settings: Vec<Setting> = settings.iter().map(|setting| setting.parse().unwrap()).collect();
    Source::parse("a test's scenario", text).unwrap().with(&settings).unwrap()
}

fn node(scenario: &Scenario, name: &str) -> usize {
    scenario.nodes.iter().position(|node| node == name).unwrap()
}

fn daemon(plan: &Plan, host: usize) -> Option<String> {
    plan.daemon(host, Path::new("/key"))
}

fn refusal(text: &str, settings: &[&str]) -> String {
    Plan::of(&scenario(text, settings)).unwrap_err().to_string()
}

#[test]
fn a_flow_has_routes_along_its_path_both_ways_and_a_daemon_where_it_is_split() {
    let scenario = scenario(GEO, &[]);
    let plan = Plan::of(&scenario).unwrap();
    let [server, gateway, client] = ["server", "gateway", "client"].map(|name| node(&scenario, name));
    let flow = &plan.flows[0];
    assert_eq!((flow.ends, &flow.senders[..]), ([server, client], &[server, gateway][..]));
    let route = |node: usize, to: Ipv4Addr| plan.hosts[node].routes[&to].clone();
    assert!(route(server, flow.destination).contains("via 10.98.0.2 dev internet"));
    assert!(route(gateway, flow.destination).contains("via 10.98.1.2 dev satellite"));
    assert!(route(gateway, flow.source).contains("via 10.98.0.1 dev internet"));
    assert!(route(client, flow.source).contains("via 10.98.1.1 dev satellite"));
    assert!(plan.hosts[gateway].forwards && !plan.hosts[server].forwards && !plan.hosts[client].forwards);
    let of_gateway = daemon(&plan, gateway).unwrap();
    assert!(
        of_gateway.contains("[legs.satellite]\ninterface = \"satellite\"\ncongestion = \"hybla\""),
        "{of_gateway}"
    );
    assert_eq!((daemon(&plan, server), daemon(&plan, client)), (None, None));
}

#[test]
fn the_published_hybla_is_its_own_congestion_control() {
    let text = GEO.replace("congestion = \"hybla\"", "congestion = \"hybla\"\nhybla = \"published\"");
    let scenario = scenario(&text, &[]);
    let plan = Plan::of(&scenario).unwrap();
    let text = daemon(&plan, node(&scenario, "gateway")).unwrap();
    assert!(text.contains("congestion = \"hybla-published\""), "{text}");
    assert!(!plan.differences.iter().any(|what| what.contains("Hybla")), "{:?}", plan.differences);
}

#[test]
fn a_destination_speaks_xcp_where_its_sender_does_and_the_source_requests_its_links_rate() {
    let control = |name: &str, capacity| Some(Control { name: name.to_owned(), capacity });
    let rate = |mbps| Some(Rate::mbps(mbps));
    let of_first =
        |text, settings: &[&str]| Plan::of(&scenario(text, settings)).unwrap().flows[0].congestion.clone();
    assert_eq!(of_first(XCP, &[]), [control("reno", rate(1000)), control("xcp", None)]);
    let standard = ["flow.satellite.split=[]", "tcp.standard.congestion=p-xcp"];
    let [source, destination] = of_first(PEPSAL, &standard);
    assert_eq!(source.unwrap().name, "p-xcp");
    assert_eq!(destination, control("p-xcp", None));
    assert_eq!(of_first(GEO, &[])[1], None);
}

#[test]
fn the_daemons_configurations_are_valid() {
    for text in [GEO, BOXES, SURREY, PROTECTED] {
        let scenario = scenario(text, &[]);
        let plan = Plan::of(&scenario).unwrap();
        for text in (0..plan.hosts.len()).filter_map(|host| daemon(&plan, host)) {
            bentpipe_proxy::Config::parse("a plan", &text).unwrap();
        }
    }
}

#[test]
fn copies_of_a_flow_share_addresses_and_have_ports_of_their_own() {
    let scenario = scenario(SURREY, &["flow.file.count=3"]);
    let plan = Plan::of(&scenario).unwrap();
    let ends = |flow: &FlowPlan| (flow.source, flow.destination);
    assert!(plan.flows.iter().all(|flow| ends(flow) == ends(&plan.flows[0])));
    let ports: BTreeSet<u16> = plan.flows.iter().map(|flow| flow.port).collect();
    assert_eq!(ports.len(), 3);
}

#[test]
fn endpoints_become_settings_of_their_hosts_and_attributes_of_their_routes() {
    let scenario = scenario(SURREY, &[]);
    let plan = Plan::of(&scenario).unwrap();
    let [server, terminal] = ["server", "terminal"].map(|name| node(&scenario, name));
    let settings = |node: usize| plan.hosts[node].settings.clone();
    assert_eq!(settings(server)["net.ipv4.tcp_sack"].0, "0");
    assert_eq!(settings(terminal)["net.ipv4.tcp_rmem"].0, "4096 128000 128000");
    let flow = &plan.flows[0];
    let there = &plan.hosts[server].routes[&flow.destination];
    assert!(there.ends_with("advmss 1012 initcwnd 4 rto_min 1000ms"), "{there}");
    let back = &plan.hosts[terminal].routes[&flow.source];
    assert!(back.ends_with("advmss 1012 quickack 1"), "{back}");
    assert!(plan.differences.iter().any(|what| what.contains("RACK")), "{:?}", plan.differences);
}

#[test]
fn a_splitter_has_memory_for_its_window_of_small_segments_and_offers_little_of_it_at_first() {
    let split = r#"flow.file.split=[{ at = "gateway", tcp = "gateway-reno" }]"#;
    let of_gateway = |more: &[&str]| {
        let scenario = scenario(SURREY, &[&[split], more].concat());
        let plan = Plan::of(&scenario).unwrap();
        let gateway = &plan.hosts[node(&scenario, "gateway")];
        let back = gateway.routes[&plan.flows[0].source].clone();
        (gateway.legs[&0].text("ground"), back)
    };
    let (text, back) = of_gateway(&[]);
    // 32 segments of 1000 bytes, of which each takes 4352 of memory, twice what a buffer is told.
    assert!(text.contains("receive_buffer = \"69632B\""), "{text}");
    assert!(back.ends_with("advmss 1012 quickack 1 initrwnd 10"), "{back}");
    let (_, back) = of_gateway(&["tcp.reno.initial_window=20"]);
    assert!(back.ends_with("initrwnd 20"), "the sender's: {back}");
    let (_, back) = of_gateway(&[r#"tcp.reno.receive_buffer={ auto = ["128KiB", "32MiB"] }"#]);
    assert!(!back.contains("initrwnd"), "left to the kernel: {back}");
}

/// A broadcast from the studio to two terminals behind a hub and to the hub, and a call back.
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
between = ["west", "hub"]
delay = "10ms"
[[udp]]
name = "broadcast"
from = "studio"
to = ["east", "west", "hub"]
rate = "400kbit/s"
[[udp]]
name = "call"
from = "west"
to = "studio"
rate = "80kbit/s"
"#;

#[test]
fn a_stream_to_several_nodes_is_copied_where_paths_part_and_one_to_a_single_node_is_routed() {
    let scenario = scenario(STREAMS, &[]);
    let plan = Plan::of(&scenario).unwrap();
    let [broadcast, call] = &plan.udp[..] else { panic!("{plan:?}") };
    let [hub, west] = ["hub", "west"].map(|name| node(&scenario, name));
    let address = |link, host| Ipv4Addr::new(10, 98, link, host);
    let copies = MulticastRoute {
        source_and_group: [broadcast.source, Ipv4Addr::new(239, 192, 0, 1)],
        comes_by: address(0, 2),
        leaves_by: vec![address(1, 1), address(2, 2)],
    };
    assert_eq!(plan.hosts[hub].multicast, [copies]);
    assert_eq!(plan.hosts.iter().map(|host| host.multicast.len()).sum::<usize>(), 1);
    assert_eq!(broadcast.to.to_string(), "239.192.0.1:10000");
    assert_eq!((&broadcast.leaves_by[..], broadcast.comes_by[2]), (&[address(0, 1)][..], address(0, 2)));
    assert_eq!((call.to.port(), call.to.ip().is_multicast()), (10_001, false));
    let route = &plan.hosts[west].routes[call.to.ip()];
    assert!(route.ends_with("via 10.98.2.2 dev west"), "{route}");
    assert!(plan.hosts[hub].forwards && plan.has_multicast() && plan.differences.is_empty());
}

#[test]
fn both_ends_of_a_leg_with_xcp_speak_it() {
    let boxes = scenario(BOXES, &[]);
    let plan = Plan::of(&boxes).unwrap();
    for name in ["gateway", "terminal"] {
        let text = daemon(&plan, node(&boxes, name)).unwrap();
        assert!(text.contains("congestion = \"p-xcp\""), "{text}");
    }
}

#[test]
fn a_daemon_with_xcp_has_the_only_router_in_front_of_its_link() {
    let agents = |settings: &[&str]| {
        let scenario = scenario(BOXES, settings);
        let plan = Plan::of(&scenario).unwrap();
        let routers = scenario.links.iter().position(|link| link.name == "satellite").unwrap();
        let left = plan.ends[routers].each_ref().map(|end| end.agents.len());
        (left, plan.differences.iter().any(|what| what.contains("router of XCP")))
    };
    assert_eq!(agents(&[]), ([0, 0], false));
    // Other agents stay, and what the daemon's router does otherwise is said.
    assert_eq!(agents(&["link.satellite.ack_filter={ at = 'terminal' }"]), ([0, 1], false));
    assert_eq!(agents(&["link.satellite.xcp.spare_gain=0.2"]), ([0, 0], true));
    assert_eq!(agents(&["link.satellite.xcp.variant=xcp"]), ([0, 0], true));
    assert_eq!(agents(&["link.satellite.xcp=off"]), ([0, 0], true));
    // Without a daemon's leg of XCP the link has the scenario's router.
    assert_eq!(agents(&["tcp.satellite.congestion=hybla"]), ([1, 0], false));
    let end_to_end = ["flow.download.split=[]", "flow.download.tcp=satellite"];
    assert_eq!(agents(&end_to_end), ([1, 0], false));
}

#[test]
fn buffers_that_grow_are_left_to_the_kernel_from_their_first_to_their_largest_size() {
    let settings = [
        r#"tcp.host.receive_buffer={ auto = ["128KiB", "32MiB"] }"#,
        r#"tcp.host.send_buffer={ auto = ["16KiB", "4MiB"] }"#,
        r#"tcp.satellite.receive_buffer={ auto = ["128KiB", "6MiB"] }"#,
    ];
    let scenario = scenario(AGREEMENT, &settings);
    let plan = Plan::of(&scenario).unwrap();
    let [server, client] = ["server", "client"].map(|name| node(&scenario, name));
    assert_eq!(plan.hosts[client].settings["net.ipv4.tcp_rmem"].0, "4096 131072 33554432");
    assert_eq!(plan.hosts[server].settings["net.ipv4.tcp_wmem"].0, "4096 32768 8388608");
}

const RADIUS: &str = include_str!("../../../../../scenarios/radius07.toml");

#[test]
fn schedules_of_syns_become_settings_where_linux_can_have_them_exactly() {
    let planned = |settings: &[&str]| {
        let scenario = scenario(RADIUS, &[&["flow.file.tcp=stock"], settings].concat());
        let plan = Plan::of(&scenario).unwrap();
        let [client, server] = ["client", "server"].map(|name| node(&scenario, name));
        let value = |node: usize, key| plan.hosts[node].settings.get(key).map(|(value, _)| value.clone());
        let settings = [
            value(client, "net.ipv4.tcp_syn_retries"),
            value(client, "net.ipv4.tcp_syn_linear_timeouts"),
            value(server, "net.ipv4.tcp_synack_retries"),
        ];
        (settings.map(Option::unwrap_or_default), plan.differences.iter().any(|what| what.contains("SYN")))
    };
    let [linux, two, none] = [["6", "4", "5"], ["2", "0", "5"], ["", "", "5"]];
    let with = |settings: [&str; 3], differs| (settings.map(str::to_owned), differs);
    assert_eq!(planned(&[]), with(linux, false));
    assert_eq!(planned(&["tcp.stock.syn={linear=0,waits=3}"]), with(two, false));
    // Nothing is repeated a second time at Linux' equal distances alone, nor by a first wait of 3 s.
    assert_eq!(planned(&["tcp.stock.syn={linear=4,waits=5}"]), with(none, true));
    assert_eq!(planned(&["tcp.stock.syn=opnet"]), with(none, true));
    // The maximum RTO is that of SYNs, too.
    assert_eq!(planned(&["tcp.stock.rto.max=4s"]), with(none, true));
    assert_eq!(planned(&["tcp.stock.rto.max=4s", "tcp.stock.syn.max=4s"]), with(linux, false));
}

#[test]
fn parts_of_rack_that_linux_can_switch_off_become_settings() {
    let settings = |settings: &[&str]| {
        let scenario = scenario(RADIUS, settings);
        let plan = Plan::of(&scenario).unwrap();
        let known = &plan.hosts[node(&scenario, "client")].settings;
        ["net.ipv4.tcp_early_retrans", "net.ipv4.tcp_frto"]
            .map(|key| known.get(key).map(|(value, _)| value.clone()))
    };
    let off = ["flow.file.tcp=stock", "tcp.stock.tail_loss_probe=false", "tcp.stock.forward_rto=false"];
    assert_eq!(settings(&off), [Some("0".to_owned()), Some("0".to_owned())]);
    assert_eq!(settings(&off[..1]), [Some("3".to_owned()), Some("2".to_owned())]);
    assert_eq!(settings(&[]), [None, None]);
}

#[test]
fn what_no_kernel_can_do_is_refused_with_the_reason() {
    let error = refusal(DISRUPTIVE, &[]);
    assert!(error.contains("flow download is carried in bundles"), "{error}");
    let error = refusal(GEO, &["tcp.space.congestion=bbr3"]);
    assert!(error.contains("BBR version 3"), "{error}");
    let error = refusal(
        BOXES,
        &[
            "tcp.satellite.congestion=explicit",
            "flow.download.split=[]",
            "flow.download.tcp=satellite",
            "link.satellite.xcp=off",
            "link.internet.explicit.at=server",
        ],
    );
    assert!(error.contains("explicit rates at its source server"), "{error}");
    let two = format!(
        "{SURREY}\n[[flow]]\nname = \"other\"\nfrom = \"server\"\nto = \"terminal\"\ntcp = \"sack\"\n"
    );
    let error = refusal(&two, &[]);
    assert!(error.contains("net.ipv4.tcp_sack") && error.contains("server"), "{error}");
}

#[test]
fn a_protected_leg_has_a_box_at_each_node_that_protects_what_it_forwards() {
    let protected = scenario(PROTECTED, &["link.satellite.protect={ class = \"bulk\", queue = \"90kB\" }"]);
    let plan = Plan::of(&protected).unwrap();
    for (name, peer) in [("gateway", "10.98.1.2"), ("terminal", "10.98.1.1")] {
        let host = node(&protected, name);
        let text = daemon(&plan, host).unwrap();
        for line in [
            "[legs.satellite]",
            "congestion = \"explicit\"",
            "rate = \"10Mbit/s\"",
            "rtt = \"600ms\"",
            "[legs.satellite.protect]",
            &format!("peer = \"{peer}\""),
            "key_file = \"/key\"",
            "class = \"bulk\"",
            "queue = \"90kB\"",
            "action = \"protect\"",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
        assert!(plan.hosts[host].forwards);
    }
    assert_eq!(["server", "client"].map(|name| daemon(&plan, node(&protected, name))), [None, None]);
    assert!(!plan.differences.iter().any(|what| what.contains("protected")), "{:?}", plan.differences);
    assert_eq!(Plan::settles_in(&protected), Some(Duration::from_millis(5400)));
    assert_eq!(Plan::settles_in(&scenario(GEO, &[])), None);
}

#[test]
fn over_a_link_that_changes_the_boxes_find_each_other_late() {
    let outage = "link.satellite.outages=[{ start = \"5s\", duration = \"1s\" }]";
    for (settings, constant) in [(vec![], true), (vec![outage], false)] {
        let scenario = scenario(PROTECTED, &settings);
        let differences = Plan::of(&scenario).unwrap().differences;
        assert_eq!(!differences.iter().any(|what| what.contains("find each other")), constant);
        let before: Vec<bool> = scenario.links.iter().map(Plan::runs_before).collect();
        assert_eq!(before, [false, constant, false]);
    }
}

#[test]
fn a_box_protects_nothing_of_its_own_and_does_nothing_else() {
    let error = refusal(GEO, &["link.satellite.protect={}"]);
    assert!(error.contains("flow split begins, ends or is split at gateway or client"), "{error}");
    let split = ["flow.download.split=[{ at = \"gateway\" }]"];
    let error = refusal(PROTECTED, &split);
    assert!(error.contains("flow download begins, ends or is split at gateway or terminal"), "{error}");
    let own = PROTECTED.replace("name = \"call\"\nfrom = \"server\"", "name = \"call\"\nfrom = \"gateway\"");
    let error = refusal(&own, &[]);
    assert!(error.contains("UDP stream call begins"), "{error}");
    let error = refusal(PROTECTED, &["link.house.protect={}"]);
    assert!(error.contains("flow download begins"), "the client has no box behind it: {error}");
    let behind = "\n[[link]]\nname = \"lan\"\nbetween = [\"router\", \"client\"]\ndelay = \"1ms\"\n";
    let in_a_row = PROTECTED.replace("[\"terminal\", \"client\"]", "[\"terminal\", \"router\"]") + behind;
    Plan::of(&scenario(&in_a_row, &[])).unwrap();
    let error = refusal(&in_a_row, &["link.house.protect={}"]);
    assert!(error.contains("node terminal has a protected leg over link house"), "{error}");
    let elsewhere = "\n[[link]]\nname = \"other\"\nbetween = [\"gateway\", \"office\"]\ndelay = \"1ms\"\n\
        [[flow]]\nname = \"split\"\nfrom = \"server\"\nto = \"office\"\ntcp = \"host\"\n\
        split = [{ at = \"gateway\", tcp = \"host\" }]\n";
    let error = refusal(&(PROTECTED.to_owned() + elsewhere), &[]);
    assert!(error.contains("node gateway has a protected leg over link satellite and splits"), "{error}");
    let copies = PROTECTED.replace("to = \"client\"\nrate", "to = [\"client\", \"router\"]\nrate");
    let copies = copies + &behind.replace("\"router\", \"client\"", "\"terminal\", \"router\"");
    let error = refusal(&copies, &[]);
    assert!(error.contains("UDP stream call") && error.contains("stream of its own"), "{error}");
}
