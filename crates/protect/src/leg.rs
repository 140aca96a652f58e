//! Both directions of a protected leg and its session: what a daemon or an emulated link holds at each end.

use std::time::Duration;

use bentpipe_units::Time;
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::frame::{
    self, CONTEXTS, Class, Expected, Frame, REPORT, Report, repair_head, source_head, write_contexts,
    write_source, write_window,
};
use crate::handshake::{Greeting, Handshake, Session, SessionRecord};
use crate::loss::{LossEstimate, LossMeter};
use crate::receiver::{Receiver, ReceiverStats};
use crate::return_delay::ReturnDelay;
use crate::seal::{Sealer, Secret};
use crate::sender::{Job, Sender, SenderStats};
use crate::wire::FrameError;

/// A peer that says nothing for so long is silent: the daemon then passes or drops what comes. With the time
/// that it takes to look, this is below two seconds.
pub const SILENCE: Duration = Duration::from_millis(1800);
/// How often a box says something if nothing else is to be said, hello or report: seven may be lost in a row.
const KEEPALIVE: Duration = Duration::from_millis(250);
/// Reports while frames come: this share of a round trip, within these limits; half as often if they only go.
const REPORTS_IN_RTT: u32 = 8;
const REPORT_INTERVAL: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(20)..=Duration::from_millis(100);
/// Between two reports with requests.
const URGENT_REPORT_INTERVAL: Duration = Duration::from_millis(5);
/// Between two answers to hellos: whoever replays hellos gets no more than that.
const ANSWER_INTERVAL: Duration = Duration::from_millis(20);
/// The format of a [`Handover`]: another one if what is written has other fields or means something else.
const HANDOVER_FORMAT: u32 = 1;
/// Frames that a session sends beyond those that the peer has reported, half of what their short numbers tell
/// apart. It happens where only the direction to the peer is out, for minutes: without a new session the peer could
/// not read the numbers when it hears us again.
const UNREPORTED: u64 = 1 << 22;
/// Round trips beyond this are none.
const LONGEST_RTT: Duration = Duration::from_secs(60);

/// What [`Leg::poll`] has put into the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// A hello.
    Hello,
    /// A report.
    Report,
    /// A new packet.
    Source,
    /// A packet once more.
    Retransmission,
    /// A repair symbol.
    Repair,
    /// What packets that follow leave out.
    Contexts,
}

/// What an end of a leg has done since it was made; sums over its sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LegStats {
    /// What it sent in the session that runs.
    pub sender: SenderStats,
    /// What it received in it.
    pub receiver: ReceiverStats,
    /// Sessions that have begun.
    pub sessions: u64,
    /// Frames that were not taken.
    pub refused: u64,
}

/// Frames of the session that the peer has counted, as of its last report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PeerCounts {
    /// Those that came.
    pub received: u64,
    /// Those that did not.
    pub lost: u64,
}

/// One end of a protected leg.
#[derive(Debug)]
pub struct Leg {
    config: Config,
    handshake: Handshake,
    session: Option<Session>,
    state: State,
    hello_at: Time,
    answer: bool,
    answered_at: Option<Time>,
}

/// Where the session is, but for its keys: what another process needs to go on with it.
#[derive(Debug, Serialize, Deserialize)]
struct State {
    sender: Sender,
    receiver: Receiver,
    meter: LossMeter,
    rtt: Option<Duration>,
    /// The counts and the round trip of the last report, and when it came.
    reported: Option<(PeerCounts, Option<Duration>, Time)>,
    sessions: u64,
    refused: u64,
    /// When the last authentic frame came.
    heard_at: Option<Time>,
    report: ReportTimer,
    /// `sent_at` of the peer's last report, and when it came.
    echo: Option<(u32, Time)>,
    /// Not handed over: another process finds the least delay again when the way back is empty.
    #[serde(skip)]
    return_delay: ReturnDelay,
}

/// A session that another process goes on with, by [`Leg::resume`]: what [`Leg::handover`] has written.
#[derive(Debug, Deserialize)]
pub struct Handover {
    format: u32,
    keys: SessionRecord,
    state: State,
}

/// Why a session does not go on in another process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ResumeError {
    /// It was written by another version.
    #[error("it was written in format {theirs}, and this program reads {HANDOVER_FORMAT}")]
    Format {
        /// The format of that version.
        theirs: u32,
    },
    /// The keys of the two processes are different.
    #[error("its key was another one")]
    Secret,
}

/// When to report.
#[derive(Debug, Default, Serialize, Deserialize)]
struct ReportTimer {
    last: Option<Time>,
    /// Something has come since the last one.
    news: bool,
    /// Something was sent since the last one.
    sent: bool,
    /// Something is to be asked for.
    urgent: bool,
}

impl ReportTimer {
    fn due(&self, rtt: Duration) -> Time {
        let Some(last) = self.last else { return Time::ZERO };
        let usual = (rtt / REPORTS_IN_RTT).clamp(*REPORT_INTERVAL.start(), *REPORT_INTERVAL.end());
        let interval = match self {
            Self { urgent: true, .. } => URGENT_REPORT_INTERVAL,
            Self { news: true, .. } => usual,
            // Only that packets have been sent, which the packets say themselves unless the last ones are lost.
            Self { sent: true, .. } => 2 * usual,
            _ => KEEPALIVE,
        };
        last + interval
    }
}

impl Leg {
    /// One end before its first hello. For `entropy` see [`Handshake::new`].
    pub fn new(config: Config, secret: Secret, entropy: [u8; 32]) -> Self {
        Self {
            handshake: Handshake::new(secret, entropy),
            session: None,
            state: State {
                sender: Sender::new(&config, LossEstimate::default()),
                receiver: Receiver::new(&config),
                meter: LossMeter::default(),
                rtt: None,
                reported: None,
                sessions: 0,
                refused: 0,
                heard_at: None,
                report: ReportTimer::default(),
                echo: None,
                return_delay: ReturnDelay::default(),
            },
            hello_at: Time::ZERO,
            answer: false,
            answered_at: None,
            config,
        }
    }

    /// The session, for another process; `None` if none runs. Of the two only one may go on with it: no two
    /// frames of a session may have the same number.
    pub fn handover(&self) -> Option<impl Serialize + '_> {
        #[derive(Serialize)]
        struct Written<'a> {
            format: u32,
            keys: SessionRecord,
            state: &'a State,
        }
        let keys = self.handshake.record(self.session.as_ref()?);
        Some(Written { format: HANDOVER_FORMAT, keys, state: &self.state })
    }

    /// Goes on with a session of another process, which had the same clock. Its settings hold until the session
    /// ends.
    ///
    /// # Errors
    /// That process was of another version or had another secret. Nothing has changed then.
    pub fn resume(&mut self, handover: Handover) -> Result<(), ResumeError> {
        if handover.format != HANDOVER_FORMAT {
            return Err(ResumeError::Format { theirs: handover.format });
        }
        self.session = Some(self.handshake.resume(handover.keys).ok_or(ResumeError::Secret)?);
        self.state = handover.state;
        Ok(())
    }

    /// Whether packets are protected: a session runs, and the peer has been heard of within [`SILENCE`].
    /// Without it, packets should pass unprotected or be dropped, and the leg must be polled all the same.
    pub fn is_alive(&self, now: Time) -> bool {
        self.session.is_some() && self.state.heard_at.is_some_and(|at| now - at < SILENCE)
    }

    /// Whether a session runs, in which [`poll`](Self::poll) takes packets.
    pub fn has_session(&self) -> bool {
        self.session.is_some()
    }

    /// The smoothed round trip between the boxes, once it has been measured.
    pub fn rtt(&self) -> Option<Duration> {
        self.state.rtt
    }

    /// The peer's last report in this session: its counts, the round trip that it measures, if it does, and
    /// when it came.
    pub fn reported(&self) -> Option<(PeerCounts, Option<Duration>, Time)> {
        self.state.reported
    }

    /// How long the peer's last report waited in queues on its way: the part of the round trip that is no queue
    /// of what this end sends.
    pub fn return_queue(&self) -> Duration {
        self.state.return_delay.queued()
    }

    /// What is believed of losses in the direction to the peer.
    pub fn loss(&self) -> &LossEstimate {
        &self.state.sender.estimate
    }

    /// What has been done so far.
    pub fn stats(&self) -> LegStats {
        LegStats {
            sender: self.state.sender.stats,
            receiver: self.state.receiver.stats,
            sessions: self.state.sessions,
            refused: self.state.refused,
        }
    }

    /// The next frame, in `out`; `None` if there is nothing to send. The caller paces: each call is one
    /// frame. Where nothing more urgent is due, `next` is asked for a new packet, at most once and only if a
    /// session runs.
    ///
    /// # Panics
    /// A packet is longer than 65,535 bytes, or than 65,534 if it is no IP packet.
    pub fn poll(
        &mut self,
        now: Time,
        out: &mut Vec<u8>,
        next: impl FnOnce() -> Option<(Class, Vec<u8>)>,
    ) -> Option<Sent> {
        let rtt = self.rtt_or_initial();
        self.end_unreported_session();
        if self.hello_due() <= now {
            return Some(self.hello(now, out));
        }
        self.state.report.urgent |= self.state.receiver.on_timer(now, rtt);
        let mut session = self.session.take()?;
        let sent = self.poll_session(&mut session.sealer, now, rtt, out, next);
        self.session = Some(session);
        sent
    }

    fn poll_session(
        &mut self,
        sealer: &mut Sealer,
        now: Time,
        rtt: Duration,
        out: &mut Vec<u8>,
        next: impl FnOnce() -> Option<(Class, Vec<u8>)>,
    ) -> Option<Sent> {
        if self.state.report.due(rtt) <= now {
            let report = self.compose_report(now, rtt);
            sealer.seal(REPORT, out, |out| report.write(out));
            self.state.report = ReportTimer { last: Some(now), ..ReportTimer::default() };
            return Some(Sent::Report);
        }
        let contexts = self.state.sender.compressor.openings(now, rtt);
        if !contexts.is_empty() {
            sealer.seal(CONTEXTS, out, |out| write_contexts(out, &contexts));
            return Some(Sent::Contexts);
        }
        if let Some(job) = self.state.sender.urgent(now, rtt) {
            return self.perform(&job, sealer, out);
        }
        if let Some((class, packet)) = next() {
            let esi = self.state.sender.push(class, packet, now, rtt);
            self.state.report.sent = true;
            self.seal_source(class, esi, sealer, out);
            self.state.sender.on_sent(None);
            return Some(Sent::Source);
        }
        let job = self.state.sender.idle()?;
        self.perform(&job, sealer, out)
    }

    fn perform(&mut self, job: &Job, sealer: &mut Sealer, out: &mut Vec<u8>) -> Option<Sent> {
        self.state.sender.on_sent(Some(job));
        match job {
            Job::Retransmit(class, esi) => {
                self.seal_source(*class, *esi, sealer, out);
                Some(Sent::Retransmission)
            }
            Job::Repair(class, window) => {
                let encoder = self.state.sender.encoder(*class);
                sealer.seal(repair_head(*class), out, |out| {
                    let at = out.len();
                    out.extend_from_slice(&[0; 2]);
                    write_window(out, window);
                    let key = encoder.repair(window, out).expect("the sender chooses what it remembers");
                    out[at..at + 2].copy_from_slice(&key.to_be_bytes());
                });
                Some(Sent::Repair)
            }
        }
    }

    fn seal_source(&mut self, class: Class, esi: u64, sealer: &mut Sealer, out: &mut Vec<u8>) {
        let packet =
            self.state.sender.encoder(class).packet(esi).expect("the sender remembers what it sends");
        sealer.seal(source_head(class), out, |out| write_source(out, esi, packet));
    }

    /// Takes a frame, which is decrypted in place. What it delivers is to be taken by
    /// [`next_packet`](Self::next_packet) before the next frame.
    ///
    /// # Errors
    /// Why it is not taken; it has changed nothing then.
    pub fn on_frame(&mut self, frame: &mut [u8], now: Time) -> Result<(), FrameError> {
        let result = self.take_frame(frame, now);
        self.state.refused += u64::from(result.is_err());
        result
    }

    fn take_frame(&mut self, frame: &mut [u8], now: Time) -> Result<(), FrameError> {
        if frame::is_hello(frame)? {
            match self.handshake.on_hello(frame, self.is_alive(now))? {
                Greeting::Begins(session) => {
                    self.begin(*session, now);
                    self.answer = true;
                }
                Greeting::Asks => self.answer = true,
                Greeting::Nothing => {}
            }
            return Ok(());
        }
        let head = frame[0];
        let id = frame.get(1).copied();
        let Some(session) = self.session.as_mut().filter(|session| id == Some(session.opener.id())) else {
            let (session, number, body) = self.handshake.on_frame(frame)?;
            self.begin(*session, now);
            return self.take_content(head, number, body, now);
        };
        let (number, body) = session.opener.open(frame)?;
        self.take_content(head, number, body, now)
    }

    fn take_content(&mut self, head: u8, number: u64, body: &[u8], now: Time) -> Result<(), FrameError> {
        self.state.heard_at = Some(now);
        self.state.meter.on_frame(number);
        let expected = Expected { theirs: self.state.receiver.ends(), ours: self.state.sender.ends() };
        match Frame::parse(head, body, &expected)? {
            Frame::Source { class, esi, packet } => {
                self.state.report.news = true;
                self.state.receiver.on_source(class, esi, packet, now);
            }
            Frame::Repair { class, key, window, symbol } => {
                self.state.report.news = true;
                self.state.receiver.on_repair(class, key, &window, symbol, now);
            }
            Frame::Report(report) => self.on_report(&report, now),
            Frame::Contexts(contexts) => {
                self.state.report.news = true;
                self.state.receiver.on_contexts(&contexts);
            }
        }
        Ok(())
    }

    /// The next packet that has come or was repaired.
    pub fn next_packet(&mut self) -> Option<(Class, &[u8])> {
        self.state.receiver.next_packet()
    }

    /// Moves time on without sending: packets may then be delivered because one before them was given up.
    pub fn on_timer(&mut self, now: Time) {
        let rtt = self.rtt_or_initial();
        self.state.report.urgent |= self.state.receiver.on_timer(now, rtt);
    }

    /// When to poll although nothing happens; a time that has passed means now.
    pub fn wake_at(&self) -> Time {
        let rtt = self.rtt_or_initial();
        let hello = self.hello_due();
        if self.session.is_none() {
            return hello;
        }
        let others =
            [self.state.sender.wake_at(rtt), self.state.receiver.wake_at(), Some(self.state.report.due(rtt))];
        others.into_iter().flatten().fold(hello, Time::min)
    }

    /// A frame of the session with whatever content, as a peer would send it that is not honest.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn seal_as_it_is(&mut self, head: u8, content: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        if let Some(session) = &mut self.session {
            session.sealer.seal(head, &mut out, |out| out.extend_from_slice(content));
        }
        out
    }

    /// Bytes of packets and equations that are held.
    pub fn held_bytes(&self) -> usize {
        self.state.sender.held_bytes() + self.state.receiver.held_bytes()
    }

    fn rtt_or_initial(&self) -> Duration {
        self.state.rtt.unwrap_or(self.config.initial_rtt)
    }

    fn hello_due(&self) -> Time {
        let asks = if self.session.is_none() { self.hello_at } else { Time::MAX };
        let answers = match self.answered_at {
            _ if !self.answer => Time::MAX,
            None => Time::ZERO,
            Some(at) => at + ANSWER_INTERVAL,
        };
        asks.min(answers)
    }

    fn end_unreported_session(&mut self) {
        let counts = self.state.reported.map_or_else(PeerCounts::default, |(counts, ..)| counts);
        let reported = counts.received.saturating_add(counts.lost);
        let sent = self.session.as_ref().map_or(0, |session| session.sealer.count());
        if sent.saturating_sub(reported) >= UNREPORTED {
            self.session = None;
            self.handshake.end();
            self.hello_at = Time::ZERO;
        }
    }

    fn hello(&mut self, now: Time, out: &mut Vec<u8>) -> Sent {
        let asks = self.session.is_none();
        self.handshake.hello(asks, out);
        self.hello_at = now + KEEPALIVE;
        if std::mem::take(&mut self.answer) {
            self.answered_at = Some(now);
        }
        Sent::Hello
    }

    fn begin(&mut self, session: Session, now: Time) {
        self.session = Some(session);
        self.state.sessions += 1;
        self.state.sender = Sender::new(&self.config, self.state.sender.estimate.in_new_session());
        self.state.receiver = Receiver::new(&self.config);
        self.state.meter = LossMeter::default();
        self.state.report = ReportTimer::default();
        self.state.echo = None;
        self.state.return_delay = ReturnDelay::default();
        self.state.reported = None;
        self.state.heard_at = Some(now);
    }

    fn compose_report(&mut self, now: Time, rtt: Duration) -> Report {
        let hold = |(sent_at, came): (u32, Time)| {
            let held = u32::try_from((now - came).as_micros()).ok().filter(|held| *held != u32::MAX)?;
            Some((sent_at, held))
        };
        let mut report = Report {
            sent_at: micros(now),
            echo: self.state.echo.and_then(hold),
            next: self.state.sender.ends(),
            needs_from: self.state.receiver.needs_from(),
            requests: self.state.receiver.requests(now, rtt),
            confirmed: self.state.receiver.expander.confirmations(),
            ..Report::default()
        };
        self.state.meter.tell(&mut report);
        report
    }

    fn on_report(&mut self, report: &Report, now: Time) {
        self.state.echo = Some((report.sent_at, now));
        self.state.return_delay.on_report(report.sent_at, micros(now), now);
        let mut measured = None;
        if let Some((sent_at, held)) = report.echo {
            let micros = micros(now).wrapping_sub(sent_at).wrapping_sub(held);
            let sample = Duration::from_micros(u64::from(micros));
            if sample <= LONGEST_RTT {
                measured = Some(sample);
                // RFC 6298 §2.3.
                self.state.rtt = Some(self.state.rtt.map_or(sample, |rtt| (rtt * 7 + sample) / 8));
            }
        }
        let counts = PeerCounts { received: report.received, lost: report.lost };
        self.state.reported = Some((counts, measured, now));
        let rtt = self.rtt_or_initial();
        self.state.sender.on_report(report, now, rtt);
        self.state.receiver.on_sent(report.next, now);
    }
}

/// Microseconds, lower half.
fn micros(now: Time) -> u32 {
    (now.as_nanos() / 1000) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seal::Cipher;

    /// Frames of one end until it has nothing to say, to the other end.
    fn tell(from: &mut Leg, to: &mut Leg, now: Time) {
        let mut frame = Vec::new();
        while from.poll(now, &mut frame, || None).is_some() {
            // What belongs to a session that is over is refused.
            let _ = to.on_frame(&mut frame, now);
        }
    }

    #[test]
    fn only_the_end_whose_peers_reports_wait_sees_a_return_queue() {
        let secret = Secret::new(Cipher::Aes128Gcm, [7; 32]);
        let [mut a, mut b] = [1, 2].map(|entropy| Leg::new(Config::default(), secret.clone(), [entropy; 32]));
        let mut now = Time::ZERO;
        for round in 0..60 {
            now += KEEPALIVE;
            tell(&mut a, &mut b, now);
            let mut frames = Vec::new();
            let mut frame = Vec::new();
            while b.poll(now, &mut frame, || None).is_some() {
                frames.push(frame.clone());
            }
            let waits = Duration::from_millis(if round < 40 { 0 } else { 50 });
            for mut frame in frames {
                let _ = a.on_frame(&mut frame, now + waits);
            }
            assert_eq!(b.return_queue(), Duration::ZERO);
            let seen = a.return_queue();
            // Less what the clocks may have drifted apart by, in the five seconds at most.
            assert!(
                (waits.saturating_sub(Duration::from_millis(2))..=waits).contains(&seen),
                "{round}: {seen:?}"
            );
        }
        assert!(a.return_queue() > Duration::from_millis(48));
    }

    #[test]
    fn a_session_whose_peer_reports_nothing_ends_before_numbers_are_ambiguous() {
        let secret = Secret::new(Cipher::Aes128Gcm, [7; 32]);
        let [mut a, mut b] = [1, 2].map(|entropy| Leg::new(Config::default(), secret.clone(), [entropy; 32]));
        let mut now = Time::ZERO;
        let mut talk = |a: &mut Leg, b: &mut Leg| {
            for _ in 0..8 {
                now += KEEPALIVE;
                tell(a, b, now);
                tell(b, a, now);
            }
            now
        };
        let now = talk(&mut a, &mut b);
        let session = a.session.as_mut().unwrap();
        session.sealer.skip_to(UNREPORTED + session.sealer.count());
        // What the peer says is still heard, but not that it has got any of these.
        assert!(a.is_alive(now) && b.is_alive(now));
        let mut frame = Vec::new();
        assert_eq!(a.poll(now + KEEPALIVE, &mut frame, || None), Some(Sent::Hello));
        assert!(!a.has_session());
        talk(&mut a, &mut b);
        assert_eq!([&a, &b].map(|leg| (leg.has_session(), leg.stats().sessions)), [(true, 2); 2]);
    }
}
