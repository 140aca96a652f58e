//! Flows that a rule snoops over a satellite whose rate is known: they wait in the daemon for their turn.
//!
//! What is downloaded goes from the client's side to the satellite's: there the link has 10 Mbit/s, 50 ms, no
//! losses, and a queue of 25 kB, a fifth of a bandwidth-delay product.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::common::company::alone;
use crate::common::exchange::Exchange;
use crate::common::{Net, PATIENCE, Running, SERVER, network_over};
use bentpipe_link::{DirectionConfig, LinkConfig};
use bentpipe_units::{ByteCount, Rate};
use rustix::process::Signal;

const RATE: u32 = 10_000_000;
/// The leg, its rule, and enough room for all that can be under way.
const SNOOPED: &str = "[legs.satellite]\ninterface = \"sat0\"\ncongestion = \"reno\"\nrate = \"10Mbit/s\"\nrtt = \"100ms\"\n\
     [[rules]]\naction = \"snoop\"\n[snoop]\ncache = \"4MB\"\n";
/// Without a pace nothing keeps the sender from overflowing the link's queue again and again.
const OFF: &str = "pace = \"off\"\nhide_congestion = true\n";

fn short_queue() -> Option<Net> {
    let reverse = DirectionConfig {
        rate: Some(Rate::mbps(50)),
        delay: Duration::from_millis(50),
        ..Default::default()
    };
    let (rate, queue) = (Some(Rate::from_bps(RATE.into()).unwrap()), Some(ByteCount::new(25_000)));
    let net =
        network_over(&LinkConfig { forward: DirectionConfig { rate, queue, ..reverse.clone() }, reverse })?;
    // Its slow start ends with a loss, and not when the round trip grows: it fills any queue.
    net.client.sysctl("net.ipv4.tcp_congestion_control", "reno");
    // What one connection has lost is no limit for the next.
    net.client.sysctl("net.ipv4.tcp_no_metrics_save", "1");
    Some(net)
}

fn started(net: &Net, rest: &str) -> Running {
    net.try_daemon(&format!("{SNOOPED}{rest}")).unwrap_or_else(|error| panic!("daemon: {error}"))
}

/// Packets that found the link's queue full.
fn overflows(net: &Net) -> u64 {
    net.link.as_ref().unwrap().counters().0.dropped.queue_full
}

fn wait_until_queued(daemon: &mut Running, bytes: u64) {
    let start = Instant::now();
    while daemon.counter("queued_bytes") < bytes {
        assert!(start.elapsed() < PATIENCE, "{} bytes wait", daemon.counter("queued_bytes"));
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn with_a_pace_the_daemon_has_the_queue_and_the_links_does_not_overflow() {
    let _alone = alone();
    let Some(net) = short_queue() else { return };
    let mut lost = Vec::new();
    for rest in ["", OFF] {
        let mut daemon = started(&net, rest);
        let before = overflows(&net);
        Exchange::start(net.connection(&net.listen(SERVER[0])), 6_000_000).expect_identical();
        lost.push(overflows(&net) - before);
        let most = daemon.counter("most_queued_bytes");
        match rest {
            "" => assert!(most >= 100_000, "{most} bytes have waited at the most"),
            _ => assert_eq!(most, 0),
        }
        assert_eq!(daemon.counter("queued_bytes"), 0);
        daemon.settle();
    }
    println!("found the link's queue full: {} with a pace, {} without", lost[0], lost[1]);
    // None, unless the thread that emulates the link is kept from the processor for so long that a queue's
    // worth waits for it.
    assert!(lost[1] >= 100 && lost[0] * 50 <= lost[1], "{lost:?}");
}

#[test]
fn waiting_transfers_survive_reload_pause_and_upgrade() {
    let _alone = alone();
    let Some(net) = short_queue() else { return };
    let reload = |daemon: &mut Running| daemon.reload(&format!("{SNOOPED}{OFF}")).unwrap();
    let pause = |daemon: &mut Running| {
        daemon.signal(Signal::STOP);
        std::thread::sleep(Duration::from_millis(1500));
        daemon.signal(Signal::CONT);
    };
    let upgrade = |daemon: &mut Running| daemon.succeed(&net, SNOOPED).unwrap();
    for harm in [&reload as &dyn Fn(&mut Running), &pause, &upgrade] {
        let mut daemon = started(&net, "");
        // One of each family at once.
        let exchanges =
            SERVER.map(|address| Exchange::start(net.connection(&net.listen(address)), 1_500_000));
        exchanges.iter().for_each(|exchange| exchange.wait_for(200_000));
        wait_until_queued(&mut daemon, 50_000);
        harm(&mut daemon);
        exchanges.into_iter().for_each(Exchange::expect_identical);
        daemon.wait_for("queued_bytes", 0);
        daemon.settle();
    }
}

#[test]
fn a_download_that_begins_beside_another_has_about_half_of_the_link() {
    let _alone = alone();
    let Some(net) = short_queue() else { return };
    let daemon = &mut started(&net, "");
    let listener = net.listen(SERVER[0]);
    let first = Exchange::start(net.connection(&listener), 7_000_000);
    wait_until_queued(daemon, 100_000);
    let second = Exchange::start(net.connection(&listener), 3_000_000);
    // Its slow start is over.
    second.wait_for(1_000_000);
    let before = [first.received(), second.received()];
    second.wait_for(2_800_000);
    let after = [first.received(), second.received()];
    let [a, b] = [0, 1].map(|flow| (after[flow] - before[flow]) as f64);
    let jain = (a + b).powi(2) / (2.0 * (a * a + b * b));
    println!("{a} and {b} bytes, Jain's index {jain:.3}");
    assert!(jain > 0.9, "{a} and {b} bytes, Jain's index {jain:.3}");
    first.expect_identical();
    second.expect_identical();
}

#[test]
fn a_short_request_does_not_wait_behind_a_download() {
    let _alone = alone();
    let Some(net) = short_queue() else { return };
    let mut daemon = started(&net, "queue = \"1MB\"\n");
    let listener = net.listen(SERVER[0]);
    let mut short = net.connection(&listener);
    short.0.set_nodelay(true).unwrap();
    // A moment in which the machine does something else may end slow start before that much waits.
    let mut bulk = Exchange::start(net.connection(&listener), 6_000_000);
    let start = Instant::now();
    while !reaches(&mut daemon, &bulk, 400_000) {
        assert!(start.elapsed() < PATIENCE, "no download of {:?} has filled the queue", start.elapsed());
        bulk.expect_identical();
        bulk = Exchange::start(net.connection(&listener), 6_000_000);
    }
    // The machine may be busy for a moment, and what comes back is a download, too: one of them tells.
    let mut is_short = false;
    while !is_short && !bulk.is_complete() {
        let before = daemon.counter("queued_bytes");
        let round_trip = ask(&mut short);
        let least = before.min(daemon.counter("queued_bytes"));
        println!("{round_trip:?} beside {least} bytes");
        is_short = round_trip < Duration::from_secs(8) * least as u32 / RATE / 2;
    }
    assert!(is_short);
    bulk.expect_identical();
}

/// Waits until so much is queued; `false` if the download has ended before.
fn reaches(daemon: &mut Running, bulk: &Exchange, bytes: u64) -> bool {
    while daemon.counter("queued_bytes") < bytes {
        if bulk.is_complete() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// How long a request and its answer take.
fn ask((ours, theirs): &mut (TcpStream, TcpStream)) -> Duration {
    let start = Instant::now();
    ours.write_all(&[1; 200]).unwrap();
    theirs.read_exact(&mut [0; 200]).unwrap();
    theirs.write_all(&[2; 200]).unwrap();
    ours.read_exact(&mut [0; 200]).unwrap();
    start.elapsed()
}
