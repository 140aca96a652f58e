//! Starting and stopping: nothing is left behind, and what cannot work is refused in one line.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::company::alone;
use crate::common::{
    CLIENT, PATIENCE, Running, SERVER, abort, configuration, network, read_all, socket, socket_address,
    wait_until,
};

#[test]
fn rules_and_routes_are_gone_after_the_end() {
    let Some(net) = network() else { return };
    let before = net.traces();
    let daemon = net.daemon("");
    let during = net.traces();
    for trace in ["table inet bentpipe", "fwmark 0x10000000/0x70000000", "local default dev lo"] {
        assert!(during.contains(trace), "{during}");
    }
    daemon.stop();
    assert_eq!(net.traces(), before);
}

/// What is forwarded does not get past a socket in TIME-WAIT that has its ends.
#[test]
fn after_the_end_clients_may_use_the_ports_again_that_they_had() {
    let Some(net) = network() else { return };
    for (client, server) in CLIENT.into_iter().zip(SERVER) {
        let mut daemon = net.daemon("");
        let (source, listener) = (socket_address(client, 25_010), net.listen(server));
        let to = listener.local_addr().unwrap();
        let connect = || {
            net.client.enter(|| {
                let socket = socket(&source);
                socket.set_reuse_address(true).unwrap();
                socket.bind(&source.into()).unwrap();
                socket.connect_timeout(&to.into(), PATIENCE).map(|()| TcpStream::from(socket))
            })
        };
        let mut ours = connect().unwrap();
        // The server ends first, and so does the gateway towards the client.
        drop(listener.accept().unwrap());
        assert_eq!(read_all(&mut ours).unwrap(), b"");
        drop(ours);
        daemon.wait_for("flows_open", 0);
        wait_until("the gateway remembers it", || {
            net.gateway.output("ss -Htan state time-wait").contains(&source.port().to_string())
        });
        daemon.stop();
        assert_eq!(net.gateway.output("ss -Htan state time-wait"), "");
        // The server remembers it as well, with the gateway's timestamps, and may want to hear a second SYN.
        let start = Instant::now();
        connect().unwrap();
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    }
    net.expect_untouched();
}

#[test]
fn remains_of_a_killed_run_are_replaced_by_the_next_and_removed_with_it() {
    let Some(net) = network() else { return };
    let before = net.traces();
    net.daemon("").kill();
    let left = net.traces();
    assert_ne!(left, before);
    let mut next = net.daemon("");
    assert_eq!(net.traces().matches("fwmark").count(), left.matches("fwmark").count());
    let listener = net.listen(SERVER[0]);
    net.connection(&listener);
    assert_eq!(next.counter("flows_total"), 1);
    next.settle();
    assert_eq!(net.traces(), before);
}

#[test]
fn a_second_daemon_is_refused_and_the_first_unharmed() {
    let Some(net) = network() else { return };
    let mut first = net.daemon("");
    let during = net.traces();
    let error = net.try_daemon(&configuration("port = 7700")).err().expect("refused");
    assert!(error.contains("another bentpipe") && error.contains("stop it first"), "{error}");
    assert_eq!(net.traces(), during);
    let listener = net.listen(SERVER[1]);
    net.connection(&listener);
    assert_eq!(first.counter("flows_total"), 1);
}

#[test]
fn a_port_in_use_is_named_with_a_remedy_and_nothing_is_left() {
    let Some(net) = network() else { return };
    let before = net.traces();
    let _taken = net.gateway.enter(|| TcpListener::bind("127.0.0.1:7602").unwrap());
    let error = net.try_daemon(&configuration("")).err().expect("refused");
    assert!(error.contains("127.0.0.1:7602") && error.contains("proxy.port"), "{error}");
    assert_eq!(net.traces(), before);
    net.daemon("port = 7700");
}

#[test]
fn without_nft_the_start_fails_and_leaves_nothing() {
    let Some(net) = network() else { return };
    let before = net.traces();
    let programs = tempfile::tempdir().unwrap();
    let ip = ["/usr/sbin/ip", "/sbin/ip", "/usr/bin/ip", "/bin/ip"]
        .into_iter()
        .find(|path| Path::new(path).exists());
    std::os::unix::fs::symlink(ip.unwrap(), programs.path().join("ip")).unwrap();
    let error = net.try_daemon_with_path(&configuration(""), Some(programs.path())).err().expect("refused");
    assert!(error.contains("install the package nftables"), "{error}");
    assert_eq!(net.traces(), before);
}

#[test]
fn short_of_descriptors_the_daemon_lets_connections_wait_and_then_goes_on() {
    let _alone = alone();
    // Whether one descriptor is left, or none, when there is no room for a whole flow.
    for free in [10, 11] {
        let Some(net) = network() else { return };
        let mut daemon = net.daemon("workers = 1");
        let listener = net.listen(SERVER[0]);
        let to = listener.local_addr().unwrap();
        let limit = daemon.descriptors() + free;
        net.gateway.run(&format!("prlimit --pid {} --nofile={limit}:{limit}", daemon.pid()));
        // In one go, before it finds out, or the later ones would pass unsplit.
        let clients: Vec<TcpStream> = net.client.enter(|| {
            let begin = |_| {
                let socket = socket(&to);
                socket.set_nonblocking(true).unwrap();
                let _ = socket.connect(&to.into());
                socket.into()
            };
            (0..20).map(begin).collect()
        });
        wait_for_pause(&mut daemon);
        // Those that it has no room for wait in the kernel; nobody is reset, and nothing spins.
        let served = daemon.counter("flows_total");
        daemon.expect_idle(Duration::from_secs(2));
        assert_eq!((daemon.counter("flows_total"), daemon.counter("connects_failed")), (served, 0));
        // The place of one that ends goes to the next that waits.
        let reached = [(); 2].map(|()| listener.accept().unwrap());
        let is_served = |client: &TcpStream| {
            let address = client.local_addr().unwrap();
            reached.iter().any(|(_, from)| *from == address)
        };
        let (ended, clients): (Vec<_>, Vec<_>) = clients.into_iter().partition(is_served);
        ended.into_iter().for_each(abort);
        daemon.wait_for("flows_total", served + 2);
        clients.into_iter().for_each(abort);
        daemon.wait_for("flows_open", 0);
        let mut client = net.client.enter(|| TcpStream::connect(to).unwrap());
        // Those that were connected in between are of no interest.
        let mut accepted = std::iter::repeat_with(|| listener.accept().unwrap());
        let (mut server, _) = accepted.find(|(_, from)| *from == client.local_addr().unwrap()).unwrap();
        client.write_all(b"x").unwrap();
        server.read_exact(&mut [0]).unwrap();
        drop((client, server));
        daemon.settle();
    }
}

fn wait_for_pause(daemon: &mut Running) {
    let start = Instant::now();
    while daemon.counter("accept_pauses") == 0 {
        assert!(start.elapsed() < PATIENCE, "accepting goes on");
    }
}
