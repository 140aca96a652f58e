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

use crate::budget;
use crate::config::{Config, Interface};
use crate::error::Error;
use crate::gate::Gate;
use crate::greeter::{Book, Devices, Greeter, Settings};
use crate::handover::{FateDeed, Inventory};
use crate::host;
use crate::intercept::{Detour, Family, Interception, Names, Plan};
use crate::listener;
use crate::path::{self, Path};
use crate::ports::PortRanges;
use crate::pulse::{Mailbox, Pulse};
use crate::router::{Attached, Routers};
use crate::sight::{LegFacts, Sight, Sources, Tally};
use crate::snooper::{self, Snooper};
use crate::stats::{Counters, Stats};
use crate::watch::{InForce, Watch, Watched};
use crate::worker::{Listener, Order, Shared, Worker};

mod inherit;

/// The loopback network of claims, 127.98.0.0/16, and a port below 1024.
const CLAIM_NETWORK: u8 = 98;
const CLAIM_PORT: u16 = 1;

/// A running splitter. It works until it is stopped or dropped.
#[derive(Debug)]
pub struct Daemon {
    /// Dropped first: it would install the rules again that are about to be removed.
    watch: Option<Watch>,
    /// Dropped before the workers stop, so that no connection is taken that nobody serves.
    interception: Option<Arc<Mutex<Interception>>>,
    /// Stops before the workers as well: what it gives back must find its listener.
    greeter: Option<Greeter>,
    snooper: Option<Snooper>,
    sharing: Option<RateController>,
    routers: Option<Routers>,
    shared: Arc<Shared>,
    sight: Sight,
    workers: Vec<Handle>,
    config: Config,
    names: Names,
    /// What the greeter and the snooper read, to hand it on while it is there: where they fail, the devices vanish with them.
    greeter_devices: Weak<Devices>,
    snooper_devices: Weak<snooper::Devices>,
    ports: PortRanges,
    paths: Vec<Path>,
    families: Vec<Family>,
    legs: Arc<Legs>,
    /// Kept for a reload that asks for them when the rights to load them are gone.
    _hybla: Option<Hybla>,
    _xcp: Vec<Xcp>,
    explicit: Option<Explicit>,
    /// What keeps a second daemon out; the kernel frees it with the process.
    only_one: OwnedFd,
}

/// A daemon that has everything for which it needs special rights, and takes no connection yet. It has no thread, so
/// that the process can give up its rights before it starts.
#[derive(Debug)]
pub struct Prepared {
    config: Config,
    names: Names,
    devices: Option<Devices>,
    snoop_devices: Option<snooper::Devices>,
    routers: Attached,
    legs: Arc<Legs>,
    families: Vec<Family>,
    hybla: Option<Hybla>,
    explicit: Option<Explicit>,
    /// `None` if it comes from the daemon that is taken over.
    only_one: Option<OwnedFd>,
}

/// Legs, the paths between them, and for each worker the listeners of these.
type Listeners = (Arc<Legs>, Vec<Path>, Vec<Vec<Listener>>);

/// A worker as its daemon sees it.
#[derive(Debug)]
struct Handle {
    thread: Option<JoinHandle<()>>,
    mailbox: Arc<Mailbox<Order>>,
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
        predecessor: Option<&Inventory>,
    ) -> Result<Prepared, Error> {
        host::check(config)?;
        listener::check_privileges()?;
        let only_one = if predecessor.is_none() { Some(claim(&names)?.into()) } else { None };
        let (greeter_comes, snooper_comes) =
            predecessor.map_or((false, false), |had| (had.greeter, had.snooper));
        for warning in host::warnings(config) {
            tracing::warn!("{warning}");
        }
        let devices =
            (config.wants_faithful() && !greeter_comes).then(|| Devices::open(&names)).transpose()?;
        let snoop_devices =
            (config.wants_snoop() && !snooper_comes).then(|| snooper::Devices::open(&names)).transpose()?;
        let routers = Attached::attach(config);
        let config = routers.adapt(config);
        let legs = Arc::new(path::prepare_legs(&config));
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
        if config.wants_faithful() && self.greeter.is_none() {
            return Err(Error::Restart { what: "a faithful handshake" });
        }
        if config.wants_snoop() && self.snooper.is_none() {
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
        let paths = listeners.as_ref().map_or(&self.paths, |(_, paths, _)| paths);
        let interfaces = path::interfaces(config);
        if let Some(interception) = &self.interception {
            let mut interception = interception.lock().unwrap_or_else(PoisonError::into_inner);
            interception.replace_rules(&plan(config, &interfaces, paths))?;
        }
        if let Some((legs, paths, listeners)) = listeners {
            (self.legs, self.paths) = (legs, paths);
            self.share_out()?;
            self.ports.take(&self.paths);
            for (worker, listeners) in self.workers.iter().zip(listeners) {
                worker.mailbox.send(Order::Listen(listeners));
            }
        }
        for worker in &self.workers {
            worker.mailbox.send(Order::Allow(budget::allowance(config)));
        }
        if let Some(greeter) = &self.greeter {
            greeter.replace_settings(settings(config, &self.legs));
        }
        if let (Some(snooper), Some(wanted)) = (&self.snooper, config.snoop_config()) {
            snooper.replace_settings(wanted);
        }
        if let Some(routers) = &self.routers {
            routers.replace_settings(config);
        }
        self.shared.gate.set_ceilings(budget::ceilings(config));
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
    pub fn sight(&self) -> Sight {
        self.sight.clone()
    }

    /// What is known of each leg with explicit rates, and its name.
    pub fn standings(&self) -> Vec<(String, LinkEstimate)> {
        self.sharing.as_ref().map(RateController::standings).unwrap_or_default()
    }

    /// Removes the rules, then the listeners; flows that are still open are reset at both ends.
    pub fn stop(self) -> Stats {
        self.stats()
    }

    /// Lets those who look see the threads and the legs that there are now.
    fn show(&self) {
        let worker = |worker: &Handle| (worker.mailbox.clone(), worker.counters.clone());
        self.sight.look_at(Sources {
            workers: self.workers.iter().map(worker).collect(),
            greeter: self.greeter.as_ref().map(|greeter| greeter.counters().clone()),
            snooper: self.snooper.as_ref().map(|snooper| Box::new(snooper.view()) as Box<_>),
            routers: self.routers.as_ref().map(|routers| Box::new(routers.view()) as Box<_>),
            standings: self.sharing.as_ref().map(RateController::view),
            legs: LegFacts::of(&self.config, self.legs.terrestrial().name()),
        });
    }

    /// Has the rates decided for the legs that there are now. Where eBPF could not be had at the start there is nobody yet who
    /// does: a leg without one would keep to the first window for ever.
    fn share_out(&mut self) -> Result<(), Error> {
        match &self.sharing {
            Some(sharing) => sharing.replace(&self.legs),
            None => self.sharing = self.legs.share()?,
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
        let paths = free_paths(config, &self.ports)?;
        check_ports(&paths, &self.families)?;
        let legs = Arc::new(path::prepare_legs(config));
        let listeners = self.workers.iter().map(|_| open_listeners(&paths, &self.families, &legs));
        let listeners = listeners.collect::<Result<_, _>>()?;
        Ok((legs, paths, listeners))
    }
}

impl Prepared {
    /// Starts to split connections. When it returns, every new connection is split.
    pub fn start(self) -> Result<Daemon, Error> {
        let (devices, mut daemon) = self.assemble(PortRanges::default())?;
        let paths = free_paths(&daemon.config, &daemon.ports)?;
        daemon.ports.take(&paths);
        check_ports(&paths, &daemon.families)?;
        daemon.paths = paths;
        for index in 0..daemon.config.proxy.workers.get() {
            let listeners = open_listeners(&daemon.paths, &daemon.families, &daemon.legs)?;
            daemon.workers.push(Handle::spawn(index, &daemon.config, &daemon.shared)?);
            daemon.workers[index].mailbox.send(Order::Listen(listeners));
        }
        daemon.start_helpers(devices)?;
        daemon.show();
        let interfaces = path::interfaces(&daemon.config);
        let plan = plan(&daemon.config, &interfaces, &daemon.paths);
        let (names, families) = (daemon.names.clone(), daemon.families.clone());
        let interception = Interception::install(names, &plan, families, daemon.detours())?;
        daemon.interception = Some(Arc::new(Mutex::new(interception)));
        daemon.start_watch()?;
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
        let gate = Gate::new(budget::ceilings(&config)).map_err(Error::system("make a gate"))?;
        let book = Book::new().map_err(Error::system("make the book of held connections"))?;
        let only_one = only_one.ok_or(Error::Restart { what: "what was prepared to take over" })?;
        let shared = Arc::new(Shared {
            gate: Arc::new(gate),
            book: Arc::new(book),
            stop: AtomicBool::new(false),
            tally: Tally::default(),
            in_force: Arc::new(InForce::new()),
            draining: Mutex::default(),
        });
        let daemon = Daemon {
            watch: None,
            interception: None,
            greeter: None,
            snooper: None,
            sharing: None,
            routers: None,
            sight: Sight::new(shared.clone()),
            shared,
            workers: Vec::new(),
            config,
            names,
            greeter_devices: Weak::new(),
            snooper_devices: Weak::new(),
            ports,
            paths: Vec::new(),
            families,
            _xcp: legs.satellites().filter_map(Leg::xcp).cloned().collect(),
            legs,
            _hybla: hybla,
            explicit,
            only_one,
        };
        Ok((
            Helpers { greeter: devices, fates: Vec::new(), held: 0, snooper: snoop_devices, routers },
            daemon,
        ))
    }
}

/// What threads beside the workers are to work with.
struct Helpers {
    greeter: Option<Devices>,
    /// What became of SYNs that the greeter of the process before has had.
    fates: Vec<FateDeed>,
    /// How many handshakes the book has of it.
    held: usize,
    snooper: Option<snooper::Devices>,
    routers: Attached,
}

impl Daemon {
    /// Starts the threads beside the workers, but for the watch.
    fn start_helpers(&mut self, helpers: Helpers) -> Result<(), Error> {
        let Helpers { greeter, fates, held, snooper, routers } = helpers;
        if self.explicit.is_some() && self.sharing.is_none() {
            self.sharing = Some(RateController::start(&self.legs)?);
        }
        if let Some(devices) = greeter {
            let (gate, book) = (self.shared.gate.clone(), self.shared.book.clone());
            let devices = Arc::new(devices);
            self.greeter_devices = Arc::downgrade(&devices);
            let settings = settings(&self.config, &self.legs);
            self.greeter = Some(Greeter::spawn(devices, settings, gate, book, fates, held)?);
        }
        if let (Some(devices), Some(wanted)) = (snooper, self.config.snoop_config()) {
            let devices = Arc::new(devices);
            self.snooper_devices = Arc::downgrade(&devices);
            self.snooper = Some(Snooper::spawn(devices, wanted)?);
        }
        self.routers = Some(Routers::start(routers, &self.config)?);
        Ok(())
    }

    /// The ways through the devices that are there.
    fn detours(&self) -> Vec<Detour> {
        let names = &self.names;
        let held = self.greeter.iter().map(|_| names.held.clone());
        let snooped = self.snooper.iter().flat_map(|_| [names.to_link.clone(), names.from_link.clone()]);
        held.chain(snooped).collect()
    }

    fn start_watch(&mut self) -> Result<(), Error> {
        let Some(interception) = self.interception.clone() else { return Ok(()) };
        let workers = self.workers.iter().map(|worker| Box::new(worker.mailbox.clone()) as Box<dyn Pulse>);
        let greeter = self.greeter.iter().map(Greeter::pulse);
        let helpers = self.snooper.iter().map(Snooper::pulse).chain(self.sharing.iter().map(rates_pulse));
        let routers = self.routers.iter().filter_map(Routers::pulse);
        let pulses = workers.chain(greeter).chain(helpers).chain(routers).collect();
        let counters: Vec<_> = self.workers.iter().map(|worker| worker.counters.clone()).collect();
        let watched = Watched {
            shared: self.shared.clone(),
            interception,
            pulses,
            buffered: Box::new(move || counters.iter().map(|counters| counters.buffered.get()).sum()),
            in_force: self.shared.in_force.clone(),
        };
        self.watch = Some(Watch::start(watched, &self.names.table)?);
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.watch.take());
        drop(self.interception.take());
        drop(self.greeter.take());
        drop(self.snooper.take());
        drop(self.sharing.take());
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
        mailbox.send(Order::Allow(budget::allowance(config)));
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

fn plan<'a>(config: &'a Config, interfaces: &'a [Interface], paths: &'a [Path]) -> Plan<'a> {
    Plan {
        interfaces,
        paths,
        rules: &config.rules,
        handshake: config.proxy.handshake,
        at_limit: config.limits.at_limit,
        snooped: config.snoop_config().map(|wanted| wanted.flows),
        bundle: config.bundle_port(),
    }
}

fn rates_pulse(sharing: &RateController) -> Box<dyn Pulse> {
    Box::new(sharing.bell())
}

fn settings(config: &Config, legs: &Arc<Legs>) -> Settings {
    let interfaces = path::interfaces(config);
    Settings { legs: legs.clone(), interfaces, at_limit: config.limits.at_limit }
}

/// The paths of `config`, on ports that no listener has which serves or is still about to retire.
fn free_paths(config: &Config, ports: &PortRanges) -> Result<Vec<Path>, Error> {
    let first = ports.free(config.proxy.port, config.path_count(), config.bundle_port())?;
    Ok(path::paths(config.legs.len(), &config.weights(), first))
}

fn check_ports(paths: &[Path], families: &[Family]) -> Result<(), Error> {
    for path in paths {
        for &family in families {
            listener::check_free(listener::address(family, path.port))?;
        }
    }
    Ok(())
}

fn open_listeners(paths: &[Path], families: &[Family], legs: &Arc<Legs>) -> Result<Vec<Listener>, Error> {
    let each = paths.iter().flat_map(|path| families.iter().map(move |&family| (*path, family)));
    each.map(|(path, family)| {
        let address = listener::address(family, path.port);
        Ok(Listener::new(listener::open(address, legs.get(path.client), path.weight)?, path, legs.clone()))
    })
    .collect()
}
