//! From process to process: what a daemon leaves, and how the next one goes on with it. [`handover`](crate::handover) has the
//! conversation.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::*;
use crate::flow::{Flow, Way};
use crate::greeter::{Entries, Greeting};
use crate::handover::{
    Belongings, BookDeed, DrainingDeed, Estate, HandoverError, Heir, Inventory, ListenerDeed, Packer,
    Predecessor, Unpacker, Will,
};
use crate::worker::{Household, RETIREMENT};

/// How long workers are waited for that are to give everything away. The heir waits longer.
const PARTING: Duration = Duration::from_secs(1);
/// Descriptors that are kept back for what is opened when there is no way back: by the threads beside the workers, and for programs.
const SPARE: usize = 24;

impl Daemon {
    /// What a successor is told before it prepares. `belongings` are the names of what will go with it.
    pub fn inventory(&self, belongings: Vec<String>) -> Inventory {
        let [greeter, snooper] = [self.greeter_devices.strong_count(), self.snooper_devices.strong_count()];
        Inventory::new(greeter > 0, snooper > 0, belongings)
    }

    /// Hands listeners and connections over to `heir`, which does not notice them standing still for more than a few milliseconds. `last` is called
    /// with the heir's process before it gets the last word. Afterwards this process has nothing to do any more, and undoes nothing.
    ///
    /// # Errors
    /// The heir cannot go on with it, has gone or says nothing: everything goes on here as if nothing had been.
    pub fn hand_over(
        mut self,
        heir: &Heir,
        belongings: &[(String, BorrowedFd<'_>)],
        memory: serde_json::Value,
        last: impl FnOnce(i32),
    ) -> Result<(), (Box<Self>, HandoverError)> {
        if !heir.is_there() {
            let reason = "it has gone before it was its turn".to_owned();
            return Err((Box::new(self), HandoverError::Refused { reason }));
        }
        // It would set up again what the heir replaces. The rules stay in force without it for longer than this takes.
        drop(self.watch.take());
        let start = Instant::now();
        match self.try_to_hand_over(heir, belongings, memory, last) {
            Ok(flows) => {
                if let Some(interception) = &self.interception {
                    interception.lock().unwrap_or_else(PoisonError::into_inner).leave();
                }
                tracing::info!(flows, took = ?start.elapsed(), heir = heir.pid(), "another process goes on with everything");
                Ok(())
            }
            Err(failure) => {
                let (left, error) = *failure;
                heir.refuse(&error.to_string());
                self.resume(left);
                if let Err(error) = self.start_watch() {
                    tracing::error!("{error}: new connections pass unsplit until the daemon is started anew");
                }
                Err((Box::new(self), error))
            }
        }
    }

    /// How many flows have gone, or what is left to go on with.
    fn try_to_hand_over(
        &mut self,
        heir: &Heir,
        belongings: &[(String, BorrowedFd<'_>)],
        memory: serde_json::Value,
        last: impl FnOnce(i32),
    ) -> Result<usize, Box<(Left, HandoverError)>> {
        let greeting = self.greeter.as_mut().and_then(Greeter::pause);
        let households = match self.part() {
            Ok(households) => households,
            Err((households, reason)) => {
                let left = Left { households, greeting, entries: None, devices: [None, None] };
                return Err(Box::new((left, HandoverError::Refused { reason })));
            }
        };
        let (devices, kept) = match self.devices() {
            Ok(devices) => (devices, Ok(())),
            Err(error) => {
                let reason = format!("its devices cannot be handed on: {error}");
                ([None, None], Err(HandoverError::Refused { reason }))
            }
        };
        let left = Left { households, greeting, entries: Some(self.shared.book.leave()), devices };
        let outcome = kept
            .and_then(|()| self.pack(&left, belongings, memory))
            .and_then(|(content, descriptors)| heir.hand_over(&content, &descriptors))
            .and_then(|()| {
                last(heir.pid());
                heir.commit()
            });
        match outcome {
            Ok(()) => Ok(left.households.iter().map(|household| household.flows.len()).sum()),
            Err(error) => Err(Box::new((left, error))),
        }
    }

    /// Other descriptors of the greeter's and the snooper's devices, where these are there.
    fn devices(&self) -> std::io::Result<[Option<[OwnedFd; 2]>; 2]> {
        let greeter = self.greeter_devices.upgrade().map(|devices| devices.descriptors()).transpose()?;
        let snooper = self.snooper_devices.upgrade().map(|devices| devices.descriptors()).transpose()?;
        Ok([greeter, snooper])
    }

    /// Stops the workers and gets what they have. Where one does not answer in time, what the others have given before it; it and
    /// those behind it go on.
    fn part(&mut self) -> Result<Vec<Household>, (Vec<Household>, String)> {
        // Nothing waits between giver and taker, where it would be lost if we stopped waiting.
        let ask = |worker: &Handle| {
            let (sender, receiver) = mpsc::sync_channel(0);
            worker.mailbox.send(Order::Part(sender));
            receiver
        };
        let asked: Vec<_> = self.workers.iter().map(ask).collect();
        let until = Instant::now() + PARTING;
        let mut households = Vec::with_capacity(asked.len());
        for (index, answer) in asked.into_iter().enumerate() {
            match answer.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(household) => households.push(household),
                Err(_) => return Err((households, format!("worker {index} does not answer"))),
            }
            self.workers[index].join();
        }
        Ok(households)
    }

    /// Goes on as if nothing had been.
    fn resume(&mut self, left: Left) {
        let Left { households, greeting, entries, .. } = left;
        if let Some(entries) = entries {
            self.shared.book.put_back(entries);
        }
        if let (Some(greeter), Some(greeting)) = (&mut self.greeter, greeting) {
            tell(greeter.resume(greeting));
        }
        for (index, household) in households.into_iter().enumerate() {
            let worker = &mut self.workers[index];
            match worker.respawn(index, &self.config, &self.shared) {
                Ok(()) => worker.mailbox.send(Order::Adopt(household)),
                Err(error) => tracing::error!("{error}: {} connections are reset", household.flows.len()),
            }
        }
    }

    /// Everything as bytes and descriptors.
    fn pack<'a>(
        &'a self,
        left: &'a Left,
        belongings: &[(String, BorrowedFd<'a>)],
        memory: serde_json::Value,
    ) -> Result<([Vec<u8>; 2], Vec<BorrowedFd<'a>>), HandoverError> {
        let mut packer = Packer::default();
        let claim = packer.descriptor(self.only_one.as_fd());
        let mut pair = |devices: &'a Option<[OwnedFd; 2]>| {
            devices.as_ref().map(|[one, other]| [one, other].map(|device| packer.descriptor(device.as_fd())))
        };
        let [greeter, snooper] = [&left.devices[0], &left.devices[1]].map(&mut pair);
        let belongings = belongings
            .iter()
            .map(|(name, descriptor)| (name.clone(), packer.descriptor(*descriptor)))
            .collect();
        let mut listeners = Vec::new();
        let Left { households, greeting, entries, .. } = left;
        let fates = greeting.as_ref().map(Greeting::fates).unwrap_or_default();
        let entries = entries.as_ref().map(|entries| entries.deeds(&mut packer)).unwrap_or_default();
        let book = BookDeed { entries, fates };
        for (worker, household) in households.iter().enumerate() {
            listeners.extend(
                household.listeners.iter().map(|listener| listener_deed(listener, worker, &mut packer)),
            );
        }
        let flows = households.iter().flat_map(|household| &household.flows);
        let flows = flows.map(|flow| flow.deed(&mut packer)).collect();
        let (rules, sides) = self.rules();
        let will = Will {
            claim,
            greeter,
            snooper,
            signature: signature(&self.config),
            listeners,
            ports: self.ports.deeds(),
            flows,
            book,
            draining: self.draining().map(|until| DrainingDeed { left_ms: until.map(milliseconds_until) }),
            rules,
            sides,
            bequest: self.sight.bequeath(),
            belongings,
            memory,
        };
        packer.seal(&will).map_err(|error| HandoverError::Refused { reason: error.to_string() })
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
        *self.draining() = Some(until);
        self.shared.gate.wake();
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
        let Some(until) = *self.draining() else { return false };
        // By the gate, which knows those at once that have just been taken over.
        until.is_some_and(|until| until <= Instant::now()) || self.shared.gate.open() == 0
    }

    fn draining(&self) -> std::sync::MutexGuard<'_, Option<Option<Instant>>> {
        self.shared.draining.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a daemon has while nobody serves it.
struct Left {
    households: Vec<Household>,
    greeting: Option<Greeting>,
    /// Those of the book, if they have been taken out.
    entries: Option<Entries>,
    /// Descriptors of the greeter's and the snooper's devices.
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
    pub fn take_over(self, predecessor: &Predecessor) -> Result<(Daemon, Belongings), Error> {
        let start = Instant::now();
        let settled = predecessor.take().map_err(Error::from).and_then(|estate| self.settle(estate));
        let settled = settled.inspect_err(|error| predecessor.give_up(&error.to_string()))?;
        predecessor.commit()?;
        Ok(settled.begin(start))
    }

    /// Builds everything, and touches none of it.
    fn settle(mut self, estate: Estate) -> Result<Settled, Error> {
        let Estate { mut will, mut unpacker } = estate;
        let broken = |reason| Error::Handover(HandoverError::Garbled { doing: "unpacking", reason });
        let pair = |places: Option<[usize; 2]>, unpacker: &mut Unpacker| {
            let take =
                |[one, other]: [usize; 2]| Ok([unpacker.descriptor(one)?, unpacker.descriptor(other)?]);
            places.map(take).transpose().map_err(broken)
        };
        self.only_one = Some(unpacker.descriptor(will.claim).map_err(broken)?);
        let (greeter, snooper) = (pair(will.greeter, &mut unpacker)?, pair(will.snooper, &mut unpacker)?);
        // Handshakes in the making need somebody who completes them, or in time gives them up.
        if let Some(devices) =
            greeter.filter(|_| self.config.wants_faithful() || !will.book.entries.is_empty())
        {
            self.devices = Some(Devices::inherited(devices, &self.names));
        }
        if let Some(devices) = snooper.filter(|_| self.config.wants_snoop()) {
            self.snoop_devices = Some(snooper::Devices::inherited(devices, &self.names));
        }
        let is_same = will.signature == signature(&self.config);
        let ports = PortRanges::inherited(std::mem::take(&mut will.ports));
        let (helpers, mut daemon) = self.assemble(ports)?;
        daemon.sight.inherit(std::mem::take(&mut will.bequest));
        if let Some(DrainingDeed { left_ms }) = will.draining {
            let until = left_ms.and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms)));
            *daemon.draining() = Some(until);
        }
        for index in 0..daemon.config.proxy.workers.get() {
            daemon.workers.push(Handle::spawn(index, &daemon.config, &daemon.shared)?);
        }
        let mut households: Vec<Household> = daemon.workers.iter().map(|_| Household::default()).collect();
        households.iter_mut().for_each(|household| household.from_elsewhere = true);
        // Those whose rates are explicit need somebody who tells them.
        daemon.share_out()?;
        daemon.adopt_listeners(&mut will, &mut unpacker, is_same, &mut households)?;
        let workers = households.len();
        for (number, deed) in std::mem::take(&mut will.flows).into_iter().enumerate() {
            let flow =
                Flow::inherited(deed, &daemon.legs, &daemon.shared.gate, &mut unpacker).map_err(broken)?;
            households[number % workers].flows.push(flow);
        }
        let entries = std::mem::take(&mut will.book.entries);
        let helpers = Helpers { fates: std::mem::take(&mut will.book.fates), held: entries.len(), ..helpers };
        daemon.shared.book.inherit(entries, &daemon.shared.gate, &mut unpacker).map_err(broken)?;
        let belongings = std::mem::take(&mut will.belongings).into_iter();
        let belongings = belongings.map(|(name, place)| Ok((name, unpacker.descriptor(place)?)));
        let descriptors = belongings.collect::<Result<_, String>>().map_err(broken)?;
        let belongings = Belongings { descriptors, memory: std::mem::take(&mut will.memory) };
        let spare = keep_back(daemon.only_one.as_fd())?;
        Ok(Settled { daemon, helpers, households, will, belongings, spare })
    }
}

/// A daemon that could go on at once.
struct Settled {
    daemon: Daemon,
    helpers: Helpers,
    households: Vec<Household>,
    will: Will,
    belongings: Belongings,
    /// To be closed when others are needed.
    spare: Vec<OwnedFd>,
}

impl Settled {
    /// From here on there is no way back: what cannot be had is done without.
    fn begin(self, start: Instant) -> (Daemon, Belongings) {
        let Self { mut daemon, helpers, households, will, belongings, spare } = self;
        drop(spare);
        let flows: usize = households.iter().map(|household| household.flows.len()).sum();
        for (worker, household) in daemon.workers.iter().zip(households) {
            household.listeners.iter().for_each(renew_settings);
            worker.mailbox.send(Order::Adopt(household));
        }
        let standstill = start.elapsed();
        tell(daemon.start_helpers(helpers));
        daemon.intercept_on(will.rules, will.sides);
        tell(daemon.start_watch());
        daemon.show();
        let upgrades = daemon.sight.upgrades();
        tracing::info!(flows, ?standstill, upgrades, "went on with another process's connections");
        (daemon, belongings)
    }
}

/// Descriptors of anything.
fn keep_back(of: BorrowedFd<'_>) -> Result<Vec<OwnedFd>, Error> {
    let action = "keep descriptors back for what is opened last (raise ulimit -n, LimitNOFILE)";
    (0..SPARE).map(|_| of.try_clone_to_owned()).collect::<Result<_, _>>().map_err(Error::system(action))
}

/// What a listener accepts inherits its settings, and the congestion control among them is this process's copy from now on.
fn renew_settings(listener: &Listener) {
    let Listener { socket, path, legs, .. } = listener;
    if let Err(error) = legs.get(path.client).apply_weighted(socket.as_fd(), path.weight) {
        tracing::error!(%error, port = path.port, "a listener keeps the settings of the process before");
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
        let mut interception = Interception::take_over(names, families, self.detours(), rules, sides);
        // Devices that the process before did not have are there without a route.
        tell(interception.complete_detours());
        let interfaces = path::interfaces(&self.config);
        let plan = plan(&self.config, &interfaces, &self.paths);
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
        will: &mut Will,
        unpacker: &mut Unpacker,
        is_same: bool,
        households: &mut [Household],
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
        self.paths = path::paths(self.legs.satellites().len(), &self.config.weights(), first);
        let workers = households.len();
        for deed in std::mem::take(&mut will.listeners) {
            let broken = |reason| Error::Handover(HandoverError::Garbled { doing: "unpacking", reason });
            let socket = unpacker.descriptor(deed.socket).map_err(broken)?;
            let retires = match (deed.retires_ms, serving) {
                (None, Some(_)) => None,
                (None, None) => Some(Instant::now() + RETIREMENT),
                (Some(ms), _) => Some(Instant::now() + Duration::from_millis(ms)),
            };
            let named = Way::named(&deed.legs, deed.weight, &self.legs);
            let path = Path { port: deed.address.port(), ..named.path };
            let listener = Listener { socket, path, legs: self.legs.clone(), retires };
            households[deed.worker % workers].listeners.push(listener);
        }
        if serving.is_none() {
            check_ports(&self.paths, &self.families)?;
            for household in households {
                household.listeners.extend(open_listeners(&self.paths, &self.families, &self.legs)?);
            }
            self.ports.take(&self.paths);
        }
        Ok(())
    }
}

fn listener_deed<'a>(listener: &'a Listener, worker: usize, packer: &mut Packer<'a>) -> ListenerDeed {
    let Listener { socket, path, legs, retires } = listener;
    let address =
        rustix::net::getsockname(socket).ok().and_then(|address| SocketAddr::try_from(address).ok());
    ListenerDeed {
        socket: packer.descriptor(socket.as_fd()),
        address: address.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], path.port))),
        legs: Way { path: *path, legs: legs.clone() }.names(),
        weight: path.weight.get(),
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
