//! What the relay costs: latency and throughput through the daemon beside plain forwarding, on the same veth pairs in
//! the same run. `relay_performance [SECONDS] [ROUNDS]`, as root; compare ratios, not figures of different machines.

#[path = "../tests/common/mod.rs"]
mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bentpipe_proxy::{Config, Daemon};
use common::{Net, SERVER, network};

const BLOCK: usize = 128 * 1024;
const EXCHANGES: usize = 20_000;
const FLOWS: [usize; 2] = [1, 10];

/// One way through the gateway, and what was measured of it.
struct Way {
    name: &'static str,
    /// Median of a one-byte exchange, microseconds.
    latency: Vec<f64>,
    /// Gbit/s by number of flows: up, down.
    throughput: [(Vec<f64>, Vec<f64>); FLOWS.len()],
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>().expect("a whole number"));
    let time = Duration::from_secs(arguments.next().unwrap_or(2));
    let rounds = arguments.next().unwrap_or(3);
    let Some(net) = network() else { return };
    let mut ways = ["plain", "copy", "splice"].map(Way::new);
    for _ in 0..rounds {
        for way in &mut ways {
            let _daemon = start(&net, way.name);
            way.measure(&net, time);
        }
    }
    print_table(&ways);
}

/// The daemon with this relay; none for plain forwarding.
fn start(net: &Net, relay: &str) -> Option<Daemon> {
    let config = Config::parse("example", &common::configuration(&format!("relay = \"{relay}\""))).ok()?;
    Some(net.gateway.enter(|| Daemon::start(&config).unwrap()))
}

impl Way {
    fn new(name: &'static str) -> Self {
        Self { name, latency: Vec::new(), throughput: Default::default() }
    }

    fn measure(&mut self, net: &Net, time: Duration) {
        let listener = net.listen(SERVER[0]);
        let (client, server) = net.connection(&listener);
        self.latency.push(exchange(client, server));
        for (flows, (up, down)) in FLOWS.into_iter().zip(&mut self.throughput) {
            up.push(carry((0..flows).map(|_| net.connection(&listener)).collect(), time));
            let reversed = |_| net.connection(&listener);
            down.push(carry(
                (0..flows).map(reversed).map(|(client, server)| (server, client)).collect(),
                time,
            ));
        }
    }
}

/// The median time of a one-byte question and its answer, microseconds.
fn exchange(mut client: TcpStream, mut server: TcpStream) -> f64 {
    for stream in [&client, &server] {
        stream.set_nodelay(true).unwrap();
    }
    let answering = thread::spawn(move || {
        let mut byte = [0];
        while server.read_exact(&mut byte).and_then(|()| server.write_all(&byte)).is_ok() {}
    });
    let mut times: Vec<f64> = Vec::with_capacity(EXCHANGES);
    for _ in 0..EXCHANGES {
        let start = Instant::now();
        client.write_all(b"?").and_then(|()| client.read_exact(&mut [0])).unwrap();
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    drop(client);
    answering.join().unwrap();
    median(&mut times)
}

/// Sends from the first of each pair to the second for `time`; Gbit/s that arrived.
fn carry(flows: Vec<(TcpStream, TcpStream)>, time: Duration) -> f64 {
    let (stop, arrived) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for (mut from, mut to) in flows {
            let (stop, arrived) = (&stop, &arrived);
            scope.spawn(move || {
                let block = vec![1u8; BLOCK];
                while !stop.load(Ordering::Relaxed) && from.write_all(&block).is_ok() {}
            });
            scope.spawn(move || {
                let mut block = vec![0u8; BLOCK];
                while let Ok(count @ 1..) = to.read(&mut block) {
                    arrived.fetch_add(count as u64, Ordering::Relaxed);
                }
            });
        }
        thread::sleep(time / 4);
        let (start, before) = (Instant::now(), arrived.load(Ordering::Relaxed));
        thread::sleep(time);
        let bytes = arrived.load(Ordering::Relaxed) - before;
        let seconds = start.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        bytes as f64 * 8.0 / seconds / 1e9
    })
}

fn print_table(ways: &[Way]) {
    let plain = |index: usize| median(&mut ways[0].throughput[index].0.clone());
    let plain_down = |index: usize| median(&mut ways[0].throughput[index].1.clone());
    let plain_latency = median(&mut ways[0].latency.clone());
    println!(
        "{:<8}{:>12}{:>10}   up/down in Gbit/s and in percent of plain forwarding",
        "", "latency µs", "added µs"
    );
    for way in ways {
        let latency = median(&mut way.latency.clone());
        print!("{:<8}{latency:>12.1}{:>10.1}", way.name, latency - plain_latency);
        for (index, flows) in FLOWS.into_iter().enumerate() {
            let (up, down) = &way.throughput[index];
            let (up, down) = (median(&mut up.clone()), median(&mut down.clone()));
            let (up_share, down_share) = (100.0 * up / plain(index), 100.0 * down / plain_down(index));
            let noun = if flows == 1 { "flow " } else { "flows" };
            print!("   {flows:>2} {noun} {up:>5.1}/{down:<5.1} {up_share:>3.0}%/{down_share:.0}%");
        }
        println!();
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
