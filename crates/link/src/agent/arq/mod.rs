//! Retransmission by the link layer: selective repeat with a bounded number of retransmissions.
//!
//! It does not look into packets. Each packet has a *number*, and each transmission of it a new *serial*, as
//! in QUIC (RFC 9002 §3). A link delivers in order, so that a serial below the highest one received that has
//! not arrived is certainly lost, whether or not it was a retransmission. Only lost packets are
//! retransmitted. (On a path that reorders, late packets are retransmitted too; the second copy is dropped
//! because of its number.)
//!
//! The receiver *reports* missing serials, at once when there is a new gap, otherwise now and then. Reports
//! may be lost: each one lists every gap until the sender acknowledges it, by `settled` in its frames. If
//! there are more gaps than a report has room for, the next report continues where it ended.
//!
//! If no report arrives at all, for example because the last packet is lost, the oldest packet is
//! retransmitted: its arrival makes the receiver report all others. In an outage this is one frame for each
//! timeout, until all packets are abandoned.
//!
//! Abandoned packets raise the *floor*: no packet below it will arrive, and the receiver does not wait for
//! any.
//!
//! An end that restarts has another *incarnation*. Its peer delivers the packets that wait, and begins anew
//! at its floor; reports about another incarnation are ignored. A receiver that restarts begins at the
//! sender's `settled` and floor: packets that its predecessor had received but not reported arrive again;
//! packets that waited in it are lost.
//!
//! | file | contents |
//! |---|---|
//! | `frame` | the frames on the link, and their lengths |
//! | `sender` | outstanding packets, their fates, and retransmission |
//! | `timer` | the retransmission timer |
//! | `reporter` | which serials have arrived |
//! | `resequencer` | which numbers have arrived, and the order of packets |

mod frame;
mod reporter;
mod resequencer;
mod sender;
mod timer;

use std::collections::VecDeque;
use std::time::Duration;

use bentpipe_units::{ByteCount, Time};
use serde::Serialize;

use self::reporter::{Origin, Reporter};
use self::resequencer::Resequencer;
use self::sender::Sender;
use super::Packet;
use crate::{FULL_SIZE_PACKET, LinkConfig};

pub use frame::{
    ArqFrame, DATA_HEADER, DataFrame, FLOOR_FRAME, MAX_RANGES, MAX_SPAN, RANGE, REPORT_HEADER, Report,
};

/// Parameters of an [`Arq`]; both ends of a link have the same.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ArqConfig {
    /// Limit of the retransmissions of a packet; after that, its loss is not repaired.
    pub retransmissions: u32,
    /// Whether packets after a missing one wait for it.
    pub delivery: Delivery,
    /// Limit of the IP bytes kept for retransmission; beyond it the oldest packet is evicted. Also the limit
    /// of the IP bytes that wait for a missing packet; beyond it the missing packet is skipped.
    pub buffer: ByteCount,
    /// The receiver reports after this many frames without a gap; a gap is reported at once.
    pub report_every: u32,
    /// The receiver reports at the latest this long after a frame.
    pub report_within: Duration,
    /// The round-trip time until it has been measured, without queues.
    pub rtt: Duration,
}

/// The handling of packets after a missing one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// They wait until it has arrived or is abandoned.
    InOrder,
    /// They are delivered as they arrive.
    Immediate,
}

/// The counters of an [`Arq`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct ArqCounters {
    /// Packets sent, without retransmissions.
    pub packets: u64,
    /// Packets retransmitted because a report listed them as missing.
    pub retransmitted: u64,
    /// Packets retransmitted because no report arrived.
    pub timed_out: u64,
    /// Packets abandoned after the allowed number of retransmissions, or after too long a time, without a
    /// report of their arrival. They may have arrived.
    pub given_up: u64,
    /// Packets for which the queue in front of the link had no room.
    pub refused: u64,
    /// Packets evicted from the full buffer.
    pub crowded_out: u64,
    /// Reports sent.
    pub reports_sent: u64,
    /// Their bytes on the link.
    pub report_bytes: u64,
    /// Floor frames sent.
    pub floors_sent: u64,
    /// Reports received.
    pub reports_received: u64,
    /// Packets received and delivered.
    pub delivered: u64,
    /// Packets received a second time, or after they had been skipped.
    pub duplicates: u64,
    /// Packets skipped before they arrived.
    pub skipped: u64,
    /// Incarnations of the peer, the first one included.
    pub peers: u64,
    /// Frames from a former incarnation of the peer, or for a former one of this end.
    pub stale: u64,
    /// IP bytes held at present, for retransmission or after a missing packet.
    pub held_bytes: u64,
    /// The highest value of `held_bytes`.
    pub most_held_bytes: u64,
}

/// One end of a link layer that retransmits. See the [module](self).
#[derive(Debug)]
pub struct Arq<P> {
    retransmissions: u32,
    sender: Sender<P>,
    reporter: Reporter,
    resequencer: Resequencer<P>,
    /// When a frame of the peer's sender last arrived.
    heard_at: Time,
    out: Output<P>,
}

/// The frames to send, the packets to deliver, and the sums.
#[derive(Debug)]
struct Output<P> {
    frames: VecDeque<ArqFrame<P>>,
    packets: VecDeque<P>,
    counters: ArqCounters,
}

impl ArqConfig {
    /// Parameters for a link: three retransmissions, delivery in order, a buffer for the packets of four
    /// round trips.
    pub fn for_link(link: &LinkConfig) -> Self {
        let rtt = link.forward.delay.saturating_add(link.reverse.delay);
        let directions = [&link.forward, &link.reverse];
        let bdp =
            directions.iter().filter_map(|direction| direction.rate).map(|rate| rate.bytes_in(rtt)).max();
        const UNLIMITED_RATE: u64 = 16_000_000;
        Self {
            retransmissions: 3,
            delivery: Delivery::InOrder,
            buffer: ByteCount::new(
                bdp.unwrap_or(UNLIMITED_RATE).saturating_mul(4).max(64 * FULL_SIZE_PACKET.get()),
            ),
            report_every: 8,
            report_within: Duration::from_millis(20),
            rtt,
        }
    }
}

impl<P: Packet> Arq<P> {
    /// An end at rest.
    pub fn new(config: &ArqConfig) -> Self {
        Self {
            retransmissions: config.retransmissions,
            sender: Sender::new(config),
            reporter: Reporter::new(config),
            resequencer: Resequencer::new(config),
            heard_at: Time::ZERO,
            out: Output {
                frames: VecDeque::new(),
                packets: VecDeque::new(),
                counters: ArqCounters::default(),
            },
        }
    }

    /// Takes a packet for the other end.
    pub fn send(&mut self, now: Time, packet: P) {
        self.sender.send(now, packet, &mut self.out);
        self.note_held();
    }

    /// A frame of the other end arrives.
    pub fn on_frame(&mut self, now: Time, frame: ArqFrame<P>) {
        match frame {
            ArqFrame::Data(data) => self.on_data(now, data),
            ArqFrame::Report(report) => self.sender.on_report(now, &report, &mut self.out),
            ArqFrame::Floor { incarnation, floor } if self.reporter.origin(incarnation) == Origin::Known => {
                self.heard_at = now;
                self.resequencer.on_floor(floor, &mut self.out);
            }
            // A receiver does not begin with a floor frame: the next packet carries the same, and more.
            ArqFrame::Floor { .. } => self.out.counters.stale += 1,
        }
        self.note_held();
    }

    /// The queue in front of the link had no room for the frame with this [`serial`](ArqFrame::serial).
    pub fn on_refused(&mut self, serial: u64) {
        self.sender.on_refused(serial, &mut self.out);
    }

    /// The next frame for the link.
    pub fn poll_frame(&mut self) -> Option<ArqFrame<P>> {
        self.out.frames.pop_front()
    }

    /// The next packet that has arrived from the other end.
    pub fn poll_packet(&mut self) -> Option<P> {
        self.out.packets.pop_front()
    }

    /// When [`on_timer`](Self::on_timer) must be called; [`Time::MAX`] for never.
    pub fn wake_at(&self) -> Time {
        self.sender.wake_at().min(self.reporter.wake_at()).min(self.give_up_waiting_at())
    }

    /// The time of [`wake_at`](Self::wake_at) has come.
    pub fn on_timer(&mut self, now: Time) {
        self.sender.on_timer(now, &mut self.out);
        self.reporter.on_timer(now, &mut self.out);
        if self.give_up_waiting_at() <= now {
            self.resequencer.release_all(&mut self.out);
        }
        self.note_held();
    }

    /// IP bytes of packets kept for retransmission, and of those that wait for a missing one.
    pub fn held_bytes(&self) -> u64 {
        self.sender.cached_bytes() + self.resequencer.waiting_bytes()
    }

    /// Its counters.
    pub fn counters(&self) -> ArqCounters {
        ArqCounters { held_bytes: self.held_bytes(), ..self.out.counters }
    }

    fn on_data(&mut self, now: Time, data: DataFrame<P>) {
        let DataFrame { incarnation, serial, number, floor, settled, packet } = data;
        match self.reporter.origin(incarnation) {
            Origin::Known => {}
            Origin::New => {
                self.reporter.begin(incarnation, serial, settled);
                self.resequencer.begin(floor.min(number), &mut self.out);
                self.out.counters.peers += 1;
            }
            Origin::Former => {
                self.out.counters.stale += 1;
                return;
            }
        }
        self.heard_at = now;
        self.resequencer.on_packet(number, floor, packet, &mut self.out);
        self.reporter.on_data(now, serial, settled, &mut self.out);
    }

    /// Until when packets wait for a missing one if no frame arrives: as long as the sender itself would try.
    fn give_up_waiting_at(&self) -> Time {
        match self.resequencer.is_waiting() {
            true => self.heard_at + self.sender.timer().give_up_after(self.retransmissions),
            false => Time::MAX,
        }
    }

    fn note_held(&mut self) {
        let most = &mut self.out.counters.most_held_bytes;
        *most = (self.sender.cached_bytes() + self.resequencer.waiting_bytes()).max(*most);
    }
}

impl<P> Output<P> {
    fn deliver(&mut self, packet: P) {
        self.counters.delivered += 1;
        self.packets.push_back(packet);
    }
}

/// Limit of the outstanding numbers or serials: the number of packets in a full buffer if all are as short as
/// possible. It bounds the memory for their records if a packet is outstanding for very long.
fn span_of(config: &ArqConfig) -> usize {
    /// The headers of IPv4 and TCP without options.
    const SHORT_PACKET: u64 = 40;
    let packets = config.buffer.get() / SHORT_PACKET;
    usize::try_from(packets).unwrap_or(MAX_SPAN).clamp(1, MAX_SPAN)
}

/// `VecDeque::pop_front_if`, which needs Rust 1.93.
fn pop_front_if<T>(queue: &mut VecDeque<T>, is_wanted: impl FnOnce(&T) -> bool) -> Option<T> {
    queue.front().is_some_and(is_wanted).then(|| queue.pop_front())?
}
