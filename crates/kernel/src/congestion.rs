//! The congestion control that a leg asks for, or the next best that this kernel has.

use std::fs;
use std::io;
use std::os::fd::BorrowedFd;

use bentpipe_units::Rate;

use crate::explicit::{Explicit, MAX_LEGS, SharedLeg};
use crate::hybla::{self, Hybla};
use crate::xcp::{self, RoomInAcks, Xcp, XcpParameters};

/// What operators write for TCP Hybla, whoever implements it.
pub const HYBLA: &str = "hybla";
/// What they write for XCP and for P-XCP.
pub const XCP: &str = "xcp";
/// See [`XCP`].
pub const P_XCP: &str = "p-xcp";

/// What operators write for explicit rates.
pub const EXPLICIT: &str = "explicit";

/// A congestion control that sockets can choose for as long as this value lives.
#[derive(Debug)]
pub struct ResolvedCongestionControl {
    name: String,
    shared: Option<SharedLeg>,
    _hybla: Option<Hybla>,
    xcp: Option<ResolvedXcp>,
}

/// What has to live for as long as sockets use XCP.
#[derive(Debug)]
struct ResolvedXcp {
    xcp: Xcp,
    _fallback: Box<ResolvedCongestionControl>,
    _room: Vec<RoomInAcks>,
}

impl ResolvedCongestionControl {
    /// The name for `TCP_CONGESTION`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it holds the queue in front of the link well below one bandwidth-delay product: it paces its segments
    /// and watches the round-trip time, rather than filling the queue until it overflows.
    pub fn keeps_queue_short(&self) -> bool {
        let ours = self.shared.is_some() || hybla::is_hybla(&self.name) || xcp::is_xcp(&self.name);
        ours || self.name == "bbr"
    }

    /// The leg whose connections wait to be given their rates, where these are explicit.
    pub fn shared(&self) -> Option<&SharedLeg> {
        self.shared.as_ref()
    }

    /// XCP, if it is that: to [make room](Xcp::make_room_on) on interfaces that were not there yet.
    pub fn xcp(&self) -> Option<&Xcp> {
        self.xcp.as_ref().map(|provided| &provided.xcp)
    }

    /// Gives a socket that has this congestion control its weight, as [`Weight`](crate::Weight) has it: before `listen(2)`, so
    /// that accepted sockets inherit it, or before `connect(2)`. Of one that shares out nothing by weight, as those of the kernel
    /// and Hybla, it does nothing.
    ///
    /// # Errors
    /// What the kernel says where the congestion control cannot be told of the socket.
    pub fn set_weight(&self, socket: BorrowedFd<'_>, weight: u32) -> io::Result<()> {
        self.shared.as_ref().map_or(Ok(()), |leg| leg.join(socket, weight))
    }
}

/// Provides `wanted` for the leg of this name that carries so much, headers included, where that is known; or the next best with
/// one log line that says so and why: for XCP explicit rates; for these Hybla; for Hybla without eBPF the kernel's own module,
/// then `bbr`, then the default ([`Feature::without`](crate::feature::Feature::without)). Sockets whose other end does not take
/// XCP have Hybla, or what is there for it.
pub fn provide(wanted: &str, leg: &str, capacity: Option<Rate>) -> ResolvedCongestionControl {
    let mut lacks = Fallbacks::default();
    let provided = match wanted {
        EXPLICIT => provide_explicit(leg, &mut lacks),
        HYBLA => provide_hybla(&mut lacks),
        XCP | P_XCP => provide_xcp(wanted == P_XCP, leg, capacity, &mut lacks),
        _ => provide_plain(wanted, &mut lacks),
    };
    if !lacks.0.is_empty() {
        tracing::warn!("leg {leg}: {}; it uses {} for \"{wanted}\"", lacks.0.join("; "), provided.name());
    }
    provided
}

/// Why a leg has not all that it asks for.
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

fn provide_explicit(leg: &str, lacks: &mut Fallbacks) -> ResolvedCongestionControl {
    match Explicit::acquire().map(|explicit| explicit.leg(leg)) {
        Ok(Some(shared)) => {
            let name = shared.explicit().name().to_owned();
            return ResolvedCongestionControl { name, shared: Some(shared), _hybla: None, xcp: None };
        }
        Ok(None) => lacks.note(format!("there are {MAX_LEGS} legs with explicit rates already")),
        Err(error) => lacks.note(error),
    }
    provide_hybla(lacks)
}

fn provide_hybla(lacks: &mut Fallbacks) -> ResolvedCongestionControl {
    match Hybla::acquire() {
        Ok(hybla) => ResolvedCongestionControl {
            name: hybla.name().to_owned(),
            shared: None,
            _hybla: Some(hybla),
            xcp: None,
        },
        Err(error) => {
            lacks.note(error);
            plain(&without_ebpf(&available()))
        }
    }
}

fn provide_xcp(
    p_xcp: bool,
    leg: &str,
    capacity: Option<Rate>,
    lacks: &mut Fallbacks,
) -> ResolvedCongestionControl {
    let mut fallback_lacks = Fallbacks::default();
    let fallback = provide_hybla(&mut fallback_lacks);
    let xcp = match Xcp::acquire(XcpParameters { p_xcp, capacity, fallback: fallback.name() }) {
        Ok(xcp) => xcp,
        Err(error) => {
            lacks.note(error);
            return provide_explicit(leg, lacks);
        }
    };
    let (room, failures) = xcp.make_room();
    if let Some(error) = failures.first() {
        lacks.note(format!("{error}; feedback will come late where losses are many"));
    }
    lacks.0.extend(fallback_lacks.0);
    let name = xcp.name().to_owned();
    ResolvedCongestionControl {
        shared: None,
        name,
        _hybla: None,
        xcp: Some(ResolvedXcp { xcp, _fallback: Box::new(fallback), _room: room }),
    }
}

fn provide_plain(wanted: &str, lacks: &mut Fallbacks) -> ResolvedCongestionControl {
    let available = available();
    if is_available(wanted, &available) {
        return plain(wanted);
    }
    lacks.note(format!(
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
    if is_available("bbr", available) { "bbr".to_owned() } else { default() }
}

/// Asking a socket for it makes the kernel load the module, if there is one (needs `CAP_NET_ADMIN`).
fn is_available(name: &str, available: &[String]) -> bool {
    available.iter().any(|known| known == name) || try_on_a_socket(name)
}

fn try_on_a_socket(name: &str) -> bool {
    std::net::TcpListener::bind("127.0.0.1:0")
        .is_ok_and(|probe| crate::sockopt::set_congestion(probe, name).is_ok())
}

fn plain(name: &str) -> ResolvedCongestionControl {
    ResolvedCongestionControl { name: name.to_owned(), shared: None, _hybla: None, xcp: None }
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
        let provided = provide("no_such_thing", "geo", None);
        assert!(provided.name() == "bbr" || provided.name() == default(), "{provided:?}");
    }

    #[test]
    fn what_the_kernel_has_is_provided_under_its_own_name() {
        assert_eq!(provide("reno", "geo", None).name(), "reno");
    }
}
