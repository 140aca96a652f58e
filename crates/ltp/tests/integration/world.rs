//! Two engines and the link between them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::time::Duration;

use bentpipe_link::{DirectionConfig, Link, LinkConfig};
use bentpipe_ltp::{
    Authentication, BUNDLE_PROTOCOL, Color, Config, Engine, Event, Failure, Handle, Reason, SessionId,
};
use bentpipe_units::{Rate, Time};

/// Headers of IPv4 and UDP.
pub(crate) const AROUND: u64 = 28;

/// Of the end with the number 1 or 2 at this distance.
pub(crate) fn config(own: u64, one_way: Duration, rate: Rate) -> Config {
    Config {
        own,
        peer: 3 - own,
        client: BUNDLE_PROTOCOL,
        one_way,
        margin: Duration::from_secs(1),
        rate: rate.bps() as f64 / 8.0,
        datagram: 1400,
        around: AROUND,
        window: 64 << 20,
        memory: 64 << 20,
        longest: 8 << 20,
        retries: 10,
    }
}

/// A direction with errors, in a queue that holds what the pacer's lateness may send at once.
pub(crate) fn direction(rate: Rate, delay: Duration, per: &str) -> DirectionConfig {
    DirectionConfig { rate: Some(rate), delay, per: per.parse().unwrap(), ..DirectionConfig::default() }
}

/// Block `number` of the tests, which says itself which one it is.
pub(crate) fn block(number: u64, len: usize) -> Box<[u8]> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    })
    .take(len)
    .collect();
    let name = number.to_be_bytes();
    let shared = name.len().min(len);
    bytes[..shared].copy_from_slice(&name[name.len() - shared..]);
    bytes.into()
}

/// Whether a datagram of the end with this index is lost.
type Loses = Box<dyn FnMut(usize, &[u8]) -> bool>;

pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) ends: [Engine; 2],
    pub(crate) link: Link,
    in_flight: BinaryHeap<Reverse<(Time, u64, usize)>>,
    datagrams: HashMap<u64, Vec<u8>>,
    number: u64,
    /// How the clients answer; `None` leaves a block without an answer.
    pub(crate) answer: fn(&[u8]) -> Option<Result<(), Reason>>,
    /// Blocks that arrived at either end, with the sessions.
    pub(crate) received: [Vec<(SessionId, Vec<u8>)>; 2],
    pub(crate) sent: [BTreeMap<Handle, Time>; 2],
    pub(crate) failed: [Vec<(Handle, Failure)>; 2],
    /// Datagrams for which this is true are lost.
    pub(crate) loses: Loses,
    out: Vec<u8>,
}

impl World {
    pub(crate) fn new(configs: [Config; 2], link: &LinkConfig, seed: u64) -> Self {
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self {
            now: Time::ZERO,
            ends: configs.map(|config| Engine::new(config, random, Time::ZERO)),
            link: Link::new(link, seed),
            in_flight: BinaryHeap::new(),
            datagrams: HashMap::new(),
            number: 0,
            answer: |_| Some(Ok(())),
            received: Default::default(),
            sent: Default::default(),
            failed: Default::default(),
            loses: Box::new(|_, _| false),
            out: Vec::new(),
        }
    }

    /// Alike at both ends.
    pub(crate) fn symmetric(rate: Rate, delay: Duration, per: &str, seed: u64) -> Self {
        let link = LinkConfig::symmetric(direction(rate, delay, per));
        Self::new([1, 2].map(|own| config(own, delay, rate)), &link, seed)
    }

    /// The same with keys, before anything is sent.
    pub(crate) fn authenticated_by(self, keys: [Authentication; 2]) -> Self {
        let mut keys = keys.into_iter();
        let ends = self.ends.map(|end| end.authenticated_by(keys.next()));
        Self { ends, ..self }
    }

    pub(crate) fn send(&mut self, number: u64, len: usize) {
        self.ends[0].send(number, Color::Red, block(number, len));
    }

    /// Until then, or until nothing is left to happen. Before each step `feed` may give work.
    pub(crate) fn run_fed(&mut self, until: Time, mut feed: impl FnMut(&mut Self)) {
        loop {
            feed(self);
            self.exchange();
            let arrival = self.in_flight.peek().map(|Reverse((at, ..))| *at);
            let due = self.ends.iter().filter_map(Engine::due).chain(arrival).min();
            match due {
                Some(due) if due <= until => self.now = self.now.max(due),
                Some(_) => {
                    self.now = until;
                    return;
                }
                None => return,
            }
        }
    }

    pub(crate) fn run(&mut self, until: Time) {
        self.run_fed(until, |_| {});
    }

    fn exchange(&mut self) {
        while let Some(&Reverse((at, number, end))) = self.in_flight.peek() {
            if at > self.now {
                break;
            }
            self.in_flight.pop();
            let datagram = self.datagrams.remove(&number).unwrap();
            self.ends[end].receive(self.now, &datagram).unwrap();
        }
        for end in 0..2 {
            self.ends[end].advance(self.now);
            self.take_events(end);
            let mut out = std::mem::take(&mut self.out);
            while self.ends[end].transmit(self.now, &mut out) {
                self.offer(end, &out);
            }
            self.out = out;
            self.take_events(end);
        }
    }

    fn offer(&mut self, end: usize, datagram: &[u8]) {
        if (self.loses)(end, datagram) {
            return;
        }
        let direction = if end == 0 { &mut self.link.forward } else { &mut self.link.reverse };
        let bytes = datagram.len() + AROUND as usize;
        let Ok(arrivals) = direction.transmit(self.now, bytes, bytes) else { return };
        for arrival in [Some(arrivals.packet), arrivals.duplicate].into_iter().flatten() {
            self.number += 1;
            self.datagrams.insert(self.number, datagram.to_vec());
            self.in_flight.push(Reverse((arrival.at, self.number, 1 - end)));
        }
    }

    fn take_events(&mut self, end: usize) {
        while let Some(event) = self.ends[end].event() {
            match event {
                Event::Sent(handle) => {
                    let earlier = self.sent[end].insert(handle, self.now);
                    assert_eq!(earlier, None, "an outcome is told once");
                }
                Event::Failed(handle, why) => self.failed[end].push((handle, why)),
                Event::Received(session, block) => {
                    if let Some(outcome) = (self.answer)(&block) {
                        self.ends[end].accepted(session, outcome);
                    }
                    self.received[end].push((session, block));
                }
            }
        }
    }
}

pub(crate) fn at(seconds: f64) -> Time {
    Time::ZERO + Duration::from_secs_f64(seconds)
}
