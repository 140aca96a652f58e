//! A scenario on the TCP of this machine's kernel, in real time.
//!
//! ```text
//! Scenario ── plan ──> hosts, addresses, routes, settings, daemons' configurations, differences
//!          ── set up ─> namespaces, links, daemons; no flow moves before the scenario's time zero
//!          ── traffic ─> a thread for each end of each flow
//!          ── sampling ─> TCP_INFO of every sender, queues, what splitters hold ──> Observer
//!          ── results ─> the simulator's RunResult
//! ```
//!
//! Each node is a network namespace, each link an emulated one with the effects and agents that virtual time
//! has, each splitter a daemon with a leg for each of its links, and each end of a protected leg a daemon,
//! too. Every flow, or group of flows that are alike, has addresses of its own, so that its packets take its
//! path and no other.

mod hosts;
mod plan;
mod sampling;
mod traffic;
mod udp;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bentpipe_kernel::congestion::ResolvedCongestionControl;
use bentpipe_kernel::multicast::MulticastRoutes;
use bentpipe_link::agent::LinkEndReport;
use bentpipe_proxy::Daemon;
use bentpipe_sim::scenario::{FlowSpec, Side};
use bentpipe_sim::{
    FlowOutcome, FlowResult, LinkEndResult, LinkResult, Observer, ProtectResult, RunResult, Scenario,
    SplitterResult,
};
use bentpipe_units::Time;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::Error;
use hosts::Hosts;
use plan::{FlowPlan, Plan};
use sampling::{Sampler, Samples};
use traffic::{End, Shared};
use udp::Stream;

/// What this kernel does otherwise than a scenario says, a sentence each.
///
/// # Errors
/// [`Error::NotOnKernel`] with what it cannot do at all.
pub fn differences(scenario: &Scenario) -> Result<BTreeSet<String>, Error> {
    Ok(plan(scenario)?.differences)
}

/// The plan of a scenario that this kernel can run.
fn plan(scenario: &Scenario) -> Result<Plan, Error> {
    let plan = Plan::of(scenario)?;
    if plan.has_multicast() && !MulticastRoutes::are_supported() {
        return Err(plan::refused(
            "it has a UDP stream to several nodes, and this kernel has no multicast routes \
             (CONFIG_IP_MROUTE): give each node a stream of its own"
                .into(),
        ));
    }
    Ok(plan)
}

/// Runs a scenario in network namespaces, in real time, with its observer. Losses follow from the seed, the
/// rest is this machine's: two runs are alike, not the same.
///
/// # Errors
/// [`Error::NotOnKernel`]; without privileges and on a machine that is too busy, those of the testbed and of
/// the daemons.
pub fn run(scenario: &Scenario, seed: u64, observer: &mut dyn Observer) -> Result<RunResult, Error> {
    let plan = plan(scenario)?;
    let hosts = Hosts::set_up(scenario, &plan, seed)?;
    let shared: Vec<Shared> = scenario.flows.iter().map(|_| Shared::default()).collect();
    let stop = AtomicBool::new(false);
    let fail = |source| Error::Transfer { run: scenario.title.clone(), source };
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let (samples, streams) = std::thread::scope(|scope| {
        // The scope waits for its threads, also after an error.
        let running = StopOnDrop(&stop);
        let mut ends = Vec::new();
        let streams = scenario.udp.iter().zip(&plan.udp).map(|(spec, plan)| {
            let stream = Stream { spec, plan, zero: hosts.zero, stop: &stop };
            stream.start(scope, &hosts.nodes).map_err(fail)
        });
        let streams = streams.collect::<Result<Vec<_>, _>>()?;
        for (index, (spec, flow)) in scenario.flows.iter().zip(&plan.flows).enumerate() {
            let start = spec.start.since(Time::ZERO) + below(spec.start_within, &mut random);
            let run = FlowRun { hosts: &hosts, spec, flow, shared: &shared[index], index, stop: &stop };
            for side in [run.listener(), opposite(run.listener())] {
                ends.push(run.start(scope, side, start).map_err(fail)?);
            }
        }
        let samples = Sampler::new(scenario, &plan, &hosts, &shared)?.watch(observer);
        drop(running);
        for end in ends {
            end.join().expect("an end of a flow does not panic").map_err(fail)?;
        }
        let streams = streams.into_iter().map(|stream| stream.join().map_err(fail));
        Ok::<_, Error>((samples?, streams.collect::<Result<Vec<_>, _>>()?))
    })?;
    for link in &hosts.links {
        link.check()?;
    }
    let udp =
        scenario.udp.iter().zip(&streams).map(|(spec, done)| done.result(scenario, spec, samples.until));
    let udp = udp.collect();
    Ok(RunResult { udp, ..collect(scenario, seed, &hosts, &shared, samples) })
}

/// The ends of flows and streams play their parts until this value is dropped.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A flow that runs.
struct FlowRun<'a> {
    hosts: &'a Hosts,
    spec: &'a FlowSpec,
    flow: &'a FlowPlan,
    shared: &'a Shared,
    index: usize,
    stop: &'a AtomicBool,
}

impl<'a> FlowRun<'a> {
    fn listener(&self) -> Side {
        opposite(self.spec.opened_by)
    }

    /// Starts an end on a thread in its node's namespace. The listening one listens when this returns.
    fn start<'scope>(
        &self,
        scope: &'scope std::thread::Scope<'scope, '_>,
        side: Side,
        start: Duration,
    ) -> std::io::Result<std::thread::ScopedJoinHandle<'scope, std::io::Result<()>>>
    where
        'a: 'scope,
    {
        let FlowPlan { source, destination, port, ends, .. } = self.flow;
        let last = self.spec.legs.len() - 1;
        let (local, remote, node, config) = match side {
            Side::Source => (*source, *destination, ends[0], &self.spec.legs[0].sender),
            Side::Destination => (*destination, *source, ends[1], &self.spec.legs[last].receiver),
        };
        let end = End {
            spec: self.spec,
            shared: self.shared,
            local,
            remote: SocketAddr::new(remote.into(), *port),
            config,
            zero: self.hosts.zero,
            stop: self.stop,
        };
        let congestion = self.hosts.congestion[self.index][usize::from(side == Side::Destination)].as_ref();
        let congestion = congestion.map(ResolvedCongestionControl::name);
        let node = &self.hosts.nodes[node];
        let in_node = |outcome: bentpipe_testbed::Result<std::io::Result<()>>| {
            outcome.map_err(std::io::Error::other).and_then(|outcome| outcome)
        };
        if side == self.listener() {
            let listener = node.run(|| end.listen(congestion)).map_err(std::io::Error::other)??;
            return Ok(scope.spawn(move || in_node(node.run(|| end.accept(side, listener)))));
        }
        Ok(scope.spawn(move || in_node(node.run(|| end.open(side, start, congestion)))))
    }
}

fn opposite(side: Side) -> Side {
    match side {
        Side::Source => Side::Destination,
        Side::Destination => Side::Source,
    }
}

fn below(limit: Duration, random: &mut Xoshiro256PlusPlus) -> Duration {
    limit.mul_f64(random.next_u32() as f64 / (f64::from(u32::MAX) + 1.0))
}

fn collect(scenario: &Scenario, seed: u64, hosts: &Hosts, shared: &[Shared], samples: Samples) -> RunResult {
    let now = samples.until;
    let flows = scenario.flows.iter().zip(shared).zip(samples.flows);
    let flow = |((spec, shared), sampled): ((&FlowSpec, &Shared), sampling::FlowSamples)| {
        let at = |moment: Option<Duration>| moment.map(|moment| Time::ZERO + moment);
        let outcome = FlowOutcome {
            started_at: at(shared.opened()).unwrap_or(now),
            received: sampled.received,
            last_byte_at: at(shared.last_byte()),
            end: shared.end(),
            legs: sampled.legs,
            splitters: sampled.held.iter().map(|held| held.result()).collect::<Vec<SplitterResult>>(),
            bundles: None,
        };
        FlowResult::of(scenario, spec, outcome, now)
    };
    let links: Vec<LinkResult> = (0..scenario.links.len())
        .map(|index| link_result(scenario, index, hosts, &samples.held[index]))
        .collect();
    RunResult {
        seed,
        events: links.iter().map(|link| link.forward.offered + link.reverse.offered).sum(),
        seconds: now.as_secs_f64(),
        flows: flows.map(flow).collect(),
        links,
        udp: Vec::new(),
    }
}

fn link_result(scenario: &Scenario, index: usize, hosts: &Hosts, held: &[sampling::Held; 2]) -> LinkResult {
    let (spec, link) = (&scenario.links[index], &hosts.links[index]);
    let (forward, reverse) = link.counters();
    let reports = link.link_end_reports();
    // What the link has there, not the scenario: a daemon's router has counters of its own.
    let is_nothing = |report: &LinkEndReport| report.agents.is_empty() && report.arq.is_none();
    let ends = reports.into_iter().enumerate().filter_map(|(end, report)| {
        let node = spec.between[end];
        let protect = spec.protect.as_ref().and(hosts.daemons[node].as_ref()).map(|daemon| protected(daemon));
        if protect.is_none() && is_nothing(&report) {
            return None;
        }
        let SplitterResult { most_bytes, mean_bytes } = held[end].result();
        Some(LinkEndResult {
            node: scenario.nodes[node].clone(),
            report,
            protect,
            most_held_bytes: most_bytes,
            mean_held_bytes: mean_bytes,
        })
    });
    LinkResult { name: spec.name.clone(), forward, reverse, ends: ends.collect() }
}

/// The counters of a daemon's only protected leg.
fn protected(daemon: &Daemon) -> ProtectResult {
    let stats = daemon.stats().protect;
    ProtectResult {
        packets: stats.packets_sent,
        repair_frames: stats.frames_repair,
        retransmissions: stats.retransmitted,
        delivered: stats.packets_received,
        repaired: stats.repaired,
        skipped: stats.skipped,
        refused: stats.refused,
        dropped: stats.dropped + stats.silent_dropped,
        unprotected: stats.silent_passed,
        sessions: stats.sessions,
    }
}

/// The next moment of a series, without haste after a delay.
fn next(at: &mut Instant, interval: Duration) {
    *at = (*at + interval).max(Instant::now());
}
