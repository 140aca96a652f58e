//! Connections that come and go, each with data both ways that both ends check.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bentpipe_testbed::Namespace;
use socket2::SockRef;

use crate::disturbance::{Operator, Period};
use crate::operated::Topology;
use crate::random::Random;

/// No outage, and no pause of the daemon, is as long.
const PATIENCE: Duration = Duration::from_secs(90);
/// Between two connections of one client, at the most.
const REST_MS: u64 = 400;
/// What a client says first: the seed of the data, and how many bytes it will send and wants.
const HEADER: usize = 24;
/// Through so many outages an unsplit connection may be silent for as long as that: its sender's
/// retransmissions back off in one, and the next one takes those that are left (RFC 6298, 5.5).
const SILENCING_OUTAGES: usize = 2;
const GATEWAY: &str = "gateway";
/// How many of the failures the report names.
const NAMED: usize = 20;

/// Clients and servers on both sides of the gateway.
pub(crate) struct Churn {
    stop: Arc<AtomicBool>,
    shared: Arc<Shared>,
    clients: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    hosts: [(&'static str, Namespace); 3],
    complete: AtomicU64,
    aborted: AtomicU64,
    bytes: AtomicU64,
    open: AtomicU64,
    failures: Mutex<Vec<Failure>>,
    corruptions: Mutex<Vec<String>>,
}

/// A connection that did not come to its end.
#[derive(Debug, Clone)]
struct Failure {
    begun: Instant,
    ended: Instant,
    what: String,
    /// Nothing came, and the gateway had no part in it.
    is_silent_and_unsplit: bool,
}

/// The sockets of a connection to which nothing has come, on each host.
#[derive(Debug)]
struct Silence {
    sockets: [(&'static str, String); 3],
}

/// How connections have ended so far.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) complete: u64,
    /// By their clients, as these meant to.
    aborted: u64,
    bytes: u64,
    open: u64,
    /// While something happened that breaks connections.
    broken: usize,
    /// They passed the gateway unsplit, and outages had their senders wait for too long.
    silenced: usize,
    unexplained: Vec<Failure>,
    corruptions: Vec<String>,
}

/// What one connection is to do.
#[derive(Debug, Clone, Copy)]
struct Plan {
    seed: u64,
    up: u64,
    down: u64,
    /// The client resets it after so many bytes.
    abort_after: Option<u64>,
    /// Between the client's pieces.
    pause: Duration,
}

impl Churn {
    /// Half of the clients are on each side; every other one speaks IPv6.
    pub(crate) fn start(topology: &Topology, clients: u64, random: &mut Random) -> Self {
        let (stop, shared) = (Arc::<AtomicBool>::default(), Arc::new(Shared::new(topology)));
        let sides = [
            (&topology.client, serve(&topology.server, &shared, &topology.addresses())),
            (&topology.server, serve(&topology.client, &shared, &topology.client_addresses())),
        ];
        let client = |number: u64| {
            let (host, servers) = &sides[number as usize % 2];
            let server = servers[number as usize / 2 % 2];
            let (host, random) = ((*host).clone(), random.fork());
            let (stop, shared) = (stop.clone(), shared.clone());
            std::thread::spawn(move || {
                host.run(|| connect_again_and_again(server, random, &stop, &shared)).expect("its namespace")
            })
        };
        Self { clients: (0..clients).map(client).collect(), stop, shared }
    }

    /// How connections have ended so far.
    pub(crate) fn tally(&self, operator: &Operator) -> Tally {
        self.shared.tally(operator)
    }

    /// Lets the connections come to their ends.
    pub(crate) fn finish(self, operator: &Operator) -> Tally {
        self.stop.store(true, Ordering::Release);
        self.clients.into_iter().for_each(|client| client.join().expect("a client"));
        self.shared.tally(operator)
    }
}

impl Shared {
    fn new(topology: &Topology) -> Self {
        let Topology { client, gateway, server, .. } = topology;
        Self {
            hosts: [("client", client), (GATEWAY, gateway), ("server", server)]
                .map(|(name, host)| (name, host.clone())),
            complete: AtomicU64::new(0),
            aborted: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            open: AtomicU64::new(0),
            failures: Mutex::default(),
            corruptions: Mutex::default(),
        }
    }

    /// What is there of a connection to which nothing comes: its sockets on every host, with their timers.
    fn silence(&self, client_port: u16) -> Silence {
        let of = |(name, host): &(&'static str, Namespace)| {
            let filter = format!("( sport = :{client_port} or dport = :{client_port} )");
            let output = host.command("ss").args(["-Htanoi", &filter]).output();
            let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
            (*name, text.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" "))
        };
        Silence { sockets: self.hosts.each_ref().map(of) }
    }

    /// Those that failed while something broke connections, or could not get through outages, may fail.
    fn tally(&self, operator: &Operator) -> Tally {
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let is_broken = |failure: &Failure| {
            let life = Period { start: failure.begun, end: failure.ended };
            operator.breaks().iter().any(|of| of.overlaps(&life))
        };
        let is_silenced = |failure: &Failure| {
            let silence = Period { start: failure.ended - PATIENCE, end: failure.ended };
            let outages = operator.outages().filter(|outage| outage.overlaps(&silence));
            failure.is_silent_and_unsplit && outages.count() >= SILENCING_OUTAGES
        };
        let (broken, others): (Vec<_>, Vec<_>) = failures.into_iter().partition(is_broken);
        let (silenced, unexplained): (Vec<_>, _) = others.into_iter().partition(is_silenced);
        Tally {
            complete: self.complete.load(Ordering::Relaxed),
            aborted: self.aborted.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            open: self.open.load(Ordering::Relaxed),
            broken: broken.len(),
            silenced: silenced.len(),
            unexplained,
            corruptions: self.corruptions.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    fn corrupt(&self, what: String) {
        self.corruptions.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }
}

impl Silence {
    /// The gateway has no half of it.
    fn is_unsplit(&self) -> bool {
        self.sockets.iter().all(|(host, sockets)| *host != GATEWAY || sockets.is_empty())
    }
}

impl fmt::Display for Silence {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "nothing came for {PATIENCE:?}")?;
        self.sockets.iter().try_for_each(|(host, sockets)| write!(out, "; {host}: {sockets}"))
    }
}

impl std::error::Error for Silence {}

impl Tally {
    /// What must not be.
    pub(crate) fn faults(&self, operator: &Operator) -> Vec<String> {
        let mut faults = self.corruptions.clone();
        let fault = |failure: &Failure| {
            let Failure { begun, ended, what, .. } = failure;
            let around = operator.events_around(*begun, *ended);
            format!("a connection failed after {:?} without a cause: {what}; {around}", *ended - *begun)
        };
        faults.extend(self.unexplained.iter().take(NAMED).map(fault));
        if self.unexplained.len() > NAMED {
            faults.push(format!("and {} more connections", self.unexplained.len() - NAMED));
        }
        if self.complete == 0 {
            faults.push("no connection was complete".to_owned());
        }
        faults
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { complete, aborted, bytes, open, broken, silenced, unexplained, .. } = self;
        let (failed, unexplained) = (broken + silenced + unexplained.len(), unexplained.len());
        let megabytes = bytes / 1_000_000;
        write!(
            out,
            "{complete} complete, {aborted} aborted, {failed} failed ({silenced} unsplit through outages, {unexplained} without a cause), {open} open, {megabytes} MB"
        )
    }
}

/// Serves on a port of each of these addresses. The listeners go with the process.
fn serve(host: &Namespace, shared: &Arc<Shared>, addresses: &[SocketAddr; 2]) -> [SocketAddr; 2] {
    addresses.map(|address| {
        let listener = host.run(|| TcpListener::bind(address)).expect("its namespace").expect("a port");
        rustix::net::listen(&listener, 1024).expect("a longer queue");
        let address = listener.local_addr().expect("its address");
        let shared = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = shared.clone();
                // What goes wrong the client says, but for data that is other than it was sent.
                std::thread::spawn(move || answer(stream, &shared));
            }
        });
        address
    })
}

fn answer(mut stream: TcpStream, shared: &Shared) -> io::Result<()> {
    stream.set_read_timeout(Some(2 * PATIENCE))?;
    let mut header = [0; HEADER];
    stream.read_exact(&mut header)?;
    let [seed, up, down] = numbers(&header);
    let mut writer = stream.try_clone()?;
    let sender = std::thread::spawn(move || -> io::Result<()> {
        send(&mut writer, !seed, down, Duration::ZERO)?;
        writer.shutdown(Shutdown::Write)
    });
    let received = receive(&mut stream, seed, up, shared);
    let sent = sender.join().unwrap_or_else(|_| Err(io::Error::other("panicked")));
    received.and(sent)
}

fn connect_again_and_again(server: SocketAddr, mut random: Random, stop: &AtomicBool, shared: &Shared) {
    while !stop.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_millis(random.below(REST_MS)));
        let plan = Plan::any(&mut random);
        let begun = Instant::now();
        shared.open.fetch_add(1, Ordering::Relaxed);
        match transfer(server, plan, shared) {
            Ok(true) => shared.complete.fetch_add(1, Ordering::Relaxed),
            Ok(false) => shared.aborted.fetch_add(1, Ordering::Relaxed),
            Err(error) => {
                let what = format!("{server}, {plan:?}: {error}");
                let silence = error.get_ref().and_then(|inner| inner.downcast_ref::<Silence>());
                let is_silent_and_unsplit = silence.is_some_and(Silence::is_unsplit);
                let failure = Failure { begun, ended: Instant::now(), what, is_silent_and_unsplit };
                shared.failures.lock().unwrap_or_else(PoisonError::into_inner).push(failure);
                0
            }
        };
        shared.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Plan {
    fn any(random: &mut Random) -> Self {
        let (up, down) = (random.size() / 4, random.size());
        Self {
            seed: random.next(),
            up,
            down,
            abort_after: random.percent(10).then(|| random.below(down + 1)),
            pause: Duration::from_millis(if random.percent(20) { random.below(50) } else { 0 }),
        }
    }
}

/// True if it came to its end, false if it was reset as planned.
fn transfer(server: SocketAddr, plan: Plan, shared: &Shared) -> io::Result<bool> {
    let mut stream = TcpStream::connect_timeout(&server, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let port = stream.local_addr()?.port();
    let explain = |error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::other(shared.silence(port)),
        _ => error,
    };
    let header = [plan.seed, plan.up, plan.down].map(u64::to_be_bytes).concat();
    stream.write_all(&header)?;
    let mut writer = stream.try_clone()?;
    let sender = std::thread::spawn(move || send(&mut writer, plan.seed, plan.up, plan.pause));
    let length = plan.abort_after.unwrap_or(plan.down);
    let received = receive(&mut stream, !plan.seed, length, shared).map_err(explain);
    if plan.abort_after.is_some() && received.is_ok() {
        SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
        stream.shutdown(Shutdown::Both).ok();
        drop(stream);
        let _ = sender.join();
        return Ok(false);
    }
    let sent = sender.join().unwrap_or_else(|_| Err(io::Error::other("panicked")));
    received.and(sent)?;
    match stream.read(&mut [0]).map_err(explain)? {
        0 => Ok(true),
        _ => Err(io::Error::other("more data than was asked for")),
    }
}

fn send(stream: &mut TcpStream, seed: u64, length: u64, pause: Duration) -> io::Result<()> {
    let mut place = 0;
    while place < length {
        let end = length.min(place + 16 * 1024);
        let piece: Vec<u8> = (place..end).map(|place| byte(seed, place)).collect();
        stream.write_all(&piece)?;
        place = end;
        std::thread::sleep(pause);
    }
    Ok(())
}

fn receive(stream: &mut TcpStream, seed: u64, length: u64, shared: &Shared) -> io::Result<()> {
    let (mut place, mut buffer) = (0, vec![0; 64 * 1024]);
    while place < length {
        let room = buffer.len().min((length - place) as usize);
        let count = stream.read(&mut buffer[..room])?;
        if count == 0 {
            let error = format!("the stream ended at {place} of {length} bytes");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, error));
        }
        let is_right = |(at, found): (u64, &u8)| *found == byte(seed, at);
        if !(place..).zip(&buffer[..count]).all(is_right) {
            shared.corrupt(format!("other data than was sent, near byte {place} of seed {seed:#x}"));
            return Err(io::Error::new(io::ErrorKind::InvalidData, "other data than was sent"));
        }
        place += count as u64;
        shared.bytes.fetch_add(count as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// The byte at a place of a stream.
fn byte(seed: u64, place: u64) -> u8 {
    let mixed = (place ^ seed.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

fn numbers(header: &[u8; HEADER]) -> [u64; 3] {
    let (words, _) = header.as_chunks::<8>();
    std::array::from_fn(|index| u64::from_be_bytes(words[index]))
}
