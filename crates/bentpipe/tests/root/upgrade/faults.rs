//! Successors that are frozen, killed or silent at random moments of an upgrade, while downloads run. A
//! download pauses, and that is all.
//!
//! ```sh
//! make upgrade-faults                     # 200 moments: some five minutes
//! UPGRADE_FAULTS_SEED=7 cargo test -p bentpipe --test root upgrade::faults -- --nocapture
//! ```
//!
//! A moment is one of an upgrade as long as nobody has claimed the connections: whoever is killed or frozen
//! after that is a daemon that dies or hangs. So every victim is stopped first and the word that says who
//! owns the connections is read from its memory; one that owns them already goes on.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use bentpipe_testbed::Child;
use rustix::net::{RecvFlags, recv};
use rustix::process::{Pid, Signal, kill_process};

use super::{INTERVAL, LEG, PIECE, caller, program, succeed, turn};
use crate::operated::{PATIENCE, Seen, Topology};

const DOWNLOADS: usize = 100;
/// How many moments, and what they follow from.
const ROUNDS_VARIABLE: &str = "UPGRADE_FAULTS";
const SEED_VARIABLE: &str = "UPGRADE_FAULTS_SEED";
const ROUNDS: u64 = 20;
/// No download may wait for longer, in a run of its own (`make upgrade-faults`).
const WORST_PAUSE: Duration = Duration::from_secs(3);
/// Longer than a predecessor waits for a successor that makes no progress.
const LONGER_THAN_A_STANDSTILL: Duration = Duration::from_millis(1500);
/// How long a standstill lasts in an upgrade without a fault, milliseconds: from when the connections are
/// offered, until and past the claim.
const STANDSTILL_MS: u64 = 12;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// Stopped, and continued when the old process serves again.
    Frozen,
    Killed,
    /// It lives, and says nothing more.
    Silent,
}

/// What became of a successor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// It had claimed the connections before the fault, and serves.
    HadClaimed,
    /// It had not been offered them yet.
    BeforeTheOffer,
    /// It had been offered them.
    AfterTheOffer,
    /// It had given up before the fault: the machine was too busy.
    HadGivenUp,
}

/// A generator whose sequence follows from its seed (Marsaglia's xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // The lower bits of one number depend on those of the last.
        (self.0 >> 32) % limit
    }
}

/// A successor that this test has started, and its log until it has taken over.
struct Victim(Child, std::fs::File);

impl Victim {
    fn start(topology: &Topology) -> Self {
        let mut command = topology.gateway.command(program());
        command.args(["run", "-c"]).arg(topology.config()).arg("--take-over").arg(topology.sockets());
        let log = tempfile::tempfile().unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.try_clone().unwrap());
        Self(Child::spawn(command).unwrap(), log)
    }

    fn has_ended(&mut self) -> bool {
        self.0.wait_timeout(Duration::ZERO).unwrap().is_some()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.0.id() as i32).unwrap(), signal).unwrap();
    }

    /// The word that says who owns the connections: 0 nobody yet, 1 the predecessor, 2 this process. `None`
    /// before it has got it.
    fn owner(&self) -> Option<u64> {
        let process = format!("/proc/{}", self.0.id());
        let maps = std::fs::read_to_string(format!("{process}/maps")).ok()?;
        let line = maps.lines().find(|line| line.contains("memfd:bentpipe-ownership"))?;
        let start = u64::from_str_radix(line.split_once('-')?.0, 16).unwrap();
        let mut word = [0; 8];
        std::fs::File::open(format!("{process}/mem")).ok()?.read_exact_at(&mut word, start).ok()?;
        Some(u64::from_ne_bytes(word))
    }

    /// Waits until it has been offered the connections.
    fn wait_for_offer(&mut self) {
        let start = Instant::now();
        while self.owner().is_none() && !self.has_ended() {
            assert!(start.elapsed() < PATIENCE, "it is offered nothing");
        }
    }

    /// Stops it, and says how far it had come.
    fn stop(&mut self) -> End {
        if self.has_ended() {
            return End::HadGivenUp;
        }
        self.signal(Signal::STOP);
        let tasks = format!("/proc/{}/task", self.0.id());
        let is_stopped = |task: std::fs::DirEntry| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with(['T', 'Z']))
        };
        let start = Instant::now();
        while !std::fs::read_dir(&tasks).unwrap().map(Result::unwrap).all(is_stopped) {
            assert!(start.elapsed() < PATIENCE, "it does not stop");
        }
        match self.owner() {
            _ if self.has_ended() => End::HadGivenUp,
            None => End::BeforeTheOffer,
            Some(2) => End::HadClaimed,
            Some(_) => End::AfterTheOffer,
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable}={text}")))
}

/// Waits until this process answers as the daemon.
fn wait_for_daemon(topology: &Topology, pid: u32) {
    let start = Instant::now();
    while topology.status()["pid"] != pid {
        assert!(start.elapsed() < PATIENCE, "process {pid} is not the daemon");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A process that speaks the protocol up to some point and then says nothing for a while.
fn fall_silent(topology: &Topology, random: &mut Random) -> End {
    let hello = r#"{"Hello":{"form":3}}"#;
    let words = [&[][..], &[hello], &[hello, "\"Freeze\""], &[hello, "\"Freeze\""]];
    let depth = random.below(words.len() as u64) as usize;
    let line: OwnedFd = caller(topology, words[depth]);
    let start = Instant::now();
    // The deepest one reads the snapshot; the descriptors beside it are closed.
    while depth == 3 && start.elapsed() < LONGER_THAN_A_STANDSTILL {
        if recv(&line, &mut [0; 16 * 1024], RecvFlags::DONTWAIT).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    std::thread::sleep(Duration::from_millis(random.below(1500)));
    if depth < 2 { End::BeforeTheOffer } else { End::AfterTheOffer }
}

/// Lets a successor come to grief at a random moment of `length`. The daemon's process afterwards.
fn fail(
    topology: &Topology,
    daemon: &mut Option<Victim>,
    fault: Fault,
    length: Duration,
    random: &mut Random,
) -> End {
    let before = topology.status()["pid"].as_u64().unwrap() as u32;
    if fault == Fault::Silent {
        let end = fall_silent(topology, random);
        wait_for_daemon(topology, before);
        return end;
    }
    let mut victim = Victim::start(topology);
    // Half of them while all connections stand still.
    let moment = if random.below(2) == 0 {
        random.below(length.as_micros() as u64)
    } else {
        victim.wait_for_offer();
        random.below(STANDSTILL_MS * 1000)
    };
    std::thread::sleep(Duration::from_micros(moment));
    let end = victim.stop();
    if end == End::HadClaimed {
        victim.signal(Signal::CONT);
        wait_for_daemon(topology, victim.0.id());
        // The process before it has ended.
        *daemon = Some(victim);
        return end;
    }
    if end == End::HadGivenUp {
        let mut log = vec![0; 64 * 1024];
        let length = victim.1.read_at(&mut log, 0).unwrap();
        println!("it had given up: {}", String::from_utf8_lossy(&log[..length]));
        wait_for_daemon(topology, before);
        return end;
    }
    if fault == Fault::Killed {
        victim.signal(Signal::KILL);
        victim.0.wait_timeout(PATIENCE).unwrap().expect("it has been killed");
        wait_for_daemon(topology, before);
        return end;
    }
    std::thread::sleep(LONGER_THAN_A_STANDSTILL);
    wait_for_daemon(topology, before);
    assert_ne!(victim.owner(), Some(2), "a frozen process has claimed something");
    victim.signal(Signal::CONT);
    // Nothing stands still for it before the offer: then it may take over now. But the offer may have been on
    // its way when it was stopped.
    if end == End::BeforeTheOffer && takes_over(topology, &mut victim) {
        *daemon = Some(victim);
        return end;
    }
    let status = victim.0.wait_timeout(PATIENCE).unwrap().expect("it gives up");
    assert_eq!(status.code(), Some(1), "a process that came too late");
    wait_for_daemon(topology, before);
    End::AfterTheOffer
}

/// Waits until it has become the daemon, or has given up.
fn takes_over(topology: &Topology, victim: &mut Victim) -> bool {
    let start = Instant::now();
    while !victim.has_ended() {
        if topology.status()["pid"] == victim.0.id() {
            return true;
        }
        assert!(start.elapsed() < PATIENCE, "it neither takes over nor gives up");
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

#[test]
fn successors_that_fail_at_random_moments_of_an_upgrade_cost_a_pause_and_nothing_else() {
    let _turn = turn();
    let Some(mut topology) = Topology::new(program(), None) else { return };
    let rounds = number(ROUNDS_VARIABLE).unwrap_or(ROUNDS);
    let seed = number(SEED_VARIABLE).unwrap_or_else(|| u64::from(std::process::id()));
    println!("{rounds} moments; {SEED_VARIABLE}={seed}");
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    topology.configure(LEG, "listen = \"off\"");
    topology.start();
    let start = Instant::now();
    succeed(&topology.command(&["upgrade"]));
    let length = start.elapsed();
    let downloads = topology.downloads(DOWNLOADS, PIECE, INTERVAL);
    let mut ends = BTreeMap::<(Fault, End), u64>::new();
    let mut daemon = None;
    for round in 0..rounds {
        let fault = [Fault::Frozen, Fault::Killed, Fault::Silent][random.below(3) as usize];
        let end = fail(&topology, &mut daemon, fault, length, &mut random);
        println!("moment {round}: {fault:?}, {end:?}");
        *ends.entry((fault, end)).or_default() += 1;
    }
    succeed(&topology.command(&["upgrade"]));
    // Each is whole, and each byte is the one that was sent.
    let seen = downloads.finish();
    let mut pauses: Vec<Duration> = seen.iter().map(|Seen { longest_pause, .. }| *longest_pause).collect();
    pauses.sort_unstable();
    let (worst, median) = (pauses[pauses.len() - 1], pauses[pauses.len() / 2]);
    println!("an upgrade without a fault took {length:?}");
    println!("{ends:#?}");
    println!("{DOWNLOADS} downloads are whole, none is reset; the worst pause: {worst:?}, median {median:?}");
    let status = topology.status();
    let totals = ["flows_total", "flows_reset"].map(|name| status["totals"][name].as_u64().unwrap());
    assert_eq!(totals, [DOWNLOADS as u64, 0]);
    // Only where nothing else runs does a pause tell about the upgrade.
    let is_alone = std::env::var_os(ROUNDS_VARIABLE).is_some();
    assert!(!is_alone || worst < WORST_PAUSE, "{worst:?}");
    topology.stop();
}
