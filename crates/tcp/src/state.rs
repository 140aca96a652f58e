//! An endpoint as others see it: its state, how it ended, its counters, its inner variables.

use std::time::Duration;

use bentpipe_units::Time;

use crate::congestion::RoundTrips;

/// The state of the connection. An established one that has ended in order stays so, to answer a repeated
/// FIN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Waiting for a SYN.
    Listen,
    /// A SYN is out.
    SynSent,
    /// A SYN has arrived and is answered.
    SynReceived,
    /// Data may flow.
    Established,
    /// It has ended, in the way that [`Endpoint::end`](crate::Endpoint::end) says.
    Closed,
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// In order: both sides have sent everything and have it acknowledged.
    Finished,
    /// No answer to any SYN.
    ConnectTimedOut,
    /// The other side answered the SYN with a reset.
    Refused,
    /// Retransmissions, or window probes, were not answered for too long.
    TimedOut,
    /// The other side reset the connection.
    Reset,
    /// This side's application reset it.
    Aborted,
}

/// Counters of an endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// SYNs sent, answers to SYNs included.
    pub syns: u64,
    /// Segments with data or FIN sent, retransmissions included.
    pub segments: u64,
    /// Payload bytes sent, retransmissions included.
    pub bytes_sent: u64,
    /// Payload bytes acknowledged by the other side.
    pub bytes_acknowledged: u64,
    /// Segments sent again.
    pub retransmissions: u64,
    /// Expiries of the retransmission timer with data outstanding.
    pub timeouts: u64,
    /// Fast recoveries.
    pub recoveries: u64,
    /// Payload bytes that the application has read.
    pub bytes_read: u64,
    /// Payload bytes that arrived more than once.
    pub duplicate_bytes: u64,
    /// When the handshake was over.
    pub established_at: Option<Time>,
    /// When the connection ended.
    pub ended_at: Option<Time>,
}

/// The report of a sender with an explicit rate to the rate controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reported {
    /// The time of the report: the last acknowledgement, or the first data after a pause.
    pub at: Time,
    /// Bytes on the wire sent, retransmissions included, with the headers of IP and TCP.
    pub sent: u64,
    /// Bytes on the wire that have arrived, as if in full segments.
    pub delivered: u64,
    /// Bytes on the wire that were declared lost, as if in full segments.
    pub lost: u64,
    /// Whether something is in flight.
    pub in_flight: bool,
    /// The round trips; nothing before the first measurement.
    pub round_trips: Option<RoundTrips>,
    /// Its window, not its rate or lack of data, held it back before that.
    pub window_limited: bool,
    /// There is something to send, or to send again, and the other side has room for it.
    pub backlogged: bool,
}

/// TCP's inner variables (PSATS09 §4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variables {
    /// The congestion window, bytes.
    pub cwnd: u64,
    /// The slow-start threshold, bytes; [`NO_SSTHRESH`](crate::congestion::NO_SSTHRESH) before there is one.
    pub ssthresh: u64,
    /// The smoothed round-trip time; zero before the first measurement.
    pub srtt: Duration,
    /// Its deviation (RFC 6298: RTTVAR); zero before the first measurement.
    pub rttvar: Duration,
    /// The smallest round-trip time; zero before the first measurement.
    pub min_rtt: Duration,
    /// The retransmission timeout, backoff included.
    pub rto: Duration,
    /// Expiries since the last measurement of the round trip.
    pub backoff: u32,
    /// Bytes believed to be in the network.
    pub in_flight: u64,
    /// Losses are being repaired.
    pub recovering: bool,
}
