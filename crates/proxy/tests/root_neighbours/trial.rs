//! A gateway with one neighbour, and connections that are tried on it with and without the daemon.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::attempt::{Attempt, Expectation, LONGEST_WAIT, Outcome, transfer};
use crate::common::{Host, LOG_VARIABLE, Net, Running, network};
use crate::neighbour::outward;
use crate::observer::{belongings, expect_none_invalid, observe};
use crate::row::{Handling, Row};
use crate::shell::Shell;

/// Both ways to answer a client's SYN.
pub(crate) const HANDSHAKES: [&str; 2] = ["early", "faithful"];
/// The daemon looks at rules, routes and connection tracking at intervals of up to a second.
pub(crate) const SETTLING: Duration = Duration::from_millis(1500);
/// A line in the log may come after the connection that it is about.
const LINE_WAIT: Duration = Duration::from_secs(5);

/// The network, the services on its gateway and the log of the daemon.
pub(crate) struct Trial {
    // Dropped first: services must not outlive their network.
    pub(crate) services: Vec<Shell>,
    pub(crate) net: Net,
    /// Hosts that only some trials have.
    pub(crate) hosts: BTreeMap<&'static str, Host>,
    /// The interface of the satellite leg.
    pub(crate) leg: &'static str,
    log: tempfile::NamedTempFile,
}

/// A connection that exists before a neighbour comes.
type Standing = (std::net::TcpStream, std::net::TcpStream);

impl Trial {
    /// `None`, and the reason on standard output, where this user may not make networks.
    pub(crate) fn new() -> Option<Self> {
        let log = tempfile::NamedTempFile::new().unwrap();
        Some(Self { services: Vec::new(), net: network()?, hosts: BTreeMap::new(), leg: "sat0", log })
    }

    /// A shell for services of the gateway, which end with the trial.
    pub(crate) fn shell(&mut self) -> &mut Shell {
        self.services.push(Shell::open(&self.net.gateway));
        self.services.last_mut().unwrap()
    }

    /// A daemon whose log this trial reads.
    pub(crate) fn daemon(&self, handshake: &str) -> Running {
        let text = format!(
            "[proxy]\nhandshake = \"{handshake}\"\n[legs.satellite]\ninterface = \"{}\"\ncongestion = \"reno\"\n",
            self.leg
        );
        let log = |command: &mut std::process::Command| {
            command.env(LOG_VARIABLE, self.log.path());
        };
        let started = self.net.try_daemon_changed(&text, log);
        started.unwrap_or_else(|error| panic!("the daemon with the {handshake} handshake: {error}"))
    }

    /// What the neighbour alone makes of each attempt; it must be what is expected. The server learns who it
    /// is.
    pub(crate) fn without_daemon(&self, attempts: &[Attempt]) -> Vec<Outcome> {
        let outcomes: Vec<_> = attempts.iter().map(|attempt| attempt.try_once(&attempt.listen())).collect();
        for (attempt, outcome) in attempts.iter().zip(&outcomes) {
            let through = matches!(outcome, Outcome::Through { .. });
            let expected = attempt.expectation != Expectation::Forbidden;
            assert_eq!(through, expected, "without a daemon: {attempt}: {outcome:?}");
        }
        outcomes
    }

    /// With each handshake: every attempt ends as without the daemon, and the neighbour finds everything of
    /// its own as it was. Where the neighbour breaks splitting, this is so once the daemon has noticed.
    pub(crate) fn with_daemon(&self, attempts: &[Attempt], unsplit: &[Outcome], breaks: bool, row: &mut Row) {
        let before = belongings(&self.net.gateway);
        for handshake in HANDSHAKES {
            let mut daemon = self.daemon(handshake);
            if breaks {
                self.wait_until_through(attempts);
            }
            self.expect_as_unsplit(&mut daemon, attempts, unsplit, row);
            daemon.stop();
        }
        assert_eq!(belongings(&self.net.gateway), before, "the daemon has changed what others own");
    }

    /// The same where the neighbour comes while the daemon runs.
    pub(crate) fn with_daemon_first(
        &mut self,
        set_up: impl Fn(&mut Self),
        attempts: impl Fn(&Self) -> Vec<Attempt>,
        unsplit: &[Outcome],
        breaks: bool,
        row: &mut Row,
    ) {
        observe(&self.net.gateway, "");
        // The tracking begins; `tracking.rs` has what happens where it begins later.
        self.without_daemon(&outward(&self.net));
        let mut daemon = self.daemon("early");
        let standing = [0, 1].map(|family| self.standing(family));
        set_up(self);
        std::thread::sleep(SETTLING);
        let attempts = attempts(self);
        if breaks {
            self.wait_until_through(&attempts);
        }
        self.expect_as_unsplit(&mut daemon, &attempts, unsplit, row);
        for standing in standing {
            transfer(standing).unwrap_or_else(|error| panic!("a connection from before: {error}"));
        }
        daemon.stop();
    }

    /// A connection that is split.
    fn standing(&self, family: usize) -> Standing {
        let attempt = Attempt::outward(&self.net, family, 7999);
        attempt.connect(&attempt.listen()).unwrap()
    }

    pub(crate) fn expect_as_unsplit(
        &self,
        daemon: &mut Running,
        attempts: &[Attempt],
        unsplit: &[Outcome],
        row: &mut Row,
    ) {
        for (attempt, unsplit) in attempts.iter().zip(unsplit) {
            let listener = attempt.listen();
            let before = daemon.counter("flows_total");
            assert_eq!(attempt.try_once(&listener), *unsplit, "{attempt}\n{}", self.log());
            if attempt.expectation == Expectation::Forbidden {
                assert_eq!(daemon.counter("flows_total"), before, "{attempt}: split all the same");
                row.add_forbidden();
                continue;
            }
            self.expect_transfer(attempt, &listener);
            let is_split = daemon.counter("flows_total") > before;
            self.note(attempt, is_split, row);
        }
        expect_none_invalid(&self.net.gateway, "unsplit and split");
    }

    fn expect_transfer(&self, attempt: &Attempt, listener: &TcpListener) {
        let ends = attempt.connect(listener).map_err(|error| error.to_string());
        let done = ends.and_then(transfer);
        done.unwrap_or_else(|error| panic!("{attempt}: {error}\n{}", self.log()));
    }

    fn note(&self, attempt: &Attempt, is_split: bool, row: &mut Row) {
        match (attempt.expectation, is_split) {
            (Expectation::Elsewhere, true) => panic!("{attempt}: split, but it does not cross the leg"),
            (Expectation::Elsewhere, false) => row.add_elsewhere(),
            (Expectation::Translated, false) => row.add(attempt.to.is_ipv6(), Handling::Translated),
            (_, true) => row.add(attempt.to.is_ipv6(), Handling::Split),
            (_, false) => row.add(attempt.to.is_ipv6(), Handling::Passed(self.warning(attempt))),
        }
    }

    /// The last warning of the daemon's log, which must say why connections pass.
    fn warning(&self, attempt: &Attempt) -> String {
        let start = Instant::now();
        loop {
            let log = self.log();
            if let Some(line) = log.lines().rev().find_map(message_of_warning) {
                return line.to_owned();
            }
            assert!(start.elapsed() < LINE_WAIT, "{attempt}: it passed without a line in the log:\n{log}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.log.path()).unwrap()
    }

    /// Waits until every attempt comes through; until then they may be refused, but none may hang.
    fn wait_until_through(&self, attempts: &[Attempt]) {
        let start = Instant::now();
        for attempt in attempts.iter().filter(|attempt| attempt.expectation != Expectation::Forbidden) {
            let listener = attempt.listen();
            loop {
                match attempt.try_once(&listener) {
                    Outcome::Through { .. } => break,
                    Outcome::Refused(_) if start.elapsed() < 4 * LONGEST_WAIT => {}
                    outcome => panic!("{attempt}: {outcome:?} after {:?}\n{}", start.elapsed(), self.log()),
                }
            }
        }
    }

    /// Waits until a connection is split again, within the time of a check of the daemon's; none may hang.
    pub(crate) fn wait_until_split(&self, daemon: &mut Running, attempt: &Attempt) {
        let listener = attempt.listen();
        let (start, before) = (Instant::now(), daemon.counter("flows_total"));
        while daemon.counter("flows_total") == before {
            assert!(start.elapsed() < 4 * LONGEST_WAIT, "{attempt}: not split\n{}", self.log());
            let outcome = attempt.try_once(&listener);
            assert!(matches!(outcome, Outcome::Through { .. }), "{attempt}: {outcome:?}\n{}", self.log());
        }
    }
}

/// `2026-01-01T00:00:00Z  WARN bentpipe_proxy::daemon: what it says`
fn message_of_warning(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once(" WARN ").or_else(|| line.split_once(" ERROR "))?;
    rest.split_once(": ").map(|(_, message)| message)
}

#[test]
fn a_warning_is_told_without_its_time_and_place() {
    let line = "2026-01-01T00:00:00Z  WARN bentpipe_proxy::daemon: rules: gone";
    assert_eq!(message_of_warning(line), Some("rules: gone"));
    assert_eq!(message_of_warning("2026-01-01T00:00:00Z  INFO bentpipe_proxy: ready"), None);
}
