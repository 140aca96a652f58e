//! The cost of snooping a flow: packets a second through the daemon's Snoop, beside plain forwarding.
//!
//!     cargo run --release -p bentpipe-proxy --example snooped_flow [SECONDS [ROUNDS]]
//!
//! Needs root. Three namespaces on a line of veth pairs, nothing emulated and nothing lost; a bulk flow of
//! TCP towards the satellite's side, whose window is that of a small receive buffer, so that no queue
//! overflows. Segments are not joined for the line (GSO), so that a packet is a packet for both ways. Each
//! round goes through all ways; medians. Packets are those that arrive at the gateway, acknowledgements
//! included. Processor time is that of this process, ends and forwarding included; of it, that of the
//! snooper's thread, with the forwarding of what it writes.

mod line;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bentpipe_proxy::{Config, Daemon, Stats};
use line::{Line, Outcome, median, seconds_and_rounds};
use rustix::net::sockopt;
use socket2::{Domain, Socket, Type};

/// Payloads of a segment; with IP's and TCP's headers and timestamps these are packets of 1500 and of 152
/// bytes.
const PAYLOADS: [u32; 2] = [1448, 100];
/// Receive buffer, bytes: some hundred segments of the longer sort; a device holds 4096 packets.
const WINDOW: usize = 256 << 10;
/// Until the window is open and the flow is snooped.
const START: Duration = Duration::from_millis(200);
const SERVER: ([u8; 4], u16) = ([10, 77, 2, 2], 7000);
const CONFIGURATION: &str = "[legs.satellite]\ninterface = \"sat0\"\ncongestion = \"reno\"\n\
                             [snoop]\ncache = \"16MB\"\n[[rules]]\naction = \"snoop\"\n";

/// Per second, and per million packets.
struct Measured {
    packets: f64,
    megabits: f64,
    processor: f64,
    snooper: f64,
}

/// The counters at a moment.
struct Reading {
    at: Instant,
    packets: u64,
    /// Bytes of payload at the receiver.
    received: u64,
    processor: f64,
    snooper: f64,
}

fn main() -> Outcome<()> {
    let (length, rounds) = seconds_and_rounds()?;
    let line = Line::new()?;
    for host in [&line.near, &line.far] {
        host.ip("link set up0 gso_max_segs 1")?;
    }
    println!(
        "{:<18} {:>8} {:>10} {:>8} {:>22}",
        "", "IP bytes", "packets/s", "Mbit/s", "CPU s/million, snooper"
    );
    for payload in PAYLOADS {
        let mut all = [("plain forwarding", false), ("snooped", true)].map(|way| (way, Vec::new()));
        for _ in 0..rounds {
            for ((_, snooped), measured) in &mut all {
                measured.push(measure(&line, *snooped, payload, length)?);
            }
        }
        for ((name, _), measured) in &all {
            let of = |of: fn(&Measured) -> f64| median(measured, of);
            let (packets, megabits) = (of(|one| one.packets), of(|one| one.megabits));
            let (processor, snooper) = (of(|one| one.processor), of(|one| one.snooper));
            let bytes = payload + 52;
            println!(
                "{name:<18} {bytes:>8} {packets:>10.0} {megabits:>8.0} {processor:>13.2} {snooper:>8.2}"
            );
        }
    }
    Ok(())
}

impl Line {
    /// Packets that have arrived at the gateway over either of its links (proc_net(5)).
    fn arrived(&self) -> Outcome<u64> {
        // The file of the thread that reads it.
        let text = self.gateway.run(|| fs::read_to_string("/proc/thread-self/net/dev"))??;
        let of_link = |line: &str| {
            let (name, numbers) = line.trim().split_once(':')?;
            ["ground0", "sat0"]
                .contains(&name)
                .then(|| numbers.split_whitespace().nth(1)?.parse::<u64>().ok())?
        };
        Ok(text.lines().filter_map(of_link).sum())
    }

    fn read(&self, received: &AtomicU64) -> Outcome<Reading> {
        let (processor, snooper) = processor_time()?;
        let (at, received) = (Instant::now(), received.load(Relaxed));
        Ok(Reading { at, packets: self.arrived()?, received, processor, snooper })
    }
}

fn measure(line: &Line, snooped: bool, payload: u32, length: Duration) -> Outcome<Measured> {
    let config = Config::parse("example", CONFIGURATION)?;
    let daemon = snooped.then(|| line.gateway.run(|| Daemon::start(&config))).transpose()?.transpose()?;
    let (sender, receiver) = connect(line, payload)?;
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let outcome = std::thread::scope(|scope| -> Outcome<_> {
        scope.spawn(|| send(sender, &stop));
        let received = scope.spawn(|| receive(receiver, &count));
        std::thread::sleep(START);
        let before = line.read(&count)?;
        std::thread::sleep(length);
        let after = line.read(&count)?;
        stop.store(true, Relaxed);
        received.join().map_err(|_| "the receiver panicked")??;
        Ok(between(&before, &after))
    });
    // In its own namespace, where its rules are.
    let stats = line.gateway.run(|| daemon.map(Daemon::stop))?;
    check(stats)?;
    outcome
}

/// A flow that was not snooped, or that lost something, would be another measurement.
fn check(stats: Option<Stats>) -> Outcome<()> {
    match stats.map(|stats| stats.snoop) {
        Some(snoop) if snoop.cached == 0 || snoop.retransmitted + snoop.dropped + snoop.restarts > 0 => {
            eprintln!("note: {snoop:?}");
            Ok(())
        }
        _ => Ok(()),
    }
}

fn connect(line: &Line, payload: u32) -> Outcome<(TcpStream, TcpStream)> {
    let listener = line.far.run(|| TcpListener::bind(SocketAddr::from(SERVER)))??;
    // The kernel doubles it and announces half.
    sockopt::set_socket_recv_buffer_size_force(&listener, WINDOW)?;
    let sender = line.near.run(|| -> std::io::Result<_> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        // With the option for timestamps, which takes 12 bytes of it.
        socket.set_tcp_mss(payload + 12)?;
        socket.connect(&SocketAddr::from(SERVER).into())?;
        Ok(TcpStream::from(socket))
    })??;
    Ok((sender, listener.accept()?.0))
}

fn send(mut to: TcpStream, stop: &AtomicBool) {
    while !stop.load(Relaxed) && to.write_all(&[0; 65536]).is_ok() {}
}

fn receive(mut from: TcpStream, count: &AtomicU64) -> std::io::Result<()> {
    let mut buffer = vec![0; 65536];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(()),
            bytes => count.fetch_add(bytes as u64, Relaxed),
        };
    }
}

fn between(before: &Reading, after: &Reading) -> Measured {
    let (seconds, packets) = ((after.at - before.at).as_secs_f64(), (after.packets - before.packets) as f64);
    let a_million = packets / 1e6;
    Measured {
        packets: packets / seconds,
        megabits: (after.received - before.received) as f64 * 8.0 / seconds / 1e6,
        processor: (after.processor - before.processor) / a_million,
        snooper: (after.snooper - before.snooper) / a_million,
    }
}

/// Seconds on a processor of every thread that lives now, and of the snooper's alone
/// (Documentation/scheduler/sched-stats.rst).
fn processor_time() -> Outcome<(f64, f64)> {
    let (mut all, mut snooper) = (0.0, 0.0);
    for task in fs::read_dir("/proc/self/task")? {
        let read = |file| fs::read_to_string(task.as_ref().ok()?.path().join(file)).ok();
        let spent = read("schedstat").and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
        let seconds = spent.unwrap_or(0.0) / 1e9;
        all += seconds;
        if read("comm").is_some_and(|name| name.trim() == "bentpipe-snoop") {
            snooper += seconds;
        }
    }
    Ok((all, snooper))
}
