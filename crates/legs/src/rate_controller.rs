//! The controller of explicit rates: a thread that allocates the rate of each leg to its connections.
//!
//! ```text
//! RatedLeg ──► flows ──► RateAllocator of the leg ──► rates ──► RatedLeg
//! its interface ──► bytes beside them ──┘        └──► what may leave beside them ──► its interface
//! ```
//!
//! With eBPF, flows and rates are in memory that the kernel and this process share; without, they are socket
//! options ([`RatedLeg`](bentpipe_kernel::rated_leg::RatedLeg)). The simulator runs the same
//! [`RateAllocator`](bentpipe_link::explicit::RateAllocator).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bentpipe_kernel::cross_traffic::CrossTrafficCounter;
use bentpipe_kernel::explicit::Flow;
use bentpipe_link::explicit::{IdMap, LinkEstimate, Memory, RateAllocator, Report};
use bentpipe_units::{Rate, Time};
use rustix::time::{ClockId, clock_gettime};

use crate::legs::{ControlledLeg, Legs};
use crate::senders::Senders;

/// The interval between two allocations: at 10 Mbit/s, a connection that starts in between sends at most 25
/// kB too much.
const TICK: Duration = Duration::from_millis(20);
/// The interval while there is no connection.
const IDLE_TICK: Duration = Duration::from_millis(100);
/// How often interfaces that have come, or come back as others, are looked for.
const LOOK: Duration = Duration::from_millis(500);
/// The longer an allocation takes, the longer is the interval: without eBPF each connection costs system
/// calls, which have a fifth of the time at most.
const PAUSE: u32 = 4;

/// The running controller; it stops when it is dropped. Connections then keep their last rates.
#[derive(Debug)]
pub struct RateController {
    thread: Option<JoinHandle<()>>,
    waker: Waker,
}

/// The latest estimate of each leg, by name, for other threads to read, and what a controller begins with.
/// After the controller has stopped it keeps the last ones.
#[derive(Debug, Clone, Default)]
pub struct LinkEstimates(Arc<Mutex<Estimates>>);

#[derive(Debug, Default)]
struct Estimates {
    latest: Vec<(String, LinkEstimate)>,
    remembered: HashMap<String, (Rate, Memory)>,
}

/// Why the controller could not start.
#[derive(Debug, thiserror::Error)]
#[error("cannot start the controller of explicit rates: {source}; raise the limit of threads (ulimit -u)")]
pub struct RateControllerError {
    /// The system's error.
    source: std::io::Error,
}

/// Checks that the controller's thread is alive.
#[derive(Debug, Clone)]
pub struct Waker {
    commands: Sender<Command>,
    acks: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Command {
    Ping,
    Replace(Vec<ControlledLeg>),
    /// Acknowledged once no socket is touched any more.
    Pause(Sender<()>),
    Resume,
    Stop,
}

#[derive(Debug)]
struct Controller {
    commands: Receiver<Command>,
    acks: Arc<AtomicU64>,
    estimates: LinkEstimates,
    senders: Senders,
    legs: Vec<LegState>,
    paused: bool,
}

#[derive(Debug)]
struct LegState {
    controlled: ControlledLeg,
    allocator: RateAllocator,
    reports: Vec<Report>,
    slots: IdMap<usize>,
    cross_traffic: CrossTrafficCounter,
    /// What has left of each flow of it.
    cross_flows: Vec<u64>,
    /// When its interface is looked for again, and whether it was found but could not be counted.
    next_look: Time,
    refuses: bool,
}

impl Legs {
    /// Starts a controller for the legs with explicit rates, which gives `senders` rates beside the connections;
    /// `None` if there are none. Keep it while sockets use these legs: without it, a connection sends at most
    /// ten segments per round trip.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn share(&self, senders: Senders) -> Result<Option<RateController>, RateControllerError> {
        let is_controlled = self.satellites().any(|leg| leg.rated().is_some());
        is_controlled.then(|| RateController::start(self, LinkEstimates::default(), senders)).transpose()
    }
}

impl RateController {
    /// Starts to allocate the rates of those legs that have explicit rates. There may be none yet:
    /// [`replace`](Self::replace) may add some. What the links are found to carry appears in `estimates`;
    /// `senders` have rates beside the connections.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn start(
        legs: &Legs,
        estimates: LinkEstimates,
        senders: Senders,
    ) -> Result<Self, RateControllerError> {
        let (sender, commands) = mpsc::channel();
        let acks = Arc::<AtomicU64>::default();
        let mut controller =
            Controller { commands, acks: acks.clone(), estimates, senders, legs: Vec::new(), paused: false };
        // Before the first connection: without a rate it would send at most ten segments.
        controller.replace(legs.controlled());
        let thread = std::thread::Builder::new()
            .name("bentpipe-rates".into())
            .spawn(move || controller.run())
            .map_err(|source| RateControllerError { source })?;
        Ok(Self { thread: Some(thread), waker: Waker { commands: sender, acks } })
    }

    /// Controls these legs from now on. A leg that was there before keeps its estimate.
    pub fn replace(&self, legs: &Legs) {
        self.waker.send(Command::Replace(legs.controlled()));
    }

    /// Sets no rate from the return of this call on: connections keep theirs, and new ones the initial rate.
    pub fn pause(&self) {
        let (sender, paused) = mpsc::channel();
        self.waker.send(Command::Pause(sender));
        // An error says that the thread has ended, and sets no rate either.
        let _ = paused.recv();
    }

    /// Goes on after a pause.
    pub fn resume(&self) {
        self.waker.send(Command::Resume);
    }

    /// A handle to check that the controller is alive.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }
}

impl LinkEstimates {
    /// The estimates of the last allocation.
    pub fn get(&self) -> Vec<(String, LinkEstimate)> {
        self.lock().latest.clone()
    }

    /// The capacities that were measured, by the legs' names: for a controller of another process, or of
    /// another day, to [`remember`](Self::remember).
    pub fn capacities(&self) -> Vec<(String, Rate)> {
        let measured = |(name, estimate): &(String, LinkEstimate)| {
            let rate = Rate::from_bps((8.0 * estimate.capacity) as u64)?;
            estimate.is_measured.then(|| (name.clone(), rate))
        };
        self.lock().latest.iter().filter_map(measured).collect()
    }

    /// What legs of these names begin with in a controller that starts later, if their rates are not
    /// configured.
    pub fn remember(&self, capacities: impl IntoIterator<Item = (String, Rate)>, memory: Memory) {
        let capacities = capacities.into_iter().map(|(leg, rate)| (leg, (rate, memory)));
        self.lock().remembered.extend(capacities);
    }

    fn lock(&self) -> MutexGuard<'_, Estimates> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waker {
    /// Asks for an acknowledgement.
    pub fn ping(&self) {
        self.send(Command::Ping);
    }

    /// How many pings the controller has acknowledged.
    pub fn acks(&self) -> u64 {
        self.acks.load(Ordering::Acquire)
    }

    fn send(&self, command: Command) {
        // Fails only when the thread has ended, and then there is no acknowledgement either.
        let _ = self.commands.send(command);
    }
}

impl Drop for RateController {
    fn drop(&mut self) {
        self.waker.send(Command::Stop);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the controller of explicit rates panicked");
        }
    }
}

impl Controller {
    fn run(mut self) {
        loop {
            let before = monotonic();
            let busy = !self.paused && self.tick();
            let soon = self.legs.iter().filter_map(|state| state.allocator.interval()).min();
            let interval = match busy {
                true => soon.unwrap_or(TICK).max(PAUSE * (monotonic() - before)),
                false => IDLE_TICK,
            };
            match self.commands.recv_timeout(interval) {
                Ok(Command::Ping) => drop(self.acks.fetch_add(1, Ordering::Release)),
                Ok(Command::Replace(legs)) => self.replace(legs),
                Ok(Command::Pause(paused)) => {
                    self.paused = true;
                    // The one that waits may have ended.
                    let _ = paused.send(());
                }
                Ok(Command::Resume) => self.paused = false,
                Ok(Command::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn replace(&mut self, legs: Vec<ControlledLeg>) {
        let mut before = std::mem::take(&mut self.legs);
        for controlled in legs {
            let is_same = |state: &LegState| state.controlled.leg.is_same(&controlled.leg);
            let mut state = match before.iter().position(is_same) {
                Some(index) => before.swap_remove(index),
                None => LegState::new(controlled.clone(), &self.estimates),
            };
            state.allocator.reconfigure(controlled.config);
            if state.cross_traffic.interface() != controlled.interface {
                state.cross_traffic = CrossTrafficCounter::new(&controlled.leg, &controlled.interface);
            }
            state.controlled = controlled;
            state.announce(&self.senders);
            self.legs.push(state);
        }
        // Connections of a leg that is no longer configured live on, and need rates.
        before.retain(|state| !state.reports.is_empty());
        self.legs.append(&mut before);
    }

    /// Allocates rates once; true if there is any connection.
    fn tick(&mut self) -> bool {
        let now = monotonic();
        for state in &mut self.legs {
            state.tick(now, &self.senders);
        }
        let estimate =
            |state: &LegState| (state.controlled.leg.name().to_owned(), state.allocator.estimate());
        self.estimates.lock().latest = self.legs.iter().map(estimate).collect();
        self.legs.iter().any(|state| !state.reports.is_empty())
    }
}

impl LegState {
    fn new(controlled: ControlledLeg, estimates: &LinkEstimates) -> Self {
        let mut allocator = RateAllocator::new(controlled.config);
        if let Some((rate, memory)) = estimates.lock().remembered.remove(controlled.leg.name()) {
            allocator.remember(rate.bps() as f64 / 8.0, memory);
        }
        let cross_traffic = CrossTrafficCounter::new(&controlled.leg, &controlled.interface);
        Self {
            controlled,
            allocator,
            reports: Vec::new(),
            slots: IdMap::default(),
            cross_traffic,
            cross_flows: Vec::new(),
            next_look: Time::ZERO,
            refuses: false,
        }
    }

    fn tick(&mut self, now: Time, senders: &Senders) {
        self.count_cross_traffic(now);
        let leg = &self.controlled.leg;
        self.reports.clear();
        self.slots.clear();
        for flow in leg.flows() {
            self.reports.push(report(&flow));
            self.slots.insert(flow.owner, flow.slot);
        }
        senders.report(leg.name(), &mut self.reports);
        let set_rate = |owner, rate| match self.slots.get(&owner) {
            Some(slot) => leg.set_rate(*slot, rate as u64),
            None => senders.set_rate(owner, rate as u64),
        };
        self.allocator.tick(now, &self.reports, set_rate);
        self.announce(senders);
        self.limit_cross_traffic(now);
    }

    /// Tells the egress what may leave beside the connections, until the next tick.
    fn limit_cross_traffic(&mut self, now: Time) {
        if self.cross_traffic.read_flows(&mut self.cross_flows) {
            self.allocator.count_flows(now, &self.cross_flows);
            self.allocator.count_signalled(self.cross_traffic.signalled());
            self.cross_traffic.limit(now, self.allocator.cross_traffic_limit().as_ref());
        }
    }

    fn count_cross_traffic(&mut self, now: Time) {
        if now >= self.next_look {
            self.next_look = now + LOOK;
            let followed = self.cross_traffic.follow();
            if let Err(error) = &followed
                && !self.refuses
            {
                tracing::warn!("{error}");
            }
            self.refuses = followed.is_err();
        }
        if let Some(count) = self.cross_traffic.read() {
            self.allocator.count(count);
        }
    }

    /// Tells the kernel, and the senders, the rate that a new connection starts with.
    fn announce(&self, senders: &Senders) {
        let initial = self.allocator.initial_rate();
        self.controlled.leg.set_initial_rate(
            initial.rate as u64,
            initial.weight,
            self.allocator.estimate().rtt,
        );
        let share = initial.rate / f64::from(initial.weight + 1);
        senders.set_initial(self.controlled.leg.name(), share as u64);
    }
}

fn report(flow: &Flow) -> Report {
    // The share of headers in short segments is not known here, so every segment counts as a full one.
    let full = u64::from(flow.mss + flow.header);
    Report {
        id: flow.owner,
        weight: flow.weight,
        at: Time::from_nanos(flow.at.as_nanos() as u64),
        sent: flow.bytes_sent + u64::from(flow.segments_sent) * u64::from(flow.header),
        delivered: u64::from(flow.delivered) * full,
        lost: u64::from(flow.lost) * full,
        in_flight: flow.in_flight > 0,
        rtt: flow.rtt,
        min_rtt: flow.min_rtt,
        forward: flow.forward,
        window_limited: flow.window_limited,
        backlogged: flow.backlogged,
    }
}

/// The clock of the congestion control.
fn monotonic() -> Time {
    let now = clock_gettime(ClockId::Monotonic);
    Time::from_nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::TerrestrialLeg;
    use std::collections::BTreeMap;

    /// A controller without a leg, which needs no capabilities.
    fn idle(estimates: &LinkEstimates) -> (Legs, RateController) {
        let legs = Legs::prepare(&BTreeMap::new(), &TerrestrialLeg::default());
        let controller = RateController::start(&legs, estimates.clone(), Senders::default()).unwrap();
        (legs, controller)
    }

    #[test]
    fn it_acknowledges_each_ping_once() {
        let estimates = LinkEstimates::default();
        let (legs, controller) = idle(&estimates);
        let waker = controller.waker();
        controller.replace(&legs);
        for pings in 1..=3 {
            waker.ping();
            while waker.acks() < pings {
                std::thread::yield_now();
            }
        }
        assert_eq!(waker.acks(), 3);
        assert!(estimates.get().is_empty());
    }

    #[test]
    fn it_acknowledges_nothing_after_it_is_dropped() {
        let (_, controller) = idle(&LinkEstimates::default());
        let waker = controller.waker();
        drop(controller);
        waker.ping();
        assert_eq!(waker.acks(), 0);
    }

    #[test]
    fn legs_without_explicit_rates_need_no_controller() {
        let legs = Legs::prepare(&BTreeMap::new(), &TerrestrialLeg::default());
        assert!(legs.share(Senders::default()).unwrap().is_none());
    }
}
