//! A worker that panics is replaced: its flows are reset, its listeners go on, and the other workers do not
//! notice.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{LOG_VARIABLE, Net, PATIENCE, RELAYS, Running, SERVER, configuration, network};
use crate::handover::Held;

/// Connections, so many that each worker has some: the kernel distributes them by a hash of their ends.
const FLOWS: usize = 32;
/// Longer than the rules are in force without a heartbeat.
const LONGER_THAN_THE_RULES: Duration = Duration::from_secs(3);

/// A byte goes from one end to the other.
fn echo(one: &mut TcpStream, other: &mut TcpStream) {
    one.write_all(b"x").unwrap();
    other.read_exact(&mut [0]).unwrap();
}

/// Whether a connection goes on both ways; otherwise both ends see a reset.
fn goes_on(client: &mut TcpStream, server: &mut TcpStream) -> bool {
    let written = client.write_all(b"x");
    let Err(at_server) = server.read_exact(&mut [0]) else {
        echo(server, client);
        return true;
    };
    let at_client = written.and_then(|()| client.read_exact(&mut [0])).unwrap_err();
    assert_eq!([at_client.kind(), at_server.kind()], [ErrorKind::ConnectionReset; 2]);
    false
}

/// The connections that go on, and how many do not.
fn survivors(mut pairs: Vec<(TcpStream, TcpStream)>) -> (Vec<(TcpStream, TcpStream)>, usize) {
    let before = pairs.len();
    pairs.retain_mut(|(client, server)| goes_on(client, server));
    let lost = before - pairs.len();
    (pairs, lost)
}

fn connections(net: &Net, listener: &TcpListener, count: usize) -> Vec<(TcpStream, TcpStream)> {
    (0..count).map(|_| net.connection(listener)).collect()
}

fn restarts(daemon: &mut Running) -> u64 {
    daemon.counter("worker_restarts")
}

fn wait_for_restarts(daemon: &mut Running, count: u64) {
    let start = Instant::now();
    while restarts(daemon) < count {
        assert!(start.elapsed() < PATIENCE, "no worker is replaced");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_worker_that_panics_is_replaced_while_the_others_go_on() {
    let Some(net) = network() else { return };
    for relay in RELAYS {
        let config = configuration(&format!("relay = \"{relay}\"\nworkers = 2"));
        let log = tempfile::NamedTempFile::new().unwrap();
        let daemon = net.try_daemon_changed(&config, |command| {
            command.env(LOG_VARIABLE, log.path());
        });
        let mut daemon = daemon.unwrap();
        let listener = net.listen(SERVER[0]);
        let mut pairs = connections(&net, &listener, FLOWS);
        daemon.wait_for("connecting", 0);
        daemon.panic_worker(0);
        wait_for_restarts(&mut daemon, 1);
        let (living, lost) = survivors(pairs);
        println!("{relay}: {lost} of {FLOWS} connections were the worker's");
        assert!(lost > 0 && lost < FLOWS, "{lost} of {FLOWS} are lost");
        assert_eq!(daemon.counter("flows_reset"), lost as u64);
        assert_eq!(daemon.counter("flows_open"), living.len() as u64);
        // Its listeners go on, and so does its heartbeat.
        pairs = living;
        std::thread::sleep(LONGER_THAN_THE_RULES);
        daemon.wait_to_see("readiness", |seen| seen.ready);
        pairs.extend(connections(&net, &listener, FLOWS));
        assert_eq!(daemon.counter("flows_total"), 2 * FLOWS as u64, "some connections passed unsplit");
        let (mut living, more) = survivors(pairs);
        assert_eq!(more, 0);
        let text = std::fs::read_to_string(log.path()).unwrap();
        let line = "worker 0 failed: panicked: a worker was told to panic";
        assert_eq!(text.matches(line).count(), 1, "{text}");
        // Also into another process, with the same log.
        let logging = |command: &mut Command| {
            command.env(LOG_VARIABLE, log.path());
        };
        daemon.succeed_changed(&net, &config, logging).unwrap();
        living.iter_mut().for_each(|(client, server)| echo(client, server));
        drop(living);
        daemon.settle();
    }
}

#[test]
fn connections_that_wait_for_a_worker_that_panics_are_accepted_by_the_next() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("workers = 1");
    let listener = net.listen(SERVER[0]);
    let to = listener.local_addr().unwrap();
    let held = Held::thread(daemon.pid(), "bentpipe-0");
    // It comes before the connections.
    daemon.panic_worker(0);
    let mut clients =
        net.client.enter(|| (0..FLOWS).map(|_| TcpStream::connect(to).unwrap()).collect::<Vec<_>>());
    assert_eq!(daemon.counter("flows_total"), 0, "they are not in the queue");
    drop(held);
    clients.iter_mut().for_each(|client| client.write_all(b"x").unwrap());
    for _ in 0..FLOWS {
        let (mut server, _) = listener.accept().unwrap();
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        server.read_exact(&mut [0]).unwrap();
    }
    drop(clients);
    wait_for_restarts(&mut daemon, 1);
    assert_eq!((daemon.counter("flows_total"), daemon.counter("flows_reset")), (FLOWS as u64, 0));
    daemon.settle();
}

#[test]
fn a_worker_that_panics_again_and_again_ends_the_daemon() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("workers = 2");
    for count in 1..5 {
        daemon.panic_worker(1);
        wait_for_restarts(&mut daemon, count);
    }
    assert_eq!(daemon.failure(), None);
    daemon.panic_worker(1);
    let start = Instant::now();
    let reason = loop {
        match daemon.failure() {
            Some(reason) => break reason,
            None => assert!(start.elapsed() < PATIENCE, "it does not fail"),
        }
    };
    assert!(reason.contains("worker 1 failed 5 times in 60s") && reason.contains("panicked"), "{reason}");
    daemon.stop();
    net.expect_untouched();
}
