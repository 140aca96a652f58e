//! WireGuard between the server and the client: wireguard-go, which needs no module of the kernel, set up by
//! wg(8). `scripts/setup-peers vpn` installs both.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bentpipe_testbed::{Child, Namespace, find_tool};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::Error;
use crate::topology::Topology;

/// The programs that it needs.
pub const PROGRAMS: [&str; 2] = ["wireguard-go", "wg"];
/// The server's port, the usual one.
pub const PORT: u16 = 51820;
/// Where wireguard-go has its control sockets, which wg(8) looks for by the interface's name.
const SOCKETS: &str = "/var/run/wireguard";
/// How long it may take to start, and to stop, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);

/// A tunnel that is up; it ends with this value.
#[derive(Debug)]
pub struct WireGuard {
    ends: [End; 2],
}

/// One end: the interface and its process.
#[derive(Debug)]
struct End {
    interface: String,
    process: Child,
}

/// A key pair: the private one in a file, as wg(8) wants it.
struct Keys {
    private: PathBuf,
    public: String,
}

impl WireGuard {
    /// Starts both ends, the server's and the client's. The client knows the server's address; the server
    /// learns the client's from its first packet.
    ///
    /// # Errors
    /// [`Error::Tunnel`] if a program is missing or fails.
    pub fn start(topology: &Topology) -> Result<Self, Error> {
        let folder = tempfile::tempdir().map_err(|error| failed("a folder for keys", error))?;
        let keys = [Keys::new(&folder, "server")?, Keys::new(&folder, "client")?];
        let hosts = [&topology.server, &topology.client];
        let [server, client] = hosts.map(End::start);
        let ends = [server?, client?];
        let address = topology.server_address(PORT);
        configure(hosts[0], &ends[0], &keys[0], &keys[1].public, None)?;
        configure(hosts[1], &ends[1], &keys[1], &keys[0].public, Some(address))?;
        Ok(Self { ends })
    }

    /// The names of the interfaces, the server's and the client's.
    pub fn interfaces(&self) -> [&str; 2] {
        self.ends.each_ref().map(|end| end.interface.as_str())
    }
}

impl End {
    fn start(host: &Namespace) -> Result<Self, Error> {
        // Hosts share the folder of the control sockets, so that no two interfaces may have one name.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let interface = format!("wg{}x{number}", std::process::id());
        let mut command = host.command(find_tool(PROGRAMS[0]));
        command.args(["-f", &interface]).env("LOG_LEVEL", "silent");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut end = Self { interface, process: Child::spawn(command)? };
        let begun = Instant::now();
        while !end.socket().exists() {
            if end.process.wait_timeout(POLL)?.is_some() || begun.elapsed() > PATIENCE {
                return Err(failed(PROGRAMS[0], format!("{} does not come up", end.interface)));
            }
        }
        Ok(end)
    }

    fn socket(&self) -> PathBuf {
        Path::new(SOCKETS).join(format!("{}.sock", self.interface))
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // It removes its socket itself, unless it has to be killed.
        let stopped = self.process.signal(Signal::TERM).and_then(|()| self.process.wait_timeout(PATIENCE));
        if !matches!(stopped, Ok(Some(_))) {
            let _ = self.process.kill();
        }
        let _ = fs::remove_file(self.socket());
    }
}

impl Keys {
    fn new(folder: &TempDir, name: &str) -> Result<Self, Error> {
        let private = wg(Command::new(find_tool(PROGRAMS[1])).arg("genkey"), "")?;
        let public = wg(Command::new(find_tool(PROGRAMS[1])).arg("pubkey"), &private)?;
        let path = folder.path().join(name);
        // The folder is its owner's alone.
        fs::write(&path, private).map_err(|error| failed("a key", error))?;
        Ok(Self { private: path, public: public.trim().to_owned() })
    }
}

fn configure(
    host: &Namespace,
    end: &End,
    own: &Keys,
    peer: &str,
    endpoint: Option<SocketAddr>,
) -> Result<(), Error> {
    let mut command = host.command(find_tool(PROGRAMS[1]));
    command.args(["set", &end.interface, "listen-port", &PORT.to_string(), "private-key"]);
    command.arg(&own.private).args(["peer", peer, "allowed-ips", "0.0.0.0/0"]);
    if let Some(endpoint) = endpoint {
        command.args(["endpoint", &endpoint.to_string()]);
    }
    wg(&mut command, "").map(drop)
}

/// Runs wg(8); what it prints.
fn wg(command: &mut Command, input: &str) -> Result<String, Error> {
    let fail = |error: std::io::Error| failed(PROGRAMS[1], error);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().map_err(fail)?;
    process.stdin.take().expect("it is piped").write_all(input.as_bytes()).map_err(fail)?;
    let output = process.wait_with_output().map_err(fail)?;
    if !output.status.success() {
        return Err(failed(PROGRAMS[1], String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn failed(what: &str, why: impl std::fmt::Display) -> Error {
    Error::Tunnel(format!("{what}: {why}; scripts/setup-peers vpn installs wireguard-go and wg"))
}
