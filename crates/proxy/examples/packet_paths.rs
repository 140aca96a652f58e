//! The cost of taking packets to user space on a gateway and of giving them back, by a TUN device and by
//! NFQUEUE.
//!
//!     cargo run --release -p bentpipe-proxy --example packet_paths [SECONDS [ROUNDS]]
//!
//! Needs root and `iptables-nft`. Three namespaces on a line; UDP packets of one flow, at most [`WINDOW`] of
//! them under way at a time, so that none is lost and the slowest part sets the pace. Each round goes through
//! all ways; medians. Processor time is that of all threads of this process, sender and receiver included,
//! and the kernel's forwarding with them: the line of plain forwarding says how much that is.

mod line;

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bentpipe_kernel::tun::Tun;
use bentpipe_testbed::Namespace;
use line::{Line, Outcome, median, seconds_and_rounds};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with, sockopt,
};

/// Packets in flight at a time; the queue of NFQUEUE holds 1024 by default, a device 4096.
const WINDOW: u64 = 256;
/// UDP payloads: 84 and 1500 bytes of IP.
const PAYLOADS: [usize; 2] = [56, 1472];
/// A packet that is this late is lost.
const LATE: Duration = Duration::from_millis(200);
const QUEUE: u16 = 7;
const MARK: &str = "0x77";
/// Packets read before their verdicts are written.
const BATCH: usize = 64;

/// How packets cross the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Forwarded,
    /// Routed into a device, read, and written back to it.
    Tun,
    /// Verdicts one by one; with the packet if it has been changed.
    Queue {
        batched: bool,
        changed: bool,
    },
}

struct Measured {
    packets_per_second: f64,
    /// Seconds of processor time for a million packets.
    processor: f64,
    lost: u64,
}

const WAYS: [(&str, Way); 5] = [
    ("plain forwarding", Way::Forwarded),
    ("TUN device", Way::Tun),
    ("NFQUEUE", Way::Queue { batched: false, changed: false }),
    ("NFQUEUE, verdicts in batches", Way::Queue { batched: true, changed: false }),
    ("the same, each packet changed", Way::Queue { batched: true, changed: true }),
];

fn main() -> Outcome<()> {
    let (length, rounds) = seconds_and_rounds()?;
    let line = Line::new()?;
    println!("{:<32} {:>8} {:>10} {:>14} {:>5}", "", "IP bytes", "packets/s", "CPU s/million", "lost");
    for payload in PAYLOADS {
        let mut all = WAYS.map(|_| Vec::new());
        for _ in 0..rounds {
            for ((_, way), measured) in WAYS.iter().zip(&mut all) {
                measured.push(measure(&line, *way, payload, length)?);
            }
        }
        for ((name, _), measured) in WAYS.iter().zip(&all) {
            let packets = median(measured, |one| one.packets_per_second);
            let processor = median(measured, |one| one.processor);
            let lost: u64 = measured.iter().map(|one| one.lost).sum();
            println!("{name:<32} {:>8} {packets:>10.0} {processor:>14.2} {lost:>5}", payload + 28);
        }
    }
    Ok(())
}

fn measure(line: &Line, way: Way, payload: usize, length: Duration) -> Outcome<Measured> {
    let worker = set_up(line, way)?;
    let receiver = line.far.run(|| UdpSocket::bind("10.77.2.2:7000"))??;
    receiver.set_read_timeout(Some(Duration::from_millis(50)))?;
    // All packets in flight must fit, with the kernel's bookkeeping.
    sockopt::set_socket_recv_buffer_size_force(&receiver, 8 << 20)?;
    let sender = line.near.run(|| UdpSocket::bind("10.77.1.2:0"))??;
    sender.connect(SocketAddr::from(([10, 77, 2, 2], 7000)))?;
    let (stop, received) = (AtomicBool::new(false), AtomicU64::new(0));
    let outcome = std::thread::scope(|scope| -> Outcome<Measured> {
        scope.spawn(|| while_running(&stop, || receive(&receiver, &received)));
        if let Some(worker) = worker {
            let mut worker = worker;
            let stop = &stop;
            scope.spawn(move || while_running(stop, || worker.work()));
        }
        let outcome = send_window(&sender, payload, length, &received);
        stop.store(true, Relaxed);
        outcome
    });
    tear_down(line, way)?;
    outcome
}

/// Sends for `length`, and counts the arrivals.
fn send_window(
    sender: &UdpSocket,
    payload: usize,
    length: Duration,
    received: &AtomicU64,
) -> Outcome<Measured> {
    let packet = vec![0; payload];
    let (mut sent, mut lost) = (0, 0);
    let mut progress = (0, Instant::now());
    let (start, cpu) = (Instant::now(), processor_time()?);
    while start.elapsed() < length {
        let arrived = received.load(Relaxed);
        if arrived != progress.0 {
            progress = (arrived, Instant::now());
        } else if progress.1.elapsed() > LATE {
            lost = sent - arrived;
            progress.1 = Instant::now();
        }
        if sent >= arrived + lost + WINDOW / 2 {
            std::thread::sleep(Duration::from_micros(20));
            continue;
        }
        while sent < arrived + lost + WINDOW {
            sender.send(&packet)?;
            sent += 1;
        }
    }
    let (count, elapsed) = (received.load(Relaxed) as f64, start.elapsed().as_secs_f64());
    let processor = (processor_time()? - cpu) / count * 1e6;
    Ok(Measured { packets_per_second: count / elapsed, processor, lost })
}

fn receive(socket: &UdpSocket, received: &AtomicU64) {
    if socket.recv(&mut [0; 2048]).is_ok() {
        received.fetch_add(1, Relaxed);
    }
}

fn while_running(stop: &AtomicBool, mut work: impl FnMut()) {
    while !stop.load(Relaxed) {
        work();
    }
}

/// Nanoseconds on a processor, of every thread that lives now (Documentation/scheduler/sched-stats.rst), in
/// seconds.
fn processor_time() -> Outcome<f64> {
    let mut sum = 0.0;
    for task in fs::read_dir("/proc/self/task")? {
        let text = fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
        sum += text.split(' ').next().and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0) / 1e9;
    }
    Ok(sum)
}

/// Reads packets and writes them back.
enum Worker {
    Tun(Tun, Vec<u8>),
    Queue(Queue),
}

impl Worker {
    fn work(&mut self) {
        let fd = match self {
            Self::Tun(tun, _) => PollFd::new(tun, PollFlags::IN),
            Self::Queue(queue) => PollFd::new(&queue.socket, PollFlags::IN),
        };
        let patience = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        if !poll(&mut [fd], Some(&patience)).is_ok_and(|ready| ready > 0) {
            return;
        }
        match self {
            Self::Tun(tun, buffer) => {
                for _ in 0..BATCH {
                    let Ok(length) = tun.read(buffer) else { return };
                    bentpipe_link::ip::restore_hop(&mut buffer[..length]);
                    let _ = tun.write(&buffer[..length]);
                }
            }
            Self::Queue(queue) => queue.work(),
        }
    }
}

fn set_up(line: &Line, way: Way) -> Outcome<Option<Worker>> {
    let gateway = &line.gateway;
    match way {
        Way::Forwarded => Ok(None),
        Way::Tun => {
            let tun = gateway.run(|| Tun::create("snoop0"))??;
            gateway.sysctl("net.ipv4.conf.snoop0.rp_filter", "0")?;
            gateway.ip("link set snoop0 mtu 65535 txqueuelen 4096 up")?;
            gateway.ip("route add default dev snoop0 table 77")?;
            gateway.ip(&format!("rule add pref 77 fwmark {MARK} lookup 77"))?;
            gateway.nft(&format!(
                "table inet paths {{ chain in {{ type filter hook prerouting priority mangle;\n\
                 iifname \"snoop0\" return\nmeta l4proto udp meta mark set {MARK}\n}}; }}\n"
            ))?;
            Ok(Some(Worker::Tun(tun, vec![0; 65536])))
        }
        Way::Queue { batched, changed } => {
            iptables(gateway, "-A")?;
            let socket = gateway.run(|| Queue::open(QUEUE))??;
            Ok(Some(Worker::Queue(Queue { batched, changed, ..socket })))
        }
    }
}

fn tear_down(line: &Line, way: Way) -> Outcome<()> {
    match way {
        Way::Forwarded => Ok(()),
        Way::Tun => {
            line.gateway.ip(&format!("rule del pref 77 fwmark {MARK} lookup 77"))?;
            Ok(line.gateway.nft("delete table inet paths\n")?)
        }
        Way::Queue { .. } => iptables(&line.gateway, "-D"),
    }
}

fn iptables(gateway: &Namespace, what: &str) -> Outcome<()> {
    let line = format!("-t mangle {what} FORWARD -p udp -j NFQUEUE --queue-num {QUEUE} --queue-bypass");
    let mut command: Command = gateway.command("iptables-nft");
    let output = command.args(line.split(' ')).output()?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into()) }
}

/// One queue of linux/netfilter/nfnetlink_queue.h.
struct Queue {
    socket: OwnedFd,
    number: u16,
    batched: bool,
    changed: bool,
    buffer: Vec<u8>,
    verdicts: Vec<u8>,
}

/// Types of messages (`NFNL_SUBSYS_QUEUE` << 8 | `NFQNL_MSG_…`) and of attributes.
const VERDICT: u16 = 0x0301;
const CONFIG: u16 = 0x0302;
const PACKET_HEADER: u16 = 1;
const VERDICT_HEADER: u16 = 2;
const PAYLOAD: u16 = 10;
const COMMAND: u16 = 1;
const PARAMETERS: u16 = 2;
/// `struct nlmsghdr` and `struct nfgenmsg` together.
const HEADERS: usize = 20;

impl Queue {
    fn open(number: u16) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let kind = Some(netlink::NETFILTER);
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, kind)?;
        sockopt::set_socket_recv_buffer_size_force(&socket, 8 << 20)?;
        let queue = Self {
            socket,
            number,
            batched: false,
            changed: false,
            buffer: vec![0; 70_000],
            verdicts: Vec::new(),
        };
        // Bind (1); then copy whole packets (2) of up to 65535 bytes.
        queue.configure(COMMAND, &[1, 0, 0, 0])?;
        queue.configure(PARAMETERS, &[0, 0, 0xff, 0xff, 2])?;
        Ok(queue)
    }

    fn configure(&self, kind: u16, value: &[u8]) -> io::Result<()> {
        let mut bytes = Vec::new();
        message(&mut bytes, CONFIG, self.number, &[(kind, value)]);
        send(&self.socket, &bytes, SendFlags::empty())?;
        Ok(())
    }

    fn work(&mut self) {
        for _ in 0..BATCH {
            let Ok((length, _)) = recv(&self.socket, &mut self.buffer[..], RecvFlags::empty()) else { break };
            let datagram = &self.buffer[..length];
            let Some(attributes) = datagram.get(HEADERS..) else { continue };
            let find = |kind| attributes_in(attributes).find(|(k, _)| *k == kind).map(|(_, value)| value);
            let Some(id) = find(PACKET_HEADER).and_then(|header| header.first_chunk::<4>()) else { continue };
            let mut verdict = [0, 0, 0, 1, 0, 0, 0, 0];
            verdict[4..].copy_from_slice(id);
            let packet = find(PAYLOAD).filter(|_| self.changed);
            let parts = [(VERDICT_HEADER, &verdict[..]), (PAYLOAD, packet.unwrap_or_default())];
            let parts = if packet.is_some() { &parts[..] } else { &parts[..1] };
            message(&mut self.verdicts, VERDICT, self.number, parts);
            if !self.batched || self.verdicts.len() > 100_000 {
                self.flush();
            }
        }
        self.flush();
    }

    fn flush(&mut self) {
        if !self.verdicts.is_empty() {
            if let Err(error) = send(&self.socket, &self.verdicts, SendFlags::empty())
                && io::Error::from(error).kind() != ErrorKind::WouldBlock
            {
                eprintln!("verdict: {error}");
            }
            self.verdicts.clear();
        }
    }
}

/// Appends a message with these attributes (netlink(7)).
fn message(bytes: &mut Vec<u8>, kind: u16, queue: u16, attributes: &[(u16, &[u8])]) {
    let start = bytes.len();
    bytes.extend([0; 4]);
    bytes.extend(kind.to_ne_bytes());
    // NLM_F_REQUEST.
    bytes.extend(1u16.to_ne_bytes());
    bytes.extend([0; 10]);
    bytes.extend(queue.to_be_bytes());
    for (kind, value) in attributes {
        bytes.extend((value.len() as u16 + 4).to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(*value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    let length = (bytes.len() - start) as u32;
    bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
}

fn attributes_in(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let [a, b, c, d] = *bytes.first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([a, b]));
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([c, d]) & 0x3fff, value))
    })
}
