//! The controller of explicit rates: a thread that shares out each leg among its connections.
//!
//! ```text
//! eBPF congestion control ──► flows ──► RateAllocator of the leg ──► rates ──► eBPF congestion control
//! ```
//!
//! Both ways are memory that the kernel and this process share. What is shared out, and how, is decided by
//! [`RateAllocator`](bentpipe_link::explicit::RateAllocator), which virtual time runs too.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bentpipe_kernel::explicit::{Flow, SharedLeg};
use bentpipe_link::explicit::{LinkEstimate, RateAllocator, RateAllocatorConfig, Report};
use bentpipe_units::Time;
use rustix::time::{ClockId, clock_gettime};

use crate::legs::Legs;

/// How often rates are decided anew: at 10 Mbit/s a connection that begins between two decisions sends 25 kB too much at most.
const TICK: Duration = Duration::from_millis(20);
/// The same while no connection is there.
const IDLE_TICK: Duration = Duration::from_millis(100);

/// The running controller; it ends when it is dropped. Connections then keep the rates that they have.
#[derive(Debug)]
pub struct RateController {
    thread: Option<JoinHandle<()>>,
    bell: Waker,
    standings: LinkEstimates,
}

/// What is known of each leg, with its name, for others to look at from time to time.
#[derive(Debug, Clone, Default)]
pub struct LinkEstimates(Arc<Mutex<Vec<(String, LinkEstimate)>>>);

/// Why legs are not shared out.
#[derive(Debug, thiserror::Error)]
#[error("cannot start the controller of explicit rates: {source}; raise the limit of threads (ulimit -u)")]
pub struct RateControllerError {
    /// What the system said.
    source: std::io::Error,
}

/// By which the controller is asked whether it lives.
#[derive(Debug, Clone)]
pub struct Waker {
    orders: Sender<Order>,
    heard: Arc<AtomicU64>,
}

/// What the thread is told.
#[derive(Debug)]
enum Order {
    Show,
    Replace(Vec<Share>),
    End,
}

/// A leg whose connections are given rates, and what is known of it beforehand.
#[derive(Debug, Clone)]
pub(crate) struct Share {
    pub(crate) leg: SharedLeg,
    pub(crate) config: RateAllocatorConfig,
}

/// What the thread works with.
#[derive(Debug)]
struct Controller {
    orders: Receiver<Order>,
    heard: Arc<AtomicU64>,
    standings: LinkEstimates,
    legs: Vec<Controlled>,
}

#[derive(Debug)]
struct Controlled {
    share: Share,
    sharer: RateAllocator,
    reports: Vec<Report>,
    slots: HashMap<u64, usize>,
}

impl RateController {
    /// Starts to share out those of these legs whose connections wait to be given their rates, if there are any: legs that have
    /// such connections may come later.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn start(legs: &Legs) -> Result<Self, RateControllerError> {
        let (sender, orders) = mpsc::channel();
        let (heard, standings) = (Arc::<AtomicU64>::default(), LinkEstimates::default());
        let mut controller =
            Controller { orders, heard: heard.clone(), standings: standings.clone(), legs: Vec::new() };
        // Before the first connection: one that has no rate yet keeps to ten segments.
        controller.replace(legs.shares());
        let thread = std::thread::Builder::new()
            .name("bentpipe-rates".into())
            .spawn(move || controller.run())
            .map_err(|source| RateControllerError { source })?;
        Ok(Self { thread: Some(thread), bell: Waker { orders: sender, heard }, standings })
    }

    /// Goes on with these legs. What has been learnt of one that was there before is kept.
    pub fn replace(&self, legs: &Legs) {
        self.bell.send(Order::Replace(legs.shares()));
    }

    /// By which it shows that it lives.
    pub fn bell(&self) -> Waker {
        self.bell.clone()
    }

    /// What is known of each leg, with its name.
    pub fn standings(&self) -> Vec<(String, LinkEstimate)> {
        self.standings.get()
    }

    /// The same for somebody who looks on by himself. When the controller has ended, what it knew last stays.
    pub fn view(&self) -> LinkEstimates {
        self.standings.clone()
    }
}

impl LinkEstimates {
    /// As they were at the last decision.
    pub fn get(&self) -> Vec<(String, LinkEstimate)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Waker {
    /// Asks for a sign of life.
    pub fn ring(&self) {
        self.send(Order::Show);
    }

    /// How many times it has been heard.
    pub fn heard(&self) -> u64 {
        self.heard.load(Ordering::Acquire)
    }

    fn send(&self, order: Order) {
        // Fails only when the thread has ended, and then it is not heard either.
        let _ = self.orders.send(order);
    }
}

impl Drop for RateController {
    fn drop(&mut self) {
        self.bell.send(Order::End);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the controller of explicit rates had panicked");
        }
    }
}

impl Controller {
    fn run(mut self) {
        loop {
            let busy = self.tick();
            match self.orders.recv_timeout(if busy { TICK } else { IDLE_TICK }) {
                Ok(Order::Show) => drop(self.heard.fetch_add(1, Ordering::Release)),
                Ok(Order::Replace(shares)) => self.replace(shares),
                Ok(Order::End) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn replace(&mut self, shares: Vec<Share>) {
        let mut before = std::mem::take(&mut self.legs);
        for share in shares {
            let same = before.iter().position(|leg| leg.share.leg.number() == share.leg.number());
            let mut leg = match same {
                Some(place) => before.swap_remove(place),
                None => Controlled::new(share.clone()),
            };
            leg.sharer.reconfigure(share.config);
            leg.share = share;
            leg.announce();
            self.legs.push(leg);
        }
        // Connections of a leg that the configuration has no more live on, and need rates.
        before.retain(|leg| !leg.reports.is_empty());
        self.legs.append(&mut before);
    }

    /// Says whether there is any connection.
    fn tick(&mut self) -> bool {
        let now = monotonic();
        for leg in &mut self.legs {
            leg.tick(now);
        }
        let standings = self.legs.iter().map(|leg| (leg.share.leg.name().to_owned(), leg.sharer.estimate()));
        *self.standings.0.lock().unwrap_or_else(PoisonError::into_inner) = standings.collect();
        self.legs.iter().any(|leg| !leg.reports.is_empty())
    }
}

impl Controlled {
    fn new(share: Share) -> Self {
        Self { sharer: RateAllocator::new(share.config), share, reports: Vec::new(), slots: HashMap::new() }
    }

    fn tick(&mut self, now: Time) {
        let (number, explicit) = (self.share.leg.number(), self.share.leg.explicit());
        self.reports.clear();
        self.slots.clear();
        for flow in explicit.flows().filter(|flow| flow.leg == number && !flow.at.is_zero()) {
            self.reports.push(report(&flow));
            self.slots.insert(flow.owner, flow.slot);
        }
        self.sharer
            .tick(now, &self.reports, |owner, rate| explicit.set_rate(self.slots[&owner], rate as u64));
        self.announce();
    }

    fn announce(&self) {
        let newcomers = self.sharer.initial_rate();
        self.share.leg.set_newcomers(newcomers.rate as u64, newcomers.weight, self.sharer.estimate().rtt);
    }
}

fn report(flow: &Flow) -> Report {
    // Short segments count as full ones: what they take of the link besides their bytes is not known here.
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
        backlogged: flow.hungry,
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

    /// Sets it off without a leg, for which it needs no rights.
    fn idle() -> (Legs, RateController) {
        let legs = Legs::prepare(&BTreeMap::new(), &TerrestrialLeg::default());
        let sharing = RateController::start(&legs).unwrap();
        (legs, sharing)
    }

    #[test]
    fn it_answers_the_bell_and_only_that() {
        let (legs, sharing) = idle();
        let bell = sharing.bell();
        sharing.replace(&legs);
        for rung in 1..=3 {
            bell.ring();
            while bell.heard() < rung {
                std::thread::yield_now();
            }
        }
        assert_eq!(bell.heard(), 3);
        assert!(sharing.standings().is_empty());
    }

    #[test]
    fn it_ends_when_it_is_dropped_and_its_bell_is_heard_no_more() {
        let (_, sharing) = idle();
        let bell = sharing.bell();
        drop(sharing);
        bell.ring();
        assert_eq!(bell.heard(), 0);
    }
}
