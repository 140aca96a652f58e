//! Transfers that are interrupted: the daemon stopped, the link cut, its packets reordered, duplicated and
//! corrupted.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use crate::common::exchange::Exchange;
use crate::common::{CLIENT, Host, PATIENCE, RELAYS, SERVER, network, network_over, socket_address};
use bentpipe_link::{DirectionConfig, Impairments, LinkConfig};
use bentpipe_units::Rate;
use rustix::process::Signal;
use socket2::SockRef;

/// A satellite link that is short enough for a test to take seconds.
fn link(rate: u64, one_way: u64) -> LinkConfig {
    let direction = DirectionConfig {
        rate: Some(Rate::mbps(rate)),
        delay: Duration::from_millis(one_way),
        ..Default::default()
    };
    LinkConfig { forward: direction.clone(), reverse: direction }
}

/// A leg with this link, with these lines as well.
fn configuration(timers: &str) -> String {
    format!(
        "[legs.satellite]\ninterface = \"sat0\"\ncongestion = \"reno\"\nrate = \"50M\"\nrtt = \"40ms\"\n{timers}"
    )
}

#[test]
fn a_daemon_stopped_for_ten_seconds_loses_nothing() {
    thread::scope(|scope| {
        for relay in RELAYS {
            scope.spawn(move || {
                let Some(net) = network() else { return };
                let daemon = net.daemon(&format!("relay = \"{relay}\""));
                let exchange = Exchange::start_and_hold(net.connection(&net.listen(SERVER[0])), 60_000_000);
                exchange.wait_for(30_000_000);
                daemon.signal(Signal::STOP);
                exchange.let_go();
                thread::sleep(Duration::from_secs(10));
                assert!(!exchange.is_complete(), "{relay}: nothing was left for the daemon to do");
                daemon.signal(Signal::CONT);
                exchange.expect_identical();
                daemon.settle();
            });
        }
    });
}

/// The time after which a host whose `tcp_retries2` is 3 gives a connection up: 0.2 + 0.4 + 0.8 + 1.6 s
/// (tcp(7)). The usual 15 last fifteen minutes, so that four times as long stands for an hour.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(3);

/// What a cut of the link comes to.
#[derive(Clone, Copy)]
enum Outcome {
    Identical,
    Resets,
}

#[test]
fn outages_of_one_to_ten_seconds_and_a_scaled_hour_are_survived_if_asked_for() {
    const PREPARED: &str = "restart_within = \"1s\"\nsurvive_outage = \"25m\"\n";
    let seconds = Duration::from_secs;
    thread::scope(|scope| {
        for (length, retries, timers, outcome) in [
            (seconds(1), "15", "", Outcome::Identical),
            (seconds(3), "15", "", Outcome::Identical),
            (seconds(10), "15", PREPARED, Outcome::Identical),
            (4 * GIVEN_UP_AFTER, "3", PREPARED, Outcome::Identical),
            (4 * GIVEN_UP_AFTER, "3", "", Outcome::Resets),
        ] {
            scope.spawn(move || interrupt(length, retries, timers, outcome));
        }
    });
}

/// Cuts the link during an exchange.
fn interrupt(length: Duration, retries: &str, timers: &str, outcome: Outcome) {
    let Some(net) = network_over(&link(50, 20)) else { return };
    net.gateway.sysctl("net.ipv4.tcp_retries2", retries);
    be_prompt(&net.server);
    let mut daemon = net.try_daemon(&configuration(timers)).unwrap();
    let exchange = Exchange::start(net.connection(&net.listen(SERVER[0])), 12_000_000);
    exchange.wait_for(2_000_000);
    let link = net.link.as_ref().unwrap();
    link.set_outage(true);
    thread::sleep(length);
    assert!(!exchange.is_complete(), "the transfer was over before the outage was");
    link.set_outage(false);
    match outcome {
        Outcome::Identical => exchange.expect_identical(),
        Outcome::Resets => {
            exchange.expect_resets();
            daemon.wait_for("flows_reset", 1);
        }
    }
    daemon.settle();
}

#[test]
fn a_handshake_that_an_outage_interrupts_is_no_reason_to_let_others_pass() {
    thread::scope(|scope| {
        for handshake in ["early", "faithful"] {
            for address in CLIENT {
                scope.spawn(move || interrupt_handshake(handshake, address));
            }
        }
    });
}

/// A client behind the satellite link, whose SYN comes through, and nothing for some seconds after it.
fn interrupt_handshake(handshake: &str, address: &str) {
    let Some(net) = network_over(&link(50, 300)) else { return };
    let mut daemon = net.daemon(&format!("handshake = \"{handshake}\""));
    let listener = net.client.enter(|| TcpListener::bind(socket_address(address, 0)).unwrap());
    SockRef::from(&listener).set_read_timeout(Some(PATIENCE)).unwrap();
    let to = listener.local_addr().unwrap();
    let link = net.link.as_ref().unwrap();
    let exchange = |mut client: TcpStream| {
        client.write_all(b"there").unwrap();
        let mut server = listener.accept().unwrap().0;
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        server.read_exact(&mut [0; 5]).unwrap();
        server.write_all(b"and back").unwrap();
        client.read_exact(&mut [0; 8]).unwrap();
    };
    let connect = || net.server.enter(|| TcpStream::connect(to).unwrap());
    let client = thread::scope(|scope| {
        let client = scope.spawn(connect);
        // The SYN is on its way.
        thread::sleep(Duration::from_millis(100));
        link.set_outage(true);
        thread::sleep(Duration::from_millis(4400));
        link.set_outage(false);
        client.join().unwrap()
    });
    exchange(client);
    exchange(connect());
    daemon.wait_for("flows_finished", 2);
    daemon.settle();
}

/// A server that tries again each second and for long: what is to be seen is the gateway's patience. Its own
/// retries would be one every ten seconds by then.
fn be_prompt(server: &Host) {
    server.sysctl("net.ipv4.tcp_retries2", "100");
    // Since Linux 6.15; without it the test waits longer.
    server.output("sysctl -q -w net.ipv4.tcp_rto_max_ms=1000");
}

#[test]
fn a_link_that_reorders_duplicates_and_corrupts_delivers_identical_bytes() {
    thread::scope(|scope| {
        for relay in RELAYS {
            for address in SERVER {
                scope.spawn(move || transfer_over_impaired_link(relay, address));
            }
        }
    });
}

fn transfer_over_impaired_link(relay: &str, address: &str) {
    let Some(net) = network_over(&link(50, 2)) else { return };
    let mut daemon = net.try_daemon(&format!("[proxy]\nrelay = \"{relay}\"\n{}", configuration(""))).unwrap();
    let impairments = Impairments {
        reorder: "2%".parse().unwrap(),
        reorder_by: Duration::from_millis(5),
        duplicate: "2%".parse().unwrap(),
        corrupt: "1%".parse().unwrap(),
    };
    let link = net.link.as_ref().unwrap();
    link.impair(&impairments, 1);
    Exchange::start(net.connection(&net.listen(address)), 4_000_000).expect_identical();
    let (forward, reverse) = link.impairment_counters();
    for impaired in [forward, reverse] {
        let counts = [impaired.held_back, impaired.duplicated, impaired.corrupted];
        assert!(counts.iter().all(|&count| count > 10), "the link was too good: {impaired:?}");
    }
    for host in [&net.gateway, &net.server] {
        assert!(tcp_checksum_errors(host) > 0, "no segment was dropped for its checksum");
    }
    daemon.wait_for("flows_finished", 1);
    daemon.settle();
}

/// `InCsumErrors` of TCP: the last column of the second of its two lines (proc_pid_net(5), snmp).
fn tcp_checksum_errors(host: &Host) -> u64 {
    let table = host.enter(|| std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap());
    let lines: Vec<&str> = table.lines().filter(|line| line.starts_with("Tcp:")).collect();
    assert!(lines[0].ends_with("InCsumErrors"), "{table}");
    lines[1].rsplit(' ').next().unwrap().parse().unwrap()
}
