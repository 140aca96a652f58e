//! The interface of a leg may come after the daemon, go, and come back as another.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use crate::common::company::alone;
use crate::common::{
    Host, LOG_VARIABLE, Net, Running, SERVER, configuration, network, pattern, read_all, socket_address,
    wait_until,
};
use bentpipe_kernel::router::programs_at;

/// Takes the gateway's interface to the satellite away, and with it the server's to the gateway.
fn remove(net: &Net) {
    net.gateway.run("ip link del sat0");
}

/// Puts another in its place. Returns when packets cross it.
fn insert(net: &Net) {
    net.wire(&net.server, "up0", "sat0", 2);
    net.server.wait_for_gateway(2);
}

fn index(gateway: &Host) -> String {
    let line = gateway.output("ip -o link show sat0");
    line.split(':').next().unwrap().to_owned()
}

/// Starts a daemon whose log goes to `log`.
fn started(net: &Net, text: &str, log: &std::path::Path) -> Running {
    let daemon = net.try_daemon_changed(text, |command| {
        command.env(LOG_VARIABLE, log);
    });
    daemon.unwrap_or_else(|error| panic!("daemon: {error}"))
}

fn wait_for_line(log: &std::path::Path, part: &str) {
    wait_until(part, || std::fs::read_to_string(log).unwrap().contains(part));
}

fn waiting(daemon: &mut Running, leg: &str) -> Option<String> {
    daemon.stats_handle().leg(leg).waiting.clone()
}

#[test]
fn a_daemon_starts_before_its_interface_and_splits_what_crosses_it_when_it_has_come() {
    let Some(net) = network() else { return };
    remove(&net);
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut daemon = started(&net, &configuration(""), log.path());
    let seen = daemon.wait_to_see("that it is ready", |seen| seen.ready);
    assert_eq!(seen.leg("satellite").waiting.as_deref(), Some("waiting for interface sat0"));
    assert_eq!(seen.leg("terrestrial").waiting, None);
    wait_for_line(log.path(), "leg satellite: waiting for interface sat0; this host has ");
    // The gateway says at once that there is no way.
    let to = socket_address(SERVER[0], 80);
    let outcome = net.client.enter(|| TcpStream::connect_timeout(&to, Duration::from_secs(5)));
    assert_ne!(outcome.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    assert_eq!(daemon.counter("flows_total"), 0);
    insert(&net);
    wait_for_line(log.path(), "leg satellite: interface sat0 is there");
    assert_eq!(waiting(&mut daemon, "satellite"), None);
    for address in SERVER {
        let (mut client, server) = net.connection(&net.listen(address));
        let sent = pattern(3, 300_000);
        std::thread::scope(|scope| {
            let sent = &sent;
            scope.spawn(move || client.write_all(sent).unwrap());
            let mut server = server;
            assert!(read_all(&mut server).unwrap() == *sent);
        });
    }
    daemon.wait_for("flows_open", 0);
    assert_eq!((daemon.counter("flows_total"), daemon.counter("flows_finished")), (2, 2));
    daemon.stop();
}

#[test]
fn an_interface_that_comes_back_with_another_index_is_taken_up_and_open_connections_go_on() {
    let Some(net) = network() else { return };
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut daemon = started(&net, &configuration(""), log.path());
    assert_eq!(waiting(&mut daemon, "satellite"), None);
    let (mut client, mut server) = net.connection(&net.listen(SERVER[0]));
    let before = index(&net.gateway);
    for round in 1..=2 {
        remove(&net);
        wait_for_line(log.path(), "leg satellite: waiting for interface sat0, which has gone");
        assert_eq!(waiting(&mut daemon, "satellite").as_deref(), Some("waiting for interface sat0"));
        // It waits in the daemon, or in the kernel, which tries again.
        client.write_all(&pattern(round, 20_000)).unwrap();
        insert(&net);
        assert_ne!(index(&net.gateway), before);
        daemon.wait_to_see("the interface", |seen| seen.leg("satellite").waiting.is_none());
        let _new = net.connection(&net.listen(SERVER[1]));
        assert_eq!(daemon.counter("flows_total"), 1 + round, "the new connection is split");
    }
    drop(client);
    let received = read_all(&mut server).unwrap();
    assert!(received == [pattern(1, 20_000), pattern(2, 20_000)].concat(), "{} bytes", received.len());
    assert_eq!(daemon.counter("flows_reset"), 0);
    daemon.stop();
}

#[test]
fn the_other_legs_serve_while_one_waits_which_a_reload_may_add() {
    let Some(net) = network() else { return };
    let log = tempfile::NamedTempFile::new().unwrap();
    let one = configuration("");
    let both = format!("{one}[legs.later]\ninterface = \"sat9\"\ncongestion = \"reno\"\n");
    let mut daemon = started(&net, &one, log.path());
    let listener = net.listen(SERVER[0]);
    daemon.reload(&both).unwrap();
    wait_for_line(log.path(), "leg later: waiting for interface sat9; this host has ");
    assert_eq!(waiting(&mut daemon, "later").as_deref(), Some("waiting for interface sat9"));
    assert_eq!(waiting(&mut daemon, "satellite"), None);
    let _first = net.connection(&listener);
    assert_eq!(daemon.counter("flows_total"), 1);
    // It comes, and is another leg's business.
    let other = Host::new("other");
    net.wire(&other, "up0", "sat9", 9);
    daemon.wait_to_see("sat9", |seen| seen.leg("later").waiting.is_none());
    let _second = net.connection(&listener);
    assert_eq!(daemon.counter("flows_total"), 2);
    // What nobody asks for any more is not watched.
    daemon.reload(&one).unwrap();
    net.gateway.run("ip link del sat9");
    let _third = net.connection(&listener);
    let text = std::fs::read_to_string(log.path()).unwrap();
    assert!(!text.contains("sat9, which has gone"), "{text}");
    daemon.stop();
}

#[test]
fn an_xcp_router_is_at_its_interface_when_that_has_come_and_when_it_has_come_back() {
    let _alone = alone();
    let Some(net) = network() else { return };
    remove(&net);
    let log = tempfile::NamedTempFile::new().unwrap();
    let leg = "[legs.satellite]\ninterface = \"sat0\"\ncongestion = \"xcp\"\nrate = \"10Mbit/s\"\n";
    let mut daemon = started(&net, leg, log.path());
    let programs = || net.gateway.enter(|| programs_at("sat0").unwrap());
    for _ in 0..2 {
        insert(&net);
        wait_until("the router's program", || programs() == 1);
        let _pair = net.connection(&net.listen(SERVER[0]));
        wait_until("packets through the router", || daemon.counter("xcp_packets") > 0);
        remove(&net);
    }
    assert_eq!(daemon.counter("flows_total"), 2);
    let text = std::fs::read_to_string(log.path()).unwrap();
    assert_eq!(text.matches("the XCP router is at interface sat0").count(), 2, "{text}");
    daemon.stop();
}
