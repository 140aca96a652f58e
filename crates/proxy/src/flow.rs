//! A flow: two sockets, two directions, and the ways in which it ends.
//!
//! ```text
//! connecting ──► relaying ──► draining ──► finished
//!      └────────────┴────────────┴───────► broken: both ends see a reset
//! ```
//!
//! *Draining* begins when both directions have ended in order. The descriptors stay open until the kernel's
//! own state is `CLOSE` on both sockets, which it is in TIME-WAIT and after LAST-ACK: until then the leg's
//! user timeout decides how long the last bytes are tried through an outage. Closed earlier, they would be an
//! orphan's, and soon given up.

mod access_log;
mod telemetry;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bentpipe_kernel::Weight;
use bentpipe_kernel::sockopt::{buffered, take_error, unacknowledged};
use bentpipe_kernel::tcp_info::{State, tcp_info};
use bentpipe_legs::{LegId, Legs};
use rustix::event::epoll::EventFlags;
use serde::{Deserialize, Serialize, Serializer};

use crate::admission::{AdmissionControl, Permit};
use crate::config::Handshake;
use crate::connect::upstream::Endpoints;
use crate::relay::pool::BufferPool;
use crate::relay::{Channel, Failure, Progress, RelaySocket};
use crate::snapshot;
use crate::telemetry::{FlowPhase, FlowStats};
pub(crate) use crate::types::Side;
use crate::types::leg_pair::LegPair;

/// What a flow does that nothing moves on.
const IDLE: &str = "waiting";

/// An intercepted connection and its other half.
#[derive(Debug)]
pub(crate) struct Flow {
    state: FlowState,
    route: Route,
    permit: Permit,
    /// Its part in the statistics of its legs.
    account: Option<FlowStats>,
    /// On the worker's list of flows that have more to do.
    pub(crate) queued: bool,
    /// On the worker's list of draining flows.
    pub(crate) watched: bool,
    /// Which of its ends are among those that the worker probes.
    probed: [bool; 2],
}

/// What of a flow goes from process to process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FlowState {
    ends: Endpoints,
    #[serde(with = "snapshot::instant")]
    since: Instant,
    client: RelaySocket,
    server: RelaySocket,
    /// From the client to the server.
    up: Channel,
    /// From the server to the client.
    down: Channel,
    phase: FlowPhase,
    #[serde(default)]
    handshake: Handshake,
    /// The end that has closed its direction first.
    #[serde(default)]
    closed_first: Option<Side>,
    #[serde(default)]
    inspected: Inspected,
}

/// From which leg to which it goes.
#[derive(Debug, Clone)]
pub(crate) struct Route {
    pub(crate) pair: LegPair,
    pub(crate) legs: Arc<Legs>,
}

/// A route by the names of its legs, which another process knows too.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RouteNames {
    /// The satellite legs of the client and of the server; `None` is the terrestrial leg.
    client: Option<String>,
    server: Option<String>,
    weight: u16,
    port: u16,
}

/// Whole seconds on the worker's clock, from far above 0, so that what began before it has its place there,
/// too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Seconds(pub(crate) u32);

/// How long a flow may be idle.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    pub(crate) idle: Duration,
    pub(crate) half_closed: Duration,
}

/// What an inspection found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inspection {
    pub(crate) memory_before: usize,
    pub(crate) memory: usize,
    pub(crate) expired: bool,
}

/// The results of the last inspection.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Inspected {
    bytes: u64,
    /// Written and not acknowledged when the flow's time was last up.
    unacknowledged: usize,
    /// Segments that both sockets had received once the flow had become idle.
    segments: Option<u32>,
    #[serde(skip)]
    memory: usize,
    /// On the clock of the worker that has it.
    #[serde(skip)]
    idle_since: Seconds,
    /// Seconds without movement while no worker has it; `None` where it has not been inspected yet.
    idle_for: Option<u32>,
}

/// What the worker does with a flow after it has been polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Wait for epoll.
    Waiting,
    /// Another turn, after the other flows.
    More,
    /// Wait for epoll, and look again from time to time.
    Draining,
    /// Close it; nothing will be sent.
    Finished,
}

/// Why a flow is reset at both ends.
#[derive(Debug)]
pub(crate) struct FlowError {
    side: Side,
    doing: &'static str,
    error: io::Error,
}

impl Flow {
    /// A flow whose server has been asked, with the first `sent` bytes of the client's in the SYN.
    pub(crate) fn new(
        ends: Endpoints,
        route: Route,
        mut client: RelaySocket,
        mut server: RelaySocket,
        sent: u64,
        permit: Permit,
    ) -> Self {
        let LegPair { client: client_leg, server: server_leg, weight, .. } = route.pair;
        for (end, leg) in [(&mut client, client_leg), (&mut server, server_leg)] {
            end.paced = route.legs.get(leg).add(end.socket.shared(), weight);
        }
        let state = FlowState {
            ends,
            since: Instant::now(),
            client,
            server,
            up: Channel::after(sent),
            down: Channel::default(),
            phase: FlowPhase::Connecting,
            handshake: Handshake::Early,
            closed_first: None,
            inspected: Inspected::default(),
        };
        Self { state, route, permit, account: None, queued: false, watched: false, probed: [false; 2] }
    }

    /// What goes to another process, which reads it as names and state.
    pub(crate) fn snapshot(&self) -> (&Route, &FlowState) {
        (&self.route, &self.state)
    }

    /// A flow of another process. It does nothing with its sockets yet.
    pub(crate) fn resume(
        route: &RouteNames,
        state: FlowState,
        legs: &Arc<Legs>,
        admission: &Arc<AdmissionControl>,
    ) -> Self {
        let permit = admission.readmit(state.ends.client.ip(), state.phase == FlowPhase::Connecting);
        Self {
            state,
            route: route.resolve(legs),
            permit,
            account: None,
            queued: false,
            watched: false,
            probed: [false; 2],
        }
    }

    /// Goes to another worker, whose clock is another one: on the way the time since which it has been idle
    /// is how long that is.
    pub(crate) fn stop_clock(&mut self, now: Seconds) {
        let seen = &mut self.state.inspected;
        (seen.idle_since, seen.idle_for) = match seen.idle_since {
            Seconds(0) => (Seconds::default(), None),
            since => (Seconds::default(), Some(now.0.saturating_sub(since.0))),
        };
    }

    /// The other end of [`Flow::stop_clock`].
    pub(crate) fn resume_clock(&mut self, now: Seconds) {
        if let Some(length) = self.state.inspected.idle_for.take() {
            self.state.inspected.idle_since = Seconds(now.0.saturating_sub(length).max(1));
        }
    }

    /// Buffers of the pool's that it holds.
    pub(crate) fn buffers(&self) -> usize {
        self.state.up.buffers() + self.state.down.buffers()
    }

    /// Has left its worker: it is on none of its lists.
    pub(crate) fn unlist(&mut self) {
        (self.queued, self.watched) = (false, false);
    }

    /// A flow whose server answered before its client was.
    pub(crate) fn connected(mut self) -> Self {
        self.state.phase = FlowPhase::Relaying;
        self.permit.connected();
        self
    }

    pub(crate) fn endpoint(&self, side: Side) -> &RelaySocket {
        match side {
            Side::Client => &self.state.client,
            Side::Server => &self.state.server,
        }
    }

    /// Gives both sockets, which come from another process, what they need of this process's legs.
    pub(crate) fn rejoin_legs(&mut self) {
        let Self { state: FlowState { ends, client, server, .. }, route: Route { pair, legs }, .. } = self;
        for (end, leg) in [(client, legs.get(pair.client)), (server, legs.get(pair.server))] {
            match leg.rejoin(end.socket.shared(), pair.weight) {
                Ok(paced) => end.paced = paced,
                Err(error) => {
                    let Endpoints { client, server, .. } = ends;
                    tracing::debug!(%client, %server, %error, leg = leg.name(), "keeps its congestion control");
                }
            }
        }
    }

    /// Takes note of an event. An error breaks the flow at once: what waits to be read behind a reset is not
    /// relayed.
    pub(crate) fn note(&mut self, side: Side, flags: EventFlags) -> Result<(), FlowError> {
        let endpoint = match side {
            Side::Client => &mut self.state.client,
            Side::Server => &mut self.state.server,
        };
        endpoint.note(flags);
        if flags.contains(EventFlags::ERR) { self.check_error(side) } else { Ok(()) }
    }

    /// Does what can be done now, within bounds.
    pub(crate) fn poll(&mut self, pool: &mut BufferPool) -> Result<Verdict, FlowError> {
        // A connect that has failed is an error that `note` has found.
        if self.state.phase == FlowPhase::Connecting && self.state.server.writable {
            self.state.phase = FlowPhase::Relaying;
            self.permit.connected();
        }
        match self.state.phase {
            FlowPhase::Connecting => Ok(Verdict::Waiting),
            FlowPhase::Relaying => self.relay(pool),
            FlowPhase::Draining => self.drain(),
        }
    }

    /// Whether it was the server that could not be reached, rather than a relay that was cut. A reset in
    /// answer to the SYN is "refused" (connect(2)); one that is "reset" ended a connection that had been
    /// there, if only for a moment.
    pub(crate) fn failed_to_connect(&self, broken: &FlowError) -> bool {
        let had_connected = broken.error.kind() == io::ErrorKind::ConnectionReset;
        self.state.phase == FlowPhase::Connecting && broken.side == Side::Server && !had_connected
    }

    /// Bytes written so far: to the server, to the client.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.state.up.bytes(), self.state.down.bytes())
    }

    /// Looks after the flow from time to time: how much memory it takes, and whether it has been idle for too
    /// long.
    pub(crate) fn inspect(&mut self, now: Seconds, patience: Patience) -> Inspection {
        let seen = &mut self.state.inspected;
        let bytes = self.state.up.bytes() + self.state.down.bytes();
        let has_moved = bytes != seen.bytes || seen.idle_since == Seconds::default();
        if has_moved {
            *seen = Inspected { bytes, idle_since: now, memory: seen.memory, ..Inspected::default() };
        } else if seen.segments.is_none() {
            seen.segments = Some(segments_received(&self.state.client, &self.state.server));
        }
        let before = seen.memory;
        if has_moved || before > 0 {
            let held = self.state.up.held() + self.state.down.held();
            let sockets =
                [&self.state.client, &self.state.server].map(|end| buffered(&end.socket).unwrap_or(0));
            self.state.inspected.memory = held + sockets.into_iter().sum::<usize>();
        }
        Inspection {
            memory_before: before,
            memory: self.state.inspected.memory,
            expired: self.has_expired(now, patience),
        }
    }

    /// Bytes in the flow's buffers at the last inspection.
    pub(crate) fn memory(&self) -> usize {
        self.state.inspected.memory
    }

    /// Idle for too long: nothing has passed through us, nothing that we had written has been acknowledged,
    /// and neither end has said that it is there. It says so by any segment where nothing is left to be
    /// acknowledged, usually a keepalive (RFC 9293 §3.8.4), which the kernel answers without telling us. Not
    /// so where something is: an end that will not read answers probes for ever.
    fn has_expired(&mut self, now: Seconds, patience: Patience) -> bool {
        let limit = match self.state.phase {
            // The kernel's own patience ends it.
            FlowPhase::Connecting => return false,
            FlowPhase::Relaying if self.state.up.is_shut() == self.state.down.is_shut() => patience.idle,
            FlowPhase::Relaying | FlowPhase::Draining => patience.half_closed,
        };
        if now.since(self.state.inspected.idle_since) < limit {
            return false;
        }
        let unacknowledged: usize = [&self.state.client, &self.state.server]
            .iter()
            .map(|end| unacknowledged(&end.socket).unwrap_or(0))
            .sum();
        let segments = segments_received(&self.state.client, &self.state.server);
        let seen = &mut self.state.inspected;
        let is_alive = if unacknowledged > 0 {
            seen.unacknowledged == 0 || unacknowledged < seen.unacknowledged
        } else {
            seen.segments.is_some_and(|before| before != segments)
        };
        if is_alive {
            (seen.idle_since, seen.unacknowledged, seen.segments) = (now, unacknowledged, Some(segments));
        }
        !is_alive
    }

    /// Releases the flow's buffers.
    pub(crate) fn release(&mut self, pool: &mut BufferPool) {
        self.state.up.release(pool);
        self.state.down.release(pool);
    }

    fn relay(&mut self, pool: &mut BufferPool) -> Result<Verdict, FlowError> {
        let broken = |from, to| move |failure| FlowError::relaying(from, to, failure);
        let up = self.state.up.pump(&mut self.state.client, &mut self.state.server, pool);
        let up = up.map_err(broken(Side::Client, Side::Server))?;
        let down = self.state.down.pump(&mut self.state.server, &mut self.state.client, pool);
        let down = down.map_err(broken(Side::Server, Side::Client))?;
        self.note_first_close();
        if self.state.up.is_shut() && self.state.down.is_shut() {
            self.state.phase = FlowPhase::Draining;
            return self.drain();
        }
        Ok(if up == Progress::More || down == Progress::More { Verdict::More } else { Verdict::Waiting })
    }

    fn drain(&mut self) -> Result<Verdict, FlowError> {
        for side in [Side::Client, Side::Server] {
            let socket = &self.endpoint(side).socket;
            let info = tcp_info(socket).map_err(|error| FlowError { side, doing: "closing", error })?;
            if info.state != State::Close {
                return Ok(Verdict::Draining);
            }
        }
        Ok(Verdict::Finished)
    }

    fn check_error(&self, side: Side) -> Result<(), FlowError> {
        let doing = if self.state.phase == FlowPhase::Connecting { "connecting" } else { "relaying" };
        match take_error(&self.endpoint(side).socket) {
            Ok(None) => Ok(()),
            Ok(Some(error)) | Err(error) => Err(FlowError { side, doing, error }),
        }
    }
}

/// Segments that have arrived at both sockets, in a number that wraps.
fn segments_received(client: &RelaySocket, server: &RelaySocket) -> u32 {
    let of = |end: &RelaySocket| tcp_info(&end.socket).map_or(0, |info| info.segments_in);
    of(client).wrapping_add(of(server))
}

impl Route {
    fn names(&self) -> RouteNames {
        let LegPair { client, server, weight, port } = self.pair;
        let name = |leg| match leg {
            LegId::Satellite(_) => Some(self.legs.get(leg).name().to_owned()),
            LegId::Terrestrial => None,
        };
        RouteNames { client: name(client), server: name(server), weight: weight.get(), port }
    }
}

/// By the names of its legs.
impl Serialize for Route {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.names().serialize(serializer)
    }
}

impl RouteNames {
    /// The route between the legs of these names. A leg that does not exist any more becomes the terrestrial
    /// one: its sockets have their settings, and no rates are allocated to them.
    pub(crate) fn resolve(&self, legs: &Arc<Legs>) -> Route {
        let find = |name: &Option<String>| {
            let place = name.as_ref().and_then(|name| legs.satellites().position(|leg| leg.name() == name));
            place.map_or(LegId::Terrestrial, LegId::Satellite)
        };
        let weight = Weight::try_from(i64::from(self.weight)).unwrap_or_default();
        let pair =
            LegPair { client: find(&self.client), server: find(&self.server), weight, port: self.port };
        Route { pair, legs: legs.clone() }
    }
}

impl Default for Patience {
    fn default() -> Self {
        Self { idle: Duration::MAX, half_closed: Duration::MAX }
    }
}

impl Seconds {
    fn since(self, earlier: Seconds) -> Duration {
        Duration::from_secs(u64::from(self.0.saturating_sub(earlier.0)))
    }
}

impl FlowError {
    /// For a flow that is ended because nothing moves on it.
    pub(crate) fn idle() -> Self {
        let error = io::Error::new(
            io::ErrorKind::TimedOut,
            "nothing moved for too long (limits.idle, limits.half_closed)",
        );
        Self { side: Side::Client, doing: IDLE, error }
    }

    fn relaying(from: Side, to: Side, failure: Failure) -> Self {
        match failure {
            Failure::Reading(error) => Self { side: from, doing: "reading", error },
            Failure::Writing(error) => Self { side: to, doing: "writing", error },
        }
    }
}

impl fmt::Display for FlowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = match self.side {
            Side::Client => "client",
            Side::Server => "server",
        };
        write!(f, "{} ({side} side): {}", self.doing, self.error)
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} → {}", self.state.ends.client, self.state.ends.server)
    }
}

#[cfg(test)]
mod tests;
