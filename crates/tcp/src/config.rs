//! What an endpoint is made with.

use std::time::Duration;

use crate::congestion::Algorithm;
use crate::{MetricsCache, Recovery, RtoLimits, SynSchedule};

/// The largest receive buffer whose window the header can announce: 16 bits, shifted by 14 (RFC 7323 §2.3).
pub const MAX_RECEIVE_BUFFER: u64 = 65_535 << 14;
/// IPv4's default (RFC 9293 §3.7.1) is the least that any host must accept.
const MIN_MSS: u16 = 88;
/// As many as Windows accepts (`DelayedAckFrequency` of Set-NetTCPSetting, a byte).
const MAX_ACK_EVERY: u32 = 255;

/// The parameters of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// The maximum segment size as announced: payload and TCP options (RFC 9293 §3.7.1), 88 bytes or more.
    pub mss: u16,
    /// The initial window in segments (RFC 6928: 10; RFC 2581, of the papers' time: 2).
    pub initial_window: u32,
    /// Bytes that the application may have written and that are not acknowledged yet.
    pub send_buffer: u64,
    /// The send buffer begins with so many bytes and grows with the window, to `send_buffer` at the most;
    /// `None` has all of it from the start.
    pub send_autotuning: Option<u64>,
    /// Bytes that may have arrived and are not read yet; the receive window is the rest of it.
    pub receive_buffer: u64,
    /// The receive buffer begins with so many bytes and grows with what the application reads in a round
    /// trip, to `receive_buffer` at the most (dynamic right-sizing); the first window has 65,535 bytes at the
    /// most. `None` has all of it from the start.
    pub receive_autotuning: Option<u64>,
    /// The first slow-start threshold, bytes (RFC 5681 §3.1: "arbitrarily high", which is `None`).
    pub ssthresh: Option<u64>,
    /// The round trip that earlier connections to the same destination have found: where the handshake's is
    /// shorter, it makes the timeout until data is acknowledged.
    pub srtt: Option<Duration>,
    /// Which metrics of earlier connections the caller is to [recall](crate::Endpoint::recall).
    pub metrics_cache: MetricsCache,
    /// RFC 7323 §2: without it no window exceeds 65,535 bytes.
    pub window_scaling: bool,
    /// RFC 7323 §3.
    pub timestamps: bool,
    /// Whether selective acknowledgements are offered to the other side (RFC 2018).
    pub sack: bool,
    /// How long an acknowledgement may be delayed (RFC 9293 §3.8.6.3: below 500 ms); `None` acknowledges each
    /// segment.
    pub delayed_ack: Option<Duration>,
    /// Full-size segments in order for which one acknowledgement is sent, while none has waited for
    /// `delayed_ack`: 2 (RFC 9293 §3.8.6.3). Stretch ACKs are of more (RFC 2525 §2.13); macOS has up to 8
    /// (XNU, `net.inet.tcp.maxseg_unacked`).
    pub ack_every: u32,
    /// RFC 3042: a new segment for each of the first two duplicate acknowledgements.
    pub limited_transmit: bool,
    /// RFC 9937: SACK recovery and RACK spread the reduction of the window over a round trip. Without it the
    /// sender is silent until half its flight has arrived (RFC 6675).
    pub proportional_rate_reduction: bool,
    /// SACK recovery takes a retransmission for lost, and sends again, when something that left later has
    /// arrived (the idea of RFC 8985, for paths that do not reorder). Without it a retransmission that is
    /// lost waits for the timer (RFC 6675).
    pub lost_retransmissions: bool,
    /// RACK sends a probe when the end of a flight is not acknowledged (RFC 8985 §7).
    pub tail_loss_probe: bool,
    /// After a timeout RACK finds out by new data whether something was lost (F-RTO, RFC 5682, §3.1).
    pub forward_rto: bool,
    /// RACK takes a reduction of the window back that was spurious, by timestamps (RFC 3522, RFC 4015) or by
    /// D-SACK (RFC 3708). The initial window is one segment only after a second repetition of the SYN, and not
    /// where timestamps tell that the first SYN was answered, as in Linux.
    pub undo: bool,
    /// The receiver reports what has arrived twice (RFC 2883), and RACK uses such reports.
    pub duplicate_sack: bool,
    /// CUBIC leaves slow start when the spacing of acknowledgements or their delay says that the path is full
    /// (HyStart: Ha and Rhee 2011).
    pub hystart: bool,
    /// CUBIC grows as Linux' does, not as RFC 9438 says: as if it were a Reno it gains about half a segment
    /// in a round trip for ever (α = 9/17), and a twentieth of the window at the least before it knows a
    /// plateau; and a loss leaves whole segments.
    pub linux_cubic: bool,
    /// Paced segments leave in bursts, as a host sends them that leaves their segmentation to its interface
    /// (TSO): as much as the pace carries in a millisecond, two segments at the least, 64 kB at the most.
    pub segmentation_offload: bool,
    /// What the congestion control does not pace is paced by the host (Linux with the queueing discipline
    /// `fq`): at twice the window in a round trip in slow start, at 1.2 windows afterwards.
    pub fq_pacing: bool,
    /// RFC 896: a short segment waits while data is in flight.
    pub nagle: bool,
    /// The window goes back to the initial one after an idle timeout (RFC 5681 §4.1).
    pub restart_after_idle: bool,
    /// Each expiry for the same segment lowers the slow-start threshold, to half of the window that the expiry
    /// before has left, which is two segments; ns-2 does so. Without it the first expiry alone lowers it (RFC
    /// 5681 §3.1). BBR, explicit rates, and XCP whose window routers set have no threshold.
    pub each_timeout_reduces: bool,
    /// How many segments an acknowledgement may count for in slow start (RFC 3465's L).
    pub byte_counting_limit: Option<u32>,
    /// The bounds of the retransmission timeout.
    pub rto: RtoLimits,
    /// Retransmissions of a segment by the timer before the connection is given up at the next expiry (Linux'
    /// `tcp_retries2`: 15); `None` never gives up.
    pub retries: Option<u32>,
    /// How long data may stay unacknowledged before the connection is given up (RFC 793 §3.8,
    /// `TCP_USER_TIMEOUT`), with which the number of retries counts no more.
    pub user_timeout: Option<Duration>,
    /// When SYNs are repeated.
    pub syn: SynSchedule,
    /// When the answers to a SYN are repeated.
    pub syn_ack: SynSchedule,
    /// When a segment counts as lost. SACK recovery on a connection whose other side does not offer SACK is
    /// NewReno Slow-but-Steady.
    pub recovery: Recovery,
    /// How much may be in flight.
    pub congestion: Algorithm,
}

impl Default for Config {
    /// What the RFCs recommend today: NewReno with SACK, timestamps, ten segments at first.
    fn default() -> Self {
        Self {
            mss: 1460,
            initial_window: 10,
            send_buffer: 16 << 20,
            send_autotuning: None,
            receive_buffer: 16 << 20,
            receive_autotuning: None,
            ssthresh: None,
            srtt: None,
            metrics_cache: MetricsCache::Off,
            window_scaling: true,
            timestamps: true,
            sack: true,
            delayed_ack: Some(Duration::from_millis(40)),
            ack_every: 2,
            limited_transmit: true,
            proportional_rate_reduction: true,
            lost_retransmissions: false,
            tail_loss_probe: false,
            forward_rto: false,
            undo: false,
            duplicate_sack: false,
            hystart: false,
            linux_cubic: false,
            segmentation_offload: false,
            fq_pacing: false,
            nagle: true,
            restart_after_idle: true,
            each_timeout_reduces: false,
            byte_counting_limit: Some(2),
            rto: RtoLimits::RFC6298,
            retries: Some(15),
            user_timeout: None,
            syn: SynSchedule::RFC6298,
            syn_ack: SynSchedule::RFC6298,
            recovery: Recovery::Sack,
            congestion: Algorithm::NewReno,
        }
    }
}

/// A parameter that no endpoint can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{parameter} is {found}: {accepted}")]
pub struct ConfigError {
    /// The field of [`Config`].
    pub parameter: &'static str,
    /// Its value.
    pub found: String,
    /// What would be accepted.
    pub accepted: &'static str,
}

impl Config {
    /// Timers, schedules and byte counting as in Linux.
    pub fn linux() -> Self {
        Self {
            rto: RtoLimits::LINUX,
            syn: SynSchedule::LINUX,
            syn_ack: SynSchedule::LINUX_SYN_ACK,
            byte_counting_limit: None,
            congestion: Algorithm::Cubic,
            ..Self::default()
        }
    }

    /// What Linux does today, loss recovery included.
    pub fn linux_stock() -> Self {
        Self {
            recovery: Recovery::Rack,
            tail_loss_probe: true,
            forward_rto: true,
            undo: true,
            duplicate_sack: true,
            hystart: true,
            linux_cubic: true,
            // tcp_rmem is 128 kB to 32 MB, of which half is payload (tcp_adv_win_scale).
            receive_buffer: 16 << 20,
            receive_autotuning: Some(64 << 10),
            // tcp_wmem.
            send_buffer: 4 << 20,
            send_autotuning: Some(16 << 10),
            rto: RtoLimits::LINUX_250_HZ,
            metrics_cache: MetricsCache::RoundTrip,
            ..Self::linux()
        }
    }

    /// Checks the parameters against each other.
    ///
    /// # Errors
    /// The first one that no endpoint can have.
    pub fn check(&self) -> Result<(), ConfigError> {
        let fail = |parameter, found: String, accepted| Err(ConfigError { parameter, found, accepted });
        if self.mss < MIN_MSS {
            return fail("mss", self.mss.to_string(), "it must lie between 88 and 65535 bytes");
        }
        if self.initial_window == 0 || self.initial_window > 10_000 {
            let found = self.initial_window.to_string();
            return fail("initial_window", found, "it must lie between 1 and 10000 segments");
        }
        let buffers = [
            ("send_buffer", self.send_buffer, self.send_autotuning),
            ("receive_buffer", self.receive_buffer, self.receive_autotuning),
        ];
        for (parameter, bytes, autotuning) in buffers {
            if !(u64::from(self.mss)..=MAX_RECEIVE_BUFFER).contains(&bytes) {
                return fail(
                    parameter,
                    bytes.to_string(),
                    "it must lie between one mss and 2^30 - 2^14 bytes",
                );
            }
            let first = autotuning.unwrap_or(bytes);
            if !(u64::from(self.mss)..=bytes).contains(&first) {
                return fail(
                    parameter,
                    format!("{first} bytes at first"),
                    "it must begin between one mss and its largest size",
                );
            }
        }
        if self.ssthresh == Some(0) {
            return fail("ssthresh", "0".to_owned(), "it must be above zero");
        }
        if self.delayed_ack.is_some_and(|delay| delay > Duration::from_millis(500)) {
            let found = format!("{:?}", self.delayed_ack.unwrap_or_default());
            return fail("delayed_ack", found, "it must not exceed 500ms (RFC 9293, section 3.8.6.3)");
        }
        if self.ack_every == 0 || self.ack_every > MAX_ACK_EVERY {
            let found = self.ack_every.to_string();
            return fail("ack_every", found, "it must lie between 1 and 255 segments");
        }
        if self.rto.min.is_zero() || self.rto.initial.is_zero() || self.rto.max < self.rto.min {
            let found = format!("{:?} to {:?}, at first {:?}", self.rto.min, self.rto.max, self.rto.initial);
            return fail(
                "rto",
                found,
                "its floor and its first value must be above zero, its ceiling not below",
            );
        }
        for (parameter, schedule) in [("syn", self.syn), ("syn_ack", self.syn_ack)] {
            if schedule.first.is_zero() || schedule.max.is_zero() || schedule.waits == Some(0) {
                return fail(
                    parameter,
                    format!("{schedule:?}"),
                    "waits must be above zero, and there must be one",
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid() {
        assert_eq!(Config::default().check(), Ok(()));
        assert_eq!(Config::linux().check(), Ok(()));
        assert_eq!(Config::linux_stock().check(), Ok(()));
    }

    #[test]
    fn impossible_values_are_named_with_the_accepted_ones() {
        let config = Config { receive_buffer: 1 << 31, ..Config::default() };
        let text = config.check().unwrap_err().to_string();
        assert!(text.contains("receive_buffer is 2147483648") && text.contains("2^30"), "{text}");
        let config = Config { receive_autotuning: Some(17 << 20), ..Config::default() };
        let text = config.check().unwrap_err().to_string();
        assert!(text.contains("receive_buffer is 17825792 bytes at first"), "{text}");
        assert!(Config { send_autotuning: Some(1459), ..Config::default() }.check().is_err());
        assert!(Config { mss: 1, ..Config::default() }.check().is_err());
        assert!(Config { ack_every: 0, ..Config::default() }.check().is_err());
        assert!(Config { initial_window: 0, ..Config::default() }.check().is_err());
    }
}
