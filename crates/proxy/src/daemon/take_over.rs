//! The new process of an upgrade: it builds everything from the snapshot, and serves once the old process
//! commits. The conversation is in [`upgrade`](crate::upgrade).

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use super::hand_over::{listener_settings, section};
use super::*;
use crate::flow::{Flow, FlowState, Route, RouteNames};
use crate::snapshot::{Fd, Snapshot, SnapshotError};
use crate::upgrade::{ExtraFds, Predecessor, UpgradeError};
use crate::worker::{RETIREMENT, WorkerState};

/// Descriptors that are kept back for what is opened when there is no way back: by the services, and for
/// programs.
const SPARE: usize = 24;

/// A daemon that could serve at once.
struct Built {
    daemon: Daemon,
    helpers: Helpers,
    workers: Vec<WorkerState>,
    rules: (String, Vec<Interface>),
    extra_fds: ExtraFds,
    /// To be closed when others are needed.
    spare: Vec<OwnedFd>,
}

impl Prepared {
    /// As [`Daemon::prepare`], to take over from `predecessor`, which serves meanwhile.
    pub fn beside(config: &Config, predecessor: &Predecessor) -> Result<Self, Error> {
        Self::beside_as(config, Names::default(), predecessor)
    }

    /// The same with names of its own for the rules and routes, which must be those of the predecessor.
    pub fn beside_as(config: &Config, names: Names, predecessor: &Predecessor) -> Result<Self, Error> {
        Daemon::prepare_beside(config, names, Some(predecessor))
    }

    /// Takes over listeners and connections, and serves them.
    ///
    /// # Errors
    /// Something that is needed cannot be had. The predecessor resumes then, unless the error says that it
    /// has ended.
    pub fn take_over(self, predecessor: &Predecessor) -> Result<(Daemon, ExtraFds), Error> {
        let start = Instant::now();
        let built = predecessor.take().map_err(Error::from).and_then(|snapshot| self.build(snapshot));
        let built = built.inspect_err(|error| predecessor.abort(&error.to_string()))?;
        predecessor.commit()?;
        Ok(built.serve(start))
    }

    /// Builds everything, and uses none of it.
    fn build(mut self, mut snapshot: Snapshot) -> Result<Built, Error> {
        let snapshot = &mut snapshot;
        self.only_one = Some(snapshot.read(section::CLAIM).map_err(unreadable)?);
        self.take_devices(snapshot)?;
        let (helpers, mut daemon) = self.assemble(snapshot.read(section::PORTS).map_err(unreadable)?)?;
        daemon.sight.inherit(snapshot.read(section::COUNTERS).map_err(unreadable)?);
        *daemon.draining() = snapshot.read(section::DRAINING).map_err(unreadable)?;
        for index in 0..daemon.config.proxy.workers.get() {
            daemon.workers.push(Handle::spawn(index, &daemon.config, &daemon.shared)?);
        }
        // Flows with explicit rates need a rate controller.
        daemon.share_out()?;
        let empty = || WorkerState { from_elsewhere: true, ..WorkerState::default() };
        let mut workers: Vec<WorkerState> = daemon.workers.iter().map(|_| empty()).collect();
        daemon.take_listeners(snapshot, &mut workers)?;
        daemon.take_flows(snapshot, &mut workers)?;
        let helpers = daemon.take_pending(snapshot, helpers)?;
        let rules = snapshot.read(section::RULES).map_err(unreadable)?;
        let extra_fds = take_extra_fds(snapshot)?;
        let spare = keep_back(daemon.only_one.as_fd())?;
        Ok(Built { daemon, helpers, workers, rules, extra_fds, spare })
    }

    /// The devices of the predecessor's services, where this process needs them.
    fn take_devices(&mut self, snapshot: &mut Snapshot) -> Result<(), Error> {
        let action = "take over a TUN device";
        let deferred_accept: Option<[Fd; 2]> = snapshot.read(section::DEFERRED_ACCEPT).map_err(unreadable)?;
        let snoop: Option<[Fd; 2]> = snapshot.read(section::SNOOP).map_err(unreadable)?;
        let devices = deferred_accept.map(|devices| Devices::resume(devices, &self.names)).transpose();
        self.devices = devices.map_err(Error::system(action))?.or(self.devices.take());
        if let Some(devices) = snoop.filter(|_| self.config.wants_snoop()) {
            let devices = snoop::Devices::resume(devices, &self.names).map_err(Error::system(action))?;
            self.snoop_devices = Some(devices);
        }
        Ok(())
    }
}

impl Built {
    /// From here on there is no way back: the daemon works without anything that fails.
    fn serve(self, start: Instant) -> (Daemon, ExtraFds) {
        let Self { mut daemon, helpers, workers, rules, extra_fds, spare } = self;
        drop(spare);
        let flows: usize = workers.iter().map(|state| state.flows.len()).sum();
        for (worker, state) in daemon.workers.iter().zip(workers) {
            state.listeners.iter().for_each(renew_settings);
            worker.mailbox.send(Command::Import(state));
        }
        let standstill = start.elapsed();
        warn_of(daemon.start_helpers(helpers));
        daemon.take_interception(rules);
        warn_of(daemon.start_watchdog());
        daemon.show();
        let upgrades = daemon.sight.upgrades();
        tracing::info!(flows, ?standstill, upgrades, "took over the connections of another process");
        (daemon, extra_fds)
    }
}

impl Daemon {
    /// Takes listeners over. Those that this process would open in the same way go on; the others get no more
    /// connections, and this process opens its own beside them.
    fn take_listeners(&mut self, snapshot: &mut Snapshot, workers: &mut [WorkerState]) -> Result<(), Error> {
        let settings: String = snapshot.read(section::LISTENER_SETTINGS).map_err(unreadable)?;
        let serving = self.ports.serving().filter(|_| settings == listener_settings(&self.config));
        let first = match serving {
            Some(first) => first,
            None => self.ports.free(
                self.config.proxy.port,
                self.config.path_count(),
                self.config.bundle_port(),
            )?,
        };
        self.pairs = leg_pair::leg_pairs(self.legs.satellites().len(), &self.config.weights(), first);
        let listeners: Vec<(usize, Listener<RouteNames>)> =
            snapshot.read(section::LISTENERS).map_err(unreadable)?;
        for (worker, Listener { socket, route, retires }) in listeners {
            let replaced = serving.is_none().then(|| Instant::now() + RETIREMENT);
            let listener =
                Listener { socket, route: route.resolve(&self.legs), retires: retires.or(replaced) };
            workers[worker % self.workers.len()].listeners.push(listener);
        }
        if serving.is_none() {
            check_ports(&self.pairs, &self.families)?;
            for state in workers {
                state.listeners.extend(open_listeners(&self.pairs, &self.families, &self.legs)?);
            }
            self.ports.take(&self.pairs);
        }
        Ok(())
    }

    /// Distributes the flows over the workers.
    fn take_flows(&self, snapshot: &mut Snapshot, workers: &mut [WorkerState]) -> Result<(), Error> {
        let flows: Vec<(RouteNames, FlowState)> = snapshot.read(section::FLOWS).map_err(unreadable)?;
        for (number, (route, state)) in flows.into_iter().enumerate() {
            let flow = Flow::resume(&route, state, &self.legs, &self.shared.admission);
            workers[number % self.workers.len()].flows.push(flow);
        }
        Ok(())
    }

    /// Takes over the handshakes that are pending.
    fn take_pending(&self, snapshot: &mut Snapshot, helpers: Helpers) -> Result<Helpers, Error> {
        let entries: Vec<Entry<()>> = snapshot.read(section::PENDING).map_err(unreadable)?;
        let recent_syns: Option<RecentSyns> = snapshot.read(section::RECENT_SYNS).map_err(unreadable)?;
        let held = entries.len();
        // Pending handshakes need a thread that completes them or, in time, ends them.
        let deferred_accept = helpers.deferred_accept.filter(|_| held > 0 || self.config.wants_faithful());
        self.shared
            .pending
            .resume(entries, &self.shared.admission)
            .map_err(Error::system("wait for the servers of pending connections"))?;
        Ok(Helpers { deferred_accept, recent_syns: recent_syns.unwrap_or_default(), held, ..helpers })
    }

    /// Continues with the rules and routes that are in place.
    fn take_interception(&mut self, (rules, sides): (String, Vec<Interface>)) {
        let (names, families) = (self.names.clone(), self.families.clone());
        let mut interception = Interception::take_over(names, families, self.tun_diverts(), rules, sides);
        // Devices that the predecessor did not have are there without a route.
        warn_of(interception.complete_tun_diverts());
        let interfaces = self.config.interfaces();
        let plan = plan(&self.config, &interfaces, &self.pairs);
        if !interception.has_rules(&plan)
            && let Err(error) = interception.replace_rules(&plan)
        {
            tracing::error!("the rules stay as they were: {error}");
        }
        self.interception = Some(Arc::new(Mutex::new(interception)));
    }
}

fn take_extra_fds(snapshot: &mut Snapshot) -> Result<ExtraFds, Error> {
    let (descriptors, memory): (Vec<(String, Fd)>, _) =
        snapshot.read(section::PROGRAM).map_err(unreadable)?;
    let owned = descriptors.into_iter().map(|(name, descriptor)| Ok((name, descriptor.into_owned()?)));
    let descriptors = owned.collect::<std::io::Result<_>>();
    let descriptors = descriptors.map_err(Error::system("take over the program's descriptors"))?;
    Ok(ExtraFds { descriptors, memory })
}

fn unreadable(error: SnapshotError) -> Error {
    Error::Handover(UpgradeError::protocol("reading the snapshot", error))
}

/// Duplicates of any descriptor.
fn keep_back(of: BorrowedFd<'_>) -> Result<Vec<OwnedFd>, Error> {
    let action = "keep descriptors back for what is opened last (raise ulimit -n, LimitNOFILE)";
    (0..SPARE).map(|_| of.try_clone_to_owned()).collect::<Result<_, _>>().map_err(Error::system(action))
}

/// Sockets that a listener accepts inherit its settings, which from now on include this process's copy of the
/// congestion control.
fn renew_settings(listener: &Listener) {
    let Listener { socket, route: Route { pair, legs }, .. } = listener;
    if let Err(error) = legs.get(pair.client).apply_weighted(socket.as_fd(), pair.weight) {
        tracing::error!(%error, port = pair.port, "a listener keeps the settings of the old process");
    }
}
