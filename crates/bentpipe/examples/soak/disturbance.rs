//! What an operator orders, and what goes wrong, at random.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use bentpipe_testbed::Child;
use rustix::process::{Pid, Signal, kill_process};

use crate::operated::{PATIENCE, Topology, is_running};
use crate::random::Random;

/// Between two disturbances.
const LEAST_REST_MS: u64 = 500;
const MORE_REST_MS: u64 = 5000;
/// Connections that a fault has touched may notice it so much later: retransmissions back off.
const AFTERMATH: Duration = Duration::from_secs(15);

/// From when to when something was so.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Period {
    pub(crate) start: Instant,
    pub(crate) end: Instant,
}

impl Period {
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end && self.end > other.start
    }
}

/// Everything that can happen, with how often it does beside the others.
const DISTURBANCES: [(Disturbance, u64); 11] = [
    (Disturbance::Reload, 20),
    (Disturbance::Upgrade, 15),
    (Disturbance::KilledUpgrade, 10),
    (Disturbance::FrozenDaemon, 5),
    (Disturbance::Outage, 15),
    (Disturbance::Bypass, 8),
    (Disturbance::DrainAndCancel, 5),
    (Disturbance::RulesDeleted, 5),
    (Disturbance::RoutesDeleted, 5),
    (Disturbance::Flood, 5),
    (Disturbance::Crash, 3),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Disturbance {
    /// With another configuration.
    Reload,
    Upgrade,
    /// The successor is killed on the way.
    KilledUpgrade,
    /// The daemon is stopped for a moment, as by a debugger.
    FrozenDaemon,
    /// The link loses everything for a while.
    Outage,
    Bypass,
    DrainAndCancel,
    /// Another program deletes the table of rules.
    RulesDeleted,
    /// Another program deletes the policy rules.
    RoutesDeleted,
    /// Many SYNs whose senders never answer.
    Flood,
    /// The daemon is killed and started anew.
    Crash,
}

/// The operator of a gateway, and its bad luck.
pub(crate) struct Operator {
    counts: BTreeMap<Disturbance, u64>,
    /// What happened, and from when to when.
    events: Vec<(Period, Disturbance)>,
    breaks: Vec<Period>,
    refused: Vec<String>,
    /// Orders that came too soon after others.
    postponed: u64,
    log: PathBuf,
    pid: u32,
    /// What the access log had when the present daemon's counters began.
    lines_before: u64,
    bypass_is_on: bool,
}

impl Operator {
    /// Starts the daemon.
    pub(crate) fn start(topology: &mut Topology, random: &mut Random) -> Self {
        configure(topology, random);
        let log = topology.folder().join("log");
        topology.start_with_log(&log);
        let pid = pid(topology);
        Self {
            counts: BTreeMap::new(),
            events: Vec::new(),
            breaks: Vec::new(),
            refused: Vec::new(),
            postponed: 0,
            log,
            pid,
            lines_before: 0,
            bypass_is_on: false,
        }
    }

    /// The daemon's process.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// When connections may break.
    pub(crate) fn breaks(&self) -> &[Period] {
        &self.breaks
    }

    /// When the link lost everything.
    pub(crate) fn outages(&self) -> impl Iterator<Item = Period> {
        let outages = self.events.iter().filter(|(_, what)| *what == Disturbance::Outage);
        outages.map(|(period, _)| *period)
    }

    /// Lines of the access log when the present daemon's counters began.
    pub(crate) fn lines_before(&self) -> u64 {
        self.lines_before
    }

    /// Waits for a while, and disturbs.
    pub(crate) fn disturb(&mut self, topology: &mut Topology, random: &mut Random) {
        std::thread::sleep(Duration::from_millis(LEAST_REST_MS + random.below(MORE_REST_MS)));
        let sum: u64 = DISTURBANCES.iter().map(|(_, weight)| weight).sum();
        let mut place = random.below(sum);
        let chosen = DISTURBANCES.iter().find(|(_, weight)| {
            let is_here = place < *weight;
            place = place.saturating_sub(*weight);
            is_here
        });
        let disturbance = chosen.map_or(Disturbance::Reload, |(disturbance, _)| *disturbance);
        *self.counts.entry(disturbance).or_default() += 1;
        let start = Instant::now();
        self.carry_out(disturbance, topology, random);
        self.events.push((Period { start, end: Instant::now() }, disturbance));
    }

    /// What happened while a connection lived, and shortly before, in seconds from its end.
    pub(crate) fn events_around(&self, begun: Instant, ended: Instant) -> String {
        let seconds = |time: Instant| {
            let before = ended.saturating_duration_since(time).as_secs_f64();
            format!("{:+.1}", if time > ended { (time - ended).as_secs_f64() } else { -before })
        };
        let near =
            |(Period { start, end }, _): &&(Period, Disturbance)| *end + AFTERMATH > begun && *start < ended;
        let line = |(Period { start, end }, what): &(Period, Disturbance)| {
            format!("{what:?} {} to {} s", seconds(*start), seconds(*end))
        };
        self.events.iter().filter(near).map(line).collect::<Vec<_>>().join(", ")
    }

    /// Takes over from itself: what a process holds depends on who has started it.
    pub(crate) fn upgrade(&mut self, topology: &Topology) {
        self.order(topology, &["upgrade"]);
        self.pid = pid(topology);
    }

    fn carry_out(&mut self, disturbance: Disturbance, topology: &mut Topology, random: &mut Random) {
        match disturbance {
            Disturbance::Reload => {
                configure(topology, random);
                self.order(topology, &["reload"]);
            }
            Disturbance::Upgrade => self.upgrade(topology),
            Disturbance::KilledUpgrade => self.kill_successor(topology, random),
            Disturbance::FrozenDaemon => {
                let start = Instant::now();
                self.signal(Signal::STOP);
                std::thread::sleep(Duration::from_millis(random.below(1000)));
                self.signal(Signal::CONT);
                self.breaks.extend(is_longer_than_patience(start));
            }
            Disturbance::Outage => {
                let link = topology.link.as_ref().expect("there is a link");
                link.set_outage(true);
                std::thread::sleep(Duration::from_millis(200 + random.below(8000)));
                link.set_outage(false);
            }
            Disturbance::Bypass => {
                self.bypass_is_on = !self.bypass_is_on;
                self.order(topology, &["bypass", if self.bypass_is_on { "on" } else { "off" }]);
            }
            Disturbance::DrainAndCancel => {
                self.order(topology, &["drain", "--no-deadline", "--no-wait"]);
                std::thread::sleep(Duration::from_millis(random.below(2000)));
                self.order(topology, &["drain", "--cancel"]);
            }
            Disturbance::RulesDeleted => {
                // Packets of split connections lose their way until the watchdog has seen it.
                let start = Instant::now();
                let _ = topology.gateway.nft("delete table inet bentpipe");
                self.breaks.push(Period { start, end: Instant::now() + AFTERMATH });
            }
            Disturbance::RoutesDeleted => {
                let start = Instant::now();
                let _ = topology.gateway.ip("rule del pref 67");
                self.breaks.push(Period { start, end: Instant::now() + AFTERMATH });
            }
            Disturbance::Flood => flood(topology, random),
            Disturbance::Crash => self.crash(topology),
        }
    }

    /// A successor that dies at a moment of the upgrade: the daemon goes on, or has gone over to it before.
    fn kill_successor(&mut self, topology: &mut Topology, random: &mut Random) {
        let mut command = topology.gateway.command(topology.program());
        command.args(["run", "-c"]).arg(topology.config()).arg("--take-over").arg(topology.sockets());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut successor = Child::spawn(command).expect("the program starts");
        let start = Instant::now();
        std::thread::sleep(Duration::from_millis(random.below(400)));
        let _ = successor.kill();
        let is_there = |pid: u32| std::path::Path::new(&format!("/proc/{pid}/exe")).read_link().is_ok();
        std::thread::sleep(Duration::from_millis(300));
        if !is_there(self.pid) {
            // It was the daemon already.
            self.breaks.push(Period { start, end: Instant::now() + AFTERMATH });
            self.restart(topology);
        }
    }

    fn crash(&mut self, topology: &mut Topology) {
        let start = Instant::now();
        self.signal(Signal::KILL);
        await_end(self.pid);
        self.restart(topology);
        self.breaks.push(Period { start, end: Instant::now() + AFTERMATH });
    }

    fn restart(&mut self, topology: &mut Topology) {
        topology.start_with_log(&self.log);
        self.pid = pid(topology);
        self.lines_before = topology.access_log_lines();
    }

    fn signal(&self, signal: Signal) {
        let process = Pid::from_raw(self.pid as i32).expect("a process");
        let _ = kill_process(process, signal);
    }

    fn order(&mut self, topology: &Topology, arguments: &[&str]) {
        let Output { status, stderr, .. } = topology.command(arguments);
        let said = String::from_utf8_lossy(&stderr);
        // Changes of the legs are limited: each leaves listeners behind for a minute.
        if !status.success() && said.contains("times within about a minute") {
            self.postponed += 1;
        } else if !status.success() {
            let refusal = format!("bentpipe {}: {}", arguments.join(" "), said.trim());
            println!("         refused: {refusal}");
            self.refused.push(refusal);
        }
    }

    /// Takes back what would last.
    pub(crate) fn come_to_rest(&mut self, topology: &mut Topology) {
        if std::mem::take(&mut self.bypass_is_on) {
            self.order(topology, &["bypass", "off"]);
        }
    }

    /// In a few words.
    pub(crate) fn summary(&self) -> String {
        let count: u64 = self.counts.values().sum();
        let Self { postponed, refused, .. } = self;
        format!("{count} disturbances, {postponed} orders too soon after others, {} refused", refused.len())
    }

    /// How often what has happened.
    pub(crate) fn table(&self) -> String {
        let mut table = String::from("\n| what | times |\n|---|---|\n");
        for (disturbance, count) in &self.counts {
            let _ = writeln!(table, "| {disturbance:?} | {count} |");
        }
        table
    }

    /// Stops the daemon. Returns what it leaves behind, the orders that it refused, and what its log has
    /// that it must not have.
    pub(crate) fn end(&mut self, topology: &mut Topology) -> Vec<String> {
        let mut faults = std::mem::take(&mut self.refused);
        topology.stop();
        for (left, found) in [
            ("rules", topology.gateway_says("nft", "list tables")),
            ("policy rules", topology.gateway_says("ip", "rule show table 25200")),
            ("policy rules", topology.gateway_says("ip", "-6 rule show table 25200")),
        ] {
            if found.contains("bentpipe") || found.contains("25200") {
                faults.push(format!("{left} are left: {}", found.trim()));
            }
        }
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        faults.extend(log.lines().filter(|line| line.contains("panicked")).map(str::to_owned));
        faults
    }
}

/// Another configuration, all of which split the same connections.
fn configure(topology: &Topology, random: &mut Random) {
    let congestion = random.choose(&["cubic", "hybla", "bbr"]);
    let handshake = random.choose(&["early", "faithful"]);
    let keepalive = 20 + random.below(100);
    let leg = format!(
        "rate = \"20Mbit/s\"\nrtt = \"80ms\"\ncongestion = \"{congestion}\"\nkeepalive = \"{keepalive}s\""
    );
    let access_log = topology.access_log();
    let rest = format!(
        "listen = \"off\"\n[proxy]\nhandshake = \"{handshake}\"\n[limits]\nconnections = {}\n[access_log]\nfile = \"{}\"\n",
        5000 + random.below(5000),
        access_log.display()
    );
    topology.configure(&leg, &rest);
}

/// Connections begun from addresses that answer nothing: their SYN-ACKs go nowhere.
fn flood(topology: &Topology, random: &mut Random) {
    let count = 50 + random.below(200);
    let nobody: SocketAddr = ([198, 51, 100, 1], 9).into();
    let _ = topology.client.run(|| {
        let connect = |_| {
            let stream = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).ok()?;
            stream.set_nonblocking(true).ok()?;
            let _ = stream.connect(&nobody.into());
            Some(TcpStream::from(stream))
        };
        let streams: Vec<_> = (0..count).filter_map(connect).collect();
        std::thread::sleep(Duration::from_millis(500));
        drop(streams);
    });
}

/// What stands still for longer than the rules' patience lets new connections pass, which break later if
/// their first packets went both ways.
fn is_longer_than_patience(start: Instant) -> Option<Period> {
    let end = Instant::now();
    (end - start > Duration::from_millis(900)).then_some(Period { start, end: end + AFTERMATH })
}

fn pid(topology: &Topology) -> u32 {
    topology.status()["pid"].as_u64().expect("the daemon's process") as u32
}

fn await_end(pid: u32) {
    let start = Instant::now();
    while is_running(pid) {
        assert!(start.elapsed() < PATIENCE, "process {pid} does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}
