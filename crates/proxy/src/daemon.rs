//! The daemon: checks, listeners, workers, services, and the rules last; all of it undone in the opposite
//! order.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use bentpipe_kernel::explicit::Explicit;
use bentpipe_kernel::hybla::Hybla;
use bentpipe_kernel::leg::Leg;
use bentpipe_kernel::privileges::Account;
use bentpipe_kernel::xcp::Xcp;
use bentpipe_legs::Legs;
use bentpipe_link::explicit::{LinkEstimate, Memory};
use bentpipe_units::Rate;
use socket2::{Domain, Socket, Type};

use crate::budget;
use crate::config::{Config, Interface, MarkField, SatelliteLeg};
use crate::connect::listener;
use crate::deferred_accept::PendingTable;
use crate::error::Error;
use crate::host;
use crate::intercept::{Family, Interception, Plan, TABLE, TunDivert};
use crate::services::{self, Context, Preparation, Service};
use crate::snapshot::Fd;
use crate::stats::Stats;
use crate::telemetry::{LegReport, Shared, Sources, StatsHandle};
use crate::types::leg_pair::{self, LegPair};
use crate::types::mailbox::Heartbeat;
use crate::upgrade::Predecessor;
use crate::worker::{Command, Listener};

mod drain;
mod hand_over;
mod ports;
mod reload;
mod take_over;
mod worker_handle;

use self::ports::PortRanges;
pub use self::reload::ReloadReport;
pub use self::take_over::Candidate;
use self::worker_handle::WorkerHandle;

/// The loopback address by which a daemon claims its network namespace, with a port below 1024. It is the
/// same in every version.
const CLAIM: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 98, 201, 5)), 1);

/// A running splitter. It works until it is stopped or dropped.
#[derive(Debug)]
pub struct Daemon {
    context: Context,
    /// The configuration that this process started with, and the one that it has read last; both as they were
    /// read.
    started_with: Config,
    last_read: Config,
    services: Vec<Box<dyn Service>>,
    workers: Vec<WorkerHandle>,
    stats: StatsHandle,
    ports: PortRanges,
    families: Vec<Family>,
    _congestion_controls: CongestionControls,
    /// Keeps a second daemon out; the kernel frees it with the process. A predecessor hands it over.
    claim: Option<Fd>,
}

/// A daemon that has everything for which it needs special rights, and takes no connection yet. It has no
/// thread, so that the process can give up its rights before it starts.
#[derive(Debug)]
pub struct Prepared(Daemon);

/// Kept for a reload that needs them when the rights to load them are gone.
#[derive(Debug)]
struct CongestionControls {
    _hybla: Option<Hybla>,
    _explicit: Option<Explicit>,
    _xcp: Vec<Xcp>,
}

/// Legs, the pairs of them, and for each worker the listeners of these.
type Listeners = (Arc<Legs>, Vec<LegPair>, Vec<Vec<Listener>>);

impl Daemon {
    /// Starts to split the connections that cross the configured legs, in the calling thread's network
    /// namespace. When it returns, every new connection is split. On failure whatever it did is undone.
    pub fn start(config: &Config) -> Result<Self, Error> {
        Self::prepare(config)?.start()
    }

    /// Does what needs the rights of root: `CAP_BPF` and `CAP_PERFMON` to load eBPF, `CAP_NET_RAW` for the
    /// sockets that send SYNs. [`Prepared::start`] and the daemon then need `CAP_NET_ADMIN` and, for clients'
    /// ports below 1024, `CAP_NET_BIND_SERVICE`.
    pub fn prepare(config: &Config) -> Result<Prepared, Error> {
        Self::prepare_with(config, None)
    }

    /// [`Daemon::prepare`] where `predecessor` will hand over what only one process can have.
    fn prepare_with(config: &Config, predecessor: Option<&Predecessor>) -> Result<Prepared, Error> {
        host::check(config)?;
        listener::check_privileges()?;
        let claim = if predecessor.is_none() { Some(OwnedFd::from(claim()?).into()) } else { None };
        for warning in host::warnings(config) {
            tracing::warn!("{warning}");
        }
        let inherited = predecessor.map_or(&[][..], Predecessor::services);
        let services = services::prepare(&Preparation { config, inherited })?;
        let (read, config) = (config.clone(), adapt(&services, config));
        let legs = Arc::new(config.prepare_legs());
        let limits = budget::admission_limits(&config);
        let shared = Arc::new(Shared::new(limits).map_err(Error::system("set up admission control"))?);
        let pending =
            PendingTable::new().map_err(Error::system("set up the table of pending connections"))?;
        Ok(Prepared(Self {
            stats: StatsHandle::new(shared.clone()),
            services,
            workers: Vec::new(),
            ports: PortRanges::default(),
            families: listener::families(),
            // A leg that needs one that cannot be had has said so.
            _congestion_controls: CongestionControls {
                _hybla: Hybla::acquire().ok(),
                _explicit: Explicit::acquire().ok(),
                _xcp: legs.satellites().filter_map(Leg::xcp).cloned().collect(),
            },
            claim,
            started_with: read.clone(),
            last_read: read,
            context: Context {
                config,
                legs,
                pairs: Vec::new(),
                shared,
                pending: Arc::new(pending),
                workers: Vec::new(),
                heartbeats: Vec::new(),
                interception: None,
            },
        }))
    }

    /// The counters so far.
    pub fn stats(&self) -> Stats {
        self.stats.stats()
    }

    /// Reads the daemon's state from any thread. After the daemon has stopped it keeps the last numbers.
    pub fn stats_handle(&self) -> StatsHandle {
        self.stats.clone()
    }

    /// The estimate of each leg with explicit rates, with its name.
    pub fn link_estimates(&self) -> Vec<(String, LinkEstimate)> {
        self.context.shared.link_estimates.get()
    }

    /// The capacities of the satellite legs that were measured: what a daemon that is started later may
    /// [remember](Prepared::remember).
    pub fn capacities(&self) -> Vec<(String, Rate)> {
        self.context.shared.link_estimates.capacities()
    }

    /// Each satellite leg in a few words: its interface, name, congestion control and rate.
    pub fn leg_summaries(&self) -> Vec<String> {
        let Context { config, legs, .. } = &self.context;
        let summary = |((name, settings), leg): ((&String, &SatelliteLeg), &Leg)| {
            let (interface, congestion) =
                (&settings.interface, congestion_in_use(settings.congestion(), leg));
            let rate = settings.rate.map_or("rate unknown".to_owned(), |rate| rate.to_string());
            format!("{interface} (leg {name}, {congestion}, {rate})")
        };
        config.legs.iter().zip(legs.satellites()).map(summary).collect()
    }

    /// Why this daemon must end, if it must: one of its workers fails again and again. New connections pass
    /// unsplit by then.
    pub fn failure(&self) -> Option<&str> {
        self.context.shared.failure()
    }

    /// Lets a worker panic, for tests. Release builds have no such function.
    #[cfg(debug_assertions)]
    #[doc(hidden)]
    pub fn make_worker_panic(&self, index: usize) {
        self.workers[index].send(Command::Panic);
    }

    /// Removes the rules, then the listeners; flows that are still open are reset at both ends.
    pub fn stop(self) -> Stats {
        self.stats()
    }

    /// Shows the present threads and legs to observers.
    fn publish(&self) {
        let Context { config, legs, .. } = &self.context;
        self.stats.set_sources(Sources {
            workers: self.workers.iter().map(WorkerHandle::source).collect(),
            services: self.services.iter().flat_map(|service| service.counters()).collect(),
            legs: LegReport::configured(config, legs),
            rates: config.limits.rates(),
        });
    }

    /// Starts the workers, without listeners.
    fn spawn_workers(&mut self) -> Result<(), Error> {
        for index in 0..self.context.config.proxy.workers.get() {
            let worker = WorkerHandle::spawn(index, &self.context)?;
            self.context.workers.push(worker.counters.clone());
            self.context.heartbeats.push(worker.mailbox.clone() as Arc<dyn Heartbeat>);
            self.workers.push(worker);
        }
        Ok(())
    }

    /// Starts the services one by one.
    fn start_services(&mut self) -> impl Iterator<Item = Result<(), Error>> {
        let Self { services, context, .. } = self;
        services.iter_mut().map(|service| {
            service.start(context)?;
            context.heartbeats.extend(service.heartbeat());
            Ok(())
        })
    }

    /// Lets the services work under the rules that are in force now.
    fn unpause_services(&mut self) -> impl Iterator<Item = Result<(), Error>> {
        self.services.iter_mut().map(|service| service.unpause(&self.context))
    }

    fn tun_diverts(&self) -> Vec<TunDivert> {
        self.services.iter().flat_map(|service| service.tun_diverts()).collect()
    }

    fn set_interception(&mut self, interception: Interception) {
        self.context.interception = Some(Arc::new(Mutex::new(interception)));
    }
}

impl Prepared {
    /// Begins with capacities that an earlier daemon has found, by the names of legs whose rates are not
    /// configured.
    pub fn remember(&self, capacities: impl IntoIterator<Item = (String, Rate)>) {
        self.0.context.shared.link_estimates.remember(capacities, Memory::Past);
    }

    /// Gives the files that it has opened to the account that the process goes on as. Call it as root.
    pub fn give_files_to(&self, account: Account) {
        self.0.services.iter().for_each(|service| service.give_files_to(account));
    }

    /// Starts to split connections. When it returns, every new connection is split.
    pub fn start(self) -> Result<Daemon, Error> {
        let Self(mut daemon) = self;
        if daemon.claim.is_none() {
            return Err(Error::Restart { what: "what was prepared to take over" });
        }
        daemon.context.pairs = free_leg_pairs(&daemon.context.config, &daemon.ports)?;
        daemon.ports.take(&daemon.context.pairs);
        check_ports(&daemon.context.pairs, &daemon.families)?;
        daemon.spawn_workers()?;
        for worker in &daemon.workers {
            let Context { config, legs, .. } = &daemon.context;
            let listeners = open_listeners(&daemon.context.pairs, &daemon.families, legs, config.proxy.mark)?;
            worker.send(Command::Listen(listeners));
        }
        daemon.start_services().collect::<Result<(), _>>()?;
        daemon.publish();
        let Context { config, .. } = &daemon.context;
        let interfaces = config.interfaces();
        let protected = config.protected_interfaces();
        let plan = plan(config, &interfaces, &daemon.context.pairs, &[], &protected);
        let diverts = daemon.tun_diverts();
        let families = daemon.families.clone();
        let takes = !daemon.context.shared.passes_by_order();
        let counters = daemon.context.shared.policy_counters.clone();
        daemon.set_interception(Interception::install(&plan, families, diverts, counters, takes)?);
        daemon.unpause_services().collect::<Result<(), _>>()?;
        let relay = daemon.context.config.proxy.relay;
        tracing::info!(workers = daemon.workers.len(), ?relay, "splitting connections");
        Ok(daemon)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The watchdog is last in the list and goes first: it would restore the rules, also those that cease.
        while self.services.pop_if(|service| !service.outlives_workers()).is_some() {}
        // The rules go last: with them connections that are reset have their zones and routes to the end.
        let interception = self.context.interception.take();
        if let Some(interception) = &interception {
            interception.lock().unwrap_or_else(PoisonError::into_inner).cease();
        }
        self.context.shared.stop.store(true, Ordering::Release);
        self.workers.iter_mut().for_each(WorkerHandle::join);
        while self.services.pop().is_some() {}
        drop(interception);
    }
}

/// The congestion control of a leg, and the one in its place where this kernel does not have it.
fn congestion_in_use(wanted: &str, leg: &Leg) -> String {
    match leg.congestion_in_use() {
        Some(used) if used != wanted => format!("{used} instead of {wanted}"),
        _ => wanted.to_owned(),
    }
}

/// The configuration with what this host does not support replaced.
fn adapt(services: &[Box<dyn Service>], config: &Config) -> Config {
    let mut config = config.clone();
    services.iter().for_each(|service| service.adapt(&mut config));
    config
}

/// Fails if another daemon splits connections in this network namespace.
///
/// # Errors
/// [`Error::Refused`], as a start would; [`Error::Privileges`] without the rights to find out.
pub fn check_alone() -> Result<(), Error> {
    claim().map(drop)
}

/// Keeps a second daemon, whose start would clear our rules as a dead run's, out of this network namespace: a
/// loopback address that belongs to the namespace and to a living process, with a port that an ordinary user
/// cannot take. Nobody listens there.
fn claim() -> Result<Socket, Error> {
    let action = "claim this network namespace";
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).map_err(Error::system(action))?;
    match socket.bind(&CLAIM.into()) {
        Ok(()) => Ok(socket),
        Err(error) if error.kind() == ErrorKind::AddrInUse => Err(Error::Refused(format!(
            "another bentpipe with the nftables table \"{TABLE}\" runs in this network namespace; stop it first"
        ))),
        Err(source) if source.kind() == ErrorKind::PermissionDenied => Err(Error::Privileges { source }),
        Err(error) => Err(Error::system(action)(error)),
    }
}

/// Logs a failure after which the daemon works on.
fn warn_of(outcome: Result<(), Error>) {
    if let Err(error) = outcome {
        tracing::error!("{error}: disabled until restart");
    }
}

pub(crate) fn plan<'a>(
    config: &'a Config,
    interfaces: &'a [Interface],
    pairs: &'a [LegPair],
    replaced: &'a [u16],
    protected: &'a [Interface],
) -> Plan<'a> {
    Plan {
        interfaces,
        pairs,
        replaced,
        rules: &config.rules,
        handshake: config.proxy.handshake,
        at_limit: config.limits.at_limit,
        rates: config.limits.rates(),
        snooped: config.snoop_config().map(|wanted| wanted.flows),
        bundle: config.bundle_port(),
        protected,
        mark: config.proxy.mark,
        tracked: host::tracks_connections(),
    }
}

/// The paths of `config`, on ports that no listener has which serves or is still about to retire.
fn free_leg_pairs(config: &Config, ports: &PortRanges) -> Result<Vec<LegPair>, Error> {
    let first = ports.free(config.proxy.port, config.path_count(), config.bundle_port())?;
    Ok(leg_pair::leg_pairs(config.legs.len(), &config.weights(), first))
}

fn check_ports(pairs: &[LegPair], families: &[Family]) -> Result<(), Error> {
    for pair in pairs {
        for &family in families {
            listener::check_free(listener::address(family, pair.port))?;
        }
    }
    Ok(())
}

fn open_listeners(
    pairs: &[LegPair],
    families: &[Family],
    legs: &Arc<Legs>,
    mark: MarkField,
) -> Result<Vec<Listener>, Error> {
    let each = pairs.iter().flat_map(|pair| families.iter().map(move |&family| (*pair, family)));
    each.map(|(pair, family)| {
        let address = listener::address(family, pair.port);
        Ok(Listener::new(
            listener::open(address, legs.get(pair.client), pair.weight, mark)?,
            pair,
            legs.clone(),
        ))
    })
    .collect()
}
