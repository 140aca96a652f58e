//! The control loop of the satellite legs' XCP routers.
//!
//! The kernel handles each packet ([`bentpipe_kernel::router`]). Once in each control interval a thread reads
//! the sums, computes the shares with the code that virtual time runs
//! ([`Shares::decide`](bentpipe_link::agent::xcp::control::Shares::decide)), and writes them to the kernel.
//! If the thread is late, it decides for the time that has really passed, and meanwhile the kernel hands out
//! no more than was decided before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bentpipe_kernel::congestion::EXPLICIT;
use bentpipe_kernel::router::{Router, RouterConfig, RouterError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::thread::ServiceThread;
use super::{Context, Preparation, Service};
use crate::config::{Config, SatelliteLeg, xcp_variant};
use crate::error::{Error, Refusal};
use crate::stats::Counters;
use crate::types::mailbox::{Heartbeat, Mailbox};

mod interval;

use interval::Interval;

/// The longest round trip accepted from a header: far above that of any satellite around the Earth.
const LONGEST_RTT: Duration = Duration::from_secs(10);
/// The thread wakes at least so often, so that its counters are fresh and its routers at their interfaces.
const WAKE_INTERVAL: Duration = Duration::from_millis(500);

/// The congestion control of a leg whose router could not be attached.
const NEXT_BEST: &str = EXPLICIT;

/// The settings of the routers, by interface.
type Wanted = BTreeMap<String, WantedRouter>;

/// The settings of one router.
#[derive(Debug, Clone, Copy, PartialEq)]
struct WantedRouter {
    config: RouterConfig,
    /// The round-trip time of the empty link, until a packet reports one.
    rtt: Duration,
}

/// The routers; they are detached when this is dropped, or with the process.
#[derive(Debug)]
pub(super) struct XcpRouters {
    /// The routers, until the control loop has them. They hand nothing out yet.
    attached: BTreeMap<String, Router>,
    interfaces: BTreeSet<String>,
    /// Interfaces whose routers could not be attached; the reason has been logged.
    failed: BTreeSet<String>,
    thread: Option<ServiceThread<Wanted>>,
    counters: Arc<Counters>,
}

impl XcpRouters {
    /// Attaches a router to the interface of each leg that wants one. Needs `CAP_BPF`, `CAP_PERFMON` and
    /// `CAP_NET_ADMIN`.
    pub(super) fn prepare(preparation: &Preparation<'_>) -> Self {
        let (mut attached, mut failed) = (BTreeMap::new(), BTreeSet::new());
        for (interface, wanted) in wanted(preparation.config) {
            let router = match Router::attach(&interface, &wanted.config) {
                // The control loop attaches it when there is one.
                Err(RouterError::Interface { .. }) => Router::detached(&wanted.config),
                outcome => outcome,
            };
            match router {
                Ok(router) => drop(attached.insert(interface, router)),
                Err(error) => {
                    tracing::warn!(
                        "{error}; the leg on {interface} has congestion = \"{NEXT_BEST}\" instead of XCP"
                    );
                    failed.insert(interface);
                }
            }
        }
        let interfaces = attached.keys().cloned().collect();
        Self { attached, interfaces, failed, thread: None, counters: Arc::default() }
    }
}

impl Service for XcpRouters {
    fn name(&self) -> &'static str {
        "xcp_router"
    }

    /// A leg whose router could not be attached gets the next best congestion control.
    fn adapt(&self, config: &mut Config) {
        adapt(config, &self.failed);
    }

    /// Fails for a configuration that needs another router: the privileges to attach one are gone.
    fn check(&self, config: &Config) -> Result<(), Refusal> {
        let needs_another = |leg: &SatelliteLeg| {
            xcp_variant(leg).is_some() && !self.interfaces.contains(leg.interface.as_str())
        };
        match config.legs.iter().find(|(_, leg)| needs_another(leg)) {
            Some((name, leg)) => {
                let what = format!("congestion = \"{}\" on interface {}", leg.congestion(), leg.interface);
                Err(Refusal::until_upgrade(format!("legs.{name}.congestion"), &what))
            }
            None => Ok(()),
        }
    }

    /// Without a router there is no thread.
    fn start(&mut self, context: &Context) -> Result<(), Error> {
        if self.attached.is_empty() {
            return Ok(());
        }
        let mut thread = ServiceThread::new("the XCP routers")?;
        let routers = std::mem::take(&mut self.attached);
        let (mailbox, counters) = (thread.mailbox().clone(), self.counters.clone());
        let mut controller = Controller::new(routers, &wanted(&context.config), mailbox, counters);
        thread.run("bentpipe-router", move |stop| controller.run(stop))?;
        self.thread = Some(thread);
        Ok(())
    }

    /// Applies other capacities and variants. A router that is no longer needed stays attached: it does
    /// nothing to packets without a congestion header.
    fn reload(&mut self, context: &Context) {
        if let Some(thread) = &self.thread {
            thread.send(wanted(&context.config));
        }
    }

    fn heartbeat(&self) -> Option<Arc<dyn Heartbeat>> {
        self.thread.as_ref().map(ServiceThread::heartbeat)
    }

    fn counters(&self) -> Vec<Arc<Counters>> {
        vec![self.counters.clone()]
    }
}

impl Drop for XcpRouters {
    fn drop(&mut self) {
        if let Some(mut thread) = self.thread.take() {
            thread.stop();
            tracing::info!("the XCP routers have stopped");
            tracing::debug!(stats = ?self.counters.router.read());
        }
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

fn adapt(config: &mut Config, failed: &BTreeSet<String>) {
    for leg in config.legs.values_mut() {
        if xcp_variant(leg).is_some() && failed.contains(leg.interface.as_str()) {
            leg.congestion = None;
        }
    }
}

/// The thread's side: a router for each interface, and the interval that it is in.
#[derive(Debug)]
struct Controller {
    routers: BTreeMap<String, (Router, Interval)>,
    /// Interfaces that exist and did not take their routers, which the log has said.
    refusing: BTreeSet<String>,
    /// When to look for interfaces that have come.
    next_look: Instant,
    mailbox: Arc<Mailbox<Wanted>>,
    counters: Arc<Counters>,
}

impl Controller {
    fn new(
        routers: BTreeMap<String, Router>,
        wanted: &Wanted,
        mailbox: Arc<Mailbox<Wanted>>,
        counters: Arc<Counters>,
    ) -> Self {
        let now = Instant::now();
        let with_interval = |(interface, router): (String, Router)| {
            let WantedRouter { config, rtt } = wanted[&interface];
            let interval = Interval::new(now, config.capacity, rtt);
            (interface, (router, interval))
        };
        let (routers, refusing) = (routers.into_iter().map(with_interval).collect(), BTreeSet::new());
        Self { routers, refusing, next_look: now, mailbox, counters }
    }

    fn run(&mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Acquire) {
            if let Some(wanted) = self.wait() {
                self.apply(&wanted);
            }
            self.follow_interfaces();
            let now = Instant::now();
            for (router, interval) in self.routers.values_mut() {
                let has_ended = interval.advance(now, router);
                self.counters.router.xcp_intervals.add(has_ended.into());
            }
            self.note();
        }
    }

    /// Attaches routers to interfaces that have come, or come back as others.
    fn follow_interfaces(&mut self) {
        if Instant::now() < self.next_look {
            return;
        }
        self.next_look = Instant::now() + WAKE_INTERVAL;
        for (interface, (router, _)) in &mut self.routers {
            match router.follow(interface) {
                Ok(attached) => {
                    if attached {
                        tracing::info!("the XCP router is at interface {interface}");
                    }
                    self.refusing.remove(interface);
                }
                Err(error) if self.refusing.insert(interface.clone()) => {
                    tracing::error!("{error}: its connections get whatever rate they ask for");
                }
                Err(_) => {}
            }
        }
    }

    /// Until an interval ends, or there is a message: the newest.
    fn wait(&self) -> Option<Wanted> {
        let now = Instant::now();
        let ends = self.routers.values().map(|(_, interval)| interval.wake_at());
        let left =
            ends.min().map_or(WAKE_INTERVAL, |end| end.saturating_duration_since(now)).min(WAKE_INTERVAL);
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
        let (shared, routers) =
            (&self.counters.router, || self.routers.values().map(|(router, _)| router.counters()));
        shared.xcp_packets.set(routers().map(|router| router.packets).sum());
        shared.xcp_headers.set(routers().map(|router| router.with_header).sum());
        shared.xcp_lowered.set(routers().map(|router| router.lowered).sum());
        shared.xcp_malformed.set(routers().map(|router| router.malformed).sum());
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
        let adapted = |failed: &str| {
            let mut adapted = config.clone();
            adapt(&mut adapted, &BTreeSet::from([failed.to_owned()]));
            adapted
        };
        let without = adapted("sat0");
        assert_eq!(without.legs["geo"].congestion(), "explicit");
        assert!(wanted(&without).is_empty());
        assert_eq!(adapted("sat1"), config);
    }
}
