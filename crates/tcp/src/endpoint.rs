//! The connection: handshake, segments in and out, the end (RFC 9293 §3.10).

use std::time::Duration;

use bentpipe_units::{Rate, Time};

use crate::congestion::ControlFactory;
use crate::handshake::Handshake;
use crate::receiver::Receiver;
use crate::segment::{
    CongestionOption, Flags, REQUEST_LENGTH, SackBlocks, Segment, SynOptions, Timestamps, offset_of,
    sequence_of,
};
use crate::sender::{Negotiated, Outgoing, Sender};
use crate::state::{End, Reported, State, Statistics, Variables};
use crate::{Config, Metrics, MetricsCache, Recovery, SynSchedule};

/// Bytes of the timestamps option in each segment, which the announced mss does not know of (RFC 6691 §2).
const TIMESTAMPS_LENGTH: u64 = 12;
/// Bytes of the headers of IPv4 and TCP without options.
const BARE_HEADERS: u64 = 40;
/// RFC 7323 §2.3: a larger shift is taken as this one.
const MAX_WINDOW_SHIFT: u8 = 14;
/// Bytes of options that a TCP header has room for.
const MAX_OPTIONS: usize = 40;
/// How far the sequence numbers of a connection are from those of the one before it with the same ends.
const SEQUENCE_STEP: u32 = 0x1000_0000;
/// Windows for which an automatic send buffer has room: Linux reserves memory for two, and 4352 bytes for a
/// segment of 1448 (measured: a connection begins with 87,040 bytes for ten).
const SEND_WINDOWS: u64 = 6;
/// What a host that announces no mss must accept (RFC 9293 §3.7.1).
const DEFAULT_MSS: u16 = 536;

/// One side of a TCP connection.
// What happens once in a connection is `#[cold]`, here and in the sender: the code that every segment passes
// is shorter without it.
#[derive(Debug)]
pub struct Endpoint {
    config: Config,
    state: State,
    end: Option<End>,
    passive: bool,
    initial_send: u32,
    initial_receive: u32,
    handshake: Handshake,
    window_shift_in: u8,
    window_shift_out: u8,
    timestamps: bool,
    sack: bool,
    /// Both sides use the congestion header.
    feedback: bool,
    /// The sum of the feedback that has arrived, for the other side; and the sum that the other side has told
    /// of last.
    feedback_in: u32,
    feedback_told: u32,
    echo: u32,
    sender: Sender,
    receiver: Receiver,
    bytes_read: u64,
    /// Bytes that the application may have written; it grows where the configuration says so.
    send_buffer: u64,
    established_at: Option<Time>,
    ended_at: Option<Time>,
    /// A reset to be sent.
    reset: Option<Segment>,
}

impl Endpoint {
    /// Opens a connection: the first SYN goes out at the next [`poll_transmit`](Self::poll_transmit).
    ///
    /// `initial_sequence` may be anything; RFC 9293 §3.4.1 wants it hard to guess, a simulation wants it
    /// repeatable.
    pub fn connect(config: Config, initial_sequence: u32, now: Time) -> Self {
        let mut endpoint = Self::new(config, initial_sequence, State::SynSent);
        endpoint.handshake.begin(now);
        endpoint
    }

    /// Waits for a connection.
    pub fn listen(config: Config, initial_sequence: u32) -> Self {
        Self::new(config, initial_sequence, State::Listen)
    }

    /// The same with a congestion control from outside, for this connection and those that take its place.
    /// Its configuration names [`Algorithm::Custom`](crate::congestion::Algorithm::Custom).
    pub fn with_control(mut self, factory: ControlFactory) -> Self {
        self.sender.factory = Some(factory);
        self
    }

    /// Waits for another connection in the place of this one, with its parameters. Segments of this one that
    /// are still in flight are not taken for the new one's (RFC 9293 §3.4.3).
    pub fn relisten(&self) -> Self {
        let last = sequence_of(self.initial_send, self.sender.queue.nxt());
        let mut next = Self::listen(self.config, last.wrapping_add(SEQUENCE_STEP));
        next.sender.factory.clone_from(&self.sender.factory);
        next
    }

    /// A listening endpoint opens the connection itself (RFC 9293 §3.10.1): the first SYN goes out at the
    /// next [`poll_transmit`](Self::poll_transmit). Data already written is kept. In other states it does
    /// nothing.
    pub fn open_actively(&mut self, now: Time) {
        if self.state == State::Listen {
            self.state = State::SynSent;
            self.passive = false;
            self.handshake.begin(now);
        }
    }

    fn new(config: Config, initial_sequence: u32, state: State) -> Self {
        let largest = if config.window_scaling { u64::MAX } else { 65_535 };
        let mut receiver = Receiver::new(
            config.receive_buffer.min(largest),
            u64::from(config.mss),
            config.delayed_ack,
            config.ack_every,
        );
        if let Some(first) = config.receive_autotuning {
            receiver.grow_from(first.min(largest));
        }
        Self {
            state,
            end: None,
            passive: state == State::Listen,
            initial_send: initial_sequence,
            initial_receive: 0,
            handshake: Handshake::IDLE,
            window_shift_in: 0,
            window_shift_out: 0,
            timestamps: config.timestamps,
            sack: config.sack,
            feedback: false,
            feedback_in: 0,
            feedback_told: 0,
            echo: 0,
            sender: Sender::new(&config),
            receiver,
            bytes_read: 0,
            send_buffer: config.send_autotuning.unwrap_or(config.send_buffer),
            established_at: None,
            ended_at: None,
            reset: None,
            config,
        }
    }

    /// Before it connects: what earlier connections to the same destination have found, as far as the
    /// configuration [wants](Config::metrics_cache) it.
    pub fn recall(&mut self, metrics: &Metrics) {
        let cache = self.config.metrics_cache;
        if cache != MetricsCache::Off {
            self.config.srtt = metrics.srtt.or(self.config.srtt);
        }
        if cache == MetricsCache::RoundTripAndSsthresh {
            self.config.ssthresh = metrics.ssthresh.or(self.config.ssthresh);
        }
    }

    // The application's side.

    /// Takes up to `bytes` from the application; returns how many there was room for.
    pub fn write(&mut self, bytes: u64) -> u64 {
        if self.sender.has_finished() || self.state == State::Closed {
            return 0;
        }
        let taken = bytes.min(self.writable());
        self.sender.write(taken);
        taken
    }

    /// Room in the send buffer.
    pub fn writable(&self) -> u64 {
        self.send_buffer.saturating_sub(self.sender.unacknowledged())
    }

    /// The application has written everything: a FIN follows the last byte.
    pub fn finish(&mut self) {
        self.sender.finish();
    }

    /// The application gives up: the other side is told by a reset.
    pub fn abort(&mut self, now: Time) {
        if self.state == State::SynReceived || self.state == State::Established {
            let seq = sequence_of(self.initial_send, self.sender.queue.nxt());
            let flags = Flags::RST | Flags::ACK;
            self.reset = Some(Segment { seq, ack: self.acknowledgement(), flags, ..Segment::default() });
        }
        self.close(now, End::Aborted);
    }

    /// Bytes that the application may read.
    pub fn readable(&self) -> u64 {
        self.receiver.readable()
    }

    /// The application takes up to `most` bytes; returns how many.
    pub fn read(&mut self, now: Time, most: u64) -> u64 {
        let bytes = self.receiver.read(now, most);
        self.bytes_read += bytes;
        bytes
    }

    /// The other side has finished, and everything it sent has been read.
    pub fn is_at_end(&self) -> bool {
        self.receiver.is_finished() && self.receiver.readable() == 0
    }

    /// Bytes held for sending: written and not acknowledged.
    pub fn send_buffered(&self) -> u64 {
        self.sender.unacknowledged()
    }

    /// Bytes held after receiving: arrived and not read, those out of order included.
    pub fn receive_buffered(&self) -> u64 {
        self.receiver.held()
    }

    // Its state, for others.

    /// The state of the connection.
    pub fn state(&self) -> State {
        self.state
    }

    /// How the connection ended; `None` while it lives.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// The counters so far.
    pub fn statistics(&self) -> Statistics {
        let counters = self.sender.counters;
        Statistics {
            syns: self.handshake.all,
            segments: counters.segments,
            bytes_sent: counters.bytes,
            bytes_acknowledged: self.sender.bytes_acknowledged(),
            retransmissions: counters.retransmissions,
            timeouts: counters.timeouts,
            recoveries: counters.recoveries,
            bytes_read: self.bytes_read,
            duplicate_bytes: self.receiver.duplicate_bytes(),
            established_at: self.established_at,
            ended_at: self.ended_at,
        }
    }

    /// TCP's inner variables now.
    pub fn variables(&self) -> Variables {
        Variables {
            cwnd: self.sender.congestion.cwnd(),
            ssthresh: self.sender.congestion.ssthresh(),
            srtt: self.sender.rto.srtt(),
            rttvar: self.sender.rto.rttvar(),
            min_rtt: self.sender.rto.min_rtt(),
            rto: self.sender.rto.timeout(),
            backoff: self.sender.rto.backoff(),
            in_flight: self.sender.in_flight(),
            recovering: self.sender.is_recovering(),
        }
    }

    /// The report to the rate controller; `None` where the congestion control takes no rate, or before it has
    /// sent anything.
    pub fn reported(&self) -> Option<Reported> {
        let counters = self.sender.acked_counters().filter(|_| self.state == State::Established)?;
        let (mss, header) = (self.sender.mss(), self.header());
        let full = |payload: u64| payload + payload * header / mss;
        Some(Reported {
            at: counters.at,
            sent: counters.bytes + counters.segments * header,
            delivered: full(counters.delivered),
            lost: full(counters.lost),
            in_flight: self.sender.queue.outstanding() > 0,
            round_trips: self.sender.congestion.round_trips(),
            window_limited: counters.window_limited,
            backlogged: self.sender.is_backlogged(),
        })
    }

    /// The rate controller sets this rate, headers of IP and TCP included, or takes it back.
    pub fn set_rate(&mut self, rate: Option<Rate>) {
        let header = self.header();
        self.sender.congestion.set_rate(rate, header);
    }

    /// Bytes of IP and TCP in front of a payload.
    fn header(&self) -> u64 {
        BARE_HEADERS + if self.timestamps { TIMESTAMPS_LENGTH } else { 0 }
    }

    /// When to call [`on_timer`](Self::on_timer) next; [`Time::MAX`] for never. An earlier call does no harm.
    #[inline]
    pub fn wake_at(&self) -> Time {
        match self.state {
            State::SynSent | State::SynReceived => self.handshake.timer,
            State::Established => self.sender.wake_at().min(self.receiver.ack_due_at()),
            State::Listen | State::Closed => Time::MAX,
        }
    }

    /// A moment that [`wake_at`](Self::wake_at) named has come. What there is to send now, `poll_transmit`
    /// says.
    pub fn on_timer(&mut self, now: Time) {
        match self.state {
            State::SynSent | State::SynReceived if now >= self.handshake.timer => {
                self.on_handshake_timer(now)
            }
            State::Established => {
                if self.sender.on_timer(now).is_err() {
                    self.close(now, End::TimedOut);
                }
                if now >= self.receiver.ack_due_at() {
                    self.receiver.ack_now();
                }
            }
            _ => {}
        }
    }

    #[cold]
    fn on_handshake_timer(&mut self, now: Time) {
        let schedule = self.schedule();
        if self.handshake.expire(now, &schedule, self.config.user_timeout) {
            return;
        }
        match self.state {
            // Forgotten by the listener, whose next connection must not take this one's segments for its own.
            State::SynReceived if self.passive => self.listen_again(),
            _ => self.close(now, End::ConnectTimedOut),
        }
    }

    fn listen_again(&mut self) {
        let syns = self.handshake.all;
        let (written, finished) = (self.sender.unacknowledged(), self.sender.has_finished());
        let factory = self.sender.factory.take();
        *self = Self::listen(self.config, self.initial_send.wrapping_add(SEQUENCE_STEP));
        self.sender.factory = factory;
        self.handshake.all = syns;
        self.sender.write(written);
        if finished {
            self.sender.finish();
        }
    }

    fn schedule(&self) -> SynSchedule {
        if self.state == State::SynReceived { self.config.syn_ack } else { self.config.syn }
    }

    /// The first end of a connection counts; later ones change nothing.
    fn close(&mut self, now: Time, end: End) {
        self.state = State::Closed;
        if self.end.is_none() {
            self.end = Some(end);
            self.ended_at = Some(now);
        }
    }

    // Segments in.

    /// A segment arrives.
    pub fn on_segment(&mut self, now: Time, segment: &Segment) {
        match self.state {
            State::Established => self.on_established_segment(now, segment),
            State::SynSent => self.on_answer(now, segment),
            State::SynReceived => self.on_third(now, segment),
            State::Listen => self.on_syn(now, segment),
            State::Closed => self.refuse(segment),
        }
    }

    /// A segment that belongs to no connection, or acknowledges data that was never sent, is answered with a
    /// reset (RFC 9293 §3.10.7.1).
    #[cold]
    fn refuse(&mut self, segment: &Segment) {
        self.reset = match (segment.is_rst(), segment.is_ack()) {
            (true, _) => None,
            (false, true) => Some(Segment { seq: segment.ack, flags: Flags::RST, ..Segment::default() }),
            (false, false) => Some(Segment {
                ack: segment.seq.wrapping_add(segment.sequence_length()),
                flags: Flags::RST | Flags::ACK,
                ..Segment::default()
            }),
        };
    }

    #[cold]
    fn on_syn(&mut self, now: Time, segment: &Segment) {
        if segment.is_rst() {
            return;
        }
        if segment.is_ack() {
            return self.refuse(segment);
        }
        let Some(options) = segment.syn else { return };
        self.state = State::SynReceived;
        self.handshake.begin(now);
        self.note_syn(segment, options);
    }

    /// What a SYN says: options count only where both sides offer them.
    fn note_syn(&mut self, segment: &Segment, options: SynOptions) {
        self.initial_receive = segment.seq;
        self.handshake.peer = options;
        self.timestamps = self.config.timestamps && segment.timestamps.is_some();
        self.sack = self.config.sack && options.sack_permitted;
        self.feedback =
            self.config.congestion.wants_feedback() && segment.congestion == CongestionOption::Offer;
        self.echo = segment.timestamps.map_or(0, |timestamps| timestamps.value);
        if let Some(shift) = options.window_scale.filter(|_| self.config.window_scaling) {
            self.window_shift_in = shift.min(MAX_WINDOW_SHIFT);
            self.window_shift_out = own_shift(&self.config);
        } else {
            (self.window_shift_in, self.window_shift_out) = (0, 0);
        }
        // A SYN's own window is not scaled.
        self.sender.set_window(0, 1, u64::from(segment.window));
    }

    fn acknowledges_syn(&self, segment: &Segment) -> bool {
        segment.is_ack() && segment.ack == sequence_of(self.initial_send, 1)
    }

    #[cold]
    fn on_answer(&mut self, now: Time, segment: &Segment) {
        if segment.is_ack() && !self.acknowledges_syn(segment) {
            return self.refuse(segment);
        }
        if segment.is_rst() {
            if segment.is_ack() {
                self.close(now, End::Refused);
            }
            return;
        }
        let Some(options) = segment.syn else { return };
        if segment.is_ack() {
            self.note_syn(segment, options);
            self.establish(now, segment);
            self.receiver.ack_now();
        } else {
            // Both sides have opened actively (RFC 9293 §3.5, figure 8). What comes next may answer the SYN
            // or this.
            self.state = State::SynReceived;
            let transmissions = self.handshake.transmissions;
            self.handshake.begin(now);
            self.handshake.transmissions = transmissions;
            self.note_syn(segment, options);
        }
    }

    #[cold]
    fn on_third(&mut self, now: Time, segment: &Segment) {
        let start = offset_of(self.initial_receive, segment.seq, self.receiver.nxt());
        if !segment.is_syn() && start.is_none_or(|start| !self.is_acceptable(segment, start)) {
            return;
        }
        if segment.is_rst() {
            match self.passive {
                true => self.listen_again(),
                false => self.close(now, End::Refused),
            }
        } else if segment.is_syn() {
            // The answer was lost, or is still on its way.
            self.handshake.due |= segment.seq == self.initial_receive;
            if self.acknowledges_syn(segment) {
                self.establish(now, segment);
                self.receiver.ack_now();
            }
        } else if self.acknowledges_syn(segment) {
            self.establish(now, segment);
            self.on_established_segment(now, segment);
        } else if segment.is_ack() {
            self.refuse(segment);
        }
    }

    fn establish(&mut self, now: Time, segment: &Segment) {
        self.state = State::Established;
        self.established_at = Some(now);
        let repeated = self.handshake.sent > 1;
        let first_sent_at = clock(self.handshake.began_at);
        let answers_first =
            segment.timestamps.is_some_and(|timestamps| self.timestamps && timestamps.echo == first_sent_at);
        let undoes = self.config.undo && self.config.recovery == Recovery::Rack;
        let once = (self.handshake.transmissions == 1).then(|| now - self.handshake.began_at);
        let announced = self.handshake.peer.mss.unwrap_or(DEFAULT_MSS).min(self.config.mss);
        let timestamps = if self.timestamps { TIMESTAMPS_LENGTH } else { 0 };
        let options = timestamps + if self.feedback { REQUEST_LENGTH as u64 } else { 0 };
        let negotiated = Negotiated {
            mss: u64::from(announced).saturating_sub(options).max(1),
            sack: self.sack,
            syn_repeated: repeated,
            syn_lost: if undoes { self.handshake.sent > 2 && !answers_first } else { repeated },
            rtt: once.or_else(|| self.echoed_rtt(now, segment)),
        };
        self.sender.establish(now, &self.config, negotiated);
        self.grow_send_buffer();
        let reports_duplicates = self.sack && self.config.duplicate_sack;
        self.receiver.configure(negotiated.mss, self.window_shift_out, reports_duplicates);
    }

    fn on_established_segment(&mut self, now: Time, segment: &Segment) {
        let nxt = self.receiver.nxt();
        let start = offset_of(self.initial_receive, segment.seq, nxt);
        if segment.is_rst() {
            if start.is_some_and(|start| self.is_acceptable(segment, start)) {
                self.close(now, End::Reset);
            }
            return;
        }
        // A repeated SYN, or a segment from before the stream: the other side has missed our acknowledgement.
        let Some(start) = start.filter(|_| !segment.is_syn()) else {
            self.receiver.ack_now();
            return;
        };
        if !self.is_acceptable(segment, start) {
            // A probe of the window, or something that we have or cannot take.
            self.receiver.ack_now();
        } else if segment.is_ack() && self.on_ack(now, segment, start) {
            self.note_timestamp(segment, start, nxt);
        } else {
            return;
        }
        if let CongestionOption::Request { feedback, .. } = segment.congestion {
            self.feedback_in = self.feedback_in.wrapping_add_signed(feedback);
        }
        if segment.len > 0 || segment.is_fin() {
            self.measure_round_trip(now, segment);
            self.receiver.take(now, start, u64::from(segment.len), segment.is_fin());
        }
        self.check_end(now);
    }

    /// The receiver's own estimate of the round trip, where it needs one: from an acknowledgement to the data
    /// that it has set free.
    fn measure_round_trip(&mut self, now: Time, segment: &Segment) {
        if self.receiver.measures_round_trips()
            && let Some(timestamps) = segment.timestamps
            && let Some(rtt) = self.echoed_rtt(now, segment)
        {
            self.receiver.measure(u64::from(segment.len), timestamps.echo, rtt);
        }
    }

    /// RFC 9293 §3.10.7.4, first: whether a segment from `start` lies within the window, in part at least.
    /// One byte beyond counts too, for a FIN needs no window.
    fn is_acceptable(&self, segment: &Segment, start: u64) -> bool {
        let nxt = self.receiver.nxt();
        let begins_after = start > nxt && start > nxt + self.receiver.window() + 1;
        let ends_before = start < nxt && start + u64::from(segment.sequence_length()) <= nxt;
        !begins_after && !ends_before
    }

    /// RFC 7323 §4.3: the timestamp of the segment that the next acknowledgement answers.
    fn note_timestamp(&mut self, segment: &Segment, start: u64, nxt: u64) {
        if let Some(timestamps) = segment.timestamps.filter(|_| self.timestamps && start <= nxt)
            && timestamps.value.wrapping_sub(self.echo) as i32 >= 0
        {
            self.echo = timestamps.value;
        }
    }

    /// Takes the acknowledgement; false where it is one of something never sent, with which the whole segment
    /// counts for nothing.
    fn on_ack(&mut self, now: Time, segment: &Segment, start: u64) -> bool {
        let una = self.sender.queue.una();
        let Some(ack) = offset_of(self.initial_send, segment.ack, una) else { return true };
        if ack > self.sender.queue.nxt() {
            self.receiver.ack_now();
            return false;
        }
        let window = u64::from(segment.window) << self.window_shift_in;
        let same_window = self.sender.edge() == ack + window;
        self.sender.set_window(start, ack, window);
        let duplicate = ack == una && segment.len == 0 && !segment.is_fin() && same_window;
        // Most segments that a receiver gets acknowledge nothing.
        let is_idle = self.sender.awaits_nothing() && segment.sack.is_empty();
        let echo = if is_idle { None } else { self.echoed_rtt(now, segment) };
        let (initial, selective) = (self.initial_send, self.sender.selective);
        let blocks = segment.sack.as_slice().iter().filter(|_| selective).filter_map(|&(first, end)| {
            Some((offset_of(initial, first, ack)?, offset_of(initial, end, ack)?))
        });
        self.note_feedback(now, segment, ack >= una);
        if let Some(timestamps) = segment.timestamps.filter(|_| self.timestamps) {
            self.sender.congestion.on_timestamp(now, timestamps.value);
        }
        self.sender.on_ack(now, ack, blocks, duplicate, echo);
        if self.send_buffer < self.config.send_buffer {
            self.grow_send_buffer();
        }
        true
    }

    /// Where the window has room for everything that the application could write, the buffer holds it back.
    fn grow_send_buffer(&mut self) {
        if self.config.send_autotuning.is_some() && self.sender.has_room_for_all() {
            let wanted = SEND_WINDOWS * self.sender.congestion.cwnd().min(self.config.send_buffer);
            self.send_buffer = self.send_buffer.max(wanted).min(self.config.send_buffer);
        }
    }

    /// The routers' feedback since the last time. An overtaken acknowledgement brings nothing new.
    fn note_feedback(&mut self, now: Time, segment: &Segment, in_order: bool) {
        if let CongestionOption::Total(total) = segment.congestion
            && self.feedback
            && in_order
        {
            let change = total.wrapping_sub(self.feedback_told) as i32;
            self.feedback_told = total;
            self.sender.on_feedback(now, change);
        }
    }

    /// The round-trip time by the timestamps, where both sides have them and the echo is not from the future.
    fn echoed_rtt(&self, now: Time, segment: &Segment) -> Option<Duration> {
        let timestamps = segment.timestamps.filter(|timestamps| self.timestamps && timestamps.echo != 0)?;
        let millis = clock(now).wrapping_sub(timestamps.echo) as i32;
        u64::try_from(millis).ok().map(Duration::from_millis)
    }

    fn check_end(&mut self, now: Time) {
        if self.end.is_none() && self.receiver.is_finished() && self.sender.is_done() {
            self.end = Some(End::Finished);
            self.ended_at = Some(now);
        }
    }

    // Segments out.

    /// The next segment to send now, if there is one; to be called until there is none, after anything has
    /// happened.
    pub fn poll_transmit(&mut self, now: Time) -> Option<Segment> {
        if self.reset.is_some() {
            return self.reset.take();
        }
        match self.state {
            State::SynSent | State::SynReceived if self.handshake.due => Some(self.syn(now)),
            State::Established => self.data_or_ack(now),
            _ => None,
        }
    }

    #[cold]
    fn syn(&mut self, now: Time) -> Segment {
        let answer = self.state == State::SynReceived;
        let schedule = self.schedule();
        self.handshake.sent_at(now, &schedule, self.config.user_timeout);
        let scale = (!answer || self.handshake.peer.window_scale.is_some()) && self.config.window_scaling;
        let syn = SynOptions {
            mss: Some(self.config.mss),
            window_scale: scale.then(|| own_shift(&self.config)),
            sack_permitted: self.config.sack && (!answer || self.sack),
        };
        Segment {
            seq: self.initial_send,
            ack: if answer { self.acknowledgement() } else { 0 },
            window: self.receiver.window().min(65_535) as u16,
            flags: if answer { Flags::SYN | Flags::ACK } else { Flags::SYN },
            syn: Some(syn),
            timestamps: self.own_timestamps(now),
            congestion: match self.config.congestion.wants_feedback() && (!answer || self.feedback) {
                true => CongestionOption::Offer,
                false => CongestionOption::None,
            },
            ..Segment::default()
        }
    }

    fn data_or_ack(&mut self, now: Time) -> Option<Segment> {
        let before = self.sender.queue.nxt() - 1;
        let outgoing = match self.sender.next(now) {
            Some(outgoing) => outgoing,
            // Below the window, so that it must be answered.
            None if self.sender.take_probe() => Outgoing { start: before, len: 0, fin: false },
            None if self.receiver.ack_due_at() == Time::ZERO => {
                Outgoing { start: self.sender.queue.nxt(), len: 0, fin: false }
            }
            None => return None,
        };
        Some(self.segment(now, outgoing))
    }

    fn segment(&mut self, now: Time, outgoing: Outgoing) -> Segment {
        let flags = if outgoing.fin { Flags::ACK | Flags::FIN } else { Flags::ACK };
        // Without feedback for the length of a repair a queue would stand as long: it goes before the last
        // SACK block, which an earlier acknowledgement has told of (RFC 2018 §4).
        let congestion =
            if self.feedback { self.congestion_option(outgoing.len) } else { CongestionOption::None };
        let timestamps = self.own_timestamps(now);
        let taken = if timestamps.is_some() { TIMESTAMPS_LENGTH as usize } else { 0 } + congestion.length();
        let sack = match self.sack {
            true => self.receiver.sack_blocks(self.initial_receive, sack_room(taken)),
            false => SackBlocks::default(),
        };
        let window = self.receiver.acknowledge();
        Segment {
            seq: sequence_of(self.initial_send, outgoing.start),
            ack: self.acknowledgement(),
            len: outgoing.len,
            window,
            flags,
            syn: None,
            timestamps,
            sack,
            congestion,
        }
    }

    fn congestion_option(&self, len: u32) -> CongestionOption {
        if len == 0 {
            return CongestionOption::Total(self.feedback_in);
        }
        self.sender.request(len.into()).map_or(CongestionOption::None, |request| CongestionOption::Request {
            rtt: request.rtt.as_micros().try_into().unwrap_or(u32::MAX),
            spacing: request.spacing.as_nanos().try_into().unwrap_or(u32::MAX),
            feedback: request.feedback,
        })
    }

    fn acknowledgement(&self) -> u32 {
        sequence_of(self.initial_receive, self.receiver.nxt())
    }

    fn own_timestamps(&self, now: Time) -> Option<Timestamps> {
        self.timestamps.then(|| Timestamps { value: clock(now), echo: self.echo })
    }
}

/// The clock of the timestamps: milliseconds (RFC 7323 §5.4), from 1, for an echo of 0 is none.
fn clock(now: Time) -> u32 {
    ((now.as_nanos() / 1_000_000) as u32).wrapping_add(1)
}

/// The SACK blocks that fit beside so many bytes of other options (RFC 2018 §3).
fn sack_room(taken: usize) -> usize {
    (MAX_OPTIONS - taken).saturating_sub(4) / 8
}

/// The smallest shift with which the receive buffer fits into the header's 16 bits.
fn own_shift(config: &Config) -> u8 {
    (0..=14).find(|shift| config.receive_buffer >> shift <= 65_535).unwrap_or(14)
}
