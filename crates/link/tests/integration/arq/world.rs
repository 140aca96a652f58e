//! Two ARQs and a link of fixed delay between them, in virtual time.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bentpipe_link::agent::arq::{Arq, ArqConfig, ArqFrame, Delivery};
use bentpipe_link::agent::{Packet, TcpHeader};
use bentpipe_units::{ByteCount, Time};

pub(crate) const MS: Duration = Duration::from_millis(1);
/// One way.
pub(crate) const DELAY: Duration = Duration::from_millis(50);
pub(crate) const LENGTH: usize = 1000;

/// A packet of which only the number and the length matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parcel {
    pub(crate) id: u32,
    pub(crate) length: usize,
}

impl Packet for Parcel {
    type End = ();

    fn ip_length(&self) -> usize {
        self.length
    }

    fn tcp(&self) -> Option<TcpHeader<'_, ()>> {
        None
    }

    fn without_sack(&self) -> Self {
        *self
    }
}

pub(crate) type Frame = ArqFrame<Parcel>;

/// A frame that has reached the far end, or has not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) at: Time,
    pub(crate) frame: Frame,
    pub(crate) lost: bool,
}

/// A round trip of 100 ms, no leisure but for a report each 8 frames or 10 ms.
pub(crate) fn config(delivery: Delivery) -> ArqConfig {
    ArqConfig {
        retransmissions: 3,
        delivery,
        buffer: ByteCount::new(1_000_000),
        report_every: 8,
        report_within: MS * 10,
        rtt: DELAY * 2,
    }
}

/// The sending end, the receiving end, and a link that loses what a test wants to be lost.
pub(crate) struct World {
    pub(crate) now: Time,
    pub(crate) sender: Arq<Parcel>,
    pub(crate) receiver: Arq<Parcel>,
    /// All frames so far, of the sender and of the receiver.
    pub(crate) data: Vec<Sent>,
    pub(crate) reports: Vec<Sent>,
    forward: VecDeque<(Time, Frame)>,
    reverse: VecDeque<(Time, Frame)>,
    lose_data: Box<dyn FnMut(usize, Time) -> bool>,
    /// The first so many transmissions of a packet, by its id.
    lose_copies: HashMap<u32, u32>,
    /// Whether what is lost of the sender's found the queue full, of which it is told.
    refuse: bool,
    /// The same of retransmissions only.
    refuse_copies: bool,
    lose_report: Box<dyn FnMut(usize, Time) -> bool>,
    /// What has come out at the far end, and when.
    pub(crate) delivered: Vec<(Time, u32)>,
    next_id: u32,
}

impl World {
    pub(crate) fn new(config: &ArqConfig) -> Self {
        Self {
            now: Time::ZERO,
            sender: Arq::new(config),
            receiver: Arq::new(config),
            data: Vec::new(),
            reports: Vec::new(),
            forward: VecDeque::new(),
            reverse: VecDeque::new(),
            lose_data: Box::new(|_, _| false),
            lose_copies: HashMap::new(),
            refuse: false,
            refuse_copies: false,
            lose_report: Box::new(|_, _| false),
            delivered: Vec::new(),
            next_id: 0,
        }
    }

    /// Loses the sender's frames for which this holds: their index among all of them, and when they were
    /// sent.
    pub(crate) fn losing(mut self, lose: impl FnMut(usize, Time) -> bool + 'static) -> Self {
        self.lose_data = Box::new(lose);
        self
    }

    /// The same for the receiver's.
    pub(crate) fn losing_reports(mut self, lose: impl FnMut(usize, Time) -> bool + 'static) -> Self {
        self.lose_report = Box::new(lose);
        self
    }

    /// Loses a packet's first so many transmissions.
    pub(crate) fn losing_copies(mut self, id: u32, copies: u32) -> Self {
        self.lose_copies.insert(id, copies);
        self
    }

    /// What is lost of the sender's has found the queue full.
    pub(crate) fn refusing(mut self) -> Self {
        self.refuse = true;
        self
    }

    /// What is lost of the sender's retransmissions has found the queue full.
    pub(crate) fn refusing_retransmissions(mut self) -> Self {
        self.refuse_copies = true;
        self
    }

    /// Sends the next packet; the first has id 0.
    pub(crate) fn send(&mut self) {
        let id = self.next_id;
        self.next_id += 1;
        self.sender.send(self.now, Parcel { id, length: LENGTH });
        self.drain();
    }

    /// Sends so many packets, one each millisecond.
    pub(crate) fn send_each_ms(&mut self, packets: usize) {
        for _ in 0..packets {
            self.send();
            self.run_until(self.now + MS);
        }
    }

    /// Lets happen what happens until then.
    pub(crate) fn run_until(&mut self, end: Time) {
        while let Some(next) = self.next_event().filter(|&at| at <= end) {
            self.now = self.now.max(next);
            self.step();
        }
        self.now = end;
    }

    /// Until nothing happens any more.
    pub(crate) fn settle(&mut self) {
        let mut events = 0;
        while let Some(next) = self.next_event() {
            self.now = self.now.max(next);
            self.step();
            events += 1;
            assert!(events < 1_000_000, "it never comes to rest");
        }
    }

    pub(crate) fn ids(&self) -> Vec<u32> {
        self.delivered.iter().map(|&(_, id)| id).collect()
    }

    /// When a packet came out.
    pub(crate) fn came_at(&self, id: u32) -> Time {
        self.delivered.iter().find(|&&(_, other)| other == id).expect("it has come").0
    }

    /// Frames with a packet that went out.
    pub(crate) fn data_frames(&self) -> usize {
        self.data.iter().filter(|sent| sent.frame.packet().is_some()).count()
    }

    fn next_event(&self) -> Option<Time> {
        let heads = [self.forward.front(), self.reverse.front()].into_iter().flatten().map(|(at, _)| *at);
        let timers = [self.sender.wake_at(), self.receiver.wake_at()];
        heads.chain(timers).min().filter(|&at| at < Time::MAX)
    }

    fn step(&mut self) {
        while let Some(frame) = pop_due(&mut self.forward, self.now) {
            self.receiver.on_frame(self.now, frame);
        }
        while let Some(frame) = pop_due(&mut self.reverse, self.now) {
            self.sender.on_frame(self.now, frame);
        }
        for end in [&mut self.sender, &mut self.receiver] {
            if end.wake_at() <= self.now {
                end.on_timer(self.now);
            }
        }
        self.drain();
    }

    /// The serial of a lost frame that has found the queue full.
    fn refused(&self, frame: &Frame) -> Option<u64> {
        let id = frame.packet()?.id;
        let is_copy =
            self.data.iter().filter(|sent| sent.frame.packet().is_some_and(|sent| sent.id == id)).count() > 1;
        frame.serial().filter(|_| self.refuse || self.refuse_copies && is_copy)
    }

    fn drain(&mut self) {
        while let Some(frame) = self.sender.poll_frame() {
            let copies = frame.packet().and_then(|packet| self.lose_copies.get_mut(&packet.id));
            let copy_lost = copies.is_some_and(|left| left.checked_sub(1).map(|less| *left = less).is_some());
            let lost = (self.lose_data)(self.data.len(), self.now) || copy_lost;
            self.data.push(Sent { at: self.now, frame: frame.clone(), lost });
            if !lost {
                self.forward.push_back((self.now + DELAY, frame));
            } else if let Some(serial) = self.refused(&frame) {
                self.sender.on_refused(serial);
            }
        }
        while let Some(frame) = self.receiver.poll_frame() {
            let lost = (self.lose_report)(self.reports.len(), self.now);
            self.reports.push(Sent { at: self.now, frame: frame.clone(), lost });
            if !lost {
                self.reverse.push_back((self.now + DELAY, frame));
            }
        }
        while let Some(packet) = self.receiver.poll_packet() {
            self.delivered.push((self.now, packet.id));
        }
        assert!(self.sender.poll_packet().is_none(), "nobody sends this way");
    }
}

/// Milliseconds since the start.
pub(crate) fn at_ms(ms: u32) -> Time {
    Time::ZERO + MS * ms
}

fn pop_due(link: &mut VecDeque<(Time, Frame)>, now: Time) -> Option<Frame> {
    link.front().is_some_and(|&(at, _)| at <= now).then(|| link.pop_front())?.map(|(_, frame)| frame)
}
