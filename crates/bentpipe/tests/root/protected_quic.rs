//! A download by QUIC over protected legs, whose boxes are reloaded, upgraded, stopped for seconds, killed and
//! started again, and taken away: the connection lives, and what arrives is what was sent.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bentpipe_lab::download::Request;
use bentpipe_lab::quic::{self, Congestion};
use bentpipe_testbed::{Child, Namespace, Need, Subnet, default_route, forwarding, require, veth};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::operated::{PATIENCE, end, pid_in, spawn_until_ready};

const NEEDS: &[Need] =
    &[Need::Privileges, Need::Namespaces, Need::Tun, Need::Program("ip"), Need::Program("nft")];
const SUBNETS: [Subnet; 3] = [Subnet::new(1), Subnet::new(2), Subnet::new(3)];
/// So much arrives after each of the events before the next one.
const PIECE: u64 = 300_000;

/// One end of the leg: a host and the daemon in operation there.
struct End {
    host: Namespace,
    folder: tempfile::TempDir,
    first: Option<Child>,
}

impl End {
    fn new(host: &Namespace, peer: IpAddr, key: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("bentpipe").tempdir().unwrap();
        let write = |name: &str, text: &str, mode: u32| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        };
        let at = folder.path().display();
        write("key", key, 0o600);
        let config = format!(
            "[legs.satellite]\ninterface = \"sat0\"\nrate = \"20Mbit/s\"\nrtt = \"20ms\"\n\
             [legs.satellite.protect]\npeer = \"{peer}\"\nkey_file = \"{at}/key\"\n\
             [[rules]]\naction = \"protect\"\nprotocol = \"udp\"\n\
             [admin]\nfolder = \"{at}/run\"\nlisten = \"off\"\n"
        );
        write("bentpipe.toml", &config, 0o644);
        let mut end = Self { host: host.clone(), folder, first: None };
        end.start();
        end
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn start(&mut self) {
        let mut command = self.host.command(env!("CARGO_BIN_EXE_bentpipe"));
        command.args(["run", "-c"]).arg(self.path("bentpipe.toml")).stdout(Stdio::null());
        self.first = Some(spawn_until_ready(command));
    }

    fn command(&self, arguments: &[&str]) -> Output {
        let mut command = self.host.command(env!("CARGO_BIN_EXE_bentpipe"));
        command.args(arguments).arg("--folder").arg(self.path("run")).stdin(Stdio::null());
        command.output().unwrap()
    }

    fn status(&self) -> Option<Value> {
        serde_json::from_slice(&self.command(&["status", "--json"]).stdout).ok()
    }

    /// The process that serves now.
    fn pid(&self) -> Pid {
        pid_in(&self.status().expect("a daemon answers"))
    }

    fn protects(&self, wanted: bool) {
        let start = Instant::now();
        let alive = || self.status().map(|status| status["totals"]["protect"]["alive"] == u64::from(wanted));
        while alive() != Some(true) {
            assert!(start.elapsed() < PATIENCE, "{:#?}", self.status());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn end(&mut self, signal: Signal) {
        end(self.pid(), signal, &mut self.first);
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // After an upgrade the daemon is nobody's child.
        if let Some(status) = self.status() {
            let _ = kill_process(pid_in(&status), Signal::TERM);
        }
    }
}

/// A client and a server with a box for each, which lose one in forty of each other's packets.
fn scene() -> [Namespace; 4] {
    let hosts = ["client", "near", "far", "server"].map(|name| Namespace::new(name).unwrap());
    let [client, near, far, server] = &hosts;
    let pairs = [(near, client, "lan0"), (near, far, "sat0"), (far, server, "lan0")];
    for ((left, right, name), subnet) in pairs.into_iter().zip(SUBNETS) {
        veth(left, name, right, name).unwrap();
        subnet.assign(left, name, right, name).unwrap();
    }
    let ways = [SUBNETS[0].left4(), SUBNETS[1].right4(), SUBNETS[1].left4(), SUBNETS[2].left4()];
    for (host, way) in hosts.iter().zip(ways) {
        default_route(host, way).unwrap();
    }
    for host in [near, far] {
        forwarding(host).unwrap();
        let loss = "add table inet loss; add chain inet loss arrive { type filter hook prerouting priority -400; }; \
                    add rule inet loss arrive iifname sat0 numgen random mod 40 0 drop";
        assert!(host.command("nft").arg(loss).status().unwrap().success());
    }
    hosts
}

#[test]
fn a_quic_connection_outlives_whatever_happens_to_the_boxes() {
    if let Err(missing) = require(NEEDS) {
        return println!("skipped: needs root: {missing}");
    }
    let [client, near, far, server] = scene();
    let key = "00112233445566778899aabbccddeeff".repeat(2);
    let [mut near, mut far] = [(&near, SUBNETS[1].right4()), (&far, SUBNETS[1].left4())]
        .map(|(host, peer)| End::new(host, peer.into(), &key));
    [&near, &far].iter().for_each(|end| end.protects(true));

    let (serving, at) =
        (quic::Server::new(Congestion::Cubic).unwrap(), SocketAddr::from((SUBNETS[2].right4(), quic::PORT)));
    let (over, read) = (AtomicBool::new(false), AtomicU64::new(0));
    let is_over = || over.load(Ordering::Relaxed);
    let goes_on = || {
        let (start, before) = (Instant::now(), read.load(Ordering::Relaxed));
        while read.load(Ordering::Relaxed) < before + PIECE {
            assert!(start.elapsed() < PATIENCE && !is_over(), "the download stands still at {before}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let received = std::thread::scope(|scope| {
        scope.spawn(|| server.run(|| serving.run(at, is_over)).unwrap().unwrap());
        let download = scope.spawn(|| {
            let request = Request { seed: 1, bytes: u64::MAX };
            let count = |bytes| _ = read.fetch_add(bytes, Ordering::Relaxed);
            let received = client.run(|| serving.download(at, request, count, is_over)).unwrap();
            over.store(true, Ordering::Relaxed);
            received
        });
        // Whatever fails below ends the threads.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            goes_on();
            kill_process(near.pid(), Signal::HUP).unwrap();
            goes_on();
            near.protects(true);
            for end in [&near, &far] {
                let before = end.pid();
                let said = end.command(&["upgrade"]);
                assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
                assert_ne!(end.pid(), before);
                goes_on();
            }
            [&near, &far].iter().for_each(|end| end.protects(true));
            let stopped = far.pid();
            kill_process(stopped, Signal::STOP).unwrap();
            near.protects(false);
            goes_on();
            kill_process(stopped, Signal::CONT).unwrap();
            [&near, &far].iter().for_each(|end| end.protects(true));
            goes_on();
            far.end(Signal::KILL);
            near.protects(false);
            goes_on();
            far.start();
            [&near, &far].iter().for_each(|end| end.protects(true));
            goes_on();
            near.end(Signal::TERM);
            goes_on();
        }));
        over.store(true, Ordering::Relaxed);
        let received = download.join().unwrap();
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
        received.expect("the connection lives")
    });
    assert!(received.intact, "{received:?}");
    println!("{} bytes by one connection", received.bytes);
}
