//! Supervises the agent, so that its panics lose neither packets nor the daemon.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bentpipe_link::IpPacket;
use bentpipe_link::agent::snoop::{Snoop, SnoopConfig, SnoopCounters};
use bentpipe_link::agent::{Agent, AgentReport, Outbox};
use bentpipe_units::Time;

/// After so many panics packets pass unchanged until a reload.
const MOST_FAULTS: u32 = 8;

/// Which direction a packet crosses the satellite; the number is the place of its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    ToLink = 0,
    FromLink = 1,
}

/// An agent that can be restarted, and that may panic.
#[derive(Debug)]
pub(super) struct AgentSupervisor {
    config: SnoopConfig,
    make: fn(&SnoopConfig) -> Box<dyn Agent<IpPacket> + Send>,
    /// `None` after too many faults.
    agent: Option<Box<dyn Agent<IpPacket> + Send>>,
    out: Outbox<IpPacket>,
    faults: u32,
    /// The counters of the agents before this one.
    past: SnoopCounters,
}

impl AgentSupervisor {
    pub(super) fn new(config: SnoopConfig) -> Self {
        Self::with(config, |config| Box::new(Snoop::new(config)))
    }

    fn with(config: SnoopConfig, make: fn(&SnoopConfig) -> Box<dyn Agent<IpPacket> + Send>) -> Self {
        let agent = Some(make(&config));
        Self { config, make, agent, out: Outbox::default(), faults: 0, past: SnoopCounters::default() }
    }

    /// Passes a packet to the agent.
    pub(super) fn take(&mut self, now: Time, direction: Direction, packet: IpPacket) {
        let original = packet.clone();
        let passed = self.attempt(|agent, out| match direction {
            Direction::ToLink => agent.outbound(now, packet, out),
            Direction::FromLink => agent.inbound(now, packet, out),
        });
        if !passed {
            self.queue(direction).push_back(original);
        }
    }

    /// When to call [`on_timer`](Self::on_timer).
    pub(super) fn wake_at(&self) -> Time {
        self.agent.as_ref().map_or(Time::MAX, |agent| agent.wake_at())
    }

    pub(super) fn on_timer(&mut self, now: Time) {
        if self.wake_at() <= now {
            self.attempt(|agent, out| agent.on_timer(now, out));
        }
    }

    /// The next packet that is to be sent.
    pub(super) fn poll(&mut self) -> Option<(Direction, IpPacket)> {
        let to_link = self.out.to_link.pop_front().map(|packet| (Direction::ToLink, packet));
        to_link.or_else(|| self.out.to_host.pop_front().map(|packet| (Direction::FromLink, packet)))
    }

    /// Applies these settings; true if they differ, so that the agent is restarted.
    pub(super) fn configure(&mut self, config: SnoopConfig) -> bool {
        let differs = config != self.config;
        if differs || self.agent.is_none() {
            (self.config, self.faults) = (config, 0);
            self.restart();
        }
        differs
    }

    /// Forgets every flow and all cached segments. Counters are kept, and paced packets are to be sent now.
    pub(super) fn restart(&mut self) {
        self.flush();
        self.replace();
    }

    /// Takes the packets that the agent holds back out of it. It must get no more packets.
    pub(super) fn flush(&mut self) {
        self.attempt(|agent, out| agent.flush(out));
    }

    fn replace(&mut self) {
        self.past = self.counters();
        (self.past.flows, self.past.held_bytes, self.past.queued_bytes) = (0, 0, 0);
        self.agent = (self.faults < MOST_FAULTS).then(|| (self.make)(&self.config));
    }

    /// What this agent and those before it have done, and what this one holds.
    pub(super) fn counters(&self) -> SnoopCounters {
        let now = match self.agent.as_ref().map(|agent| agent.report()) {
            Some(AgentReport::Snoop(counters)) => counters,
            _ => SnoopCounters::default(),
        };
        let past = &self.past;
        SnoopCounters {
            cached: past.cached + now.cached,
            not_cached: past.not_cached + now.not_cached,
            retransmitted: past.retransmitted + now.retransmitted,
            timed_out: past.timed_out + now.timed_out,
            suppressed: past.suppressed + now.suppressed,
            sack_hidden: past.sack_hidden + now.sack_hidden,
            yielded: past.yielded + now.yielded,
            flows_passed: past.flows_passed + now.flows_passed,
            queue_dropped: past.queue_dropped + now.queue_dropped,
            most_queued_bytes: past.most_queued_bytes.max(now.most_queued_bytes),
            most_held_bytes: past.most_held_bytes.max(now.most_held_bytes),
            flows: now.flows,
            queued_bytes: now.queued_bytes,
            held_bytes: now.held_bytes,
        }
    }

    /// False if the agent panicked. It is replaced then, and its output is dropped.
    fn attempt(&mut self, act: impl FnOnce(&mut dyn Agent<IpPacket>, &mut Outbox<IpPacket>)) -> bool {
        let (Some(agent), out) = (&mut self.agent, &mut self.out) else { return false };
        // Neither is used again after a panic.
        if catch_unwind(AssertUnwindSafe(|| act(&mut **agent, out))).is_ok() {
            return true;
        }
        self.faults += 1;
        self.out = Outbox::default();
        // Its counters are not trusted any more than the rest of it.
        self.agent = None;
        self.replace();
        match self.agent {
            Some(_) => tracing::error!("the agent of snooped flows panicked: it starts without state"),
            None => tracing::error!(
                "the agent of snooped flows panicked {MOST_FAULTS} times: their packets pass as they are until a \
                 reload; please report it"
            ),
        }
        false
    }

    fn queue(&mut self, direction: Direction) -> &mut std::collections::VecDeque<IpPacket> {
        match direction {
            Direction::ToLink => &mut self.out.to_link,
            Direction::FromLink => &mut self.out.to_host,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bentpipe_link::agent::Packet as _;
    use bentpipe_link::ip::internet_checksum;
    use bentpipe_units::ByteCount;
    use proptest::prelude::*;

    /// It counts packets, sends each twice, and panics at those of one byte.
    #[derive(Debug, Default)]
    struct Fragile(SnoopCounters);

    impl Agent<IpPacket> for Fragile {
        fn outbound(&mut self, _now: Time, packet: IpPacket, out: &mut Outbox<IpPacket>) {
            self.0.cached += 1;
            out.to_link.push_back(packet.clone());
            assert!(packet.bytes().len() > 1, "on purpose");
            out.to_link.push_back(packet);
        }

        fn inbound(&mut self, _now: Time, packet: IpPacket, out: &mut Outbox<IpPacket>) {
            out.to_host.push_back(packet);
        }

        fn wake_at(&self) -> Time {
            Time::MAX
        }

        fn on_timer(&mut self, _now: Time, _out: &mut Outbox<IpPacket>) {}

        fn held_bytes(&self) -> u64 {
            0
        }

        fn report(&self) -> AgentReport {
            AgentReport::Snoop(self.0)
        }
    }

    /// It holds every packet back until it is flushed, when it panics if one of them has one byte.
    #[derive(Debug, Default)]
    struct Holding(Vec<(Direction, IpPacket)>);

    impl Agent<IpPacket> for Holding {
        fn outbound(&mut self, _now: Time, packet: IpPacket, _out: &mut Outbox<IpPacket>) {
            self.0.push((Direction::ToLink, packet));
        }

        fn inbound(&mut self, _now: Time, packet: IpPacket, _out: &mut Outbox<IpPacket>) {
            self.0.push((Direction::FromLink, packet));
        }

        fn wake_at(&self) -> Time {
            Time::MAX
        }

        fn on_timer(&mut self, _now: Time, _out: &mut Outbox<IpPacket>) {}

        fn flush(&mut self, out: &mut Outbox<IpPacket>) {
            for (direction, packet) in self.0.drain(..) {
                assert!(packet.bytes().len() > 1, "on purpose");
                match direction {
                    Direction::ToLink => out.to_link.push_back(packet),
                    Direction::FromLink => out.to_host.push_back(packet),
                }
            }
        }

        fn held_bytes(&self) -> u64 {
            self.0.iter().map(|(_, packet)| packet.bytes().len() as u64).sum()
        }

        fn report(&self) -> AgentReport {
            let queued_bytes = self.held_bytes();
            AgentReport::Snoop(SnoopCounters {
                queue_dropped: 1,
                queued_bytes,
                most_queued_bytes: queued_bytes,
                ..SnoopCounters::default()
            })
        }
    }

    fn holding(lengths: &[(Direction, usize)]) -> AgentSupervisor {
        let mut agent = AgentSupervisor::with(config(1), |_| Box::<Holding>::default());
        for &(direction, length) in lengths {
            agent.take(Time::ZERO, direction, IpPacket::new(vec![0; length]));
        }
        assert!(agent.poll().is_none());
        agent
    }

    /// The lengths of what is to be sent.
    fn polled(agent: &mut AgentSupervisor) -> Vec<(Direction, usize)> {
        std::iter::from_fn(|| agent.poll())
            .map(|(direction, packet)| (direction, packet.bytes().len()))
            .collect()
    }

    fn fragile() -> AgentSupervisor {
        AgentSupervisor::with(config(1), |_| Box::<Fragile>::default())
    }

    fn config(megabytes: u64) -> SnoopConfig {
        SnoopConfig::with_cache(ByteCount::new(megabytes << 20))
    }

    /// The lengths of what is to be sent to the link after a packet of `length` bytes.
    fn sent(agent: &mut AgentSupervisor, length: usize) -> Vec<usize> {
        agent.take(Time::ZERO, Direction::ToLink, IpPacket::new(vec![0; length]));
        std::iter::from_fn(|| agent.poll()).map(|(_, packet)| packet.bytes().len()).collect()
    }

    #[test]
    fn a_packet_at_which_the_agent_panics_passes_once_and_the_next_ones_reach_an_agent() {
        let mut agent = fragile();
        assert_eq!((sent(&mut agent, 1), sent(&mut agent, 2)), (vec![1], vec![2, 2]));
    }

    #[test]
    fn after_too_many_panics_packets_pass_until_a_reload() {
        let mut agent = fragile();
        for _ in 0..MOST_FAULTS {
            assert_eq!(sent(&mut agent, 1), [1]);
        }
        assert_eq!((sent(&mut agent, 2), agent.wake_at()), (vec![2], Time::MAX));
        agent.take(Time::ZERO, Direction::FromLink, IpPacket::new(vec![0; 3]));
        assert_eq!(agent.poll().unwrap().0, Direction::FromLink);
        agent.configure(config(1));
        assert_eq!(sent(&mut agent, 2), [2, 2]);
    }

    #[test]
    fn other_settings_restart_and_keep_the_count() {
        let mut agent = fragile();
        sent(&mut agent, 2);
        assert!(!agent.configure(config(1)) && agent.configure(config(2)));
        sent(&mut agent, 2);
        assert_eq!(agent.counters().cached, 2);
    }

    #[test]
    fn packets_queued_in_a_removed_agent_leave_in_order() {
        let waiting = [(Direction::ToLink, 2), (Direction::FromLink, 3), (Direction::ToLink, 4)];
        let in_order = [(Direction::ToLink, 2), (Direction::ToLink, 4), (Direction::FromLink, 3)];
        for end in [
            |agent: &mut AgentSupervisor| agent.restart(),
            |agent: &mut AgentSupervisor| assert!(agent.configure(config(2))),
            |agent: &mut AgentSupervisor| agent.flush(),
        ] {
            let mut agent = holding(&waiting);
            assert_eq!(agent.counters().queued_bytes, 9);
            end(&mut agent);
            assert_eq!((polled(&mut agent), agent.counters().queued_bytes), (in_order.into(), 0));
        }
        let mut same = holding(&waiting);
        assert!(!same.configure(config(1)) && same.poll().is_none(), "it goes on with the same settings");
    }

    #[test]
    fn the_queues_of_agents_are_counted_together_and_their_greatest_is_kept() {
        let mut agent = holding(&[(Direction::ToLink, 5)]);
        agent.past.most_queued_bytes = 4;
        assert_eq!((agent.counters().queue_dropped, agent.counters().most_queued_bytes), (1, 5));
        agent.past.most_queued_bytes = 9;
        agent.restart();
        assert_eq!((agent.counters().queue_dropped, agent.counters().most_queued_bytes), (2, 9));
    }

    #[test]
    fn an_agent_that_panics_when_it_is_flushed_is_replaced_nonetheless() {
        let mut agent = holding(&[(Direction::ToLink, 2), (Direction::ToLink, 1), (Direction::ToLink, 3)]);
        agent.restart();
        assert_eq!((polled(&mut agent), agent.faults), (vec![], 1));
        agent.take(Time::ZERO, Direction::ToLink, IpPacket::new(vec![0; 2]));
        agent.restart();
        assert_eq!((polled(&mut agent), agent.faults), (vec![(Direction::ToLink, 2)], 1));
    }

    /// Any bytes as a TCP segment of IPv4 between 10.0.0.1 and 10.0.0.2, its checksum right.
    fn segment(mut bytes: Vec<u8>) -> IpPacket {
        let addresses = [10, 0, 0, 1, 10, 0, 0, 2];
        let length = bytes.len() as u8;
        bytes[16..18].fill(0);
        let covered = [&addresses[..], &[0, 6, 0, length], &bytes].concat();
        bytes[16..18].copy_from_slice(&internet_checksum(&covered).to_be_bytes());
        let header = [&[0x45, 0, 0, 20 + length, 0, 0, 0, 0, 64, 6, 0, 0], &addresses[..]].concat();
        IpPacket::new([header, bytes].concat())
    }

    /// Bytes 12 and 13 make a header of a likely length with likely flags; what follows is options and data.
    fn likely() -> impl Strategy<Value = Vec<u8>> {
        let bytes = prop::collection::vec(prop_oneof![any::<u8>(), 0u8..12], 44..90);
        (bytes, 5u8..12, any::<u8>()).prop_map(|(mut bytes, words, flags)| {
            (bytes[12], bytes[13]) = (words << 4, flags & 0x1f);
            // The same ports, so that they are one connection.
            bytes[..4].fill(7);
            bytes
        })
    }

    proptest! {
        #[test]
        fn no_packet_makes_the_agent_panic_or_is_lost(
            all in prop::collection::vec((likely(), any::<bool>()), 1..40),
            noise in prop::collection::vec(any::<u8>(), 0..80)
        ) {
            let mut agent = AgentSupervisor::new(config(1));
            for (number, (bytes, up)) in all.into_iter().enumerate() {
                let (now, packet) = (Time::from_nanos(number as u64 * 50_000_000), segment(bytes));
                prop_assert!(packet.tcp().is_some());
                agent.take(now, if up { Direction::ToLink } else { Direction::FromLink }, packet);
                prop_assert!(!up || agent.poll().is_some());
                agent.on_timer(now);
                while agent.poll().is_some() {}
            }
            agent.take(Time::MAX, Direction::FromLink, IpPacket::new(&noise[..]));
            prop_assert_eq!(agent.poll().map(|(_, packet)| packet.bytes().to_vec()), Some(noise));
            prop_assert_eq!(agent.faults, 0);
        }
    }
}
