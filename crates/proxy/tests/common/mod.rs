//! Three hosts on a line, client – gateway – server, as network namespaces, and a daemon on the gateway.
//!
//! The gateway's interface towards the server is `sat0`. Each address has both families; nothing of it has a
//! name outside.
#![allow(dead_code, missing_docs, unreachable_pub)]

pub mod accounts;
pub mod census;
pub mod company;
pub mod crowd;
pub mod exchange;
pub mod footprint;
pub mod forger;
pub mod handover;
pub mod probe;
pub mod symmetric;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use accounts::Accounts;
use bentpipe_kernel::sockopt;
use bentpipe_link::LinkConfig;
use bentpipe_proxy::telemetry::{FlowReport, Gain, LegReport, LimitsReport, PolicyReport};
use bentpipe_testbed::{Namespace, SatelliteLink, veth};
use rustix::process::{Pid, Signal, kill_process};
use socket2::{Domain, SockRef, Socket, Type};

pub const CLIENT: [&str; 2] = ["10.77.1.2", "fd77:1::2"];
pub const SERVER: [&str; 2] = ["10.77.2.2", "fd77:2::2"];
pub const RELAYS: [&str; 2] = ["copy", "splice"];
/// Long enough for anything that works, on a machine that does other things as well.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Looks again and again, until it is so.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Connections that may wait to be accepted by a listener of the server.
const BACKLOG: i32 = 4096;

const CONFIG_VARIABLE: &str = "BENTPIPE_TEST_DAEMON_CONFIG";
/// The socket of the daemon that is to be taken over from.
const TAKE_OVER_VARIABLE: &str = "BENTPIPE_TEST_DAEMON_TAKE_OVER";
/// The file for the daemon's log, if it is wanted.
pub const LOG_VARIABLE: &str = "BENTPIPE_TEST_DAEMON_LOG";

/// A host of the testbed, with the shorthands of these tests.
#[derive(Clone)]
pub struct Host {
    namespace: Namespace,
}

pub struct Net {
    pub client: Host,
    pub gateway: Host,
    pub server: Host,
    /// What is between the gateway and the server if it is not a cable.
    pub link: Option<SatelliteLink>,
    /// What the gateway had before it had a daemon.
    traces: String,
    /// Held as long as the network exists.
    _turn: Option<company::Beside>,
}

/// What can be seen of a daemon.
#[derive(Debug, serde::Deserialize)]
pub struct Seen {
    pub legs: Vec<LegReport>,
    pub gain: Gain,
    pub policy: PolicyReport,
    pub limits: LimitsReport,
    pub flows: Vec<FlowReport>,
    pub ready: bool,
}

impl Seen {
    pub fn leg(&self, name: &str) -> &LegReport {
        self.legs.iter().find(|leg| leg.name == name).unwrap_or_else(|| panic!("{name} in {:#?}", self.legs))
    }

    /// How many connections have had this verdict.
    pub fn verdict(&self, name: &str) -> u64 {
        let verdict = self.policy.verdicts.iter().find(|report| report.verdict == name);
        verdict.unwrap_or_else(|| panic!("{name} in {:#?}", self.policy)).count
    }

    /// What the rules have matched, in their order.
    pub fn matched(&self) -> Vec<u64> {
        self.policy.rules.iter().map(|rule| rule.matched).collect()
    }
}

/// A daemon in a process of its own on the gateway.
pub struct Running {
    pub child: Child,
    stdin: Option<ChildStdin>,
    lines: BufReader<std::process::ChildStdout>,
    gateway: Host,
    /// The traces that it must not add to.
    traces: String,
    accounts: Accounts,
    config: tempfile::NamedTempFile,
}

/// The network, or nothing and the reason on standard output.
pub fn network() -> Option<Net> {
    may_run().then(|| Net::new(None))
}

/// The same with an emulated satellite link between the gateway and the server; its forward direction leads
/// to the server.
pub fn network_over(link: &LinkConfig) -> Option<Net> {
    may_run().then(|| Net::new(Some(link)))
}

fn may_run() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped: needs root: network namespaces and transparent sockets");
    }
    root
}

impl Net {
    fn new(link: Option<&LinkConfig>) -> Self {
        let turn = company::beside();
        let [client, gateway, server] = ["client", "gateway", "server"].map(Host::new);
        veth(&gateway.namespace, "ground0", &client.namespace, "up0").unwrap();
        let link = match link {
            Some(config) => Some(satellite(&gateway, &server, config)),
            None => {
                veth(&gateway.namespace, "sat0", &server.namespace, "up0").unwrap();
                None
            }
        };
        address(&gateway, "ground0", &client, "up0", 1);
        address(&gateway, "sat0", &server, "up0", 2);
        for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
            gateway.sysctl(key, "1");
        }
        for (host, network) in [(&client, 1), (&server, 2)] {
            host.wait_for_gateway(network);
        }
        let traces = traces(&gateway);
        Self { client, gateway, server, link, traces, _turn: turn }
    }

    /// A gateway between two hosts that are wired already.
    fn of(client: Host, gateway: Host, server: Host) -> Self {
        let traces = traces(&gateway);
        Self { client, gateway, server, link: None, traces, _turn: company::beside() }
    }

    /// Joins a host to the gateway by a veth pair in network `number`.
    pub fn wire(&self, host: &Host, interface: &str, at_gateway: &str, number: u8) {
        veth(&self.gateway.namespace, at_gateway, &host.namespace, interface).unwrap();
        address(&self.gateway, at_gateway, host, interface, number);
    }

    /// Joins a host to the gateway by a veth pair without addresses.
    pub fn cable(&self, at_gateway: &str, host: &Host, interface: &str) {
        cable(&self.gateway, at_gateway, host, interface);
    }

    /// Starts a daemon with `extra` lines in `[proxy]`.
    pub fn daemon(&self, extra: &str) -> Running {
        self.try_daemon(&configuration(extra)).unwrap_or_else(|error| panic!("daemon: {error}"))
    }

    /// Starts a daemon with this configuration, or returns what it said.
    pub fn try_daemon(&self, text: &str) -> Result<Running, String> {
        self.try_daemon_with_path(text, None)
    }

    /// The same where the daemon finds programs in one folder only.
    pub fn try_daemon_with_path(&self, text: &str, path: Option<&Path>) -> Result<Running, String> {
        self.try_daemon_changed(text, |command| {
            if let Some(path) = path {
                command.env("PATH", path);
            }
        })
    }

    /// The same whose process is changed before it runs.
    pub fn try_daemon_changed(
        &self,
        text: &str,
        change: impl FnOnce(&mut Command),
    ) -> Result<Running, String> {
        let mut config = tempfile::NamedTempFile::new().unwrap();
        config.write_all(text.as_bytes()).unwrap();
        let program = std::env::current_exe().unwrap();
        let mut command = self.gateway.command(program.to_str().unwrap());
        change(&mut command);
        let mut child = command
            .args(["--exact", "common::daemon_process", "--ignored", "--nocapture"])
            .env(CONFIG_VARIABLE, config.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let accounts = Accounts::take(child.id());
        let (gateway, traces) = (self.gateway.clone(), self.traces.clone());
        let mut running = Running { child, stdin, lines, gateway, traces, accounts, config };
        loop {
            let Some(line) = running.line() else { return Err("it has died".to_owned()) };
            if line == "ready" {
                running.accounts = Accounts::at_rest(running.pid());
                return Ok(running);
            } else if let Some(error) = line.strip_prefix("error: ") {
                return Err(error.to_owned());
            }
        }
    }

    /// A listener on the server, which nobody waits for longer than [`PATIENCE`].
    pub fn listen(&self, address: &str) -> TcpListener {
        let listener = self.server.enter(|| TcpListener::bind(socket_address(address, 0)).unwrap());
        // With the usual 128 the kernel falls back on SYN cookies in a burst and forgets connections that say
        // nothing.
        rustix::net::listen(&listener, BACKLOG).unwrap();
        SockRef::from(&listener).set_read_timeout(Some(PATIENCE)).unwrap();
        listener
    }

    /// A connection from the client through the gateway, both ends of it.
    pub fn connection(&self, listener: &TcpListener) -> (TcpStream, TcpStream) {
        let to = listener.local_addr().unwrap();
        let client = self.client.enter(|| TcpStream::connect(to).unwrap());
        let (server, _) = listener.accept().unwrap();
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.set_write_timeout(Some(PATIENCE)).unwrap();
        }
        (client, server)
    }

    /// Many connections at once, both ends of each; an end is to be told from the others by the client's
    /// port.
    pub fn connections(&self, listener: &TcpListener, count: usize) -> (Vec<TcpStream>, Vec<TcpStream>) {
        let to = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            let accept = || (0..count).map(|_| listener.accept().unwrap().0).collect();
            let servers = scope.spawn(accept);
            let connect = || (0..count).map(|_| TcpStream::connect(to).unwrap()).collect::<Vec<_>>();
            let clients = self.client.enter(connect);
            let servers: Vec<TcpStream> = servers.join().unwrap();
            for stream in clients.iter().chain(&servers) {
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                stream.set_write_timeout(Some(PATIENCE)).unwrap();
            }
            (clients, servers)
        })
    }

    /// Flows whose packets the kernel sends through the daemon, of both families.
    pub fn snooped_flows(&self) -> usize {
        let list = |family| self.gateway.output(&format!("nft list set inet bentpipe snooped{family}"));
        [4, 6].map(|family| list(family).matches(" expires ").count()).iter().sum()
    }

    /// Whether this client's connection is one of them.
    pub fn is_snooped(&self, client: &TcpStream) -> bool {
        let address = client.local_addr().unwrap();
        let family = if address.is_ipv4() { 4 } else { 6 };
        let elements = self.gateway.output(&format!("nft list set inet bentpipe snooped{family}"));
        elements.contains(&format!("{} . {} . ", address.ip(), address.port()))
    }

    /// Everything that the daemon may leave on the gateway.
    pub fn traces(&self) -> String {
        traces(&self.gateway)
    }

    /// Fails if the gateway is not as it was before it had a daemon.
    pub fn expect_untouched(&self) {
        expect_untouched(&self.gateway, &self.traces);
    }
}

/// No rule and no route is left, no socket but those that time alone removes, and no process that keeps the
/// namespace.
fn expect_untouched(gateway: &Host, before: &str) {
    assert_eq!(traces(gateway), before, "the daemon has left something");
    let sockets = gateway.output("ss -Htan");
    assert!(sockets.lines().all(|line| line.starts_with("TIME-WAIT")), "{sockets}");
    let left = accounts::processes_in(gateway);
    assert!(left.is_empty(), "{left:?} live in the gateway's namespace");
}

fn satellite(gateway: &Host, server: &Host, config: &LinkConfig) -> SatelliteLink {
    SatelliteLink::start(&gateway.namespace, "sat0", &server.namespace, "up0", config, 1, 1500).unwrap()
}

/// Gives the two ends of network `number` their addresses, and the host its way out.
fn address(gateway: &Host, at_gateway: &str, host: &Host, interface: &str, number: u8) {
    for (host, interface, last) in [(gateway, at_gateway, 1), (host, interface, 2)] {
        host.run(&format!("ip addr add 10.77.{number}.{last}/24 dev {interface}"));
        host.run(&format!("ip addr add fd77:{number}::{last}/64 dev {interface} nodad"));
    }
    host.run(&format!("ip route add default via 10.77.{number}.1"));
    host.run(&format!("ip route add default via fd77:{number}::1"));
}

/// Joins two hosts by a veth pair.
pub fn cable(a: &Host, at_a: &str, b: &Host, at_b: &str) {
    veth(&a.namespace, at_a, &b.namespace, at_b).unwrap();
}

fn traces(gateway: &Host) -> String {
    [
        // Without the elements of sets, which come and go.
        "nft -s -t list ruleset",
        "ip -4 rule",
        "ip -6 rule",
        "ip -4 route show table 25200",
        "ip -6 route show table 25200",
        "ip -4 route show table 25202",
        "ip -4 route show table 25203",
        "ip -br link",
    ]
    .map(|command| gateway.output(command))
    .join("---\n")
}

/// A configuration with `sat0` as the satellite leg and `extra` lines in `[proxy]`.
pub fn configuration(extra: &str) -> String {
    format!("[proxy]\n{extra}\n[legs.satellite]\ninterface = \"sat0\"\ncongestion = \"reno\"\n")
}

impl Host {
    pub fn new(name: &str) -> Self {
        Self { namespace: Namespace::new(name).unwrap() }
    }

    /// Waits until the gateway answers: a new link takes a moment until its neighbours find each other.
    pub fn wait_for_gateway(&self, network: u8) {
        let start = Instant::now();
        for address in [format!("10.77.{network}.1"), format!("fd77:{network}::1")] {
            let to = socket_address(&address, 9);
            let answer = || self.enter(|| TcpStream::connect_timeout(&to, PATIENCE)).unwrap_err();
            while answer().kind() != std::io::ErrorKind::ConnectionRefused {
                assert!(start.elapsed() < PATIENCE, "the gateway does not answer at {address}");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }

    /// Does `work` on a thread that lives in this namespace; sockets made there stay in it.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.namespace.run(work).unwrap()
    }

    pub fn command(&self, program: &str) -> Command {
        self.namespace.command(program)
    }

    pub fn sysctl(&self, key: &str, value: &str) {
        self.namespace.sysctl(key, value).unwrap();
    }

    pub fn run(&self, line: &str) {
        succeed(&mut self.words(line));
    }

    pub fn output(&self, line: &str) -> String {
        String::from_utf8(self.words(line).output().unwrap().stdout).unwrap()
    }

    /// Loads nftables rules given as text.
    pub fn rules(&self, text: &str) {
        self.namespace.nft(text).unwrap();
    }

    fn words(&self, line: &str) -> Command {
        let mut words = line.split(' ');
        let mut command = self.command(words.next().unwrap());
        command.args(words);
        command
    }
}

impl Running {
    /// One of the counters of `Stats`, now.
    pub fn counter(&mut self, name: &str) -> u64 {
        writeln!(self.stdin.as_mut().unwrap(), "stats").unwrap();
        let line = self.line().expect("the daemon answers");
        let (_, after) = line.split_once(&format!(" {name}: ")).unwrap_or_else(|| panic!("{name} in {line}"));
        after.split([',', ' ']).next().unwrap().parse().unwrap()
    }

    /// Lets a worker panic as soon as it has its turn.
    pub fn panic_worker(&mut self, index: usize) {
        writeln!(self.stdin.as_mut().unwrap(), "panic {index}").unwrap();
        let _ = self.line().expect("the daemon answers");
    }

    /// Why it must end, if it must.
    pub fn failure(&mut self) -> Option<String> {
        writeln!(self.stdin.as_mut().unwrap(), "failure").unwrap();
        self.line().filter(|reason| reason != "none")
    }

    /// What can be seen of it now.
    pub fn stats_handle(&mut self) -> Seen {
        writeln!(self.stdin.as_mut().unwrap(), "telemetry").unwrap();
        let line = self.line().expect("the daemon answers");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in {line}"))
    }

    /// How long it takes to find out about its flows, at most `most` of them, and of how many it tells.
    pub fn survey(&mut self, most: usize) -> (Duration, usize) {
        writeln!(self.stdin.as_mut().unwrap(), "survey {most}").unwrap();
        let line = self.line().expect("the daemon answers");
        let (micros, found) = line.split_once(' ').unwrap();
        (Duration::from_micros(micros.parse().unwrap()), found.parse().unwrap())
    }

    /// What can be seen of it as soon as that is what is waited for.
    pub fn wait_to_see(&mut self, what: &str, is_seen: impl Fn(&Seen) -> bool) -> Seen {
        let start = Instant::now();
        loop {
            let seen = self.stats_handle();
            if is_seen(&seen) {
                return seen;
            }
            assert!(start.elapsed() < PATIENCE, "{what} is not seen in {seen:#?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until a counter has this value.
    pub fn wait_for(&mut self, name: &str, value: u64) {
        let start = Instant::now();
        while self.counter(name) != value {
            assert!(start.elapsed() < PATIENCE, "{name} is {}, not {value}", self.counter(name));
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Lets it read another configuration; what it says against it.
    pub fn reload(&mut self, text: &str) -> Result<(), String> {
        std::fs::write(self.config.path(), text).unwrap();
        writeln!(self.stdin.as_mut().unwrap(), "reload").unwrap();
        match self.line().expect("the daemon answers").strip_prefix("error: ") {
            None => Ok(()),
            Some(error) => Err(error.to_owned()),
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The daemon's open descriptors.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count()
    }

    /// Resident memory of the daemon, bytes.
    pub fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }

    /// Processor time that it has used, to 10 ms (proc_pid_stat(5): `utime` and `stime` in ticks of 1/100 s).
    pub fn processor_time(&self) -> Duration {
        processor_time(Path::new(&format!("/proc/{}", self.pid())))
    }

    /// The same of its threads of this name.
    pub fn processor_time_of(&self, thread: &str) -> Duration {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        let named = |path: &std::path::PathBuf| {
            std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == thread)
        };
        tasks.map(|task| task.unwrap().path()).filter(named).map(|path| processor_time(&path)).sum()
    }

    /// The share of a processor that it uses for a while.
    pub fn processor_share(&self, length: Duration) -> f64 {
        let (start, before) = (Instant::now(), self.processor_time());
        std::thread::sleep(length);
        (self.processor_time() - before).as_secs_f64() / start.elapsed().as_secs_f64()
    }

    /// Fails if it uses more than a twentieth of a processor for a while in which it has nothing to do.
    pub fn expect_idle(&self, length: Duration) {
        let before = self.processor_time();
        std::thread::sleep(length);
        let used = self.processor_time() - before;
        println!("idle for {length:?}: {used:?} of processor time");
        assert!(used < length / 20, "{used:?} of processor time in {length:?} with nothing to do");
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        if signal == Signal::STOP {
            // One thread takes the signal and stops the others, when it has its turn.
            wait_until("every thread has stopped", || self.threads_are_stopped());
        }
    }

    fn threads_are_stopped(&self) -> bool {
        std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap().all(|task| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
            // The name before it, in brackets, may hold anything (proc_pid_stat(5)).
            stat.rsplit_once(") ").unwrap().1.starts_with('T')
        })
    }

    /// The end of every fault: no flow is left, the daemon holds what it held when it was ready, and once it
    /// has stopped the gateway is as it was before.
    pub fn settle(mut self) {
        self.wait_for("flows_open", 0);
        self.wait_for("relay_buffers_in_use", 0);
        self.accounts.settle(self.pid());
        drop(self.stdin.take());
        assert!(self.child.wait().unwrap().success());
        expect_untouched(&self.gateway, &self.traces);
    }

    /// Ends it in order.
    pub fn stop(mut self) {
        drop(self.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }

    /// Ends it as a crash would.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn line(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            // The harness of the tests, in which it runs, says so when it has run for a minute.
            if !line.contains("has been running for over") {
                return Some(line.trim_end().to_owned());
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A test that failed may have left it stopped.
        if let Ok(None) = self.child.try_wait() {
            self.signal(Signal::CONT);
        }
        // In order, so that it removes its rules; a daemon that hangs is what a test's own time limit is for.
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}

/// A socket of this address's family, not yet bound.
pub fn socket(address: &SocketAddr) -> Socket {
    Socket::new(Domain::for_address(*address), Type::STREAM, None).unwrap()
}

pub fn socket_address(host: &str, port: u16) -> SocketAddr {
    SocketAddr::new(host.parse::<IpAddr>().unwrap(), port)
}

/// Bytes that differ from place to place and from seed to seed.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Closes a stream as an abort does.
pub fn abort(stream: TcpStream) {
    sockopt::set_linger_reset(&stream).unwrap();
}

/// What a read ends with that should fail.
pub fn error_of_reading(stream: &mut TcpStream) -> std::io::Error {
    match read_all(stream) {
        Ok(bytes) => panic!("an end of file after {} bytes, not an error", bytes.len()),
        Err(error) => error,
    }
}

/// Nobody listens there any more. Closing it is not enough: a program that another test is about to start has
/// a copy until then, and would have the kernel go on accepting.
pub fn stop_listening(listener: TcpListener) {
    SockRef::from(&listener).shutdown(Shutdown::Both).unwrap();
}

/// Everything up to the end of file.
pub fn read_all(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).map(|_| bytes)
}

fn succeed(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Not a test: the program that [`Net::daemon`] runs on the gateway, so that it is always as new as the test.
#[test]
#[ignore = "other tests run it as their daemon"]
fn daemon_process() {
    be_daemon_if_asked();
}

/// Of a process or a thread, whose folder in /proc this is.
fn processor_time(folder: &Path) -> Duration {
    let stat = std::fs::read_to_string(folder.join("stat")).unwrap();
    let (_, after_name) = stat.rsplit_once(") ").unwrap();
    let ticks = after_name.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap());
    Duration::from_millis(10 * ticks.sum::<u64>())
}

/// Everything that can be seen of a daemon, in one line.
fn the_observed_values(telemetry: &bentpipe_proxy::telemetry::StatsHandle) -> String {
    let flows = telemetry.flows(usize::MAX);
    serde_json::json!({
        "legs": telemetry.legs(),
        "gain": telemetry.gain(),
        "policy": telemetry.policy(),
        "limits": telemetry.limits(),
        "flows": flows,
        "ready": telemetry.is_ready(),
    })
    .to_string()
}

/// What a program does first that is no test and uses [`Net::daemon`]: whether it was started as the daemon,
/// and was it.
pub fn be_daemon_if_asked() -> bool {
    use bentpipe_proxy::{Config, Daemon};
    let Ok(path) = std::env::var(CONFIG_VARIABLE) else { return false };
    if let Ok(log) = std::env::var(LOG_VARIABLE) {
        let log = std::sync::Mutex::new(std::fs::File::create(log).unwrap());
        tracing_subscriber::fmt().with_writer(log).with_ansi(false).init();
    }
    let load = || Config::load(&path).map_err(|error| error.to_string());
    let start = |config: Config| match std::env::var(TAKE_OVER_VARIABLE) {
        Err(_) => Daemon::start(&config).map_err(|error| error.to_string()),
        Ok(socket) => handover::take_over(&config, Path::new(&socket)),
    };
    let mut daemon = match load().and_then(start) {
        Ok(daemon) => daemon,
        Err(error) => {
            println!("error: {error}");
            return true;
        }
    };
    println!("ready");
    for request in std::io::stdin().lines() {
        let request = request.unwrap();
        if let Some(socket) = request.strip_prefix("hand over ") {
            daemon = match handover::hand_over(daemon, Path::new(socket)) {
                Ok(()) => {
                    println!("handed over");
                    return true;
                }
                Err((daemon, error)) => {
                    println!("error: {error}");
                    *daemon
                }
            };
        } else if let Some(most) = request.strip_prefix("survey ") {
            let start = Instant::now();
            let found = daemon.stats_handle().flows(most.parse().unwrap()).len();
            println!("{} {found}", start.elapsed().as_micros());
        } else if request == "telemetry" {
            println!("{}", the_observed_values(&daemon.stats_handle()));
        } else if let Some(index) = request.strip_prefix("panic ") {
            #[cfg(debug_assertions)]
            daemon.make_worker_panic(index.parse().unwrap());
            println!("worker {index} is told to panic");
        } else if request == "failure" {
            println!("{}", daemon.failure().unwrap_or("none"));
        } else if request == "reload" {
            let reloaded = load().map(|config| daemon.reload(&config));
            match reloaded.and_then(|report| report.refused().map_or(Ok(()), Err)) {
                Ok(()) => println!("ready"),
                Err(error) => println!("error: {error}"),
            }
        } else {
            println!("{:?}", daemon.stats());
        }
    }
    daemon.stop();
    true
}
