//! Probes during an outage, so that a connection goes on one round trip after its leg is back.
//!
//! In an outage the intervals of retransmissions double, and what is retransmitted first when the leg is back
//! is mostly something that the receiver already has, because the outage has destroyed acknowledgements, too.
//! A [probe](bentpipe_kernel::sockopt::probe) is answered by what the receiver has: then the sender knows what
//! is missing, and that the leg is back. It has 40 bytes and a header, so many of them cost little.
//!
//! Only connections of legs with `restart_within` are probed, while their leg is out and their timers have
//! expired. The longer the outage, the rarer the probes.
//!
//! The answer tells what is missing, but Linux takes the timeout for spurious: the answer acknowledges segments
//! that were sent once (F-RTO, RFC 5682), and echoes a timestamp older than the retransmission (Eifel, RFC
//! 4015). Then it sends new data and fills the hole a round trip later. Where the host does without F-RTO, one
//! probe of each connection therefore turns its timestamps' clock back, so that the answer seems to be younger.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use bentpipe_kernel::tcp_info::{TcpInfo, tcp_info};
use bentpipe_kernel::{host, sockopt};

use super::Worker;
use crate::flow::Side;
use crate::types::slab::Key;

/// The least and the longest time between two probes of a connection; in between it is a part of the time that
/// the connection has waited.
const INTERVAL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
const PART: u32 = 500;
/// The probes that a worker sends at a time, and the time between: at most 320 in a second, 130 kbit/s of IPv4.
const AT_ONCE: usize = 16;
const TURN: Duration = Duration::from_millis(50);

/// The ends of flows that a worker probes, in the order in which they are due. The number tells those apart
/// that are due at the same instant.
#[derive(Debug, Default)]
pub(super) struct OutageProbes {
    due: BTreeMap<(Instant, u64), Probed>,
    next_number: u64,
    not_before: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Probed {
    key: Key,
    side: Side,
    since: Instant,
    clock: Clock,
}

/// That of a connection's timestamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Clock {
    /// Not turned back yet.
    ToTurnBack,
    /// As it is to stay.
    Settled,
}

impl Probed {
    /// By how much to turn back the clock now: so far that what was sent before the outage seems to be sent
    /// after the first retransmission, and less than the time for which nothing has come through.
    fn turn_back(&self, info: &TcpInfo, now: Instant) -> Option<Duration> {
        let probed = now.saturating_duration_since(self.since);
        // What the last acknowledgement is for was sent a round trip earlier. The timer had expired before the
        // first probe.
        let oldest = info.since_ack_received.saturating_sub(probed) + info.srtt;
        let by = oldest + INTERVAL.0;
        (self.clock == Clock::ToTurnBack && by < probed).then_some(by)
    }
}

impl OutageProbes {
    /// When the next probe is due.
    pub(super) fn due(&self) -> Option<Instant> {
        let (first, _) = self.due.keys().next()?;
        Some(self.not_before.map_or(*first, |earliest| earliest.max(*first)))
    }

    fn add(&mut self, at: Instant, probed: Probed) {
        self.next_number += 1;
        self.due.insert((at, self.next_number), probed);
    }

    /// Those whose turn it is.
    fn take(&mut self, now: Instant) -> Vec<Probed> {
        if self.due().is_none_or(|due| due > now) {
            return Vec::new();
        }
        self.not_before = Some(now + TURN);
        let turn = |probes: &mut Self| {
            let first = probes.due.first_entry().filter(|first| first.key().0 <= now)?;
            Some(first.remove())
        };
        std::iter::from_fn(|| turn(self)).take(AT_ONCE).collect()
    }
}

impl Worker {
    /// From now on these ends of a flow are probed, until they have an answer or their leg is back.
    pub(super) fn probe_from_now_on(
        &mut self,
        key: Key,
        sides: impl IntoIterator<Item = Side>,
        now: Instant,
    ) {
        for side in sides {
            let clock = if host::has_f_rto() { Clock::Settled } else { Clock::ToTurnBack };
            self.probes.add(now, Probed { key, side, since: now, clock });
        }
    }

    pub(super) fn send_probes(&mut self, now: Instant) {
        for mut probed in self.probes.take(now) {
            let Probed { key, side, since, .. } = probed;
            let Some(flow) = self.flows.get_mut(key) else { continue };
            let socket = &flow.endpoint(side).socket;
            let sent = match tcp_info(socket) {
                Ok(info) if info.backoff > 0 => match probed.turn_back(&info, now) {
                    Some(by) => {
                        probed.clock = Clock::Settled;
                        sockopt::probe_with_clock_turned_back(socket, by)
                    }
                    None => sockopt::probe(socket),
                },
                Ok(_) => Err(io::ErrorKind::NotConnected.into()),
                Err(error) => Err(error),
            };
            if sent.is_err() {
                flow.set_probed(side, false);
                continue;
            }
            self.counters.outage_probes.add(1);
            let interval = (now.saturating_duration_since(since) / PART).clamp(INTERVAL.0, INTERVAL.1);
            self.probes.add(now + interval, probed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::slab::Slab;

    #[test]
    fn many_that_are_due_have_their_turns_one_after_the_other() {
        let now = Instant::now();
        let mut slab = Slab::new();
        let mut probes = OutageProbes::default();
        for number in 0..AT_ONCE + 2 {
            let key = slab.insert(number);
            let probed = Probed { key, side: Side::Client, since: now, clock: Clock::Settled };
            probes.add(now, probed);
        }
        assert_eq!(probes.due(), Some(now));
        assert_eq!(probes.take(now).len(), AT_ONCE);
        assert_eq!(probes.due(), Some(now + TURN));
        assert!(probes.take(now + TURN / 2).is_empty());
        assert_eq!(probes.take(now + TURN).len(), 2);
        assert_eq!(probes.due(), None);
    }
}
