//! The new process of an upgrade: it builds everything from the snapshot, claims the connections, and serves.
//! The conversation is in [`upgrade`](crate::upgrade).

use std::os::fd::AsFd;
use std::time::Instant;

use bentpipe_units::human;

use super::hand_over::{listener_settings, section};
use super::*;
use crate::flow::{Flow, FlowState, Route, RouteNames};
use crate::intercept::InForce;
use crate::snapshot::{Fd, Snapshot};
use crate::upgrade::{ExtraFds, Predecessor};
use crate::worker::{RETIREMENT, WorkerState};

/// Descriptors that are kept back for what is opened when there is no way back: by the services, and for
/// programs.
const SPARE: usize = 24;

/// A daemon that could serve at once, and does nothing before its [claim](Candidate::claim). Dropped, it
/// leaves everything to the old process.
pub struct Candidate {
    /// When it asked for the snapshot.
    start: Instant,
    daemon: Daemon,
    workers: Vec<WorkerState>,
    rules: InForce,
    extra_fds: ExtraFds,
    /// To be closed when others are needed.
    spare: Vec<OwnedFd>,
}

impl Prepared {
    /// As [`Daemon::prepare`], to take over from `predecessor`, which serves meanwhile.
    pub fn beside(config: &Config, predecessor: &Predecessor) -> Result<Self, Error> {
        Daemon::prepare_with(config, Some(predecessor))
    }

    /// Freezes the predecessor, and builds everything from its snapshot.
    ///
    /// # Errors
    /// Something that is needed cannot be had. The predecessor resumes.
    pub fn build_from(self, predecessor: &Predecessor) -> Result<Candidate, Error> {
        let start = Instant::now();
        let snapshot = predecessor.take().map_err(Error::from);
        let candidate = snapshot.and_then(|snapshot| self.build(snapshot, start, predecessor));
        candidate.inspect_err(|error| predecessor.abort(&error.to_string()))
    }

    /// Builds everything, and uses none of it.
    fn build(
        self,
        mut snapshot: Snapshot,
        start: Instant,
        predecessor: &Predecessor,
    ) -> Result<Candidate, Error> {
        let (Self(mut daemon), snapshot) = (self, &mut snapshot);
        daemon.claim = snapshot.read(section::CLAIM).map_err(Error::snapshot)?;
        daemon.ports = snapshot.read(section::PORTS).map_err(Error::snapshot)?;
        daemon.stats.inherit(snapshot.read(section::COUNTERS).map_err(Error::snapshot)?);
        *daemon.draining() = snapshot.read(section::DRAINING).map_err(Error::snapshot)?;
        let bypass = snapshot.read(section::BYPASS).map_err(Error::snapshot)?;
        daemon.context.shared.bypass.store(bypass, Ordering::Release);
        predecessor.note_progress();
        daemon.spawn_workers()?;
        predecessor.note_progress();
        resume(&mut daemon.services, snapshot, &daemon.context)?;
        predecessor.note_progress();
        let empty = || WorkerState { from_elsewhere: true, ..WorkerState::default() };
        let mut workers: Vec<WorkerState> = daemon.workers.iter().map(|_| empty()).collect();
        daemon.take_listeners(snapshot, &mut workers)?;
        predecessor.note_progress();
        daemon.take_flows(snapshot, &mut workers, predecessor)?;
        let rules = snapshot.read(section::RULES).map_err(Error::snapshot)?;
        let extra_fds = take_extra_fds(snapshot)?;
        snapshot.check_all_read().map_err(Error::snapshot)?;
        let spare = keep_back(daemon.claim.as_ref())?;
        Ok(Candidate { start, daemon, workers, rules, extra_fds, spare })
    }
}

impl Candidate {
    /// Claims listeners and connections, and serves them.
    ///
    /// # Errors
    /// The predecessor has taken them back. Nothing of them has been touched.
    pub fn claim(self, predecessor: &Predecessor) -> Result<(Daemon, ExtraFds), Error> {
        predecessor.claim()?;
        let served = self.serve();
        predecessor.wait_for_farewell();
        Ok(served)
    }

    /// From here on there is no way back: the daemon works without anything that fails.
    fn serve(self) -> (Daemon, ExtraFds) {
        let Self { start, mut daemon, workers, rules, extra_fds, spare } = self;
        drop(spare);
        let flows: usize = workers.iter().map(|state| state.flows.len()).sum();
        for (worker, state) in daemon.workers.iter().zip(workers) {
            state.listeners.iter().for_each(renew_settings);
            worker.send(Command::Import(state));
        }
        let pause = human::seconds(start.elapsed().as_secs_f64());
        daemon.start_services().for_each(warn_of);
        daemon.take_interception(rules);
        daemon.unpause_services().for_each(warn_of);
        daemon.publish();
        let upgrades = daemon.stats.upgrades();
        let connections = human::count(flows, "connection");
        tracing::info!(
            upgrades,
            "upgrade: took over {connections} from the old process, after a pause of {pause}"
        );
        (daemon, extra_fds)
    }
}

impl Daemon {
    /// Takes listeners over. Those that this process would open in the same way go on; the others get no more
    /// connections, and this process opens its own beside them.
    fn take_listeners(&mut self, snapshot: &mut Snapshot, workers: &mut [WorkerState]) -> Result<(), Error> {
        let settings: String = snapshot.read(section::LISTENER_SETTINGS).map_err(Error::snapshot)?;
        let Context { config, legs, .. } = &self.context;
        let serving = self.ports.serving().filter(|_| settings == listener_settings(config));
        let pairs = match serving {
            Some(first) => leg_pair::leg_pairs(config.legs.len(), &config.weights(), first),
            None => free_leg_pairs(config, &self.ports)?,
        };
        let listeners: Vec<(usize, Listener<RouteNames>)> =
            snapshot.read(section::LISTENERS).map_err(Error::snapshot)?;
        for (worker, Listener { socket, route, retires }) in listeners {
            let replaced = serving.is_none().then(|| Instant::now() + RETIREMENT);
            let listener = Listener { socket, route: route.resolve(legs), retires: retires.or(replaced) };
            workers[worker % self.workers.len()].listeners.push(listener);
        }
        if serving.is_none() {
            check_ports(&pairs, &self.families)?;
            for state in workers {
                state.listeners.extend(open_listeners(&pairs, &self.families, legs, config.proxy.mark)?);
            }
            self.ports.take(&pairs);
        }
        self.context.pairs = pairs;
        Ok(())
    }

    /// Distributes the flows over the workers.
    fn take_flows(
        &self,
        snapshot: &mut Snapshot,
        workers: &mut [WorkerState],
        predecessor: &Predecessor,
    ) -> Result<(), Error> {
        let Context { legs, shared, .. } = &self.context;
        let flows: Vec<(RouteNames, FlowState)> = snapshot.read(section::FLOWS).map_err(Error::snapshot)?;
        for (number, (route, state)) in flows.into_iter().enumerate() {
            let flow = Flow::resume(&route, state, legs, &shared.admission);
            workers[number % self.workers.len()].flows.push(flow);
            predecessor.note_progress();
        }
        Ok(())
    }

    /// Continues with the rules and routes that are in place.
    fn take_interception(&mut self, rules: InForce) {
        let (config, families) = (&self.context.config, self.families.clone());
        let (mark, counters) = (config.proxy.mark, self.context.shared.policy_counters.clone());
        let mut interception = Interception::take_over(families, self.tun_diverts(), mark, counters, rules);
        // Devices that the predecessor did not have are there without a route.
        warn_of(interception.complete_tun_diverts());
        let interfaces = config.interfaces();
        let replaced = self.ports.all_but(&self.context.pairs);
        let protected = config.protected_interfaces();
        let plan = plan(config, &interfaces, &self.context.pairs, &replaced, &protected);
        if interception.has_rules(&plan) {
            interception.expect_tracking(&plan);
        } else if let Err(error) = interception.replace_rules(&plan, !self.context.shared.passes_by_order()) {
            tracing::error!("the rules stay as they were: {error}");
        }
        self.set_interception(interception);
    }
}

fn take_extra_fds(snapshot: &mut Snapshot) -> Result<ExtraFds, Error> {
    let (descriptors, memory): (Vec<(String, Fd)>, _) =
        snapshot.read(section::PROGRAM).map_err(Error::snapshot)?;
    let owned = descriptors.into_iter().map(|(name, descriptor)| Ok((name, descriptor.into_owned()?)));
    let descriptors = owned.collect::<std::io::Result<_>>();
    let descriptors = descriptors.map_err(Error::system("take over the program's descriptors"))?;
    Ok(ExtraFds { descriptors, memory })
}

/// Lets each service take its section of the snapshot. A service without one starts anew.
fn resume(
    services: &mut [Box<dyn Service>],
    snapshot: &mut Snapshot,
    context: &Context,
) -> Result<(), Error> {
    services.iter_mut().try_for_each(|service| service.resume(snapshot.remove(service.name()), context))
}

/// Duplicates of any descriptor.
fn keep_back(of: Option<&Fd>) -> Result<Vec<OwnedFd>, Error> {
    let action = "keep descriptors back for what is opened last (raise ulimit -n, LimitNOFILE)";
    let duplicates = of.into_iter().flat_map(|fd| (0..SPARE).map(|_| fd.as_fd().try_clone_to_owned()));
    duplicates.collect::<Result<_, _>>().map_err(Error::system(action))
}

/// Sockets that a listener accepts inherit its settings, which from now on include this process's copy of the
/// congestion control.
fn renew_settings(listener: &Listener) {
    let Listener { socket, route: Route { pair, legs }, .. } = listener;
    if let Err(error) = legs.get(pair.client).apply_weighted(socket.as_fd(), pair.weight) {
        tracing::error!(%error, port = pair.port, "a listener keeps the settings of the old process");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Section;

    /// A service that notes what it is given.
    #[derive(Debug)]
    struct Noting(&'static str, Arc<Mutex<Vec<Option<u32>>>>);

    impl Service for Noting {
        fn name(&self) -> &'static str {
            self.0
        }

        fn resume(&mut self, section: Option<Section>, _context: &Context) -> Result<(), Error> {
            self.1.lock().unwrap().push(section.map(|section| section.read().unwrap()));
            Ok(())
        }

        fn start(&mut self, _context: &Context) -> Result<(), Error> {
            Ok(())
        }
    }

    fn context() -> Context {
        let leg = "[legs.geo]\ninterface = \"sat0\"\ncongestion = \"reno\"\n";
        let config = Config::parse("x", leg).unwrap();
        Context {
            legs: Arc::new(config.prepare_legs()),
            pairs: Vec::new(),
            shared: Arc::new(Shared::new(budget::admission_limits(&config)).unwrap()),
            pending: Arc::new(PendingTable::new().unwrap()),
            config,
            workers: Vec::new(),
            heartbeats: Vec::new(),
            interception: None,
        }
    }

    #[test]
    fn a_service_that_the_predecessor_does_not_have_starts_anew() {
        let (mut snapshot, given) = (Snapshot::default(), Arc::default());
        snapshot.write("old", &7).unwrap();
        let service = |name| Box::new(Noting(name, Arc::clone(&given))) as Box<dyn Service>;
        resume(&mut [service("new"), service("old")], &mut snapshot, &context()).unwrap();
        assert_eq!(*given.lock().unwrap(), [None, Some(7)]);
        snapshot.check_all_read().unwrap();
    }

    #[test]
    fn the_state_of_a_service_that_this_program_does_not_have_is_refused() {
        let (mut snapshot, given) = (Snapshot::default(), Arc::default());
        snapshot.write("old", &7).unwrap();
        snapshot.write("unheard_of", &8).unwrap();
        resume(&mut [Box::new(Noting("old", given))], &mut snapshot, &context()).unwrap();
        let error = Error::snapshot(snapshot.check_all_read().unwrap_err()).to_string();
        assert!(error.contains("unheard_of") && error.contains("restart the daemon"), "{error}");
    }
}
