//! Two endpoints, their applications, and the path between them, in virtual time; every step is checked.

use std::time::Duration;

use bentpipe_tcp::{Config, Endpoint, Recovery, Segment, State};
use bentpipe_units::Time;

use crate::pair::channel::{Channel, Conditions};

/// More segments than this at one moment are a livelock.
const MOST_AT_ONCE: usize = 20_000;

/// What the application at one end does.
#[derive(Debug, Clone)]
pub(crate) struct Application {
    /// Bytes that it has to send, and then it finishes.
    pub(crate) bytes: u64,
    /// It writes up to so many bytes at a time, with a pause between; without a pause whenever there is room.
    pub(crate) write_chunk: u64,
    pub(crate) write_pause: Duration,
    pub(crate) read_chunk: u64,
    pub(crate) read_pause: Duration,
    /// It does not finish before the other side has.
    pub(crate) finishes_last: bool,
    /// It aborts at this moment.
    pub(crate) aborts_at: Option<Time>,
}

impl Application {
    /// Writes `bytes` as fast as it can, and reads what there is.
    pub(crate) fn eager(bytes: u64) -> Self {
        Self {
            bytes,
            write_chunk: u64::MAX,
            write_pause: Duration::ZERO,
            read_chunk: u64::MAX,
            read_pause: Duration::ZERO,
            finishes_last: false,
            aborts_at: None,
        }
    }
}

/// One end: the endpoint, its application, and what a wire tap in front of it has seen.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) endpoint: Endpoint,
    config: Config,
    application: Application,
    initial: u32,
    pub(crate) written: u64,
    pub(crate) read: u64,
    finished: bool,
    next_write: Time,
    next_read: Time,
    /// The offset behind the highest byte that it has sent.
    highest: u64,
    /// The right edge of the other side's window, as it has been told.
    edge: u64,
    /// A tail loss probe may leave: nothing has gone beyond the congestion window since the last
    /// acknowledgement.
    may_probe: bool,
    /// The shift of the windows that this side announces, of its SYN; whether it has offered one.
    shift: Option<u8>,
}

impl Side {
    fn new(endpoint: Endpoint, config: Config, application: Application, initial: u32) -> Self {
        Self {
            endpoint,
            config,
            application,
            initial,
            written: 0,
            read: 0,
            finished: false,
            next_write: Time::ZERO,
            next_read: Time::ZERO,
            highest: 1,
            edge: 1,
            may_probe: false,
            shift: None,
        }
    }

    /// When the application wants to do something by itself.
    fn wants_at(&self) -> Time {
        if self.endpoint.state() == State::Closed {
            return Time::MAX;
        }
        let writes = self.written < self.application.bytes && self.endpoint.writable() > 0;
        let write_at = if writes { self.next_write } else { Time::MAX };
        let read_at = if self.endpoint.readable() > 0 { self.next_read } else { Time::MAX };
        write_at.min(read_at).min(self.application.aborts_at.unwrap_or(Time::MAX))
    }

    fn work(&mut self, now: Time) {
        if self.application.aborts_at.is_some_and(|at| at <= now) {
            self.application.aborts_at = None;
            self.endpoint.abort(now);
        }
        self.write(now);
        self.read(now);
        let may_finish = !self.application.finishes_last || self.endpoint.is_at_end();
        if self.written == self.application.bytes && may_finish && !self.finished {
            self.finished = true;
            self.endpoint.finish();
        }
    }

    fn write(&mut self, now: Time) {
        let left = self.application.bytes - self.written;
        if left == 0 || now < self.next_write {
            return;
        }
        let taken = self.endpoint.write(left.min(self.application.write_chunk));
        self.written += taken;
        if taken > 0 {
            self.next_write = now + self.application.write_pause;
        }
    }

    fn read(&mut self, now: Time) {
        if self.endpoint.readable() == 0 || now < self.next_read {
            return;
        }
        self.read += self.endpoint.read(now, self.application.read_chunk);
        self.next_read = now + self.application.read_pause;
    }

    fn is_established(&self) -> bool {
        self.endpoint.state() == State::Established
    }
}

/// The two ends and the path: `sides[0]` sends into `path[0]`.
pub(crate) struct Pair {
    pub(crate) now: Time,
    pub(crate) sides: [Side; 2],
    pub(crate) path: [Channel; 2],
    pub(crate) events: u64,
}

/// Who begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opening {
    /// The first side calls, the second listens.
    Call,
    /// Both call at once.
    Both,
}

impl Pair {
    pub(crate) fn new(
        opening: Opening,
        configs: [Config; 2],
        applications: [Application; 2],
        conditions: [Conditions; 2],
        initials: [u32; 2],
    ) -> Self {
        let [first, second] = configs;
        first.check().expect("a valid configuration");
        second.check().expect("a valid configuration");
        let caller = Endpoint::connect(first, initials[0], Time::ZERO);
        let other = match opening {
            Opening::Call => Endpoint::listen(second, initials[1]),
            Opening::Both => Endpoint::connect(second, initials[1], Time::ZERO),
        };
        let [here, there] = applications;
        let mut pair = Self {
            now: Time::ZERO,
            sides: [
                Side::new(caller, first, here, initials[0]),
                Side::new(other, second, there, initials[1]),
            ],
            path: conditions.map(Channel::new),
            events: 0,
        };
        (0..2).for_each(|side| pair.attend(side));
        pair
    }

    /// Runs until nothing happens any more, or until `limit`; whether there was an end.
    pub(crate) fn run(&mut self, limit: Time) -> bool {
        while let Some(next) = self.next_at() {
            if next > limit {
                return false;
            }
            assert!(next >= self.now, "time goes on: {next:?} after {:?}", self.now);
            self.now = next;
            (0..2).for_each(|side| self.step(side));
        }
        true
    }

    fn next_at(&self) -> Option<Time> {
        let side = |side: usize| {
            let here = &self.sides[side];
            here.endpoint.wake_at().min(here.wants_at()).min(self.path[side].next_at())
        };
        Some(side(0).min(side(1))).filter(|next| *next < Time::MAX)
    }

    /// What has come for one side by now, one segment after the other.
    fn step(&mut self, side: usize) {
        while let Some(segment) = self.path[1 - side].receive(self.now) {
            self.events += 1;
            self.note_window(side, &segment);
            self.sides[side].endpoint.on_segment(self.now, &segment);
            self.attend(side);
        }
        if self.sides[side].endpoint.wake_at() <= self.now {
            self.events += 1;
            self.sides[side].endpoint.on_timer(self.now);
            self.attend(side);
        }
        if self.sides[side].wants_at() <= self.now {
            self.events += 1;
            self.attend(side);
        }
        let wake_at = self.sides[side].endpoint.wake_at();
        assert!(wake_at > self.now, "side {side} wants to be woken at {wake_at:?}, now is {:?}", self.now);
    }

    /// The application works, and everything that is to be sent is sent.
    pub(crate) fn attend(&mut self, side: usize) {
        self.sides[side].work(self.now);
        for count in 0.. {
            assert!(count < MOST_AT_ONCE, "side {side} sends without end");
            let before = self.sides[side].endpoint.statistics().retransmissions;
            let Some(segment) = self.sides[side].endpoint.poll_transmit(self.now) else { break };
            let again = self.sides[side].endpoint.statistics().retransmissions > before;
            self.check_segment(side, &segment, again);
            self.path[side].send(self.now, segment);
        }
        self.check(side);
    }

    /// What the segment that arrives tells `side` of the other one's window.
    fn note_window(&mut self, side: usize, segment: &Segment) {
        if !segment.is_ack() || segment.is_rst() {
            return;
        }
        let shift =
            self.sides[1 - side].shift.filter(|_| self.sides[side].shift.is_some() && segment.syn.is_none());
        let here = &mut self.sides[side];
        let offset = u64::from(segment.ack.wrapping_sub(here.initial));
        here.edge = here.edge.max(offset + (u64::from(segment.window) << shift.unwrap_or(0)));
        here.may_probe = here.config.recovery == Recovery::Rack && here.config.tail_loss_probe;
    }

    fn check_segment(&mut self, side: usize, segment: &Segment, again: bool) {
        let here = &mut self.sides[side];
        if let Some(syn) = segment.syn {
            here.shift = syn.window_scale;
            return;
        }
        if segment.is_rst() || segment.sequence_length() == 0 {
            return;
        }
        let start = u64::from(segment.seq.wrapping_sub(here.initial));
        let end = start + u64::from(segment.len);
        assert!(end <= 1 + here.written, "side {side} sends what was not written: {segment:?}");
        assert!(!segment.is_fin() || (here.finished && end == 1 + here.written), "an early FIN: {segment:?}");
        assert!(again || start >= here.highest, "side {side} repeats and does not count it: {segment:?}");
        if !again {
            assert!(end <= here.edge.max(start), "side {side} sends beyond the window: {segment:?}");
            let variables = here.endpoint.variables();
            // A window that routers set is held by the pacing and rounded up to whole segments.
            let mss = u64::from(here.config.mss);
            let rounded = if here.config.congestion.wants_feedback() { mss } else { 0 };
            let window = variables.cwnd.max(mss) + rounded + u64::from(segment.is_fin());
            // Proportional rate reduction comes down to the window in the course of a round trip. A tail loss
            // probe is one segment beyond whatever is in flight.
            let reducing = variables.recovering && here.config.proportional_rate_reduction;
            let fits = reducing || variables.in_flight <= window;
            assert!(
                fits || std::mem::take(&mut here.may_probe),
                "side {side} sends beyond cwnd: {variables:?}"
            );
        }
        here.highest = here.highest.max(end + u64::from(segment.is_fin()));
    }

    fn check(&self, side: usize) {
        let (here, there) = (&self.sides[side], &self.sides[1 - side]);
        let held = here.endpoint.receive_buffered();
        // A FIN out of order counts as a byte held.
        assert!(held <= here.config.receive_buffer + 1, "side {side} holds {held}");
        assert!(here.endpoint.send_buffered() <= here.config.send_buffer);
        assert!(here.read <= there.written, "side {side} has read what was not written");
        if here.is_established() {
            let statistics = here.endpoint.statistics();
            assert!(statistics.bytes_sent >= statistics.bytes_acknowledged, "{statistics:?}");
            assert!(statistics.bytes_acknowledged <= here.written, "{statistics:?}");
        }
    }
}
