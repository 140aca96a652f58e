//! The kernel's retransmission timers, derived from an operator's intentions for a link that fails and
//! returns.
//!
//! Linux gives up after a number of retries (`tcp_retries2`), so lowering the ceiling of the backoff alone
//! makes a connection die sooner: with a ceiling of 1 s and the default 15 retries it lasts 15 s. Therefore
//! the operator states two intentions, and both kernel values follow from them (PSATS09 §2.2):
//!
//! - *restart within*: how soon after the link's return the sender tries it. The worst case is the ceiling of
//!   the retransmission timeout, the mean is half of it.
//! - *survive an outage of*: how long unacknowledged data may wait before the connection is given up.

use std::time::Duration;

use crate::sockopt::RTO_MAX_RANGE;

/// Margin between the longest round trip and the ceiling of the retransmission timeout: RFC 6298 asks for
/// 4·rttvar on top of the round trip, and Linux never lets that be less than 200 ms.
const ABOVE_ROUND_TRIP: Duration = Duration::from_millis(200);

/// The operator's intentions for one side when the link fails and returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Intentions {
    /// The sender tries the link again at most this long after its return.
    pub restart_within: Option<Duration>,
    /// A connection lives through an outage of this length.
    pub survive_outage: Option<Duration>,
}

/// The kernel's values for [`Intentions`]; `None` leaves the kernel's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timers {
    /// The ceiling of the retransmission timeout (`TCP_RTO_MAX_MS`).
    pub rto_max: Option<Duration>,
    /// How long data may stay unacknowledged (`TCP_USER_TIMEOUT`).
    pub user_timeout: Option<Duration>,
}

impl Timers {
    /// Derives both kernel values.
    ///
    /// `worst_rtt` is the round-trip time with the queue that the sender lets grow. A ceiling below it would
    /// make every round trip look like a loss (at 10 Mbit/s and 600 ms behind one bandwidth-delay product of
    /// queue a ceiling of 1 s halves Hybla's goodput), so `restart_within` yields to it.
    pub fn derive(intentions: Intentions, worst_rtt: Duration) -> Self {
        let rto_max = intentions.restart_within.map(|wanted| {
            wanted.max(worst_rtt + ABOVE_ROUND_TRIP).clamp(*RTO_MAX_RANGE.start(), *RTO_MAX_RANGE.end())
        });
        // The kernel gives up at the first expiry after the limit, and the last try before the link's return
        // may be a whole ceiling early: the data must be allowed to wait for one more.
        let ceiling = rto_max.unwrap_or(*RTO_MAX_RANGE.end());
        let user_timeout = intentions.survive_outage.map(|outage| outage + ceiling + worst_rtt);
        Self { rto_max, user_timeout }
    }
}

/// How long Linux by default tries to connect: 1, 2, 4 … 64 s after one another (tcp(7), `tcp_syn_retries` =
/// 6).
pub const CONNECT_PATIENCE: Duration = Duration::from_secs(127);
/// The most that `TCP_SYNCNT` takes.
const MAX_SYN_RETRIES: u32 = 127;
/// RFC 6298 §2.1.
const INITIAL_RTO: Duration = Duration::from_secs(1);

/// How many times a SYN is to be repeated so that connecting is not given up sooner for a lower ceiling of
/// the timeout: the default six retries last 7 s with a ceiling of 1 s, not two minutes.
pub fn syn_retries(rto_max: Duration) -> u32 {
    (1..=MAX_SYN_RETRIES)
        .find(|&retries| give_up_after(INITIAL_RTO, rto_max, retries) >= CONNECT_PATIENCE)
        .unwrap_or(MAX_SYN_RETRIES)
}

/// How long Linux keeps trying before it gives a connection up, without a user timeout: the sum of the
/// exponentially growing timeouts, from `rto_min` doubled up to `rto_max`, over `retries` + 1 expiries
/// (tcp(7), `tcp_retries2`).
pub fn give_up_after(rto_min: Duration, rto_max: Duration, retries: u32) -> Duration {
    let mut total = Duration::ZERO;
    let mut timeout = rto_min;
    for _ in 0..=retries {
        total += timeout.min(rto_max);
        timeout = timeout.saturating_mul(2).min(rto_max);
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn derive(restart: Option<u64>, survive: Option<u64>, rtt_ms: u64) -> Timers {
        let intentions = Intentions {
            restart_within: restart.map(Duration::from_secs),
            survive_outage: survive.map(Duration::from_secs),
        };
        Timers::derive(intentions, Duration::from_millis(rtt_ms))
    }

    #[test]
    fn a_restart_within_one_second_is_a_ceiling_of_one_second() {
        assert_eq!(derive(Some(1), None, 750).rto_max, Some(SECOND));
    }

    #[test]
    fn the_ceiling_never_falls_below_the_round_trip_with_its_queue() {
        assert_eq!(derive(Some(1), None, 1200).rto_max, Some(Duration::from_millis(1400)));
    }

    #[test]
    fn the_ceiling_stays_within_the_kernels_range() {
        assert_eq!(derive(Some(0), None, 25).rto_max, Some(SECOND));
        assert_eq!(derive(Some(600), None, 25).rto_max, Some(120 * SECOND));
    }

    #[test]
    fn an_outage_is_survived_with_a_whole_backoff_to_spare() {
        let timers = derive(Some(10), Some(1500), 600);
        assert_eq!(timers.user_timeout, Some(Duration::from_millis(1_510_600)));
    }

    #[test]
    fn nothing_asked_leaves_the_kernel_alone() {
        assert_eq!(derive(None, None, 600), Timers::default());
    }

    #[test]
    fn connecting_is_as_patient_with_a_low_ceiling_as_without() {
        assert_eq!(syn_retries(120 * SECOND), 6, "the kernel's default");
        assert_eq!(syn_retries(SECOND), 126);
        assert!(give_up_after(SECOND, 10 * SECOND, syn_retries(10 * SECOND)) >= CONNECT_PATIENCE);
    }

    #[test]
    fn linux_by_default_gives_up_after_924_seconds() {
        let total = give_up_after(Duration::from_millis(200), 120 * SECOND, 15);
        assert_eq!(total, Duration::from_millis(924_600));
    }

    #[test]
    fn a_lower_ceiling_alone_makes_the_connection_die_sooner() {
        let total = give_up_after(Duration::from_millis(200), SECOND, 15);
        assert!(total < 15 * SECOND, "{total:?}");
    }
}
