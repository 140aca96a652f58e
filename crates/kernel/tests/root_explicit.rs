//! Explicit rates in the running kernel: what is written for a connection is the rate at which it sends.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use bentpipe_kernel::explicit::{Explicit, Flow};
use bentpipe_kernel::{congestion, sockopt};

const PATIENCE: Duration = Duration::from_secs(30);

/// Why this machine cannot run these tests, if it cannot.
fn missing() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("root, to load an eBPF congestion control");
    }
    (!std::path::Path::new("/sys/kernel/btf/vmlinux").exists()).then_some("a kernel with BTF")
}

fn explicit() -> Option<Explicit> {
    if let Some(need) = missing() {
        println!("skipped: needs {need}");
        return None;
    }
    Some(Explicit::acquire().unwrap())
}

/// A connection whose accepting end belongs to `leg` with this weight.
fn connection(explicit: &Explicit, leg: usize, weight: u32) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    explicit.join(listener.as_fd(), leg, weight).unwrap();
    sockopt::set_congestion(&listener, explicit.name()).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

fn flows(explicit: &Explicit, leg: usize) -> Vec<Flow> {
    explicit.flows().filter(|flow| flow.leg == leg).collect()
}

/// Waits until the leg has so many connections.
fn wait_for(explicit: &Explicit, leg: usize, count: usize) -> Vec<Flow> {
    let start = Instant::now();
    loop {
        let flows = flows(explicit, leg);
        if flows.len() == count {
            return flows;
        }
        assert!(start.elapsed() < PATIENCE, "{flows:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn it_is_registered_while_it_is_held() {
    let Some(explicit) = explicit() else { return };
    let name = explicit.name().to_owned();
    assert!(congestion::available().contains(&name));
    assert_eq!(Explicit::acquire().unwrap().name(), name, "one process has one copy");
}

#[test]
fn what_a_listener_accepts_has_its_leg_and_its_weight_and_a_slot_until_it_ends() {
    let Some(explicit) = explicit() else { return };
    let (client, server) = connection(&explicit, 3, 7);
    let flow = wait_for(&explicit, 3, 1)[0];
    assert_eq!((flow.weight, flow.leg), (7, 3));
    assert!(flow.mss > 0 && flow.header == 52, "{flow:?}");
    drop((server, client));
    wait_for(&explicit, 3, 0);
}

#[test]
fn a_connection_sends_at_the_rate_that_it_is_given() {
    let Some(explicit) = explicit() else { return };
    explicit.set_newcomers(4, 1_000_000, Duration::from_millis(10));
    let (mut client, mut server) = connection(&explicit, 4, 1);
    thread::scope(|scope| {
        scope.spawn(move || while server.write(&[7; 65536]).is_ok() {});
        let mut buffer = vec![0; 1 << 16];
        let mut read_for = |span: Duration| {
            let (start, mut bytes) = (Instant::now(), 0);
            while start.elapsed() < span {
                bytes += client.read(&mut buffer).unwrap();
            }
            bytes as f64 / start.elapsed().as_secs_f64()
        };
        read_for(Duration::from_millis(300));
        let newcomer = read_for(Duration::from_millis(700));
        let flow = wait_for(&explicit, 4, 1)[0];
        explicit.set_rate(flow.slot, 4_000_000);
        read_for(Duration::from_millis(300));
        let given = read_for(Duration::from_millis(700));
        drop(client);
        assert!(given > 2.0 * newcomer, "{newcomer} and {given} bytes/s");
        assert!(given < 4_400_000.0, "{given} bytes/s");
    });
}

#[test]
fn a_socket_that_belongs_nowhere_works_too() {
    let Some(explicit) = explicit() else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    sockopt::set_congestion(&listener, explicit.name()).unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let sent = vec![5; 300_000];
    thread::scope(|scope| {
        scope.spawn(move || server.write_all(&sent).unwrap());
        let mut received = Vec::new();
        client.read_to_end(&mut received).unwrap();
        assert_eq!(received.len(), 300_000);
    });
}
