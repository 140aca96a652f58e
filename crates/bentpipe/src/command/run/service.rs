//! The daemon with everything around it: those who look, those who order, the service manager, and the next process.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bentpipe_admin::history::{Recorder, SavedHistory};
use bentpipe_admin::{Admin, Command, Identity, Sockets, serve};
use bentpipe_kernel::notify::{Inheritance, Notifier};
use bentpipe_proxy::upgrade::{ExtraFds, Successor};
use bentpipe_proxy::{Config, Daemon};
use serde::{Deserialize, Serialize};
use signal_hook::consts::SIGHUP;
use signal_hook::low_level::signal_name;

use super::events::{Event, Events};
use super::outages::{News, Outages};
use crate::command::log;

/// The name under which standard error, where the log goes, is handed on.
const LOG: &str = "log";
/// How often the service manager is told what there is.
const TELL: Duration = Duration::from_secs(10);
/// How often the legs are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// What goes with the daemon from process to process, beside what is the daemon's own.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Memory {
    history: Option<SavedHistory>,
    manager: Option<Inheritance>,
    /// The journal's stream, where the log is one.
    journal: Option<String>,
}

/// A daemon in operation.
pub(super) struct Service {
    config: PathBuf,
    program: String,
    /// `None` when another process goes on with it.
    daemon: Option<Daemon>,
    sockets: Sockets,
    notifier: Notifier,
    recorder: Recorder,
    admin: Option<Admin>,
    outages: Outages,
    next_sign: Instant,
    next_status: Instant,
    next_look: Instant,
}

/// Whether to wait for the next event.
enum Next {
    GoOn,
    End,
}

impl Service {
    pub(super) fn new(
        config: PathBuf,
        program: String,
        daemon: Daemon,
        mut sockets: Sockets,
        notifier: Notifier,
        extra_fds: ExtraFds,
    ) -> Self {
        // What an older program has left in another form is left out.
        let memory: Memory = serde_json::from_value(extra_fds.memory).unwrap_or_default();
        for (name, descriptor) in extra_fds.descriptors {
            if name != LOG {
                sockets.add(&name, descriptor);
                continue;
            }
            match rustix::stdio::dup2_stderr(&descriptor) {
                Ok(()) => log::follow(memory.journal.as_deref()),
                Err(error) => {
                    tracing::warn!("the log does not go where the last process's went: {error}");
                }
            }
        }
        let notifier = memory.manager.as_ref().map_or(notifier, Notifier::of);
        let recorder = memory.history.as_ref().map_or_else(Recorder::default, Recorder::restore);
        let now = Instant::now();
        Self {
            config,
            program,
            daemon: Some(daemon),
            sockets,
            notifier,
            recorder,
            admin: None,
            outages: Outages::default(),
            next_sign: now,
            next_status: now,
            next_look: now,
        }
    }

    /// Lets others in: who looks, who orders, who takes over.
    pub(super) fn open(&mut self, events: &Events) {
        self.answer(events);
        if let (Some(daemon), Some(socket)) = (&self.daemon, self.sockets.take_handover()) {
            let names = self.sockets.named().into_iter().map(|(name, _)| name);
            let extra_fds = names.chain([LOG.to_owned()]).collect();
            if let Err(error) = events.await_successors(socket, daemon.inventory(extra_fds)) {
                tracing::error!("this daemon cannot be upgraded: {error:#}");
            }
        }
        self.notifier.ready();
    }

    /// Does what it is told, until the end.
    pub(super) fn serve(mut self, events: &Events) {
        while let Next::GoOn = self.handle(events) {}
        drop(self.admin.take());
        if let Some(daemon) = self.daemon.take() {
            self.notifier.stopping();
            drop(daemon);
            self.sockets.close();
        }
    }

    fn handle(&mut self, events: &Events) -> Next {
        let Some(daemon) = &mut self.daemon else { return Next::End };
        match events.next() {
            Event::Tick => return self.look_at_the_clock(),
            Event::Signal(SIGHUP) => {
                if let Err(error) = self.reload() {
                    tracing::error!("the configuration stays as it was: {error}");
                }
            }
            Event::Signal(signal) => {
                tracing::info!("ending at {}", signal_name(signal).unwrap_or("a signal"));
                return Next::End;
            }
            // Whoever ordered it may have gone.
            Event::Command(Command::Reload(answer)) => {
                let _ = answer.send(self.reload());
            }
            Event::Command(Command::Drain(time, answer)) => {
                daemon.drain(time);
                let _ = answer.send(Ok(()));
            }
            Event::Command(Command::StopDraining(answer)) => {
                daemon.stop_draining();
                let _ = answer.send(Ok(()));
            }
            Event::Successor(successor, go_on) => {
                if let Next::End = self.hand_over(&successor, events) {
                    return Next::End;
                }
                let _ = go_on.send(());
            }
        }
        Next::GoOn
    }

    /// Reads the configuration again, or says what is wrong with it.
    fn reload(&mut self) -> Result<(), String> {
        let Some(daemon) = &mut self.daemon else { return Ok(()) };
        self.notifier.reloading();
        let outcome = Config::load(&self.config)
            .map_err(|error| error.to_string())
            .and_then(|config| daemon.reload(&config).map_err(|error| error.to_string()));
        self.notifier.ready();
        outcome
    }

    fn look_at_the_clock(&mut self) -> Next {
        let Some(daemon) = &self.daemon else { return Next::End };
        if daemon.has_drained() {
            let left = daemon.stats().flows_open;
            tracing::info!(left, "drained: ending; connections that are left are reset");
            return Next::End;
        }
        let (sight, now) = (daemon.stats_handle(), Instant::now());
        if let Some(interval) = self.notifier.watchdog_interval()
            && now >= self.next_sign
            && sight.is_alive()
        {
            self.next_sign = now + interval / 3;
            self.notifier.watchdog();
        }
        if now >= self.next_look {
            self.next_look = now + LOOK;
            self.outages.look(now, &sight.legs()).iter().for_each(News::tell);
        }
        if now >= self.next_status {
            self.next_status = now + TELL;
            let open = daemon.stats().flows_open;
            let what = match (sight.draining().is_some(), sight.is_ready()) {
                (true, _) => "draining: new connections pass unsplit",
                (false, true) => "splitting",
                (false, false) => "new connections pass unsplit",
            };
            self.notifier.status(&format!("{open} connections, {what}"));
        }
        Next::GoOn
    }

    /// Answers those who look and order.
    fn answer(&mut self, events: &Events) {
        let Some(daemon) = &self.daemon else { return };
        let identity = Identity { config: self.config.clone(), program: self.program.clone() };
        let admin = events.commands().and_then(|orders| {
            Ok(serve(&self.sockets, daemon.stats_handle(), identity, self.recorder.clone(), orders)?)
        });
        match admin {
            Ok(admin) => self.admin = Some(admin),
            // Who cannot be looked at still carries traffic.
            Err(error) => tracing::error!("status, metrics and commands are unavailable: {error:#}"),
        }
    }

    fn hand_over(&mut self, successor: &Successor, events: &Events) -> Next {
        let Some(daemon) = self.daemon.take() else { return Next::End };
        // Who asks meanwhile waits to be accepted by whichever process goes on.
        drop(self.admin.take());
        let memory = Memory {
            history: Some(self.recorder.save()),
            manager: self.notifier.inheritance(),
            journal: log::stream(),
        };
        let memory = serde_json::to_value(memory).unwrap_or_default();
        let log = std::io::stderr();
        let mut extra_fds: Vec<(String, BorrowedFd<'_>)> = self.sockets.named();
        extra_fds.push((LOG.to_owned(), log.as_fd()));
        let last = |pid: i32| self.notifier.main_pid(pid.unsigned_abs());
        match daemon.hand_over(successor, &extra_fds, memory, last) {
            Ok(()) => {
                events.pass_on(successor.pid());
                Next::End
            }
            Err((daemon, error)) => {
                tracing::error!("goes on, because no process took over: {error}");
                self.daemon = Some(*daemon);
                self.notifier.main_pid(std::process::id());
                self.answer(events);
                Next::GoOn
            }
        }
    }
}
