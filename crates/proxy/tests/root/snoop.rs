//! Flows that a rule snoops: end to end, looked after, and never worse off for what happens to the daemon.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::common::company::alone;
use crate::common::exchange::Exchange;
use crate::common::{CLIENT, Host, Net, PATIENCE, Running, SERVER, network, network_over, socket_address};
use bentpipe_link::{DirectionConfig, LinkConfig};
use bentpipe_units::{ByteCount, Probability, Rate};
use rustix::process::Signal;

const LEG: &str = "[legs.satellite]\ninterface = \"sat0\"\ncongestion = \"reno\"\n";
const CACHE: &str = "[snoop]\ncache = \"2MB\"\n";
const RULE: &str = "[[rules]]\naction = \"snoop\"\n";

fn snooping(net: &Net) -> Running {
    started(net, &format!("{LEG}{CACHE}{RULE}"))
}

/// The round trip grows with the load of the machine that runs the test, too: no loss is to be taken for
/// congestion.
fn repairing(net: &Net) -> Running {
    started(net, &format!("{LEG}{CACHE}hide_congestion = true\n{RULE}"))
}

fn started(net: &Net, text: &str) -> Running {
    net.try_daemon(text).unwrap_or_else(|error| panic!("daemon: {error}"))
}

/// 20 ms one way, 50 Mbit/s; one packet in fifty towards the terminal is lost.
fn lossy() -> LinkConfig {
    let reverse = DirectionConfig {
        rate: Some(Rate::mbps(50)),
        delay: Duration::from_millis(20),
        ..Default::default()
    };
    LinkConfig {
        forward: DirectionConfig { per: Probability::new(0.02).unwrap(), ..reverse.clone() },
        reverse,
    }
}

/// The snooper counts a batch of packets when it is done with it.
fn wait_until(daemon: &mut Running, holds: impl Fn(&mut Running) -> bool) {
    let start = Instant::now();
    while !holds(daemon) {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_snooped_flow_is_end_to_end() {
    let Some(net) = network() else { return };
    // What only the client's own SYN and packets have. The gateway is one hop.
    net.client.run("ip route change default via 10.77.1.1 advmss 1111");
    net.client.run("ip -6 route change default via fd77:1::1 advmss 1111");
    let mut daemon = snooping(&net);
    count_own_syns_and_wrong_hops(&net.server);
    for (client, server) in CLIENT.iter().zip(SERVER) {
        let listener = net.listen(server);
        let (ours, theirs) = net.connection(&listener);
        let source = ours.local_addr().unwrap();
        assert_eq!((source.ip(), theirs.peer_addr().unwrap()), (client.parse().unwrap(), source));
        Exchange::start((ours, theirs), 1_000_000).expect_identical();
    }
    let counted = net.server.output("nft list table inet seen");
    assert_eq!(counted.matches("maxseg size 1111 counter packets 1 ").count(), 2, "{counted}");
    assert_eq!(counted.matches("!= 63 counter packets 0 ").count(), 2, "{counted}");
    wait_until(&mut daemon, |daemon| daemon.counter("cached") >= 2 * 1_000_000 / 1460);
    assert_eq!((daemon.counter("flows_total"), net.snooped_flows()), (0, 2));
    daemon.settle();
}

/// SYNs by their family and MSS; packets from the client that have not made exactly one hop.
fn count_own_syns_and_wrong_hops(host: &Host) {
    let syn = "tcp flags & (syn | ack) == syn tcp option maxseg size 1111 counter";
    host.rules(&format!(
        "table inet seen {{ chain in {{ type filter hook prerouting priority 0;\n\
         meta nfproto ipv4 {syn}\nmeta nfproto ipv6 {syn}\n\
         ip saddr 10.77.1.2 ip ttl != 63 counter\nip6 saddr fd77:1::2 ip6 hoplimit != 63 counter\n}}; }}\n"
    ));
}

#[test]
fn a_connection_from_the_satellite_is_looked_after_as_well() {
    let Some(net) = network() else { return };
    let mut daemon = snooping(&net);
    for address in CLIENT {
        let listener = net.client.enter(|| TcpListener::bind(socket_address(address, 0)).unwrap());
        let ours = net.server.enter(|| TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let (theirs, seen) = listener.accept().unwrap();
        assert_eq!(seen, ours.local_addr().unwrap());
        let before = daemon.counter("cached");
        Exchange::start((ours, theirs), 1_000_000).expect_identical();
        // Only what goes to the satellite is kept, which here is what the server sends.
        wait_until(&mut daemon, |daemon| daemon.counter("cached") - before >= 1_000_000 / 1460);
    }
    daemon.settle();
}

#[test]
fn satellite_losses_are_retransmitted_by_the_gateway() {
    let Some(net) = network_over(&lossy()) else { return };
    for address in SERVER {
        let mut daemon = repairing(&net);
        Exchange::start(net.connection(&net.listen(address)), 3_000_000).expect_identical();
        assert!(daemon.counter("retransmitted") >= 10, "{}", daemon.counter("retransmitted"));
        assert_eq!(daemon.counter("dropped"), 0);
        // Until the last acknowledgement has come over the link.
        daemon.wait_for("held_bytes", 0);
        daemon.settle();
    }
}

#[test]
fn a_transfer_goes_on_when_the_daemon_is_killed_in_the_middle() {
    let Some(net) = network_over(&lossy()) else { return };
    for address in SERVER {
        let mut daemon = snooping(&net);
        let exchange = Exchange::start_and_hold(net.connection(&net.listen(address)), 3_000_000);
        exchange.wait_for(1_000_000);
        assert!(daemon.counter("packets") > 0);
        daemon.kill();
        exchange.let_go();
        exchange.expect_identical();
    }
    // The next run finds what the dead one left.
    snooping(&net).settle();
}

#[test]
fn a_transfer_goes_on_when_the_daemon_is_stopped_and_is_looked_after_again_when_it_goes_on() {
    let Some(net) = network_over(&lossy()) else { return };
    for address in SERVER {
        let mut daemon = snooping(&net);
        let exchange = Exchange::start_and_hold(net.connection(&net.listen(address)), 4_000_000);
        exchange.wait_for(500_000);
        let before = daemon.counter("packets");
        daemon.signal(Signal::STOP);
        let start = Instant::now();
        exchange.wait_for(2_000_000);
        println!("stopped: 1.5 MB have come to {address} after {:?}", start.elapsed());
        daemon.signal(Signal::CONT);
        let start = Instant::now();
        exchange.let_go();
        // What waited in the devices comes first; what the rules take again comes after it.
        while daemon.counter("packets") < before + 1000 && !exchange.is_complete() {
            assert!(start.elapsed() < PATIENCE);
        }
        exchange.expect_identical();
        assert!(daemon.counter("restarts") >= 1 && daemon.counter("packets") > before);
        daemon.settle();
    }
}

#[test]
fn a_reload_harms_no_flow_whatever_it_changes() {
    let Some(net) = network_over(&lossy()) else { return };
    let mut daemon = snooping(&net);
    let other = "[snoop]\ncache = \"1MB\"\nflows = 7\nhide_sack = false\n";
    let pass = "[[rules]]\naction = \"pass\"\n";
    for text in [format!("{LEG}{other}{RULE}"), format!("{LEG}{CACHE}{pass}"), format!("{LEG}{CACHE}{RULE}")]
    {
        let exchange = Exchange::start_and_hold(net.connection(&net.listen(SERVER[0])), 2_000_000);
        exchange.wait_for(500_000);
        daemon.reload(&text).unwrap();
        exchange.let_go();
        exchange.expect_identical();
        let pair = net.connection(&net.listen(SERVER[1]));
        assert_eq!(net.is_snooped(&pair.0), text.contains("snoop\""), "{text}");
        Exchange::start(pair, 100_000).expect_identical();
    }
    daemon.settle();
}

#[test]
fn flows_are_looked_after_across_a_reload_if_there_is_still_a_rule_that_snoops() {
    let _alone = alone();
    let Some(net) = network_over(&lossy()) else { return };
    let cache = format!("{CACHE}hide_congestion = true\n");
    let first = format!("{LEG}{cache}{RULE}");
    let mut daemon = repairing(&net);
    let no_more = "[[rules]]\naction = \"snoop\"\nport = 9\n[[rules]]\naction = \"pass\"\n";
    for (address, text) in SERVER.into_iter().cycle().zip([
        first.clone(),
        format!("{LEG}{cache}flows = 5\nretransmissions = 7\n{RULE}"),
        format!("{LEG}{cache}{no_more}"),
        // With other listeners, and so other chains.
        format!("{LEG}send_buffer = \"1MiB\"\n{cache}{RULE}"),
    ]) {
        daemon.reload(&first).unwrap();
        let pair = net.connection(&net.listen(address));
        let client = pair.0.try_clone().unwrap();
        let exchange = Exchange::start_and_hold(pair, 4_000_000);
        exchange.wait_for(500_000);
        daemon.reload(&text).unwrap();
        assert!(net.is_snooped(&client), "{text}");
        let before = daemon.counter("retransmitted");
        exchange.let_go();
        exchange.expect_identical();
        let after = daemon.counter("retransmitted");
        assert!(after >= before + 10, "{before}, {after}: {text}");
    }
    // It does not need what it was to take over.
    net.gateway.run("nft flush ruleset");
    daemon.reload(&first).unwrap();
    let chains = net.gateway.output("nft -t list table inet bentpipe");
    assert_eq!(chains.matches("chain early_").count(), 3, "{chains}");
    assert!(chains.matches("chain listener_").count() > 3, "former listeners are still there: {chains}");
    // Not to its state at the start: the former listeners live for another minute.
    daemon.stop();
    net.expect_untouched();
}

#[test]
fn flows_are_looked_after_by_the_process_that_takes_over() {
    let _alone = alone();
    let Some(net) = network_over(&lossy()) else { return };
    let cache = format!("{CACHE}hide_congestion = true\n");
    let mut daemon = repairing(&net);
    let other = format!("{LEG}send_buffer = \"1MiB\"\n{cache}flows = 5\n{RULE}");
    for (address, text) in SERVER.into_iter().zip([format!("{LEG}{cache}{RULE}"), other]) {
        let pair = net.connection(&net.listen(address));
        let client = pair.0.try_clone().unwrap();
        // More than the buffers take, so that the transfer is still under way when the next process has
        // started.
        let exchange = Exchange::start_and_hold(pair, 24_000_000);
        exchange.wait_for(500_000);
        daemon.succeed(&net, &text).unwrap();
        assert!(net.is_snooped(&client), "{text}");
        let before = daemon.counter("retransmitted");
        exchange.let_go();
        exchange.expect_identical();
        let after = daemon.counter("retransmitted");
        assert!(after >= before + 10, "{before}, {after}: {text}");
        assert_eq!(daemon.counter("dropped"), 0);
        daemon.wait_for("held_bytes", 0);
    }
    // The former listeners live for another minute.
    daemon.stop();
    net.expect_untouched();
}

#[test]
fn the_next_process_may_begin_and_end_to_snoop() {
    let Some(net) = network() else { return };
    let mut daemon = started(&net, LEG);
    let (split, snooped) = (LEG.to_owned(), format!("{LEG}{CACHE}{RULE}"));
    for text in [&snooped, &split, &snooped, &split] {
        let exchange = Exchange::start_and_hold(net.connection(&net.listen(SERVER[0])), 2_000_000);
        exchange.wait_for(500_000);
        daemon.succeed(&net, text).unwrap();
        daemon.wait_to_see("readiness", |seen| seen.ready);
        let devices = net.gateway.output("ip -br link").matches("bentpipe").count();
        assert_eq!(devices, if text == &snooped { 2 } else { 0 });
        exchange.let_go();
        exchange.expect_identical();
        let (before, pair) = (daemon.counter("flows_total"), net.connection(&net.listen(SERVER[1])));
        assert_eq!(net.is_snooped(&pair.0), text == &snooped);
        assert_eq!(daemon.counter("flows_total") > before, text == &split);
        Exchange::start(pair, 100_000).expect_identical();
    }
    daemon.settle();
}

#[test]
fn flows_pass_from_a_reload_on_that_names_other_satellites() {
    let Some(net) = network_over(&lossy()) else { return };
    let mut daemon = snooping(&net);
    let pair = net.connection(&net.listen(SERVER[0]));
    let client = pair.0.try_clone().unwrap();
    let exchange = Exchange::start_and_hold(pair, 2_000_000);
    exchange.wait_for(500_000);
    let other = "[legs.other]\ninterface = \"ground0\"\ncongestion = \"reno\"\n";
    daemon.reload(&format!("{LEG}{other}{CACHE}{RULE}")).unwrap();
    assert!(!net.is_snooped(&client));
    exchange.let_go();
    exchange.expect_identical();
    daemon.stop();
    net.expect_untouched();
}

#[test]
fn a_loss_in_a_standing_queue_is_left_to_the_sender_unless_the_configuration_says_otherwise() {
    // A window that fills a queue of 160 ms behind a round trip of 40 ms, and losses all the while.
    let slow = |direction| DirectionConfig {
        rate: Some(Rate::mbps(10)),
        queue: Some(ByteCount::new(200_000)),
        ..direction
    };
    let link = LinkConfig { forward: slow(lossy().forward), reverse: slow(lossy().reverse) };
    let Some(net) = network_over(&link) else { return };
    for (line, yields) in [("", true), ("hide_congestion = true\n", false)] {
        let mut daemon = started(&net, &format!("{LEG}{CACHE}{line}{RULE}"));
        // On a busy machine a sender may be too late to fill the queue, and the losses miss the moments when it is
        // full.
        let mut yielded = 0;
        for _ in 0..5 {
            Exchange::start(net.connection(&net.listen(SERVER[0])), 3_000_000).expect_identical();
            yielded = daemon.counter("yielded");
            if !yields || yielded > 0 {
                break;
            }
        }
        assert_eq!(yielded > 0, yields, "{yielded}");
        daemon.settle();
    }
}

#[test]
fn the_ways_into_the_daemon_are_mended() {
    let Some(net) = network() else { return };
    let mut daemon = snooping(&net);
    for (address, family) in SERVER.into_iter().zip(["-4", "-6"]) {
        let listener = net.listen(address);
        for harm in [
            "ip link set bentpipe2 down".to_owned(),
            "ip link set bentpipe3 down".to_owned(),
            format!("ip {family} route flush table 25202"),
            format!("ip {family} rule del pref 63"),
        ] {
            let exchange = Exchange::start_and_hold(net.connection(&listener), 1_000_000);
            exchange.wait_for(200_000);
            net.gateway.run(&harm);
            exchange.let_go();
            exchange.expect_identical();
            let start = Instant::now();
            while !passes_through_both_ways(&mut daemon, net.connection(&listener)) {
                assert!(start.elapsed() < PATIENCE, "{harm}: it is not mended");
            }
        }
    }
    daemon.settle();
}

/// Whether the snooper sees a flow's data and their acknowledgements, too.
fn passes_through_both_ways(daemon: &mut Running, pair: (TcpStream, TcpStream)) -> bool {
    let [before, packets, held] = ["cached", "packets", "held_bytes"].map(|name| daemon.counter(name));
    Exchange::start(pair, 100_000).expect_identical();
    std::thread::sleep(Duration::from_millis(20));
    let kept = daemon.counter("cached") - before;
    // What comes back is as much.
    kept >= 100_000 / 1460
        && daemon.counter("packets") - packets >= 2 * kept
        // A flow that ended while its way was missing stays in the cache until it is idle for long enough.
        && daemon.counter("held_bytes") <= held
}

#[test]
fn the_first_rule_that_snoops_takes_a_restart_and_says_so() {
    let Some(net) = network() else { return };
    let mut daemon = started(&net, LEG);
    let error = daemon.reload(&format!("{LEG}{CACHE}{RULE}")).unwrap_err();
    assert!(error.contains("snoop") && error.contains("a restart of the daemon"), "{error}");
    daemon.settle();
}

#[test]
fn flows_pass_when_the_set_is_full() {
    let Some(net) = network() else { return };
    let mut daemon = started(&net, &format!("{LEG}{CACHE}flows = 2\n{RULE}"));
    let listener = net.listen(SERVER[0]);
    let mut pairs: Vec<_> = (0..5).map(|_| net.connection(&listener)).collect();
    assert_eq!(net.snooped_flows(), 2);
    for (client, server) in &mut pairs {
        client.write_all(b"through").unwrap();
        server.read_exact(&mut [0; 7]).unwrap();
    }
    assert_eq!(daemon.counter("flows_total"), 0);
    drop(pairs);
    daemon.settle();
}

#[test]
fn translated_connections_are_left_alone() {
    let Some(net) = network() else { return };
    let mut daemon = snooping(&net);
    net.gateway.rules(
        "table ip translation { chain out { type nat hook postrouting priority srcnat;\n\
         oifname \"sat0\" masquerade\n}; }\n",
    );
    let (mut ours, mut theirs) = net.connection(&net.listen(SERVER[0]));
    assert_eq!(theirs.peer_addr().unwrap().ip(), "10.77.2.1".parse::<std::net::IpAddr>().unwrap());
    ours.write_all(b"through").unwrap();
    theirs.read_exact(&mut [0; 7]).unwrap();
    assert_eq!((daemon.counter("packets"), net.snooped_flows()), (0, 0));
    net.gateway.rules("delete table ip translation\n");
}

#[test]
fn a_firewall_with_a_memory_for_connections_lets_snooped_flows_through() {
    let Some(net) = network_over(&lossy()) else { return };
    net.gateway.rules(
        "table inet firewall { chain forward { type filter hook forward priority 0; policy drop;\n\
         ct state established,related accept\niifname \"ground0\" oifname \"sat0\" ct state new accept\n}; }\n",
    );
    let mut daemon = snooping(&net);
    Exchange::start(net.connection(&net.listen(SERVER[0])), 1_000_000).expect_identical();
    assert!(daemon.counter("packets") > 0);
    net.gateway.rules("delete table inet firewall\n");
    daemon.settle();
}

#[test]
fn without_the_way_into_the_daemon_packets_take_their_own() {
    let Some(net) = network() else { return };
    for (command, fails) in [("ip link set bentpipe2 down", false), ("ip link del bentpipe2", true)] {
        let mut daemon = snooping(&net);
        let exchange = Exchange::start_and_hold(net.connection(&net.listen(SERVER[0])), 2_000_000);
        exchange.wait_for(500_000);
        net.gateway.run(command);
        exchange.let_go();
        exchange.expect_identical();
        let start = Instant::now();
        while fails && net.gateway.output("ip -br link").contains("bentpipe3") {
            assert!(start.elapsed() < PATIENCE, "the other direction still passes through the daemon");
        }
        // Others are split all the same: what has failed is the snooper.
        daemon.reload(LEG).unwrap();
        while daemon.counter("flows_total") == 0 {
            assert!(start.elapsed() < PATIENCE, "nothing is split");
            net.connection(&net.listen(SERVER[0]));
        }
    }
}

#[test]
fn a_reset_is_the_clients_own() {
    let Some(net) = network() else { return };
    let daemon = snooping(&net);
    let gone: SocketAddr = net.listen(SERVER[0]).local_addr().unwrap();
    let error = net.client.enter(|| TcpStream::connect(gone)).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    let (ours, mut theirs) = net.connection(&net.listen(SERVER[0]));
    crate::common::abort(ours);
    assert_eq!(crate::common::error_of_reading(&mut theirs).kind(), std::io::ErrorKind::ConnectionReset);
    daemon.settle();
}
