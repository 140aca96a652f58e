//! The reports about a daemon, as they appear in its status.

use serde::{Deserialize, Serialize};

pub use crate::intercept::counters::ForwardedBytes;

/// One side of the gateway at this moment. "Sent" is from the gateway into the leg.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LegReport {
    /// Its name in the configuration; `terrestrial` for every interface that is not a satellite leg's.
    pub name: String,
    /// Its interface; none for the terrestrial leg.
    pub interface: Option<String>,
    /// `waiting for interface NAME` while that does not exist: until then nothing crosses the leg.
    #[serde(default)]
    pub waiting: Option<String>,
    /// The congestion control that its sockets have, which may be another than the configured one, by the
    /// name that configurations have for it (`explicit`, not the name of a copy in the kernel).
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
    /// The part of the round-trip time that neither the shortest one nor the queue of `explicit` explains, s:
    /// acknowledgements that wait behind what comes from the leg. None where the queue is not estimated.
    #[serde(default)]
    pub return_queue_s: Option<f64>,
    /// What is forwarded over its interface, unsplit; none for the terrestrial leg.
    #[serde(default)]
    pub forwarded: Option<ForwardedReport>,
}

/// Packets that are forwarded over a leg's interface: all that this host neither splits nor sends or receives
/// itself. IP bytes, headers included; the bytes of split connections are payload.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct ForwardedReport {
    /// Into the leg within the last second or so, bit/s.
    pub sent_bps: f64,
    /// From it, bit/s.
    pub received_bps: f64,
    /// Into the leg since the start.
    pub sent_bytes: ForwardedBytes,
    /// From it.
    pub received_bytes: ForwardedBytes,
}

/// New connections over the satellite legs by what became of them, as the rules count them: a SYN that is
/// repeated counts again.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PolicyReport {
    /// Every verdict, in a fixed order.
    pub verdicts: Vec<VerdictReport>,
    /// The operator's rules, in their order.
    pub rules: Vec<RuleReport>,
}

/// A verdict, and how often it was given since the start.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct VerdictReport {
    /// `split`: given to the daemon. By a rule: `pass`, `snoop`, `bundle`, and `reject`, which counts
    /// datagrams. At a limit, passed or refused as `limits.at_limit` says: `limit` (connections, connecting,
    /// memory, descriptors), `client_limit`, `rate`, `client_rate`. Passed: `not_ready` (draining, bypass, or
    /// no response), `declined` (by the daemon, after it had the SYN), `translated` (its destination is),
    /// `unreadable` (a fragment, or IPv6 with extension headers), `link_local`, `bridged`, `node_absent` (a
    /// rule says `bundle`, and nobody listens).
    pub verdict: String,
    /// Connections; datagrams of `reject`.
    pub count: u64,
}

/// A rule, and what it has matched.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RuleReport {
    /// Its place in the configuration; the first is 1.
    pub place: u64,
    /// What it does.
    pub action: String,
    /// Its conditions.
    pub conditions: String,
    /// Its comment.
    pub comment: Option<String>,
    /// Connections, or rejected datagrams, since the start or since there is this rule.
    pub matched: u64,
}

/// How much of a limit is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Use {
    /// In use now.
    pub used: u64,
    /// The limit; none if there is none.
    pub most: Option<u64>,
}

/// The configured limits, and their use.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LimitsReport {
    /// `limits.connections`, and open flows.
    pub connections: Use,
    /// `limits.connections_per_client`, and the flows of the client with most.
    pub connections_per_client: Use,
    /// `limits.connecting`, and flows that wait for their server.
    pub connecting: Use,
    /// `limits.buffered`, bytes.
    pub buffered_bytes: Use,
    /// `limits.connection_rate`, and new connections within the last second or so, per second.
    pub connection_rate: Use,
    /// `limits.connection_rate_per_client`, per second.
    pub connection_rate_per_client: Option<u64>,
    /// What becomes of new connections at a limit: `pass` or `refuse`.
    pub at_limit: String,
}

/// The rate controller's estimate of a leg.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct ExplicitReport {
    /// The estimated capacity of the link, bit/s on the wire.
    pub capacity_bps: f64,
    /// How long a packet waits in the link's queue, s.
    pub queue_s: f64,
    /// What leaves over the leg beside the data of its connections, bit/s with the headers of IP. An older
    /// daemon does not say it.
    #[serde(default)]
    pub cross_traffic_bps: f64,
    /// Packets of it that were marked CE since the daemon started or was upgraded, because more left than
    /// may. An older daemon does not say it.
    #[serde(default)]
    pub cross_traffic_marked: u64,
    /// Those that were dropped.
    #[serde(default)]
    pub cross_traffic_dropped: u64,
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

/// The gain of splitting: for what was sent into satellite legs within the last half minute, the time that it
/// would have taken end to end over the time that it took.
///
/// The time end to end is an estimate: slow start from ten segments (RFC 6928), then CUBIC's response
/// function (RFC 9438 §5.1 and 5.2) at the measured loss, both at the shortest round trips of both legs, and
/// never faster than the connection is now. Of what comes from a satellite this gateway does not know the
/// losses; it is left out. So is everything within an outage and ten seconds after it.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Gain {
    /// How many times faster; none where it cannot be told.
    pub ratio: Option<f64>,
    /// Why it cannot, or that it can.
    pub state: GainState,
    /// What was sent within the time that is compared, bit/s.
    pub actual_bps: f64,
    /// What would have been sent end to end, bit/s.
    pub end_to_end_bps: f64,
    /// The share of the time end to end that would have been slow start; none without `ratio`.
    pub start_up: Option<f64>,
}

/// Whether the gain can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GainState {
    /// It can.
    Measured,
    /// Nothing was sent into a satellite leg within the last half minute.
    #[default]
    NothingSent,
    /// Too little was sent since then to tell.
    TooLittle,
    /// A leg is out, or was so until a few seconds ago.
    Outage,
}

impl GainState {
    /// What to say in the place of the gain; `None` if it can be told.
    pub fn reason(self) -> Option<&'static str> {
        match self {
            Self::Measured => None,
            Self::NothingSent => Some("not measurable: nothing is being sent to the satellite"),
            Self::TooLittle => Some("not measurable yet: too little has been sent to the satellite"),
            Self::Outage => Some("not measurable: the satellite leg is out, or was until a few seconds ago"),
        }
    }
}

/// How far draining has come: new connections pass, and those that are split go on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Drain {
    /// Until those that are left are reset, s; none if they may take their time.
    pub left_s: Option<f64>,
}
