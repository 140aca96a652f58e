//! How far a three-way handshake reaches when both ends have a timer.
//!
//! The client gives up when its SYN schedule ends. But the server forgets too: it repeats its SYN-ACK a
//! number of times and then drops the half-open connection, and the segment that would complete it finds
//! nothing and is answered by a reset. The client believes for a round trip that it is connected.
//!
//! On Linux each SYN that arrives restarts the server's running wait without being counted as an expiry
//! (measured on 6.18: at 45 s one way, 90 s after the first SYN arrived, the handshake completed, although
//! the SYN-ACK's own schedule ends after 63 s). Client and server count in the same seconds, so that a SYN
//! and an expiry often fall on the same instant, and the noise of both clocks decides which comes first. The
//! reach therefore has two bounds.

use std::collections::BTreeSet;
use std::time::Duration;

/// The one-way delays that a handshake bridges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandshakeReach {
    /// Every delay up to this one works, in either order of a SYN and an expiry that coincide.
    pub sure: Duration,
    /// No delay beyond this one works; between the two it depends on those coincidences.
    pub perhaps: Duration,
}

/// The reach of a handshake between a client that waits `syn` between its SYNs, and then gives up, and a
/// server that waits `syn_ack` between its answers, and then forgets.
///
/// A server without a timer is an empty `syn_ack`.
pub fn reach(syn: &[Duration], syn_ack: &[Duration]) -> HandshakeReach {
    let give_up: Duration = syn.iter().sum();
    if syn_ack.is_empty() {
        return HandshakeReach { sure: give_up / 2, perhaps: give_up / 2 };
    }
    let sent: Vec<Duration> = std::iter::once(Duration::ZERO).chain(running_sum(syn)).collect();
    // With a round trip between one SYN and the next, all SYNs up to the first of the two have been sent when
    // the answer comes. The last segment arrives at the server a round trip after the first SYN did.
    let (mut sure, mut perhaps) = (None, Duration::ZERO);
    for last in 0..syn.len() {
        let (from, to) = (sent[last], sent[last + 1]);
        let life = lifetime(&sent[..=last], syn_ack);
        if sure.is_none() && life.shortest < to {
            sure = Some(life.shortest.max(from));
        }
        if life.longest > from {
            perhaps = perhaps.max(life.longest.min(to));
        }
    }
    HandshakeReach { sure: sure.unwrap_or(give_up) / 2, perhaps: perhaps / 2 }
}

/// How long after its first SYN a half-open connection is remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lifetime {
    shortest: Duration,
    longest: Duration,
}

fn lifetime(syns: &[Duration], waits: &[Duration]) -> Lifetime {
    let mut ends = Vec::new();
    // Each coincidence doubles the courses that it may take, but they soon meet again: the states stay few.
    let mut states = BTreeSet::from([HalfOpen { expired: 0, expires: waits[0] }]);
    for &syn in &syns[1..] {
        states = states.into_iter().flat_map(|state| state.after(syn, waits, &mut ends)).collect();
    }
    ends.extend(
        states.into_iter().map(|state| state.expires + waits[state.expired + 1..].iter().sum::<Duration>()),
    );
    let shortest = ends.iter().min().copied().unwrap_or_default();
    Lifetime { shortest, longest: ends.into_iter().max().unwrap_or_default() }
}

/// A half-open connection: how many of its waits have expired, and when the running one will.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct HalfOpen {
    expired: usize,
    expires: Duration,
}

impl HalfOpen {
    /// Its possible states after a SYN has arrived: two if an expiry coincides, because either may come
    /// first. If it is forgotten by then, that moment is added to `ends`.
    fn after(mut self, syn: Duration, waits: &[Duration], ends: &mut Vec<Duration>) -> Vec<Self> {
        let mut states = Vec::new();
        while self.expires <= syn {
            if self.expires == syn {
                states.push(self.restarted(syn, waits));
            }
            match waits.get(self.expired + 1) {
                Some(&wait) => self = Self { expired: self.expired + 1, expires: self.expires + wait },
                None => {
                    // A SYN that arrives after the connection is forgotten starts a new one with other
                    // sequence numbers, which the answer to the old one does not complete.
                    ends.push(self.expires);
                    return states;
                }
            }
        }
        states.push(self.restarted(syn, waits));
        states
    }

    fn restarted(self, syn: Duration, waits: &[Duration]) -> Self {
        Self { expires: syn + waits[self.expired], ..self }
    }
}

fn running_sum(waits: &[Duration]) -> impl Iterator<Item = Duration> {
    waits.iter().scan(Duration::ZERO, |at, wait| {
        *at += *wait;
        Some(*at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seconds(values: &[u64]) -> Vec<Duration> {
        values.iter().copied().map(Duration::from_secs).collect()
    }

    fn halves(reach: HandshakeReach) -> (f64, f64) {
        (reach.sure.as_secs_f64(), reach.perhaps.as_secs_f64())
    }

    #[test]
    fn without_a_server_timer_half_the_syn_schedule_is_the_reach() {
        assert_eq!(halves(reach(&seconds(&[3, 6, 12, 24]), &[])), (22.5, 22.5));
        assert_eq!(halves(reach(&seconds(&[1, 1, 1, 1, 1, 2, 4, 8, 16, 32, 64]), &[])), (65.5, 65.5));
    }

    #[test]
    fn a_single_syn_leaves_the_server_its_own_schedule() {
        let server = seconds(&[1, 2, 4, 8, 16, 32]);
        assert_eq!(halves(reach(&seconds(&[1000]), &server)), (31.5, 31.5));
    }

    #[test]
    fn linux_is_sure_to_33_and_a_half_and_may_reach_49_and_a_half_seconds() {
        let syn = seconds(&[1, 1, 1, 1, 1, 2, 4, 8, 16, 32, 64]);
        let server = seconds(&[1, 2, 4, 8, 16, 32]);
        assert_eq!(halves(reach(&syn, &server)), (33.5, 49.5));
    }

    #[test]
    fn hours_of_syns_that_each_meet_an_expiry_are_computed_at_once() {
        let hours = vec![Duration::from_secs(120); 127];
        let found = reach(&hours, &hours);
        assert!(found.sure <= found.perhaps && found.perhaps >= Duration::from_secs(127 * 60), "{found:?}");
    }

    #[test]
    fn a_client_that_gives_up_early_is_the_bound() {
        let server = seconds(&[1, 2, 4, 8, 16, 32]);
        assert_eq!(halves(reach(&seconds(&[3, 6]), &server)), (4.5, 4.5));
    }

    proptest! {
        #[test]
        fn the_bounds_are_ordered_and_within_the_syn_schedule(
            syn in prop::collection::vec(1u64..60, 1..8), server in prop::collection::vec(1u64..60, 1..8),
        ) {
            let give_up = Duration::from_secs(syn.iter().sum());
            let found = reach(&seconds(&syn), &seconds(&server));
            prop_assert!(found.sure <= found.perhaps && found.perhaps <= give_up / 2, "{found:?}");
        }

        #[test]
        fn a_more_patient_server_never_reaches_less(
            syn in prop::collection::vec(1u64..30, 1..6), server in prop::collection::vec(1u64..30, 1..6), more in 1u64..60,
        ) {
            let patient = [server.clone(), vec![more]].concat();
            let (less, most) = (reach(&seconds(&syn), &seconds(&server)), reach(&seconds(&syn), &seconds(&patient)));
            prop_assert!(most.sure >= less.sure && most.perhaps >= less.perhaps, "{less:?} {most:?}");
        }
    }
}
