//! Interception: the nftables rules that hand connections to the listeners, and the policy routing behind
//! them.
//!
//! A SYN that crosses a satellite leg is given to its path's listener by `tproxy`; the later packets of both
//! sockets belong to a transparent socket, which `socket transparent` finds. Both kinds are marked, and
//! marked packets are routed to this host. So are the ICMP errors that quote a packet of such a socket, an
//! unreachable server or a smaller path MTU: they are addressed to the client or the server in whose name it
//! was sent.
//!
//! A `tproxy` statement whose port has no listener does not match, so that the connection of a gateway
//! whose daemon is dead is forwarded, unsplit, by the rules that the daemon left.
//!
//! A [`TunDivert`] marks packets and routes them into a TUN device that the daemon reads.
//! The device vanishes with the process, and the route with it; then the packets take their usual route.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bentpipe_kernel::route::RouteSocket;

use crate::config::Interface;
use crate::error::Error;

mod bundled;
mod liveness;
mod policy;
mod program;
mod rate_limits;
mod ruleset;
mod snooped;
pub(crate) mod tun;

pub(crate) use liveness::Liveness;
pub(crate) use program::ip;
use program::{load_rules, succeeds};
use ruleset::successor;
pub(crate) use ruleset::{ALIVE, FULL, FULL_CLIENTS, PATIENCE, TTL};
pub use ruleset::{Plan, ruleset};

/// The nftables table, in the family `inet`.
pub(crate) const TABLE: &str = "bentpipe";
/// The mark of intercepted packets.
const MARK: u32 = 0x6270;
/// The routing table that brings marked packets to this host.
const ROUTE_TABLE: u32 = 25200;
/// The preference of the policy rule that leads there; the main table has 32766.
const PREFERENCE: u32 = 7600;
/// Diverts SYNs that are held until the server has answered; the daemon writes them back to the same device.
pub(crate) const HELD: TunDivert = TunDivert { number: 1, device: "bentpipe0" };
/// The device to which the daemon writes SYNs that pass unsplit.
pub(crate) const PASSED: &str = "bentpipe1";
/// Diverts packets of snooped flows towards a satellite.
pub(crate) const TO_LINK: TunDivert = TunDivert { number: 2, device: "bentpipe2" };
/// Diverts packets of snooped flows from a satellite.
pub(crate) const FROM_LINK: TunDivert = TunDivert { number: 3, device: "bentpipe3" };

/// Diverts marked packets into a TUN device that the daemon reads; the kernel forwards the packets that it
/// writes there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TunDivert {
    /// Its mark, its routing table and its preference follow those of interception by this number.
    number: u32,
    pub(crate) device: &'static str,
}

const ROUTE_MARKED: &str = "route intercepted packets to this host";
const ROUTE_TUN_DIVERT: &str = "route packets to the daemon";

/// The rules and routes of a running daemon; they are removed with it.
#[derive(Debug)]
pub(crate) struct Interception {
    routes: Routes,
    /// The rules that are in force, unless another program has removed them.
    rules: String,
    /// The interfaces that tell the ends of snooped flows apart; empty if no rule snoops.
    sides: Vec<Interface>,
    /// Another process has taken them over.
    is_left: bool,
}

/// The policy routing behind the rules.
#[derive(Debug, Clone)]
pub(crate) struct Routes {
    families: Vec<Family>,
    /// Those whose devices are there.
    tun_diverts: Vec<TunDivert>,
}

/// An address family as `ip` calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Interception {
    /// Sets up routes first and rules last: the first connection to be intercepted finds everything in place.
    ///
    /// The devices of `tun_diverts` must exist.
    pub(crate) fn install(
        plan: &Plan<'_>,
        families: Vec<Family>,
        tun_diverts: Vec<TunDivert>,
    ) -> Result<Self, Error> {
        if clear() {
            tracing::warn!(table = TABLE, "cleared the rules and routes of a run that did not end in order");
        }
        let mut interception = Self {
            routes: Routes { families, tun_diverts },
            rules: String::new(),
            sides: Vec::new(),
            is_left: false,
        };
        for &family in &interception.routes.families {
            interception.routes.add(family)?;
        }
        interception.replace_rules(plan)?;
        Ok(interception)
    }

    /// Goes on with the rules and routes that another process has set up and leaves. Where this process needs
    /// other ones, they take the place of those in one transaction; if they cannot, those stay, and it is an
    /// error.
    pub(crate) fn take_over(
        families: Vec<Family>,
        tun_diverts: Vec<TunDivert>,
        rules: String,
        sides: Vec<Interface>,
    ) -> Self {
        Self { routes: Routes { families, tun_diverts }, rules, sides, is_left: false }
    }

    /// Sets up the ways through devices to which none leads yet. Where they cannot be had, packets take their
    /// own.
    pub(crate) fn complete_tun_diverts(&self) -> Result<(), Error> {
        let mut socket = RouteSocket::open().map_err(Error::system("ask for routes"))?;
        self.routes.repair_tun_diverts(&mut socket).map(drop)
    }

    /// Whether these are the rules that are in force.
    pub(crate) fn has_rules(&self, plan: &Plan<'_>) -> bool {
        self.rules == ruleset(plan)
    }

    /// The rules that are in force, and the interfaces by which they tell the sides of snooped flows apart.
    pub(crate) fn rules(&self) -> (&str, &[Interface]) {
        (&self.rules, &self.sides)
    }

    /// Leaves rules and routes to the process that has taken over.
    pub(crate) fn leave(&mut self) {
        self.is_left = true;
    }

    /// Puts these rules into force in the place of those that are there; in one transaction, or not at all.
    ///
    /// Flows that are snooped stay so if these rules snoop, too, whatever they say of the flows: that was
    /// decided at their SYN. Where other interfaces are satellites, it is no longer known which of their ends
    /// is on the ground, and they pass.
    pub(crate) fn replace_rules(&mut self, plan: &Plan<'_>) -> Result<(), Error> {
        let sides = plan.snooped.map_or_else(Vec::new, |_| plan.interfaces.to_vec());
        let rules = ruleset(plan);
        if !sides.is_empty() && sides == self.sides {
            load_rules(&successor(plan, &self.rules))?;
        } else {
            load_rules(&rules)?;
        }
        (self.rules, self.sides) = (rules, sides);
        Ok(())
    }

    /// Installs the rules again that another program has removed.
    pub(crate) fn restore(&self) -> Result<(), Error> {
        load_rules(&self.rules)
    }

    /// The routes, for the watchdog.
    pub(crate) fn routes(&self) -> &Routes {
        &self.routes
    }
}

impl Routes {
    /// Sees that marked packets come to this host, in every family, and sets up again what somebody else has
    /// removed; true if there was need to. Where they do not come, the kernel drops a SYN that `tproxy` has
    /// given to a listener (`ip_forward`).
    pub(crate) fn mend(&self, socket: &mut RouteSocket) -> Result<bool, Error> {
        let mut mended = false;
        for &family in &self.families {
            if !Self::lead_here(family, socket)? {
                // It complains of what is still there.
                let outcome = self.add(family);
                if !Self::lead_here(family, socket)? {
                    outcome?;
                    return Err(overruled(ROUTE_MARKED, family, 0));
                }
                mended = true;
            }
        }
        Ok(mended)
    }

    /// Repairs the diverts whose devices exist, and sets these up; true if there was need to. Without its
    /// route, packets of a divert take their usual route.
    pub(crate) fn repair_tun_diverts(&self, socket: &mut RouteSocket) -> Result<bool, Error> {
        let mut mended = false;
        for tun_divert in &self.tun_diverts {
            for &family in &self.families {
                mended |= tun_divert.mend(family, socket)?;
            }
        }
        Ok(mended)
    }

    fn lead_here(family: Family, socket: &mut RouteSocket) -> Result<bool, Error> {
        let answer = socket.is_delivered_here(family.some_address(), MARK);
        answer.map_err(Error::system("ask for the route of intercepted packets"))
    }

    fn add(&self, family: Family) -> Result<(), Error> {
        Self::route_marked(family)?;
        self.tun_diverts.iter().try_for_each(|tun_divert| tun_divert.add(family))
    }

    fn route_marked(family: Family) -> Result<(), Error> {
        let flag = family.flag();
        ip(ROUTE_MARKED, &format!("{flag} route replace local default dev lo table {ROUTE_TABLE}"))?;
        ip(ROUTE_MARKED, &format!("{flag} rule add {}", policy_rule(0)))
    }
}

impl TunDivert {
    pub(crate) fn mark(self) -> u32 {
        MARK + self.number
    }

    /// Without the device there is no route, and the rule leads nowhere.
    fn add(self, family: Family) -> Result<(), Error> {
        let (flag, table) = (family.flag(), ROUTE_TABLE + self.number);
        let route = format!("{flag} route replace default dev {} table {table}", self.device);
        ip(ROUTE_TUN_DIVERT, &route)?;
        ip(ROUTE_TUN_DIVERT, &format!("{flag} rule add {}", policy_rule(self.number)))
    }

    /// A device that is set down loses its routes, and keeps the rules that lead to them.
    fn mend(self, family: Family, socket: &mut RouteSocket) -> Result<bool, Error> {
        if self.is_gone_or_leads_here(family, socket)? {
            return Ok(false);
        }
        ip(ROUTE_TUN_DIVERT, &format!("link set {} up", self.device))?;
        // It complains of what is still there.
        let outcome = self.add(family);
        if !self.is_gone_or_leads_here(family, socket)? {
            outcome?;
            return Err(overruled(ROUTE_TUN_DIVERT, family, self.number));
        }
        Ok(true)
    }

    /// A service whose device is gone has failed and logged it.
    fn is_gone_or_leads_here(self, family: Family, socket: &mut RouteSocket) -> Result<bool, Error> {
        let ask = |socket: &mut RouteSocket| -> std::io::Result<bool> {
            let Some(device) = socket.index_of(self.device)? else { return Ok(true) };
            Ok(socket.interface_of_marked(family.some_address(), self.mark())? == Some(device))
        };
        ask(socket).map_err(Error::system("ask for the route of packets that the daemon sees"))
    }
}

impl Drop for Interception {
    fn drop(&mut self) {
        if !self.is_left {
            clear();
        }
    }
}

impl Family {
    fn flag(self) -> &'static str {
        match self {
            Family::V4 => "-4",
            Family::V6 => "-6",
        }
    }

    /// An address that is no host's (RFC 5737, RFC 3849), to ask for the way to.
    fn some_address(self) -> IpAddr {
        match self {
            Family::V4 => Ipv4Addr::new(192, 0, 2, 1).into(),
            Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
        }
    }
}

/// The policy rule of the divert of this number; 0 is interception itself.
fn policy_rule(number: u32) -> String {
    let [preference, mark, table] = [PREFERENCE, MARK, ROUTE_TABLE].map(|first| first + number);
    format!("pref {preference} fwmark {mark:#x} lookup {table}")
}

/// Removes the rules and routes; true if there were any. The rules go first, so that no connection is taken
/// that could not be routed to this host any more.
fn clear() -> bool {
    let mut found = succeeds("nft", &format!("delete table inet {TABLE}"));
    for family in ["-4", "-6"] {
        for number in [0, HELD.number, TO_LINK.number, FROM_LINK.number] {
            let rule = format!("{family} rule del {}", policy_rule(number));
            while succeeds("ip", &rule) {
                found = true;
            }
        }
        // The routes of diverts have vanished with their devices.
        let route = format!("{family} route del local default dev lo table {ROUTE_TABLE}");
        found |= succeeds("ip", &route);
    }
    found
}

fn overruled(action: &'static str, family: Family, number: u32) -> Error {
    let (preference, mark) = (PREFERENCE + number, MARK + number);
    Error::Tool {
        action,
        command: format!("ip {} rule", family.flag()),
        reason: format!("a rule before {preference} leads packets with the mark {mark:#x} elsewhere"),
    }
}
