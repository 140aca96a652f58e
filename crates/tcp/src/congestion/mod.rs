//! Congestion control: how much may be on its way, and how fast it leaves.
//!
//! A new algorithm is a file beside this one that implements [`CongestionControl`], and a line in
//! [`Algorithm`]. Windows are in bytes. Powers and roots come from `libm`, not from the platform, so that a
//! run gives the same bits everywhere.

mod bbr;
mod bbr3;
pub mod c_core;
mod cubic;
mod custom;
mod explicit;
mod hybla;
mod hystart;
mod new_reno;
mod slow_start;
#[cfg(test)]
mod test_path;
mod xcp;

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use bentpipe_units::{Rate, Time};

use crate::RateSample;

pub use bbr::Bbr;
pub use bbr3::Bbr3;
pub use cubic::Cubic;
pub use custom::{ControlFactory, CustomName};
pub use explicit::Explicit;
pub use hybla::{Components, Hybla, PublishedHybla, RTT0};
pub use new_reno::NewReno;
pub use slow_start::SlowStart;
pub use xcp::{Xcp, XcpSender};

/// No threshold yet: slow start goes on until the first loss (RFC 5681 §3.1: "arbitrarily high").
pub const NO_SSTHRESH: u64 = u64::MAX;

/// The smallest window after a loss, in segments (RFC 5681, equation 4).
pub const MIN_SSTHRESH_SEGMENTS: u64 = 2;

/// What an acknowledgement says to the congestion control. Only acknowledgements of new data are told.
#[derive(Debug, Clone, Copy)]
pub struct Acked {
    /// When it arrived.
    pub now: Time,
    /// Bytes that it is the first to report as received, cumulatively or by SACK.
    pub bytes: u64,
    /// The round-trip time that it measured, if it did.
    pub rtt: Option<Duration>,
    /// The smoothed round-trip time (RFC 6298); zero before the first measurement.
    pub srtt: Duration,
    /// The smallest round-trip time of the connection; zero before the first measurement.
    pub min_rtt: Duration,
    /// Bytes believed to be in the network before it arrived.
    pub in_flight: u64,
    /// The window, not the application or the receiver, was what held the sender back (RFC 7661 §4.4): only
    /// then does an acknowledgement justify a larger one.
    pub cwnd_limited: bool,
    /// Losses are being repaired, or suspected because the acknowledgement is a duplicate with SACK news; the
    /// standard algorithms keep their window meanwhile.
    pub in_recovery: bool,
}

/// What a sender has in flight after an acknowledgement.
#[derive(Debug, Clone, Copy)]
pub struct Flight {
    /// Bytes believed to be in the network.
    pub in_flight: u64,
    /// Bytes that have arrived since the connection began, a segment for each duplicate acknowledgement
    /// included.
    pub delivered: u64,
    /// Bytes that have been declared lost since the connection began.
    pub lost: u64,
}

/// How a sender repairs losses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Phase {
    /// It does not.
    #[default]
    Open,
    /// Fast recovery.
    Recovery,
    /// After an expiry of the retransmission timer.
    Timeout,
}

/// What an acknowledgement, of new data or not, says of the rate of the path.
#[derive(Debug, Clone, Copy, Default)]
pub struct Delivery {
    /// When it arrived.
    pub now: Time,
    /// Bytes that it is the first to report as received.
    pub bytes: u64,
    /// Bytes that have arrived since the connection began.
    pub delivered: u64,
    /// Bytes that it has shown to be lost.
    pub lost: u64,
    /// Bytes believed to be in the network after it, and before it.
    pub in_flight: u64,
    /// See `in_flight`.
    pub prior_in_flight: u64,
    /// The round-trip time that it measured, if it did.
    pub rtt: Option<Duration>,
    /// The smoothed round-trip time (RFC 6298); zero before the first measurement.
    pub srtt: Duration,
    /// Whether losses are being repaired.
    pub phase: Phase,
    /// The delivery rate, where it can be told.
    pub sample: Option<RateSample>,
}

/// What a sender tells the routers of its path in a segment, and requests from them (Katabi and others 2002,
/// §3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The smoothed round-trip time; zero before the first measurement.
    pub rtt: Duration,
    /// X: the time between segments as long as this one, at a window in each round trip.
    pub spacing: Duration,
    /// The change of rate that is requested for this segment, bytes per second; routers only lower it.
    pub feedback: i32,
}

/// The routers' answer to the requests that arrived since the last acknowledgement.
#[derive(Debug, Clone, Copy)]
pub struct Feedback {
    /// When it arrived.
    pub now: Time,
    /// The change of rate, bytes per second.
    pub change: i32,
    /// The smoothed round-trip time; zero before the first measurement.
    pub srtt: Duration,
    /// Bytes that the application has written and the receiver has room for, from the first unacknowledged
    /// one on: less than the window if that is not what holds the sender back.
    pub demand: u64,
}

/// The round trips of a sender with an explicit rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundTrips {
    /// The shortest of the last moment, 50 ms or so.
    pub recent: Duration,
    /// The shortest of the last 15 to 30 s.
    pub shortest: Duration,
    /// How much longer the way to the receiver alone has been lately than its shortest of the last 15 to 30
    /// s, by its timestamps (RFC 6817 §3.4.1); `None` without timestamps, or where they do not count
    /// milliseconds.
    pub forward: Option<Duration>,
}

impl RoundTrips {
    /// How long acknowledgements wait on their way back; zero where timestamps do not tell.
    pub fn way_back(&self) -> Duration {
        let beyond = self.recent.saturating_sub(self.shortest);
        self.forward.map_or(Duration::ZERO, |forward| beyond.saturating_sub(forward))
    }
}

/// A congestion control algorithm, one for each connection.
#[allow(unused_variables, reason = "what an algorithm does not need it ignores")]
pub trait CongestionControl: fmt::Debug + Send {
    /// The congestion window, bytes.
    fn cwnd(&self) -> u64;

    /// Bytes that may be in flight: the window, unless the algorithm spreads its reduction, or paces and only
    /// needs room.
    fn flight_limit(&self) -> u64 {
        self.cwnd()
    }

    /// The slow-start threshold, bytes; [`NO_SSTHRESH`] before there is one.
    fn ssthresh(&self) -> u64;

    /// The rate at which segments are to be spaced; `None` sends at once as much as the window allows. `srtt`
    /// is zero before the first measurement.
    fn pacing_rate(&self, srtt: Duration) -> Option<Rate> {
        None
    }

    /// The handshake is over and has measured `rtt`, unless its SYN was repeated (RFC 6298 §3).
    fn on_established(&mut self, now: Time, rtt: Option<Duration>) {}

    /// A segment has been sent. `after_pause`: nothing was in flight before. Only for those that
    /// [count packets](Algorithm::counts_packets).
    fn on_sent(&mut self, now: Time, after_pause: bool) {}

    /// The request that the next segment, of `segment` payload bytes, carries to the routers of its path,
    /// where both sides have agreed to; `None` is none. `demand` is [`Feedback::demand`].
    fn request(&self, segment: u64, srtt: Duration, demand: u64) -> Option<Request> {
        None
    }

    /// An acknowledgement, of new data or not, brings feedback; before [`on_ack`](Self::on_ack) of the same
    /// one.
    fn on_feedback(&mut self, feedback: &Feedback) {}

    /// An acknowledgement carries this timestamp of the receiver, milliseconds of its clock (RFC 7323 §3);
    /// before [`on_ack`](Self::on_ack) of the same one.
    fn on_timestamp(&mut self, now: Time, value: u32) {}

    /// An acknowledgement, of new data or not, has left this in flight; before [`on_ack`](Self::on_ack) of
    /// the same one. Only for those that [count packets](Algorithm::counts_packets).
    fn on_flight(&mut self, flight: &Flight) {}

    /// The rate controller sets this rate on the wire, where `header` bytes go with each segment, or takes it
    /// back. An algorithm that finds its rate by itself ignores it.
    fn set_rate(&mut self, rate: Option<Rate>, header: u64) {}

    /// The round trips that it reports to the rate controller; `None` before the first measurement.
    fn round_trips(&self) -> Option<RoundTrips> {
        None
    }

    /// An acknowledgement, of new data or not, has been processed; before [`on_ack`](Self::on_ack) of the
    /// same one. Only for those that [sample the rate](Algorithm::samples_rate).
    fn on_delivery(&mut self, delivery: &Delivery) {}

    /// It keeps the flight small by intent: what is delivered meanwhile says nothing of the path's rate.
    fn holds_back(&self) -> bool {
        false
    }

    /// Whether the loss recovery may spread the reduction of this window over a round trip (RFC 9937). A
    /// window that others change during the repair, too, would be held where the repair found it.
    fn is_reduced_proportionally(&self) -> bool {
        true
    }

    /// Data is sent again after the application had nothing to send. Only for those that
    /// [sample the rate](Algorithm::samples_rate).
    fn on_restart(&mut self, now: Time) {}

    /// New data was acknowledged.
    fn on_ack(&mut self, ack: &Acked);

    /// A duplicate acknowledgement that reports nothing as received; after [`on_flight`](Self::on_flight) of
    /// the same one.
    fn on_duplicate(&mut self, now: Time) {}

    /// Fast recovery begins with `in_flight` bytes outstanding (RFC 5681 §3.2 step 2, RFC 6675 §5 step 4.2).
    /// Afterwards the window is what may be in flight during the repair.
    fn on_loss(&mut self, now: Time, in_flight: u64);

    /// Everything that was outstanding when recovery began is acknowledged.
    fn on_recovery_end(&mut self, now: Time) {}

    /// The retransmission timer expired with `in_flight` bytes outstanding. `first` is false where the
    /// segment had been retransmitted by the timer before: the threshold is then kept (RFC 5681 §3.1).
    fn on_timeout(&mut self, now: Time, in_flight: u64, first: bool);

    /// The last losses were none; before [`set_window`](Self::set_window) gives the window back.
    fn on_spurious(&mut self) {}

    /// Window and threshold are set from outside, where a reduction was spurious, or where a timeout has left
    /// segments in flight. An algorithm that sets its window by itself ignores it.
    fn set_window(&mut self, cwnd: u64, ssthresh: u64) {}

    /// Nothing was sent for longer than a retransmission timeout: the window is no longer known to be right
    /// (RFC 5681 §4.1).
    fn on_idle(&mut self, now: Time);
}

/// The parameters of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    /// Payload bytes of a full segment.
    pub mss: u64,
    /// The initial window, bytes (RFC 6928: ten segments).
    pub initial_window: u64,
    /// How many segments one acknowledgement may count for in slow start (RFC 3465's L): 1 is RFC 5681, 2 is
    /// RFC 3465, `None` is Linux.
    pub byte_counting_limit: Option<u32>,
    /// CUBIC has HyStart.
    pub hystart: bool,
    /// CUBIC grows as Linux' does.
    pub linux_cubic: bool,
}

/// The algorithms by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// RFC 5681's slow start and congestion avoidance.
    NewReno,
    /// RFC 9438.
    Cubic,
    /// BBR, version 1.
    Bbr,
    /// BBR, version 3.
    Bbr3,
    /// Hybla, with those of its components that are switched on.
    Hybla(Components),
    /// XCP or P-XCP: routers set the window.
    Xcp(XcpSender),
    /// A rate controller sets the rate of each connection.
    Explicit {
        /// Its share in proportion to that of others.
        weight: NonZeroU32,
    },
    /// One from outside of this crate: [`Endpoint::with_control`](crate::Endpoint::with_control) gives it.
    Custom(CustomName),
}

impl Algorithm {
    /// The names that [`FromStr`] takes.
    pub const NAMES: [&'static str; 8] =
        ["newreno", "cubic", "bbr", "bbr3", "hybla", "xcp", "p-xcp", "explicit"];

    /// A controller for a new connection. In the place of one from outside, which the endpoint has, it is the
    /// standard's.
    pub fn build(self, parameters: Parameters) -> Box<dyn CongestionControl> {
        match self {
            Algorithm::NewReno | Algorithm::Custom(_) => Box::new(NewReno::new(parameters)),
            Algorithm::Cubic => Box::new(Cubic::new(parameters)),
            Algorithm::Bbr => Box::new(Bbr::new(parameters)),
            Algorithm::Bbr3 => Box::new(Bbr3::new(parameters)),
            Algorithm::Hybla(components) => components.build(parameters),
            Algorithm::Xcp(sender) => Box::new(Xcp::new(parameters, sender)),
            Algorithm::Explicit { .. } => Box::new(Explicit::new(parameters)),
        }
    }

    /// Whether it wants the routers' feedback, which the handshake must then offer.
    pub fn wants_feedback(self) -> bool {
        matches!(self, Algorithm::Xcp(_))
    }

    /// Whether it spreads the reduction of its window after a loss by itself, or does not reduce it.
    pub fn spreads_reduction(self) -> bool {
        match self {
            Algorithm::Explicit { .. } | Algorithm::Bbr | Algorithm::Bbr3 => true,
            Algorithm::Hybla(components) => !components.are_published(),
            _ => false,
        }
    }

    /// Whether it needs [`on_sent`](CongestionControl::on_sent) and
    /// [`on_flight`](CongestionControl::on_flight), which are a call for each packet: it works on the
    /// counters that Linux keeps.
    pub fn counts_packets(self) -> bool {
        matches!(self, Algorithm::Hybla(components) if !components.are_published())
    }

    /// Whether it needs [`on_delivery`](CongestionControl::on_delivery), for which the sender keeps a record
    /// of each segment.
    pub fn samples_rate(self) -> bool {
        matches!(self, Algorithm::Bbr | Algorithm::Bbr3)
    }

    /// The weight of its share, where a rate controller sets its rate.
    pub fn weight(self) -> Option<NonZeroU32> {
        if let Algorithm::Explicit { weight } = self { Some(weight) } else { None }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Algorithm::NewReno => "newreno",
            Algorithm::Cubic => "cubic",
            Algorithm::Bbr => "bbr",
            Algorithm::Bbr3 => "bbr3",
            Algorithm::Hybla(_) => "hybla",
            Algorithm::Xcp(XcpSender::Xcp) => "xcp",
            Algorithm::Xcp(XcpSender::PXcp) => "p-xcp",
            Algorithm::Explicit { .. } => "explicit",
            Algorithm::Custom(name) => return f.pad(&format!("{}{}", CustomName::PREFIX, name.as_str())),
        })
    }
}

/// A name that no algorithm has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" is not a congestion control: choose newreno, cubic, bbr, bbr3, hybla, xcp, p-xcp or explicit"
)]
pub struct UnknownAlgorithm(String);

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, UnknownAlgorithm> {
        match name {
            "newreno" => Ok(Algorithm::NewReno),
            "cubic" => Ok(Algorithm::Cubic),
            "bbr" => Ok(Algorithm::Bbr),
            "bbr3" => Ok(Algorithm::Bbr3),
            "hybla" => Ok(Algorithm::Hybla(Components::ALL)),
            "xcp" => Ok(Algorithm::Xcp(XcpSender::Xcp)),
            "p-xcp" => Ok(Algorithm::Xcp(XcpSender::PXcp)),
            "explicit" => Ok(Algorithm::Explicit { weight: NonZeroU32::MIN }),
            _ => match name.strip_prefix(CustomName::PREFIX).map(str::parse) {
                Some(Ok(name)) => Ok(Algorithm::Custom(name)),
                _ => Err(UnknownAlgorithm(name.to_owned())),
            },
        }
    }
}

/// Microseconds, for the algorithms in C: nothing stays nothing, and no time is longer than nine minutes (2²⁹
/// µs).
fn micros(time: Duration) -> u32 {
    time.as_nanos().div_ceil(1000).min(1 << 29) as u32
}

/// Microseconds of the caller's time line.
fn micros_of(time: Time) -> u64 {
    time.as_nanos() / 1000
}
