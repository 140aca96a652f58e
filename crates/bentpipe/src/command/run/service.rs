//! The daemon with its surroundings: status, commands, the service manager, and its successor.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use bentpipe_admin::history::{Recorder, SavedHistory};
use bentpipe_admin::{Admin, Command, DrainTimes, Identity, Sockets, serve};
use bentpipe_kernel::notify::{Notifier, NotifierSnapshot};
use bentpipe_proxy::upgrade::{ExtraFds, Successor};
use bentpipe_proxy::{Config, Daemon, ReloadReport};
use serde::{Deserialize, Serialize};
use signal_hook::consts::SIGHUP;
use signal_hook::low_level::signal_name;

use super::bypass::BypassFile;
use super::capacities::CapacitiesFile;
use super::events::{Event, Events};
use super::outages::{OutageChange, Outages};
use crate::command::log;

/// The name under which standard error, the log's target, is handed over.
const LOG: &str = "log";
/// The interval between status messages to the service manager.
const STATUS_INTERVAL: Duration = Duration::from_secs(10);
/// The interval between looks at the legs' capacities, which are kept for the next daemon.
const CAPACITIES_INTERVAL: Duration = Duration::from_secs(60);
/// The interval between checks of the legs for outages.
const LEGS_INTERVAL: Duration = Duration::from_secs(1);

/// The state that is handed over next to the daemon's own.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct SavedState {
    history: Option<SavedHistory>,
    manager: Option<NotifierSnapshot>,
    /// The journal's stream, if the log is one.
    journal: Option<String>,
}

/// A running daemon.
pub(super) struct Service {
    config: PathBuf,
    program: String,
    /// `None` after a successor took over.
    daemon: Option<Daemon>,
    sockets: Sockets,
    bypass: BypassFile,
    capacities: Option<CapacitiesFile>,
    notifier: Notifier,
    recorder: Recorder,
    admin: Option<Admin>,
    outages: Outages,
    next_watchdog: Instant,
    next_status: Instant,
    next_legs: Instant,
    next_capacities: Instant,
}

/// Whether to wait for the next event.
enum Continue {
    Yes,
    No,
    /// The daemon cannot go on, for this reason: the service manager is to start it again.
    Failed(String),
}

impl Service {
    pub(super) fn new(
        config: PathBuf,
        program: String,
        daemon: Daemon,
        mut sockets: Sockets,
        notifier: Notifier,
        extra_fds: ExtraFds,
        (bypass, capacities): (BypassFile, Option<CapacitiesFile>),
    ) -> Self {
        // State in the form of an older program is ignored.
        let state: SavedState = serde_json::from_value(extra_fds.memory).unwrap_or_default();
        for (name, descriptor) in extra_fds.descriptors {
            if name != LOG {
                sockets.add(&name, descriptor);
                continue;
            }
            match rustix::stdio::dup2_stderr(&descriptor) {
                Ok(()) => log::follow(state.journal.as_deref()),
                Err(error) => {
                    tracing::warn!(
                        "cannot write to the log of the old process, so this one has its own: {error}"
                    );
                }
            }
        }
        let notifier = state.manager.as_ref().map_or(notifier, Notifier::of);
        let recorder = state.history.as_ref().map_or_else(Recorder::default, Recorder::restore);
        let now = Instant::now();
        Self {
            config,
            program,
            daemon: Some(daemon),
            sockets,
            bypass,
            capacities,
            notifier,
            recorder,
            admin: None,
            outages: Outages::default(),
            next_watchdog: now,
            next_status: now,
            next_legs: now,
            next_capacities: now + CAPACITIES_INTERVAL,
        }
    }

    /// Opens the sockets for status, commands and successors.
    pub(super) fn open(&mut self, events: &Events) {
        self.serve_admin(events);
        if let (Some(daemon), Some(socket)) = (&self.daemon, self.sockets.take_handover()) {
            let names = self.sockets.named().into_iter().map(|(name, _)| name);
            let extra_fds = names.chain([LOG.to_owned()]).collect();
            if let Err(error) = events.accept_successors(socket, daemon.inventory(extra_fds)) {
                tracing::error!("this daemon cannot be upgraded: {error:#}");
            }
        }
        self.notifier.ready();
        tracing::info!("{}", self.introduction());
    }

    /// Handles events until the end.
    ///
    /// # Errors
    /// The daemon cannot go on. Everything that it had is undone, or is another process's.
    pub(super) fn serve(mut self, events: &Events) -> anyhow::Result<()> {
        let failure = loop {
            match self.handle(events) {
                Continue::Yes => {}
                Continue::No => break None,
                Continue::Failed(reason) => break Some(reason),
            }
        };
        drop(self.admin.take());
        if let Some(daemon) = self.daemon.take() {
            self.notifier.stopping();
            if let Some(file) = &mut self.capacities {
                file.keep(daemon.capacities());
            }
            drop(daemon);
            self.sockets.close();
        }
        failure.map_or(Ok(()), |reason| Err(anyhow!(reason)))
    }

    fn handle(&mut self, events: &Events) -> Continue {
        let Some(daemon) = &mut self.daemon else { return Continue::No };
        match events.next() {
            Event::Tick => return self.on_tick(),
            // The log has its report.
            Event::Signal(SIGHUP) => drop(self.reload()),
            Event::Signal(signal) => {
                tracing::info!("ending at {}", signal_name(signal).unwrap_or("a signal"));
                return Continue::No;
            }
            // The client that sent the command may have gone.
            Event::Command(Command::Reload(answer)) => {
                let _ = answer.send(self.reload());
            }
            Event::Command(Command::Drain(DrainTimes { deadline, stay }, answer)) => {
                daemon.drain(deadline, stay);
                let _ = answer.send(Ok(()));
            }
            Event::Command(Command::StopDraining(answer)) => {
                daemon.stop_draining();
                let _ = answer.send(Ok(()));
            }
            // First what the operator needs now, which must not fail because a disk is full.
            Event::Command(Command::SetBypass(on, answer)) => {
                daemon.set_bypass(on);
                let kept = self.bypass.keep(on);
                let _ = answer.send(kept.inspect_err(|error| tracing::error!("{error}")));
            }
            Event::Successor(successor, resume) => {
                let next = self.hand_over(&successor, events);
                if let Continue::Yes = next {
                    let _ = resume.send(());
                }
                return next;
            }
        }
        Continue::Yes
    }

    /// Reads the configuration again. The report is in the log by then.
    fn reload(&mut self) -> ReloadReport {
        let Some(daemon) = &mut self.daemon else {
            return ReloadReport::unreadable("another process has taken over");
        };
        self.notifier.reloading();
        let report = match Config::load(&self.config) {
            Ok(config) => daemon.reload(&config),
            Err(error) => {
                let report = ReloadReport::unreadable(error.to_string());
                report.log();
                report
            }
        };
        self.notifier.ready();
        report
    }

    /// What is split, by which file, and where to look, on one line.
    fn introduction(&self) -> String {
        let legs = self.daemon.as_ref().map(Daemon::leg_summaries).unwrap_or_default();
        let page = match self.sockets.tcp_address() {
            Some(address) => format!("page http://{address}/"),
            None => "no page over TCP".to_owned(),
        };
        format!(
            "bentpipe {} splits connections over {}, as {} says; {page}, status socket {}; ready",
            env!("CARGO_PKG_VERSION"),
            legs.join(" and "),
            self.config.display(),
            self.sockets.socket().display()
        )
    }

    fn on_tick(&mut self) -> Continue {
        let Some(daemon) = &self.daemon else { return Continue::No };
        if let Some(reason) = daemon.failure() {
            return Continue::Failed(format!("{reason}: the daemon ends; please report it"));
        }
        if daemon.has_drained() {
            let left = daemon.stats().flows_open;
            tracing::info!(left, "drained: ending; connections that are left are reset");
            return Continue::No;
        }
        let (stats, now) = (daemon.stats_handle(), Instant::now());
        if let Some(interval) = self.notifier.watchdog_interval()
            && now >= self.next_watchdog
            && stats.is_alive()
        {
            self.next_watchdog = now + interval / 3;
            self.notifier.watchdog();
        }
        if now >= self.next_legs {
            self.next_legs = now + LEGS_INTERVAL;
            self.outages.update(now, &stats.legs()).iter().for_each(OutageChange::log);
        }
        if now >= self.next_capacities {
            self.next_capacities = now + CAPACITIES_INTERVAL;
            if let Some(file) = &mut self.capacities {
                file.keep(daemon.capacities());
            }
        }
        if now >= self.next_status {
            self.next_status = now + STATUS_INTERVAL;
            let open = daemon.stats().flows_open;
            let what = match (stats.draining().is_some(), stats.bypass(), stats.is_ready()) {
                (true, ..) => "draining: new connections pass unsplit",
                (_, true, _) => "bypass: new connections pass unsplit",
                (.., true) => "splitting",
                _ => "new connections pass unsplit",
            };
            let waiting = stats
                .legs()
                .into_iter()
                .filter_map(|leg| Some(format!(", leg {} {}", leg.name, leg.waiting?)));
            self.notifier.status(&format!("{open} connections, {what}{}", waiting.collect::<String>()));
        }
        Continue::Yes
    }

    /// Serves status and commands.
    fn serve_admin(&mut self, events: &Events) {
        let Some(daemon) = &self.daemon else { return };
        let identity = Identity { config: self.config.clone(), program: self.program.clone() };
        let admin = events.commands().and_then(|orders| {
            Ok(serve(&self.sockets, daemon.stats_handle(), identity, self.recorder.clone(), orders)?)
        });
        match admin {
            Ok(admin) => self.admin = Some(admin),
            // A daemon without status still carries traffic.
            Err(error) => tracing::error!("status, metrics and commands are unavailable: {error:#}"),
        }
    }

    fn hand_over(&mut self, successor: &Successor, events: &Events) -> Continue {
        let Some(daemon) = self.daemon.take() else { return Continue::No };
        // Clients that connect meanwhile wait for the process that continues.
        drop(self.admin.take());
        let state = SavedState {
            history: Some(self.recorder.save()),
            manager: self.notifier.snapshot(),
            journal: log::stream(),
        };
        let state = serde_json::to_value(state).unwrap_or_default();
        let log = std::io::stderr();
        let mut extra_fds: Vec<(String, BorrowedFd<'_>)> = self.sockets.named();
        extra_fds.push((LOG.to_owned(), log.as_fd()));
        let on_claimed = |pid: i32| self.notifier.main_pid(pid.unsigned_abs());
        match daemon.hand_over(successor, &extra_fds, state, on_claimed) {
            Ok(()) if successor.is_connected() => {
                events.forward_signals(successor.pid());
                Continue::No
            }
            // An end in order would tell the service manager that all is well.
            Ok(()) => {
                let pid = successor.pid();
                Continue::Failed(format!(
                    "process {pid} took over every connection and has died: they are reset"
                ))
            }
            Err((daemon, error)) => {
                tracing::error!("continuing, because no process took over: {error}");
                self.daemon = Some(*daemon);
                self.serve_admin(events);
                Continue::Yes
            }
        }
    }
}
