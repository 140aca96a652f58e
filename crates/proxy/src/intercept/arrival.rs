//! Whether what belongs to a split connection would be delivered on this host: the kernel is asked for the
//! route of packets that have our marks.

use std::net::IpAddr;

use bentpipe_kernel::route::{Fate, Incoming, RouteSocket};

use crate::config::{Mark, MarkField};

/// The index of `lo` in every network namespace.
const LOOPBACK: u32 = 1;

/// One side of a connection: its packets come in by an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Crossing {
    /// The index of the interface.
    pub(crate) input: u32,
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    /// This side has opened the connection, so that its SYN comes back by `lo`.
    pub(crate) opens: bool,
}

/// What becomes of the packets of one side.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// They are delivered here.
    Here,
    /// They are not, for this reason.
    Astray(String),
    /// No packet comes from there by this interface, ours or not: the client has moved, or the interface has
    /// gone.
    Gone,
}

impl Crossing {
    /// Asks for the routes of the SYN that the daemon sends by `lo` and of the later packets, whatever rule,
    /// route or sysctl leads them elsewhere.
    pub(crate) fn arrival(&self, mark: MarkField, routes: &mut RouteSocket) -> Arrival {
        let syn = self.opens.then(|| (LOOPBACK, mark.value(Mark::Injected)));
        for (interface, mark) in syn.into_iter().chain([(self.input, mark.value(Mark::Ours))]) {
            let packet = Incoming { interface, from: self.from, to: self.to, mark };
            match routes.fate_of(&packet) {
                Ok(Fate::Delivered) => {}
                Ok(fate) if self.comes(routes) => return Arrival::Astray(reason(&packet, fate)),
                Ok(_) | Err(_) => return Arrival::Gone,
            }
        }
        Arrival::Here
    }

    /// Whether the packets would come through if nobody took them.
    fn comes(&self, routes: &mut RouteSocket) -> bool {
        let fate = routes.fate_of(&Incoming { interface: self.input, from: self.from, to: self.to, mark: 0 });
        matches!(fate, Ok(Fate::Forwarded | Fate::Delivered))
    }
}

/// Says that a packet does not come to this host, and what to look at.
fn reason(packet: &Incoming, fate: Fate) -> String {
    let Incoming { interface, from, to, mark } = packet;
    let (family, what) = (
        if to.is_ipv4() { "-4" } else { "-6" },
        match fate {
            Fate::Dropped(error) => {
                format!("dropped ({error}): a source filter (rp_filter) does not believe it")
            }
            _ => "forwarded: a policy rule before ours leads it away".to_owned(),
        },
    );
    format!(
        "a packet from {from} to {to} that comes in by interface {interface} with the mark {mark:#x} is {what}; look \
         at ip {family} rule, and at net.ipv4.conf.*.rp_filter"
    )
}
