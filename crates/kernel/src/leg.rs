//! One side of the gateway: an operator's intentions for a leg, turned into socket settings.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bentpipe_units::{ByteCount, Rate};

use crate::congestion::{self, ResolvedCongestionControl, resolve};
use crate::explicit::is_explicit;
use crate::feature::Feature;
use crate::paced::PacedSocket;
use crate::rated_leg::RatedLeg;
use crate::sockopt;
use crate::timers::{Intentions, Keepalive, Timers, syn_retries};
use crate::weight::Weight;
use crate::xcp::Xcp;

/// A leg as configured.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LegSettings {
    /// The congestion control wanted; `None` is the kernel's default.
    pub congestion: Option<String>,
    /// The link's rate, where it is known.
    pub rate: Option<Rate>,
    /// The round-trip time of the empty link.
    pub rtt: Duration,
    /// The rate ceiling of each connection, without headers; `None` is no ceiling.
    pub pacing_cap: Option<Rate>,
    /// Data may come and go with the SYN (RFC 7413).
    pub fast_open: bool,
    /// At the leg's other end is a box with the same settings: SYNs carry data without a cookie, and answers to
    /// them rely on its receive buffer.
    pub far_box: bool,
    /// After an outage the sender tries again within this time.
    pub restart_within: Option<Duration>,
    /// Connections live through an outage of this length.
    pub survive_outage: Option<Duration>,
    /// Whether idle connections are probed.
    pub keepalive: Keepalive,
    /// Fixed send buffer; `None` leaves the kernel's autotuning on.
    pub send_buffer: Option<ByteCount>,
    /// Fixed receive buffer; `None` leaves the kernel's autotuning on.
    pub receive_buffer: Option<ByteCount>,
}

/// A leg that is ready: its congestion control is loaded and its timers are derived. Clones share both.
#[derive(Debug, Clone)]
pub struct Leg {
    name: String,
    congestion: Option<Arc<ResolvedCongestionControl>>,
    timers: Timers,
    settings: LegSettings,
    rto_max_refused: Arc<AtomicBool>,
}

impl Leg {
    /// Loads the congestion control of the leg and derives its kernel timers. Where this kernel does not have
    /// one, the next best takes its place, with one log line.
    pub fn prepare(name: &str, settings: &LegSettings) -> Self {
        let resolved = |wanted: &str| Arc::new(resolve(wanted, name, settings.rate));
        let congestion = settings.congestion.as_deref().map(resolved);
        let keeps_queue_short =
            congestion.as_deref().is_some_and(ResolvedCongestionControl::keeps_queue_short);
        let worst_rtt = worst_rtt(settings.rtt, keeps_queue_short);
        let &LegSettings { restart_within, survive_outage, keepalive, .. } = settings;
        let intentions = Intentions { restart_within, survive_outage, keepalive };
        let timers = Timers::derive(intentions, worst_rtt);
        if let (Some(wanted), Some(derived)) = (settings.restart_within, timers.rto_max)
            && derived > wanted
        {
            tracing::warn!(
                leg = name,
                "restart_within = {wanted:?} is below what this leg's round trip allows: the ceiling of the \
                 retransmission timeout is {derived:?}"
            );
        }
        Self {
            name: name.to_owned(),
            congestion,
            timers,
            settings: settings.clone(),
            rto_max_refused: Arc::default(),
        }
    }

    /// The leg's name in the configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The congestion control that the leg's sockets get; `None` is the kernel's default.
    pub fn congestion(&self) -> Option<&str> {
        self.congestion.as_deref().map(ResolvedCongestionControl::name)
    }

    /// The same by the name that configurations have for it: what is used, which may be another than what is
    /// configured.
    pub fn congestion_in_use(&self) -> Option<&str> {
        self.congestion.as_deref().map(ResolvedCongestionControl::configured_name)
    }

    /// The leg of explicit rates, where the leg has them.
    pub fn rated(&self) -> Option<&RatedLeg> {
        self.congestion.as_deref().and_then(ResolvedCongestionControl::rated)
    }

    /// XCP, where the leg has it.
    pub fn xcp(&self) -> Option<&Xcp> {
        self.congestion.as_deref().and_then(ResolvedCongestionControl::xcp)
    }

    /// The kernel's timer values for this leg.
    pub fn timers(&self) -> Timers {
        self.timers
    }

    /// Whether data are to be tried again soon after an outage.
    pub fn restarts_soon(&self) -> bool {
        self.settings.restart_within.is_some()
    }

    /// Whether data may come and go with the SYN. Listeners and connecting code must see to it: `connect(2)`
    /// takes no data.
    pub fn fast_open(&self) -> bool {
        self.settings.fast_open || self.settings.far_box
    }

    /// Prepares a socket for data with the SYN, before `listen(2)` or `connect(2)`, beside
    /// [`apply`](Self::apply): between two boxes no cookie is asked for.
    pub fn apply_fast_open(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        if self.settings.far_box { sockopt::set_fast_open_without_cookie(socket) } else { Ok(()) }
    }

    /// The window of the box at the other end before its first acknowledgement tells it, bytes: the kernel
    /// keeps half of a receive buffer for its bookkeeping. `None` where there is no such box, or where its
    /// buffer is the kernel's affair.
    pub fn far_window(&self) -> Option<u32> {
        let buffer = self.settings.receive_buffer.filter(|_| self.settings.far_box)?;
        u32::try_from(buffer.get() / 2).ok()
    }

    /// Gives a socket the leg's settings: before `listen(2)`, so that accepted sockets inherit them, or
    /// before `connect(2)`.
    ///
    /// A kernel without `TCP_RTO_MAX_MS` is no error: the leg then restarts later, which is logged once.
    pub fn apply(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        if let Some(congestion) = self.congestion() {
            sockopt::set_congestion(socket, congestion)?;
        }
        if let Some(ceiling) = self.timers.rto_max {
            self.apply_rto_max(socket, ceiling);
        }
        if let Some(limit) = self.timers.user_timeout {
            sockopt::set_user_timeout(socket, limit)?;
        }
        if let Some(timers) = self.timers.keepalive {
            sockopt::set_keepalive(socket, timers.idle, timers.interval, timers.probes)?;
        }
        if self.settings.pacing_cap.is_some() {
            sockopt::set_max_pacing_rate(socket, self.cap())?;
        }
        if let Some(size) = self.settings.send_buffer {
            sockopt::set_send_buffer(socket, size)?;
        }
        if let Some(size) = self.settings.receive_buffer {
            sockopt::set_receive_buffer(socket, size)?;
        }
        Ok(())
    }

    /// The same, [`apply`](Self::apply), with the weight that the connection, or each that is accepted from a
    /// listener, has among those that share the leg.
    ///
    /// With a congestion control without weights, the weight has no effect.
    pub fn apply_weighted(&self, socket: BorrowedFd<'_>, weight: Weight) -> io::Result<()> {
        self.apply(socket)?;
        self.congestion
            .as_deref()
            .map_or(Ok(()), |congestion| congestion.set_weight(socket, weight.get().into()))
    }

    /// As [`apply_weighted`](Self::apply_weighted), for a socket that is about to connect: it goes on trying
    /// through a short outage in spite of a lower ceiling of the timeout.
    pub fn apply_before_connect(&self, socket: BorrowedFd<'_>, weight: Weight) -> io::Result<()> {
        self.apply_weighted(socket, weight)?;
        self.timers.rto_max.map_or(Ok(()), |ceiling| sockopt::set_syn_retries(socket, syn_retries(ceiling)))
    }

    /// Has the controller of explicit rates set the ceiling of this connection, where the leg has its rates in
    /// this way: before anything is written to the socket, which is accepted or about to connect.
    pub fn add(&self, socket: &Arc<OwnedFd>, weight: Weight) -> Option<PacedSocket> {
        let Some(RatedLeg::Paced(leg)) = self.rated() else { return None };
        Some(leg.add(socket, weight, self.cap()))
    }

    /// Moves an established connection from the copy of a congestion control that another process has loaded
    /// to that of this leg, where it matters: a connection with an explicit rate gets it from this process, and
    /// would otherwise keep its last rate for ever. Other connections stay with the copy that they have.
    ///
    /// # Errors
    /// The kernel refuses; the connection stays as it is.
    pub fn rejoin(&self, socket: &Arc<OwnedFd>, weight: Weight) -> io::Result<Option<PacedSocket>> {
        // The other process may have left the ceiling of its last rate.
        sockopt::set_max_pacing_rate(socket, self.cap())?;
        self.rejoin_congestion(socket.as_fd(), weight)?;
        Ok(self.add(socket, weight))
    }

    fn rejoin_congestion(&self, socket: BorrowedFd<'_>, weight: Weight) -> io::Result<()> {
        let Some(congestion) = self.congestion.as_deref().filter(|congestion| congestion.rated().is_some())
        else {
            return if is_explicit(&sockopt::congestion(socket)?) {
                let default = congestion::default();
                sockopt::set_congestion(socket, self.congestion().unwrap_or(&default))
            } else {
                Ok(())
            };
        };
        // First whose it is: the congestion control asks when it is chosen.
        congestion.set_weight(socket, weight.get().into())?;
        sockopt::set_congestion(socket, congestion.name())
    }

    /// The ceiling of each connection, bytes of payload per second.
    fn cap(&self) -> u64 {
        self.settings.pacing_cap.map_or(u64::MAX, |cap| (cap.bps() / 8).max(1))
    }

    fn apply_rto_max(&self, socket: BorrowedFd<'_>, ceiling: Duration) {
        if let Err(error) = sockopt::set_rto_max(socket, ceiling)
            && !self.rto_max_refused.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                leg = self.name,
                "cannot set the retransmission timeout's ceiling to {ceiling:?}: {error} ({}); {}",
                Feature::RtoMax.needs(),
                Feature::RtoMax.without(),
            );
        }
    }
}

/// The round-trip time with the queue in front of the link. A paced sender that watches the round trip keeps
/// it within a quarter; one that fills the queue until it overflows sees one more bandwidth-delay product,
/// the usual queue.
fn worst_rtt(rtt: Duration, keeps_queue_short: bool) -> Duration {
    if keeps_queue_short { rtt + rtt / 4 } else { rtt * 2 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::os::fd::AsFd;

    #[test]
    fn a_loss_driven_sender_over_geo_cannot_restart_within_one_second() {
        let settings = LegSettings {
            congestion: Some("reno".into()),
            rtt: Duration::from_millis(600),
            restart_within: Some(Duration::from_secs(1)),
            ..LegSettings::default()
        };
        let leg = Leg::prepare("satellite", &settings);
        assert_eq!(leg.timers().rto_max, Some(Duration::from_millis(1400)));
    }

    #[test]
    fn a_listener_takes_the_settings_of_its_leg() {
        let settings = LegSettings {
            congestion: Some("reno".into()),
            rtt: Duration::from_millis(600),
            survive_outage: Some(Duration::from_secs(1500)),
            send_buffer: Some(ByteCount::new(1 << 20)),
            pacing_cap: Some(Rate::mbps(8)),
            ..LegSettings::default()
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Leg::prepare("satellite", &settings).apply(listener.as_fd()).unwrap();
        assert_eq!(sockopt::congestion(&listener).unwrap(), "reno");
        assert_eq!(sockopt::max_pacing_rate(&listener).unwrap(), Some(1_000_000));
        assert!(!socket2::SockRef::from(&listener).keepalive().unwrap());
    }

    #[test]
    fn accepted_sockets_inherit_the_keepalives_of_their_leg() {
        let settings = LegSettings {
            survive_outage: Some(Duration::from_secs(1500)),
            keepalive: Keepalive::After(Duration::from_secs(240)),
            ..LegSettings::default()
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Leg::prepare("satellite", &settings).apply(listener.as_fd()).unwrap();
        let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let accepted = listener.accept().unwrap().0;
        let accepted = socket2::SockRef::from(&accepted);
        assert!(accepted.keepalive().unwrap());
        assert_eq!(accepted.tcp_keepalive_time().unwrap(), Duration::from_secs(240));
        assert_eq!(accepted.tcp_keepalive_interval().unwrap(), Duration::from_secs(75));
        assert_eq!(accepted.tcp_keepalive_retries().unwrap(), 22);
    }
}
