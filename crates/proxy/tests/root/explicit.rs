//! Explicit rates as users meet them: crowds, weights, a way back that is full.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::company::alone;
use crate::common::{PATIENCE, SERVER, network, network_over, pattern, read_all};
use bentpipe_link::{DirectionConfig, LinkConfig};
use bentpipe_testbed::with_timing_retries;
use bentpipe_units::{ByteCount, Probability, Rate};

const RATE: Rate = Rate::mbps(10);
const CROWD: usize = 50;

fn link(rtt_ms: u64, per: f64) -> LinkConfig {
    let direction = DirectionConfig {
        rate: Some(RATE),
        delay: Duration::from_millis(rtt_ms / 2),
        queue: Some(ByteCount::new(4 * RATE.bytes_in(Duration::from_secs(1)))),
        per: Probability::new(per).unwrap(),
        ..Default::default()
    };
    LinkConfig { forward: direction.clone(), reverse: direction }
}

/// Idle connections that all have something to send at the same time, and end with it.
fn a_crowd_wakes(congestion: &str, rtt_ms: u64, per: f64, bytes: usize) {
    let Some(net) = network_over(&link(rtt_ms, per)) else { return };
    let leg = format!(
        "[legs.satellite]\ninterface = \"sat0\"\ncongestion = \"{congestion}\"\nrate = \"{RATE}\"\nrtt = \"{rtt_ms}ms\"\n"
    );
    let mut daemon = net.try_daemon(&leg).unwrap();
    let listener = net.listen(SERVER[0]);
    let (clients, servers) = net.connections(&listener, CROWD);
    // Where a crowd's packets are lost again and again, Linux backs off for long.
    for end in clients.iter().chain(&servers) {
        end.set_read_timeout(Some(4 * PATIENCE)).unwrap();
        end.set_write_timeout(Some(4 * PATIENCE)).unwrap();
    }
    let sent = &pattern(1, bytes);
    thread::scope(|scope| {
        // They are accepted in another order than they were opened.
        for (mut client, mut server) in clients.into_iter().zip(servers) {
            scope.spawn(move || {
                client.write_all(sent).unwrap();
                client.shutdown(Shutdown::Write).unwrap();
                assert!(read_all(&mut client).unwrap().is_empty());
            });
            scope.spawn(move || assert!(read_all(&mut server).unwrap() == *sent));
        }
    });
    daemon.wait_for("flows_finished", CROWD as u64);
    assert_eq!(daemon.counter("flows_reset"), 0);
}

#[test]
fn a_crowd_over_a_short_path_has_all_its_bytes() {
    a_crowd_wakes("explicit", 40, 0.0, 100_000);
}

#[test]
fn without_ebpf_a_crowd_has_all_its_bytes() {
    a_crowd_wakes("paced", 40, 0.0, 100_000);
    a_crowd_wakes("paced", 600, 0.01, 30_000);
}

#[test]
fn a_crowd_over_a_long_path_that_loses_packets_has_all_its_bytes() {
    a_crowd_wakes("explicit", 600, 0.01, 30_000);
}

/// Reads until somebody ends it.
fn count(mut stream: TcpStream, bytes: &AtomicU64) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        bytes.fetch_add(count as u64, Ordering::Relaxed);
    }
}

/// Connections that end with this value, whoever else has their sockets.
struct Open<const N: usize>([(TcpStream, TcpStream); N]);

impl<const N: usize> Drop for Open<N> {
    fn drop(&mut self) {
        for (client, server) in &self.0 {
            let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
        }
    }
}

#[test]
fn weights_hold_in_the_next_process() {
    weights_hold("explicit");
}

#[test]
fn weights_hold_in_the_next_process_without_ebpf() {
    weights_hold("paced");
}

fn weights_hold(congestion: &str) {
    let _alone = alone();
    let Some(net) = network_over(&link(40, 0.0)) else { return };
    let listeners = [net.listen(SERVER[0]), net.listen(SERVER[0])];
    let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
    let config = |congestion: &str, leg: &str| {
        format!(
            "[legs.{leg}]\ninterface = \"sat0\"\nrate = \"{RATE}\"\nrtt = \"40ms\"\n\
         congestion = \"{congestion}\"\n[[rules]]\naction = \"split\"\nport = {}\nweight = 4\n",
            port(&listeners[0])
        )
    };
    let mut daemon = net.try_daemon(&config(congestion, "satellite")).unwrap();
    let pairs = Open(listeners.each_ref().map(|listener| net.connection(listener)));
    let carried = [AtomicU64::new(0), AtomicU64::new(0)];
    thread::scope(|scope| {
        // Who fails lets the threads come to their ends, too.
        let pairs = pairs;
        for ((client, server), carried) in pairs.0.iter().zip(&carried) {
            let (mut client, server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            scope.spawn(move || while client.write_all(&[7; 1 << 16]).is_ok() {});
            scope.spawn(move || count(server, carried));
        }
        let shares = |length| {
            let now = || carried.each_ref().map(|bytes| bytes.load(Ordering::Relaxed) as f64);
            let before = now();
            thread::sleep(length);
            [0, 1].map(|flow| now()[flow] - before[flow])
        };
        // Buffers fill first, and rates settle.
        let settled = |name: &str| {
            let start = Instant::now();
            loop {
                let [heavy, light] = shares(Duration::from_secs(2));
                println!("{name}: {heavy} and {light} bytes in 2 s");
                let together = (heavy + light) / RATE.bytes_in(Duration::from_secs(2)) as f64;
                // A busy machine holds up the link, too, which then carries less, and neither uses all of its
                // share.
                if (2.2..5.5).contains(&(heavy / light)) && together > 0.2 {
                    return;
                }
                assert!(start.elapsed() < 2 * PATIENCE, "{name}: {heavy} and {light} bytes in 2 s");
            }
        };
        settled("at first");
        // The last one is the other means' process: each takes over from the other.
        let other = if congestion == "paced" { "explicit" } else { "paced" };
        for congestion in [congestion, congestion, other] {
            daemon.succeed(&net, &config(congestion, "satellite")).unwrap();
            settled("after an upgrade");
        }
        // To another name of the leg nobody belongs who was there before, nor is told a rate; they go on all
        // the same.
        daemon.succeed(&net, &config(congestion, "other")).unwrap();
        let start = Instant::now();
        let has_a_rate = |sockets: String| sockets.contains("bp_explicit") || ceilings(&sockets).count() > 0;
        while has_a_rate(net.gateway.output("ss -Htin state established")) {
            assert!(start.elapsed() < PATIENCE, "{}", net.gateway.output("ss -Htin"));
        }
        let start = Instant::now();
        while shares(Duration::from_secs(1)).contains(&0.0) {
            assert!(start.elapsed() < PATIENCE, "somebody stands still");
        }
    });
}

/// The ceilings of the pacing rates of sockets as ss(8) shows them, bits of payload per second: a rate and its
/// ceiling with a slash between them.
fn ceilings(sockets: &str) -> impl Iterator<Item = f64> {
    let after = sockets.split("pacing_rate ").skip(1).filter_map(|text| text.split_whitespace().next());
    after.filter_map(|rates| rates.split_once('/')).map(|(_, ceiling)| {
        let digits = ceiling.trim_end_matches(char::is_alphabetic);
        let unit = match &ceiling[digits.len()..] {
            "Gbps" => 1e9,
            "Mbps" => 1e6,
            "kbps" | "Kbps" => 1e3,
            _ => 1.0,
        };
        digits.parse::<f64>().unwrap() * unit
    })
}

/// A connection that is full, of weight 2, and three more: the ceilings make up the rate of the leg, by weight.
#[test]
fn ceilings_make_up_the_rate_of_the_leg() {
    // On a busy machine a connection may not use its ceiling, and gets another one.
    with_timing_retries(|| {
        const FAST: Rate = Rate::mbps(100);
        let _alone = alone();
        let Some(net) = network() else { return };
        let listeners = [net.listen(SERVER[0]), net.listen(SERVER[0])];
        let heavy = listeners[0].local_addr().unwrap().port();
        let daemon = net.try_daemon(&format!(
            "[legs.satellite]\ninterface = \"sat0\"\nrate = \"{FAST}\"\nrtt = \"20ms\"\ncongestion = \"paced\"\n\
             [[rules]]\naction = \"split\"\nport = {heavy}\nweight = 2\n"
        ));
        let _daemon = daemon.unwrap();
        let pairs = Open([0, 1, 1, 1].map(|listener: usize| net.connection(&listeners[listener])));
        let bytes = <[AtomicU64; 4]>::default();
        thread::scope(|scope| {
            // Who fails lets the threads come to their ends, too.
            let pairs = pairs;
            for ((client, server), bytes) in pairs.0.iter().zip(&bytes) {
                let (mut client, server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                scope.spawn(move || while client.write_all(&[7; 1 << 16]).is_ok() {});
                scope.spawn(move || count(server, bytes));
            }
            let start = Instant::now();
            let payload = FAST.bps() as f64 * 1448.0 / 1500.0;
            // While rates change, a look finds old ones and new ones.
            let mut steady = 0;
            while steady < 3 {
                let sockets = net.gateway.output("ss -Htino state established");
                let mut found: Vec<f64> = ceilings(&sockets).collect();
                found.sort_by(f64::total_cmp);
                let sum = found.iter().sum::<f64>() / payload;
                let is_by_weight = found.len() == 4 && (1.8..2.2).contains(&(found[3] / found[0]));
                println!("{found:?}: {sum:.3} of the rate");
                steady = if is_by_weight && (0.9..1.01).contains(&sum) { steady + 1 } else { 0 };
                assert!(start.elapsed() < PATIENCE, "{sockets}");
                thread::sleep(Duration::from_millis(100));
            }
        });
    });
}

/// The bytes that transfers have carried so far.
fn carried(transfers: &[AtomicU64]) -> u64 {
    transfers.iter().map(|bytes| bytes.load(Ordering::Relaxed)).sum()
}

/// Waits until these transfers have so much of the link in three seconds, and says how much it is.
fn wait_for_share(what: &str, transfers: &[AtomicU64], least: f64, patience: Duration) -> f64 {
    let start = Instant::now();
    loop {
        let (before, since) = (carried(transfers), Instant::now());
        thread::sleep(Duration::from_secs(3));
        let bytes = (carried(transfers) - before) as f64;
        let share = bytes / RATE.bytes_in(Duration::from_secs(1)) as f64 / since.elapsed().as_secs_f64();
        println!("{what}: {share:.2} of the link, {:.0?} after", start.elapsed());
        if share > least {
            return share;
        }
        assert!(start.elapsed() < patience, "{what}: {share} of the link, not {least}");
    }
}

/// Acknowledgements that wait behind downloads are no queue of the uploads, neither before an outage nor
/// after it.
#[test]
fn uploads_keep_their_rates_where_the_way_back_is_full() {
    let _alone = alone();
    with_timing_retries(|| {
        let direction =
            DirectionConfig { rate: Some(RATE), delay: Duration::from_millis(300), ..Default::default() };
        let Some(net) = network_over(&LinkConfig { forward: direction.clone(), reverse: direction }) else {
            return;
        };
        let leg = format!("[legs.satellite]\ninterface = \"sat0\"\nrate = \"{RATE}\"\nrtt = \"600ms\"\n");
        let _daemon = net.try_daemon(&leg).unwrap();
        let listener = net.listen(SERVER[0]);
        let uploads = Open([net.connection(&listener), net.connection(&listener)]);
        let downloads = [(); 2].map(|()| Open([net.connection(&listener), net.connection(&listener)]));
        let (up, down) = (<[AtomicU64; 2]>::default(), <[AtomicU64; 4]>::default());
        thread::scope(|scope| {
            // Who fails lets the threads come to their ends, too.
            let (uploads, downloads) = (uploads, downloads);
            let transfer = |mut from: TcpStream, to: TcpStream, bytes| {
                scope.spawn(move || while from.write_all(&[7; 1 << 16]).is_ok() {});
                scope.spawn(move || count(to, bytes));
            };
            for ((client, server), bytes) in uploads.0.iter().zip(&up) {
                transfer(client.try_clone().unwrap(), server.try_clone().unwrap(), bytes);
            }
            let before = wait_for_share("uploads alone", &up, 0.7, PATIENCE);
            for ((client, server), bytes) in downloads.iter().flat_map(|open| &open.0).zip(&down) {
                transfer(server.try_clone().unwrap(), client.try_clone().unwrap(), bytes);
            }
            wait_for_share("downloads", &down, 0.6, PATIENCE);
            let link = net.link.as_ref().unwrap();
            link.set_outage(true);
            thread::sleep(Duration::from_secs(3));
            link.set_outage(false);
            wait_for_share("downloads after the outage", &down, 0.6, 2 * PATIENCE);
            wait_for_share("uploads after the outage", &up, before / 2.0, PATIENCE);
        });
    });
}
