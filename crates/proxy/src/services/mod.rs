//! The services beside the workers, each of which is one file behind the trait [`Service`].
//!
//! ```text
//! prepare ─► adapt ─► (resume) ─► start ─► unpause ─┬─► check, reload ─┐
//!   root's rights     an upgrade  threads  the rules│◄─────────────────┘
//!                                          are there└─► pause ─► snapshot ─► the end, or unpause
//! ```
//!
//! The daemon knows no service by name: it walks the list that [`prepare`] returns. To add a service is to
//! write its file and to add a line there.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bentpipe_kernel::privileges::Account;
use bentpipe_legs::Legs;

use crate::config::Config;
use crate::deferred_accept::PendingTable;
use crate::error::{Error, Refusal};
use crate::intercept::{Interception, TunDivert};
use crate::snapshot::{Section, SnapshotError};
use crate::stats::Counters;
use crate::telemetry::Shared;
use crate::types::leg_pair::LegPair;
use crate::types::mailbox::Heartbeat;

mod access_log;
mod deferred_accept;
mod devices;
mod interfaces;
mod protect;
mod rate_control;
mod snoop;
mod thread;
mod watchdog;
mod xcp_router;

pub use protect::checks as check_protected_legs;

/// A helper of the daemon. It stops when it is dropped.
pub(crate) trait Service: fmt::Debug + Send + Sync {
    /// Its name, by which a successor finds its section in the snapshot.
    fn name(&self) -> &'static str;

    /// Replaces settings that this host does not support by the next best ones.
    fn adapt(&self, _config: &mut Config) {}

    /// Refuses an adapted configuration that cannot take effect at a reload.
    fn check(&self, _config: &Config) -> Result<(), Refusal> {
        Ok(())
    }

    /// Gives the files that it has opened to the account that the process goes on as.
    fn give_files_to(&self, _account: Account) {}

    /// Before the start in an upgrade: takes what the predecessor's service of this name handed over. The
    /// predecessor may still continue, so nothing of it is used yet.
    fn resume(&mut self, _section: Option<Section>, _context: &Context) -> Result<(), Error> {
        Ok(())
    }

    /// Starts its thread, before there are rules.
    fn start(&mut self, context: &Context) -> Result<(), Error>;

    /// The rules are installed, or an upgrade has failed after [`pause`](Self::pause).
    fn unpause(&mut self, _context: &Context) -> Result<(), Error> {
        Ok(())
    }

    /// Applies the context's configuration, which has passed [`check`](Self::check).
    fn reload(&mut self, _context: &Context) {}

    /// Stops touching connections, because a successor may take over. Workers still export their flows
    /// afterwards.
    fn pause(&mut self) {}

    /// What a successor needs, after the workers have exported their flows; `None` if it starts anew there.
    fn snapshot(&self, _context: &Context) -> Result<Option<Section>, SnapshotError> {
        Ok(None)
    }

    /// The packets that come to it through its TUN devices. The devices of a service that has failed are
    /// gone.
    fn tun_diverts(&self) -> Vec<TunDivert> {
        Vec::new()
    }

    /// Whether a successor must not open what this one hands over.
    fn is_exclusive(&self) -> bool {
        !self.tun_diverts().is_empty()
    }

    /// Its heartbeat, if connections depend on its thread.
    fn heartbeat(&self) -> Option<Arc<dyn Heartbeat>> {
        None
    }

    /// Its statistics.
    fn counters(&self) -> Vec<Arc<Counters>> {
        Vec::new()
    }

    /// Whether it stops after the workers, because they need it to the last.
    fn outlives_workers(&self) -> bool {
        false
    }
}

/// What a service can use while it is prepared, with the rights of root and before there are legs.
#[derive(Debug)]
pub(crate) struct Preparation<'a> {
    pub(crate) config: &'a Config,
    /// The services whose devices or sockets a predecessor hands over.
    pub(crate) inherited: &'a [String],
}

/// What the services share with the daemon.
#[derive(Debug)]
pub(crate) struct Context {
    /// The configuration in force, adapted.
    pub(crate) config: Config,
    pub(crate) legs: Arc<Legs>,
    /// The paths between the legs, with their listeners' ports.
    pub(crate) pairs: Vec<LegPair>,
    pub(crate) shared: Arc<Shared>,
    /// Connections that deferred accept has started and no worker has claimed.
    pub(crate) pending: Arc<PendingTable>,
    /// The counters of the workers.
    pub(crate) workers: Vec<Arc<Counters>>,
    /// The heartbeats of the workers and of the services that have started.
    pub(crate) heartbeats: Vec<Arc<dyn Heartbeat>>,
    /// The rules and routes, once they are installed.
    pub(crate) interception: Option<Arc<Mutex<Interception>>>,
}

/// Every service, in the order in which they start; they pause and stop in the opposite order. The watchdog
/// is last: it must not repair what the others or the rules lose as they stop. Those that outlive the workers
/// are first.
pub(crate) fn prepare(preparation: &Preparation<'_>) -> Result<Vec<Box<dyn Service>>, Error> {
    Ok(vec![
        Box::new(access_log::AccessLogService::prepare(preparation)),
        Box::new(xcp_router::XcpRouters::prepare(preparation)),
        Box::new(rate_control::RateControl::default()),
        Box::new(deferred_accept::DeferredAccept::prepare(preparation)?),
        Box::new(snoop::Snoop::prepare(preparation)?),
        Box::new(protect::Protect::prepare(preparation)?),
        Box::new(interfaces::InterfaceWatch::default()),
        Box::new(watchdog::Watchdog::default()),
    ])
}

impl Preparation<'_> {
    /// Whether a predecessor hands this service's devices or sockets over.
    fn inherits(&self, service: &str) -> bool {
        self.inherited.iter().any(|inherited| inherited == service)
    }
}

impl Context {
    /// The rules and routes, once they are installed. They are consistent at every step, so a poisoned lock
    /// can be used.
    pub(crate) fn interception(&self) -> Option<MutexGuard<'_, Interception>> {
        self.interception.as_ref().map(|rules| rules.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
