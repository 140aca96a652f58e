//! The congestion control that a leg asks for, or the next best that this kernel has.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;

use bentpipe_units::Rate;

use crate::explicit::{Explicit, MAX_LEGS};
use crate::hybla::{self, Hybla};
use crate::paced::{BBR, PacedLeg};
use crate::rated_leg::RatedLeg;
use crate::sockopt;
use crate::struct_ops::{StructOpsError, is_copy};
use crate::xcp::{self, RoomInAcks, Xcp, XcpParameters};

/// The name of TCP Hybla in configurations, of any implementation.
pub const HYBLA: &str = "hybla";
/// The name of TCP Hybla as published, for a laboratory.
pub const HYBLA_PUBLISHED: &str = "hybla-published";
/// The names of XCP and of P-XCP in configurations.
pub const XCP: &str = "xcp";
/// See [`XCP`].
pub const P_XCP: &str = "p-xcp";

/// The name of explicit rates in configurations.
pub const EXPLICIT: &str = "explicit";
/// The name of explicit rates without eBPF in configurations.
pub const PACED: &str = "paced";

/// A congestion control that sockets can choose for as long as this value lives.
#[derive(Debug)]
pub struct ResolvedCongestionControl {
    name: String,
    kind: Kind,
}

/// The parts that must live for as long as sockets use it.
#[derive(Debug)]
enum Kind {
    /// The kernel's own.
    Plain,
    Rated(RatedLeg),
    Hybla(Hybla),
    Xcp {
        xcp: Xcp,
        _fallback: Box<ResolvedCongestionControl>,
        _room: Vec<RoomInAcks>,
    },
}

impl ResolvedCongestionControl {
    /// The name for `TCP_CONGESTION`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its name in configurations: `explicit`, not that of a copy in the kernel. It may be another than the
    /// one that was wanted.
    pub fn configured_name(&self) -> &str {
        match &self.kind {
            Kind::Plain => &self.name,
            Kind::Rated(RatedLeg::Ebpf(_)) => EXPLICIT,
            Kind::Rated(RatedLeg::Paced(_)) => PACED,
            Kind::Hybla(hybla) if hybla.is_published() => HYBLA_PUBLISHED,
            Kind::Hybla(_) => HYBLA,
            Kind::Xcp { .. } if is_copy(xcp::NAMES[1], &self.name) => P_XCP,
            Kind::Xcp { .. } => XCP,
        }
    }

    /// Whether it holds the queue in front of the link well below one bandwidth-delay product: it paces its
    /// segments and watches the round-trip time, rather than filling the queue until it overflows.
    pub fn keeps_queue_short(&self) -> bool {
        let is_a_copy = hybla::is_hybla(&self.name) || xcp::is_xcp(&self.name);
        match &self.kind {
            Kind::Hybla(hybla) => !hybla.is_published(),
            Kind::Plain => is_a_copy || self.name == BBR,
            Kind::Rated(_) | Kind::Xcp { .. } => true,
        }
    }

    /// The leg of explicit rates, where it is that.
    pub fn rated(&self) -> Option<&RatedLeg> {
        if let Kind::Rated(leg) = &self.kind { Some(leg) } else { None }
    }

    /// XCP, if it is that: to [make room](Xcp::make_room_on) on interfaces that were not there yet.
    pub fn xcp(&self) -> Option<&Xcp> {
        if let Kind::Xcp { xcp, .. } = &self.kind { Some(xcp) } else { None }
    }

    /// Sets the [`Weight`](crate::Weight) of a socket that has this congestion control: before `listen(2)`,
    /// so that accepted sockets inherit it, or before `connect(2)`. It has no effect on congestion controls
    /// without weights, as those of the kernel and Hybla, and on ceilings, whose connections are added with
    /// their weights.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn set_weight(&self, socket: BorrowedFd<'_>, weight: u32) -> io::Result<()> {
        if let Some(RatedLeg::Ebpf(leg)) = self.rated() { leg.join(socket, weight) } else { Ok(()) }
    }
}

/// What it is, for a log line.
impl fmt::Display for ResolvedCongestionControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Rated(RatedLeg::Paced(_)) => write!(f, "{PACED} (above {})", self.name),
            _ => f.write_str(&self.name),
        }
    }
}

/// Loads or finds the congestion control `wanted` for the leg of this name, of this capacity, headers
/// included, where that is known; or the next best, with one log line that says why: for XCP explicit rates;
/// for these without eBPF ceilings; for Hybla without eBPF the kernel's own module, then `bbr`, then the
/// default ([`Feature::without`](crate::feature::Feature::without)). Sockets whose other end does not take XCP have
/// Hybla, or its substitute.
pub fn resolve(wanted: &str, leg: &str, capacity: Option<Rate>) -> ResolvedCongestionControl {
    let (resolved, reasons) = find(wanted, leg, capacity);
    if !reasons.is_empty() {
        tracing::warn!("leg {leg}: {}; it uses {} for \"{wanted}\"", reasons.join("; "), resolved);
    }
    resolved
}

/// The same without a log line: why it is not the one that is wanted, if so.
pub(crate) fn find(
    wanted: &str,
    leg: &str,
    capacity: Option<Rate>,
) -> (ResolvedCongestionControl, Vec<String>) {
    let mut fallbacks = Fallbacks::default();
    let resolved = match wanted {
        EXPLICIT => resolve_explicit(leg, &mut fallbacks),
        PACED => resolve_paced(leg, &mut fallbacks),
        HYBLA => resolve_hybla(Hybla::acquire(), &mut fallbacks),
        HYBLA_PUBLISHED => resolve_hybla(Hybla::acquire_published(), &mut fallbacks),
        XCP | P_XCP => resolve_xcp(wanted == P_XCP, leg, capacity, &mut fallbacks),
        _ => resolve_plain(wanted, &mut fallbacks),
    };
    (resolved, fallbacks.0)
}

/// Why a leg does not have all that it is configured with.
#[derive(Debug, Default)]
struct Fallbacks(Vec<String>);

impl Fallbacks {
    fn note(&mut self, reason: impl ToString) {
        self.0.push(reason.to_string());
    }
}

/// The congestion controls that this kernel has registered.
pub fn available() -> Vec<String> {
    read_words("/proc/sys/net/ipv4/tcp_available_congestion_control")
}

/// The congestion control of a socket that chooses none.
pub fn default() -> String {
    read_words("/proc/sys/net/ipv4/tcp_congestion_control").pop().unwrap_or_else(|| "reno".to_owned())
}

fn resolve_explicit(leg: &str, fallbacks: &mut Fallbacks) -> ResolvedCongestionControl {
    match Explicit::acquire().map(|explicit| explicit.leg(leg)) {
        Ok(Some(shared)) => {
            let name = shared.explicit().name().to_owned();
            return ResolvedCongestionControl { name, kind: Kind::Rated(RatedLeg::Ebpf(shared)) };
        }
        Ok(None) => fallbacks.note(format!("there are {MAX_LEGS} legs with explicit rates already")),
        Err(error) => fallbacks.note(error),
    }
    resolve_paced(leg, fallbacks)
}

fn resolve_paced(leg: &str, fallbacks: &mut Fallbacks) -> ResolvedCongestionControl {
    let below = next_best(&available());
    if below != BBR {
        fallbacks.note(format!("this kernel has no {BBR} below the rates, so that losses lower them"));
    }
    let paced = PacedLeg::new(leg, &below);
    ResolvedCongestionControl { name: below, kind: Kind::Rated(RatedLeg::Paced(paced)) }
}

fn resolve_hybla(
    acquired: Result<Hybla, StructOpsError>,
    fallbacks: &mut Fallbacks,
) -> ResolvedCongestionControl {
    match acquired {
        Ok(hybla) => ResolvedCongestionControl { name: hybla.name().to_owned(), kind: Kind::Hybla(hybla) },
        Err(error) => {
            fallbacks.note(error);
            plain(&without_ebpf(&available()))
        }
    }
}

fn resolve_xcp(
    p_xcp: bool,
    leg: &str,
    capacity: Option<Rate>,
    fallbacks: &mut Fallbacks,
) -> ResolvedCongestionControl {
    let mut xcp_fallbacks = Fallbacks::default();
    let fallback = resolve_hybla(Hybla::acquire(), &mut xcp_fallbacks);
    let xcp = match Xcp::acquire(XcpParameters { p_xcp, capacity, fallback: fallback.name() }) {
        Ok(xcp) => xcp,
        Err(error) => {
            fallbacks.note(error);
            return resolve_explicit(leg, fallbacks);
        }
    };
    let (room, failures) = xcp.make_room();
    if let Some(error) = failures.first() {
        fallbacks.note(format!("{error}; feedback will come late where losses are many"));
    }
    fallbacks.0.extend(xcp_fallbacks.0);
    let name = xcp.name().to_owned();
    ResolvedCongestionControl { name, kind: Kind::Xcp { xcp, _fallback: Box::new(fallback), _room: room } }
}

fn resolve_plain(wanted: &str, fallbacks: &mut Fallbacks) -> ResolvedCongestionControl {
    let available = available();
    if is_available(wanted, &available) {
        return plain(wanted);
    }
    fallbacks.note(format!(
        "this kernel has no congestion control \"{wanted}\" (it has {})",
        available.join(", ")
    ));
    plain(&next_best(&available))
}

/// The best there is for a satellite leg without eBPF.
fn without_ebpf(available: &[String]) -> String {
    if is_available(HYBLA, available) { HYBLA.to_owned() } else { next_best(available) }
}

fn next_best(available: &[String]) -> String {
    if is_available(BBR, available) { BBR.to_owned() } else { default() }
}

/// Asking a socket for it makes the kernel load the module, if there is one (needs `CAP_NET_ADMIN`).
fn is_available(name: &str, available: &[String]) -> bool {
    available.iter().any(|known| known == name) || sockopt::may_choose(name)
}

fn plain(name: &str) -> ResolvedCongestionControl {
    ResolvedCongestionControl { name: name.to_owned(), kind: Kind::Plain }
}

fn read_words(path: &str) -> Vec<String> {
    fs::read_to_string(path).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn without_ebpf_the_kernels_hybla_comes_before_bbr() {
        assert_eq!(without_ebpf(&words("reno bbr hybla cubic")), "hybla");
    }

    #[test]
    fn an_unknown_congestion_control_is_replaced_and_never_an_error() {
        let resolved = resolve("no_such_thing", "geo", None);
        assert!(resolved.name() == "bbr" || resolved.name() == default(), "{resolved:?}");
    }

    #[test]
    fn the_kernels_congestion_controls_keep_their_names() {
        assert_eq!(resolve("reno", "geo", None).name(), "reno");
    }
}
