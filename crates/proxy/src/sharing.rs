//! The controller of explicit rates: a thread that shares out each leg among its connections.
//!
//! ```text
//! eBPF congestion control ──► flows ──► Sharer of the leg ──► rates ──► eBPF congestion control
//! ```
//!
//! Both ways are memory that the kernel and this process share. What is shared out, and how, is decided by
//! [`Sharer`](bentpipe_link::explicit::Sharer), which virtual time runs too.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bentpipe_kernel::explicit::{Flow, SharedLeg};
use bentpipe_link::explicit::{Report, Sharer, SharerConfig, Standing};
use bentpipe_units::Time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

use crate::error::Error;
use crate::pulse::{Mailbox, Pulse};

/// How often rates are decided anew: at 10 Mbit/s a connection that begins between two decisions sends 25 kB too much at most.
const TICK: Duration = Duration::from_millis(20);
/// The same while no connection is there.
const IDLE_TICK: Duration = Duration::from_millis(100);

/// The running controller; it ends when it is dropped. Connections then keep the rates that they have.
#[derive(Debug)]
pub(crate) struct Sharing {
    thread: Option<JoinHandle<()>>,
    mailbox: Arc<Mailbox<Vec<Share>>>,
    stop: Arc<AtomicBool>,
    standings: Arc<Mutex<Vec<(String, Standing)>>>,
}

/// A leg whose connections are given rates, and what is known of it beforehand.
#[derive(Debug, Clone)]
pub(crate) struct Share {
    pub(crate) leg: SharedLeg,
    pub(crate) config: SharerConfig,
}

/// What the thread works with.
#[derive(Debug)]
struct Controller {
    mailbox: Arc<Mailbox<Vec<Share>>>,
    standings: Arc<Mutex<Vec<(String, Standing)>>>,
    legs: Vec<Controlled>,
}

#[derive(Debug)]
struct Controlled {
    share: Share,
    sharer: Sharer,
    reports: Vec<Report>,
    slots: HashMap<u64, usize>,
}

impl Sharing {
    /// Starts to share out these legs.
    pub(crate) fn spawn(shares: Vec<Share>) -> Result<Self, Error> {
        let action = "start the controller of explicit rates";
        let mailbox =
            Arc::new(Mailbox::new("the controller of rates".into()).map_err(Error::system(action))?);
        let (stop, standings) = (Arc::<AtomicBool>::default(), Arc::<Mutex<_>>::default());
        let mut controller =
            Controller { mailbox: mailbox.clone(), standings: Arc::clone(&standings), legs: Vec::new() };
        // Before the first connection: one that has no rate yet keeps to ten segments.
        controller.replace(shares);
        let until = stop.clone();
        let thread = std::thread::Builder::new()
            .name("bentpipe-rates".into())
            .spawn(move || controller.run(&until))
            .map_err(Error::system(action))?;
        Ok(Self { thread: Some(thread), mailbox, stop, standings })
    }

    /// Goes on with these legs. What has been learnt of one that was there before is kept.
    pub(crate) fn replace(&self, shares: Vec<Share>) {
        self.mailbox.send(shares);
    }

    /// By which it shows that it lives.
    pub(crate) fn pulse(&self) -> Box<dyn Pulse> {
        Box::new(self.mailbox.clone())
    }

    /// What is known of each leg.
    pub(crate) fn standings(&self) -> Vec<(String, Standing)> {
        self.standings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Sharing {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.mailbox.wake();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the controller of explicit rates had panicked");
        }
    }
}

impl Controller {
    fn run(mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Acquire) {
            let busy = self.tick();
            if self.has_post(if busy { TICK } else { IDLE_TICK }) {
                // The watch rings without a letter.
                if let Some(shares) = self.mailbox.take().pop_back() {
                    self.replace(shares);
                }
            }
        }
    }

    /// Waits for the bell, and no longer than this.
    fn has_post(&self, wait: Duration) -> bool {
        let mut bell = [PollFd::new(&*self.mailbox, PollFlags::IN)];
        let wait = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
        // Interrupted is as good as rung.
        poll(&mut bell, Some(&wait)).map_or(true, |ready| ready > 0)
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
        let standings = self.legs.iter().map(|leg| (leg.share.leg.name().to_owned(), leg.sharer.standing()));
        *self.standings.lock().unwrap_or_else(PoisonError::into_inner) = standings.collect();
        self.legs.iter().any(|leg| !leg.reports.is_empty())
    }
}

impl Controlled {
    fn new(share: Share) -> Self {
        Self { sharer: Sharer::new(share.config), share, reports: Vec::new(), slots: HashMap::new() }
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
        let newcomers = self.sharer.newcomers();
        self.share.leg.set_newcomers(newcomers.rate as u64, newcomers.weight, self.sharer.standing().rtt);
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
        window_limited: flow.window_limited,
        hungry: flow.hungry,
    }
}

/// The clock of the congestion control.
fn monotonic() -> Time {
    let now = clock_gettime(ClockId::Monotonic);
    Time::from_nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}
