//! Many new connections of one client: they pass or are refused, and the other clients' are split.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use socket2::Socket;

use crate::common::{
    LOG_VARIABLE, Net, PATIENCE, Running, SERVER, configuration, network, socket, socket_address, wait_until,
};

/// A second client in the same network, of each family; its IPv6 address is in a network of 64 bits of its
/// own.
const OTHER: [&str; 2] = ["10.77.1.3", "fd77:1:0:1::3"];

fn with_limits(limits: &str) -> String {
    format!("{}[limits]\n{limits}\n", configuration("workers = 1"))
}

fn add_another_client(net: &Net) {
    net.client.run("ip addr add 10.77.1.3/24 dev up0");
    // Not one that the kernel would choose by itself.
    net.client.run("ip addr add fd77:1:0:1::3/64 dev up0 nodad preferred_lft 0");
    net.gateway.run("ip route add fd77:1:0:1::/64 dev ground0");
}

/// Begins connections without waiting for them.
fn begin(net: &Net, listener: &TcpListener, count: usize) -> Vec<Socket> {
    let to = listener.local_addr().unwrap();
    net.client.enter(|| {
        let one = || {
            let client = socket(&to);
            client.set_nonblocking(true).unwrap();
            let _ = client.connect(&to.into());
            client
        };
        (0..count).map(|_| one()).collect()
    })
}

/// A connection of the other client's, both ends; whether it was split.
fn of_the_other(
    net: &Net,
    daemon: &mut Running,
    listener: &TcpListener,
    from: &str,
) -> (bool, (TcpStream, TcpStream)) {
    let before = daemon.counter("flows_total");
    let to = listener.local_addr().unwrap();
    let mut client: TcpStream = net
        .client
        .enter(|| {
            let client = socket(&to);
            client.bind(&socket_address(from, 0).into()).unwrap();
            client.connect(&to.into()).unwrap();
            client
        })
        .into();
    let local = client.local_addr().unwrap();
    let mut server = loop {
        let (server, peer) = listener.accept().unwrap();
        if peer == local {
            break server;
        }
    };
    client.write_all(b"?").unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    server.read_exact(&mut [0]).unwrap();
    (daemon.counter("flows_total") > before, (client, server))
}

#[test]
fn a_client_with_a_burst_of_a_thousand_does_not_keep_another_from_being_split() {
    let Some(net) = network() else { return };
    add_another_client(&net);
    let mut daemon = net.try_daemon(&with_limits("connection_rate_per_client = 20\nburst = 50")).unwrap();
    for (address, other) in SERVER.into_iter().zip(OTHER) {
        let listener = net.listen(address);
        let before = daemon.counter("flows_total");
        let burst = begin(&net, &listener, 1000);
        wait_until("some of the burst are split", || daemon.counter("flows_total") > before);
        let (is_split, ends) = of_the_other(&net, &mut daemon, &listener, other);
        assert!(is_split, "{other}");
        // The burst, and what may have come with the time that it took.
        let split = daemon.counter("flows_total") - before;
        assert!((50..300).contains(&split), "{split} of {other}'s neighbour are split");
        drop((burst, ends, listener));
        daemon.wait_for("flows_open", 0);
    }
}

#[test]
fn beyond_the_rate_of_all_connections_are_refused_where_that_is_configured_and_later_split_again() {
    let Some(net) = network() else { return };
    let limits = "connection_rate = 10\nburst = 10\nat_limit = \"refuse\"";
    let mut daemon = net.try_daemon(&with_limits(limits)).unwrap();
    let listener = net.listen(SERVER[0]);
    let burst = begin(&net, &listener, 200);
    let to = listener.local_addr().unwrap();
    let error = net.client.enter(|| TcpStream::connect(to)).map(drop).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    drop(burst);
    std::thread::sleep(Duration::from_millis(1200));
    let _ends = net.client.enter(|| TcpStream::connect(to)).unwrap();
    // A reload without the limit takes it away at once.
    daemon.reload(&with_limits("")).unwrap();
    let _burst = begin(&net, &listener, 100);
    let before = daemon.counter("flows_total");
    wait_until("all of them are split", || daemon.counter("flows_total") >= before.max(100));
}

#[test]
fn near_a_limit_the_client_with_most_connections_passes_and_another_is_still_split() {
    let Some(net) = network() else { return };
    add_another_client(&net);
    let log = tempfile::NamedTempFile::new().unwrap();
    let daemon = net.try_daemon_changed(&with_limits("connections = 100"), |command| {
        command.env(LOG_VARIABLE, log.path());
    });
    let mut daemon = daemon.unwrap();
    let listener = net.listen(SERVER[0]);
    let (is_split, other) = of_the_other(&net, &mut daemon, &listener, OTHER[0]);
    assert!(is_split);
    let mut flows = Vec::new();
    // One after the other, so that the rules can follow.
    for number in 0..95 {
        flows.push(net.connection(&listener));
        if number >= 75 {
            std::thread::sleep(Duration::from_millis(30));
        }
    }
    let open = daemon.counter("flows_open");
    assert!((80..95).contains(&open), "{open} are split of one client with 95");
    assert_eq!(daemon.counter("shed_clients"), 1);
    let (is_split, another) = of_the_other(&net, &mut daemon, &listener, OTHER[0]);
    assert!(is_split, "the client with few is split while there is room");
    flows.clear();
    wait_until("nobody is shed", || daemon.counter("shed_clients") == 0);
    drop((other, another));
    daemon.wait_for("flows_open", 0);
    let said = std::fs::read_to_string(log.path()).unwrap();
    assert_eq!(said.matches("limits.connections nearly reached").count(), 1, "{said}");
    assert_eq!(said.matches("well below the limits again").count(), 1, "{said}");
    daemon.settle();
}
