//! The control loop of the satellite legs' XCP routers.
//!
//! What happens to each packet happens in the kernel ([`bentpipe_kernel::router`]). A thread takes the sums once in
//! each control interval, has the shares decided by the code that decides them in virtual time
//! ([`Shares::decide`](bentpipe_link::agent::xcp::control::Shares::decide)), and puts them where the kernel finds them.
//! If the thread is late, what it decides is for the time that has really passed, and meanwhile no more is handed
//! out than was decided before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bentpipe_kernel::congestion::EXPLICIT;
use bentpipe_kernel::router::{Router, RouterConfig};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::config::{Config, SatelliteLeg, xcp_variant};
use crate::error::Error;
use crate::stats::{Counter, RouterStats};
use crate::types::mailbox::{Heartbeat, Mailbox};

mod interval;

use interval::Interval;

/// The longest round trip that is believed of a header: far above that of any satellite around the Earth.
const LONGEST_RTT: Duration = Duration::from_secs(10);
/// The thread wakes at least so often, so that its counters are fresh.
const PULSE: Duration = Duration::from_millis(500);

/// The congestion control of a leg whose router could not be attached.
const NEXT_BEST: &str = EXPLICIT;

/// The settings of the routers, by interface.
type Wanted = BTreeMap<String, WantedRouter>;

/// The settings of one router.
#[derive(Debug, Clone, Copy, PartialEq)]
struct WantedRouter {
    config: RouterConfig,
    /// The round-trip time of the empty link, before any packet has told of one.
    rtt: Duration,
}

/// XcpRouters at their interfaces that hand nothing out yet, and what could not be had.
#[derive(Debug)]
pub(crate) struct Attached {
    routers: BTreeMap<String, Router>,
    /// Interfaces whose routers could not be attached; the reason has been logged.
    failed: BTreeSet<String>,
}

/// Running routers; they are detached when this is dropped, or with the process.
#[derive(Debug)]
pub(crate) struct XcpRouters {
    thread: Option<JoinHandle<()>>,
    mailbox: Arc<Mailbox<Wanted>>,
    stop: Arc<AtomicBool>,
    counters: Arc<SharedCounters>,
    interfaces: BTreeSet<String>,
    failed: BTreeSet<String>,
}

/// The numbers of [`RouterStats`]; one thread writes them.
#[derive(Debug, Default)]
struct SharedCounters {
    packets: Counter,
    with_header: Counter,
    lowered: Counter,
    malformed: Counter,
    intervals: Counter,
}

impl Attached {
    /// Attaches a router to the interface of each leg that wants one. Needs `CAP_BPF`, `CAP_PERFMON` and
    /// `CAP_NET_ADMIN`.
    pub(crate) fn attach(config: &Config) -> Self {
        let mut attached = Self { routers: BTreeMap::new(), failed: BTreeSet::new() };
        for (interface, wanted) in wanted(config) {
            match Router::attach(&interface, &wanted.config) {
                Ok(router) => drop(attached.routers.insert(interface, router)),
                Err(error) => {
                    tracing::warn!(
                        "{error}; the leg on {interface} has congestion = \"{NEXT_BEST}\" instead of XCP"
                    );
                    attached.failed.insert(interface);
                }
            }
        }
        attached
    }

    /// The configuration with replacements: a leg whose router could not be attached gets the next best congestion
    /// control.
    pub(crate) fn adapt(&self, config: &Config) -> Config {
        adapt(config, &self.failed)
    }
}

impl XcpRouters {
    /// Starts the control loop. Without a router there is no thread.
    pub(crate) fn start(attached: Attached, config: &Config) -> Result<Self, Error> {
        let action = "start the XCP routers";
        let Attached { routers, failed } = attached;
        let mailbox = Mailbox::new("the XCP routers".into()).map_err(Error::system(action))?;
        let (mailbox, stop, counters) = (Arc::new(mailbox), Arc::<AtomicBool>::default(), Arc::default());
        let interfaces: BTreeSet<_> = routers.keys().cloned().collect();
        let mut controller =
            Controller::new(routers, &wanted(config), mailbox.clone(), Arc::clone(&counters));
        let until = stop.clone();
        let spawn = || {
            std::thread::Builder::new()
                .name("bentpipe-router".into())
                .spawn(move || controller.run(&until))
                .map_err(Error::system(action))
        };
        let thread = if interfaces.is_empty() { None } else { Some(spawn()?) };
        Ok(Self { thread, mailbox, stop, counters, interfaces, failed })
    }

    /// Fails for a configuration that needs another router: the privileges to attach one are gone.
    pub(crate) fn check(&self, config: &Config) -> Result<(), Error> {
        let is_there = |interface: &String| self.interfaces.contains(interface);
        match wanted(&self.adapt(config)).keys().all(is_there) {
            true => Ok(()),
            false => Err(Error::Restart { what: "congestion = \"xcp\" or \"p-xcp\" on another interface" }),
        }
    }

    /// The configuration with replacements, as [`Attached::adapt`].
    pub(crate) fn adapt(&self, config: &Config) -> Config {
        adapt(config, &self.failed)
    }

    /// Applies other capacities and variants. A router that is no longer needed stays attached: it does
    /// nothing to packets without a congestion header.
    pub(crate) fn replace_settings(&self, config: &Config) {
        self.mailbox.send(wanted(config));
    }

    /// Their heartbeat, if there is any router.
    pub(crate) fn heartbeat(&self) -> Option<Box<dyn Heartbeat>> {
        self.thread.as_ref().map(|_| Box::new(self.mailbox.clone()) as Box<dyn Heartbeat>)
    }

    /// Their statistics.
    pub(crate) fn stats(&self) -> RouterStats {
        self.counters.stats()
    }

    /// A function that reads the statistics, for other threads.
    pub(crate) fn view(&self) -> impl Fn() -> RouterStats + Send + Sync + use<> {
        let counters = self.counters.clone();
        move || counters.stats()
    }
}

impl SharedCounters {
    fn stats(&self) -> RouterStats {
        RouterStats {
            xcp_packets: self.packets.get(),
            xcp_headers: self.with_header.get(),
            xcp_lowered: self.lowered.get(),
            xcp_malformed: self.malformed.get(),
            xcp_intervals: self.intervals.get(),
        }
    }
}

impl Drop for XcpRouters {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.mailbox.wake();
        let Some(thread) = self.thread.take() else { return };
        if thread.join().is_err() {
            tracing::error!("the thread of the XCP routers panicked");
        }
        let RouterStats { xcp_packets, xcp_headers, xcp_lowered, xcp_malformed, xcp_intervals } =
            self.stats();
        tracing::info!(
            xcp_packets,
            xcp_headers,
            xcp_lowered,
            xcp_malformed,
            xcp_intervals,
            "the XCP routers ended"
        );
    }
}

fn wanted(config: &Config) -> Wanted {
    let router = |leg: &SatelliteLeg| {
        let (variant, capacity) = (xcp_variant(leg)?, leg.rate?);
        let interface = leg.interface.as_str().to_owned();
        let config = RouterConfig { capacity, variant, longest_rtt: LONGEST_RTT };
        Some((interface, WantedRouter { config, rtt: leg.rtt.get() }))
    };
    config.legs.values().filter_map(router).collect()
}

fn adapt(config: &Config, failed: &BTreeSet<String>) -> Config {
    let mut config = config.clone();
    for leg in config.legs.values_mut() {
        if xcp_variant(leg).is_some() && failed.contains(leg.interface.as_str()) {
            leg.congestion = None;
        }
    }
    config
}

/// The thread's side: a router for each interface, and the interval that it is in.
#[derive(Debug)]
struct Controller {
    routers: BTreeMap<String, (Router, Interval)>,
    mailbox: Arc<Mailbox<Wanted>>,
    counters: Arc<SharedCounters>,
}

impl Controller {
    fn new(
        routers: BTreeMap<String, Router>,
        wanted: &Wanted,
        mailbox: Arc<Mailbox<Wanted>>,
        counters: Arc<SharedCounters>,
    ) -> Self {
        let now = Instant::now();
        let with_interval = |(interface, router): (String, Router)| {
            let WantedRouter { config, rtt } = wanted[&interface];
            let interval = Interval::new(now, config.capacity, rtt);
            (interface, (router, interval))
        };
        Self { routers: routers.into_iter().map(with_interval).collect(), mailbox, counters }
    }

    fn run(&mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Acquire) {
            if let Some(wanted) = self.wait() {
                self.apply(&wanted);
            }
            let now = Instant::now();
            for (router, interval) in self.routers.values_mut() {
                let has_ended = interval.advance(now, router);
                self.counters.intervals.add(has_ended.into());
            }
            self.note();
        }
    }

    /// Until an interval ends, or there is a message: the newest.
    fn wait(&self) -> Option<Wanted> {
        let now = Instant::now();
        let ends = self.routers.values().map(|(_, interval)| interval.wake_at());
        let left = ends.min().map_or(PULSE, |end| end.saturating_duration_since(now)).min(PULSE);
        let mut fds = [PollFd::new(&*self.mailbox, PollFlags::IN)];
        match poll(&mut fds, Timespec::try_from(left).ok().as_ref()) {
            Ok(count) if count > 0 => self.mailbox.take().pop_back(),
            _ => None,
        }
    }

    fn apply(&mut self, wanted: &Wanted) {
        for (interface, WantedRouter { config, .. }) in wanted {
            if let Some((router, interval)) = self.routers.get_mut(interface) {
                router.configure(config);
                interval.set_capacity(config.capacity);
            }
        }
    }

    fn note(&self) {
        let counters = || self.routers.values().map(|(router, _)| router.counters());
        self.counters.packets.set(counters().map(|counters| counters.packets).sum());
        self.counters.with_header.set(counters().map(|counters| counters.with_header).sum());
        self.counters.lowered.set(counters().map(|counters| counters.lowered).sum());
        self.counters.malformed.set(counters().map(|counters| counters.malformed).sum());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bentpipe_kernel::router::Variant;

    fn config(leg: &str) -> Config {
        Config::parse("x", &format!("[legs.geo]\ninterface = \"sat0\"\n{leg}")).unwrap()
    }

    #[test]
    fn a_leg_without_its_router_has_the_next_best_and_others_keep_theirs() {
        let config = config("congestion = \"p-xcp\"\nrate = \"2Mbit/s\"\n");
        assert_eq!(wanted(&config)["sat0"].config.variant, Variant::PXcp);
        let without = adapt(&config, &BTreeSet::from(["sat0".to_owned()]));
        assert_eq!(without.legs["geo"].congestion(), "explicit");
        assert!(wanted(&without).is_empty());
        assert_eq!(adapt(&config, &BTreeSet::from(["sat1".to_owned()])), config);
    }
}
