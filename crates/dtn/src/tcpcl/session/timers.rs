//! The timers of a session: keepalives, silence, stalled endings (RFC 9174 §5.1.1), and floods.

use std::time::Duration;

use bentpipe_units::Time;

use super::{ENDING_TIMEOUT, HANDSHAKE_TIMEOUT, Phase, Session};
use crate::tcpcl::message::{Message, TermReason};
use crate::tcpcl::settings::EndedBy;

/// Messages without effect (keepalives, empty segments): at most this many at once …
pub(super) const IDLE_BURST: u32 = 256;
/// … and one more per interval.
const IDLE_REFILL: Duration = Duration::from_millis(100);

impl Session {
    /// When [`on_time`](Self::on_time) has to be called, unless something happens before.
    pub fn deadline(&self) -> Time {
        match self.phase {
            Phase::Over => Time::MAX,
            Phase::Contact | Phase::Tls | Phase::Init | Phase::Admission => self.started + HANDSHAKE_TIMEOUT,
            Phase::Established => {
                let mut deadline = Time::MAX;
                if !self.keepalive.is_zero() {
                    deadline = deadline.min(self.last_sent + self.keepalive / 2);
                    if self.busy.is_none() {
                        deadline = deadline.min(self.last_received + self.keepalive * 2);
                    }
                }
                if self.term.0 && self.busy.is_none() {
                    deadline = deadline.min(self.last_progress + ENDING_TIMEOUT);
                }
                deadline
            }
        }
    }

    /// Runs the timers that are due.
    pub fn on_time(&mut self, now: Time) {
        match self.phase {
            Phase::Over => {}
            Phase::Established => self.on_time_established(now),
            phase => {
                if now >= self.started + HANDSHAKE_TIMEOUT {
                    let step = match phase {
                        Phase::Contact => "no contact header",
                        Phase::Tls => "no complete TLS handshake",
                        _ => "no SESS_INIT",
                    };
                    let seconds = HANDSHAKE_TIMEOUT.as_secs();
                    let text = format!("the node at {} gave {step} within {seconds} s", self.place);
                    self.terminate_with(TermReason::IDLE_TIMEOUT, text);
                }
            }
        }
    }

    fn on_time_established(&mut self, now: Time) {
        if self.term.0 && self.busy.is_none() && now >= self.last_progress + ENDING_TIMEOUT {
            let seconds = ENDING_TIMEOUT.as_secs();
            let text = format!("the peer at {} did not end the session within {seconds} s", self.place);
            return self.abort(EndedBy::Us, text);
        }
        if self.keepalive.is_zero() {
            return;
        }
        if self.busy.is_none() && now >= self.last_received + self.keepalive * 2 {
            let text = format!(
                "nothing came from the peer at {} for {} s, twice the keepalive interval",
                self.place,
                (self.keepalive * 2).as_secs()
            );
            return self.terminate_with(TermReason::IDLE_TIMEOUT, text);
        }
        // Half the interval: a peer that counts from its own last message must not be late by a round trip,
        // and dtn7-rs gives up the first time that its timer finds no keepalive.
        if now >= self.last_sent + self.keepalive / 2 {
            self.last_sent = now;
            self.push(&Message::Keepalive);
        }
    }

    /// Sends a message that the peer's TCP has to acknowledge.
    pub fn probe(&mut self, now: Time) {
        if self.phase == Phase::Established {
            self.last_sent = now;
            self.push(&Message::Keepalive);
        }
    }

    /// The driver begins or ends to process input. Meanwhile it does not read, so silence is not the peer's.
    pub fn set_busy(&mut self, busy: bool, now: Time) {
        let since = std::mem::replace(&mut self.busy, busy.then_some(now));
        if let Some(since) = since.filter(|_| !busy) {
            self.last_received = now;
            // Progress counts until the end of the processing.
            if self.last_progress >= since {
                self.last_progress = now;
            }
        }
    }

    pub(super) fn count_idle(&mut self, now: Time, what: &str) {
        let refill = now.since(self.idle_refilled).as_nanos() / IDLE_REFILL.as_nanos();
        if refill > 0 {
            self.idle_refilled = now;
            let refill = u32::try_from(refill).unwrap_or(u32::MAX);
            self.idle_credit = self.idle_credit.saturating_add(refill).min(IDLE_BURST);
        }
        match self.idle_credit.checked_sub(1) {
            Some(credit) => self.idle_credit = credit,
            None => {
                let text = format!("the peer at {} floods this node with {what}", self.place);
                self.terminate_with(TermReason::RESOURCE_EXHAUSTION, text);
            }
        }
    }
}
