//! A leg's `pacing_cap`: no connection sends more, whatever its congestion control, whoever opened it.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{CLIENT, Host, Net, SERVER, network, pattern, read_all, socket_address};
use bentpipe_kernel::congestion;

/// 40 Mbit/s, in bytes per second.
const CAP: f64 = 5e6;
const BYTES: usize = 5_000_000;
/// On a busy machine a paced sender may miss its turn: how often it is given a chance to reach half of its
/// cap.
const TRIES: usize = 5;

/// The first ten segments leave unpaced, and a late timer is made up for by half a burst.
const TOLERANCE: f64 = 1.05;

/// A cap on the satellite leg, or on the ground.
fn configuration(congestion: &str, ground: bool) -> String {
    let (table, cap) = (if ground { "[terrestrial]\n" } else { "" }, "pacing_cap = \"40Mbit/s\"\n");
    format!("[legs.satellite]\ninterface = \"sat0\"\ncongestion = \"{congestion}\"\n{table}{cap}")
}

/// Bytes per second from `from`, which ends when it has sent everything, to `to`.
fn rate(mut from: TcpStream, mut to: TcpStream) -> f64 {
    let sent = pattern(6, BYTES);
    thread::scope(|scope| {
        let start = Instant::now();
        scope.spawn(|| {
            from.write_all(&sent).unwrap();
            from.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let received = read_all(&mut to).unwrap();
        let took = start.elapsed().max(Duration::from_millis(1));
        assert!(received == sent);
        BYTES as f64 / took.as_secs_f64()
    })
}

/// A connection from one host to another, both ends.
fn connect(from: &Host, to: &Host, address: &str) -> (TcpStream, TcpStream) {
    let listener = to.enter(|| TcpListener::bind(socket_address(address, 0)).unwrap());
    let there = listener.local_addr().unwrap();
    let ours = from.enter(|| TcpStream::connect(there).unwrap());
    (ours, listener.accept().unwrap().0)
}

/// Never above the cap, and within some tries at half of it or more.
fn assert_capped(what: &str, transfer: impl Fn() -> f64) {
    for _ in 0..TRIES {
        let rate = transfer();
        println!("{what}: {:.2} Mbit/s", rate * 8.0 / 1e6);
        assert!(rate <= CAP * TOLERANCE, "{what}: {rate} bytes per second");
        if rate >= CAP / 2.0 {
            return;
        }
    }
    panic!("{what}: below half of its cap {TRIES} times");
}

/// Both of the sockets that face the satellite: the one that the daemon opened, and the one that it accepted.
fn assert_both_sockets_are_capped(net: &Net, name: &str) {
    assert_capped(&format!("{name}, connected"), || {
        let (ours, theirs) = connect(&net.client, &net.server, SERVER[0]);
        rate(ours, theirs)
    });
    assert_capped(&format!("{name}, accepted"), || {
        let (ours, theirs) = connect(&net.server, &net.client, CLIENT[0]);
        rate(theirs, ours)
    });
}

#[test]
fn no_connection_over_a_capped_leg_is_faster_than_its_cap() {
    let Some(net) = network() else { return };
    for name in ["reno", "hybla", "bbr"] {
        if name == "bbr" && !congestion::available().iter().any(|known| known == name) {
            println!("left out: this kernel has no {name}");
            continue;
        }
        let _daemon = net.try_daemon(&configuration(name, false)).unwrap();
        assert_both_sockets_are_capped(&net, name);
    }
}

#[test]
fn the_other_direction_is_the_other_legs() {
    let Some(net) = network() else { return };
    let _daemon = net.try_daemon(&configuration("reno", false)).unwrap();
    // From the server to the client the daemon sends on the ground, which has no cap.
    assert!((0..TRIES).any(|_| {
        let (ours, theirs) = connect(&net.client, &net.server, SERVER[0]);
        rate(theirs, ours) > 2.0 * CAP
    }));
}

#[test]
fn the_ground_can_have_a_cap_too() {
    let Some(net) = network() else { return };
    let _daemon = net.try_daemon(&configuration("reno", true)).unwrap();
    assert_capped("terrestrial", || {
        let (ours, theirs) = connect(&net.client, &net.server, SERVER[0]);
        rate(theirs, ours)
    });
}
