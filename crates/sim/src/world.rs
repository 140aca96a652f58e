//! The event loop.

mod bundles;
mod capture;
mod link_ends;
mod sharing;
mod udp;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bentpipe_link::Fate;
use bentpipe_tcp::{End, Endpoint, Metrics, MetricsCache, Segment, State};
use bentpipe_units::Time;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::events::{Alarm, Event, Events};
use crate::extensions::{Extensions, LinkEffect};
use crate::flow::Flow;
use crate::network::Pipe;
use crate::observer::{Observer, OfferedPacket, PacketStep, SenderEvent};
use crate::packet::{Packet, Payload};
use crate::packets::{PacketId, Packets};
use crate::recorder::RecordedStep;
use crate::results::{RunResult, collect};
use crate::scenario::{FlowSpec, Hop, LegSpec, Scenario};
use crate::udp::UdpStreams;
use sharing::{SharedDirection, Slot};

/// The number of events between two questions whether the observer wants to continue.
const EVENTS_BETWEEN_LOOKS: u64 = 1 << 16;

/// Runs a scenario. The same scenario and seed give the same result.
///
/// # Panics
/// If the scenario names a congestion control from outside.
pub fn run(scenario: &Scenario, seed: u64, observer: &mut dyn Observer) -> RunResult {
    run_with(scenario, seed, observer, Extensions::default())
}

/// Runs a scenario with congestion controls and effects of links from outside. The same scenario and seed
/// give the same result if these do.
///
/// # Panics
/// If the scenario names a congestion control that is not among them, or an effect a link that it does not
/// have.
pub fn run_with(
    scenario: &Scenario,
    seed: u64,
    observer: &mut dyn Observer,
    extensions: Extensions,
) -> RunResult {
    let mut world = World::new(scenario, seed, observer, extensions);
    world.run();
    world.report_sums();
    let World { now, pipes, endpoints, flows, udp, handled, .. } = &world;
    RunResult {
        udp: udp.results(scenario, *now),
        ..collect(scenario, seed, *now, *handled, pipes, endpoints, flows)
    }
}

/// The state of the simulation.
pub(crate) struct World<'a> {
    scenario: &'a Scenario,
    observer: &'a mut dyn Observer,
    watches_packets: bool,
    /// Packets are watched or captured.
    watches_offers: bool,
    follows_packets: bool,
    captures_packets: bool,
    follows_senders: bool,
    now: Time,
    end: Time,
    events: Events,
    handled: u64,
    pipes: Vec<Pipe>,
    packets: Packets,
    /// Packets that link ends have passed to their nodes while the current event was handled.
    delivered: VecDeque<PacketId>,
    endpoints: Vec<Endpoint>,
    attachments: Vec<Attachment>,
    shares: Vec<SharedDirection>,
    flows: Vec<Flow>,
    /// Flows that have not ended; 1 where there is none, and the streams run for the whole duration.
    active_flows: usize,
    udp: UdpStreams,
    /// What nodes remember of others: of the second of each pair at the first.
    metrics: BTreeMap<(usize, usize), Metrics>,
    extensions: Extensions,
}

/// Where an endpoint is, and when it is to be woken. Behind those of all endpoints come the branches of UDP
/// streams.
struct Attachment {
    /// Of a branch, its stream.
    flow: u32,
    /// Of a branch, its number among all branches.
    peer: u32,
    /// The pipes to its peer.
    path: Vec<u32>,
    alarm: Alarm,
    /// Where it has its rate from, if it is given one.
    slot: Option<Slot>,
}

impl<'a> World<'a> {
    fn new(
        scenario: &'a Scenario,
        seed: u64,
        observer: &'a mut dyn Observer,
        extensions: Extensions,
    ) -> Self {
        let mut random = SplitMix64::seed_from_u64(seed);
        let link_seeds: Vec<u64> = scenario.links.iter().map(|_| random.next_u64()).collect();
        let mut world = World {
            scenario,
            watches_packets: observer.watches_packets(),
            watches_offers: observer.watches_packets() || observer.captures_packets(),
            follows_packets: observer.follows_packets(),
            captures_packets: observer.captures_packets(),
            follows_senders: observer.follows_senders(),
            pipes: Pipe::of_links(&scenario.links, |index| link_seeds[index], observer.follows_packets()),
            observer,
            now: Time::ZERO,
            end: Time::ZERO + scenario.duration,
            events: Events::default(),
            handled: 0,
            packets: Packets::default(),
            delivered: VecDeque::new(),
            endpoints: Vec::new(),
            attachments: Vec::new(),
            shares: SharedDirection::of_scenario(scenario),
            flows: Vec::new(),
            active_flows: scenario.flows.len().max(1),
            udp: UdpStreams::default(),
            metrics: BTreeMap::new(),
            extensions,
        };
        world.add_effects();
        if world.observer.wants_samples() {
            world.events.schedule(Time::ZERO, Event::Sample);
        }
        scenario.flows.iter().for_each(|flow| world.add_flow(flow, &mut random));
        world.add_udp();
        world.start_protected_legs();
        world
    }

    fn add_effects(&mut self) {
        for LinkEffect { link, forward, effect } in std::mem::take(&mut self.extensions.effects) {
            self.pipes[Pipe::index(Hop { link, forward }) as usize].add_effect(effect);
        }
    }

    fn add_flow(&mut self, spec: &FlowSpec, random: &mut SplitMix64) {
        let start = spec.start + random_below(spec.start_within, random);
        let flow = Flow::new(spec, self.endpoints.len(), start);
        self.events.schedule(start, Event::Start(self.flows.len() as u32));
        for leg in &spec.legs {
            self.add_leg(leg, random);
        }
        self.flows.push(flow);
    }

    /// Adds both ends, which listen. One of them connects when its time comes.
    fn add_leg(&mut self, leg: &LegSpec, random: &mut SplitMix64) {
        let there: Vec<u32> = leg.path.iter().map(|&hop| Pipe::index(hop)).collect();
        let back: Vec<u32> = there.iter().rev().map(|&pipe| Pipe::back(pipe)).collect();
        let slot = SharedDirection::join(&mut self.shares, leg, self.endpoints.len() as u32);
        for (config, path, slot) in [(leg.sender, there, slot), (leg.receiver, back, None)] {
            let id = self.endpoints.len() as u32;
            let endpoint = Endpoint::listen(config, random.next_u32());
            self.endpoints.push(self.extensions.equip(endpoint, config.congestion));
            let (flow, peer) = (self.flows.len() as u32, id ^ 1);
            self.attachments.push(Attachment { flow, peer, path, alarm: Alarm::default(), slot });
        }
    }

    fn run(&mut self) {
        while self.active_flows > 0
            && let Some((at, event)) = self.events.next_until(self.end)
        {
            self.now = at;
            self.handled += 1;
            match event {
                Event::Arrival(pipe) => self.arrive(pipe),
                Event::Frame(pipe) => self.arrive_framed(pipe),
                Event::Wake(endpoint) => self.wake(endpoint as usize),
                Event::Alarm(pipe) => self.wake_link_end(pipe),
                Event::Rates(number) => self.update_rates(number),
                Event::Session(endpoint) => self.wake_session(endpoint as usize),
                Event::Start(flow) => self.start(flow as usize),
                Event::Datagram(stream) => self.send_datagram(stream as usize),
                Event::Sample => {
                    // Whoever watches leaves the results as they are.
                    self.handled -= 1;
                    self.sample();
                }
            }
            if !self.delivered.is_empty() {
                self.forward_delivered();
            }
            if self.handled.is_multiple_of(EVENTS_BETWEEN_LOOKS) && !self.observer.progress(self.now) {
                return;
            }
        }
        // Flows that are still active have lasted for the whole duration.
        if self.active_flows > 0 {
            self.now = self.end;
        }
    }

    fn arrive(&mut self, pipe: u32) {
        let Some((id, next)) = self.pipes[pipe as usize].deliver(self.now, &self.packets) else {
            // A packet that has overtaken the one of this event had an event of its own.
            return self.events.remove_first();
        };
        self.report_steps(pipe);
        match next {
            Some(at) => self.events.reschedule_first(at),
            None => self.events.remove_first(),
        }
        if self.captures_packets {
            self.capture_received(pipe, self.packets[id]);
        }
        self.pass_on(id);
    }

    /// A packet has crossed a link: it goes over the next one, or it has arrived.
    // The path of every packet: link ends use it too, which must not cost packets that meet none.
    #[inline(always)]
    fn pass_on(&mut self, id: PacketId) {
        let packet = &self.packets[id];
        let attachment = &self.attachments[packet.from as usize];
        if let Some(&next) = attachment.path.get(packet.hop as usize) {
            return self.forward(next, id);
        }
        let peer = attachment.peer as usize;
        if self.follows_senders {
            self.report_received(peer, id);
        }
        let packet = &self.packets[id];
        let Payload::Tcp(segment) = &packet.payload else {
            let packet = self.packets.remove(id);
            return self.end_branch(peer, packet);
        };
        let is_intact = !packet.corrupted;
        let was = self.endpoints[peer].state();
        if is_intact {
            self.endpoints[peer].on_segment(self.now, segment);
        }
        self.packets.remove(id);
        if is_intact {
            if was != State::Established && self.endpoints[peer].state() == State::Established {
                self.open_next(peer);
            }
            self.service(peer);
        }
    }

    fn wake(&mut self, endpoint: usize) {
        let due = self.endpoints[endpoint].wake_at();
        if !self.attachments[endpoint].alarm.fires(&mut self.events, self.now, due) {
            return;
        }
        self.endpoints[endpoint].on_timer(self.now);
        self.service(endpoint);
        self.attachments[endpoint].alarm.done(&mut self.events);
    }

    fn start(&mut self, flow: usize) {
        self.events.remove_first();
        self.recall(flow);
        let opener = self.flows[flow].opener(0);
        self.open(opener);
    }

    /// The endpoints of a flow that have a cache of metrics, with the nodes of both ends, the own first.
    fn remembering(&self, flow: usize) -> impl Iterator<Item = (usize, (usize, usize))> + use<'a> {
        let (scenario, first) = (self.scenario, self.flows[flow].first);
        scenario.flows[flow].legs.iter().enumerate().flat_map(move |(leg, spec)| {
            let [near, far] = spec.nodes(&scenario.links);
            [(spec.sender, (near, far)), (spec.receiver, (far, near))]
                .into_iter()
                .enumerate()
                .filter(|(_, (config, _))| config.metrics_cache != MetricsCache::Off)
                .map(move |(end, (_, nodes))| (first + 2 * leg + end, nodes))
        })
    }

    fn recall(&mut self, flow: usize) {
        for (endpoint, nodes) in self.remembering(flow) {
            if let Some(metrics) = self.metrics.get(&nodes) {
                self.endpoints[endpoint].recall(metrics);
            }
        }
    }

    fn remember(&mut self, flow: usize) {
        for (endpoint, nodes) in self.remembering(flow) {
            self.metrics.entry(nodes).or_default().learn(&self.endpoints[endpoint].variables());
        }
    }

    fn open(&mut self, endpoint: usize) {
        self.endpoints[endpoint].open_actively(self.now);
        self.service(endpoint);
    }

    fn open_next(&mut self, endpoint: usize) {
        let flow = self.attachments[endpoint].flow as usize;
        if let Some(next) = self.flows[flow].opens_after(endpoint)
            && self.endpoints[next].state() == State::Listen
        {
            self.open(next);
        }
    }

    /// After an event at an endpoint: lets the application or the splitter act, and sends what is ready.
    fn service(&mut self, endpoint: usize) {
        let flow = self.attachments[endpoint].flow as usize;
        if self.flows[flow].bundle_nodes.is_some() {
            return self.service_bundles(flow);
        }
        let lived = self.flows[flow].ended.is_none();
        let other = self.flows[flow].service(self.now, endpoint, &mut self.endpoints);
        if lived && self.flows[flow].ended.is_some() {
            self.active_flows -= 1;
            self.remember(flow);
        }
        self.transmit(endpoint);
        if let Some(other) = other {
            self.transmit(other);
        }
    }

    fn transmit(&mut self, endpoint: usize) {
        while let Some(segment) = self.endpoints[endpoint].poll_transmit(self.now) {
            if self.follows_senders {
                self.report_sent(endpoint, segment);
            }
            let (carries_data, payload) = (segment.len > 0, Payload::Tcp(segment));
            self.send(Packet { payload, from: endpoint as u32, hop: 0, corrupted: false });
            if let Some(slot) = self.attachments[endpoint].slot.filter(|_| carries_data) {
                self.start_sender(slot);
            }
        }
        if self.follows_senders {
            self.report_state(endpoint);
        }
        let due = self.endpoints[endpoint].wake_at();
        self.attachments[endpoint].alarm.set(&mut self.events, due, Event::Wake(endpoint as u32));
    }

    /// A packet leaves its sender.
    #[inline(always)]
    fn send(&mut self, packet: Packet) {
        let first = self.attachments[packet.from as usize].path[packet.hop as usize];
        let id = self.packets.insert(packet);
        self.forward(first, id);
    }

    fn forward(&mut self, pipe: u32, id: PacketId) {
        if !self.shares.is_empty() && !self.admit(pipe, id) {
            self.packets.remove(id);
            return;
        }
        if self.pipes[pipe as usize].near.is_some() {
            let packet = self.packets.remove(id);
            return self.pass_link_end(pipe, packet);
        }
        if self.watches_offers {
            return self.forward_watched(pipe, id);
        }
        self.packets[id].hop += 1;
        self.offer(pipe, id);
    }

    #[inline(always)]
    fn offer(&mut self, pipe: u32, id: PacketId) -> Fate {
        let (fate, next) = self.pipes[pipe as usize].offer(self.now, id, &mut self.packets);
        if let Some(next) = next {
            self.events.schedule(next, Event::Arrival(pipe));
        }
        self.report_steps(pipe);
        fate
    }

    #[cold]
    fn forward_watched(&mut self, pipe: u32, id: PacketId) {
        let packet = self.packets[id];
        self.packets[id].hop += 1;
        let fate = self.offer(pipe, id);
        self.report(pipe, &packet, fate);
        self.capture_sent(pipe, &packet, fate);
    }

    /// Tells the observer of a packet of a flow.
    fn report(&mut self, pipe: u32, packet: &Packet, fate: Fate) {
        let Payload::Tcp(segment) = &packet.payload else { return };
        if !self.watches_packets {
            return;
        }
        let (link, forward, endpoint) = (pipe as usize / 2, pipe.is_multiple_of(2), packet.from as usize);
        let flow = self.attachments[endpoint].flow as usize;
        let offered = OfferedPacket { now: self.now, link, forward, flow, endpoint, segment, fate };
        self.observer.packet(&offered);
    }

    // Functions of their own, which take values: packets that nobody watches need no place in memory for that.

    #[inline(never)]
    fn report_received(&mut self, endpoint: usize, id: PacketId) {
        let packet = self.packets[id];
        if let (Payload::Tcp(segment), false) = (&packet.payload, packet.corrupted) {
            self.report_sender(endpoint, &SenderEvent::Received(segment));
        }
    }

    #[inline(never)]
    fn report_sent(&mut self, endpoint: usize, segment: Segment) {
        self.report_sender(endpoint, &SenderEvent::Sent(&segment));
    }

    #[inline(never)]
    fn report_state(&mut self, endpoint: usize) {
        let sender = &self.endpoints[endpoint];
        let (variables, done) = (sender.variables(), sender.statistics());
        self.report_sender(endpoint, &SenderEvent::State(&variables, &done));
    }

    /// Tells the observer of an event at an endpoint, if it is the sending end of its leg.
    fn report_sender(&mut self, endpoint: usize, event: &SenderEvent<'_>) {
        let flow = self.attachments[endpoint].flow as usize;
        let end = endpoint - self.flows[flow].first;
        if end.is_multiple_of(2) {
            self.observer.sender(self.now, flow, end / 2, event);
        }
    }

    #[inline]
    fn report_steps(&mut self, pipe: u32) {
        if self.follows_packets {
            self.report_recorded_steps(pipe);
        }
    }

    #[inline(never)]
    fn report_recorded_steps(&mut self, pipe: u32) {
        let (link, forward) = (pipe as usize / 2, pipe.is_multiple_of(2));
        for RecordedStep { number, bytes, step } in self.pipes[pipe as usize].take_steps() {
            self.observer.step(self.now, &PacketStep { link, forward, number, bytes, step });
        }
    }

    /// At the end of the run.
    fn report_sums(&mut self) {
        if !self.follows_packets {
            return;
        }
        for (index, pipe) in self.pipes.iter().enumerate() {
            let (link, forward) = (index / 2, index.is_multiple_of(2));
            self.observer.sums(self.now, link, forward, pipe.counters(), pipe.impairment_counters());
        }
        for (index, flow) in self.flows.iter().enumerate().filter(|(_, flow)| flow.bundle_nodes.is_none()) {
            let is_finished = flow.ended.is_some_and(|(_, end)| end == End::Finished);
            self.observer.application(self.now, index, [flow.written, flow.received], is_finished);
        }
    }

    fn sample(&mut self) {
        self.events.reschedule_first(self.now + self.scenario.sample_interval);
        for (index, flow) in self.flows.iter().enumerate() {
            for leg in 0..flow.legs {
                let sender = &self.endpoints[flow.first + 2 * leg];
                self.observer.variables(self.now, index, leg, &sender.variables(), &sender.statistics());
            }
            for (at, splitter) in flow.splitters.iter().enumerate() {
                self.observer.occupancy(self.now, index, at, splitter.occupancy.now());
            }
            self.observer.received(self.now, index, flow.received);
        }
        for (index, pipe) in self.pipes.iter().enumerate() {
            self.observer.queue(
                self.now,
                index / 2,
                index.is_multiple_of(2),
                pipe.backlog(self.now),
                pipe.counters(),
            );
            if let Some(near) = pipe.agents() {
                self.observer.held(self.now, index / 2, index % 2, near.held.now());
            }
        }
    }
}

fn random_below(limit: Duration, random: &mut SplitMix64) -> Duration {
    let nanos = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
    let drawn = (u128::from(random.next_u64()) * u128::from(nanos)) >> 64;
    Duration::from_nanos(drawn as u64)
}
