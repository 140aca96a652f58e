//! From process to process: what a daemon leaves, and how the next one goes on with it. [`handover`](crate::upgrade) has the
//! conversation.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::*;
use crate::deferred_accept::{Entries, Paused};
use crate::flow::{Flow, Route};
use crate::types::Draining;
use crate::upgrade::{
    DrainSnapshot, ExtraFds, Inventory, ListenerSnapshot, Manifest, PendingSnapshot, Predecessor, Snapshot,
    SnapshotReader, SnapshotWriter, Successor, UpgradeError,
};
use crate::worker::{RETIREMENT, WorkerState};

/// How long workers are waited for that are to give everything away. The successor waits longer.
const PARTING: Duration = Duration::from_secs(1);
/// Descriptors that are kept back for what is opened when there is no way back: by the threads beside the workers, and for programs.
const SPARE: usize = 24;

impl Daemon {
    /// What a successor is told before it prepares. `extra_fds` are the names of what will go with it.
    pub fn inventory(&self, extra_fds: Vec<String>) -> Inventory {
        let [deferred_accept, snoop] =
            [self.greeter_devices.strong_count(), self.snooper_devices.strong_count()];
        Inventory::new(deferred_accept > 0, snoop > 0, extra_fds)
    }

    /// Hands listeners and connections over to `successor`, which does not notice them standing still for more than a few milliseconds. `last` is called
    /// with the successor's process before it gets the last word. Afterwards this process has nothing to do any more, and undoes nothing.
    ///
    /// # Errors
    /// The successor cannot go on with it, has gone or says nothing: everything goes on here as if nothing had been.
    pub fn hand_over(
        mut self,
        successor: &Successor,
        extra_fds: &[(String, BorrowedFd<'_>)],
        memory: serde_json::Value,
        last: impl FnOnce(i32),
    ) -> Result<(), (Box<Self>, UpgradeError)> {
        if !successor.is_there() {
            let reason = "it has gone before it was its turn".to_owned();
            return Err((Box::new(self), UpgradeError::Refused { reason }));
        }
        // It would set up again what the successor replaces. The rules stay in force without it for longer than this takes.
        drop(self.watch.take());
        let start = Instant::now();
        match self.try_to_hand_over(successor, extra_fds, memory, last) {
            Ok(flows) => {
                if let Some(interception) = &self.interception {
                    interception.lock().unwrap_or_else(PoisonError::into_inner).leave();
                }
                tracing::info!(flows, took = ?start.elapsed(), successor = successor.pid(), "another process goes on with everything");
                Ok(())
            }
            Err(failure) => {
                let (left, error) = *failure;
                successor.refuse(&error.to_string());
                self.resume(left);
                if let Err(error) = self.start_watchdog() {
                    tracing::error!("{error}: new connections pass unsplit until the daemon is started anew");
                }
                Err((Box::new(self), error))
            }
        }
    }

    /// How many flows have gone, or what is left to go on with.
    fn try_to_hand_over(
        &mut self,
        successor: &Successor,
        extra_fds: &[(String, BorrowedFd<'_>)],
        memory: serde_json::Value,
        last: impl FnOnce(i32),
    ) -> Result<usize, Box<(Left, UpgradeError)>> {
        let paused = self.deferred_accept.as_mut().and_then(DeferredAccept::pause);
        let states = match self.part() {
            Ok(states) => states,
            Err((states, reason)) => {
                let left = Left { states, paused, entries: None, devices: [None, None] };
                return Err(Box::new((left, UpgradeError::Refused { reason })));
            }
        };
        let (devices, kept) = match self.devices() {
            Ok(devices) => (devices, Ok(())),
            Err(error) => {
                let reason = format!("its devices cannot be handed on: {error}");
                ([None, None], Err(UpgradeError::Refused { reason }))
            }
        };
        let left = Left { states, paused, entries: Some(self.shared.pending.leave()), devices };
        let outcome = kept
            .and_then(|()| self.pack(&left, extra_fds, memory))
            .and_then(|(content, descriptors)| successor.hand_over(&content, &descriptors))
            .and_then(|()| {
                last(successor.pid());
                successor.commit()
            });
        match outcome {
            Ok(()) => Ok(left.states.iter().map(|state| state.flows.len()).sum()),
            Err(error) => Err(Box::new((left, error))),
        }
    }

    /// Other descriptors of the deferred_accept's and the snoop's devices, where these are there.
    fn devices(&self) -> std::io::Result<[Option<[OwnedFd; 2]>; 2]> {
        let deferred_accept =
            self.greeter_devices.upgrade().map(|devices| devices.descriptors()).transpose()?;
        let snoop = self.snooper_devices.upgrade().map(|devices| devices.descriptors()).transpose()?;
        Ok([deferred_accept, snoop])
    }

    /// Stops the workers and gets what they have. Where one does not answer in time, what the others have given before it; it and
    /// those behind it go on.
    fn part(&mut self) -> Result<Vec<WorkerState>, (Vec<WorkerState>, String)> {
        // Nothing waits between giver and taker, where it would be lost if we stopped waiting.
        let ask = |worker: &Handle| {
            let (sender, receiver) = mpsc::sync_channel(0);
            worker.mailbox.send(Command::Export(sender));
            receiver
        };
        let asked: Vec<_> = self.workers.iter().map(ask).collect();
        let until = Instant::now() + PARTING;
        let mut states = Vec::with_capacity(asked.len());
        for (index, answer) in asked.into_iter().enumerate() {
            match answer.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(state) => states.push(state),
                Err(_) => return Err((states, format!("worker {index} does not answer"))),
            }
            self.workers[index].join();
        }
        Ok(states)
    }

    /// Goes on as if nothing had been.
    fn resume(&mut self, left: Left) {
        let Left { states, paused, entries, .. } = left;
        if let Some(entries) = entries {
            self.shared.pending.put_back(entries);
        }
        if let (Some(deferred_accept), Some(paused)) = (&mut self.deferred_accept, paused) {
            tell(deferred_accept.resume(paused));
        }
        for (index, state) in states.into_iter().enumerate() {
            let worker = &mut self.workers[index];
            match worker.respawn(index, &self.config, &self.shared) {
                Ok(()) => worker.mailbox.send(Command::Import(state)),
                Err(error) => tracing::error!("{error}: {} connections are reset", state.flows.len()),
            }
        }
    }

    /// Everything as bytes and descriptors.
    fn pack<'a>(
        &'a self,
        left: &'a Left,
        extra_fds: &[(String, BorrowedFd<'a>)],
        memory: serde_json::Value,
    ) -> Result<([Vec<u8>; 2], Vec<BorrowedFd<'a>>), UpgradeError> {
        let mut writer = SnapshotWriter::default();
        let claim = writer.descriptor(self.only_one.as_fd());
        let mut pair = |devices: &'a Option<[OwnedFd; 2]>| {
            devices.as_ref().map(|[one, other]| [one, other].map(|device| writer.descriptor(device.as_fd())))
        };
        let [deferred_accept, snoop] = [&left.devices[0], &left.devices[1]].map(&mut pair);
        let extra_fds = extra_fds
            .iter()
            .map(|(name, descriptor)| (name.clone(), writer.descriptor(*descriptor)))
            .collect();
        let mut listeners = Vec::new();
        let Left { states, paused, entries, .. } = left;
        let syn_outcomes = paused.as_ref().map(Paused::syn_outcomes).unwrap_or_default();
        let entries = entries.as_ref().map(|entries| entries.snapshots(&mut writer)).unwrap_or_default();
        let pending = PendingSnapshot { entries, syn_outcomes };
        for (worker, state) in states.iter().enumerate() {
            listeners.extend(
                state.listeners.iter().map(|listener| listener_snapshot(listener, worker, &mut writer)),
            );
        }
        let flows = states.iter().flat_map(|state| &state.flows);
        let flows = flows.map(|flow| flow.snapshot(&mut writer)).collect();
        let (rules, sides) = self.rules();
        let manifest = Manifest {
            claim,
            deferred_accept,
            snoop,
            signature: signature(&self.config),
            listeners,
            ports: self.ports.snapshots(),
            flows,
            pending,
            draining: self
                .draining()
                .map(|draining| DrainSnapshot { left_ms: draining.until.map(milliseconds_until) }),
            rules,
            sides,
            counters: self.sight.snapshot(),
            extra_fds,
            memory,
        };
        writer.seal(&manifest).map_err(|error| UpgradeError::Refused { reason: error.to_string() })
    }

    fn rules(&self) -> (String, Vec<String>) {
        let Some(interception) = &self.interception else { return Default::default() };
        let interception = interception.lock().unwrap_or_else(PoisonError::into_inner);
        let (rules, sides) = interception.rules();
        (rules.to_owned(), sides.iter().map(|side| side.as_str().to_owned()).collect())
    }

    /// Lets new connections pass, those that are there go on; with a time it is told when what is left is to be reset, which is the
    /// business of who ends the daemon.
    pub fn drain(&self, time: Option<Duration>) {
        let until = time.and_then(|time| Instant::now().checked_add(time));
        *self.draining() = Some(Draining { until });
        self.shared.admission.wake();
        tracing::info!(?time, "draining: new connections pass unsplit");
    }

    /// Splits new connections again.
    pub fn stop_draining(&self) {
        if self.draining().take().is_some() {
            tracing::info!("draining has been called off: new connections are split");
        }
    }

    /// Whether draining has come to its end: no flow is left, or the time is up.
    pub fn has_drained(&self) -> bool {
        let Some(Draining { until }) = *self.draining() else { return false };
        // By the admission, which knows those at once that have just been taken over.
        until.is_some_and(|until| until <= Instant::now()) || self.shared.admission.open() == 0
    }

    fn draining(&self) -> std::sync::MutexGuard<'_, Option<Draining>> {
        self.shared.draining.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a daemon has while nobody serves it.
struct Left {
    states: Vec<WorkerState>,
    paused: Option<Paused>,
    /// Those of the pending, if they have been taken out.
    entries: Option<Entries>,
    /// Descriptors of the deferred_accept's and the snoop's devices.
    devices: [Option<[OwnedFd; 2]>; 2],
}

impl Prepared {
    /// As [`Daemon::prepare`], to take over from `predecessor`, which works on meanwhile.
    pub fn beside(config: &Config, predecessor: &Predecessor) -> Result<Self, Error> {
        Self::beside_as(config, Names::default(), predecessor)
    }

    /// The same with names of its own for the rules and routes, which must be those of the predecessor.
    pub fn beside_as(config: &Config, names: Names, predecessor: &Predecessor) -> Result<Self, Error> {
        Daemon::prepare_beside(config, names, Some(predecessor.inventory()))
    }

    /// Takes over listeners and connections, and goes on with them.
    ///
    /// # Errors
    /// Something cannot be had; the predecessor then goes on as if nothing had been, unless it is said that it has ended.
    pub fn take_over(self, predecessor: &Predecessor) -> Result<(Daemon, ExtraFds), Error> {
        let start = Instant::now();
        let settled = predecessor.take().map_err(Error::from).and_then(|snapshot| self.settle(snapshot));
        let settled = settled.inspect_err(|error| predecessor.abort(&error.to_string()))?;
        predecessor.commit()?;
        Ok(settled.begin(start))
    }

    /// Builds everything, and touches none of it.
    fn settle(mut self, snapshot: Snapshot) -> Result<Settled, Error> {
        let Snapshot { mut manifest, mut reader } = snapshot;
        let broken = |reason| Error::Handover(UpgradeError::Protocol { doing: "unpacking", reason });
        let pair = |places: Option<[usize; 2]>, reader: &mut SnapshotReader| {
            let take = |[one, other]: [usize; 2]| Ok([reader.descriptor(one)?, reader.descriptor(other)?]);
            places.map(take).transpose().map_err(broken)
        };
        self.only_one = Some(reader.descriptor(manifest.claim).map_err(broken)?);
        let (deferred_accept, snoop) =
            (pair(manifest.deferred_accept, &mut reader)?, pair(manifest.snoop, &mut reader)?);
        // Handshakes in the making need somebody who completes them, or in time gives them up.
        if let Some(devices) =
            deferred_accept.filter(|_| self.config.wants_faithful() || !manifest.pending.entries.is_empty())
        {
            self.devices = Some(Devices::inherited(devices, &self.names));
        }
        if let Some(devices) = snoop.filter(|_| self.config.wants_snoop()) {
            self.snoop_devices = Some(snoop::Devices::inherited(devices, &self.names));
        }
        let is_same = manifest.signature == signature(&self.config);
        let ports = PortRanges::inherited(std::mem::take(&mut manifest.ports));
        let (helpers, mut daemon) = self.assemble(ports)?;
        daemon.sight.inherit(std::mem::take(&mut manifest.counters));
        if let Some(DrainSnapshot { left_ms }) = manifest.draining {
            let until = left_ms.and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms)));
            *daemon.draining() = Some(Draining { until });
        }
        for index in 0..daemon.config.proxy.workers.get() {
            daemon.workers.push(Handle::spawn(index, &daemon.config, &daemon.shared)?);
        }
        let mut states: Vec<WorkerState> = daemon.workers.iter().map(|_| WorkerState::default()).collect();
        states.iter_mut().for_each(|state| state.from_elsewhere = true);
        // Those whose rates are explicit need somebody who tells them.
        daemon.share_out()?;
        daemon.adopt_listeners(&mut manifest, &mut reader, is_same, &mut states)?;
        let workers = states.len();
        for (number, snapshot) in std::mem::take(&mut manifest.flows).into_iter().enumerate() {
            let flow = Flow::inherited(snapshot, &daemon.legs, &daemon.shared.admission, &mut reader)
                .map_err(broken)?;
            states[number % workers].flows.push(flow);
        }
        let entries = std::mem::take(&mut manifest.pending.entries);
        let helpers = Helpers {
            syn_outcomes: std::mem::take(&mut manifest.pending.syn_outcomes),
            held: entries.len(),
            ..helpers
        };
        daemon.shared.pending.inherit(entries, &daemon.shared.admission, &mut reader).map_err(broken)?;
        let extra_fds = std::mem::take(&mut manifest.extra_fds).into_iter();
        let extra_fds = extra_fds.map(|(name, place)| Ok((name, reader.descriptor(place)?)));
        let descriptors = extra_fds.collect::<Result<_, String>>().map_err(broken)?;
        let extra_fds = ExtraFds { descriptors, memory: std::mem::take(&mut manifest.memory) };
        let spare = keep_back(daemon.only_one.as_fd())?;
        Ok(Settled { daemon, helpers, states, manifest, extra_fds, spare })
    }
}

/// A daemon that could go on at once.
struct Settled {
    daemon: Daemon,
    helpers: Helpers,
    states: Vec<WorkerState>,
    manifest: Manifest,
    extra_fds: ExtraFds,
    /// To be closed when others are needed.
    spare: Vec<OwnedFd>,
}

impl Settled {
    /// From here on there is no way back: what cannot be had is done without.
    fn begin(self, start: Instant) -> (Daemon, ExtraFds) {
        let Self { mut daemon, helpers, states, manifest, extra_fds, spare } = self;
        drop(spare);
        let flows: usize = states.iter().map(|state| state.flows.len()).sum();
        for (worker, state) in daemon.workers.iter().zip(states) {
            state.listeners.iter().for_each(renew_settings);
            worker.mailbox.send(Command::Import(state));
        }
        let standstill = start.elapsed();
        tell(daemon.start_helpers(helpers));
        daemon.intercept_on(manifest.rules, manifest.sides);
        tell(daemon.start_watchdog());
        daemon.show();
        let upgrades = daemon.sight.upgrades();
        tracing::info!(flows, ?standstill, upgrades, "went on with another process's connections");
        (daemon, extra_fds)
    }
}

/// Descriptors of anything.
fn keep_back(of: BorrowedFd<'_>) -> Result<Vec<OwnedFd>, Error> {
    let action = "keep descriptors back for what is opened last (raise ulimit -n, LimitNOFILE)";
    (0..SPARE).map(|_| of.try_clone_to_owned()).collect::<Result<_, _>>().map_err(Error::system(action))
}

/// What a listener accepts inherits its settings, and the congestion control among them is this process's copy from now on.
fn renew_settings(listener: &Listener) {
    let Listener { socket, pair, legs, .. } = listener;
    if let Err(error) = legs.get(pair.client).apply_weighted(socket.as_fd(), pair.weight) {
        tracing::error!(%error, port = pair.port, "a listener keeps the settings of the process before");
    }
}

/// For what goes wrong when there is no way back.
fn tell(outcome: Result<(), Error>) {
    if let Err(error) = outcome {
        tracing::error!("{error}: it is done without until the daemon is started anew");
    }
}

impl Daemon {
    /// Goes on with the rules and routes that are there.
    fn intercept_on(&mut self, rules: String, sides: Vec<String>) {
        let sides = sides.into_iter().filter_map(|side| Interface::try_from(side).ok()).collect();
        let (names, families) = (self.names.clone(), self.families.clone());
        let mut interception = Interception::take_over(names, families, self.tun_diverts(), rules, sides);
        // Devices that the process before did not have are there without a route.
        tell(interception.complete_tun_diverts());
        let interfaces = self.config.interfaces();
        let plan = plan(&self.config, &interfaces, &self.pairs);
        if !interception.has_rules(&plan)
            && let Err(error) = interception.replace_rules(&plan)
        {
            tracing::error!("the rules stay as they were: {error}");
        }
        self.interception = Some(Arc::new(Mutex::new(interception)));
    }

    /// Takes listeners over. Where this process would open the same ones, they serve on; where it would not, they get no more
    /// connections, and it opens others beside them.
    fn adopt_listeners(
        &mut self,
        manifest: &mut Manifest,
        reader: &mut SnapshotReader,
        is_same: bool,
        states: &mut [WorkerState],
    ) -> Result<(), Error> {
        let serving = self.ports.serving().filter(|_| is_same);
        let first = match serving {
            Some(first) => first,
            None => self.ports.free(
                self.config.proxy.port,
                self.config.path_count(),
                self.config.bundle_port(),
            )?,
        };
        self.pairs = leg_pair::leg_pairs(self.legs.satellites().len(), &self.config.weights(), first);
        let workers = states.len();
        for snapshot in std::mem::take(&mut manifest.listeners) {
            let broken = |reason| Error::Handover(UpgradeError::Protocol { doing: "unpacking", reason });
            let socket = reader.descriptor(snapshot.socket).map_err(broken)?;
            let retires = match (snapshot.retires_ms, serving) {
                (None, Some(_)) => None,
                (None, None) => Some(Instant::now() + RETIREMENT),
                (Some(ms), _) => Some(Instant::now() + Duration::from_millis(ms)),
            };
            let named = Route::named(&snapshot.legs, snapshot.weight, &self.legs);
            let pair = LegPair { port: snapshot.address.port(), ..named.pair };
            let listener = Listener { socket, pair, legs: self.legs.clone(), retires };
            states[snapshot.worker % workers].listeners.push(listener);
        }
        if serving.is_none() {
            check_ports(&self.pairs, &self.families)?;
            for state in states {
                state.listeners.extend(open_listeners(&self.pairs, &self.families, &self.legs)?);
            }
            self.ports.take(&self.pairs);
        }
        Ok(())
    }
}

fn listener_snapshot<'a>(
    listener: &'a Listener,
    worker: usize,
    writer: &mut SnapshotWriter<'a>,
) -> ListenerSnapshot {
    let Listener { socket, pair, legs, retires } = listener;
    let address =
        rustix::net::getsockname(socket).ok().and_then(|address| SocketAddr::try_from(address).ok());
    ListenerSnapshot {
        socket: writer.descriptor(socket.as_fd()),
        address: address.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], pair.port))),
        legs: Route { pair: *pair, legs: legs.clone() }.names(),
        weight: pair.weight.get(),
        worker,
        retires_ms: retires.map(milliseconds_until),
    }
}

fn milliseconds_until(at: Instant) -> u64 {
    at.saturating_duration_since(Instant::now()).as_millis() as u64
}

/// What listeners depend on. Where a program says it in other words, it opens others, which does no harm.
fn signature(config: &Config) -> String {
    let Config { legs, terrestrial, proxy, limits, .. } = config;
    let parts = (legs, terrestrial, proxy.port, proxy.workers, limits.share(), config.weights());
    format!("{} {parts:?}", env!("CARGO_PKG_VERSION"))
}
