//! Three hosts on a line, client – gateway – server, as network namespaces, and a daemon on the gateway.
//!
//! The gateway's interface towards the server is `sat0`. Each address has both families; nothing of it has a name outside.
#![allow(dead_code, missing_docs, unreachable_pub)]

pub mod probe;
pub mod symmetric;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use bentpipe_testbed::{Namespace, veth};
use socket2::{Domain, Socket, Type};

pub const CLIENT: [&str; 2] = ["10.77.1.2", "fd77:1::2"];
pub const SERVER: [&str; 2] = ["10.77.2.2", "fd77:2::2"];
pub const RELAYS: [&str; 2] = ["copy", "splice"];
/// Long enough for anything that works, on a machine that does other things as well.
pub const PATIENCE: Duration = Duration::from_secs(30);

const CONFIG_VARIABLE: &str = "BENTPIPE_TEST_DAEMON_CONFIG";

/// A host of the testbed, with the shorthands of these tests.
pub struct Host {
    namespace: Namespace,
}

pub struct Net {
    pub client: Host,
    pub gateway: Host,
    pub server: Host,
}

/// A daemon in a process of its own on the gateway.
pub struct Running {
    pub child: Child,
    stdin: Option<ChildStdin>,
    lines: BufReader<std::process::ChildStdout>,
    config: tempfile::NamedTempFile,
}

/// The network, or nothing and the reason on standard output.
pub fn network() -> Option<Net> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root: network namespaces and transparent sockets");
        return None;
    }
    Some(Net::new())
}

impl Net {
    fn new() -> Self {
        let [client, gateway, server] = ["client", "gateway", "server"].map(Host::new);
        let net = Self { client, gateway, server };
        net.wire(&net.client, "up0", "ground0", 1);
        net.wire(&net.server, "up0", "sat0", 2);
        for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
            net.gateway.sysctl(key, "1");
        }
        for (host, network) in [(&net.client, 1), (&net.server, 2)] {
            host.wait_for_gateway(network);
        }
        net
    }

    /// Joins a host to the gateway by a veth pair in network `number`.
    pub fn wire(&self, host: &Host, interface: &str, at_gateway: &str, number: u8) {
        let gateway = &self.gateway;
        veth(&gateway.namespace, at_gateway, &host.namespace, interface).unwrap();
        for (host, interface, last) in [(gateway, at_gateway, 1), (host, interface, 2)] {
            host.run(&format!("ip addr add 10.77.{number}.{last}/24 dev {interface}"));
            host.run(&format!("ip addr add fd77:{number}::{last}/64 dev {interface} nodad"));
        }
        host.run(&format!("ip route add default via 10.77.{number}.1"));
        host.run(&format!("ip route add default via fd77:{number}::1"));
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
        let mut config = tempfile::NamedTempFile::new().unwrap();
        config.write_all(text.as_bytes()).unwrap();
        let program = std::env::current_exe().unwrap();
        let mut command = self.gateway.command(program.to_str().unwrap());
        if let Some(path) = path {
            command.env("PATH", path);
        }
        let mut child = command
            .args(["--exact", "common::daemon_process", "--ignored", "--nocapture"])
            .env(CONFIG_VARIABLE, config.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut running = Running { child, stdin, lines, config };
        loop {
            let line = running.line().expect("the daemon says ready or error");
            if line == "ready" {
                return Ok(running);
            } else if let Some(error) = line.strip_prefix("error: ") {
                return Err(error.to_owned());
            }
        }
    }

    /// A listener on the server.
    pub fn listen(&self, address: &str) -> TcpListener {
        self.server.enter(|| TcpListener::bind(socket_address(address, 0)).unwrap())
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

    /// Everything that the daemon may leave on the gateway.
    pub fn traces(&self) -> String {
        [
            "nft -t list ruleset",
            "ip -4 rule",
            "ip -6 rule",
            "ip -4 route show table 25200",
            "ip -6 route show table 25200",
        ]
        .map(|command| self.gateway.output(command))
        .join("---\n")
    }
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
        let (_, after) = line.split_once(&format!("{name}: ")).unwrap_or_else(|| panic!("{name} in {line}"));
        after.split([',', ' ']).next().unwrap().parse().unwrap()
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

    /// Sends it a signal, such as `STOP`.
    pub fn signal(&self, name: &str) {
        succeed(Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]));
    }

    /// Processor time that it has used, seconds.
    pub fn processor_time(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        let (_, fields) = stat.rsplit_once(')').unwrap();
        let ticks: Vec<f64> =
            fields.split_whitespace().skip(11).take(2).map(|n| n.parse().unwrap()).collect();
        // USER_HZ has been 100 on x86 and arm for ever (time(7)).
        ticks.iter().sum::<f64>() / 100.0
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
        let mut line = String::new();
        (self.lines.read_line(&mut line).unwrap() > 0).then(|| line.trim_end().to_owned())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
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
    use bentpipe_proxy::{Config, Daemon};
    let Ok(path) = std::env::var(CONFIG_VARIABLE) else { return };
    let load = || Config::load(&path).map_err(|error| error.to_string());
    let start = |config: Config| Daemon::start(&config).map_err(|error| error.to_string());
    let mut daemon = match load().and_then(start) {
        Ok(daemon) => daemon,
        Err(error) => return println!("error: {error}"),
    };
    println!("ready");
    for request in std::io::stdin().lines() {
        if request.unwrap() == "reload" {
            match load().and_then(|config| daemon.reload(&config).map_err(|error| error.to_string())) {
                Ok(()) => println!("ready"),
                Err(error) => println!("error: {error}"),
            }
        } else {
            println!("{:?}", daemon.stats());
        }
    }
    daemon.stop();
}
