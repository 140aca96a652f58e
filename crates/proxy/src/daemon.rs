//! The daemon: checks, listeners, workers, and the rules last; all of it undone in the opposite order.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;

use bentpipe_kernel::explicit::Explicit;
use bentpipe_kernel::hybla::Hybla;
use bentpipe_kernel::leg::Leg;
use bentpipe_kernel::xcp::Xcp;
use bentpipe_legs::{Legs, RateController};
use bentpipe_link::explicit::LinkEstimate;
use socket2::{Domain, Socket, Type};

use crate::admission::AdmissionControl;
use crate::budget;
use crate::config::{Config, Interface};
use crate::connect::listener;
use crate::deferred_accept::{DeferredAccept, Devices, Entry, PendingTable, RecentSyns, Settings};
use crate::error::Error;
use crate::host;
use crate::intercept::{Family, Interception, Liveness, Names, Plan, TunDivert};
use crate::services::snoop::{self, Snoop};
use crate::services::watchdog::{Supervised, Watchdog};
use crate::services::xcp_router::{Attached, XcpRouters};
use crate::snapshot::Fd;
use crate::stats::{Counters, Stats};
use crate::telemetry::{LegFacts, LegStatsTable, Sources, StatsHandle, WorkerSource};
use crate::types::leg_pair::{self, LegPair};
use crate::types::mailbox::{Heartbeat, Mailbox};
use crate::upgrade::Predecessor;
use crate::worker::{Command, Listener, Shared, Worker};

mod drain;
mod hand_over;
mod ports;
mod take_over;

use self::hand_over::section;
use self::ports::PortRanges;

/// The loopback network of claims, 127.98.0.0/16, and a port below 1024.
const CLAIM_NETWORK: u8 = 98;
const CLAIM_PORT: u16 = 1;

/// A running splitter. It works until it is stopped or dropped.
#[derive(Debug)]
pub struct Daemon {
    /// Dropped first: it would install the rules again that are about to be removed.
    watch: Option<Watchdog>,
    /// Dropped before the workers stop, so that no connection is taken that nobody serves.
    interception: Option<Arc<Mutex<Interception>>>,
    /// Stops before the workers as well: what it gives back must find its listener.
    deferred_accept: Option<DeferredAccept>,
    snoop: Option<Snoop>,
    rate_controller: Option<RateController>,
    routers: Option<XcpRouters>,
    shared: Arc<Shared>,
    sight: StatsHandle,
    workers: Vec<Handle>,
    config: Config,
    names: Names,
    /// The devices of deferred accept and of Snoop, to hand them on. If the service fails, its devices are gone.
    greeter_devices: Weak<Devices>,
    snooper_devices: Weak<snoop::Devices>,
    ports: PortRanges,
    pairs: Vec<LegPair>,
    families: Vec<Family>,
    legs: Arc<Legs>,
    /// Kept for a reload that asks for them when the rights to load them are gone.
    _hybla: Option<Hybla>,
    _xcp: Vec<Xcp>,
    explicit: Option<Explicit>,
    /// What keeps a second daemon out; the kernel frees it with the process.
    only_one: Fd,
}

/// A daemon that has everything for which it needs special rights, and takes no connection yet. It has no thread, so
/// that the process can give up its rights before it starts.
#[derive(Debug)]
pub struct Prepared {
    config: Config,
    names: Names,
    devices: Option<Devices>,
    snoop_devices: Option<snoop::Devices>,
    routers: Attached,
    legs: Arc<Legs>,
    families: Vec<Family>,
    hybla: Option<Hybla>,
    explicit: Option<Explicit>,
    /// `None` if it comes from the daemon that is taken over.
    only_one: Option<Fd>,
}

/// Legs, the paths between them, and for each worker the listeners of these.
type Listeners = (Arc<Legs>, Vec<LegPair>, Vec<Vec<Listener>>);

/// A worker as its daemon sees it.
#[derive(Debug)]
struct Handle {
    thread: Option<JoinHandle<()>>,
    mailbox: Arc<Mailbox<Command>>,
    counters: Arc<Counters>,
}

impl Daemon {
    /// Starts to split the connections that cross the configured legs, in the calling thread's network namespace. When
    /// it returns, every new connection is split. On failure whatever it did is undone.
    pub fn start(config: &Config) -> Result<Self, Error> {
        Self::prepare(config)?.start()
    }

    /// Does what needs the rights of root: `CAP_BPF` and `CAP_PERFMON` to load eBPF. [`Prepared::start`] and the daemon then
    /// need `CAP_NET_ADMIN` and, for clients' ports below 1024, `CAP_NET_BIND_SERVICE`.
    pub fn prepare(config: &Config) -> Result<Prepared, Error> {
        Self::prepare_as(config, Names::default())
    }

    /// [`Daemon::prepare`] with names of its own for the rules and routes.
    pub fn prepare_as(config: &Config, names: Names) -> Result<Prepared, Error> {
        Self::prepare_beside(config, names, None)
    }

    /// The same where `predecessor` will hand over what only one process can have.
    fn prepare_beside(
        config: &Config,
        names: Names,
        predecessor: Option<&Predecessor>,
    ) -> Result<Prepared, Error> {
        host::check(config)?;
        listener::check_privileges()?;
        let only_one = if predecessor.is_none() { Some(OwnedFd::from(claim(&names)?).into()) } else { None };
        let comes = |service| predecessor.is_some_and(|predecessor| predecessor.has_service(service));
        for warning in host::warnings(config) {
            tracing::warn!("{warning}");
        }
        let devices = (config.wants_faithful() && !comes(section::DEFERRED_ACCEPT))
            .then(|| Devices::open(&names))
            .transpose()?;
        let snoop_devices = (config.wants_snoop() && !comes(section::SNOOP))
            .then(|| snoop::Devices::open(&names))
            .transpose()?;
        let routers = Attached::attach(config);
        let config = routers.adapt(config);
        let legs = Arc::new(config.prepare_legs());
        let families = listener::families();
        // Where it cannot be had, a leg that asks for it has said so.
        let (hybla, explicit) = (Hybla::acquire().ok(), Explicit::acquire().ok());
        Ok(Prepared {
            config,
            names,
            devices,
            snoop_devices,
            routers,
            legs,
            families,
            hybla,
            explicit,
            only_one,
        })
    }

    /// Reads the configuration again: rules, limits and legs are those of `config` for every new connection; those that are
    /// there go on as they are, under the new limits. On failure everything is as before.
    ///
    /// The number of workers and the kind of relay stay as they are until the daemon is started anew.
    pub fn reload(&mut self, config: &Config) -> Result<(), Error> {
        host::check(config)?;
        if config.wants_faithful() && self.deferred_accept.is_none() {
            return Err(Error::Restart { what: "a faithful handshake" });
        }
        if config.wants_snoop() && self.snoop.is_none() {
            return Err(Error::Restart { what: "the first rule with action = \"snoop\"" });
        }
        if let Some(port) = config.bundle_port().filter(|&port| self.ports.has(port)) {
            return Err(Error::BundlePort { port });
        }
        let adapted = self.routers.as_ref().map_or_else(|| config.clone(), |routers| routers.adapt(config));
        let config = &adapted;
        if let Some(routers) = &self.routers {
            routers.check(config)?;
        }
        let listeners =
            if self.needs_other_listeners(config) { Some(self.open_listeners(config)?) } else { None };
        let pairs = listeners.as_ref().map_or(&self.pairs, |(_, pairs, _)| pairs);
        let interfaces = config.interfaces();
        if let Some(interception) = &self.interception {
            let mut interception = interception.lock().unwrap_or_else(PoisonError::into_inner);
            interception.replace_rules(&plan(config, &interfaces, pairs))?;
        }
        if let Some((legs, pairs, listeners)) = listeners {
            (self.legs, self.pairs) = (legs, pairs);
            self.share_out()?;
            self.ports.take(&self.pairs);
            for (worker, listeners) in self.workers.iter().zip(listeners) {
                worker.mailbox.send(Command::Listen(listeners));
            }
        }
        for worker in &self.workers {
            worker.mailbox.send(Command::SetFlowLimits(budget::flow_limits(config)));
        }
        if let Some(deferred_accept) = &self.deferred_accept {
            deferred_accept.replace_settings(settings(config, &self.legs));
        }
        if let (Some(snoop), Some(wanted)) = (&self.snoop, config.snoop_config()) {
            snoop.replace_settings(wanted);
        }
        if let Some(routers) = &self.routers {
            routers.replace_settings(config);
        }
        self.shared.admission.set_limits(budget::admission_limits(config));
        if let Some(watch) = &self.watch {
            watch.note_new_rules();
        }
        if (config.proxy.workers, config.proxy.relay) != (self.config.proxy.workers, self.config.proxy.relay)
        {
            tracing::warn!("proxy.workers and proxy.relay take effect when the daemon is started anew");
        }
        if config.admin != self.config.admin {
            tracing::warn!("[admin] takes effect at an upgrade or when the daemon is started anew");
        }
        self.config = config.clone();
        self.show();
        tracing::info!("the configuration has been read again");
        Ok(())
    }

    /// What the daemon has done so far.
    pub fn stats(&self) -> Stats {
        self.sight.stats()
    }

    /// By which it is looked at. When the daemon has stopped there is nothing to be seen but what was.
    pub fn stats_handle(&self) -> StatsHandle {
        self.sight.clone()
    }

    /// What is known of each leg with explicit rates, and its name.
    pub fn link_estimates(&self) -> Vec<(String, LinkEstimate)> {
        self.rate_controller.as_ref().map(RateController::estimates).unwrap_or_default()
    }

    /// Removes the rules, then the listeners; flows that are still open are reset at both ends.
    pub fn stop(self) -> Stats {
        self.stats()
    }

    /// Lets those who look see the threads and the legs that there are now.
    fn show(&self) {
        let worker = |worker: &Handle| {
            let mailbox = worker.mailbox.clone();
            let query = move |query| mailbox.send(Command::QueryFlows(query));
            WorkerSource { query: Box::new(query), counters: worker.counters.clone() }
        };
        self.sight.look_at(Sources {
            workers: self.workers.iter().map(worker).collect(),
            deferred_accept: self
                .deferred_accept
                .as_ref()
                .map(|deferred_accept| deferred_accept.counters().clone()),
            snoop: self.snoop.as_ref().map(|snoop| Box::new(snoop.view()) as Box<_>),
            routers: self.routers.as_ref().map(|routers| Box::new(routers.view()) as Box<_>),
            link_estimates: self.rate_controller.as_ref().map(RateController::view),
            legs: LegFacts::of(&self.config, self.legs.terrestrial().name()),
        });
    }

    /// Has the rates decided for the legs that there are now. Where eBPF could not be had at the start there is nobody yet who
    /// does: a leg without one would keep to the first window for ever.
    fn share_out(&mut self) -> Result<(), Error> {
        match &self.rate_controller {
            Some(rate_controller) => rate_controller.replace(&self.legs),
            None => self.rate_controller = self.legs.share()?,
        }
        Ok(())
    }

    /// Whether accepted sockets would be other than they are.
    fn needs_other_listeners(&self, config: &Config) -> bool {
        let of = |config: &Config| {
            let Config { legs, terrestrial, proxy, limits, .. } = config;
            (legs.clone(), terrestrial.clone(), proxy.port, limits.share(), config.weights())
        };
        of(config) != of(&self.config)
    }

    /// Listeners for the legs of `config`, on ports that no listener has which is still about to retire; for each worker.
    fn open_listeners(&self, config: &Config) -> Result<Listeners, Error> {
        let pairs = free_leg_pairs(config, &self.ports)?;
        check_ports(&pairs, &self.families)?;
        let legs = Arc::new(config.prepare_legs());
        let listeners = self.workers.iter().map(|_| open_listeners(&pairs, &self.families, &legs));
        let listeners = listeners.collect::<Result<_, _>>()?;
        Ok((legs, pairs, listeners))
    }
}

impl Prepared {
    /// Starts to split connections. When it returns, every new connection is split.
    pub fn start(self) -> Result<Daemon, Error> {
        let (devices, mut daemon) = self.assemble(PortRanges::default())?;
        let pairs = free_leg_pairs(&daemon.config, &daemon.ports)?;
        daemon.ports.take(&pairs);
        check_ports(&pairs, &daemon.families)?;
        daemon.pairs = pairs;
        for index in 0..daemon.config.proxy.workers.get() {
            let listeners = open_listeners(&daemon.pairs, &daemon.families, &daemon.legs)?;
            daemon.workers.push(Handle::spawn(index, &daemon.config, &daemon.shared)?);
            daemon.workers[index].mailbox.send(Command::Listen(listeners));
        }
        daemon.start_helpers(devices)?;
        daemon.show();
        let interfaces = daemon.config.interfaces();
        let plan = plan(&daemon.config, &interfaces, &daemon.pairs);
        let (names, families) = (daemon.names.clone(), daemon.families.clone());
        let interception = Interception::install(names, &plan, families, daemon.tun_diverts())?;
        daemon.interception = Some(Arc::new(Mutex::new(interception)));
        daemon.start_watchdog()?;
        tracing::info!(workers = daemon.workers.len(), relay = ?daemon.config.proxy.relay, "splitting connections");
        Ok(daemon)
    }

    /// A daemon without listeners, rules and threads, and what some of these threads are to work with.
    fn assemble(self, ports: PortRanges) -> Result<(Helpers, Daemon), Error> {
        let Self {
            config,
            names,
            devices,
            snoop_devices,
            routers,
            legs,
            families,
            hybla,
            explicit,
            only_one,
        } = self;
        let admission = AdmissionControl::new(budget::admission_limits(&config))
            .map_err(Error::system("set up admission control"))?;
        let pending =
            PendingTable::new().map_err(Error::system("set up the table of pending connections"))?;
        let only_one = only_one.ok_or(Error::Restart { what: "what was prepared to take over" })?;
        let shared = Arc::new(Shared {
            admission: Arc::new(admission),
            pending: Arc::new(pending),
            stop: AtomicBool::new(false),
            leg_stats: Arc::new(LegStatsTable::default()),
            liveness: Arc::new(Liveness::new()),
            draining: Arc::default(),
        });
        let daemon = Daemon {
            watch: None,
            interception: None,
            deferred_accept: None,
            snoop: None,
            rate_controller: None,
            routers: None,
            sight: StatsHandle::new(shared.view()),
            shared,
            workers: Vec::new(),
            config,
            names,
            greeter_devices: Weak::new(),
            snooper_devices: Weak::new(),
            ports,
            pairs: Vec::new(),
            families,
            _xcp: legs.satellites().filter_map(Leg::xcp).cloned().collect(),
            legs,
            _hybla: hybla,
            explicit,
            only_one,
        };
        Ok((
            Helpers {
                deferred_accept: devices,
                recent_syns: RecentSyns::default(),
                held: 0,
                snoop: snoop_devices,
                routers,
            },
            daemon,
        ))
    }
}

/// What threads beside the workers are to work with.
struct Helpers {
    deferred_accept: Option<Devices>,
    /// The SYNs that the old process has settled.
    recent_syns: RecentSyns,
    /// How many of its handshakes are pending.
    held: usize,
    snoop: Option<snoop::Devices>,
    routers: Attached,
}

impl Daemon {
    /// Starts the threads beside the workers, but for the watch.
    fn start_helpers(&mut self, helpers: Helpers) -> Result<(), Error> {
        let Helpers { deferred_accept, recent_syns, held, snoop, routers } = helpers;
        if self.explicit.is_some() && self.rate_controller.is_none() {
            self.rate_controller = Some(RateController::start(&self.legs)?);
        }
        if let Some(devices) = deferred_accept {
            let (admission, pending) = (self.shared.admission.clone(), self.shared.pending.clone());
            let devices = Arc::new(devices);
            self.greeter_devices = Arc::downgrade(&devices);
            let settings = settings(&self.config, &self.legs);
            self.deferred_accept =
                Some(DeferredAccept::spawn(devices, settings, admission, pending, recent_syns, held)?);
        }
        if let (Some(devices), Some(wanted)) = (snoop, self.config.snoop_config()) {
            let devices = Arc::new(devices);
            self.snooper_devices = Arc::downgrade(&devices);
            self.snoop = Some(Snoop::spawn(devices, wanted)?);
        }
        self.routers = Some(XcpRouters::start(routers, &self.config)?);
        Ok(())
    }

    /// The ways through the devices that are there.
    fn tun_diverts(&self) -> Vec<TunDivert> {
        let names = &self.names;
        let held = self.deferred_accept.iter().map(|_| names.held.clone());
        let snooped = self.snoop.iter().flat_map(|_| [names.to_link.clone(), names.from_link.clone()]);
        held.chain(snooped).collect()
    }

    fn start_watchdog(&mut self) -> Result<(), Error> {
        let Some(interception) = self.interception.clone() else { return Ok(()) };
        let workers =
            self.workers.iter().map(|worker| Box::new(worker.mailbox.clone()) as Box<dyn Heartbeat>);
        let deferred_accept = self.deferred_accept.iter().map(DeferredAccept::heartbeat);
        let helpers =
            self.snoop.iter().map(Snoop::heartbeat).chain(self.rate_controller.iter().map(rates_heartbeat));
        let routers = self.routers.iter().filter_map(XcpRouters::heartbeat);
        let heartbeats = workers.chain(deferred_accept).chain(helpers).chain(routers).collect();
        let counters: Vec<_> = self.workers.iter().map(|worker| worker.counters.clone()).collect();
        let watched = Supervised {
            shared: self.shared.clone(),
            interception,
            heartbeats,
            buffered: Box::new(move || counters.iter().map(|counters| counters.buffered.get()).sum()),
            liveness: self.shared.liveness.clone(),
        };
        self.watch = Some(Watchdog::start(watched, &self.names.table)?);
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.watch.take());
        drop(self.interception.take());
        drop(self.deferred_accept.take());
        drop(self.snoop.take());
        drop(self.rate_controller.take());
        drop(self.routers.take());
        self.shared.stop.store(true, Ordering::Release);
        for worker in &mut self.workers {
            worker.join();
        }
    }
}

impl Handle {
    fn spawn(index: usize, config: &Config, shared: &Arc<Shared>) -> Result<Self, Error> {
        let action = || format!("start worker {index}");
        let mailbox = Mailbox::new(format!("worker {index}")).map_err(Error::system(action()))?;
        let mut handle = Self { thread: None, mailbox: Arc::new(mailbox), counters: Arc::default() };
        handle.respawn(index, config, shared)?;
        Ok(handle)
    }

    /// Starts its thread, which there must not be.
    fn respawn(&mut self, index: usize, config: &Config, shared: &Arc<Shared>) -> Result<(), Error> {
        let action = || format!("start worker {index}");
        let (mailbox, counters) = (self.mailbox.clone(), self.counters.clone());
        mailbox.send(Command::SetFlowLimits(budget::flow_limits(config)));
        let (shared, relay) = (shared.clone(), config.proxy.relay);
        let worker = Worker::new(relay, shared, mailbox, counters).map_err(Error::system(action()))?;
        let thread = std::thread::Builder::new()
            .name(format!("bentpipe-{index}"))
            .spawn(move || {
                if let Err(error) = worker.run() {
                    tracing::error!(%error, "worker {index} failed: its flows are reset");
                }
            })
            .map_err(Error::system(action()))?;
        self.thread = Some(thread);
        Ok(())
    }

    fn join(&mut self) {
        self.mailbox.wake();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("a worker had panicked");
        }
    }
}

/// Keeps a second daemon, whose start would clear our rules as a dead run's, out of this network namespace: a loopback
/// address that belongs to the namespace and to a living process, with a port that an ordinary user cannot take. Nobody
/// listens there.
fn claim(names: &Names) -> Result<Socket, Error> {
    let action = "claim this network namespace";
    let [high, low] = fnv16(&names.table).to_be_bytes();
    let address = SocketAddr::from(([127, CLAIM_NETWORK, high, low], CLAIM_PORT));
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).map_err(Error::system(action))?;
    match socket.bind(&address.into()) {
        Ok(()) => Ok(socket),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            Err(Error::AlreadyRunning { table: names.table.clone() })
        }
        Err(source) if source.kind() == ErrorKind::PermissionDenied => Err(Error::Privileges { source }),
        Err(error) => Err(Error::system(action)(error)),
    }
}

/// Fowler, Noll and Vo's hash (1a, 32 bits), folded: different tables may run side by side.
fn fnv16(text: &str) -> u16 {
    let hash =
        text.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (hash >> 16) as u16 ^ hash as u16
}

/// Logs a failure after which the daemon works on.
fn warn_of(outcome: Result<(), Error>) {
    if let Err(error) = outcome {
        tracing::error!("{error}: disabled until restart");
    }
}

fn plan<'a>(config: &'a Config, interfaces: &'a [Interface], pairs: &'a [LegPair]) -> Plan<'a> {
    Plan {
        interfaces,
        pairs,
        rules: &config.rules,
        handshake: config.proxy.handshake,
        at_limit: config.limits.at_limit,
        snooped: config.snoop_config().map(|wanted| wanted.flows),
        bundle: config.bundle_port(),
    }
}

fn rates_heartbeat(rate_controller: &RateController) -> Box<dyn Heartbeat> {
    Box::new(rate_controller.waker())
}

fn settings(config: &Config, legs: &Arc<Legs>) -> Settings {
    let interfaces = config.interfaces();
    Settings { legs: legs.clone(), interfaces, at_limit: config.limits.at_limit }
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

fn open_listeners(pairs: &[LegPair], families: &[Family], legs: &Arc<Legs>) -> Result<Vec<Listener>, Error> {
    let each = pairs.iter().flat_map(|pair| families.iter().map(move |&family| (*pair, family)));
    each.map(|(pair, family)| {
        let address = listener::address(family, pair.port);
        Ok(Listener::new(listener::open(address, legs.get(pair.client), pair.weight)?, pair, legs.clone()))
    })
    .collect()
}
