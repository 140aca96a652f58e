//! The hosts, links and daemons of a plan, set up in network namespaces.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bentpipe_kernel::congestion::{self, ResolvedCongestionControl};
use bentpipe_kernel::multicast::MulticastRoutes;
use bentpipe_proxy::Config;
use bentpipe_sim::Scenario;
use bentpipe_testbed::{Namespace, SatelliteLink, Subnet, forwarding};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::plan::{Control, FlowPlan, Host, Plan, refused};
use crate::Error;
use crate::topology::Proxy;
use crate::unsplit::Key;

/// The maximum transmission unit of a link whose packets are no longer, bytes.
const MTU: u32 = 1500;
/// The headers of IPv4 and TCP without options.
const HEADERS: u32 = 40;
/// The time that it takes to set up a topology, and each of its hosts and links.
const SET_UP: (Duration, Duration) = (Duration::from_millis(500), Duration::from_millis(150));
/// Attempts to set up a topology in time, each with twice as much of it: a machine may be busy.
const ATTEMPTS: u32 = 6;
/// The routes are static, so that hosts need not tell which groups they want, and these packets are not the
/// scenario's.
const NO_IGMP: &str = "table ip bentpipe_lab {
    chain output { type filter hook output priority 0; ip protocol igmp drop; }
}";
/// One topology is set up at a time: side by side, each would take as long as all of them.
static SET_UPS: Mutex<()> = Mutex::new(());

/// Running hosts. Everything is removed when this value is dropped.
#[derive(Debug)]
pub(super) struct Hosts {
    // Daemons end before their links and namespaces.
    /// The daemon of each node that has one.
    pub daemons: Vec<Option<Proxy>>,
    /// That of protected legs, where there are any.
    _key: Option<Key>,
    _multicast: Vec<MulticastRoutes>,
    pub links: Vec<SatelliteLink>,
    pub nodes: Vec<Namespace>,
    /// The congestion controls of each flow's source and destination.
    pub congestion: Vec<[Option<ResolvedCongestionControl>; 2]>,
    /// When the scenario's time is zero.
    pub zero: Instant,
}

impl Hosts {
    /// Sets everything up before the scenario's time begins.
    pub(super) fn set_up(scenario: &Scenario, plan: &Plan, seed: u64) -> Result<Self, Error> {
        let parts = (scenario.nodes.len() + scenario.links.len()) as u32;
        let settles = Plan::settles_in(scenario).unwrap_or_default();
        let mut ahead = SET_UP.0 + parts * SET_UP.1 + settles;
        let _turn = SET_UPS.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..ATTEMPTS {
            let hosts = Self::set_up_by(Instant::now() + ahead, scenario, plan, seed)?;
            if Instant::now() + settles < hosts.zero {
                return Ok(hosts);
            }
            ahead *= 2;
        }
        Err(Error::Scenario(format!(
            "{} hosts and links were not set up within {} s: the machine is too busy for a run in real time",
            parts,
            (ahead / 2).as_secs()
        )))
    }

    fn set_up_by(zero: Instant, scenario: &Scenario, plan: &Plan, seed: u64) -> Result<Self, Error> {
        let nodes: Vec<Namespace> =
            scenario.nodes.iter().map(|name| Namespace::new(name)).collect::<Result<_, _>>()?;
        let (mut random, mtu) = (SplitMix64::seed_from_u64(seed), mtu(scenario));
        let mut links = Vec::new();
        for (index, link) in scenario.links.iter().enumerate() {
            let interface = plan.interfaces[index].as_str();
            let [left, right] = link.between.map(|node| &nodes[node]);
            let ends = [(left, interface), (right, interface)];
            let seed = random.next_u64();
            let zero = if Plan::runs_before(link) { Instant::now() } else { zero };
            let started =
                SatelliteLink::start_at(zero, ends[0], ends[1], &link.config, &plan.ends[index], seed, mtu)?;
            Subnet::new(index as u8).assign(left, interface, right, interface)?;
            links.push(started);
        }
        for (node, host) in nodes.iter().zip(&plan.hosts) {
            if host.forwards {
                forwarding(node)?;
            }
            let addresses = host.addresses.iter().map(|address| format!("addr add {address}/32 dev lo\n"));
            let routes = host.routes.values().map(|route| format!("route replace {route}\n"));
            node.ip_batch(&addresses.chain(routes).collect::<String>())?;
            for (key, (value, _)) in &host.settings {
                node.sysctl(key, value)?;
            }
        }
        let mut multicast = Vec::new();
        if plan.has_multicast() {
            for (node, host) in nodes.iter().zip(&plan.hosts) {
                node.nft(NO_IGMP)?;
                multicast.extend(copy_multicast(node, host)?);
            }
        }
        let key = Plan::settles_in(scenario).map(|_| Key::new()).transpose()?;
        let key_file = key.as_ref().map(Key::file).unwrap_or_default();
        let start = |(index, node)| {
            let Some(text) = plan.daemon(index, &key_file) else { return Ok(None) };
            let config = Config::parse(&format!("the configuration of {}", scenario.nodes[index]), &text)
                .map_err(|error| Error::Scenario(error.to_string()))?;
            Proxy::start(node, &config).map(Some)
        };
        let daemons = nodes.iter().enumerate().map(start).collect::<Result<_, _>>()?;
        let congestion = plan.flows.iter().map(|flow| controls(&nodes, flow)).collect::<Result<_, _>>()?;
        Ok(Self { daemons, _key: key, _multicast: multicast, links, congestion, nodes, zero })
    }
}

/// Loads the congestion controls of a flow's own sockets, each in its host, where XCP's belongs to
/// interfaces.
fn controls(nodes: &[Namespace], flow: &FlowPlan) -> Result<[Option<ResolvedCongestionControl>; 2], Error> {
    let resolve = |end: usize| {
        let Some(Control { name, capacity }) = &flow.congestion[end] else { return Ok(None) };
        let leg = ["source", "destination"][end];
        Ok::<_, Error>(Some(nodes[flow.ends[end]].run(|| congestion::resolve(name, leg, *capacity))?))
    };
    Ok([resolve(0)?, resolve(1)?])
}

/// Sets the multicast routes of a host that has any.
fn copy_multicast(node: &Namespace, host: &Host) -> Result<Option<MulticastRoutes>, Error> {
    if host.multicast.is_empty() {
        return Ok(None);
    }
    let routes = node.run(|| {
        let mut routes = MulticastRoutes::begin()?;
        for route in &host.multicast {
            routes.add(route.source_and_group, route.comes_by, &route.leaves_by)?;
        }
        Ok(routes)
    })?;
    let why = |error: std::io::Error| {
        refused(format!("{} cannot copy UDP streams to several nodes: {error}", node.name()))
    };
    Ok(Some(routes.map_err(why)?))
}

/// All packets of all flows and streams fit: a stream's are not longer than [`MTU`].
fn mtu(scenario: &Scenario) -> u32 {
    let legs = scenario.flows.iter().flat_map(|flow| &flow.legs);
    let largest = legs.map(|leg| u32::from(leg.sender.mss.min(leg.receiver.mss)) + HEADERS).max();
    largest.unwrap_or(MTU).max(MTU)
}
