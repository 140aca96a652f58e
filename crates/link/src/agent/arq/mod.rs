//! Retransmission by the link layer: selective repeat with a bounded number of retransmissions.
//!
//! It knows nothing of what it carries. Each packet has a *number*, and each transmission of it a new *serial*, as in
//! QUIC (RFC 9002 §3). A link delivers in order, so a serial below the highest one received that has not come is
//! lost, for certain, a retransmission like anything else; what is sent again is what was lost. (A path that reorders
//! makes it send again what was only late: the second copy is dropped for its number.)
//!
//! The receiver *reports* the serials that are missing, at once when there is a new gap, otherwise now and then.
//! Reports may be lost: a gap is in all of them until the frames say that the sender knows, which they do by
//! `settled`. Where the gaps are more than a report has room for, the next one goes on where it ended.
//!
//! Where no report comes at all, as when the last packet is lost, the oldest packet is sent again; whatever arrives
//! brings to light what has not. In an outage that is one frame for each timeout, and at some time all is given up.
//!
//! What is given up raises the *floor*: nothing below it will come, and nobody is to wait for it.
//!
//! An end that begins anew has another *incarnation*. Its peer hands on what waits and begins with it at its floor;
//! what reports say of another incarnation is ignored. An end that meets a sender in the middle begins at that
//! sender's `settled` and floor: what its predecessor had and did not report comes again; what waited in it is lost
//! with it.
//!
//! | file | what is there |
//! |---|---|
//! | `frame` | what goes over the link, and what it weighs |
//! | `sender` | packets under way, what becomes of them, and what is sent again |
//! | `timer` | when a report should have come |
//! | `reporter` | which serials have come |
//! | `resequencer` | which numbers have come, and the order of packets |

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
    /// How often a packet is sent again at the most; then its loss is not repaired.
    pub retransmissions: u32,
    /// Whether packets behind a missing one wait for it.
    pub delivery: Delivery,
    /// IP bytes that are kept for retransmission at the most, where the oldest packet gives way; and again that wait
    /// for a missing packet at the most, where that is not waited for any more.
    pub buffer: ByteCount,
    /// The receiver reports after so many frames without a gap; a gap is reported at once.
    pub report_every: u32,
    /// The receiver reports at the latest this long after a frame.
    pub report_within: Duration,
    /// The round-trip time until it has been measured, without queues.
    pub rtt: Duration,
}

/// What happens to packets behind a missing one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// They wait until it has come or is given up.
    InOrder,
    /// They are delivered as they come.
    Immediate,
}

/// What an ARQ has done so far, and what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct ArqCounters {
    /// Packets sent, without retransmissions.
    pub packets: u64,
    /// Packets sent again because a report said that they are missing.
    pub retransmitted: u64,
    /// Packets sent again because no report came.
    pub timed_out: u64,
    /// Packets that were sent as often as may be, or for too long, without word of their arrival. They may have
    /// arrived.
    pub given_up: u64,
    /// Packets for which the queue in front of the link had no room.
    pub refused: u64,
    /// Packets that gave way in the full buffer.
    pub crowded_out: u64,
    /// Reports sent.
    pub reports_sent: u64,
    /// Their bytes on the link.
    pub report_bytes: u64,
    /// Frames sent that said only what is given up.
    pub floors_sent: u64,
    /// Reports received.
    pub reports_received: u64,
    /// Packets received and handed on.
    pub delivered: u64,
    /// Packets received a second time, or when they were not waited for any more.
    pub duplicates: u64,
    /// Packets that were not waited for any more before they came.
    pub skipped: u64,
    /// How often another incarnation of the peer began, the first one included.
    pub peers: u64,
    /// Frames that were sent by an incarnation of the peer that is no more, or were meant for one of this end.
    pub stale: u64,
    /// IP bytes that are held now, for retransmission or behind a missing packet.
    pub held_bytes: u64,
    /// The most that were held at any time.
    pub most_held_bytes: u64,
}

/// One end of a link layer that retransmits. See the [module](self).
#[derive(Debug)]
pub struct Arq<P> {
    retransmissions: u32,
    sender: Sender<P>,
    reporter: Reporter,
    resequencer: Resequencer<P>,
    /// When the peer's sender last gave a sign of life.
    heard_at: Time,
    out: Output<P>,
}

/// What is to be sent and to be handed on, and the sums.
#[derive(Debug)]
struct Output<P> {
    frames: VecDeque<ArqFrame<P>>,
    packets: VecDeque<P>,
    counters: ArqCounters,
}

impl ArqConfig {
    /// What suits a link: three retransmissions, in order, a buffer for the packets of four round trips.
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
            // A floor alone is not where to begin: a packet says the same, and more.
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

    /// The next packet that has come from the other end.
    pub fn poll_packet(&mut self) -> Option<P> {
        self.out.packets.pop_front()
    }

    /// When [`on_timer`](Self::on_timer) is to be called; [`Time::MAX`] for never.
    pub fn wake_at(&self) -> Time {
        self.sender.wake_at().min(self.reporter.wake_at()).min(self.patient_until())
    }

    /// The time of [`wake_at`](Self::wake_at) has come.
    pub fn on_timer(&mut self, now: Time) {
        self.sender.on_timer(now, &mut self.out);
        self.reporter.on_timer(now, &mut self.out);
        if self.patient_until() <= now {
            self.resequencer.release_all(&mut self.out);
        }
        self.note_held();
    }

    /// IP bytes of packets that it keeps for retransmission and of those that wait for a missing one.
    pub fn held_bytes(&self) -> u64 {
        self.sender.kept_bytes() + self.resequencer.waiting_bytes()
    }

    /// What it has done so far, and what it holds.
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

    /// Until when packets wait for a missing one if nothing more is heard: as long as the sender itself would try.
    fn patient_until(&self) -> Time {
        match self.resequencer.is_waiting() {
            true => self.heard_at + self.sender.timer().patience(self.retransmissions),
            false => Time::MAX,
        }
    }

    fn note_held(&mut self) {
        let most = &mut self.out.counters.most_held_bytes;
        *most = (self.sender.kept_bytes() + self.resequencer.waiting_bytes()).max(*most);
    }
}

impl<P> Output<P> {
    fn deliver(&mut self, packet: P) {
        self.counters.delivered += 1;
        self.packets.push_back(packet);
    }
}

/// Numbers or serials that may be under way at a time: as many as there are packets in a full buffer if they are as
/// short as packets get. It bounds the memory for what is known of them where a packet stays under way for very long.
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
