//! Answers to data in a SYN, before the handshake is complete (RFC 7413 §4.2.2).
//!
//! The kernel sends them with its pacing, but until the client has acknowledged the SYN-ACK its pacing timer
//! wakes no such connection: after the first ten segments the rest would wait for a round trip. So these
//! connections are pushed here, each [`PUSHED`].

use std::time::{Duration, Instant};

use bentpipe_kernel::sockopt;
use bentpipe_kernel::tcp_info::{State, tcp_info};

use super::Worker;
use crate::flow::Side;
use crate::types::slab::Key;

/// How often they are pushed: the congestion control lets them send at once what belongs to this time
/// (`EXPLICIT_PUSHED_US` of `explicit_core.h`).
const PUSHED: Duration = Duration::from_millis(5);
/// A handshake that takes longer has lost a packet, and no answer goes on without it.
const HANDSHAKE: Duration = Duration::from_secs(3);

/// The flows whose clients have sent data with their SYN and nothing since.
#[derive(Debug, Default)]
pub(super) struct EarlyAnswers {
    flows: Vec<(Key, Instant)>,
    next: Option<Instant>,
}

impl EarlyAnswers {
    /// When they are pushed next.
    pub(super) fn due(&self) -> Option<Instant> {
        self.next
    }
}

impl Worker {
    /// A new flow: if its handshake is not complete, its answer begins without it.
    pub(super) fn answer_early(&mut self, key: Key) {
        if self.is_half_open(key) {
            let now = Instant::now();
            self.early_answers.flows.push((key, now + HANDSHAKE));
            self.early_answers.next.get_or_insert(now + PUSHED);
        }
    }

    /// Pushes those that are due.
    pub(super) fn push_early_answers(&mut self, now: Instant) {
        if self.early_answers.next.is_none_or(|next| now < next) {
            return;
        }
        let mut flows = std::mem::take(&mut self.early_answers.flows);
        flows.retain(|&(key, until)| now < until && self.is_half_open(key) && self.push(key));
        self.early_answers.next = (!flows.is_empty()).then_some(now + PUSHED);
        self.early_answers.flows = flows;
    }

    fn is_half_open(&mut self, key: Key) -> bool {
        let Some(flow) = self.flows.get_mut(key) else { return false };
        tcp_info(&flow.endpoint(Side::Client).socket).is_ok_and(|info| info.state == State::SynReceived)
    }

    /// Has the kernel send what it may send now. False if the connection is gone.
    fn push(&mut self, key: Key) -> bool {
        let Some(flow) = self.flows.get_mut(key) else { return false };
        // It is set already; setting it sends what is pending (tcp(7), `TCP_NODELAY`).
        sockopt::set_nodelay(&flow.endpoint(Side::Client).socket).is_ok()
    }
}
