//! The reports about a daemon, as they appear in its status.

use serde::{Deserialize, Serialize};

/// One side of the gateway at this moment. "Sent" is from the gateway into the leg.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LegReport {
    /// Its name in the configuration; `terrestrial` for every interface that is not a satellite leg's.
    pub name: String,
    /// Its interface; none for the terrestrial leg.
    pub interface: Option<String>,
    /// The congestion control of its sockets, as configured (`explicit`, not the name of a copy in the
    /// kernel).
    pub congestion: Option<String>,
    /// Its configured rate, bit/s.
    pub rate_bps: Option<u64>,
    /// Connections with an end on this leg.
    pub flows: u64,
    /// Those of them on which something moved, or waited for an acknowledgement, within the last second or
    /// so, at this end or at the other.
    pub active: u64,
    /// Payload acknowledged by the leg's far ends within the last second, bit/s.
    pub sent_bps: f64,
    /// Payload that came from there, bit/s.
    pub received_bps: f64,
    /// Payload acknowledged by the leg's far ends since the start. An end of a connection that is
    /// acknowledged counts as a byte, as it does in its sequence numbers (RFC 9293 §3.4).
    pub sent_bytes: u64,
    /// Payload that came from there since the start; here, too, the end is a byte.
    pub received_bytes: u64,
    /// Segments with data sent since the start, retransmissions included.
    pub segments: u64,
    /// Segments sent again since the start, SYNs as well.
    pub retransmissions: u64,
    /// Expiries of retransmission timers since the start.
    pub timeouts: u64,
    /// The share of segments that were sent again, over the last ten seconds or so; none if none were sent.
    pub loss: Option<f64>,
    /// Smoothed round-trip time, s: the mean of the active connections'.
    pub srtt_s: Option<f64>,
    /// The shortest round-trip time that any of them knows, s.
    pub min_rtt_s: Option<f64>,
    /// For how long nothing has been heard on any connection although something is waited for, s; none while
    /// the leg works or rests. It takes a second and two round trips until silence is an outage. Where the
    /// only connection that waits is one whose peer has died, the leg cannot be told from one that is out.
    pub outage_s: Option<f64>,
    /// The rate controller's estimate, if the leg has explicit rates.
    pub explicit: Option<ExplicitReport>,
}

/// The rate controller's estimate of a leg.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct ExplicitReport {
    /// The estimated capacity of the link, bit/s on the wire.
    pub capacity_bps: f64,
    /// How long a packet waits in the link's queue, s.
    pub queue_s: f64,
    /// Connections with data in flight.
    pub active: u64,
}

/// One connection and its two halves.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlowReport {
    /// A number that no other flow of this daemon has at the same time.
    pub id: u64,
    /// The client's address and port.
    pub client: String,
    /// The server's address and port.
    pub server: String,
    /// Its weight among the connections that share a leg.
    pub weight: u8,
    /// Its phase.
    pub phase: FlowPhase,
    /// Since it was accepted, s.
    pub age_s: f64,
    /// Since something last passed through, s, to a second or so.
    pub idle_s: f64,
    /// Bytes written to the server so far.
    pub up_bytes: u64,
    /// Bytes written to the client so far.
    pub down_bytes: u64,
    /// Bytes that the server acknowledged in the last second or so, bit/s.
    pub up_bps: f64,
    /// Bytes that the client acknowledged in the last second or so, bit/s.
    pub down_bps: f64,
    /// Memory in buffers, the kernel's included.
    pub buffered_bytes: u64,
    /// The half that faces the client.
    pub client_end: EndReport,
    /// The half that faces the server.
    pub server_end: EndReport,
}

/// The phase of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FlowPhase {
    /// The server has not answered yet.
    Connecting,
    /// Bytes pass.
    Relaying,
    /// Both ends have finished; the last bytes are not acknowledged yet.
    Draining,
}

/// One half of a flow: a TCP connection of this host, as `TCP_INFO` has it (tcp(7)).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct EndReport {
    /// The leg that it faces.
    pub leg: String,
    /// Smoothed round-trip time, s (RFC 6298 §2).
    pub srtt_s: f64,
    /// The shortest round-trip time of the last minutes, s; zero while none has been measured.
    pub min_rtt_s: f64,
    /// The retransmission timeout, s (RFC 6298).
    pub rto_s: f64,
    /// Expiries of it in a row.
    pub backoff: u32,
    /// Congestion window, segments.
    pub cwnd: u32,
    /// Slow-start threshold, segments; none until there is one.
    pub ssthresh: Option<u32>,
    /// Payload of a full segment, bytes.
    pub mss: u32,
    /// Segments sent and not acknowledged.
    pub unacked: u32,
    /// Bytes that have not been sent once.
    pub unsent_bytes: u32,
    /// Segments sent again since the beginning.
    pub retransmissions: u32,
    /// Segments with data sent since the beginning, retransmissions included.
    pub segments: u32,
    /// Expiries of the retransmission timer since the beginning.
    pub timeouts: u32,
    /// The pace, bit/s; none without pacing.
    pub pacing_bps: Option<u64>,
    /// What last arrived at the far end, bit/s.
    pub delivery_bps: u64,
}

/// The gain of splitting at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Gain {
    /// How many times faster the active connections are than they would be end to end; none while nothing
    /// tells.
    pub ratio: Option<f64>,
    /// What the connections carry that the estimate is made of, bit/s: what this gateway sends into satellite
    /// legs. Of what comes from there it does not know the losses.
    pub actual_bps: f64,
    /// What they would carry end to end, an estimate by CUBIC's response function (RFC 9438 §5.1 and 5.2) at
    /// the loss and the round trip that are measured, bit/s. Where no loss has been measured within the last
    /// ten seconds it is the actual rate.
    pub end_to_end_bps: f64,
}

/// How far draining has come: new connections pass, and those that are split go on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Drain {
    /// Until those that are left are reset, s; none if they may take their time.
    pub left_s: Option<f64>,
}
