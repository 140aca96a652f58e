//! Interception: the nftables rules that hand connections to the listeners, and the policy routing behind them.
//!
//! A SYN that crosses a satellite leg is given to its path's listener by `tproxy`; the later packets of both sockets
//! belong to a transparent socket, which `socket transparent` finds. Both kinds are marked, and marked packets are
//! routed to this host. So are the ICMP errors that quote a packet of such a socket, an unreachable server or a smaller
//! path MTU: they are addressed to the client or the server in whose name it was sent.
//!
//! A `tproxy` statement whose port nobody listens on does not match, so that the connection of a gateway whose daemon is
//! dead is forwarded, unsplit, by the rules that the daemon left.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output, Stdio};

use bentpipe_kernel::route::RouteSocket;

use crate::error::Error;

mod policy;
mod ruleset;

pub(crate) use ruleset::{ALIVE, FULL, FULL_CLIENTS, PATIENCE};
pub use ruleset::{Plan, ruleset};

/// The names under which the daemon's rules and routes are found, and removed, again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// The nftables table, in the family `inet`.
    pub table: String,
    /// The mark of intercepted packets.
    pub mark: u32,
    /// The routing table that brings marked packets to this host.
    pub route_table: u32,
    /// The preference of the policy rule that leads there; the main table has 32766.
    pub preference: u32,
    /// The mark of SYNs that are held until the server has answered.
    pub held_mark: u32,
    /// The routing table that brings them to the daemon's device.
    pub held_route_table: u32,
    /// The preference of the policy rule that leads there.
    pub held_preference: u32,
    /// The device through which the daemon takes them and gives them back.
    pub held: String,
    /// The device through which it gives back those that shall pass unsplit.
    pub passed: String,
}

impl Default for Names {
    fn default() -> Self {
        Self {
            table: "bentpipe".into(),
            mark: 0x6270,
            route_table: 25200,
            preference: 7600,
            held_mark: 0x6271,
            held_route_table: 25201,
            held_preference: 7601,
            held: "bentpipe0".into(),
            passed: "bentpipe1".into(),
        }
    }
}

const ROUTE_MARKED: &str = "route intercepted packets to this host";

/// The rules and routes of a running daemon; they are removed with it.
#[derive(Debug)]
pub(crate) struct Interception {
    routes: Routes,
    /// The rules that are in force, unless somebody else has removed them.
    rules: String,
}

/// The policy routing behind the rules.
#[derive(Debug, Clone)]
pub(crate) struct Routes {
    names: Names,
    families: Vec<Family>,
    /// SYNs that are to be held are routed into the device for it.
    holds: bool,
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
    /// With `holds` SYNs that are to be held are routed into the device for it, which must be there.
    pub(crate) fn install(
        names: Names,
        plan: &Plan<'_>,
        families: Vec<Family>,
        holds: bool,
    ) -> Result<Self, Error> {
        if clear(&names) {
            tracing::warn!(
                table = names.table,
                "cleared the rules and routes of a run that did not end in order"
            );
        }
        let mut interception = Self { routes: Routes { names, families, holds }, rules: String::new() };
        for &family in &interception.routes.families {
            interception.routes.add(family)?;
        }
        interception.replace_rules(plan)?;
        Ok(interception)
    }

    /// Puts these rules into force in the place of those that are there; in one transaction, or not at all.
    pub(crate) fn replace_rules(&mut self, plan: &Plan<'_>) -> Result<(), Error> {
        let rules = ruleset(&self.routes.names, plan);
        load_rules(&rules)?;
        self.rules = rules;
        Ok(())
    }

    /// Installs the rules again that somebody else has removed.
    pub(crate) fn restore(&self) -> Result<(), Error> {
        load_rules(&self.rules)
    }

    /// The routes, for one who looks after them.
    pub(crate) fn routes(&self) -> &Routes {
        &self.routes
    }
}

impl Routes {
    /// Sees that marked packets come to this host, in every family, and sets up again what somebody else has removed; true
    /// if there was need to. Where they do not come, the kernel drops a SYN that `tproxy` has given to a listener
    /// (`ip_forward`).
    pub(crate) fn mend(&self, socket: &mut RouteSocket) -> Result<bool, Error> {
        let mut mended = false;
        for &family in &self.families {
            if !self.lead_here(family, socket)? {
                // It complains of what is still there.
                let outcome = self.add(family);
                if !self.lead_here(family, socket)? {
                    outcome?;
                    return Err(self.overruled(family));
                }
                mended = true;
            }
        }
        Ok(mended)
    }

    fn lead_here(&self, family: Family, socket: &mut RouteSocket) -> Result<bool, Error> {
        let answer = socket.is_delivered_here(family.some_address(), self.names.mark);
        answer.map_err(Error::system("ask for the route of intercepted packets"))
    }

    fn overruled(&self, family: Family) -> Error {
        let Names { mark, preference, .. } = self.names;
        Error::Tool {
            action: ROUTE_MARKED,
            command: format!("ip {} rule", family.flag()),
            reason: format!("a rule before {preference} leads packets with the mark {mark:#x} elsewhere"),
        }
    }

    fn add(&self, family: Family) -> Result<(), Error> {
        self.route_marked(family)?;
        if self.holds { self.route_held(family) } else { Ok(()) }
    }

    fn route_marked(&self, family: Family) -> Result<(), Error> {
        let Names { mark, route_table, preference, .. } = &self.names;
        let family = family.flag();
        ip(ROUTE_MARKED, &format!("{family} route replace local default dev lo table {route_table}"))?;
        ip(
            ROUTE_MARKED,
            &format!("{family} rule add pref {preference} fwmark {mark:#x} lookup {route_table}"),
        )
    }

    /// Without the device there is no route, and the rule leads nowhere: held SYNs then go where all others go.
    fn route_held(&self, family: Family) -> Result<(), Error> {
        let Names { held_mark, held_route_table, held_preference, held, .. } = &self.names;
        let family = family.flag();
        let action = "route held SYNs to the daemon";
        ip(action, &format!("{family} route replace default dev {held} table {held_route_table}"))?;
        let selector = format!("pref {held_preference} fwmark {held_mark:#x}");
        ip(action, &format!("{family} rule add {selector} lookup {held_route_table}"))
    }
}

impl Drop for Interception {
    fn drop(&mut self) {
        clear(&self.routes.names);
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

/// Removes everything that goes by these names; true if there was anything. The rules go first, so that no connection
/// is taken that could not be routed to this host any more.
fn clear(names: &Names) -> bool {
    let Names { table, mark, route_table, preference, .. } = names;
    let Names { held_mark, held_route_table, held_preference, .. } = names;
    let mut found = succeeds(&mut arguments("nft", &format!("delete table inet {table}")));
    for family in ["-4", "-6"] {
        for (preference, mark, table) in
            [(preference, mark, route_table), (held_preference, held_mark, held_route_table)]
        {
            let rule = format!("{family} rule del pref {preference} fwmark {mark:#x} lookup {table}");
            while succeeds(&mut arguments("ip", &rule)) {
                found = true;
            }
        }
        // The route of held SYNs has vanished with its device.
        let route = format!("{family} route del local default dev lo table {route_table}");
        found |= succeeds(&mut arguments("ip", &route));
    }
    found
}

fn load_rules(text: &str) -> Result<(), Error> {
    let action = "load the interception rules";
    let mut command = arguments("nft", "-f -");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let output = command.spawn().and_then(|mut child| {
        // One that ends before it has read everything says why.
        let written = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(text.as_bytes()));
        let output = child.wait_with_output()?;
        if output.status.success() { written.map(|()| output) } else { Ok(output) }
    });
    check(action, "nft -f -", "install the package nftables", output)
}

/// Runs `ip` with these arguments.
pub(crate) fn ip(action: &'static str, line: &str) -> Result<(), Error> {
    let output = arguments("ip", line).stdin(Stdio::null()).output();
    check(action, &format!("ip {line}"), "install the package iproute2", output)
}

fn check(
    action: &'static str,
    command: &str,
    package: &str,
    output: std::io::Result<Output>,
) -> Result<(), Error> {
    let reason = match output {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            said.lines().find(|line| !line.trim().is_empty()).unwrap_or("it failed without a word").to_owned()
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => format!("{error}; {package}"),
        Err(error) => error.to_string(),
    };
    Err(Error::Tool { action, command: command.to_owned(), reason })
}

/// In a process group of its own: Ctrl-C is for the daemon, whose programs have rules and routes to remove.
fn arguments(program: &str, line: &str) -> Command {
    let mut command = Command::new(program);
    command.args(line.split(' ')).process_group(0);
    command
}

fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_from_the_terminal_does_not_reach_the_programs_that_undo_things() {
        let output = arguments("cat", "/proc/self/stat").output().unwrap();
        let stat = String::from_utf8(output.stdout).unwrap();
        let (pid, after_name) = (stat.split(' ').next(), stat.rsplit_once(") ").unwrap().1);
        // State, parent, process group (proc_pid_stat(5)).
        assert_eq!(after_name.split(' ').nth(2), pid, "{stat}");
    }
}
