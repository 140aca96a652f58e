//! Upgrades, reloads and draining while downloads run: nobody is the worse for it. How long anything stands
//! still is measured by the example `upgrades`.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::operated::{PATIENCE, Topology};
use bentpipe_link::Profile;

mod faults;

const LEG: &str = "rate = \"1Gbit/s\"\nrtt = \"50ms\"\n";
const PIECE: usize = 2000;
const INTERVAL: Duration = Duration::from_millis(20);

/// The turn of a test with many downloads: side by side they would starve each other's daemons.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_bentpipe"))
}

fn succeed(output: &Output) -> String {
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{complaint}");
    String::from_utf8_lossy(&output.stdout).into_owned() + &complaint
}

fn refuse(output: &Output, part: &str) {
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    assert!(complaint.contains(part), "\"{part}\" is not in: {complaint}");
}

#[test]
fn two_hundred_downloads_survive_three_upgrades_and_a_new_program_that_cannot_start() {
    let _turn = turn();
    let Some(mut topology) = Topology::new(program(), None) else { return };
    topology.configure(LEG, "listen = \"off\"");
    topology.start();
    let downloads = topology.downloads(200, PIECE, INTERVAL);
    let first = topology.status();
    assert_eq!((&first["totals"]["flows_open"], &first["upgrades"]), (&200.into(), &0.into()));
    for _ in 0..3 {
        let said = succeed(&topology.command(&["upgrade"]));
        assert!(said.contains("has taken over"), "{said}");
    }
    let status = topology.daemon().wait_timeout(PATIENCE).unwrap().expect("the first process has ended");
    assert_eq!(status.code(), Some(0));
    let after = topology.status();
    assert_eq!((&after["totals"]["flows_open"], &after["upgrades"]), (&200.into(), &3.into()));
    assert_ne!(after["pid"], first["pid"]);
    assert!(after["uptime_s"].as_f64() > first["uptime_s"].as_f64());
    // The next program has another configuration, which is no good, or is no program.
    let bad = topology.sockets().with_extension("toml");
    std::fs::write(&bad, "[legs.satellite]\ninterface = 7\n").unwrap();
    refuse(&topology.command(&["upgrade", "-c", bad.to_str().unwrap()]), "goes on as before");
    let half = topology.sockets().with_extension("half");
    let bytes = std::fs::read(program()).unwrap();
    std::fs::write(&half, &bytes[..64 * 1024]).unwrap();
    std::fs::set_permissions(&half, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let status =
        topology.gateway.command(&half).arg("upgrade").arg("--folder").arg(topology.sockets()).status();
    assert!(!status.is_ok_and(|status| status.success()));
    assert_eq!(topology.status()["pid"], after["pid"]);
    let pauses: Vec<Duration> = downloads.finish().into_iter().map(|seen| seen.longest_pause).collect();
    println!("the longest pause of any of 200: {:?}", pauses.iter().max().unwrap());
    let status = topology.status();
    assert_eq!(
        (&status["totals"]["flows_total"], &status["totals"]["flows_reset"]),
        (&200.into(), &0.into())
    );
    topology.stop();
}

#[test]
fn the_journal_gets_priorities_and_no_times_from_process_to_process() {
    let Some(mut topology) = Topology::new(program(), None) else { return };
    topology.configure(LEG, "listen = \"off\"");
    let journal = topology.start_for_the_journal();
    for _ in 0..2 {
        succeed(&topology.command(&["upgrade"]));
    }
    topology.stop();
    let text = std::fs::read_to_string(journal).unwrap();
    for line in text.lines() {
        assert!(["<3>", "<4>", "<6>"].iter().any(|priority| line.starts_with(priority)), "{line}");
    }
    assert_eq!(text.matches("; ready\n").count(), 3, "{text}");
    assert_eq!(text.matches(" took over 0 connections in ").count(), 2, "{text}");
    assert_eq!(text.matches("\n<6>upgrade: process ").count(), 2, "{text}");
    assert!(text.ends_with("<6>ending at SIGTERM\n"), "{text}");
}

#[test]
fn explicit_rates_survive_an_upgrade() {
    let Some(mut topology) = Topology::new(program(), Some(&Profile::Geo.config())) else { return };
    topology.configure("rate = \"10Mbit/s\"\nrtt = \"600ms\"\n", "listen = \"off\"");
    topology.start();
    // They take all that the link carries, and more.
    let uploads = topology.uploads(4, 100_000, Duration::from_millis(100));
    let carried = |from: &serde_json::Value, to: &serde_json::Value| {
        let bytes = |status: &serde_json::Value| status["totals"]["bytes_up"].as_u64().unwrap();
        (bytes(to) - bytes(from)) as f64 * 8.0
            / (to["uptime_s"].as_f64().unwrap() - from["uptime_s"].as_f64().unwrap())
    };
    std::thread::sleep(Duration::from_secs(4));
    let before = topology.status();
    succeed(&topology.command(&["upgrade"]));
    std::thread::sleep(Duration::from_secs(4));
    let after = topology.status();
    // Twice what four have who are told no rate: ten segments in a round trip, 0.8 Mbit/s together. A busy
    // machine carries no more than it has time for.
    let rate = carried(&before, &after);
    println!("{rate:.0} bit/s around the upgrade");
    assert!(rate > 1.6e6, "{rate}");
    let legs = after["legs"].as_array().unwrap();
    assert_eq!(legs[0]["explicit"]["active"], 4, "{legs:#?}");
    topology.stop();
    drop(uploads);
}

/// Without a rate the capacity is found. The next process has it at once, and one that is started later begins
/// with half of it.
#[test]
fn a_capacity_that_was_found_outlives_an_upgrade_and_a_restart() {
    let Some(mut topology) = Topology::new(program(), Some(&Profile::Geo.config())) else { return };
    let folder = topology.sockets().display().to_string();
    topology.configure("rtt = \"600ms\"\n", &format!("listen = \"off\"\nstate_folder = \"{folder}\""));
    topology.start();
    let uploads = topology.uploads(4, 100_000, Duration::from_millis(100));
    let capacity =
        |status: &serde_json::Value| status["legs"][0]["explicit"]["capacity_bps"].as_f64().unwrap();
    let searched = Instant::now();
    // Where the search begins it is 0.2 Mbit/s.
    while capacity(&topology.status()) < 4e6 {
        assert!(searched.elapsed() < PATIENCE, "{}", topology.status()["legs"]);
        std::thread::sleep(Duration::from_millis(200));
    }
    std::thread::sleep(Duration::from_secs(2));
    let before = capacity(&topology.status());
    succeed(&topology.command(&["upgrade"]));
    let after = capacity(&topology.status());
    assert!(after > before / 3.0, "{before} bit/s, and {after} after the upgrade");
    drop(uploads);
    // The search may have gone on meanwhile.
    let last = capacity(&topology.status());
    topology.stop();
    let kept = std::fs::read_to_string(topology.sockets().join("capacities.json")).unwrap();
    topology.start();
    let again = capacity(&topology.status());
    assert!((0.2..0.9).contains(&(again / last)), "{last} bit/s, {kept} kept, {again} after a restart");
    topology.stop();
}

#[test]
fn a_reload_good_or_bad_and_draining_harm_no_download() {
    let Some(mut topology) = Topology::new(program(), None) else { return };
    topology.configure(LEG, "listen = \"off\"");
    topology.start();
    let downloads = topology.downloads(50, PIECE, INTERVAL);
    topology.configure("rate = \"2Gbit/s\"\nrtt = \"60ms\"\n", "listen = \"off\"");
    succeed(&topology.command(&["reload"]));
    std::fs::write(topology.config(), "[legs.satellite]\ninterface = \"sat0\"\nrate = \"fast\"\n").unwrap();
    refuse(&topology.command(&["reload"]), "legs.satellite.rate");
    assert_eq!(topology.status()["totals"]["flows_open"], 50);
    // New connections pass, and the daemon ends with the last one that is split.
    succeed(&topology.command(&["drain", "--no-deadline", "--no-wait"]));
    let listener = topology.server.run(|| TcpListener::bind(topology.address(0)).unwrap()).unwrap();
    let to = listener.local_addr().unwrap();
    let start = Instant::now();
    let mut passed = loop {
        let before = topology.status()["totals"]["flows_total"].clone();
        let mut client = topology.client.run(|| TcpStream::connect(to).unwrap()).unwrap();
        let mut server = listener.accept().unwrap().0;
        client.write_all(b"x").unwrap();
        server.read_exact(&mut [0]).unwrap();
        if topology.status()["totals"]["flows_total"] == before {
            break client;
        }
        assert!(start.elapsed() < PATIENCE, "new connections are still split");
    };
    assert!(!topology.status()["draining"].is_null());
    assert!(downloads.finish().iter().all(|seen| seen.bytes > 0));
    let status = topology.daemon().wait_timeout(PATIENCE).unwrap().expect("the daemon has ended");
    assert_eq!(status.code(), Some(0));
    // Who passed does not notice.
    passed.write_all(b"y").unwrap();
}

#[test]
fn at_the_deadline_remaining_connections_are_reset() {
    let Some(mut topology) = Topology::new(program(), None) else { return };
    topology.configure(LEG, "listen = \"off\"");
    topology.start();
    let listener = topology.server.run(|| TcpListener::bind(topology.address(0)).unwrap()).unwrap();
    let to = listener.local_addr().unwrap();
    let mut client = topology.client.run(|| TcpStream::connect(to).unwrap()).unwrap();
    let _server = listener.accept().unwrap().0;
    client.write_all(b"x").unwrap();
    succeed(&topology.command(&["drain", "--deadline", "1s"]));
    let error = client.read(&mut [0]).expect_err("an end of file, not a reset");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

/// Somebody who says these words at the handover socket and then nothing.
fn caller(topology: &Topology, words: &[&str]) -> OwnedFd {
    use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketType, connect, send, socket};
    let line = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    connect(&line, &SocketAddrUnix::new(topology.sockets().join("handover.sock")).unwrap()).unwrap();
    for word in words {
        // It may have been shown the door.
        let _ = send(&line, word.as_bytes(), SendFlags::NOSIGNAL);
    }
    line
}

#[test]
fn slow_or_invalid_clients_of_the_upgrade_socket_do_not_block_an_upgrade() {
    let Some(mut topology) = Topology::new(program(), None) else { return };
    topology.configure(LEG, "listen = \"off\"");
    topology.start();
    let downloads = topology.downloads(10, PIECE, INTERVAL);
    let hello = r#"{"Hello":{"form":3}}"#;
    let start = Instant::now();
    let slow = [caller(&topology, &[hello]), caller(&topology, &[hello]), caller(&topology, &[])];
    for _ in 0..50 {
        drop(caller(&topology, &["\u{0}\u{1}nonsense", "{}", "\"Commit\""]));
        drop(caller(&topology, &[hello, "\"Ready\""]));
    }
    // So many may be too many for a moment.
    while !topology.command(&["upgrade"]).status.success() {
        assert!(start.elapsed() < PATIENCE, "nobody can upgrade");
    }
    assert_eq!(topology.status()["upgrades"], 1);
    // Those who are silent are waited for, but not by others: for a minute each.
    assert!(start.elapsed() < Duration::from_secs(45), "{:?}", start.elapsed());
    drop(slow);
    downloads.finish();
    topology.stop();
}

#[test]
fn a_successor_continues_even_if_its_acknowledgement_is_lost() {
    let Some(mut topology) = Topology::new(program(), None) else { return };
    topology.configure(LEG, "listen = \"off\"");
    topology.start();
    let downloads = topology.downloads(10, PIECE, INTERVAL);
    let mut command = topology.gateway.command(program());
    command.args(["run", "-c"]).arg(topology.config()).arg("--take-over").arg(topology.sockets());
    // Where nothing can be written to, other than a pipe that nobody reads, which is no error of any command.
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut next = command.stdin(Stdio::null()).stdout(full).spawn().unwrap();
    let start = Instant::now();
    while topology.status()["pid"] != next.id() {
        assert!(start.elapsed() < PATIENCE, "it has not taken over");
    }
    succeed(&topology.command(&["reload"]));
    assert_eq!(next.try_wait().unwrap(), None);
    assert!(downloads.finish().iter().all(|seen| seen.bytes > 0));
    topology.stop();
    next.wait().unwrap();
}

/// What somebody of the account nobody hears who asks for the connections.
fn answer_to_nobody(topology: &Topology) -> String {
    use rustix::net::{RecvFlags, recv};
    use rustix::process::{Gid, Uid};
    use rustix::thread::{set_thread_res_gid, set_thread_res_uid};
    let nobody = bentpipe_kernel::privileges::Account::find("nobody").unwrap();
    let ask = || {
        // Of this thread alone, which ends.
        let (user, group) = (Uid::from_raw(nobody.uid()), Gid::from_raw(nobody.gid()));
        set_thread_res_gid(group, group, group).unwrap();
        set_thread_res_uid(user, user, user).unwrap();
        // It is refused before it has said anything.
        let line = caller(topology, &[]);
        let mut answer = [0; 4096];
        let (_, length) = recv(&line, &mut answer, RecvFlags::empty()).unwrap();
        String::from_utf8_lossy(&answer[..length]).into_owned()
    };
    std::thread::scope(|scope| scope.spawn(ask).join().unwrap())
}

#[test]
fn a_daemon_that_runs_as_nobody_gives_its_connections_to_root_alone() {
    let Some(mut topology) = Topology::new(program(), None) else { return };
    topology.configure(LEG, "listen = \"off\"\n[proxy]\nuser = \"nobody\"");
    topology.start();
    for upgrades in 1..=2 {
        let answer = answer_to_nobody(&topology);
        assert!(answer.contains("Refusal") && answer.contains("root"), "{answer}");
        succeed(&topology.command(&["upgrade"]));
        assert_eq!(topology.status()["upgrades"], upgrades);
    }
    topology.stop();
}

#[test]
fn two_upgrades_at_once_and_one_while_draining() {
    let _turn = turn();
    let Some(mut topology) = Topology::new(program(), None) else { return };
    topology.configure(LEG, "listen = \"off\"");
    topology.start();
    let downloads = topology.downloads(50, PIECE, INTERVAL);
    let outcomes = std::thread::scope(|scope| {
        let topology = &topology;
        [(); 2]
            .map(|()| scope.spawn(|| topology.command(&["upgrade"])))
            .map(|upgrade| upgrade.join().unwrap())
    });
    let successes = outcomes.iter().filter(|output| output.status.success()).count();
    assert!(successes > 0, "{outcomes:?}");
    assert_eq!(topology.status()["upgrades"], successes);
    succeed(&topology.command(&["drain", "--no-deadline", "--no-wait"]));
    succeed(&topology.command(&["upgrade"]));
    let status = topology.status();
    assert!(!status["draining"].is_null(), "new connections are split again");
    assert_eq!(status["totals"]["flows_open"], 50);
    assert!(downloads.finish().iter().all(|seen| seen.bytes > 0));
    let start = Instant::now();
    while topology.command(&["status"]).status.success() {
        assert!(start.elapsed() < PATIENCE, "the daemon has drained and does not end");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn sockets_go_where_the_configuration_of_the_next_process_has_them() {
    let Some(mut topology) = Topology::new(program(), None) else { return };
    let (first, second) = (topology.sockets(), topology.sockets().with_file_name("second"));
    let files = |folder: &Path| std::fs::read_dir(folder).map_or(0, Iterator::count);
    let is_heard = |topology: &Topology, port: u16| {
        topology.gateway.run(move || TcpStream::connect(("127.0.0.1", port)).is_ok()).unwrap()
    };
    let upgrade = |topology: &Topology, folder: &Path| {
        let mut command = topology.gateway.command(program());
        command.arg("upgrade").arg("--folder").arg(folder).stdin(Stdio::null());
        succeed(&command.output().unwrap())
    };
    // The process before has it until it has ended.
    let expect_silence = |topology: &Topology, port| {
        let start = Instant::now();
        while is_heard(topology, port) {
            assert!(start.elapsed() < PATIENCE, "somebody listens on port {port}");
        }
    };
    topology.configure(LEG, "listen = \"127.0.0.1:7510\"");
    topology.start();
    let downloads = topology.downloads(10, PIECE, INTERVAL);
    assert_eq!((files(&first), is_heard(&topology, 7510)), (2, true));
    let text = std::fs::read_to_string(topology.config()).unwrap();
    let [here, there] = [&first, &second].map(|folder| folder.display().to_string());
    std::fs::write(topology.config(), text.replace(&here, &there).replace("7510", "7511")).unwrap();
    upgrade(&topology, &first);
    assert_eq!((files(&first), files(&second)), (0, 2));
    assert!(is_heard(&topology, 7511));
    expect_silence(&topology, 7510);
    // One that finds out late that it cannot go on with them leaves no sockets.
    let third = topology.sockets().with_file_name("third");
    let text = text.replace(&here, &third.display().to_string()).replace("7510", "7512");
    let taken = topology.gateway.run(|| TcpListener::bind("127.0.0.1:7800").unwrap()).unwrap();
    std::fs::write(topology.config(), format!("{text}[proxy]\nport = 7800\n")).unwrap();
    let mut command = topology.gateway.command(program());
    command.arg("upgrade").arg("--folder").arg(&second).stdin(Stdio::null());
    refuse(&command.output().unwrap(), "7800");
    assert_eq!((files(&second), files(&third), is_heard(&topology, 7511)), (2, 0, true));
    drop(taken);
    // And back, where nobody listens.
    topology.configure(LEG, "listen = \"off\"");
    upgrade(&topology, &second);
    assert_eq!((files(&first), files(&second)), (2, 0));
    expect_silence(&topology, 7511);
    assert_eq!(topology.status()["upgrades"], 2);
    assert!(downloads.finish().iter().all(|seen| seen.bytes > 0));
    topology.stop();
    assert_eq!(files(&first), 0);
}

/// Sends a signal to the daemon that answers, so long after an upgrade has begun; whether the upgrade has
/// succeeded.
fn signal_during_upgrade(topology: &Topology, signal: rustix::process::Signal, delay: Duration) -> bool {
    let pid = rustix::process::Pid::from_raw(topology.status()["pid"].as_i64().unwrap() as i32).unwrap();
    std::thread::scope(|scope| {
        let upgrade = scope.spawn(|| topology.command(&["upgrade"]));
        std::thread::sleep(delay);
        // It may have ended.
        let _ = rustix::process::kill_process(pid, signal);
        upgrade.join().unwrap().status.success()
    })
}

#[test]
fn a_signal_that_comes_during_an_upgrade_has_its_effect() {
    use rustix::process::Signal;
    let Some(mut topology) = Topology::new(program(), None) else { return };
    topology.configure(LEG, "listen = \"off\"");
    topology.start();
    let downloads = topology.downloads(10, PIECE, INTERVAL);
    for delay in [20, 60, 100, 140, 180, 220] {
        assert!(signal_during_upgrade(&topology, Signal::HUP, Duration::from_millis(delay)), "{delay} ms");
    }
    assert_eq!(topology.status()["upgrades"], 6);
    assert!(downloads.finish().iter().all(|seen| seen.bytes > 0));
    topology.stop();
    for delay in [20, 60, 100, 140, 180, 220] {
        topology.start();
        let upgraded = signal_during_upgrade(&topology, Signal::TERM, Duration::from_millis(delay));
        println!("SIGTERM after {delay} ms: upgraded {upgraded}");
        let start = Instant::now();
        // If it came when the first one had ended, it is the next one that is still there.
        while topology.command(&["status"]).status.success() && start.elapsed() < Duration::from_secs(2) {}
        if topology.command(&["status"]).status.success() {
            assert!(upgraded);
            topology.stop();
        }
        let rules = topology.gateway.command("nft").args(["list", "ruleset"]).output().unwrap();
        assert!(!String::from_utf8_lossy(&rules.stdout).contains("bentpipe"), "{delay} ms");
        assert_eq!(std::fs::read_dir(topology.sockets()).map_or(0, Iterator::count), 0);
    }
}
