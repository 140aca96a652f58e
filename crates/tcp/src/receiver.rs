//! The receiving half: reassembly, the window, and when an acknowledgement goes out.

use std::time::Duration;

use bentpipe_units::{Ranges, Time};

use crate::right_sizing::RightSizing;
use crate::segment::{MAX_SACK_BLOCKS, SackBlocks, sequence_of};

/// The window is announced when it has opened by so many segments (RFC 9293 §3.8.6.2.2).
const OPENED: u64 = 2;

/// When the next acknowledgement is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Never,
    At(Time),
    Now,
}

/// The data that has arrived, and its acknowledgements. Offset 0 is the SYN.
#[derive(Debug, Clone)]
pub(crate) struct Receiver {
    nxt: u64,
    read: u64,
    fin: Option<u64>,
    beyond: Ranges,
    /// Offsets of the last segments that arrived out of order, the newest first.
    recent: [u64; MAX_SACK_BLOCKS],
    buffer: u64,
    mss: u64,
    delay: Option<Duration>,
    /// Full-size segments per acknowledgement.
    ack_every: u64,
    unacknowledged: u64,
    due: Due,
    /// The right edge of the window as last announced.
    edge: u64,
    /// The header has 16 bits for the window, shifted by so many; what stood in them last.
    shift: u8,
    announced: u16,
    duplicate_bytes: u64,
    /// Whether what arrives twice is reported, and what has, for the next acknowledgement (RFC 2883).
    reports_duplicates: bool,
    twice: Option<(u64, u64)>,
    /// The buffer grows with what is read.
    right_sizing: Option<Box<RightSizing>>,
}

impl Receiver {
    pub(crate) fn new(buffer: u64, mss: u64, delay: Option<Duration>, ack_every: u32) -> Self {
        Self {
            nxt: 1,
            read: 1,
            fin: None,
            beyond: Ranges::default(),
            recent: [0; MAX_SACK_BLOCKS],
            buffer,
            mss,
            delay: delay.filter(|delay| !delay.is_zero()),
            ack_every: ack_every.into(),
            unacknowledged: 0,
            due: Due::Never,
            edge: 1 + buffer,
            shift: 0,
            announced: 0,
            duplicate_bytes: 0,
            reports_duplicates: false,
            twice: None,
            right_sizing: None,
        }
    }

    /// The buffer is to begin with `first` bytes and to grow up to its size.
    pub(crate) fn grow_from(&mut self, first: u64) {
        let sizing = RightSizing::new(first, self.buffer, self.mss);
        self.buffer = first;
        self.edge = self.nxt + sizing.window();
        self.right_sizing = Some(Box::new(sizing));
    }

    /// The buffer grows with what is read, for which the receiver measures round trips.
    pub(crate) fn measures_round_trips(&self) -> bool {
        self.right_sizing.is_some()
    }

    /// A segment of `len` bytes has arrived, `rtt` after the acknowledgement that it echoes (`echo`).
    pub(crate) fn measure(&mut self, len: u64, echo: u32, rtt: Duration) {
        if let Some(sizing) = self.right_sizing.as_mut().filter(|_| len >= self.mss) {
            sizing.measure_by_timestamp(echo, rtt);
        }
    }

    /// What the handshake has agreed on: payload bytes of a full segment, and the shift of the window in the
    /// header; and whether what arrives twice is reported.
    pub(crate) fn configure(&mut self, mss: u64, shift: u8, reports_duplicates: bool) {
        (self.mss, self.shift, self.reports_duplicates) = (mss, shift, reports_duplicates);
    }

    /// The next offset expected (RCV.NXT).
    pub(crate) fn nxt(&self) -> u64 {
        self.nxt
    }

    /// Bytes that may be read.
    pub(crate) fn readable(&self) -> u64 {
        self.nxt - self.read - u64::from(self.is_finished())
    }

    /// Bytes held: to be read, and arrived out of order.
    pub(crate) fn held(&self) -> u64 {
        self.readable() + self.beyond.bytes()
    }

    /// Payload that had arrived before.
    pub(crate) fn duplicate_bytes(&self) -> u64 {
        self.duplicate_bytes
    }

    /// Everything up to the other side's FIN has arrived.
    pub(crate) fn is_finished(&self) -> bool {
        self.fin.is_some_and(|fin| self.nxt > fin)
    }

    /// When a delayed acknowledgement is due.
    pub(crate) fn ack_due_at(&self) -> Time {
        match self.due {
            Due::Never => Time::MAX,
            Due::At(at) => at,
            Due::Now => Time::ZERO,
        }
    }

    /// An acknowledgement is due at once: the other side asks for one, or must be told something.
    pub(crate) fn ack_now(&mut self) {
        self.due = Due::Now;
    }

    /// An acknowledgement is sent, with data or without; returns the window for its header.
    pub(crate) fn acknowledge(&mut self) -> u16 {
        self.due = Due::Never;
        self.unacknowledged = 0;
        let window = self.window();
        self.edge = self.edge.max(self.nxt + window);
        self.announced = self.in_header(window);
        self.announced
    }

    /// Bytes that the other side may send beyond the acknowledged ones. The right edge never goes back (RFC
    /// 9293 §3.8.6: "shrinking the window" is strongly discouraged).
    pub(crate) fn window(&self) -> u64 {
        let mut room = self.buffer.saturating_sub(self.nxt - self.read);
        if let Some(sizing) = &self.right_sizing {
            // What has arrived out of order takes memory, too.
            room = room.saturating_sub(self.beyond.bytes()).min(sizing.window());
        }
        room.max(self.edge.saturating_sub(self.nxt))
    }

    /// A window as the header says it, rounded down.
    fn in_header(&self, window: u64) -> u16 {
        (window >> self.shift).min(65_535) as u16
    }

    /// Takes payload from `start`, `len` bytes long, and a FIN behind it.
    pub(crate) fn take(&mut self, now: Time, start: u64, len: u64, fin: bool) {
        if fin && self.fin.is_none() && (self.nxt..=self.edge).contains(&(start + len)) {
            self.fin = Some(start + len);
        }
        // Nothing follows a FIN, nor is anything taken beyond the window.
        let end = (start + len).min(self.fin.unwrap_or(self.edge.max(self.nxt)));
        let end_with_fin = end + u64::from(self.fin == Some(end));
        let before = (self.nxt, self.beyond.bytes());
        if self.reports_duplicates {
            self.twice = self.known_part(start, end);
        }
        if start <= self.nxt {
            self.advance(end_with_fin);
        } else if start < end_with_fin {
            self.beyond.insert(start, end_with_fin, |_, _| {});
            self.remember(start);
        }
        let news = self.nxt - before.0 + self.beyond.bytes().saturating_sub(before.1);
        self.duplicate_bytes += end.saturating_sub(start).saturating_sub(news);
        if news > 0 {
            self.open_window(now, len);
        }
        self.decide(now, before, len);
    }

    /// A sender that uses the window gets a larger one, as far as there is room.
    fn open_window(&mut self, now: Time, len: u64) {
        let Some(sizing) = &mut self.right_sizing else { return };
        let held = self.nxt - self.read + self.beyond.bytes();
        sizing.on_segment(now, self.nxt, self.edge, len, self.buffer.saturating_sub(held));
    }

    /// The first part of a segment that has arrived before.
    fn known_part(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        if start < self.nxt {
            return (start < end).then(|| (start, end.min(self.nxt)));
        }
        if self.beyond.is_empty() {
            return None;
        }
        let from = match self.beyond.containing(start) {
            Some(_) => start,
            None => self.beyond.next_start(start).filter(|&next| next < end)?,
        };
        self.beyond.containing(from).map(|(_, to)| (from, end.min(to)))
    }

    fn advance(&mut self, to: u64) {
        self.nxt = self.nxt.max(to);
        if self.beyond.is_empty() {
            return;
        }
        if let Some((_, end)) = self.beyond.containing(self.nxt) {
            self.nxt = end;
        }
        self.beyond.remove_before(self.nxt);
        if let Some(fin) = self.fin.filter(|&fin| self.nxt > fin) {
            self.nxt = fin + 1;
            self.beyond = Ranges::default();
        }
    }

    /// In order, every so many full-size segments are acknowledged at once; anything else that arrives always
    /// is (RFC 5681 §4.2), for it is a duplicate, opens a hole or fills one.
    fn decide(&mut self, now: Time, (nxt, beyond): (u64, u64), len: u64) {
        let in_order = self.nxt == nxt + len && beyond == 0 && len > 0;
        let Some(delay) = self.delay.filter(|_| in_order) else {
            self.due = Due::Now;
            return;
        };
        self.unacknowledged += len;
        if self.unacknowledged >= self.ack_every * self.mss {
            self.due = Due::Now;
        } else if self.due == Due::Never {
            self.due = Due::At(now + delay);
        }
    }

    /// RFC 2018 §4: the block with the newest segment first, then those reported before it.
    fn remember(&mut self, start: u64) {
        let at = self.recent.iter().position(|&known| known == start).unwrap_or(MAX_SACK_BLOCKS - 1);
        self.recent[..=at].rotate_right(1);
        self.recent[0] = start;
    }

    /// The SACK blocks of the next acknowledgement, as many as have room; what has arrived twice comes first
    /// (RFC 2883 §4).
    pub(crate) fn sack_blocks(&mut self, initial: u32, room: usize) -> SackBlocks {
        let mut blocks = SackBlocks::default();
        if let Some((start, end)) = self.twice.take().filter(|_| room > 0) {
            blocks.push(sequence_of(initial, start), sequence_of(initial, end));
        }
        if self.beyond.is_empty() {
            return blocks;
        }
        // Offsets within one block remember that block once, so that the others keep their place.
        let mut kept = [0; MAX_SACK_BLOCKS];
        let mut count = 0;
        for &offset in &self.recent {
            let Some((start, end)) = self.beyond.containing(offset) else { continue };
            if kept[..count].contains(&start) {
                continue;
            }
            kept[count] = start;
            count += 1;
            if blocks.len() < room {
                blocks.push(sequence_of(initial, start), sequence_of(initial, end));
            }
        }
        self.recent = kept;
        blocks
    }

    /// The application takes up to `most` bytes; returns how many. Where that opens the window by two
    /// segments, or by half the buffer, the other side is told (RFC 9293 §3.8.6.2.2); but not the same again,
    /// which would be a duplicate acknowledgement and a sign of loss.
    pub(crate) fn read(&mut self, now: Time, most: u64) -> u64 {
        let bytes = self.readable().min(most);
        self.read += bytes;
        if let Some(sizing) = &mut self.right_sizing {
            let out_of_order = self.beyond.end().map_or(0, |end| end.saturating_sub(self.nxt));
            self.buffer = self.buffer.max(sizing.on_read(now, self.read, out_of_order));
        }
        let announced = self.edge.saturating_sub(self.nxt);
        let opened = self.window().saturating_sub(announced);
        if bytes > 0
            && opened >= (OPENED * self.mss).min(self.buffer / 2)
            && announced < self.buffer / 2
            && self.is_worth_telling(announced)
            && self.in_header(self.window()) > self.announced
        {
            self.due = Due::Now;
        }
        bytes
    }

    /// A window that grows all the time is told of with the next acknowledgement; at once only where it has
    /// doubled, as Linux does.
    fn is_worth_telling(&self, announced: u64) -> bool {
        self.right_sizing.is_none() || self.window() >= 2 * announced
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 100;
    const DELAY: Duration = Duration::from_millis(40);

    fn receiver(buffer: u64) -> Receiver {
        Receiver::new(buffer, MSS, Some(DELAY), 2)
    }

    /// Segment number `n`, counted from 0, arrives at time zero.
    fn segment(receiver: &mut Receiver, n: u64) {
        receiver.take(Time::ZERO, 1 + n * MSS, MSS, false);
    }

    fn due(receiver: &mut Receiver) -> bool {
        let due = receiver.ack_due_at() == Time::ZERO;
        if due {
            receiver.acknowledge();
        }
        due
    }

    #[test]
    fn every_second_segment_is_acknowledged_at_once_and_a_lone_one_after_the_delay() {
        let mut receiver = receiver(10_000);
        segment(&mut receiver, 0);
        assert_eq!(receiver.ack_due_at(), Time::ZERO + DELAY);
        segment(&mut receiver, 1);
        assert!(due(&mut receiver));
        assert_eq!(receiver.ack_due_at(), Time::MAX);
    }

    #[test]
    fn stretch_acks_are_of_as_many_segments_as_wanted_unless_the_delay_ends() {
        let mut receiver = Receiver::new(10_000, MSS, Some(DELAY), 8);
        (0..7).for_each(|n| segment(&mut receiver, n));
        assert_eq!(receiver.ack_due_at(), Time::ZERO + DELAY, "of the first of them");
        segment(&mut receiver, 7);
        assert!(due(&mut receiver));
    }

    #[test]
    fn segments_that_open_fill_or_repeat_are_acknowledged_at_once() {
        let mut receiver = receiver(10_000);
        segment(&mut receiver, 1);
        assert!(due(&mut receiver), "it opens a hole");
        segment(&mut receiver, 0);
        assert!(due(&mut receiver), "it fills the hole");
        assert_eq!(receiver.nxt(), 201);
        segment(&mut receiver, 0);
        assert!(due(&mut receiver), "it is a repetition");
        assert_eq!(receiver.duplicate_bytes(), 100);
    }

    #[test]
    fn the_newest_block_comes_first_and_three_fit_beside_timestamps() {
        let mut receiver = receiver(10_000);
        for n in [2, 4, 6, 8] {
            segment(&mut receiver, n);
            receiver.sack_blocks(0, 3);
        }
        let first = |n: u64| (1 + n * MSS) as u32;
        let blocks = receiver.sack_blocks(0, 3);
        assert_eq!(blocks.as_slice(), [8, 6, 4].map(|n| (first(n), first(n + 1))));
        segment(&mut receiver, 3);
        let blocks = receiver.sack_blocks(0, 4);
        assert_eq!(blocks.as_slice(), [(first(2), first(5)), (first(8), first(9)), (first(6), first(7))]);
    }

    #[test]
    fn the_window_closes_as_the_buffer_fills_and_reading_announces_it_again() {
        let mut receiver = receiver(400);
        (0..4).for_each(|n| segment(&mut receiver, n));
        receiver.acknowledge();
        assert_eq!((receiver.window(), receiver.readable()), (0, 400));
        assert_eq!(receiver.read(Time::ZERO, 100), 100);
        assert_eq!(receiver.ack_due_at(), Time::MAX, "a segment's room is not worth telling");
        receiver.read(Time::ZERO, 100);
        assert!(due(&mut receiver));
        assert_eq!(receiver.window(), 200);
    }

    #[test]
    fn data_beyond_the_window_are_not_accepted() {
        let mut receiver = receiver(250);
        (0..3).for_each(|n| segment(&mut receiver, n));
        assert_eq!(receiver.readable(), 250);
        receiver.take(Time::ZERO, 251, 0, true);
        assert!(receiver.is_finished());
        assert_eq!(receiver.readable(), 250, "a FIN is no byte");
    }

    #[test]
    fn a_fin_out_of_order_waits_for_the_missing_data() {
        let mut receiver = receiver(10_000);
        receiver.take(Time::ZERO, 101, MSS, true);
        assert!(!receiver.is_finished());
        segment(&mut receiver, 0);
        assert!(receiver.is_finished());
        assert_eq!((receiver.readable(), receiver.nxt()), (200, 202));
    }
}
