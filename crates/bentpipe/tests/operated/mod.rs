//! A daemon in operation, as its operator has it: the program itself on a gateway between a client and a
//! server, its commands, and downloads that run meanwhile.
#![allow(dead_code)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bentpipe_link::LinkConfig;
use bentpipe_testbed::{
    Child, Namespace, Need, SatelliteLink, Subnet, default_route, forwarding, require, veth,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const NEEDS: &[Need] =
    &[Need::Privileges, Need::Namespaces, Need::Tun, Need::Program("ip"), Need::Program("nft")];
/// Long enough for anything that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const LAN: Subnet = Subnet::new(1);
const SATELLITE: Subnet = Subnet::new(2);

/// The gateway is between the client (`lan0`) and the server (`sat0`).
pub(crate) struct Topology {
    pub(crate) client: Namespace,
    pub(crate) gateway: Namespace,
    pub(crate) server: Namespace,
    pub(crate) link: Option<SatelliteLink>,
    program: PathBuf,
    folder: tempfile::TempDir,
    daemon: Option<Child>,
}

/// What a client saw of its download.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) bytes: u64,
    /// Between two reads, the longest.
    pub(crate) longest_pause: Duration,
}

/// Downloads that go on until they are told to end: a piece of data at a time.
pub(crate) struct Downloads {
    stop: Arc<AtomicBool>,
    servers: Vec<JoinHandle<u64>>,
    clients: Vec<JoinHandle<Result<Seen, String>>>,
}

impl Topology {
    /// Without what it needs, nothing and the reason on standard output. Between gateway and server there is
    /// a cable, or this link.
    pub(crate) fn new(program: &Path, link: Option<&LinkConfig>) -> Option<Self> {
        if let Err(missing) = require(NEEDS) {
            println!("skipped: needs root: {missing}");
            return None;
        }
        let [client, gateway, server] =
            ["client", "gateway", "server"].map(|name| Namespace::new(name).unwrap());
        veth(&gateway, "lan0", &client, "up0").unwrap();
        let link = match link {
            Some(config) => {
                Some(SatelliteLink::start(&gateway, "sat0", &server, "up0", config, 1, 1500).unwrap())
            }
            None => {
                veth(&gateway, "sat0", &server, "up0").unwrap();
                None
            }
        };
        LAN.assign(&gateway, "lan0", &client, "up0").unwrap();
        SATELLITE.assign(&gateway, "sat0", &server, "up0").unwrap();
        for (host, ways) in [
            (&client, [IpAddr::from(LAN.left4()), LAN.left6().into()]),
            (&server, [SATELLITE.left4().into(), SATELLITE.left6().into()]),
        ] {
            for way in ways {
                default_route(host, way).unwrap();
            }
        }
        forwarding(&gateway).unwrap();
        let folder = tempfile::Builder::new().prefix("bentpipe").tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        Some(Self { client, gateway, server, link, program: program.to_owned(), folder, daemon: None })
    }

    /// The folder of the daemon's sockets.
    pub(crate) fn sockets(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    /// A folder that goes with this.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The program that the daemon runs.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// The access log, in a folder in which anybody may write.
    pub(crate) fn access_log(&self) -> PathBuf {
        let folder = self.folder.path().join("access");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        folder.join("log")
    }

    /// Lines of the access log, files that were rotated included.
    pub(crate) fn access_log_lines(&self) -> u64 {
        let log = self.access_log();
        let files = std::fs::read_dir(log.parent().unwrap()).unwrap().map(|file| file.unwrap().path());
        files
            .map(|file| std::fs::read(file).unwrap().iter().filter(|&&byte| byte == b'\n').count() as u64)
            .sum()
    }

    /// What a program says on the gateway.
    pub(crate) fn gateway_says(&self, program: &str, arguments: &str) -> String {
        let mut command = self.gateway.command(program);
        let output = command.args(arguments.split(' ')).stdin(Stdio::null()).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The configuration that the daemon reads.
    pub(crate) fn config(&self) -> PathBuf {
        self.folder.path().join("bentpipe.toml")
    }

    /// Writes the configuration: a leg with these lines, and what follows.
    pub(crate) fn configure(&self, leg: &str, rest: &str) {
        let sockets = self.sockets();
        let text = format!(
            "[legs.satellite]\ninterface = \"sat0\"\n{leg}\n[admin]\nfolder = \"{}\"\n{rest}\n",
            sockets.display()
        );
        std::fs::write(self.config(), text).unwrap();
    }

    /// Starts the daemon and returns when it is ready.
    pub(crate) fn start(&mut self) {
        let mut command = self.gateway.command(&self.program);
        command.args(["run", "-c"]).arg(self.config());
        self.daemon = Some(spawn_until_ready(command));
    }

    /// Starts it as one whose standard error is the journal, as far as a process can see, and returns the
    /// journal when it is ready.
    pub(crate) fn start_for_the_journal(&mut self) -> PathBuf {
        use std::os::unix::fs::MetadataExt;
        let path = self.folder.path().join("journal");
        let file = std::fs::File::create(&path).unwrap();
        let stream = file.metadata().map(|data| format!("{}:{}", data.dev(), data.ino())).unwrap();
        let mut command = self.gateway.command(&self.program);
        command.args(["run", "-c"]).arg(self.config()).env("JOURNAL_STREAM", stream);
        command.stdin(Stdio::null()).stderr(file);
        self.daemon = Some(Child::spawn(command).unwrap());
        let start = Instant::now();
        while !std::fs::read_to_string(&path).unwrap().contains("ready") {
            assert!(start.elapsed() < PATIENCE, "{}", std::fs::read_to_string(&path).unwrap());
            std::thread::sleep(Duration::from_millis(10));
        }
        path
    }

    /// The same with its standard error in a file, to which it is appended.
    pub(crate) fn start_with_log(&mut self, log: &Path) {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
        let before = file.metadata().unwrap().len() as usize;
        let mut command = self.gateway.command(&self.program);
        command
            .args(["run", "-c"])
            .arg(self.config())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file);
        self.daemon = Some(Child::spawn(command).unwrap());
        let start = Instant::now();
        loop {
            let said = std::fs::read(log).unwrap().split_off(before);
            let said = String::from_utf8_lossy(&said);
            if said.lines().any(|line| line.ends_with(" ready")) {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{said}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The process that was started first, if it has not ended yet.
    pub(crate) fn daemon(&mut self) -> &mut Child {
        self.daemon.as_mut().unwrap()
    }

    /// Runs one of the commands for a running daemon.
    pub(crate) fn command(&self, arguments: &[&str]) -> Output {
        self.command_of(&self.program, arguments)
    }

    /// The same of another program.
    pub(crate) fn command_of(&self, program: &Path, arguments: &[&str]) -> Output {
        let mut command = self.gateway.command(program);
        command.args(arguments).arg("--folder").arg(self.sockets()).stdin(Stdio::null());
        command.output().unwrap()
    }

    /// What the daemon says of itself.
    pub(crate) fn status(&self) -> Value {
        let output = self.command(&["status", "--json", "--flows", "all"]);
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
    }

    /// Starts so many downloads, each of a piece of so many bytes at each interval.
    pub(crate) fn downloads(&self, count: usize, piece: usize, interval: Duration) -> Downloads {
        self.transfers(count, piece, interval, |client, server| (server, client))
    }

    /// The same from the client to the server.
    pub(crate) fn uploads(&self, count: usize, piece: usize, interval: Duration) -> Downloads {
        self.transfers(count, piece, interval, |client, server| (client, server))
    }

    /// Of client and server, `roles` says who sends and who receives.
    fn transfers(
        &self,
        count: usize,
        piece: usize,
        interval: Duration,
        roles: impl Fn(TcpStream, TcpStream) -> (TcpStream, TcpStream),
    ) -> Downloads {
        let listener = self.server.run(|| TcpListener::bind((SATELLITE.right4(), 0)).unwrap()).unwrap();
        let to = listener.local_addr().unwrap();
        let stop = Arc::<AtomicBool>::default();
        let (mut servers, mut clients) = (Vec::new(), Vec::new());
        for seed in 0..count as u64 {
            let client = self.client.run(|| TcpStream::connect(to).unwrap()).unwrap();
            let server = listener.accept().unwrap().0;
            let (sender, mut receiver) = roles(client, server);
            receiver.write_all(&seed.to_be_bytes()).unwrap();
            let stop = stop.clone();
            servers.push(std::thread::spawn(move || send(sender, piece, interval, &stop)));
            clients.push(std::thread::spawn(move || receive(receiver, seed)));
        }
        Downloads { stop, servers, clients }
    }

    /// Opens so many connections, one after the other, on which nothing moves: the client's end and the
    /// server's of each.
    pub(crate) fn connections(&self, count: usize) -> Vec<(TcpStream, TcpStream)> {
        let listener = self.server.run(|| TcpListener::bind(self.address(0)).unwrap()).unwrap();
        let to = listener.local_addr().unwrap();
        let connect = || (TcpStream::connect(to).unwrap(), listener.accept().unwrap().0);
        self.client.run(|| (0..count).map(|_| connect()).collect()).unwrap()
    }

    /// Ends the process that the status names, in order, and waits until it has gone.
    pub(crate) fn stop(&mut self) {
        end(pid_in(&self.status()), Signal::TERM, &mut self.daemon);
    }

    pub(crate) fn address(&self, port: u16) -> SocketAddr {
        (SATELLITE.right4(), port).into()
    }

    pub(crate) fn client_address(&self, port: u16) -> SocketAddr {
        (LAN.right4(), port).into()
    }

    /// The server's addresses of both families, for any port.
    pub(crate) fn addresses(&self) -> [SocketAddr; 2] {
        [(SATELLITE.right4(), 0).into(), (SATELLITE.right6(), 0).into()]
    }

    /// The client's.
    pub(crate) fn client_addresses(&self) -> [SocketAddr; 2] {
        [(LAN.right4(), 0).into(), (LAN.right6(), 0).into()]
    }
}

impl Drop for Topology {
    fn drop(&mut self) {
        // After an upgrade the daemon is nobody's child.
        if std::thread::panicking()
            && let Ok(status) = serde_json::from_slice::<Value>(&self.command(&["status", "--json"]).stdout)
            && let Some(pid) =
                status["pid"].as_i64().and_then(|pid| rustix::process::Pid::from_raw(pid as i32))
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }
}

impl Downloads {
    /// Lets them come to their ends: each client has what its server sent.
    pub(crate) fn finish(self) -> Vec<Seen> {
        self.stop.store(true, Ordering::Release);
        let sent: Vec<u64> = self.servers.into_iter().map(|server| server.join().unwrap()).collect();
        let seen = self.clients.into_iter().zip(sent).enumerate().map(|(number, (client, sent))| {
            let seen = client.join().unwrap().unwrap_or_else(|error| panic!("download {number}: {error}"));
            assert_eq!(seen.bytes, sent, "download {number} is not whole");
            seen
        });
        seen.collect()
    }
}

/// The byte at a place of a stream.
fn byte(seed: u64, place: u64) -> u8 {
    let mixed = (place ^ seed.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

fn send(mut stream: TcpStream, piece: usize, interval: Duration, stop: &AtomicBool) -> u64 {
    let mut seed = [0; 8];
    stream.read_exact(&mut seed).unwrap();
    let (seed, mut place, mut next) = (u64::from_be_bytes(seed), 0, Instant::now());
    while !stop.load(Ordering::Acquire) {
        let bytes: Vec<u8> = (place..place + piece as u64).map(|place| byte(seed, place)).collect();
        if stream.write_all(&bytes).is_err() {
            // The receiver says what has gone wrong.
            return place;
        }
        place += piece as u64;
        next += interval;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    let _ = stream.shutdown(Shutdown::Write);
    // Until the client has everything.
    let _ = stream.read(&mut [0]);
    place
}

fn receive(mut stream: TcpStream, seed: u64) -> Result<Seen, String> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut seen = Seen { bytes: 0, longest_pause: Duration::ZERO };
    let (mut buffer, mut last) = (vec![0; 256 * 1024], None::<Instant>);
    loop {
        let count = stream.read(&mut buffer).map_err(|error| error.to_string())?;
        if let Some(last) = last.replace(Instant::now()) {
            seen.longest_pause = seen.longest_pause.max(last.elapsed());
        }
        if count == 0 {
            return Ok(seen);
        }
        for &found in &buffer[..count] {
            if found != byte(seed, seen.bytes) {
                return Err(format!("another byte at {}", seen.bytes));
            }
            seen.bytes += 1;
        }
    }
}

/// Starts a daemon and returns when it says that it is ready; what it says then goes to standard output.
pub(crate) fn spawn_until_ready(mut command: Command) -> Child {
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    let mut child = Child::spawn(command).unwrap();
    let mut log = BufReader::new(child.stderr().unwrap()).lines().map_while(Result::ok);
    let mut said = String::new();
    let ready = log.any(|line| {
        said = format!("{said}{line}\n");
        line.ends_with(" ready")
    });
    assert!(ready, "the daemon has ended: {said}");
    std::thread::spawn(move || log.for_each(|line| println!("{line}")));
    child
}

/// The process that a status names.
pub(crate) fn pid_in(status: &Value) -> Pid {
    Pid::from_raw(i32::try_from(status["pid"].as_i64().unwrap()).unwrap()).unwrap()
}

/// Sends a signal that ends a daemon, and waits until it has gone; `first` is the process that was started,
/// which is the daemon unless there was an upgrade.
pub(crate) fn end(pid: Pid, signal: Signal, first: &mut Option<Child>) {
    kill_process(pid, signal).unwrap();
    let start = Instant::now();
    while is_running(pid.as_raw_nonzero().get().unsigned_abs()) {
        assert!(start.elapsed() < PATIENCE, "process {pid:?} does not end");
        if let Some(child) = first {
            let _ = child.wait_timeout(Duration::ZERO);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    *first = None;
}

/// Of a process whose first thread has ended others may still run, and hold its files.
pub(crate) fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let has_threads = || std::fs::read_dir(format!("/proc/{pid}/task")).is_ok_and(|tasks| tasks.count() > 1);
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z') || has_threads())
}
