//! Nodes of both kinds as processes on loopback, each with a folder of its own, which end when they are
//! dropped.

use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// How long a node may take until it answers.
const START_WITHIN: Duration = Duration::from_secs(20);
/// Between two looks at what is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(10);

#[derive(Debug, Clone)]
pub(crate) struct Programs {
    /// The folder of `dtnd`, `dtnsend` and `dtnrecv`.
    pub(crate) dtn7: PathBuf,
    /// bentpipe's program.
    pub(crate) bentpipe: PathBuf,
}

/// A node that another one is told of.
#[derive(Debug, Clone)]
pub(crate) struct Contact {
    /// Its endpoint: `dtn://gs1/` or `ipn:5.0`.
    pub(crate) id: String,
    /// The port on 127.0.0.1 where it listens, if it is to be connected to.
    pub(crate) port: Option<u16>,
    pub(crate) layer: Layer,
}

/// How bundles travel between two nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layer {
    /// TCPCLv4.
    Tcp,
    /// A bundle in each UDP datagram.
    Udp,
}

impl Layer {
    /// What dtn7-rs calls it.
    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

#[derive(Debug)]
pub(crate) struct Bentpipe {
    program: PathBuf,
    pub(crate) process: Process,
    folder: TempDir,
}

#[derive(Debug)]
pub(crate) struct Dtn7 {
    programs: PathBuf,
    pub(crate) process: Process,
    /// The port of its web interface.
    pub(crate) web: u16,
}

/// A process that ends with its owner.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    log: PathBuf,
    _folder: Option<TempDir>,
}

impl Programs {
    /// What is not there, as a line for the user.
    pub(crate) fn missing(&self) -> Option<String> {
        if !self.dtn7.join("dtnd").exists() {
            return Some(format!(
                "no dtn7-rs in {}: scripts/setup-peers dtn7 installs it",
                self.dtn7.display()
            ));
        }
        (!self.bentpipe.exists())
            .then(|| format!("no {}: cargo build --release -p bentpipe makes it", self.bentpipe.display()))
    }
}

impl Bentpipe {
    /// Starts a node that listens at `port` and knows `peer`.
    ///
    /// # Errors
    /// It does not come up; the line has the end of its log.
    pub(crate) fn start(programs: &Programs, id: &str, port: u16, peer: &Contact) -> Result<Self, String> {
        let folder = folder()?;
        let address = peer.port.map(|port| format!("address = \"127.0.0.1:{port}\"\n")).unwrap_or_default();
        // dtn7-rs says that it takes transfers of 64,000 bytes, takes any, and puts no fragments together.
        let (listen, reached) = match peer.layer {
            Layer::Tcp => ("[listen]", format!("{address}transfer_mru = \"10GB\"\nretry_within = \"1s\"\n")),
            Layer::Udp => ("udp", format!("[peers.udp]\n{address}rate = \"100Mbit/s\"\n")),
        };
        let config = format!(
            "[node]\nid = \"{id}\"\nstore = \"store\"\nsocket = \"run/socket\"\nquota = \"20GB\"\n\n\
             [{listen}]\naddress = \"127.0.0.1:{port}\"\n\n\
             [[peers]]\nid = \"{}\"\n{reached}",
            peer.id
        );
        let file = folder.path().join("node.toml");
        fs::write(&file, config).map_err(cannot("write", &file))?;
        let mut command = Command::new(&programs.bentpipe);
        command.args(["dtn", "run", "-c"]).arg(&file);
        let process = Process::start(command, folder.path(), None)?;
        let node = Self { program: programs.bentpipe.clone(), process, folder };
        let socket = node.socket();
        until(START_WITHIN, || std::os::unix::net::UnixStream::connect(&socket).is_ok())
            .ok_or_else(|| node.process.failure("bentpipe's node has not come up"))?;
        Ok(node)
    }

    /// The socket for applications.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("run/socket")
    }

    /// Sends a file, as an operator does; it is in the node's store then.
    ///
    /// # Errors
    /// What the command said.
    pub(crate) fn send(&self, file: &Path, destination: &str) -> Result<(), String> {
        let mut command = Command::new(&self.program);
        command.args(["dtn", "send"]).arg(file).args([destination, "--socket"]).arg(self.socket());
        self.process.run(command)
    }

    /// Waits for a bundle of a service, and puts it into a file.
    ///
    /// # Errors
    /// None came within the time, in seconds.
    pub(crate) fn receive(&self, service: &str, file: &Path, within_s: u64) -> Result<(), String> {
        let mut command = Command::new(&self.program);
        command.args(["dtn", "recv", service, "--wait", &format!("{within_s}s"), "--output"]).arg(file);
        command.arg("--socket").arg(self.socket());
        self.process.run(command)
    }
}

impl Dtn7 {
    /// Starts a node named `name` (`dtn7`, or a number for the scheme `ipn`) that listens at `port`, has the
    /// endpoint `service`, and knows `peer`. dtn7-rs connects when it has something to send.
    ///
    /// # Errors
    /// It does not come up; the line has the end of its log.
    pub(crate) fn start(
        programs: &Programs,
        name: &str,
        service: &str,
        port: u16,
        peer: Option<&Contact>,
    ) -> Result<Self, String> {
        let folder = folder()?;
        let web = free_port()?;
        let mut command = Command::new(programs.dtn7.join("dtnd"));
        command.args(["-n", name, "-e", service, "-4", "--disable_nd", "-r", "epidemic", "-D", "mem"]);
        let layer = peer.map_or(Layer::Tcp, |peer| peer.layer).name();
        command.args(["-C", &format!("{layer}:port={port}:bind=127.0.0.1"), "-w", &web.to_string()]);
        // It looks each second for what could not be sent; and who has connected is its neighbour for a day,
        // not for 20 s.
        command.args(["-j", "1s", "-p", "1d", "-W"]).arg(folder.path());
        if let Some((peer, port)) = peer.and_then(|peer| Some((peer, peer.port?))) {
            command.args(["-s", &format!("{layer}://127.0.0.1:{port}/{}", bare(&peer.id))]);
        }
        let path = folder.path().to_owned();
        let process = Process::start(command, &path, Some(folder))?;
        let node = Self { programs: programs.dtn7.clone(), process, web };
        until(START_WITHIN, || std::net::TcpStream::connect(("127.0.0.1", web)).is_ok())
            .ok_or_else(|| node.process.failure("dtnd has not come up"))?;
        Ok(node)
    }

    /// Sends a file with `dtnsend`, up to 2 MiB: more its interface does not take.
    ///
    /// # Errors
    /// What the command said.
    pub(crate) fn send(&self, file: &Path, destination: &str) -> Result<(), String> {
        let mut command = Command::new(self.programs.join("dtnsend"));
        command.args(["-p", &self.web.to_string(), "-r", destination]).arg(file);
        self.process.run(command)
    }

    /// Waits for a bundle of a service with `dtnrecv`, and puts it into a file.
    ///
    /// # Errors
    /// None came within the time, in seconds.
    pub(crate) fn receive(&self, service: &str, file: &Path, within_s: u64) -> Result<(), String> {
        let mut outcome = Ok(());
        let arrived = until(Duration::from_secs(within_s), || {
            let mut command = Command::new(self.programs.join("dtnrecv"));
            command.args(["-p", &self.web.to_string(), "-e", service, "-o"]).arg(file);
            outcome = self.process.run(command);
            outcome.is_err() || file.exists()
        });
        outcome?;
        arrived.ok_or_else(|| self.process.failure("no bundle has come"))
    }
}

impl Process {
    fn start(mut command: Command, folder: &Path, keep: Option<TempDir>) -> Result<Self, String> {
        let log = folder.join("log");
        let file = File::create(&log).map_err(cannot("make", &log))?;
        let errors = file.try_clone().map_err(cannot("make", &log))?;
        let program = PathBuf::from(command.get_program());
        let child = command.stdin(Stdio::null()).stdout(file).stderr(errors).spawn();
        Ok(Self { child: child.map_err(cannot("start", &program))?, log, _folder: keep })
    }

    /// The most memory that it ever had, bytes.
    pub(crate) fn peak_memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        kib.unwrap_or_default() * 1024
    }

    /// Runs a command that speaks with the process.
    fn run(&self, command: Command) -> Result<(), String> {
        output(command).map_err(|error| self.failure(&error))
    }

    /// What has failed, with the end of the log.
    fn failure(&self, what: &str) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        format!("{what}; the end of its log:\n{}", lines[lines.len().saturating_sub(8)..].join("\n"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // All that it has is in a folder that goes with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port of loopback that nobody listens at.
///
/// # Errors
/// There is none.
pub(crate) fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    listener.map(|address| address.port()).map_err(|error| format!("there is no free port: {error}"))
}

/// Looks until `done` or until the time is over (`None`).
pub(crate) fn until(within: Duration, mut done: impl FnMut() -> bool) -> Option<()> {
    let begun = Instant::now();
    while !done() {
        if begun.elapsed() > within {
            return None;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Some(())
}

/// A folder that an ordinary account can look into: bentpipe's node gives up being root.
pub(crate) fn folder() -> Result<TempDir, String> {
    let made = TempDir::new().and_then(|folder| {
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        Ok(folder)
    });
    made.map_err(|error| format!("cannot make a temporary folder: {error}"))
}

/// A node's name without its scheme, as dtn7-rs has it in the addresses of peers.
fn bare(id: &str) -> &str {
    let without_scheme = id.trim_start_matches("dtn://").trim_start_matches("ipn:");
    without_scheme.trim_end_matches('/').trim_end_matches(".0")
}

fn output(mut command: Command) -> Result<(), String> {
    let program = PathBuf::from(command.get_program());
    let output = command.output().map_err(cannot("start", &program))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{} failed: {}", program.display(), said.trim()))
}

fn cannot<'a>(what: &'a str, path: &'a Path) -> impl FnOnce(io::Error) -> String + 'a {
    move |error| format!("cannot {what} {}: {error}", path.display())
}
