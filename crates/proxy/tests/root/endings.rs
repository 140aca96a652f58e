//! What one end does to the connection the other end sees: half-closes, resets, refusals, crashes, outages.

use std::io::{Error, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use crate::common::{
    Net, PATIENCE, RELAYS, SERVER, abort, error_of_reading, network, pattern, read_all, socket_address,
};

#[test]
fn a_reply_after_a_half_close_arrives_whole_each_way() {
    let Some(net) = network() else { return };
    for relay in RELAYS {
        let mut daemon = net.daemon(&format!("relay = \"{relay}\""));
        for address in SERVER {
            let listener = net.listen(address);
            for client_first in [true, false] {
                let (client, server) = net.connection(&listener);
                let (mut first, mut second) = if client_first { (client, server) } else { (server, client) };
                first.write_all(b"that is all from me").unwrap();
                first.shutdown(Shutdown::Write).unwrap();
                assert_eq!(read_all(&mut second).unwrap(), b"that is all from me");
                let reply = pattern(9, 5_000_000);
                let sent = reply.clone();
                let sender = std::thread::spawn(move || second.write_all(&sent).unwrap());
                assert!(read_all(&mut first).unwrap() == reply, "{relay} {address}");
                sender.join().unwrap();
            }
        }
        daemon.wait_for("flows_finished", 4);
        assert_eq!(daemon.counter("flows_reset"), 0);
        daemon.settle();
    }
}

#[test]
fn a_reset_of_one_end_is_a_reset_at_the_other() {
    let Some(net) = network() else { return };
    for relay in RELAYS {
        let mut daemon = net.daemon(&format!("relay = \"{relay}\""));
        let listener = net.listen(SERVER[0]);
        for client_resets in [true, false] {
            let (client, server) = net.connection(&listener);
            let (culprit, mut victim) = if client_resets { (client, server) } else { (server, client) };
            abort(culprit);
            assert_eq!(error_of_reading(&mut victim).kind(), ErrorKind::ConnectionReset, "{relay}");
        }
        daemon.wait_for("flows_reset", 2);
        daemon.settle();
    }
}

#[test]
fn a_reset_in_the_middle_of_a_transfer_never_looks_complete() {
    let Some(net) = network() else { return };
    for relay in RELAYS {
        let mut daemon = net.daemon(&format!("relay = \"{relay}\""));
        let listener = net.listen(SERVER[0]);
        for client_sends in [true, false] {
            for sender_resets in [true, false] {
                let (client, server) = net.connection(&listener);
                let (sender, receiver) = if client_sends { (client, server) } else { (server, client) };
                reset_mid_transfer(sender, receiver, sender_resets);
            }
        }
        daemon.wait_for("flows_reset", 4);
        daemon.settle();
    }
}

/// Writes, however much is taken, until an error ends it.
fn write_until_it_fails(stream: &mut TcpStream) -> Error {
    let chunk = pattern(1, 1 << 20);
    loop {
        if let Err(error) = stream.write_all(&chunk) {
            return error;
        }
    }
}

/// The receiver has taken a part, and every buffer on the way is full, when one of the two resets.
fn reset_mid_transfer(mut sender: TcpStream, mut receiver: TcpStream, sender_resets: bool) {
    let sending = std::thread::spawn(move || {
        sender.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
        assert_eq!(write_until_it_fails(&mut sender).kind(), ErrorKind::WouldBlock);
        sender
    });
    receiver.read_exact(&mut [0; 1_000_000]).unwrap();
    let mut sender = sending.join().unwrap();
    if sender_resets {
        abort(sender);
        assert_eq!(error_of_reading(&mut receiver).kind(), ErrorKind::ConnectionReset);
    } else {
        abort(receiver);
        assert_eq!(error_of_reading(&mut sender).kind(), ErrorKind::ConnectionReset);
    }
}

#[test]
fn a_half_closed_flow_can_still_be_reset() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("");
    let listener = net.listen(SERVER[0]);
    let (mut client, mut server) = net.connection(&listener);
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut server).unwrap(), b"");
    abort(server);
    assert_eq!(error_of_reading(&mut client).kind(), ErrorKind::ConnectionReset);
    daemon.wait_for("flows_reset", 1);
    daemon.settle();
}

#[test]
fn a_refused_connection_is_reset_at_once() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("");
    for address in SERVER {
        let error = failure_of_connecting(&net, address, 9);
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{address}");
    }
    daemon.wait_for("connects_failed", 2);
    daemon.settle();
}

#[test]
fn a_server_that_the_gateway_finds_unreachable_is_a_reset() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("");
    // Nobody answers for these neighbours of the gateway.
    expect_reset_by(&net, ["10.77.2.99", "fd77:2::99"]);
    daemon.wait_for("connects_failed", 2);
    daemon.settle();
}

#[test]
fn a_server_that_a_router_beyond_finds_unreachable_is_a_reset() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("");
    for (network, router) in [("10.99.0.0/16", SERVER[0]), ("fd99::/16", SERVER[1])] {
        net.gateway.run(&format!("ip route add {network} via {router}"));
        net.server.run(&format!("ip route add unreachable {network}"));
    }
    for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
        net.server.sysctl(key, "1");
    }
    expect_reset_by(&net, ["10.99.0.1", "fd99::1"]);
    daemon.wait_for("connects_failed", 2);
    daemon.settle();
}

#[test]
fn a_neighbouring_client_is_told_of_a_missing_route() {
    let Some(net) = network() else { return };
    let daemon = net.daemon("");
    for address in ["203.0.113.9", "2001:db8::9"] {
        let to = socket_address(address, 80);
        let error = net.client.enter(|| TcpStream::connect_timeout(&to, PATIENCE)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NetworkUnreachable, "{address}: {error}");
    }
    daemon.settle();
}

#[test]
fn a_server_that_never_answers_is_a_reset_when_the_attempt_ends() {
    let Some(net) = network() else { return };
    // One repetition after one second, and the end a second or two later (tcp(7)).
    net.gateway.sysctl("net.ipv4.tcp_syn_retries", "1");
    let mut daemon = net.daemon("");
    net.server.rules("table inet silent { chain in { type filter hook prerouting priority raw; meta l4proto tcp drop; }; }");
    expect_reset_by(&net, SERVER);
    daemon.wait_for("connects_failed", 2);
    daemon.settle();
}

/// Connects to these addresses at the same time, since each attempt takes its time.
fn expect_reset_by(net: &Net, addresses: [&str; 2]) {
    std::thread::scope(|scope| {
        for address in addresses {
            scope.spawn(move || {
                let error = failure_of_connecting(net, address, 80);
                assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{address}");
            });
        }
    });
}

#[test]
fn a_leg_that_survives_a_second_gives_a_silent_server_up_sooner_than_the_kernel() {
    let Some(net) = network() else { return };
    let text = "[legs.satellite]\ninterface = \"sat0\"\ncongestion = \"reno\"\nrestart_within = \"1s\"\nsurvive_outage = \"1s\"\n";
    let mut daemon = net.try_daemon(text).unwrap();
    net.server.rules("table inet silent { chain in { type filter hook prerouting priority raw; meta l4proto tcp drop; }; }");
    // The kernel's own attempt lasts two minutes, longer than this test waits.
    assert_eq!(failure_of_connecting(&net, SERVER[0], 80).kind(), ErrorKind::ConnectionReset);
    daemon.wait_for("connects_failed", 1);
    daemon.settle();
}

/// Connects to where nobody is; the proxy has accepted before it knows, so the error comes with the first
/// read.
fn failure_of_connecting(net: &Net, address: &str, port: u16) -> Error {
    let to = socket_address(address, port);
    let outcome = net.client.enter(|| {
        let mut stream = TcpStream::connect(to)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.read(&mut [0])
    });
    outcome.expect_err("no server, no connection")
}

#[test]
fn a_client_that_gives_up_while_the_server_is_silent_ends_the_attempt() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("");
    net.gateway.rules(
        "table inet hold { chain in { type filter hook prerouting priority raw; iifname sat0 drop; }; }",
    );
    let to = socket_address(SERVER[0], 80);
    let client = net.client.enter(|| TcpStream::connect(to).unwrap());
    daemon.wait_for("flows_open", 1);
    abort(client);
    daemon.wait_for("flows_open", 0);
    net.gateway.run("nft delete table inet hold");
    daemon.settle();
}

#[test]
fn a_killed_daemon_resets_both_ends_and_new_connections_pass_unsplit() {
    let Some(net) = network() else { return };
    for relay in RELAYS {
        let mut daemon = net.daemon(&format!("relay = \"{relay}\""));
        let listener = net.listen(SERVER[0]);
        let (mut client, server) = net.connection(&listener);
        let (idle_client, idle_server) = net.connection(&listener);
        server.set_write_timeout(None).unwrap();
        let mut writer = server.try_clone().unwrap();
        let sender = std::thread::spawn(move || write_until_it_fails(&mut writer));
        client.read_exact(&mut [0; 1_000_000]).unwrap();
        assert_eq!(daemon.counter("flows_open"), 2);
        daemon.kill();
        assert_eq!(sender.join().unwrap().kind(), ErrorKind::ConnectionReset, "{relay}");
        assert_eq!(error_of_reading(&mut client).kind(), ErrorKind::ConnectionReset, "{relay}");
        for mut end in [idle_client, idle_server] {
            assert_eq!(error_of_reading(&mut end).kind(), ErrorKind::ConnectionReset, "{relay}");
        }
        for address in SERVER {
            let listener = net.listen(address);
            let (mut client, mut server) = net.connection(&listener);
            client.write_all(b"unsplit").unwrap();
            server.read_exact(&mut [0; 7]).unwrap();
        }
        assert!(
            net.gateway.output("nft list ruleset").contains("table inet bentpipe"),
            "nobody removed the rules"
        );
    }
}

#[test]
fn a_stopped_daemon_resets_open_connections() {
    let Some(net) = network() else { return };
    let daemon = net.daemon("");
    let listener = net.listen(SERVER[0]);
    let (mut client, mut server) = net.connection(&listener);
    client.write_all(b"x").unwrap();
    server.read_exact(&mut [0]).unwrap();
    daemon.stop();
    net.expect_untouched();
    for end in [&mut client, &mut server] {
        assert_eq!(error_of_reading(end).kind(), ErrorKind::ConnectionReset);
    }
}

#[test]
fn the_last_bytes_are_kept_through_an_outage_that_begins_after_the_end() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("");
    let listener = net.listen(SERVER[0]);
    let (mut client, mut server) = net.connection(&listener);
    client.write_all(b"get").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut server).unwrap(), b"get");
    net.client.rules(
        "table inet outage { chain in { type filter hook prerouting priority raw; iifname up0 drop; }; }",
    );
    let reply = pattern(8, 30_000);
    server.write_all(&reply).unwrap();
    drop(server);
    daemon.wait_for("bytes_down", 30_000);
    // The daemon has written everything and both ends are ended: what is left is the kernel's, and still ours
    // to keep.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!((daemon.counter("flows_open"), daemon.counter("flows_finished")), (1, 0));
    net.client.run("nft delete table inet outage");
    assert!(read_all(&mut client).unwrap() == reply);
    daemon.wait_for("flows_finished", 1);
    daemon.settle();
}
