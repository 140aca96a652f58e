//! `--probe`: connections through a copy of this gateway, unsplit and split.
//!
//! Whether connections are split depends on what else the gateway has: firewalls, routing rules, settings of
//! the kernel. The probe finds out by connections of each family, first as the gateway forwards them and then
//! with a daemon, and names what swallows one.
//!
//! **In a copy, not on the gateway itself.** A [scratch gateway](scratch::Gateway) is a network namespace
//! with interfaces of the same names and addresses, and with the gateway's own nftables and iptables rules,
//! routing rules, routes and settings. Three reasons:
//!
//! - Firewalls decide by interface. A temporary interface on the gateway would have another name, belong to
//!   no zone, and show what becomes of strangers; and network managers would find and configure it.
//! - The daemon that runs would have to treat an interface as a leg that is none, and connections of clients
//!   would meet what the probe tries out.
//! - What swallows a connection can be proved: the suspects are taken away one at a time until the connection
//!   comes through. Nobody may do that on the gateway itself.
//!
//! The price: what is not copied is not tried: traffic control, XDP and other eBPF programs, ipsets, VRFs,
//! hardware. Rules that cannot be copied are told. Nor are secrets copied: keys of tunnels, of TCP Fast Open
//! and of stable addresses.
//!
//! The client is a neighbour on the LAN's interface, the server an address of a documentation range (RFC
//! 5737, RFC 3849) behind the leg's next hop. All of it vanishes with this process, however it ends.

mod culprit;
mod daemon;
mod ours;
mod scratch;
mod topology;
mod trial;

use bentpipe_kernel::host::Check;
use bentpipe_proxy::Config;
use bentpipe_testbed::{MissingItem, Need, require};

use self::culprit::Finding;
use self::daemon::Daemon;
use self::topology::{Family, Path};
use self::trial::{Outcome, Trial};

/// To make the copy and to read the gateway.
const NEEDS: &[Need] = &[Need::Privileges, Need::Namespaces, Need::Program("ip"), Need::Program("nft")];

/// What to try.
#[derive(Debug)]
pub(super) struct Probe<'a> {
    pub(super) config: &'a Config,
    /// The LAN's interface; by default the first with an address that is no leg.
    pub(super) from: Option<&'a str>,
}

impl Probe<'_> {
    /// One connection of each family, unsplit and split.
    pub(super) fn checks(&self) -> Vec<Check> {
        if let Err(missing) = require(NEEDS) {
            let check = |item: &MissingItem| {
                Check::fail("probe", format!("not tried: {}", item.found), item.fix.clone())
            };
            return missing.items.iter().map(check).collect();
        }
        let plan = match topology::read(self.config, self.from) {
            Ok(plan) => plan,
            Err(error) => return vec![not_tried("probe", &error)],
        };
        let mut checks: Vec<Check> = plan.notes.iter().map(|note| Check::pass("probe", note)).collect();
        for family in Family::BOTH {
            checks.extend(match plan.path(family) {
                Ok(path) => self.of_family(&plan, &path),
                Err(reason) => vec![Check::pass(format!("probe, {family}"), format!("not tried: {reason}"))],
            });
        }
        checks
    }

    fn of_family(&self, plan: &topology::Plan, path: &Path) -> Vec<Check> {
        let name = |what: &str| format!("probe, {} {what}", path.family);
        let trial = match Trial::new(plan, path) {
            Ok(trial) => trial,
            Err(error) => return vec![not_tried(&name("copy"), &error)],
        };
        let unsplit = trial.attempt(None);
        if !unsplit.is_through() {
            let finding = culprit::of_unsplit(&trial);
            return vec![failed(name("unsplit"), &unsplit, finding)];
        }
        let passed = Check::pass(name("unsplit"), format!("{path}: {unsplit}"));
        vec![passed, self.split(&trial, name("split"), path)]
    }

    fn split(&self, trial: &Trial, name: String, path: &Path) -> Check {
        let outcome = match Daemon::start(trial, self.config) {
            Ok(daemon) => trial.attempt(Some(&daemon)),
            Err(error) => Outcome::NoDaemon(format!("{error:#}")),
        };
        match outcome {
            Outcome::Split => Check::pass(name, format!("{path}: {outcome}")),
            outcome => failed(name, &outcome, culprit::of_split(trial, self.config, &outcome)),
        }
    }
}

fn failed(name: String, outcome: &Outcome, finding: Finding) -> Check {
    Check::fail(name, format!("{outcome}; {}", finding.cause), finding.remedy)
}

fn not_tried(name: &str, error: &anyhow::Error) -> Check {
    let remedy = "mend this and run it again, or look without the probe: docs/neighbours.md";
    Check::fail(name, format!("not tried: {error:#}"), remedy)
}
