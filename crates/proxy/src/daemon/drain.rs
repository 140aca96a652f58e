//! Draining and bypass: new connections pass unsplit. A daemon that drains ends with the last one that is
//! split; one whose bypass is on goes on.
//!
//! The end must not meet a connection in the making. Flows are counted from their acceptance on. Before, a
//! connection is a SYN on its way from the rules to a listener, a request socket that waits for the client's
//! acknowledgement, or it waits to be accepted. So draining is over only when none of these has been seen for
//! [`GRACE`], in which a SYN has long arrived.

use std::io;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bentpipe_kernel::route::RouteSocket;
use bentpipe_kernel::sock_diag::{SockDiag, TcpSocket};
use bentpipe_units::human;

use super::{Daemon, Prepared};
use crate::intercept::PATIENCE;
use crate::types::Draining;

/// How long there must have been no flow and no handshake. The rules take no new connection for the last part
/// of it, even where the watchdog could not empty the set: its elements have expired by then. A client whose
/// SYN was answered by a SYN cookie, which no socket remembers, has the rest for its acknowledgement.
const GRACE: Duration = PATIENCE.saturating_add(Duration::from_millis(1100));
/// The same where handshakes cannot be counted: the client's acknowledgement may be one of a long path that
/// was lost and repeated twice.
const GRACE_UNCOUNTED: Duration = Duration::from_secs(10);
/// How long an order waits for the rules to let new connections pass.
const ORDER_PATIENCE: Duration = Duration::from_secs(1);
const ORDER_POLL: Duration = Duration::from_millis(2);

impl Daemon {
    /// Lets new connections pass unsplit; where nothing hinders, that is so when it returns. Those that are
    /// split go on; `time` is how long, if they are to be reset then, which the caller does by ending the
    /// daemon once it [`has_drained`](Self::has_drained). Draining lasts at least as long as `stay`, but no
    /// longer than `time`: until then it can be cancelled.
    pub fn drain(&self, time: Option<Duration>, stay: Duration) {
        *self.draining() = Some(Draining::begin(Instant::now(), time, stay));
        self.await_passing();
        let end = time.map_or_else(
            || "the daemon ends with the last split one".to_owned(),
            |time| format!("split ones that are left are reset in {}", human::span(time.as_secs_f64())),
        );
        tracing::info!("draining: new connections pass unsplit; {end}");
        if let Err(error) = self.handshakes() {
            tracing::warn!(
                "cannot count the handshakes that are not complete: {error}; the daemon ends no sooner than \
                 {} s after its last connection (modprobe tcp_diag)",
                GRACE_UNCOUNTED.as_secs()
            );
        }
    }

    /// Splits new connections again, unless the bypass is on.
    pub fn stop_draining(&self) {
        if self.draining().take().is_none() {
            return;
        }
        self.context.shared.admission.wake();
        let now = if self.is_bypassed() { "pass unsplit, because the bypass is on" } else { "are split" };
        tracing::info!("draining has been cancelled: new connections {now}");
    }

    /// Whether draining has come to its end: neither a flow nor a handshake is left, or the time is up. Call
    /// it several times a second.
    pub fn has_drained(&self) -> bool {
        let now = Instant::now();
        match *self.draining() {
            None => return false,
            Some(draining) if draining.is_over(now) => return true,
            Some(_) => {}
        }
        let (is_quiet, grace) = match self.context.shared.admission.open() {
            // Admission counts flows of another process as soon as this one has taken them over.
            0 => self.handshakes().map_or((true, GRACE_UNCOUNTED), |count| (count == 0, GRACE)),
            _ => (false, GRACE),
        };
        self.draining().as_mut().is_some_and(|draining| draining.note(now, is_quiet, grace))
    }

    /// Lets all new connections pass unsplit, or splits them again; split ones go on. True if that is a
    /// change. It stays so through reloads and upgrades.
    pub fn set_bypass(&self, on: bool) -> bool {
        if self.context.shared.bypass.swap(on, Ordering::AcqRel) == on {
            return false;
        }
        if on {
            self.await_passing();
            tracing::warn!("bypass on: new connections pass unsplit until `bentpipe bypass off`");
        } else {
            self.context.shared.admission.wake();
            tracing::info!("bypass off: new connections are split");
        }
        true
    }

    /// Whether the bypass is on.
    pub fn is_bypassed(&self) -> bool {
        self.context.shared.bypass.load(Ordering::Acquire)
    }

    pub(super) fn draining(&self) -> MutexGuard<'_, Option<Draining>> {
        self.context.shared.draining()
    }

    /// Wakes the watchdog and waits for a moment until it has emptied the set by which the rules take
    /// connections.
    fn await_passing(&self) {
        let start = Instant::now();
        self.context.shared.admission.wake();
        while self.context.shared.liveness.is_fresh() && start.elapsed() < ORDER_PATIENCE {
            std::thread::sleep(ORDER_POLL);
        }
    }

    /// Connections that are not accepted yet: handshakes that are not complete, and connections in the
    /// listeners' queues.
    ///
    /// A handshake at an address that is not this host's is that of a transparent listener: ours, as far as
    /// one can know. Another such program's makes the daemon wait, too.
    fn handshakes(&self) -> io::Result<usize> {
        let (mut own, mut routes) = (0, None);
        for socket in SockDiag::open()?.handshakes()? {
            own += match socket {
                TcpSocket::Listening { local, accept_queue }
                    if local.ip().is_loopback() && self.ports.has(local.port()) =>
                {
                    accept_queue as usize
                }
                TcpSocket::Listening { .. } => 0,
                TcpSocket::SynReceived { local } => {
                    let routes = match &mut routes {
                        Some(routes) => routes,
                        none => none.insert(RouteSocket::open()?),
                    };
                    usize::from(!routes.is_delivered_here(local.ip(), 0)?)
                }
            };
        }
        Ok(own)
    }
}

impl Prepared {
    /// Lets all new connections pass unsplit from the start, as [`Daemon::set_bypass`] does. A predecessor's
    /// state takes its place.
    pub fn set_bypass(&self, on: bool) {
        self.0.context.shared.bypass.store(on, Ordering::Release);
    }
}
