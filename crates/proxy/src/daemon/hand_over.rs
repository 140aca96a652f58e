//! The old process of an upgrade: it freezes, writes its snapshot, and resumes if no process takes over. The
//! conversation is in [`upgrade`](crate::upgrade).

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::*;
use crate::deferred_accept::Paused;
use crate::flow::Flow;
use crate::snapshot::{Fd, Snapshot, SnapshotError};
use crate::upgrade::{Inventory, Successor, UpgradeError};
use crate::worker::WorkerState;

/// How long workers may take to give their flows away. The successor waits longer.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(1);

/// The names of the snapshot's sections.
pub(super) mod section {
    /// The descriptor that keeps a second daemon out of the network namespace.
    pub(crate) const CLAIM: &str = "claim";
    /// The configuration that the listeners depend on.
    pub(crate) const LISTENER_SETTINGS: &str = "listener_settings";
    pub(crate) const LISTENERS: &str = "listeners";
    pub(crate) const PORTS: &str = "ports";
    pub(crate) const FLOWS: &str = "flows";
    pub(crate) const DRAINING: &str = "draining";
    /// The rules in force, and the interfaces that tell the sides of snooped flows apart.
    pub(crate) const RULES: &str = "rules";
    pub(crate) const COUNTERS: &str = "counters";
    pub(crate) const DEFERRED_ACCEPT: &str = "deferred_accept";
    pub(crate) const PENDING: &str = "pending";
    pub(crate) const RECENT_SYNS: &str = "recent_syns";
    pub(crate) const SNOOP: &str = "snoop";
    /// Descriptors and state of the program around the daemon.
    pub(crate) const PROGRAM: &str = "program";
}

/// What the daemon's threads gave away when they stopped.
#[derive(Default)]
struct Frozen {
    workers: Vec<WorkerState>,
    deferred_accept: Option<Paused>,
}

impl Daemon {
    /// What a successor learns before it prepares itself. `extra_fds` are the names of the program's own
    /// descriptors.
    pub fn inventory(&self, extra_fds: Vec<String>) -> Inventory {
        let devices = [
            (section::DEFERRED_ACCEPT, self.greeter_devices.strong_count()),
            (section::SNOOP, self.snooper_devices.strong_count()),
        ];
        let services = devices.into_iter().filter(|(_, count)| *count > 0);
        Inventory::new(services.map(|(name, _)| name.to_owned()).collect(), extra_fds)
    }

    /// Hands listeners and connections over to `successor`. They stand still for a few milliseconds.
    /// `before_commit` is called with the successor's process before this one commits. Afterwards this
    /// process has nothing left to do, and undoes nothing.
    ///
    /// # Errors
    /// The successor fails, ends, or sends nothing for too long. This daemon has resumed everything by then.
    pub fn hand_over(
        mut self,
        successor: &Successor,
        extra_fds: &[(String, BorrowedFd<'_>)],
        memory: serde_json::Value,
        before_commit: impl FnOnce(i32),
    ) -> Result<(), (Box<Self>, UpgradeError)> {
        if !successor.is_connected() {
            let reason = "it disconnected before its turn".to_owned();
            return Err((Box::new(self), UpgradeError::Refused { reason }));
        }
        // It would repair what the successor replaces. The rules stay in force without it for longer than
        // this takes.
        drop(self.watch.take());
        let start = Instant::now();
        let (frozen, outcome) = self.freeze();
        let outcome = outcome
            .and_then(|()| {
                let snapshot = self.snapshot(&frozen, extra_fds, memory);
                snapshot.map_err(|error| UpgradeError::Refused { reason: error.to_string() })
            })
            .and_then(|snapshot| successor.hand_over(&snapshot))
            .and_then(|()| {
                before_commit(successor.pid());
                successor.commit()
            });
        if let Err(error) = outcome {
            successor.refuse(&error.to_string());
            self.resume(frozen);
            return Err((Box::new(self), error));
        }
        if let Some(interception) = &self.interception {
            interception.lock().unwrap_or_else(PoisonError::into_inner).leave();
        }
        let flows: usize = frozen.workers.iter().map(|state| state.flows.len()).sum();
        let (took, successor) = (start.elapsed(), successor.pid());
        tracing::info!(flows, ?took, successor, "another process has taken over everything");
        Ok(())
    }

    /// Stops the threads that touch connections, and returns what they had. Where a worker does not answer in
    /// time, that and the ones behind it keep their flows and go on, and it is an error.
    fn freeze(&mut self) -> (Frozen, Result<(), UpgradeError>) {
        let deferred_accept = self.deferred_accept.as_mut().and_then(DeferredAccept::pause);
        let mut frozen = Frozen { deferred_accept, ..Frozen::default() };
        // Without a buffer: what is given away arrives, or stays with the worker if nobody waits for it any
        // more.
        let ask = |worker: &Handle| {
            let (sender, receiver) = mpsc::sync_channel(0);
            worker.mailbox.send(Command::Export(sender));
            receiver
        };
        let asked: Vec<_> = self.workers.iter().map(ask).collect();
        let until = Instant::now() + EXPORT_TIMEOUT;
        for (index, answer) in asked.into_iter().enumerate() {
            let Ok(state) = answer.recv_timeout(until.saturating_duration_since(Instant::now())) else {
                let reason = format!("worker {index} does not answer");
                return (frozen, Err(UpgradeError::Refused { reason }));
            };
            frozen.workers.push(state);
            self.workers[index].join();
        }
        (frozen, Ok(()))
    }

    /// Continues with everything as before.
    fn resume(&mut self, frozen: Frozen) {
        let Frozen { workers, deferred_accept } = frozen;
        if let (Some(service), Some(paused)) = (&mut self.deferred_accept, deferred_accept) {
            warn_of(service.resume(paused));
        }
        for (index, state) in workers.into_iter().enumerate() {
            let worker = &mut self.workers[index];
            match worker.respawn(index, &self.config, &self.shared) {
                Ok(()) => worker.mailbox.send(Command::Import(state)),
                Err(error) => tracing::error!("{error}: {} connections are reset", state.flows.len()),
            }
        }
        if let Err(error) = self.start_watchdog() {
            tracing::error!("{error}: new connections pass unsplit until the daemon is restarted");
        }
    }

    fn snapshot(
        &self,
        frozen: &Frozen,
        extra_fds: &[(String, BorrowedFd<'_>)],
        memory: serde_json::Value,
    ) -> Result<Snapshot, SnapshotError> {
        let duplicate =
            |(name, fd): &(String, BorrowedFd<'_>)| Ok((name.clone(), Fd::from(fd.try_clone_to_owned()?)));
        let extra_fds = extra_fds.iter().map(duplicate).collect::<io::Result<Vec<_>>>()?;
        let deferred_accept = self.greeter_devices.upgrade().map(|devices| devices.descriptors());
        let snoop = self.snooper_devices.upgrade().map(|devices| devices.descriptors());
        let (mut flows, mut listeners) = (Vec::new(), Vec::new());
        for (worker, state) in frozen.workers.iter().enumerate() {
            flows.extend(state.flows.iter().map(Flow::snapshot));
            listeners.extend(state.listeners.iter().map(|listener| (worker, listener)));
        }
        let mut snapshot = Snapshot::default();
        snapshot.write(section::CLAIM, &self.only_one)?;
        snapshot.write(section::LISTENER_SETTINGS, &listener_settings(&self.config))?;
        snapshot.write(section::LISTENERS, &listeners)?;
        snapshot.write(section::PORTS, &self.ports)?;
        snapshot.write(section::FLOWS, &flows)?;
        snapshot.write(section::DRAINING, &*self.draining())?;
        snapshot.write(section::RULES, &self.rules())?;
        snapshot.write(section::COUNTERS, &self.sight.snapshot())?;
        snapshot.write(section::DEFERRED_ACCEPT, &deferred_accept.transpose()?)?;
        snapshot.write(section::PENDING, &*self.shared.pending)?;
        snapshot.write(section::RECENT_SYNS, &frozen.deferred_accept.as_ref().map(Paused::recent_syns))?;
        snapshot.write(section::SNOOP, &snoop.transpose()?)?;
        snapshot.write(section::PROGRAM, &(extra_fds, memory))?;
        Ok(snapshot)
    }

    fn rules(&self) -> (String, Vec<Interface>) {
        let Some(interception) = &self.interception else { return Default::default() };
        let interception = interception.lock().unwrap_or_else(PoisonError::into_inner);
        let (rules, sides) = interception.rules();
        (rules.to_owned(), sides.to_vec())
    }
}

/// The configuration that the listeners depend on. A program that writes it otherwise opens other listeners,
/// which does no harm.
pub(super) fn listener_settings(config: &Config) -> String {
    let Config { legs, terrestrial, proxy, limits, .. } = config;
    let parts = (legs, terrestrial, proxy.port, proxy.workers, limits.share(), config.weights());
    format!("{} {parts:?}", env!("CARGO_PKG_VERSION"))
}
