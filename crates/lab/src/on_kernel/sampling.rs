//! Looks at a running scenario: the sockets of its hosts, its queues, and what is held on the way.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bentpipe_kernel::sock_diag::{ConnectionInfo, SockDiag, SocketId};
use bentpipe_kernel::tcp_info::{Recovery, TcpInfo};
use bentpipe_sim::scenario::LegSpec;
use bentpipe_sim::{LegResult, Observer, Scenario, SplitterResult};
use bentpipe_tcp::congestion::NO_SSTHRESH;
use bentpipe_tcp::{Statistics, Variables};
use bentpipe_testbed::SatelliteLink;
use bentpipe_units::Time;

use super::hosts::Hosts;
use super::next;
use super::plan::{Plan, round_trip};
use super::traffic::Shared;
use crate::Error;

/// The longest interval between two looks: so much of a connection's last counts may be missing.
const INTERVAL: Duration = Duration::from_millis(100);
/// Looks in a round trip that is long, and the longest interval between two then.
const LOOKS_IN_ROUND_TRIP: u32 = 20;
const LONGEST_INTERVAL: Duration = Duration::from_secs(1);
/// The interval between two questions whether all flows have ended: their sockets say for a moment longer
/// what they did.
const ENDED_INTERVAL: Duration = Duration::from_millis(20);

/// What a run was seen to do.
#[derive(Debug)]
pub(super) struct Samples {
    pub flows: Vec<FlowSamples>,
    /// What agents hold at the two ends of each link.
    pub held: Vec<[Held; 2]>,
    /// The end of the run.
    pub until: Time,
}

/// What a flow was seen to do.
#[derive(Debug, Clone)]
pub(super) struct FlowSamples {
    pub legs: Vec<LegResult>,
    /// Whether each leg's sender was in fast recovery at the last look.
    recovering: Vec<bool>,
    /// What its splitters hold.
    pub held: Vec<Held>,
    /// What its splitters have received.
    taken: Vec<u64>,
    /// What its destination had received at the last look.
    pub received: u64,
}

/// Bytes held over time.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Held {
    most: u64,
    sum: f64,
    count: u64,
}

impl Held {
    fn observe(&mut self, bytes: u64) {
        self.most = self.most.max(bytes);
        self.sum += bytes as f64;
        self.count += 1;
    }

    pub(super) fn result(&self) -> SplitterResult {
        SplitterResult { most_bytes: self.most, mean_bytes: self.sum / self.count.max(1) as f64 }
    }
}

/// Looks at a run.
pub(super) struct Sampler<'a> {
    scenario: &'a Scenario,
    plan: &'a Plan,
    hosts: &'a Hosts,
    shared: &'a [Shared],
    /// The nodes that have senders.
    nodes: Vec<Node>,
    by_port: HashMap<u16, usize>,
    samples: Samples,
}

/// A node whose connections are looked at. To list them the kernel looks at every socket of the machine, which
/// takes milliseconds; so that is done only while connections are expected that have not been met.
struct Node {
    node: usize,
    diag: SockDiag,
    /// How many of its connections belong to each flow.
    wanted: HashMap<usize, usize>,
    met: HashMap<usize, HashSet<SocketId>>,
    alive: Vec<SocketId>,
}

impl Node {
    fn new(node: usize, diag: SockDiag, plan: &Plan) -> Self {
        let mut wanted = HashMap::new();
        for (flow, plan) in plan.flows.iter().enumerate() {
            let splitters = plan.senders.iter().skip(1).filter(|sender| **sender == node).count();
            let begins = plan.senders.first() == Some(&node);
            wanted.insert(flow, 2 * splitters + usize::from(begins));
        }
        Self { node, diag, wanted, met: HashMap::new(), alive: Vec::new() }
    }

    /// Its connections that `flow_of` knows, where the flows that are `under_way` have connections.
    fn connections(
        &mut self,
        flow_of: impl Fn(&ConnectionInfo) -> Option<usize>,
        under_way: impl Fn(usize) -> bool,
    ) -> io::Result<Vec<(usize, ConnectionInfo)>> {
        let is_met = |(flow, count): (&usize, &usize)| self.met.get(flow).map_or(0, HashSet::len) >= *count;
        let found = if self.wanted.iter().all(|wanted| !under_way(*wanted.0) || is_met(wanted)) {
            let mut found = Vec::new();
            for id in &self.alive {
                found.extend(self.diag.connection_info(id)?);
            }
            found
        } else {
            self.diag.connection_infos()?
        };
        let found = found.into_iter().filter_map(|found| Some((flow_of(&found)?, found)));
        let found: Vec<_> = found.collect();
        self.alive = found.iter().map(|(_, found)| found.id).collect();
        for (flow, found) in &found {
            self.met.entry(*flow).or_default().insert(found.id);
        }
        Ok(found)
    }
}

impl<'a> Sampler<'a> {
    pub(super) fn new(
        scenario: &'a Scenario,
        plan: &'a Plan,
        hosts: &'a Hosts,
        shared: &'a [Shared],
    ) -> Result<Self, Error> {
        let fail = |source| Error::Transfer { run: scenario.title.clone(), source };
        let mut senders: Vec<usize> =
            plan.flows.iter().flat_map(|flow| flow.senders.iter().copied()).collect();
        senders.sort_unstable();
        senders.dedup();
        let mut nodes = Vec::new();
        for node in senders {
            nodes.push(Node::new(node, hosts.nodes[node].run(SockDiag::open)?.map_err(fail)?, plan));
        }
        let leg =
            |spec| LegResult { syns: None, recoveries: countable(scenario, spec), ..LegResult::default() };
        let flows = scenario.flows.iter().map(|flow| FlowSamples {
            legs: flow.legs.iter().map(leg).collect(),
            recovering: vec![false; flow.legs.len()],
            held: vec![Held::default(); flow.splitters.len()],
            taken: vec![0; flow.splitters.len()],
            received: 0,
        });
        let held = scenario.links.iter().map(|_| [Held::default(); 2]).collect();
        let samples = Samples { flows: flows.collect(), held, until: Time::ZERO };
        let by_port = plan.flows.iter().enumerate().map(|(index, flow)| (flow.port, index)).collect();
        Ok(Self { scenario, plan, hosts, shared, nodes, by_port, samples })
    }

    /// Looks until the scenario's duration is over, every flow has ended, or the observer wants no more.
    pub(super) fn watch(mut self, observer: &mut dyn Observer) -> Result<Samples, Error> {
        let zero = self.hosts.zero;
        std::thread::sleep(zero.saturating_duration_since(Instant::now()));
        let interval = self.scenario.sample_interval;
        let mut look_interval = INTERVAL.min(interval);
        if !observer.wants_samples() {
            look_interval = look_interval.max(self.long_interval());
        }
        let (mut look_at, mut sample_at) = (zero, zero);
        loop {
            // On a busy machine the last look may be late. Then the run has lasted for longer: what arrived
            // meanwhile counts.
            let elapsed = zero.elapsed();
            let now = Time::ZERO + elapsed;
            let is_over = elapsed >= self.scenario.duration || self.all_over();
            let samples = observer.wants_samples() && (Instant::now() >= sample_at || is_over);
            if samples {
                next(&mut sample_at, interval);
            }
            self.look(now, samples.then_some(&mut *observer))?;
            if is_over || !observer.progress(now) {
                self.samples.until = now;
                return Ok(self.samples);
            }
            next(&mut look_at, look_interval);
            let end = zero + self.scenario.duration;
            while Instant::now() < look_at.min(end) && !self.all_over() {
                std::thread::sleep(
                    look_at.min(end).saturating_duration_since(Instant::now()).min(ENDED_INTERVAL),
                );
            }
        }
    }

    /// How often to look at connections whose round trips are long.
    fn long_interval(&self) -> Duration {
        let legs = self.scenario.flows.iter().flat_map(|flow| &flow.legs);
        let shortest = legs.map(|leg| round_trip(self.scenario, leg)).min().unwrap_or_default();
        (shortest / LOOKS_IN_ROUND_TRIP).min(LONGEST_INTERVAL)
    }

    fn all_over(&self) -> bool {
        // Without flows a run lasts as long as it may.
        !self.shared.is_empty() && self.shared.iter().all(|shared| shared.over.load(Ordering::Relaxed))
    }

    fn look(&mut self, now: Time, mut observer: Option<&mut (dyn Observer + '_)>) -> Result<(), Error> {
        let fail = |source| Error::Transfer { run: self.scenario.title.clone(), source };
        // First of all: what follows takes its time.
        for (samples, shared) in self.samples.flows.iter_mut().zip(self.shared) {
            samples.received = shared.received.load(Ordering::Relaxed);
        }
        // What each splitter of each flow has sent on for good. The rest of what it has received it holds: in
        // its sockets, and between them, where a proxy's pipe has half a megabyte that no socket tells of.
        let mut passed: HashMap<(usize, usize), u64> = HashMap::new();
        let flow_of = |found: &ConnectionInfo| {
            let ports = [found.local.port(), found.remote.port()];
            ports.iter().find_map(|port| self.by_port.get(port)).copied()
        };
        let under_way = |flow: usize| {
            self.scenario.flows[flow].start <= now && !self.shared[flow].over.load(Ordering::Relaxed)
        };
        for node in &mut self.nodes {
            for (flow, found) in node.connections(flow_of, under_way).map_err(fail)? {
                let plan = &self.plan.flows[flow];
                let splitter = self.scenario.flows[flow].splitters.iter().position(|at| at.node == node.node);
                let sends = found.remote.ip() == plan.destination;
                if let Some(splitter) = splitter {
                    if sends {
                        passed.insert((flow, splitter), acknowledged(&found.info));
                    } else {
                        let taken = &mut self.samples.flows[flow].taken[splitter];
                        *taken = found.info.bytes_received.max(*taken);
                    }
                }
                if let (true, Some(leg)) =
                    (sends, plan.senders.iter().position(|sender| *sender == node.node))
                {
                    self.samples.flows[flow].note(leg, now, &found);
                    if let Some(observer) = &mut observer {
                        let done = statistics(&self.samples.flows[flow].legs[leg]);
                        observer.variables(now, flow, leg, &variables(&found.info), &done);
                    }
                }
            }
        }
        for (flow, samples) in self.samples.flows.iter_mut().enumerate() {
            for (splitter, sum) in samples.held.iter_mut().enumerate() {
                let taken = samples.taken[splitter];
                let bytes = passed.get(&(flow, splitter)).map_or(0, |passed| taken.saturating_sub(*passed));
                sum.observe(bytes);
                if let Some(observer) = &mut observer {
                    observer.occupancy(now, flow, splitter, bytes);
                }
            }
        }
        for (index, link) in self.hosts.links.iter().enumerate() {
            let held = self.held_at_ends(index, link);
            for (end, bytes) in held.into_iter().enumerate() {
                self.samples.held[index][end].observe(bytes);
            }
            let Some(observer) = &mut observer else { continue };
            let ((forward, reverse), counters) = (link.backlog(), link.counters());
            observer.queue(now, index, true, forward, &counters.0);
            observer.queue(now, index, false, reverse, &counters.1);
            for (end, bytes) in held.into_iter().enumerate() {
                let spec = &self.scenario.links[index];
                if spec.protect.is_some() || !spec.ends[end].is_nothing() {
                    observer.held(now, index, end, bytes);
                }
            }
        }
        if let Some(observer) = &mut observer {
            for (flow, samples) in self.samples.flows.iter().enumerate() {
                observer.received(now, flow, samples.received);
            }
        }
        Ok(())
    }

    /// The bytes that each end of a link holds: its agents, or the daemon with its protected leg.
    fn held_at_ends(&self, index: usize, link: &SatelliteLink) -> [u64; 2] {
        let spec = &self.scenario.links[index];
        if spec.protect.is_none() {
            return link.held_bytes();
        }
        spec.between.map(|node| {
            let stats = self.hosts.daemons[node].as_ref().map(|daemon| daemon.stats().protect);
            stats.map_or(0, |stats| stats.queued_bytes + stats.held_bytes)
        })
    }
}

impl FlowSamples {
    fn note(&mut self, leg: usize, now: Time, found: &ConnectionInfo) {
        let recovers = found.info.recovery == Recovery::FastRecovery;
        let recovered = std::mem::replace(&mut self.recovering[leg], recovers);
        if let Some(recoveries) = &mut self.legs[leg].recoveries {
            *recoveries += u64::from(recovers && !recovered);
        }
        note(&mut self.legs[leg], now, found);
    }
}

/// No recoveries yet, if each would be seen: it lasts for a round trip. Linux does not count them.
fn countable(scenario: &Scenario, leg: &LegSpec) -> Option<u64> {
    (round_trip(scenario, leg) >= 2 * INTERVAL).then_some(0)
}

fn note(leg: &mut LegResult, now: Time, found: &ConnectionInfo) {
    let info = &found.info;
    leg.established_s.get_or_insert(now.as_secs_f64());
    leg.bytes_sent = info.bytes_sent;
    leg.bytes_acknowledged = acknowledged(info);
    leg.segments = u64::from(info.data_segments_out);
    leg.retransmissions = u64::from(info.retransmissions);
    leg.timeouts = u64::from(info.timeouts);
    leg.duplicate_bytes = u64::from(info.duplicates) * u64::from(info.mss);
}

/// The SYN counts among them.
fn acknowledged(info: &TcpInfo) -> u64 {
    info.bytes_acked.saturating_sub(1)
}

fn statistics(leg: &LegResult) -> Statistics {
    Statistics {
        segments: leg.segments,
        bytes_sent: leg.bytes_sent,
        bytes_acknowledged: leg.bytes_acknowledged,
        retransmissions: leg.retransmissions,
        timeouts: leg.timeouts,
        recoveries: leg.recoveries.unwrap_or_default(),
        established_at: leg.established_s.map(|at| Time::ZERO + Duration::from_secs_f64(at)),
        ..Statistics::default()
    }
}

fn variables(info: &TcpInfo) -> Variables {
    let bytes = |segments: u32| u64::from(segments) * u64::from(info.mss);
    Variables {
        cwnd: bytes(info.cwnd),
        ssthresh: if info.ssthresh == TcpInfo::NO_SSTHRESH { NO_SSTHRESH } else { bytes(info.ssthresh) },
        srtt: info.srtt,
        rttvar: info.rttvar,
        min_rtt: info.min_rtt,
        rto: info.rto,
        backoff: info.backoff,
        in_flight: bytes(info.in_flight()),
        recovering: matches!(info.recovery, Recovery::FastRecovery | Recovery::Loss),
    }
}
