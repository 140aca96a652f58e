//! Interception: the nftables rules that hand connections to the listeners, and the policy routing behind
//! them.
//!
//! ```text
//! SYN ─► prerouting ─► routing ─► forward, every chain of others ─► ours: a copy to the daemon, and dropped
//!                                                                      │
//! listener ◄── input ◄── tproxy in prerouting ◄── lo ◄──────────── the daemon
//! ```
//!
//! So a SYN is taken only when the operator's firewall has let it pass, with the route and the mark that it
//! has by then, and it comes to the listener by `lo`, which firewalls let in. The later packets of both
//! sockets belong to a transparent socket, which `socket transparent` finds; they are marked, and what comes
//! in with this mark is routed to this host. So are the ICMP errors that quote a packet of such a socket, an
//! unreachable server or a smaller path MTU: they are addressed to the client or the server in whose name it
//! was sent.
//!
//! What drops the SYNs whose copies the daemon has is a table of its own that the kernel removes with the
//! process ([`HeldTable`](bentpipe_kernel::nftables::HeldTable)). So the connection of a gateway whose daemon
//! is dead is forwarded, unsplit, by the rules that the daemon left; and that of one whose daemon stands
//! still, when the elements of the set `alive` have expired.
//!
//! The policy rule that leads marked packets to this host does not apply to questions about packets that this
//! host sends (`iif lo`). That is how the reverse path filter asks with `src_valid_mark`, how `fib` rules of
//! nftables ask with `mark`, and what a socket does that inherits its mark (`tcp_fwmark_accept`).
//!
//! A [`TunDivert`] marks packets and routes them into a TUN device that the daemon reads.
//! The device vanishes with the process, and the route with it; then the packets take their usual route.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bentpipe_kernel::nftables::{HeldTable, NfTables};
use bentpipe_kernel::route::{PolicyRule, RouteSocket};
use bentpipe_kernel::sock_diag::SockDiag;
use serde::{Deserialize, Serialize};

use crate::config::{Interface, Mark, MarkField};
use crate::error::Error;

mod arrival;
mod bundled;
pub(crate) mod counters;
mod liveness;
mod loopback;
mod policy;
mod program;
mod protected;
mod rate_limits;
mod ruleset;
mod snooped;
pub(crate) mod tracking;
pub(crate) mod tun;

pub(crate) use arrival::{Arrival, Crossing};
use counters::PolicyCounters;
pub(crate) use liveness::{Liveness, Suspension};
pub(crate) use program::ip;
use program::{load_rules, succeeds};
pub(crate) use ruleset::{ALIVE, FULL, FULL_CLIENTS, PASS, PATIENCE, TTL};
pub use ruleset::{Plan, ruleset};
use ruleset::{into_force, successor};
use tracking::SplitConnections;

/// The nftables table, in the family `inet`.
pub(crate) const TABLE: &str = "bentpipe";
/// The table that drops what is taken as long as the daemon lives.
const HELD_TABLE: &str = "bentpipe_held";
/// The group to which the rules log the SYNs that they take.
pub(crate) const LOG_GROUP: u16 = 25200;
/// The zone of connection tracking in which this host's own direction of a split connection lies.
const ZONE: u16 = 25200;
/// The routing table that brings marked packets to this host.
const ROUTE_TABLE: u32 = 25200;
/// The preference of the first policy rule, unless somebody else has rules before ours. Marked packets are
/// nobody else's, so that the rules of others need not come first.
const PREFERENCE: u32 = 60;
/// How far behind the first our last policy rule stands: to it another jumps.
const END: u32 = 9;
/// As many preferences are ours.
const SPAN: u32 = END + 1;
/// Diverts packets of snooped flows towards a satellite.
pub(crate) const TO_LINK: TunDivert = TunDivert { number: 2, mark: Mark::ToLink, device: "bentpipe2" };
/// Diverts packets of snooped flows from a satellite.
pub(crate) const FROM_LINK: TunDivert = TunDivert { number: 3, mark: Mark::FromLink, device: "bentpipe3" };

/// Diverts marked packets into a TUN device that the daemon reads; the kernel forwards the packets that it
/// writes there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TunDivert {
    /// Its routing table and its preference follow those of interception by this number.
    number: u32,
    mark: Mark,
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
    /// Settings of `lo` that were changed for this.
    sysctls: Vec<String>,
    /// What the rules count.
    counters: Arc<PolicyCounters>,
    /// The same rules for a host that tracks connections, if these are for one that does not; and what puts
    /// them in the place of these.
    with_tracking: Option<[String; 2]>,
    /// The rules as the kernel had them when they were loaded, if it said so.
    loaded: Option<Vec<Vec<u8>>>,
    /// Another process has taken them over.
    is_left: bool,
}

/// What one process leaves in force for the next one.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct InForce {
    rules: String,
    /// The interfaces by which the rules tell the sides of snooped flows apart.
    sides: Vec<Interface>,
    /// Settings of `lo` that are to be set back in the end.
    sysctls: Vec<String>,
    /// The preference of the first policy rule.
    preference: u32,
}

/// The policy routing behind the rules.
#[derive(Debug, Clone)]
pub(crate) struct Routes {
    families: Vec<Family>,
    /// The preference of the first rule.
    first: Arc<AtomicU32>,
    /// Those whose devices are there.
    tun_diverts: Vec<TunDivert>,
    mark: MarkField,
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
    /// The devices of `tun_diverts` must exist. Connections are taken at once if it `takes` them, else when
    /// the watchdog says so.
    pub(crate) fn install(
        plan: &Plan<'_>,
        families: Vec<Family>,
        tun_diverts: Vec<TunDivert>,
        counters: Arc<PolicyCounters>,
        takes: bool,
    ) -> Result<Self, Error> {
        if clear() {
            tracing::warn!(table = TABLE, "cleared the rules and routes of a run that did not end in order");
        }
        let mut interception = Self {
            routes: Routes { families, first: Arc::new(PREFERENCE.into()), tun_diverts, mark: plan.mark },
            rules: String::new(),
            sides: Vec::new(),
            sysctls: loopback::prepare()?,
            counters,
            with_tracking: None,
            loaded: None,
            is_left: false,
        };
        let mut socket = RouteSocket::open().map_err(Error::system("ask for routes"))?;
        interception.routes.set_up(&mut socket)?;
        interception.replace_rules(plan, takes)?;
        Ok(interception)
    }

    /// Goes on with the rules and routes that another process has set up and leaves. Where this process needs
    /// other ones, they take the place of those in one transaction; if they cannot, those stay, and it is an
    /// error.
    pub(crate) fn take_over(
        families: Vec<Family>,
        tun_diverts: Vec<TunDivert>,
        mark: MarkField,
        counters: Arc<PolicyCounters>,
        InForce { rules, sides, sysctls, preference }: InForce,
    ) -> Self {
        Self {
            routes: Routes { families, first: Arc::new(preference.into()), tun_diverts, mark },
            rules,
            sides,
            sysctls,
            counters,
            with_tracking: None,
            loaded: NfTables::open().and_then(|mut tables| tables.rules_of(TABLE)).ok(),
            is_left: false,
        }
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

    /// Notes what there is to do if this host begins to track connections.
    pub(crate) fn expect_tracking(&mut self, plan: &Plan<'_>) {
        self.with_tracking = (!plan.tracked).then(|| {
            let tracked = Plan { tracked: true, ..*plan };
            [ruleset(&tracked), self.replacing(&tracked)]
        });
    }

    /// What puts rules in the place of those that are there. If both snoop, and between the same sides, the
    /// flows stay that are snooped.
    fn replacing(&self, plan: &Plan<'_>) -> String {
        let snoops = plan.snooped.is_some() && !plan.interfaces.is_empty() && plan.interfaces == self.sides;
        if snoops { successor(plan, &self.rules) } else { ruleset(plan) }
    }

    /// Takes no new connection any more; those that are split go on.
    pub(crate) fn cease(&self) {
        if !self.is_left {
            let chain = format!("inet {TABLE} decide");
            succeeds("nft", &format!("flush chain {chain}; add rule {chain} goto unsplit"));
        }
    }

    /// What is in force.
    pub(crate) fn in_force(&self) -> InForce {
        InForce {
            rules: self.rules.clone(),
            sides: self.sides.clone(),
            sysctls: self.sysctls.clone(),
            preference: self.routes.first(),
        }
    }

    /// Leaves rules and routes to the process that has taken over.
    pub(crate) fn leave(&mut self) {
        self.is_left = true;
    }

    /// Puts these rules in the place of those that are there; in one transaction, or not at all. Connections
    /// are taken at once if it `takes` them.
    ///
    /// Flows that are snooped stay so if these rules snoop, too, whatever they say of the flows: that was
    /// decided at their SYN. Where other interfaces are satellites, it is no longer known which of their ends
    /// is on the ground, and they pass.
    pub(crate) fn replace_rules(&mut self, plan: &Plan<'_>, takes: bool) -> Result<(), Error> {
        self.load(self.replacing(plan), takes, Some(plan))?;
        self.rules = ruleset(plan);
        self.sides = plan.snooped.map_or_else(Vec::new, |_| plan.interfaces.to_vec());
        self.expect_tracking(plan);
        Ok(())
    }

    /// Installs the rules again that another program has removed.
    pub(crate) fn restore(&mut self, takes: bool) -> Result<(), Error> {
        self.load(self.rules.clone(), takes, None)
    }

    /// Keeps the halves of connections apart where this host has begun to track connections. Those that are
    /// split already stay untracked.
    pub(crate) fn follow_tracking(&mut self, takes: bool) -> Result<(), Error> {
        let Some([rules, replacing]) = self.with_tracking.clone() else { return Ok(()) };
        let split = SplitConnections::list().map_err(Error::system("list split connections"))?;
        self.load(replacing + &split.untracked(), takes, None)?;
        (self.rules, self.with_tracking) = (rules, None);
        split.forget().map_err(Error::system("remove what is tracked of split connections"))
    }

    /// From which rule on, counted from 1, those of the kernel are others than were loaded; `None` if they are
    /// the same. If it is not known what was loaded, that is what is there now.
    ///
    /// # Errors
    /// Those of [`NfTables::rules_of`]: nothing is known of the rules then.
    pub(crate) fn first_change(&mut self, tables: &mut NfTables) -> io::Result<Option<usize>> {
        let there = tables.rules_of(TABLE)?;
        let loaded = self.loaded.get_or_insert_with(|| there.clone());
        let same = loaded.iter().zip(&there).take_while(|(before, now)| before == now).count();
        Ok((*loaded != there).then_some(same + 1))
    }

    /// Whether the rules are for a host that tracks no connections.
    pub(crate) fn expects_no_tracking(&self) -> bool {
        self.with_tracking.is_some()
    }

    /// Reads what the rules have counted.
    pub(crate) fn collect(&self, tables: &mut NfTables) {
        self.counters.collect(tables);
    }

    /// Loads rules, which take connections from the same moment if it `takes` them. Those before have counted
    /// until then; these count for `plan`, or for the same as before.
    fn load(&mut self, rules: String, takes: bool, plan: Option<&Plan<'_>>) -> Result<(), Error> {
        let mut tables = NfTables::open().ok();
        if let Some(tables) = &mut tables {
            self.collect(tables);
        }
        load_rules(&if takes { rules + &into_force() } else { rules })?;
        self.loaded = tables.and_then(|mut tables| tables.rules_of(TABLE).ok());
        self.counters.restart(plan);
        Ok(())
    }

    /// The routes, for the watchdog.
    pub(crate) fn routes(&self) -> &Routes {
        &self.routes
    }
}

impl Routes {
    /// The part of packets' marks that is ours.
    pub(crate) fn mark(&self) -> MarkField {
        self.mark
    }

    /// Whether a policy rule of somebody else asks for what a connection to a server has otherwise than the
    /// SYN for which it is made: the interface that it came in by, or who has sent it.
    pub(crate) fn depend_on_origin(socket: &mut RouteSocket) -> io::Result<bool> {
        let asks = |rules: Vec<PolicyRule>| rules.iter().any(|rule| rule.by_origin && !is_ours(rule));
        Ok(asks(socket.policy_rules(false)?) || asks(socket.policy_rules(true)?))
    }

    /// Where nothing of ours is there yet.
    fn set_up(&self, socket: &mut RouteSocket) -> Result<(), Error> {
        self.go_first(socket).map_err(Error::system("list the policy rules"))?;
        self.families.iter().try_for_each(|&family| {
            self.route_marked(family)?;
            let mut tun_diverts = self.tun_diverts.iter();
            tun_diverts.try_for_each(|tun_divert| tun_divert.add(family, self.first(), self.mark))
        })
    }

    /// The preference of the first rule.
    fn first(&self) -> u32 {
        self.first.load(Ordering::Relaxed)
    }

    /// Sees that marked packets come to this host, in every family, and sets up again what somebody else has
    /// removed or come before; true if there was need to. Where they do not come, the SYNs that the daemon
    /// sends to its listeners come to nobody.
    ///
    /// A rule that somebody adds without a preference comes before all others (`ip rule add`), ours included.
    /// So ours go before it.
    pub(crate) fn mend(&self, socket: &mut RouteSocket) -> Result<bool, Error> {
        let former = self.go_first(socket).map_err(Error::system("list the policy rules"))?;
        let mut mended = former.is_some();
        for &family in &self.families {
            if !self.lead_here(family, socket)? {
                // It complains of what is still there.
                let outcome = self.route_marked(family);
                if !self.lead_here(family, socket)? {
                    outcome?;
                    return Err(overruled(ROUTE_MARKED, family, self.mark.value(Mark::Injected)));
                }
                mended = true;
            }
        }
        if let Some(former) = former {
            remove_rules(socket, former).map_err(Error::system("remove policy rules"))?;
        }
        Ok(mended)
    }

    /// Finds another place for our rules where others stand before them, if there is room before those. Then
    /// it returns where they were.
    fn go_first(&self, socket: &mut RouteSocket) -> io::Result<Option<u32>> {
        let (mut lowest, end) = (u32::MAX, self.first() + END);
        for &family in &self.families {
            let rules = socket.policy_rules(family == Family::V6)?.into_iter();
            let others = rules.filter(|rule| !is_ours(rule) && rule.preference != end);
            lowest = others
                .map(|rule| rule.preference)
                .filter(|&preference| preference > 0)
                .fold(lowest, u32::min);
        }
        let former = self.first();
        if lowest >= former + SPAN || lowest.min(former) <= SPAN {
            return Ok(None);
        }
        // Not among the former ones, some of which may stand behind others.
        let first = lowest.min(former) - SPAN;
        self.first.store(first, Ordering::Relaxed);
        Ok(Some(former))
    }

    /// Repairs the diverts whose devices exist, and sets these up; true if there was need to. Without its
    /// route, packets of a divert take their usual route.
    pub(crate) fn repair_tun_diverts(&self, socket: &mut RouteSocket) -> Result<bool, Error> {
        let mut mended = false;
        for tun_divert in &self.tun_diverts {
            for &family in &self.families {
                mended |= tun_divert.mend(family, self.first(), self.mark, socket)?;
            }
        }
        Ok(mended)
    }

    /// Whether SYNs that the daemon sends come here, and the rules are there by which later packets do.
    fn lead_here(&self, family: Family, socket: &mut RouteSocket) -> Result<bool, Error> {
        let mut ask = || -> io::Result<bool> {
            let injected = self.mark.value(Mark::Injected);
            let there = socket.policy_rules(family == Family::V6)?;
            let wanted = [
                self.rule_of_ours(),
                PolicyRule {
                    preference: self.first() + 6,
                    jump: self.first() + END,
                    by_origin: true,
                    ..PolicyRule::default()
                },
            ];
            let are_there = wanted.iter().all(|rule| there.contains(rule));
            Ok(are_there && socket.is_delivered_here(family.some_address(), injected)?)
        };
        ask().map_err(Error::system("ask for the route of intercepted packets"))
    }

    fn rule_of_ours(&self) -> PolicyRule {
        PolicyRule {
            preference: self.first() + 7,
            mark: self.mark.value(Mark::Ours),
            mask: self.mark.mask(),
            table: ROUTE_TABLE,
            ..PolicyRule::default()
        }
    }

    /// The rules, all of which are tried although some may be there: `END` first, to which another jumps.
    fn route_marked(&self, family: Family) -> Result<(), Error> {
        let flag = family.flag();
        ip(ROUTE_MARKED, &format!("{flag} route replace local default dev lo table {ROUTE_TABLE}"))?;
        let outcomes =
            rules(self.first(), self.mark).map(|rule| ip(ROUTE_MARKED, &format!("{flag} rule add {rule}")));
        outcomes.into_iter().collect()
    }
}

impl TunDivert {
    /// Without the device there is no route, and the rule leads nowhere.
    fn add(self, family: Family, first: u32, mark: MarkField) -> Result<(), Error> {
        let (flag, table) = (family.flag(), ROUTE_TABLE + self.number);
        let route = format!("{flag} route replace default dev {} table {table}", self.device);
        ip(ROUTE_TUN_DIVERT, &route)?;
        ip(ROUTE_TUN_DIVERT, &format!("{flag} rule add {} {}", self.place(first), mark.selector(self.mark)))
    }

    /// Its rule, without the mark.
    fn place(self, first: u32) -> String {
        format!("pref {} lookup {}", first + self.number, ROUTE_TABLE + self.number)
    }

    /// A device that is set down loses its routes, and keeps the rules that lead to them.
    fn mend(
        self,
        family: Family,
        first: u32,
        mark: MarkField,
        socket: &mut RouteSocket,
    ) -> Result<bool, Error> {
        if self.is_gone_or_leads_here(family, mark, socket)? {
            return Ok(false);
        }
        ip(ROUTE_TUN_DIVERT, &format!("link set {} up", self.device))?;
        // It complains of what is still there.
        let outcome = self.add(family, first, mark);
        if !self.is_gone_or_leads_here(family, mark, socket)? {
            outcome?;
            return Err(overruled(ROUTE_TUN_DIVERT, family, mark.value(self.mark)));
        }
        Ok(true)
    }

    /// A service whose device is gone has failed and logged it.
    fn is_gone_or_leads_here(
        self,
        family: Family,
        mark: MarkField,
        socket: &mut RouteSocket,
    ) -> Result<bool, Error> {
        let ask = |socket: &mut RouteSocket| -> io::Result<bool> {
            let Some(device) = socket.index_of(self.device)? else { return Ok(true) };
            let mark = mark.value(self.mark);
            Ok(socket.interface_of_marked(family.some_address(), mark)? == Some(device))
        };
        ask(socket).map_err(Error::system("ask for the route of packets that the daemon sees"))
    }
}

impl Drop for Interception {
    fn drop(&mut self) {
        if !self.is_left {
            clear();
            loopback::restore(&self.sysctls);
            forget_ended();
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

/// The policy rules of interception, each in the form that adds it: the last first, to which another jumps.
/// The diverts' stand at `first` + 2 and + 3.
fn rules(first: u32, mark: MarkField) -> [String; 5] {
    let [injected, error, lo, ours, end] = [4, 5, 6, 7, END].map(|number| first + number);
    [
        format!("pref {end} nop"),
        format!("pref {injected} iif lo {} lookup {ROUTE_TABLE}", mark.selector(Mark::Injected)),
        format!("pref {error} iif lo {} lookup {ROUTE_TABLE}", mark.selector(Mark::OwnError)),
        format!("pref {lo} iif lo goto {end}"),
        format!("pref {ours} {} lookup {ROUTE_TABLE}", mark.selector(Mark::Ours)),
    ]
}

/// Whether a policy rule is one of ours, whatever its mark: by its table, or by the jump over ours, which
/// stands 6 behind the first. The rule at which it ends does nothing and cannot be told from others' but by
/// its place.
fn is_ours(rule: &PolicyRule) -> bool {
    (ROUTE_TABLE..=ROUTE_TABLE + FROM_LINK.number).contains(&rule.table) || is_jump(rule)
}

fn is_jump(rule: &PolicyRule) -> bool {
    rule.by_origin && rule.jump == rule.preference + END - 6
}

/// Removes our policy rules from a preference on; true if there were any.
fn remove_rules(socket: &mut RouteSocket, from: u32) -> io::Result<bool> {
    let mut found = false;
    for (flag, is_ipv6) in [("-4", false), ("-6", true)] {
        for rule in
            socket.policy_rules(is_ipv6)?.iter().filter(|rule| rule.preference >= from && is_ours(rule))
        {
            let PolicyRule { preference, table, jump, by_origin, .. } = *rule;
            let removals = match (is_jump(rule), by_origin) {
                (true, _) => vec![format!("{preference} iif lo goto {jump}"), format!("{jump} nop")],
                // The one of later packets stands 2 before the end of the jump, which somebody may have
                // removed.
                (false, false) if table == ROUTE_TABLE => {
                    vec![format!("{preference} lookup {table}"), format!("{} nop", preference + 2)]
                }
                (false, _) => vec![format!("{preference} lookup {table}")],
            };
            for removal in removals {
                found |= succeeds("ip", &format!("{flag} rule del pref {removal}"));
            }
        }
    }
    Ok(found)
}

/// Removes the rules and routes; true if there were any. The rules go first, so that no connection is taken
/// that could not be routed to this host any more.
fn clear() -> bool {
    let mut found = succeeds("nft", &format!("delete table inet {TABLE}"));
    let removed = RouteSocket::open().and_then(|mut socket| remove_rules(&mut socket, 0));
    found |= removed.unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot list the policy rules to remove ours (ip rule)");
        false
    });
    for family in ["-4", "-6"] {
        // The routes of diverts have vanished with their devices.
        let route = format!("{family} route del local default dev lo table {ROUTE_TABLE}");
        found |= succeeds("ip", &route);
    }
    found
}

/// Forgets the connections in TIME-WAIT between ends that are not this host's. From now on their packets are
/// forwarded, but not those that meet such a socket (`ip_forward`): a client that uses its port again would
/// not get through for a minute.
fn forget_ended() {
    let forget = || -> io::Result<usize> {
        let (mut routes, mut is_forwarded) = (RouteSocket::open()?, HashMap::new());
        SockDiag::open()?.forget_ended(|local| {
            let ask = || routes.is_delivered_here(local.ip(), 0).is_ok_and(|is_delivered| !is_delivered);
            *is_forwarded.entry(local.ip()).or_insert_with(ask)
        })
    };
    if let Err(error) = forget() {
        tracing::warn!(
            %error,
            "cannot end TIME-WAIT of connections that were split: clients that use their port again in the next \
             minute will have to wait for its end"
        );
    }
}

fn overruled(action: &'static str, family: Family, mark: u32) -> Error {
    Error::Tool {
        action,
        command: format!("ip {} rule", family.flag()),
        reason: format!("a rule before ours leads packets with the mark {mark:#x} elsewhere"),
    }
}

/// Drops the SYNs whose copies the daemon has, as long as this process lives or hands it over.
pub(crate) fn hold(mark: MarkField) -> Result<HeldTable, Error> {
    let table = HeldTable::install(HELD_TABLE, ruleset::BEHIND_LAST, mark.mask(), mark.value(Mark::Taken));
    table.map_err(Error::system("make the nftables table that ends with this process"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{AtLimit, Handshake};
    use crate::types::leg_pair::leg_pairs;

    /// As root, in a network of its own.
    fn in_own_network(test: impl FnOnce() + Send + 'static) {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: needs root");
            return;
        }
        let tested = std::thread::spawn(|| {
            // SAFETY: the new namespace is this thread's alone, and no file descriptors are concerned.
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.unwrap();
            assert!(succeeds("ip", "link set lo up"));
            test();
        });
        tested.join().unwrap();
    }

    #[test]
    fn rules_that_this_process_loads_are_no_change_and_those_of_another_program_are() {
        in_own_network(|| {
            let interfaces = [Interface::try_from("sat0".to_owned()).unwrap()];
            let pairs = leg_pairs(1, &[], 7600);
            let plan = |snooped| Plan {
                interfaces: &interfaces,
                pairs: &pairs,
                replaced: &[],
                handshake: Handshake::Early,
                at_limit: AtLimit::Pass,
                rates: Default::default(),
                rules: &[],
                snooped,
                bundle: None,
                protected: &[],
                mark: MarkField::default(),
                tracked: false,
            };
            let mut tables = NfTables::open().unwrap();
            let mut interception =
                Interception::install(&plan(None), vec![Family::V4], Vec::new(), Arc::default(), false)
                    .unwrap();
            assert_eq!(interception.first_change(&mut tables).unwrap(), None);
            for snooped in [Some(9), Some(7), None] {
                interception.replace_rules(&plan(snooped), false).unwrap();
                assert_eq!(interception.first_change(&mut tables).unwrap(), None, "{snooped:?}");
            }
            let count = tables.rules_of(TABLE).unwrap().len();
            for (line, number) in
                [("add rule inet bentpipe decide accept", 2..count), ("flush ruleset", 1..2)]
            {
                assert!(succeeds("nft", line));
                let change = interception.first_change(&mut tables).unwrap().expect("it is found");
                assert!(number.contains(&change), "{line}: {change} of {count}");
                interception.restore(false).unwrap();
                assert_eq!(interception.first_change(&mut tables).unwrap(), None, "{line}");
            }
        });
    }
}
