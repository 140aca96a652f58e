//! The old process of an upgrade: it freezes, writes its snapshot, and resumes if no process takes over. The
//! conversation is in [`upgrade`](crate::upgrade).

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bentpipe_units::human;

use super::*;
use crate::flow::Flow;
use crate::intercept::InForce;
use crate::snapshot::{Fd, Snapshot, SnapshotError};
use crate::upgrade::{Inventory, Successor, UpgradeError};
use crate::worker::WorkerState;

/// How long workers may take to give their flows away: with the second that a silent successor is waited for,
/// all connections stand still for less than two.
const EXPORT_TIMEOUT: Duration = Duration::from_millis(800);

/// The names of the snapshot's sections. Those of the services are their names.
pub(super) mod section {
    /// The descriptor that keeps a second daemon out of the network namespace.
    pub(crate) const CLAIM: &str = "claim";
    /// The configuration that the listeners depend on.
    pub(crate) const LISTENER_SETTINGS: &str = "listener_settings";
    pub(crate) const LISTENERS: &str = "listeners";
    pub(crate) const PORTS: &str = "ports";
    pub(crate) const FLOWS: &str = "flows";
    pub(crate) const DRAINING: &str = "draining";
    /// Whether the bypass is on.
    pub(crate) const BYPASS: &str = "bypass";
    /// The rules in force, and the interfaces that tell the sides of snooped flows apart.
    pub(crate) const RULES: &str = "rules";
    pub(crate) const COUNTERS: &str = "counters";
    /// Descriptors and state of the program around the daemon.
    pub(crate) const PROGRAM: &str = "program";
}

impl Daemon {
    /// What a successor learns before it prepares itself. `extra_fds` are the names of the program's own
    /// descriptors.
    pub fn inventory(&self, extra_fds: Vec<String>) -> Inventory {
        let with_devices = self.services.iter().filter(|service| service.is_exclusive());
        Inventory::new(with_devices.map(|service| service.name().to_owned()).collect(), extra_fds)
    }

    /// Hands listeners and connections over to `successor`. They stand still for a few milliseconds. When the
    /// successor has claimed them, `on_claimed` is called with its process: it is the main one from then on.
    /// Afterwards this process has nothing left to do, and undoes nothing.
    ///
    /// # Errors
    /// The successor fails, ends, or makes no progress before it has claimed anything. This daemon has resumed
    /// everything by then.
    pub fn hand_over(
        mut self,
        successor: &Successor,
        extra_fds: &[(String, BorrowedFd<'_>)],
        memory: serde_json::Value,
        on_claimed: impl FnOnce(i32),
    ) -> Result<(), (Box<Self>, UpgradeError)> {
        if !successor.is_connected() {
            let reason = "it disconnected before its turn".to_owned();
            return Err((Box::new(self), UpgradeError::Refused { reason }));
        }
        let start = Instant::now();
        self.services.iter_mut().rev().for_each(|service| service.pause());
        let (frozen, outcome) = self.freeze();
        let outcome = outcome
            .and_then(|()| {
                let snapshot = self.snapshot(&frozen, extra_fds, memory);
                snapshot.map_err(|error| UpgradeError::Refused { reason: error.to_string() })
            })
            .and_then(|snapshot| successor.hand_over(&snapshot));
        if let Err(error) = outcome {
            // Before the successor is told, which may take a moment.
            self.resume(frozen);
            let pause = human::seconds(start.elapsed().as_secs_f64());
            tracing::info!("upgrade: every connection continues in this process, after a pause of {pause}");
            successor.refuse(&error.to_string());
            return Err((Box::new(self), error));
        }
        on_claimed(successor.pid());
        successor.dismiss();
        if let Some(mut interception) = self.context.interception() {
            interception.leave();
        }
        let flows: usize = frozen.iter().map(|state| state.flows.len()).sum();
        let connections = human::count(flows, "connection");
        let took = human::seconds(start.elapsed().as_secs_f64());
        tracing::info!("upgrade: process {} took over {connections} in {took}", successor.pid());
        Ok(())
    }

    /// Stops the workers, and returns what they had. Where a worker does not answer in time, that and the
    /// ones behind it keep their flows and go on, and it is an error.
    fn freeze(&mut self) -> (Vec<WorkerState>, Result<(), UpgradeError>) {
        // Without a buffer: the state arrives, or stays with the worker if the daemon no longer waits for it.
        let ask = |worker: &WorkerHandle| {
            let (sender, receiver) = mpsc::sync_channel(0);
            worker.send(Command::Export(sender));
            receiver
        };
        let asked: Vec<_> = self.workers.iter().map(ask).collect();
        let until = Instant::now() + EXPORT_TIMEOUT;
        let mut frozen = Vec::new();
        for (index, answer) in asked.into_iter().enumerate() {
            let Ok(state) = answer.recv_timeout(until.saturating_duration_since(Instant::now())) else {
                let reason = format!("worker {index} does not answer");
                return (frozen, Err(UpgradeError::Refused { reason }));
            };
            frozen.push(state);
            self.workers[index].join();
        }
        (frozen, Ok(()))
    }

    /// Continues with everything as before.
    fn resume(&mut self, frozen: Vec<WorkerState>) {
        for (worker, state) in self.workers.iter_mut().zip(frozen) {
            match worker.respawn(&self.context) {
                Ok(()) => worker.send(Command::Import(state)),
                Err(error) => tracing::error!("{error}: {} connections are reset", state.flows.len()),
            }
        }
        self.unpause_services().for_each(warn_of);
    }

    fn snapshot(
        &self,
        frozen: &[WorkerState],
        extra_fds: &[(String, BorrowedFd<'_>)],
        memory: serde_json::Value,
    ) -> Result<Snapshot, SnapshotError> {
        let duplicate =
            |(name, fd): &(String, BorrowedFd<'_>)| Ok((name.clone(), Fd::from(fd.try_clone_to_owned()?)));
        let extra_fds = extra_fds.iter().map(duplicate).collect::<io::Result<Vec<_>>>()?;
        let (mut flows, mut listeners) = (Vec::new(), Vec::new());
        for (worker, state) in frozen.iter().enumerate() {
            flows.extend(state.flows.iter().map(Flow::snapshot));
            listeners.extend(state.listeners.iter().map(|listener| (worker, listener)));
        }
        let mut snapshot = Snapshot::default();
        snapshot.write(section::CLAIM, &self.claim)?;
        snapshot.write(section::LISTENER_SETTINGS, &listener_settings(&self.context.config))?;
        snapshot.write(section::LISTENERS, &listeners)?;
        snapshot.write(section::PORTS, &self.ports)?;
        snapshot.write(section::FLOWS, &flows)?;
        snapshot.write(section::DRAINING, &*self.draining())?;
        snapshot.write(section::BYPASS, &self.is_bypassed())?;
        snapshot.write(section::RULES, &self.in_force())?;
        snapshot.write(section::COUNTERS, &self.stats.snapshot())?;
        snapshot.write(section::PROGRAM, &(extra_fds, memory))?;
        for service in &self.services {
            if let Some(section) = service.snapshot(&self.context)? {
                snapshot.insert(service.name(), section);
            }
        }
        Ok(snapshot)
    }

    fn in_force(&self) -> InForce {
        self.context.interception().map_or_else(InForce::default, |interception| interception.in_force())
    }
}

/// The configuration that the listeners depend on. A program that writes it otherwise opens other listeners,
/// which does no harm.
pub(super) fn listener_settings(config: &Config) -> String {
    let Config { legs, terrestrial, proxy, limits, .. } = config;
    let parts = (legs, terrestrial, proxy.port, proxy.workers, limits.share(), config.weights());
    format!("{} {parts:?}", env!("CARGO_PKG_VERSION"))
}
