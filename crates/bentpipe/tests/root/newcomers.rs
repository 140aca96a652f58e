//! What connections that are begun around an order of the operator notice of it: nothing.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bentpipe_link::Profile;
use bentpipe_testbed::Namespace;

use crate::operated::{PATIENCE, Topology};
use socket2::{Domain, Socket, Type};

const LEG: &str = "rate = \"20Mbit/s\"\nrtt = \"40ms\"\n";
const ADMIN: &str = "listen = \"off\"";
/// Connections begun around an order, half of them from each side, and the time between two of a side.
const COUNT: usize = 1000;
const INTERVAL: Duration = Duration::from_millis(12);
/// The port of the first client. The kernel may give a port again after seconds, and a server whose
/// connection from there ended a moment ago may let its next client wait.
const FIRST_PORT: u16 = 20_000;
/// When the order is given after the first of them.
const BEFORE: Duration = Duration::from_millis(1500);
/// A connection sends this many bytes, has them back, and ends.
const REQUEST: usize = 200;
/// What a busy machine may add to the waits of most connections, and to the longest of all. That no SYN was
/// lost, which costs a second (RFC 6298 §2.1), the kernels' counts of repeated ones say.
const NOISE: Duration = Duration::from_millis(300);
const MOST_NOISE: Duration = Duration::from_secs(3);

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_bentpipe"))
}

fn succeed(output: &Output) -> String {
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{complaint}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A server that echoes, on connections one after the other or at once, until it is dropped.
struct Echo {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
}

impl Echo {
    fn start(host: &Namespace, address: SocketAddr) -> Self {
        let listener = host.run(|| TcpListener::bind(address).unwrap()).unwrap();
        rustix::net::listen(&listener, 4096).unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), Arc::<AtomicBool>::default());
        let stopped = stop.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Acquire) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                std::thread::spawn(move || echo(stream));
            }
        });
        Self { address, stop }
    }
}

impl Drop for Echo {
    /// The listener goes with its namespace.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut request = [0; REQUEST];
    stream.read_exact(&mut request)?;
    stream.write_all(&request)
}

/// How long it takes from the SYN to the last byte of the echo and the end.
fn ask(server: SocketAddr) -> std::io::Result<Duration> {
    ask_from(0, server)
}

/// The same from a certain port.
fn ask_from(port: u16, server: SocketAddr) -> std::io::Result<Duration> {
    let start = Instant::now();
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from(([0, 0, 0, 0], port)).into())?;
    socket.connect_timeout(&server.into(), PATIENCE)?;
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(&[7; REQUEST])?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    assert!(answer == [7; REQUEST], "{} bytes of the echo", answer.len());
    Ok(start.elapsed())
}

/// SYNs that this thread's host has repeated so far.
fn repeated_syns() -> u64 {
    // A line of names, and one of their values.
    let text = std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt: ")).map(str::split_whitespace);
    let (names, mut values) = (lines.next().unwrap(), lines.next().unwrap());
    let place = names.into_iter().position(|name| name == "TCPSynRetrans").unwrap();
    values.nth(place).unwrap().parse().unwrap()
}

/// What [`COUNT`] connections had to wait; none has failed.
struct Waits {
    /// In ascending order.
    waits: Vec<Duration>,
    /// By their clients, and by the gateway for them.
    repeated_syns: u64,
}

impl Waits {
    /// Begins connections from both sides, and gives an order in their midst.
    fn around(topology: &Topology, order: impl FnOnce() + Send) -> Self {
        let sides = [
            (&topology.client, Echo::start(&topology.server, topology.address(0))),
            (&topology.server, Echo::start(&topology.client, topology.client_address(0))),
        ];
        let hosts = [&topology.client, &topology.gateway, &topology.server];
        let repeated = || hosts.map(|host| host.run(repeated_syns).unwrap()).iter().sum::<u64>();
        let before = repeated();
        let mut waits = std::thread::scope(|scope| {
            let askers = sides.each_ref().map(|(host, echo)| {
                let server = echo.address;
                scope.spawn(move || host.run(|| ask_again_and_again(server)).unwrap())
            });
            std::thread::sleep(BEFORE);
            order();
            askers.map(|asker| asker.join().unwrap()).concat()
        });
        waits.sort_unstable();
        assert_eq!(waits.len(), COUNT);
        Self { waits, repeated_syns: repeated() - before }
    }

    fn quantile(&self, share: f64) -> Duration {
        self.waits[(share * (self.waits.len() - 1) as f64) as usize]
    }

    /// Fails if these are longer than `unsplit`, apart from what a busy machine does to either.
    fn expect_like(&self, unsplit: &Self, what: &str) {
        for share in [0.5, 0.9, 0.99, 1.0] {
            let (wait, unsplit) = (self.quantile(share), unsplit.quantile(share));
            println!("{what}: {:.0}% wait at most {wait:?}, unsplit {unsplit:?}", share * 100.0);
            let noise = if share < 1.0 { unsplit / 2 + NOISE } else { MOST_NOISE };
            assert!(wait < unsplit + noise, "{what}: {wait:?} instead of {unsplit:?}");
        }
        let (repeated, unsplit) = (self.repeated_syns, unsplit.repeated_syns);
        assert!(repeated <= unsplit, "{what}: {repeated} SYNs repeated, unsplit {unsplit}");
    }
}

fn ask_again_and_again(server: SocketAddr) -> Vec<Duration> {
    std::thread::scope(|scope| {
        let start = Instant::now();
        let askers: Vec<_> = (0..COUNT as u32 / 2)
            .map(|number| {
                let at = start + number * INTERVAL;
                std::thread::sleep(at.saturating_duration_since(Instant::now()));
                let port = FIRST_PORT + number as u16;
                (start.elapsed(), scope.spawn(move || ask_from(port, server)))
            })
            .collect();
        let wait =
            |(begun, asker): (Duration, std::thread::ScopedJoinHandle<'_, std::io::Result<Duration>>)| {
                asker
                    .join()
                    .unwrap()
                    .unwrap_or_else(|error| panic!("the connection begun after {begun:?}: {error}"))
            };
        askers.into_iter().map(wait).collect()
    })
}

fn total_flows(topology: &Topology) -> u64 {
    topology.status()["totals"]["flows_total"].as_u64().unwrap()
}

#[test]
fn of_a_thousand_connections_begun_around_an_order_none_is_reset_or_waits() {
    let Some(mut topology) = Topology::new(program(), Some(&Profile::Leo.config())) else { return };
    let unsplit = Waits::around(&topology, || {});
    topology.configure(LEG, ADMIN);
    topology.start();
    Waits::around(&topology, || {}).expect_like(&unsplit, "split");
    assert_eq!(total_flows(&topology), COUNT as u64);
    let reload = || {
        topology.configure("rate = \"19Mbit/s\"\nrtt = \"50ms\"\n", ADMIN);
        succeed(&topology.command(&["reload"]));
    };
    Waits::around(&topology, reload).expect_like(&unsplit, "around a reload");
    assert_eq!(total_flows(&topology), 2 * COUNT as u64, "a reload lets none pass");
    let bypass = || {
        succeed(&topology.command(&["bypass", "on"]));
        std::thread::sleep(BEFORE);
        succeed(&topology.command(&["bypass", "off"]));
    };
    Waits::around(&topology, bypass).expect_like(&unsplit, "around a bypass");
    let flows = total_flows(&topology) - 2 * COUNT as u64;
    assert!((1..COUNT as u64).contains(&flows), "{flows} of {COUNT} were split");
    let drain = || {
        assert_eq!(succeed(&topology.command(&["drain"])), "the daemon has ended\n");
    };
    Waits::around(&topology, drain).expect_like(&unsplit, "around a drain");
    let status = topology.daemon().wait_timeout(PATIENCE).unwrap().expect("the daemon has ended");
    assert_eq!(status.code(), Some(0));
}

#[test]
fn draining_waits_for_a_client_whose_acknowledgement_is_late() {
    let Some(mut topology) = Topology::new(program(), None) else { return };
    topology.configure(LEG, ADMIN);
    topology.start();
    let echo = Echo::start(&topology.server, topology.address(0));
    let server = echo.address;
    // The SYN leaves, and nothing behind it.
    topology
        .client
        .nft("table inet late { chain out { type filter hook output priority raw; tcp flags & (syn | ack) == ack drop; }; }")
        .unwrap();
    std::thread::scope(|scope| {
        let topology = &topology;
        let asker = scope.spawn(|| topology.client.run(|| ask(server)).unwrap());
        // The kernel answers the SYN, and nothing is accepted.
        let handshake =
            || topology.gateway.command("ss").args(["-Htan", "state", "syn-recv"]).output().unwrap();
        let start = Instant::now();
        while handshake().stdout.is_empty() {
            assert!(start.elapsed() < PATIENCE, "no handshake begins");
        }
        assert_eq!(total_flows(topology), 0);
        let drain = scope.spawn(|| topology.command(&["drain"]));
        std::thread::sleep(Duration::from_secs(5));
        assert!(!drain.is_finished(), "the daemon has ended without its client");
        topology.client.nft("delete table inet late").unwrap();
        asker.join().unwrap().expect("the connection is served");
        succeed(&drain.join().unwrap());
    });
    topology.daemon().wait_timeout(PATIENCE).unwrap().expect("the daemon has ended");
}

#[test]
fn an_idle_daemon_that_drains_can_be_told_to_stay() {
    let Some(mut topology) = Topology::new(program(), None) else { return };
    topology.configure(LEG, ADMIN);
    topology.start();
    let echo = Echo::start(&topology.server, topology.address(0));
    let server = echo.address;
    let connect = |topology: &Topology| topology.client.run(|| ask(server)).unwrap().unwrap();
    succeed(&topology.command(&["drain", "--no-wait"]));
    // The very next connection passes.
    connect(&topology);
    assert_eq!(total_flows(&topology), 0);
    std::thread::sleep(Duration::from_secs(4));
    assert!(!topology.status()["draining"].is_null());
    succeed(&topology.command(&["drain", "--cancel"]));
    let start = Instant::now();
    while total_flows(&topology) == 0 {
        assert!(start.elapsed() < PATIENCE, "new connections still pass");
        connect(&topology);
    }
    // Not waited for, it ends by itself; a deadline sooner than the time to cancel counts.
    succeed(&topology.command(&["drain", "--no-wait", "--deadline", "1s"]));
    let status = topology.daemon().wait_timeout(Duration::from_secs(10)).unwrap().expect("it has ended");
    assert_eq!(status.code(), Some(0));
}

#[test]
fn the_bypass_stays_on_through_everything_until_it_is_switched_off() {
    let Some(mut topology) = Topology::new(program(), None) else { return };
    topology.configure(LEG, ADMIN);
    topology.start();
    let echo = Echo::start(&topology.server, topology.address(0));
    let server = echo.address;
    let is_split = |topology: &Topology| {
        let before = total_flows(topology);
        topology.client.run(|| ask(server)).unwrap().unwrap();
        total_flows(topology) > before
    };
    let downloads = topology.downloads(3, 2000, Duration::from_millis(20));
    assert!(is_split(&topology));
    let said = succeed(&topology.command(&["bypass", "on"]));
    assert!(said.starts_with("bypass on: new connections pass unsplit"), "{said}");
    assert!(!is_split(&topology), "the very next connection passes");
    succeed(&topology.command(&["reload"]));
    std::thread::sleep(Duration::from_millis(100));
    assert!(!is_split(&topology), "after a reload");
    succeed(&topology.command(&["upgrade"]));
    std::thread::sleep(Duration::from_millis(100));
    assert!(!is_split(&topology), "after an upgrade");
    let status = topology.status();
    assert_eq!((&status["bypass"], &status["ready"]), (&true.into(), &false.into()));
    assert_eq!(status["totals"]["flows_open"], 3, "those that were split go on");
    assert!(downloads.finish().iter().all(|seen| seen.bytes > 0));
    topology.stop();
    topology.start();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(topology.status()["bypass"], true);
    assert!(!is_split(&topology), "after a restart");
    succeed(&topology.command(&["bypass", "off"]));
    let start = Instant::now();
    while !is_split(&topology) {
        assert!(start.elapsed() < PATIENCE, "new connections still pass");
    }
    topology.stop();
    topology.start();
    assert_eq!(topology.status()["bypass"], false);
    topology.stop();
}

#[test]
fn a_bypass_that_cannot_be_kept_is_on_and_the_command_says_until_when() {
    let Some(mut topology) = Topology::new(program(), None) else { return };
    topology.configure(LEG, &format!("{ADMIN}\nstate_folder = \"/proc/bentpipe\""));
    topology.start();
    let output = topology.command(&["bypass", "on"]);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    for part in ["only until this daemon ends", "/proc/bentpipe/bypass", "admin.state_folder"] {
        assert!(complaint.contains(part), "\"{part}\" is not in: {complaint}");
    }
    assert_eq!(topology.status()["bypass"], true);
    topology.stop();
}
