//! What a scenario becomes on this machine: hosts with their settings, addresses and routes, and what the
//! kernel does otherwise than the scenario says. Pure: nothing is set up here.

mod leg;
mod protected;
mod settings;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::time::Duration;

use bentpipe_link::agent::xcp::control::IDLE_OFFER;
use bentpipe_link::agent::{AgentConfig, LinkEndConfig};
use bentpipe_sim::Scenario;
use bentpipe_sim::scenario::{FlowSpec, Hop, LegSpec, UdpSpec};
use bentpipe_tcp::congestion::Algorithm;
use bentpipe_tcp::{Config, SynSchedule};
use bentpipe_testbed::Subnet;
use bentpipe_units::Rate;

use crate::Error;
use leg::{LegPlan, kernel_name};
use settings::OPTIONS;

/// The longest name of an interface (`IFNAMSIZ` less its end).
const MOST_OF_A_NAME: usize = 15;
/// Groups and links are numbered by an octet of an address.
const MOST_NUMBERED: usize = 250;
/// The first port at which a flow's side listens that does not open it.
const FIRST_PORT: u16 = 10_000;

/// A scenario for this machine.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The host of each node.
    pub hosts: Vec<Host>,
    /// The name of each link's interfaces.
    pub interfaces: Vec<String>,
    /// The agents and the ARQ at the two ends of each link. A daemon with a leg of XCP has its own router
    /// at that end: the scenario's would be a second one in front of the same queue.
    pub ends: Vec<[LinkEndConfig; 2]>,
    /// Each flow.
    pub flows: Vec<FlowPlan>,
    /// Each UDP stream.
    pub udp: Vec<UdpPlan>,
    /// What this kernel does otherwise than the scenario says, each once.
    pub differences: BTreeSet<String>,
}

/// A host.
#[derive(Debug, Default)]
pub(super) struct Host {
    pub forwards: bool,
    pub addresses: BTreeSet<Ipv4Addr>,
    /// Arguments of `ip route replace`, by destination.
    pub routes: BTreeMap<Ipv4Addr, String>,
    pub multicast: Vec<MulticastRoute>,
    /// Kernel settings, and who wants each.
    pub settings: BTreeMap<&'static str, (String, String)>,
    /// Options of the handshake that one of its endpoints has.
    options: [bool; OPTIONS.len()],
    /// The maximum RTO of its senders, where it has any.
    rto_max: Option<Duration>,
    /// The schedules of its SYNs, and of its answers to SYNs, each once.
    schedules: [Vec<SynSchedule>; 2],
    /// The largest windows, bytes, at first and ever: of its receivers and its senders.
    buffers: [[u64; 2]; 2],
    /// The legs of the daemon that splits here, by link; none where nothing is split.
    legs: BTreeMap<usize, LegPlan>,
}

/// A flow, and where to find its connections.
#[derive(Debug)]
pub(super) struct FlowPlan {
    pub source: Ipv4Addr,
    pub destination: Ipv4Addr,
    /// The port of the side that does not open it, which no other flow has.
    pub port: u16,
    /// The nodes of its two ends.
    pub ends: [usize; 2],
    /// The node of each leg's sending end.
    pub senders: Vec<usize>,
    /// The congestion controls of the source's own socket and of the destination's.
    pub congestion: [Option<Control>; 2],
}

/// The congestion control of a host's own socket.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Control {
    pub name: String,
    /// Of its link, as far as the host knows it.
    pub capacity: Option<Rate>,
}

/// A UDP stream, and where to find its sockets.
#[derive(Debug)]
pub(super) struct UdpPlan {
    pub source: Ipv4Addr,
    /// The receiver's address or, of several, their group.
    pub to: SocketAddrV4,
    /// By multicast: the addresses of the source's interfaces by which it leaves. A datagram is sent once by
    /// each.
    pub leaves_by: Vec<Ipv4Addr>,
    /// By multicast: of each receiver, the address of the interface by which it comes.
    pub comes_by: Vec<Ipv4Addr>,
}

/// A host copies what comes for a group by one of its interfaces to others, each named by its address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MulticastRoute {
    pub source_and_group: [Ipv4Addr; 2],
    pub comes_by: Ipv4Addr,
    pub leaves_by: Vec<Ipv4Addr>,
}

impl Plan {
    /// Plans a scenario.
    ///
    /// # Errors
    /// It needs what a kernel cannot do: [`Error::NotOnKernel`].
    pub(super) fn of(scenario: &Scenario) -> Result<Self, Error> {
        if scenario.links.len() > MOST_NUMBERED {
            return Err(refused(format!("it has more than {MOST_NUMBERED} links")));
        }
        let mut plan = Self {
            hosts: scenario.nodes.iter().map(|_| Host::default()).collect(),
            interfaces: interfaces(scenario),
            ends: scenario.links.iter().map(|link| link.ends.clone()).collect(),
            ..Self::default()
        };
        // Flows alike share their addresses and routes.
        let mut groups: Vec<&FlowSpec> = Vec::new();
        for (index, flow) in scenario.flows.iter().enumerate() {
            let alike = |other: &&FlowSpec| other.legs == flow.legs && other.splitters == flow.splitters;
            let group = match groups.iter().position(alike) {
                Some(group) => group,
                None => {
                    groups.push(flow);
                    plan.add_group(scenario, flow, groups.len() - 1)?;
                    groups.len() - 1
                }
            };
            plan.add_flow(scenario, flow, group, index)?;
        }
        for flow in &scenario.flows {
            plan.check_options(scenario, flow)?;
        }
        for (index, stream) in scenario.udp.iter().enumerate() {
            plan.add_udp(scenario, stream, groups.len() + index, scenario.flows.len() + index)?;
        }
        plan.settle()?;
        plan.leave_routers_to_daemons(scenario);
        plan.add_protected_legs(scenario)?;
        Ok(plan)
    }

    /// The configuration of the daemon of a host that splits or protects; the key of protected legs is in
    /// `key_file`.
    pub(super) fn daemon(&self, host: usize, key_file: &Path) -> Option<String> {
        let mut text = String::new();
        let legs = &self.hosts[host].legs;
        for (link, leg) in legs {
            let interface = &self.interfaces[*link];
            text += &leg.text(interface);
            if let Some(protect) = &leg.protect {
                text += &protect.text(interface, key_file);
            }
        }
        if legs.values().any(|leg| leg.protect.is_some()) {
            text += protected::RULE;
        }
        (!text.is_empty()).then_some(text)
    }

    fn add_flow(
        &mut self,
        scenario: &Scenario,
        flow: &FlowSpec,
        group: usize,
        index: usize,
    ) -> Result<(), Error> {
        let [source, destination] = addresses(group);
        let sends = |leg: &LegSpec| node_before(scenario, leg.path[0]);
        if matches!(flow.legs[0].sender.congestion, Algorithm::Explicit { .. }) {
            let node = &scenario.nodes[sends(&flow.legs[0])];
            return Err(refused(format!(
                "flow {} has explicit rates at its source {node}: on the kernel a gateway's daemon gives them; \
                 split the flow at a gateway",
                flow.name
            )));
        }
        if flow.legs.iter().any(|leg| leg.sender.congestion == Algorithm::Bbr3) {
            return Err(refused(format!("flow {} has BBR version 3, which Linux has not", flow.name)));
        }
        self.flows.push(FlowPlan {
            source,
            destination,
            port: port(index)?,
            ends: [
                sends(&flow.legs[0]),
                node_behind(scenario, *last(&flow.legs).path.last().expect("a hop")),
            ],
            senders: flow.legs.iter().map(sends).collect(),
            congestion: [Some(Control::of_source(scenario, flow)), Control::of_destination(flow)],
        });
        Ok(())
    }

    /// The addresses, routes and settings of flows that are alike.
    fn add_group(&mut self, scenario: &Scenario, flow: &FlowSpec, group: usize) -> Result<(), Error> {
        if group >= MOST_NUMBERED {
            return Err(refused(format!("more than {MOST_NUMBERED} of its flows differ in path or TCP")));
        }
        if flow.bundles.is_some() {
            return Err(refused(format!("flow {} is carried in bundles", flow.name)));
        }
        let [source, destination] = addresses(group);
        let (first, behind) =
            (flow.legs[0].path[0], *last(&flow.legs).path.last().expect("a leg has a link"));
        self.hosts[node_before(scenario, first)].addresses.insert(source);
        self.hosts[node_behind(scenario, behind)].addresses.insert(destination);
        for leg in &flow.legs {
            let ends =
                [&leg.sender, &leg.receiver].map(|config| config.mss).into_iter().min().unwrap_or(u16::MAX);
            for (place, hop) in leg.path.iter().enumerate() {
                let (near, far) = (node_before(scenario, *hop), node_behind(scenario, *hop));
                let [left, right] = ends_of(*hop);
                let interface = &self.interfaces[hop.link];
                let of_sender = if place == 0 { sender_attributes(&leg.sender) } else { String::new() };
                let is_last = place + 1 == leg.path.len();
                let mut of_receiver =
                    if is_last { receiver_attributes(&leg.receiver) } else { String::new() };
                let is_splitter = is_last && far != node_behind(scenario, behind);
                if is_splitter && leg.receiver.receive_autotuning.is_none() {
                    // The first window is offered before the kernel knows how much memory a segment takes.
                    of_receiver += &format!(" initrwnd {}", leg.sender.initial_window.max(FIRST_WINDOW));
                }
                let there = format!("{destination}/32 via {right} dev {interface} advmss {ends}{of_sender}");
                let back = format!("{source}/32 via {left} dev {interface} advmss {ends}{of_receiver}");
                self.hosts[near].routes.insert(destination, there);
                self.hosts[far].routes.insert(source, back);
                self.hosts[near].forwards |= near != node_before(scenario, first);
            }
            self.add_leg(scenario, leg, flow.opened_by)?;
            self.note_differences(leg);
        }
        for (splitter, legs) in flow.splitters.iter().zip(flow.legs.windows(2)) {
            self.hosts[splitter.node].forwards = true;
            let (incoming, outgoing) = (*last_hop(&legs[0]), legs[1].path[0]);
            let arrives = LegPlan::of_receiver(scenario, &legs[0]);
            let leaves = LegPlan::of_sender(scenario, &legs[1])?;
            for (hop, leg) in [(incoming, arrives), (outgoing, leaves)] {
                let legs = &mut self.hosts[splitter.node].legs;
                let merged = legs.entry(hop.link).or_default().merged(leg).ok_or_else(|| {
                    let (node, link) = (&scenario.nodes[splitter.node], &scenario.links[hop.link].name);
                    refused(format!(
                        "its flows have different TCPs at {node} towards {link}: on the kernel a gateway has one \
                         for each link"
                    ))
                })?;
                legs.insert(hop.link, merged);
            }
        }
        Ok(())
    }

    /// The addresses and routes of a UDP stream; `group` is the number of its addresses, `index` that of its
    /// port.
    fn add_udp(
        &mut self,
        scenario: &Scenario,
        spec: &UdpSpec,
        group: usize,
        index: usize,
    ) -> Result<(), Error> {
        if group >= MOST_NUMBERED {
            return Err(refused(format!(
                "more than {MOST_NUMBERED} of its flows and UDP streams differ in path or TCP"
            )));
        }
        let port = port(index)?;
        let ([source, destination], multicast) = (addresses(group), multicast_group(group));
        self.hosts[spec.source].addresses.insert(source);
        let is_multicast = spec.receivers.len() > 1;
        let mut copies: BTreeMap<usize, MulticastRoute> = BTreeMap::new();
        let mut stream = UdpPlan {
            source,
            to: SocketAddrV4::new(if is_multicast { multicast } else { destination }, port),
            leaves_by: Vec::new(),
            comes_by: Vec::new(),
        };
        for receiver in &spec.receivers {
            for (place, hop) in receiver.path.iter().enumerate() {
                let (near, far) = (node_before(scenario, *hop), node_behind(scenario, *hop));
                let ([left, right], interface) = (ends_of(*hop), &self.interfaces[hop.link]);
                // Where the kernel checks by which way a source is reached, the way back has to lead there.
                let back = format!("{source}/32 via {left} dev {interface}");
                self.hosts[far].routes.insert(source, back);
                self.hosts[near].forwards |= near != spec.source;
                let leaves_by = match place.checked_sub(1).map(|before| ends_of(receiver.path[before])[1]) {
                    None => &mut stream.leaves_by,
                    Some(comes_by) => {
                        let source_and_group = [source, multicast];
                        let new = || MulticastRoute { source_and_group, comes_by, leaves_by: Vec::new() };
                        &mut copies.entry(near).or_insert_with(new).leaves_by
                    }
                };
                if !leaves_by.contains(&left) {
                    leaves_by.push(left);
                }
                if !is_multicast {
                    let there = format!("{destination}/32 via {right} dev {interface}");
                    self.hosts[near].routes.insert(destination, there);
                }
            }
            stream.comes_by.push(ends_of(*receiver.path.last().expect("a path has a link"))[1]);
        }
        if is_multicast {
            copies.into_iter().for_each(|(node, route)| self.hosts[node].multicast.push(route));
        } else {
            self.hosts[spec.receivers[0].node].addresses.insert(destination);
        }
        self.udp.push(stream);
        Ok(())
    }

    /// Whether datagrams are copied on the way.
    pub(super) fn has_multicast(&self) -> bool {
        self.udp.iter().any(|stream| stream.to.ip().is_multicast())
    }

    /// Removes the routers of XCP from the ends of links where daemons have theirs. A header that passes
    /// two routers keeps the smaller feedback of each packet's, so that a sender gets less than either has
    /// decided.
    fn leave_routers_to_daemons(&mut self, scenario: &Scenario) {
        for (node, host) in self.hosts.iter().enumerate() {
            for (&index, leg) in &host.legs {
                let Some(router) = leg.xcp_router() else { continue };
                let link = &scenario.links[index];
                let end = usize::from(link.between[1] == node);
                let agents = &mut self.ends[index][end].agents;
                let known = agents.iter().position(|agent| matches!(agent, AgentConfig::Xcp(_)));
                let replaced = known.map(|place| agents.remove(place));
                if leg.sends && replaced != Some(AgentConfig::Xcp(router)) {
                    self.differences.insert(format!(
                        "the router of XCP at {} in front of link {} is its daemon's, with the leg's variant \
                         and rate, the published gains, and an offer of {:.0}% of an idle link",
                        scenario.nodes[node],
                        link.name,
                        100.0 * IDLE_OFFER
                    ));
                }
            }
        }
    }
}

impl Control {
    fn of_source(scenario: &Scenario, flow: &FlowSpec) -> Self {
        let leg = &flow.legs[0];
        let config = &scenario.links[leg.path[0].link].config;
        let direction = if leg.path[0].forward { &config.forward } else { &config.reverse };
        Self { name: kernel_name(leg.sender.congestion), capacity: direction.rate }
    }

    /// XCP's receiver returns the feedback, so it must speak XCP, too. It sends nothing, and so requests
    /// nothing.
    fn of_destination(flow: &FlowSpec) -> Option<Self> {
        let congestion = last(&flow.legs).sender.congestion;
        congestion.wants_feedback().then(|| Self { name: kernel_name(congestion), capacity: None })
    }
}

/// The least that a splitter offers as its first window, in segments: the initial window of RFC 6928.
const FIRST_WINDOW: u32 = 10;

/// The attributes of a route by which a sender sends.
fn sender_attributes(config: &Config) -> String {
    format!(" initcwnd {} rto_min {}ms", config.initial_window, config.rto.min.as_millis().max(1))
}

/// The attributes of a route by which a receiver acknowledges.
fn receiver_attributes(config: &Config) -> String {
    if config.delayed_ack.is_none() { " quickack 1".to_owned() } else { String::new() }
}

/// The round trip of an empty path, there and back.
pub(super) fn round_trip(scenario: &Scenario, leg: &LegSpec) -> Duration {
    let both = |hop: &Hop| {
        let config = &scenario.links[hop.link].config;
        config.forward.delay + config.reverse.delay
    };
    leg.path.iter().map(both).sum()
}

fn last(legs: &[LegSpec]) -> &LegSpec {
    legs.last().expect("a flow has a leg")
}

fn last_hop(leg: &LegSpec) -> &Hop {
    leg.path.last().expect("a leg has a link")
}

/// The node from which a hop starts.
fn node_before(scenario: &Scenario, hop: Hop) -> usize {
    scenario.links[hop.link].between[usize::from(!hop.forward)]
}

/// The node at which a hop ends.
fn node_behind(scenario: &Scenario, hop: Hop) -> usize {
    scenario.links[hop.link].between[usize::from(hop.forward)]
}

/// The addresses of a hop's two ends, in its direction.
fn ends_of(hop: Hop) -> [Ipv4Addr; 2] {
    let subnet = Subnet::new(hop.link as u8);
    if hop.forward { [subnet.left4(), subnet.right4()] } else { [subnet.right4(), subnet.left4()] }
}

/// The addresses of the sources and of the destinations of a group.
fn addresses(group: usize) -> [Ipv4Addr; 2] {
    [1, 2].map(|end| Ipv4Addr::new(10, 99, group as u8, end))
}

/// The group of a UDP stream to several nodes, of those that each site uses as it likes (RFC 2365 §6.2).
fn multicast_group(group: usize) -> Ipv4Addr {
    Ipv4Addr::new(239, 192, group as u8, 1)
}

/// The port of a flow or of a stream, which no other has.
fn port(index: usize) -> Result<u16, Error> {
    FIRST_PORT
        .checked_add(u16::try_from(index).unwrap_or(u16::MAX))
        .ok_or_else(|| refused("it has more flows and UDP streams than there are ports".into()))
}

/// Links have their own names where these can be names of interfaces.
fn interfaces(scenario: &Scenario) -> Vec<String> {
    let plain = |name: &str| {
        let fits =
            name.len() <= MOST_OF_A_NAME && name.starts_with(|first: char| first.is_ascii_alphabetic());
        fits && name != "lo" && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    let all_plain = scenario.links.iter().all(|link| plain(&link.name));
    let name = |(index, link): (usize, &bentpipe_sim::scenario::LinkSpec)| {
        if all_plain { link.name.clone() } else { format!("link{index}") }
    };
    scenario.links.iter().enumerate().map(name).collect()
}

pub(super) fn refused(why: String) -> Error {
    Error::NotOnKernel { why }
}

#[cfg(test)]
mod tests;
