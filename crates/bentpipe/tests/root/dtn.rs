//! The bundle node as it is run, over an emulated satellite link: started by root, at work as an ordinary
//! account.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use bentpipe_kernel::sockopt;
use bentpipe_lab::topology::Topology;
use bentpipe_link::{DirectionConfig, LinkConfig, OutageTrace};
use bentpipe_testbed::{Child, Namespace, Need, require};
use bentpipe_units::{Probability, Rate};
use rustix::net::sockopt::{socket_cookie, tcp_user_timeout};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

const NEEDS: &[Need] =
    &[Need::Privileges, Need::Namespaces, Need::Tun, Need::Program("ip"), Need::Program("timeout")];
const PORT: u16 = 4556;
const FILE: usize = 3_000_000;
/// Far longer than it takes on a busy machine, and far less than at the ten segments in a round trip that a
/// connection has to whom nobody gives a rate: 42 s without outages.
const PATIENCE: &str = "25";

/// The link is down for two seconds of every four, so that an outage falls into each transfer of this length.
fn link() -> LinkConfig {
    let outages: String = (0..30).map(|number| format!("{},2\n", 4 * number + 2)).collect();
    let direction = DirectionConfig {
        rate: Some(Rate::mbps(10)),
        delay: Duration::from_millis(100),
        per: Probability::new(0.01).unwrap(),
        outages: OutageTrace::from_csv(&format!("start_s,duration_s\n{outages}")).unwrap(),
        ..Default::default()
    };
    LinkConfig { forward: direction.clone(), reverse: direction }
}

/// The program as a node.
struct Node {
    host: Namespace,
    folder: PathBuf,
    child: Child,
}

impl Node {
    /// Starts it as root and waits until it is ready.
    fn start(host: &Namespace, folder: &Path, name: &str, rest: &str) -> Self {
        let folder = folder.join(name);
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        let text = format!(
            "[node]\nid = \"dtn://{name}/\"\nuser = \"nobody\"\nstore = \"store\"\nsocket = \"run/socket\"\n\
             [legs.satellite]\ninterface = \"sat0\"\ncongestion = \"explicit\"\nrate = \"10Mbit/s\"\nrtt = \"200ms\"\n\
             restart_within = \"1s\"\nsurvive_outage = \"25m\"\n{rest}"
        );
        fs::write(folder.join("node.toml"), text).unwrap();
        let mut command = host.command(env!("CARGO_BIN_EXE_bentpipe"));
        command.args(["dtn", "run", "-c"]).arg(folder.join("node.toml"));
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = Child::spawn(command).unwrap();
        let mut log = BufReader::new(child.stderr().unwrap());
        let mut text = String::new();
        while !text.contains(" ready") {
            assert_ne!(log.read_line(&mut text).unwrap(), 0, "{text}");
        }
        // What nobody reads would stop it.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Self { host: host.clone(), folder, child }
    }

    /// A command that speaks with it.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.host.command("timeout");
        command.args([PATIENCE, env!("CARGO_BIN_EXE_bentpipe"), "dtn"]).args(arguments);
        command.arg("--socket").arg(self.folder.join("run/socket")).stdin(Stdio::null());
        command
    }

    /// Real, effective, saved and file system user.
    fn users(&self) -> Vec<String> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("Uid:")).unwrap();
        line.split_whitespace().skip(1).map(str::to_owned).collect()
    }

    /// Copies of its sockets of the session, which is established; one of those that are the same connection.
    fn session(&self) -> Vec<OwnedFd> {
        let pid = Pid::from_raw(self.child.id() as i32).unwrap();
        let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let numbers = fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap();
        let numbers = numbers.map(|entry| entry.unwrap().file_name().to_string_lossy().parse().unwrap());
        let copies = numbers.filter_map(|fd| pidfd_getfd(&process, fd, PidfdGetfdFlags::empty()).ok());
        let mut connections = BTreeSet::new();
        copies.filter(is_session).filter(|fd| connections.insert(socket_cookie(fd).unwrap())).collect()
    }
}

/// Whether it is a connection, of which this is the port at either end.
fn is_session(fd: &OwnedFd) -> bool {
    let socket = socket2::SockRef::from(fd);
    let port = |address: socket2::SockAddr| address.as_socket().map(|address| address.port());
    let (Ok(ours), Ok(theirs)) = (socket.local_addr(), socket.peer_addr()) else { return false };
    port(ours) == Some(PORT) || port(theirs) == Some(PORT)
}

/// A network for it, and a folder into which an ordinary account can go.
fn topology() -> Option<(Topology, tempfile::TempDir)> {
    if let Err(missing) = require(NEEDS) {
        println!("skipped: needs root: {missing}");
        return None;
    }
    let folder = tempfile::Builder::new().prefix("bentpipe-dtn").tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    Some((Topology::build(&link(), 1).unwrap(), folder))
}

fn pattern() -> Vec<u8> {
    (0..FILE).map(|at| (at * at / 7 + at) as u8).collect()
}

fn content(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    File::open(path).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_bundle_crosses_losses_and_outages_with_rates_that_are_shared_out_without_root() {
    let Some((topology, folder)) = topology() else { return };
    let address = std::net::SocketAddr::new(topology.gateway_address(), PORT);
    let peer = |id: &str, rest: &str| format!("[[peers]]\nid = \"dtn://{id}/\"\nleg = \"satellite\"\n{rest}");
    let listens = format!("[[listen]]\naddress = \"{address}\"\nleg = \"satellite\"\n{}", peer("b", ""));
    let connects = peer("a", &format!("address = \"{address}\"\n"));
    let a = Node::start(&topology.gateway, folder.path(), "a", &listens);
    let b = Node::start(&topology.client, folder.path(), "b", &connects);
    for node in [&a, &b] {
        assert!(node.users().iter().all(|user| user != "0"), "{:?}", node.users());
    }
    let (file, copy) = (folder.path().join("file"), folder.path().join("copy"));
    File::create(&file).unwrap().write_all(&pattern()).unwrap();
    let mut recv = b.command(&["recv", "files", "-o", copy.to_str().unwrap()]);
    recv.stdout(Stdio::null());
    let mut recv = Child::spawn(recv).unwrap();
    let send =
        a.command(&["send", "--wait", "25s", file.to_str().unwrap(), "dtn://b/files"]).output().unwrap();
    assert!(send.status.success(), "{}", String::from_utf8_lossy(&send.stderr));
    assert!(recv.wait().unwrap().success());
    assert!(content(&copy) == pattern());
    // Who has accepted has the leg's settings as well as who has connected.
    for node in [&a, &b] {
        let session = node.session();
        assert_eq!(session.len(), 1, "the first session has lived through the outages");
        let congestion = sockopt::congestion(session[0].as_fd()).unwrap();
        assert!(congestion.contains("explicit"), "{congestion}");
        let gives_up = Duration::from_millis(tcp_user_timeout(&session[0]).unwrap().into());
        assert!(gives_up >= Duration::from_secs(25 * 60), "{gives_up:?}");
    }
}
