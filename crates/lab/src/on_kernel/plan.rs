//! What a scenario becomes on this machine: hosts with their settings, addresses and routes, and what the
//! kernel does otherwise than the scenario says. Pure: nothing is set up here.

mod protected;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::time::Duration;

use bentpipe_kernel::congestion;
use bentpipe_link::agent::xcp::control::IDLE_OFFER;
use bentpipe_link::agent::xcp::{Variant, XcpConfig};
use bentpipe_link::agent::{AgentConfig, LinkEndConfig};
use bentpipe_link::explicit::{CrossTrafficAqm, RateAllocatorConfig};
use bentpipe_sim::Scenario;
use bentpipe_sim::scenario::{FlowSpec, Hop, LegSpec, Side, UdpSpec};
use bentpipe_tcp::congestion::{Algorithm, Components, XcpSender};
use bentpipe_tcp::{Config, MetricsCache, Recovery, RtoLimits, SynSchedule};
use bentpipe_testbed::Subnet;
use bentpipe_units::{Rate, Span};

use crate::Error;
use protected::ProtectPlan;

/// The longest name of an interface (`IFNAMSIZ` less its end).
const MOST_OF_A_NAME: usize = 15;
/// Groups and links are numbered by an octet of an address.
const MOST_NUMBERED: usize = 250;
/// The first port at which a flow's side listens that does not open it.
const FIRST_PORT: u16 = 10_000;
/// The kernel's bookkeeping is about as large as the data.
const BOOKKEEPING: u64 = 2;
/// And more where segments are smaller, each of which counts as about 2400 bytes: with half the memory the
/// window of 32 segments of 1000 bytes was one of 26.
const SMALL_SEGMENTS: u64 = 2;

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

/// A leg of a daemon.
#[derive(Debug, Clone, PartialEq, Default)]
struct LegPlan {
    /// Flows are sent on it; others only arrive.
    sends: bool,
    congestion: Option<String>,
    rate: Option<Rate>,
    rtt: Duration,
    cross_traffic: Option<f64>,
    cross_traffic_aqm: Option<&'static str>,
    send_buffer: Option<u64>,
    receive_buffer: Option<u64>,
    /// It carries frames.
    protect: Option<ProtectPlan>,
}

/// The kinds of [`Host::schedules`]: SYNs, and the answers to SYNs.
const SYN: usize = 0;
const ANSWER: usize = 1;
/// The bounds of `tcp_rto_max_ms`, the larger of which is the default.
const RTO_MAX: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(120)];
/// The most SYNs that a host can be told to send (`MAX_TCP_SYNCNT`).
const MOST_SYNS: u32 = 127;

/// Whether an endpoint has an option of the handshake.
type Has = fn(&Config) -> bool;

/// The options of the handshake with their kernel settings.
const OPTIONS: [(&str, Has); 3] = [
    ("net.ipv4.tcp_sack", |config| config.sack),
    ("net.ipv4.tcp_timestamps", |config| config.timestamps),
    ("net.ipv4.tcp_window_scaling", |config| config.window_scaling),
];

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
                let of_receiver = if is_last { receiver_attributes(&leg.receiver) } else { String::new() };
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

    /// The settings of the hosts at the ends of a leg.
    fn add_leg(&mut self, scenario: &Scenario, leg: &LegSpec, opened_by: Side) -> Result<(), Error> {
        let (sends, receives) = (node_before(scenario, leg.path[0]), node_behind(scenario, *last_hop(leg)));
        let (sender, receiver) = (&leg.sender, &leg.receiver);
        for (node, config) in [(sends, sender), (receives, receiver)] {
            for (option, (_, has)) in self.hosts[node].options.iter_mut().zip(OPTIONS) {
                *option |= has(config);
            }
        }
        // A clamp bounds the window of a buffer that does not grow, so that its memory may be ample.
        let ample = if receiver.receive_autotuning.is_none() { SMALL_SEGMENTS } else { 1 };
        let sizes = [
            (receives, receiver.receive_autotuning, receiver.receive_buffer.saturating_mul(ample)),
            (sends, sender.send_autotuning, sender.send_buffer),
        ];
        for (end, (node, first, most)) in sizes.into_iter().enumerate() {
            let [known_first, known_most] = &mut self.hosts[node].buffers[end];
            *known_first = (*known_first).max(first.unwrap_or(most));
            *known_most = (*known_most).max(most);
        }
        let ends = [(sends, sender), (receives, receiver)];
        let [(opens, caller), (answers, callee)] = match opened_by {
            Side::Source => ends,
            Side::Destination => [ends[1], ends[0]],
        };
        for (node, kind, schedule) in [(opens, SYN, caller.syn), (answers, ANSWER, callee.syn_ack)] {
            let known = &mut self.hosts[node].schedules[kind];
            if !known.contains(&schedule) {
                known.push(schedule);
            }
        }
        let (host, name) = (&mut self.hosts[sends], &scenario.nodes[sends]);
        let rto_max = sender.rto.max.clamp(RTO_MAX[0], RTO_MAX[1]);
        host.rto_max = Some(rto_max);
        let mut values = vec![
            ("net.ipv4.tcp_slow_start_after_idle", u8::from(sender.restart_after_idle).to_string()),
            ("net.ipv4.tcp_rto_max_ms", rto_max.as_millis().to_string()),
            ("net.ipv4.tcp_no_metrics_save", u8::from(sender.metrics_cache == MetricsCache::Off).to_string()),
            (
                "net.ipv4.tcp_no_ssthresh_metrics_save",
                u8::from(sender.metrics_cache != MetricsCache::RoundTripAndSsthresh).to_string(),
            ),
        ];
        if sender.recovery == Recovery::Rack {
            let probe = if sender.tail_loss_probe { "3" } else { "0" };
            let forward_rto = if sender.forward_rto { "2" } else { "0" };
            values.push(("net.ipv4.tcp_early_retrans", probe.to_owned()));
            values.push(("net.ipv4.tcp_frto", forward_rto.to_owned()));
        }
        values.extend(sender.retries.map(|retries| ("net.ipv4.tcp_retries2", retries.min(255).to_string())));
        values.into_iter().try_for_each(|(key, value)| host.set(name, key, value))
    }

    /// A leg has the options of the handshake that both ends have, and hosts have each for all their sockets.
    fn check_options(&self, scenario: &Scenario, flow: &FlowSpec) -> Result<(), Error> {
        for leg in &flow.legs {
            let ends = [node_before(scenario, leg.path[0]), node_behind(scenario, *last_hop(leg))];
            for (option, (key, has)) in OPTIONS.into_iter().enumerate() {
                let wanted = has(&leg.sender) && has(&leg.receiver);
                let offered = ends.iter().all(|&node| self.hosts[node].options[option]);
                if wanted != offered {
                    let [sends, receives] = ends.map(|node| &scenario.nodes[node]);
                    return Err(refused(format!(
                        "flow {} has no {key} from {sends} to {receives}, and other connections of both have it: \
                         Linux has it for all connections of a host",
                        flow.name
                    )));
                }
            }
        }
        Ok(())
    }

    /// The settings that follow from all endpoints of a host.
    fn settle(&mut self) -> Result<(), Error> {
        for host in &mut self.hosts {
            for (option, (key, _)) in host.options.into_iter().zip(OPTIONS) {
                host.set("", key, u8::from(option).to_string())?;
            }
            for (sizes, key) in host.buffers.into_iter().zip(["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"]) {
                if sizes[1] > 0 {
                    let [first, most] =
                        sizes.map(|bytes| (BOOKKEEPING * bytes).clamp(1 << 14, i32::MAX as u64));
                    host.set("", key, format!("4096 {first} {most}"))?;
                }
            }
            if !host.settle_schedules()? {
                self.differences.insert("SYNs are repeated as Linux repeats them".to_owned());
            }
        }
        Ok(())
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

    /// What Linux does otherwise than the endpoints of this leg.
    fn note_differences(&mut self, leg: &LegSpec) {
        let sender = &leg.sender;
        let mut note = |differs: bool, what: &str| {
            if differs {
                self.differences.insert(what.to_owned());
            }
        };
        let sack = sender.sack && leg.receiver.sack;
        note(
            sender.recovery != Recovery::Rack || !sack,
            "loss recovery is Linux' own: RACK with its probes, undo and F-RTO, and without SACK NewReno",
        );
        note(
            sender.recovery == Recovery::Rack && !sender.undo,
            "a reduction of the window that was spurious is taken back",
        );
        note(!sender.proportional_rate_reduction, "the window is reduced proportionally (RFC 9937)");
        note(!sender.limited_transmit, "limited transmit (RFC 3042) cannot be switched off");
        note(
            sender.each_timeout_reduces,
            "the slow-start threshold is lowered at the first timeout of a segment alone (RFC 5681)",
        );
        note(sender.byte_counting_limit.is_some(), "slow start counts every acknowledged segment");
        note(
            sender.rto.initial != RtoLimits::LINUX.initial
                || sender.rto.granularity != RtoLimits::LINUX.granularity,
            "the first timeout is 1 s, and at least 200 ms are added to the round trip",
        );
        note(
            sender.ssthresh.is_some() || sender.srtt.is_some(),
            "a connection's first threshold and round trip are not set: only those of earlier ones are known",
        );
        note(sender.fq_pacing, "only congestion controls pace: the queueing discipline is not fq");
        let cubic = sender.congestion == Algorithm::Cubic;
        note(cubic && !(sender.hystart && sender.linux_cubic), "CUBIC is Linux' own, with HyStart");
        note(leg.receiver.ack_every != 2, "an acknowledgement is sent for two segments at the latest");
        if let Algorithm::Hybla(components) = sender.congestion {
            note(
                ![Components::ALL, Components::PUBLISHED].contains(&components),
                "Hybla has all of its components, or those of the published algorithm",
            );
        }
    }
}

impl Host {
    /// Sets a kernel setting for one of its senders.
    fn set(&mut self, name: &str, key: &'static str, value: String) -> Result<(), Error> {
        match self.settings.get(key) {
            Some((other, _)) if *other != value => Err(refused(format!(
                "the senders at {name} need {key} = {value} and {other}: Linux has it once for a host"
            ))),
            _ => {
                self.settings.insert(key, (value, name.to_owned()));
                Ok(())
            }
        }
    }

    /// Sets the schedules of SYNs and of their answers, where its endpoints agree and Linux can have them;
    /// false if a schedule remains Linux' own.
    fn settle_schedules(&mut self) -> Result<bool, Error> {
        let rto_max = self.rto_max.unwrap_or(RTO_MAX[1]);
        let mut all = true;
        for (kind, wanted) in std::mem::take(&mut self.schedules).into_iter().enumerate() {
            let known = match &wanted[..] {
                [] => continue,
                [one] => schedule_settings(one, kind, rto_max),
                _ => None,
            };
            all &= known.is_some();
            for (key, value) in known.into_iter().flatten() {
                self.set("", key, value.to_string())?;
            }
        }
        Ok(all)
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

/// The settings with which Linux repeats SYNs, or their answers, by exactly this schedule, on a host with
/// this maximum RTO. `None`: it cannot. Its first wait is always a second, and none exceeds the maximum
/// RTO.
fn schedule_settings(
    schedule: &SynSchedule,
    kind: usize,
    rto_max: Duration,
) -> Option<Vec<(&'static str, u32)>> {
    // The last wait follows the last repetition.
    let repetitions = schedule.waits.filter(|waits| *waits <= MOST_SYNS)?.checked_sub(1)?;
    let linux = SynSchedule { first: SynSchedule::LINUX.first, max: rto_max, ..*schedule };
    if (0..=repetitions).any(|n| linux.wait(n) != schedule.wait(n)) {
        return None;
    }
    if kind == ANSWER {
        return (schedule.linear == 0).then(|| vec![("net.ipv4.tcp_synack_retries", repetitions)]);
    }
    let doubling = repetitions.checked_sub(schedule.linear).filter(|doubling| *doubling > 0)?;
    Some(vec![("net.ipv4.tcp_syn_retries", doubling), ("net.ipv4.tcp_syn_linear_timeouts", schedule.linear)])
}

impl LegPlan {
    /// What the daemon sends on a leg.
    fn of_sender(scenario: &Scenario, leg: &LegSpec) -> Result<Self, Error> {
        let hop = leg.path[0];
        let link = &scenario.links[hop.link];
        let direction = if hop.forward { &link.config.forward } else { &link.config.reverse };
        let congestion = leg.sender.congestion;
        let mut plan = Self {
            sends: true,
            congestion: Some(kernel_name(congestion)),
            rate: direction.rate,
            rtt: round_trip(scenario, leg),
            send_buffer: fixed(leg.sender.send_autotuning, leg.sender.send_buffer),
            ..Self::default()
        };
        if let Algorithm::Explicit { weight } = congestion {
            if weight.get() != 1 {
                return Err(refused("a flow with explicit rates has a weight other than 1".into()));
            }
            let shared = link.shared[usize::from(!hop.forward)];
            let RateAllocatorConfig { capacity, rtt, cross_traffic, aqm } = shared
                .ok_or_else(|| refused(format!("nothing allocates the rates of link {}", link.name)))?;
            (plan.rate, plan.rtt, plan.cross_traffic) = (capacity, rtt, Some(cross_traffic.get()));
            plan.cross_traffic_aqm = Some(match aqm {
                CrossTrafficAqm::Mark => "mark",
                CrossTrafficAqm::Drop => "drop",
                CrossTrafficAqm::Off => "off",
            });
        }
        Ok(plan)
    }

    /// What the daemon needs where a leg arrives. XCP's receiver returns the feedback, so it must speak XCP,
    /// too.
    fn of_receiver(scenario: &Scenario, leg: &LegSpec) -> Self {
        let plan = Self {
            rtt: round_trip(scenario, leg),
            receive_buffer: fixed(leg.receiver.receive_autotuning, leg.receiver.receive_buffer),
            ..Self::default()
        };
        if !leg.sender.congestion.wants_feedback() {
            return plan;
        }
        let hop = last_hop(leg);
        let config = &scenario.links[hop.link].config;
        let back = if hop.forward { &config.reverse } else { &config.forward };
        Self { congestion: Some(kernel_name(leg.sender.congestion)), rate: back.rate, ..plan }
    }

    /// The router that the daemon has in front of the link, if any.
    fn xcp_router(&self) -> Option<XcpConfig> {
        let variant = match self.congestion.as_deref()? {
            "xcp" => Variant::Xcp,
            "p-xcp" => Variant::PXcp,
            _ => return None,
        };
        Some(XcpConfig { variant, idle_offer: IDLE_OFFER, ..XcpConfig::with_capacity(self.rate?) })
    }

    /// Both as one; `None` if they contradict each other.
    fn merged(&self, other: Self) -> Option<Self> {
        fn one<T: PartialEq + Clone>(mine: &Option<T>, other: &Option<T>) -> Option<Option<T>> {
            match (mine, other) {
                (Some(mine), Some(other)) if mine != other => None,
                (mine, other) => Some(mine.clone().or_else(|| other.clone())),
            }
        }
        Some(Self {
            sends: self.sends || other.sends,
            congestion: one(&self.congestion, &other.congestion)?,
            rate: one(&self.rate, &other.rate)?,
            rtt: self.rtt.max(other.rtt),
            cross_traffic: one(&self.cross_traffic, &other.cross_traffic)?,
            cross_traffic_aqm: one(&self.cross_traffic_aqm, &other.cross_traffic_aqm)?,
            send_buffer: self.send_buffer.max(other.send_buffer),
            receive_buffer: self.receive_buffer.max(other.receive_buffer),
            protect: one(&self.protect, &other.protect)?,
        })
    }

    fn text(&self, interface: &str) -> String {
        // A leg that only receives has no need of rates; one that carries frames is given its rate.
        let otherwise = if self.protect.is_some() { congestion::EXPLICIT } else { "cubic" };
        let congestion = self.congestion.as_deref().unwrap_or(otherwise);
        let mut text = format!(
            "[legs.{interface}]\ninterface = \"{interface}\"\ncongestion = \"{congestion}\"\nrtt = \"{}\"\n",
            Span(self.rtt.max(Duration::from_millis(1)))
        );
        let keys = [
            ("rate", self.rate.map(|rate| rate.to_string())),
            ("cross_traffic", self.cross_traffic.map(|share| share.to_string())),
            ("cross_traffic_aqm", self.cross_traffic_aqm.map(str::to_owned)),
            ("send_buffer", self.send_buffer.map(|bytes| format!("{bytes}B"))),
            ("receive_buffer", self.receive_buffer.map(|bytes| format!("{bytes}B"))),
        ];
        for (key, value) in keys {
            if let Some(value) = value {
                // Writing to a string does not fail.
                let _ = writeln!(text, "{key} = \"{value}\"");
            }
        }
        text
    }
}

/// The size of a buffer that does not grow by itself.
fn fixed(autotuning: Option<u64>, bytes: u64) -> Option<u64> {
    autotuning.is_none().then_some(bytes)
}

/// The name of a congestion control in the configuration of a leg and, but for those by eBPF, in the kernel.
fn kernel_name(algorithm: Algorithm) -> String {
    match algorithm {
        Algorithm::NewReno => "reno",
        Algorithm::Cubic => "cubic",
        Algorithm::Bbr => "bbr",
        Algorithm::Bbr3 => "bbr3",
        Algorithm::Hybla(Components::PUBLISHED) => congestion::HYBLA_PUBLISHED,
        Algorithm::Hybla(_) => "hybla",
        Algorithm::Xcp(XcpSender::Xcp) => "xcp",
        Algorithm::Xcp(XcpSender::PXcp) => "p-xcp",
        Algorithm::Explicit { .. } => "explicit",
        Algorithm::Custom(_) => "custom",
    }
    .to_owned()
}

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
