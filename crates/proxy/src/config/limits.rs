//! `[limits]`: what the daemon may use, and whether connections beyond that pass or are refused.

use std::time::Duration;

use bentpipe_config::{Checks, InTable, Problem};
use bentpipe_kernel::leg::LegSettings;
use bentpipe_units::{ByteCount, Span};
use serde::Deserialize;

use super::change::key_effects;
use super::values::{Count, PerSecond};

/// An idle connection is not to be forgotten sooner than after 2 h 4 min (RFC 5382 §5, REQ-5: what a NAT owes
/// to TCP).
const IDLE: Duration = Duration::from_secs(124 * 60);
/// Half-closed connections that move nothing; a leg's outage may take longer and then counts.
const HALF_CLOSED: Duration = Duration::from_secs(10 * 60);
/// Connections that wait for their server. Each holds two descriptors for as long as connecting is tried.
const CONNECTING: usize = 4096;

/// `[limits]`: all keys have defaults that suit a host which does little else.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Connections at the same time; by default what
    /// [`budget::default_connections`](crate::budget::default_connections) says of the descriptors of the
    /// process.
    pub connections: Option<Count>,
    /// Connections of one client at the same time: of an IPv4 address, or of an IPv6 network of 64 bits. No
    /// limit by default.
    pub connections_per_client: Option<Count>,
    /// New connections per second, of all clients. No limit by default.
    pub connection_rate: Option<PerSecond>,
    /// New connections per second of one client, as for `connections_per_client`. No limit by default.
    pub connection_rate_per_client: Option<PerSecond>,
    /// New connections that may come at once after a pause, at each of the two rates; by default those of one
    /// second.
    pub burst: Option<PerSecond>,
    /// Connections whose server has not answered yet.
    pub connecting: Option<Count>,
    /// Memory that all connections together may take in the daemon's and the kernel's buffers; by default
    /// [`budget::default_buffered`](crate::budget::default_buffered).
    pub buffered: Option<ByteCount>,
    /// Memory that one connection may take, at least [`Limits::LEAST_BUFFERED`]; by default what the kernel's
    /// autotuning allows (`net.ipv4.tcp_rmem`, `net.ipv4.tcp_wmem`).
    pub buffered_per_connection: Option<ByteCount>,
    /// A connection on which nothing moves, not even keepalives, is reset after this time; 124 minutes by
    /// default.
    pub idle: Option<Span>,
    /// The same where one end has said that it has finished; 10 minutes by default.
    pub half_closed: Option<Span>,
    /// Whether new connections at a limit pass or are refused.
    pub at_limit: AtLimit,
}

key_effects!(Limits {
    connections: Now,
    connections_per_client: Now,
    connection_rate: Now,
    connection_rate_per_client: Now,
    burst: Now,
    connecting: Now,
    buffered: Now,
    // Of the kernel's buffers, those of connections that begin from now on.
    buffered_per_connection: NewConnections,
    idle: Now,
    half_closed: Now,
    at_limit: Now,
});

/// How many connections may begin in a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConnectionRates {
    /// Of all clients.
    pub all: Option<PerSecond>,
    /// Of one client.
    pub per_client: Option<PerSecond>,
    /// At once, after a pause.
    pub burst: Option<PerSecond>,
}

/// What becomes of new connections while a limit is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AtLimit {
    /// They are forwarded as if there were no proxy.
    #[default]
    Pass,
    /// They are reset at once.
    Refuse,
}

impl Limits {
    /// The least that one connection needs: six shares of 32 KiB, for the two buffers of each socket and for
    /// what is in flight between them in each direction.
    pub const LEAST_BUFFERED: ByteCount = ByteCount::new(Self::SHARES * (32 << 10));
    /// The parts that a connection's memory is divided into.
    pub const SHARES: u64 = 6;

    /// How many connections may begin in a second.
    pub fn rates(&self) -> ConnectionRates {
        let Self { connection_rate, connection_rate_per_client, burst, .. } = *self;
        ConnectionRates { all: connection_rate, per_client: connection_rate_per_client, burst }
    }

    /// Connections that may wait for their servers.
    pub(crate) fn connecting(&self) -> usize {
        self.connecting.map_or(CONNECTING, Count::get)
    }

    /// How long a connection may be idle; never less than `longest_outage`, in which it cannot but be idle.
    pub(crate) fn idle(&self, longest_outage: Duration) -> Duration {
        self.idle.map_or(IDLE.max(longest_outage), Span::get)
    }

    /// How long a half-closed connection may be idle.
    pub(crate) fn half_closed(&self, longest_outage: Duration) -> Duration {
        self.half_closed.map_or(HALF_CLOSED.max(longest_outage), Span::get)
    }

    /// A leg whose sockets' buffers take no more than their shares of a connection's memory.
    pub(crate) fn bound(&self, leg: LegSettings) -> LegSettings {
        let Some(share) = self.share() else { return leg };
        let at_most = |wanted: Option<ByteCount>| Some(wanted.map_or(share, |wanted| wanted.min(share)));
        LegSettings {
            send_buffer: at_most(leg.send_buffer),
            receive_buffer: at_most(leg.receive_buffer),
            ..leg
        }
    }

    /// What one of a connection's buffers may take: two sockets have two each, and what is in flight between
    /// them is one in each direction.
    pub fn share(&self) -> Option<ByteCount> {
        self.buffered_per_connection.map(|bytes| ByteCount::new(bytes.get() / Self::SHARES))
    }

    /// Checks them where some leg promises to survive `longest_outage`.
    pub(super) fn check(&self, longest_outage: Duration, checks: &mut Checks<'_>) {
        checks.check(&["limits.buffered_per_connection"], || self.check_memory().inside("limits"));
        checks
            .check(&["limits.burst", "limits.connection_rate", "limits.connection_rate_per_client"], || {
                self.rates().check().inside("limits")
            });
        for (key, span) in [("idle", self.idle), ("half_closed", self.half_closed)] {
            let own = format!("limits.{key}");
            let reads = [own.as_str(), "legs.*.survive_outage", "terrestrial.survive_outage"];
            checks.check(&reads, || check_patience(key, span, longest_outage).inside("limits"));
        }
    }

    fn check_memory(&self) -> Result<(), Problem> {
        let needed = Self::LEAST_BUFFERED;
        match self.buffered_per_connection.filter(|&bytes| bytes < needed) {
            Some(least) => Err(Problem::of(
                "buffered_per_connection",
                format!("\"{least}\" is too little to relay; write at least \"{needed}\""),
            )),
            None => Ok(()),
        }
    }
}

/// A connection must not be given up in an outage that its leg is to survive.
fn check_patience(key: &str, span: Option<Span>, longest_outage: Duration) -> Result<(), Problem> {
    let Some(span) = span.filter(|span| span.get() < longest_outage) else { return Ok(()) };
    let outage = Span(longest_outage);
    let message = format!(
        "\"{span}\" would end connections in an outage that a leg is to survive ({outage}); write at least that or \
         leave it out"
    );
    Err(Problem::of(key, message))
}

impl ConnectionRates {
    /// The longest time in which a burst must be allowed again.
    pub(crate) const REFILL: Duration = Duration::from_secs(60);

    /// The burst at this rate.
    pub(crate) fn burst_of(&self, rate: PerSecond) -> u32 {
        self.burst.unwrap_or(rate).get()
    }

    fn check(&self) -> Result<(), Problem> {
        let Some(burst) = self.burst else { return Ok(()) };
        let rates = [self.all, self.per_client].into_iter().flatten();
        let Some(slowest) = rates.map(PerSecond::get).min() else {
            let message =
                "there is no rate that it belongs to; write connection_rate or connection_rate_per_client";
            return Err(Problem::of("burst", message));
        };
        let most = u64::from(slowest) * Self::REFILL.as_secs();
        match u64::from(burst.get()) <= most {
            true => Ok(()),
            false => Err(Problem::of(
                "burst",
                format!(
                    "{} is more than {slowest} per second allow in a minute; write at most {most}",
                    burst.get()
                ),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    fn error(text: &str) -> String {
        let text = format!("[limits]\n{text}\n[legs.a]\ninterface = \"sat0\"\n");
        Config::parse("x", &text).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_burst_belongs_to_a_rate_and_is_allowed_again_within_a_minute() {
        assert!(error("burst = 5").contains(":2: limits.burst: there is no rate"), "{}", error("burst = 5"));
        assert_eq!(error("burst = 600\nconnection_rate_per_client = 10"), "");
        let error = error("connection_rate = 1000\nburst = 601\nconnection_rate_per_client = 10");
        assert!(
            error.contains(":3: limits.burst: 601 is more than 10 per second")
                && error.contains("at most 600"),
            "{error}"
        );
    }
}
