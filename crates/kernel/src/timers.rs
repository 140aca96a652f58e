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
//!
//! Keepalives (RFC 9293 §3.8.4) must not end an idle connection any sooner. Linux counts the silence from the
//! last segment that has arrived, and `TCP_USER_TIMEOUT`, where it is set, replaces the number of probes: an
//! idle connection ends at the first unanswered probe after that much silence, although the outage may have
//! begun a moment before the first probe. So the user timeout of a leg with keepalives is longer by the idle
//! time.

use std::time::Duration;

use crate::sockopt::RTO_MAX_RANGE;

/// Margin between the longest round trip and the ceiling of the retransmission timeout: RFC 6298 asks for
/// 4·rttvar on top of the round trip, and Linux never lets that be less than 200 ms.
const ABOVE_ROUND_TRIP: Duration = Duration::from_millis(200);

/// NATs and firewalls forget an idle connection: by RFC 5382 §5 (REQ-5) not before 2 h 4 min, in practice
/// many after five to fifteen minutes. A connection is probed once it has been idle for this time.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(5 * 60);
/// The least idle time that follows from a short `survive_outage`.
const LEAST_KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
/// What `TCP_KEEPIDLE` and `TCP_KEEPINTVL` accept (linux/tcp.h, `MAX_TCP_KEEPIDLE`).
pub const KEEPALIVE_RANGE: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(32767);
/// Between two unanswered probes: a twentieth of the outage, at least a second and at most Linux' default.
const KEEPALIVE_PROBES: u32 = 20;
const MAX_KEEPALIVE_INTERVAL: Duration = Duration::from_secs(75);
/// The most that `TCP_KEEPCNT` takes.
const MAX_KEEPALIVE_PROBES: u32 = 127;
/// Linux' smallest retransmission timeout, and how often it retries (tcp(7), `tcp_retries2`).
const LEAST_RTO: Duration = Duration::from_millis(200);
const RETRIES: u32 = 15;

/// Whether the far end of an idle connection is asked if it is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Keepalive {
    /// Never.
    #[default]
    Off,
    /// After [`KEEPALIVE_IDLE`], or sooner on a leg whose connections survive shorter outages only.
    Derived,
    /// After this time, [`KEEPALIVE_RANGE`].
    After(Duration),
}

/// The operator's intentions for one side when the link fails and returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Intentions {
    /// The sender tries the link again at most this long after its return.
    pub restart_within: Option<Duration>,
    /// A connection lives through an outage of this length.
    pub survive_outage: Option<Duration>,
    /// An idle connection is kept in the memory of NATs and firewalls, and ends where its far end is gone.
    pub keepalive: Keepalive,
}

/// The kernel's values for [`Intentions`]; `None` leaves the kernel's default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timers {
    /// The ceiling of the retransmission timeout (`TCP_RTO_MAX_MS`).
    pub rto_max: Option<Duration>,
    /// How long data, and keepalives, may stay unacknowledged (`TCP_USER_TIMEOUT`).
    pub user_timeout: Option<Duration>,
    /// The keepalives (`SO_KEEPALIVE`).
    pub keepalive: Option<KeepaliveTimers>,
}

/// The timers of keepalives (tcp(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepaliveTimers {
    /// Without a segment received, before the first probe (`TCP_KEEPIDLE`).
    pub idle: Duration,
    /// Between two probes that are not answered (`TCP_KEEPINTVL`).
    pub interval: Duration,
    /// Unanswered probes before the connection is given up, where no user timeout decides it
    /// (`TCP_KEEPCNT`).
    pub probes: u32,
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
        let keepalive = KeepaliveTimers::derive(intentions);
        let user_timeout = intentions.survive_outage.map(|outage| {
            // The same holds for the last probe before the link's return; and the outage may begin when the
            // connection has been idle for as long as it can be without a probe.
            let (idle, interval) =
                keepalive.map_or_else(Default::default, |timers| (timers.idle, timers.interval));
            outage + idle + ceiling.max(interval) + worst_rtt
        });
        Self { rto_max, user_timeout, keepalive }
    }
}

impl KeepaliveTimers {
    /// The idle time is no longer than the outage that is survived, by default: it adds to the time after
    /// which a connection is given up. Without an outage to survive, an idle connection lives as long as one
    /// with data by Linux' default.
    fn derive(intentions: Intentions) -> Option<Self> {
        let outage = intentions.survive_outage;
        let idle = match intentions.keepalive {
            Keepalive::Off => return None,
            Keepalive::After(idle) => idle,
            Keepalive::Derived => {
                outage.map_or(KEEPALIVE_IDLE, |outage| outage.clamp(LEAST_KEEPALIVE_IDLE, KEEPALIVE_IDLE))
            }
        };
        let silence = outage.unwrap_or_else(|| give_up_after(LEAST_RTO, *RTO_MAX_RANGE.end(), RETRIES));
        let interval = (silence / KEEPALIVE_PROBES).clamp(*KEEPALIVE_RANGE.start(), MAX_KEEPALIVE_INTERVAL);
        // The kernel counts whole seconds.
        let interval = Duration::from_secs(interval.as_secs());
        let idle = Duration::from_secs(idle.as_secs() + u64::from(idle.subsec_nanos() > 0));
        let probes = silence.as_secs() / interval.as_secs() + 2;
        Some(Self {
            idle: idle.clamp(*KEEPALIVE_RANGE.start(), *KEEPALIVE_RANGE.end()),
            interval,
            probes: u32::try_from(probes).unwrap_or(u32::MAX).min(MAX_KEEPALIVE_PROBES),
        })
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
            keepalive: Keepalive::Off,
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

    /// What a leg that survives an outage of so many seconds, with keepalives, has.
    fn with_keepalive(survive: Option<u64>, keepalive: Keepalive) -> (Timers, KeepaliveTimers) {
        let survive_outage = survive.map(Duration::from_secs);
        let intentions = Intentions { restart_within: Some(SECOND), survive_outage, keepalive };
        let timers = Timers::derive(intentions, Duration::from_millis(750));
        (timers, timers.keepalive.unwrap())
    }

    #[test]
    fn a_keepalive_never_ends_a_connection_sooner_than_the_outage_that_it_survives() {
        for survive in [1, 9, 60, 300, 1500, 6 * 3600, 590 * 3600] {
            for keepalive in [Keepalive::Derived, Keepalive::After(SECOND), Keepalive::After(7200 * SECOND)] {
                let (timers, probes) = with_keepalive(Some(survive), keepalive);
                // The outage begins just before the first probe, and ends just after the last.
                let silence = timers.user_timeout.unwrap() - probes.idle - probes.interval;
                assert!(silence >= Duration::from_secs(survive), "{survive} {keepalive:?}: {timers:?}");
                let lasts = probes.interval * probes.probes;
                let most = MAX_KEEPALIVE_INTERVAL * MAX_KEEPALIVE_PROBES;
                assert!(lasts > Duration::from_secs(survive).min(most - SECOND), "{timers:?}");
                // Several are lost before a connection is.
                assert!(silence >= probes.interval * 3 || survive < 3, "{timers:?}");
            }
        }
    }

    #[test]
    fn a_keepalive_is_sent_before_home_routers_forget_and_ends_a_short_outages_leg_soon() {
        assert_eq!(with_keepalive(Some(1500), Keepalive::Derived).1.idle, 300 * SECOND);
        assert_eq!(with_keepalive(Some(120), Keepalive::Derived).1.idle, 120 * SECOND);
        let (timers, probes) = with_keepalive(Some(1), Keepalive::Derived);
        assert_eq!((probes.idle, probes.interval), (10 * SECOND, SECOND));
        assert!(timers.user_timeout.unwrap() < 15 * SECOND, "{timers:?}");
    }

    #[test]
    fn without_an_outage_to_survive_an_idle_connection_lives_as_long_as_one_with_data() {
        let (timers, probes) = with_keepalive(None, Keepalive::Derived);
        assert_eq!((timers.user_timeout, probes.idle), (None, KEEPALIVE_IDLE));
        assert!(probes.interval * probes.probes > 924 * SECOND, "{probes:?}");
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
