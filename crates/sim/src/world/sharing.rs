//! Directions of links whose rate is allocated to the senders in front of them, as a gateway's daemon does.

use std::time::Duration;

use bentpipe_link::explicit::{
    CrossTrafficLimit, EgressCount, FLOW_BUCKETS, RateAllocator, RateAllocatorConfig, Report,
};
use bentpipe_tcp::congestion::c_core::{AQM_DROP, AqmPacket, AqmState};
use bentpipe_tcp::{Endpoint, Reported};
use bentpipe_units::{Rate, Time};

use super::World;
use crate::events::Event;
use crate::network::Pipe;
use crate::packets::PacketId;
use crate::scenario::{Hop, LegSpec, LinkSpec, Scenario};

/// The interval between two allocations while a sender is active.
const TICK: Duration = Duration::from_millis(20);

/// A direction that is shared out, and the senders in front of it.
#[derive(Debug)]
pub(super) struct SharedDirection {
    hop: Hop,
    pipe: u32,
    allocator: RateAllocator,
    members: Vec<Member>,
    /// As they were at the last tick.
    reports: Vec<Report>,
    /// Bytes that others than its members' data have offered to it.
    cross_traffic: u64,
    aqm: Aqm,
    /// Those that have begun since then, by their places among the members, and their weight.
    newcomers: Vec<u32>,
    joined: u32,
    /// A tick is in the queue of events.
    ticking: bool,
}

/// The AQM of cross traffic, as the program at a gateway's egress has it.
#[derive(Debug)]
struct Aqm {
    state: AqmState,
    limit: Option<CrossTrafficLimit>,
    /// Bytes of each flow, by its number, while there is a limit.
    flows: Vec<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Member {
    endpoint: u32,
    weight: u32,
    /// It has a rate: it has begun, and was not silent at the last tick.
    rated: bool,
}

/// Where a sender has its rate from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    share: u32,
    member: u32,
}

impl SharedDirection {
    pub(super) fn of_scenario(scenario: &Scenario) -> Vec<SharedDirection> {
        let share = |hop, config: RateAllocatorConfig| {
            let (allocator, members, reports) = (RateAllocator::new(config), Vec::new(), Vec::new());
            let pipe = Pipe::index(hop);
            SharedDirection {
                hop,
                pipe,
                allocator,
                members,
                reports,
                cross_traffic: 0,
                aqm: Aqm { state: AqmState::default(), limit: None, flows: vec![0; FLOW_BUCKETS] },
                newcomers: Vec::new(),
                joined: 0,
                ticking: false,
            }
        };
        let of_link = |(link, spec): (usize, &LinkSpec)| {
            [true, false].into_iter().zip(spec.shared).filter_map(move |(forward, config)| {
                config.map(|config| share(Hop { link, forward }, config))
            })
        };
        scenario.links.iter().enumerate().flat_map(of_link).collect()
    }

    /// A slot for the sender of this leg, if it takes a rate and its first link is shared out.
    pub(super) fn join(shares: &mut [SharedDirection], leg: &LegSpec, endpoint: u32) -> Option<Slot> {
        let weight = leg.sender.congestion.weight()?.get();
        let first = leg.path.first()?;
        let number = shares.iter().position(|share| share.hop == *first)?;
        let members = &mut shares[number].members;
        members.push(Member { endpoint, weight, rated: false });
        Some(Slot { share: number as u32, member: members.len() as u32 - 1 })
    }

    /// A sender starts now: it shares the initial rate with the others that have started since the last tick.
    fn begin(&mut self, member: u32, endpoints: &mut [Endpoint]) {
        let initial = self.allocator.initial_rate();
        self.members[member as usize].rated = true;
        self.joined += self.members[member as usize].weight;
        self.newcomers.push(member);
        for &newcomer in &self.newcomers {
            let Member { endpoint, weight, .. } = self.members[newcomer as usize];
            let rate = initial.rate * f64::from(weight) / f64::from(initial.weight + self.joined);
            endpoints[endpoint as usize].set_rate(in_bits(rate));
        }
    }

    fn forget_newcomers(&mut self) {
        self.newcomers.clear();
        self.joined = 0;
    }

    fn tick(&mut self, now: Time, endpoints: &mut [Endpoint]) {
        self.forget_newcomers();
        self.allocator.count(EgressCount::CrossTraffic(self.cross_traffic));
        self.reports.clear();
        let reports = self.members.iter().filter_map(|member| {
            let reported = endpoints[member.endpoint as usize].reported()?;
            Some(report(*member, &reported))
        });
        self.reports.extend(reports);
        let members = &mut self.members;
        self.allocator.tick(now, &self.reports, |id, rate| {
            // Members are in the order of their endpoints.
            let Ok(place) = members.binary_search_by_key(&(id as u32), |member| member.endpoint) else {
                return;
            };
            members[place].rated = rate > 0.0;
            endpoints[id as usize].set_rate(in_bits(rate));
        });
        self.allocator.count_flows(now, &self.aqm.flows);
        self.aqm.limit = self.allocator.cross_traffic_limit();
    }
}

impl Aqm {
    /// Whether a packet of cross traffic leaves.
    fn admit(&mut self, now: Time, flow: u32, bytes: u32, is_data: bool) -> bool {
        let Some(limit) = &self.limit else { return true };
        let bucket = flow as usize % FLOW_BUCKETS;
        self.flows[bucket] += u64::from(bytes);
        let mut packet = AqmPacket {
            now_us: now.as_nanos() / 1000,
            rate: limit.rate as u64,
            bytes,
            target_us: limit.target.as_micros() as u32,
            interval_us: limit.interval.as_micros() as u32,
            judged: (is_data && limit.may_drop && limit.judges(bucket)).into(),
            may_drop: limit.may_drop.into(),
            ..AqmPacket::default()
        };
        self.state.step(&mut packet);
        packet.verdict != AQM_DROP
    }
}

impl World<'_> {
    /// A sender with this slot has sent data: if it has no rate, it begins.
    #[inline(never)]
    pub(super) fn start_sender(&mut self, slot: Slot) {
        let share = &mut self.shares[slot.share as usize];
        if share.members[slot.member as usize].rated {
            return;
        }
        if !share.ticking {
            // No sender has sent anything since the last tick. That was a pause and not an outage.
            share.allocator.count(EgressCount::CrossTraffic(share.cross_traffic));
            share.allocator.tick(self.now, &share.reports, |_, _| {});
            share.forget_newcomers();
            share.ticking = true;
            self.events.schedule(self.now + TICK, Event::Rates(slot.share));
        }
        share.begin(slot.member, &mut self.endpoints);
    }

    /// Counts a packet that is offered to a direction that is shared out, unless it is data of a member.
    /// False if it is too much, and dropped: then it does not count.
    pub(super) fn admit(&mut self, pipe: u32, id: PacketId) -> bool {
        let packet = &self.packets[id];
        let mut leaves = true;
        let slot = self.attachments[packet.from as usize].slot.filter(|_| packet.carries_data());
        for (number, share) in self.shares.iter_mut().enumerate().filter(|(_, share)| share.pipe == pipe) {
            if slot.is_none_or(|slot| slot.share as usize != number) {
                let bytes = packet.ip_length();
                let admitted = share.aqm.admit(self.now, packet.from, bytes as u32, packet.carries_data());
                share.cross_traffic += if admitted { bytes as u64 } else { 0 };
                leaves &= admitted;
            }
        }
        leaves
    }

    /// Allocates new rates to all senders of a direction. They use them from their next acknowledgement or
    /// transmission on.
    pub(super) fn update_rates(&mut self, number: u32) {
        let share = &mut self.shares[number as usize];
        share.tick(self.now, &mut self.endpoints);
        share.ticking = share.allocator.estimate().active > 0;
        match share.ticking {
            true => self.events.reschedule_first(self.now + share.allocator.interval().unwrap_or(TICK)),
            false => self.events.remove_first(),
        }
    }
}

fn report(member: Member, reported: &Reported) -> Report {
    Report {
        id: member.endpoint.into(),
        weight: member.weight,
        at: reported.at,
        sent: reported.sent,
        delivered: reported.delivered,
        lost: reported.lost,
        in_flight: reported.in_flight,
        rtt: reported.round_trips.map(|rtts| rtts.recent),
        min_rtt: reported.round_trips.map(|rtts| rtts.shortest),
        forward: reported.round_trips.and_then(|rtts| rtts.forward),
        window_limited: reported.window_limited,
        backlogged: reported.backlogged,
    }
}

/// Bytes per second as a rate; `None` if they are less than a bit per second.
fn in_bits(bytes_per_second: f64) -> Option<Rate> {
    Rate::from_bps((8.0 * bytes_per_second) as u64)
}
