//! Keepalives: an end that has vanished is noticed, and an outage that the legs survive is not taken for
//! that.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::common::{Net, SERVER, configuration, error_of_reading, network, wait_until};

/// Both legs with these lines.
fn legs(lines: &str) -> String {
    format!("{}{lines}\n[terrestrial]\n{lines}\n", configuration(""))
}

/// The timers of idle connections on the gateway, as `ss -o` shows them.
fn keepalive_timers(net: &Net) -> Vec<String> {
    let sockets = net.gateway.output("ss -Htno state established");
    let timer = |line: &str| Some(line.split_once("timer:(keepalive,")?.1.split(',').next()?.to_owned());
    sockets.lines().filter_map(timer).collect()
}

fn exchange(one: &mut TcpStream, other: &mut TcpStream) {
    one.write_all(b"x").unwrap();
    other.read_exact(&mut [0]).unwrap();
    other.write_all(b"y").unwrap();
    one.read_exact(&mut [0]).unwrap();
}

#[test]
fn both_ends_of_an_idle_connection_have_the_timer_of_their_leg() {
    let Some(net) = network() else { return };
    let daemon = net.daemon("");
    let (mut client, mut server) = net.connection(&net.listen(SERVER[0]));
    exchange(&mut client, &mut server);
    wait_until("both timers of five minutes", || {
        let timers = keepalive_timers(&net);
        timers.len() == 2 && timers.iter().all(|left| left.starts_with("4min5"))
    });
    drop((client, server));
    daemon.settle();
    // One of their own for each leg, or none.
    let text = format!("{}keepalive = \"off\"\n[terrestrial]\nkeepalive = \"90s\"\n", configuration(""));
    let daemon = net.try_daemon(&text).unwrap();
    for address in SERVER {
        let (mut client, mut server) = net.connection(&net.listen(address));
        exchange(&mut client, &mut server);
        wait_until("the timer of the terrestrial leg", || {
            let timers = keepalive_timers(&net);
            timers.len() == 1 && timers[0].starts_with("1min2")
        });
        drop((client, server));
        wait_until("they have ended", || keepalive_timers(&net).is_empty());
    }
    daemon.settle();
}

#[test]
fn a_client_that_has_vanished_ends_after_its_time_and_its_server_is_told() {
    let Some(net) = network() else { return };
    let mut daemon = net
        .try_daemon(&legs("restart_within = \"1s\"\nsurvive_outage = \"3s\"\nkeepalive = \"2s\""))
        .unwrap();
    let (mut client, mut server) = net.connection(&net.listen(SERVER[0]));
    exchange(&mut client, &mut server);
    let start = Instant::now();
    // Neither host nor process says anything any more.
    net.client.rules(
        "table inet gone { chain in { type filter hook prerouting priority raw; drop; }; \
         chain out { type filter hook output priority raw; drop; }; }",
    );
    drop(client);
    assert_eq!(error_of_reading(&mut server).kind(), ErrorKind::ConnectionReset);
    let took = start.elapsed();
    println!("ended after {took:?}");
    // Two seconds of idle time, and the outage that it is to survive; 7 s by the timers of the kernel.
    assert!(took > Duration::from_secs(5) && took < Duration::from_secs(20), "{took:?}");
    daemon.wait_for("flows_reset", 1);
    daemon.wait_for("flows_open", 0);
    net.client.run("nft delete table inet gone");
    daemon.settle();
}

#[test]
fn an_outage_that_the_legs_survive_does_not_end_an_idle_connection() {
    let Some(net) = network() else { return };
    let mut daemon = net
        .try_daemon(&legs("restart_within = \"1s\"\nsurvive_outage = \"4s\"\nkeepalive = \"2s\""))
        .unwrap();
    let (mut client, mut server) = net.connection(&net.listen(SERVER[0]));
    exchange(&mut client, &mut server);
    // It begins at the worst moment: just before the first probe.
    std::thread::sleep(Duration::from_millis(1800));
    net.gateway.rules(
        "table inet outage { chain in { type filter hook prerouting priority raw; \
         iifname { \"ground0\", \"sat0\" } drop; }; }",
    );
    std::thread::sleep(Duration::from_secs(4));
    net.gateway.run("nft delete table inet outage");
    // Time for a probe, and for an end that should not come.
    std::thread::sleep(Duration::from_secs(4));
    exchange(&mut client, &mut server);
    exchange(&mut server, &mut client);
    assert_eq!((daemon.counter("flows_open"), daemon.counter("flows_reset")), (1, 0));
    drop((client, server));
    daemon.settle();
}
