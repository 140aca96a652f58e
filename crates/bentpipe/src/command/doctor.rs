mod bundle;
mod fix;
mod legs;
mod limits;
mod persistent;
mod probe;
mod service;
mod snoop;
mod way_back;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use bentpipe_config::{Checked, Fault};
use bentpipe_kernel::host::{Check, LinkNeeds, Wanted, checks};
use bentpipe_proxy::{Config, config::SatelliteLeg, host};
use bentpipe_testbed::{LINK_NEEDS, MissingItem, require};
use bentpipe_units::{Rate, human};
use clap::Args;
use rustix::process::geteuid;

use self::fix::{Outcome, Plan};
use self::probe::Probe;

/// Check this host for everything that bentpipe needs, and show a fix for each finding.
///
/// With --config it is the check before `bentpipe run`: it finds what a start would refuse, all errors of the
/// file among it, and what would break traffic, and says nothing of what the configuration does not use. The
/// exit code is 0 when nothing is lacking; what is marked WARN is worth a look.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Check this configuration, and the host for it; without it, the host for any configuration, with the
    /// buffers for a GEO link of 10 Mbit/s.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Show the fixes, ask, apply them, and check again. Kernel parameters are written to
    /// /etc/sysctl.d/60-bentpipe.conf and modules to /etc/modules-load.d/60-bentpipe.conf, so that they
    /// survive a reboot.
    #[arg(long)]
    fix: bool,
    /// With --fix: do not ask.
    #[arg(long, requires = "fix")]
    yes: bool,
    /// Try one connection of each family, unsplit and split, through a copy of this gateway: its interfaces,
    /// rules, routes and settings in a network namespace. Nothing of the gateway itself is touched. What
    /// swallows a connection is named.
    #[arg(long, requires = "config")]
    probe: bool,
    /// With --probe: the LAN's interface; by default the first that is no leg and has an address.
    #[arg(long, requires = "probe", value_name = "INTERFACE")]
    from: Option<String>,
    /// Print one JSON document; the plan of --fix is then printed on standard error.
    #[arg(long)]
    json: bool,
    /// Where sysctl.d and modules-load.d are.
    #[arg(long, hide = true, value_name = "DIR", default_value = "/etc")]
    etc: PathBuf,
}

impl Doctor {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        super::log::to_stderr("error");
        let file = self.config.as_deref().map(File::read).transpose()?;
        let mut checks = self.all_checks(file.as_ref());
        let outcomes = if self.fix { self.apply_fixes(&checks)? } else { Vec::new() };
        if !outcomes.is_empty() {
            checks = self.all_checks(file.as_ref());
        }
        super::print(&if self.json { self.as_json(&checks, &outcomes)? } else { as_text(&checks) })?;
        let is_healthy = checks.iter().all(|check| check.ok) && outcomes.iter().all(Outcome::is_done);
        Ok(if is_healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Those of a file with errors are the errors: what else it says is not known.
    fn all_checks(&self, file: Option<&File>) -> Vec<Check> {
        let Some(File { findings, config }) = file else { return of_any() };
        let mut checks = findings.clone();
        if let Some(config) = config {
            checks.extend(of_config(config));
            if self.probe {
                checks.extend(Probe { config, from: self.from.as_deref() }.checks());
            }
        }
        checks
    }

    /// Shows the plan, asks whether to apply it, and shows the result of each step.
    fn apply_fixes(&self, checks: &[Check]) -> anyhow::Result<Vec<Outcome>> {
        let plan = Plan::of(checks, &self.etc);
        self.print(&plan.to_string())?;
        if plan.is_empty() {
            return Ok(Vec::new());
        }
        ensure!(geteuid().is_root(), "--fix changes this host, which takes root: sudo bentpipe doctor --fix");
        if !self.yes && !self.agreed()? {
            self.print("Nothing was changed.\n")?;
            return Ok(Vec::new());
        }
        let outcomes = plan.apply();
        self.print(&outcomes.iter().map(Outcome::to_string).collect::<String>())?;
        Ok(outcomes)
    }

    fn agreed(&self) -> anyhow::Result<bool> {
        let terminal = !self.json && std::io::stdin().is_terminal();
        ensure!(
            terminal,
            "--fix asks first, and nobody can answer here: add --yes to do what is shown above"
        );
        super::print("Do this? [y/N] ")?;
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer).context("cannot read the answer; nothing was changed")?;
        Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
    }

    /// Next to a JSON document, text goes to standard error.
    fn print(&self, text: &str) -> anyhow::Result<()> {
        if !self.json {
            return super::print(text);
        }
        super::print_note(text.trim_end());
        Ok(())
    }

    fn as_json(&self, checks: &[Check], outcomes: &[Outcome]) -> anyhow::Result<String> {
        let mut document = serde_json::json!({ "checks": checks });
        if self.fix {
            document["done"] = serde_json::to_value(outcomes)?;
        }
        Ok(serde_json::to_string_pretty(&document)? + "\n")
    }
}

/// The configuration's file.
struct File {
    /// What is wrong with it and what it warns of.
    findings: Vec<Check>,
    /// None where it has errors.
    config: Option<Config>,
}

impl File {
    /// # Errors
    /// It cannot be read.
    fn read(path: &Path) -> anyhow::Result<Self> {
        match Config::load_with_warnings(path) {
            Ok(Checked { value, warnings }) => {
                let found = format!(
                    "{}: {}, {}",
                    path.display(),
                    human::count(value.legs.len(), "satellite leg"),
                    human::count(value.rules.len(), "rule")
                );
                let read = Check::pass("configuration", found);
                let warn = |fault: &Fault| Check { ok: true, warning: true, ..finding(fault) };
                let findings = std::iter::once(read).chain(warnings.iter().map(warn)).collect();
                Ok(Self { findings, config: Some(value) })
            }
            Err(error) if error.faults().is_empty() => Err(error.into()),
            Err(error) => Ok(Self { findings: error.faults().iter().map(finding).collect(), config: None }),
        }
    }
}

fn finding(fault: &Fault) -> Check {
    let (reason, remedy) = fault.parts();
    let written = fault.written.as_ref().map_or_else(String::new, |line| format!(", in `{line}`"));
    Check::fail(fault.location(), format!("{reason}{written}"), remedy)
}

/// The host for any configuration, and for `bentpipe demo` and `bentpipe link`.
fn of_any() -> Vec<Check> {
    let mut checks = checks(&Wanted::everything(geostationary()));
    if cfg!(feature = "laboratory") {
        checks.extend(testbed());
    }
    checks
}

/// The host for this one, by the checks that a start makes, and by those that it has no time for.
fn of_config(config: &Config) -> Vec<Check> {
    let wanted = Wanted { features: host::features(config), links: legs_of(config), for_any: false };
    let mut checks = checks(&wanted);
    checks.extend(host::congestion_controls(config));
    checks.extend(host::requirements(config));
    checks.extend(host::settings(config));
    checks.extend(host::surroundings(config));
    checks.extend(legs::checks(config));
    checks.extend(way_back::checks(config));
    checks.extend(limits::checks(config));
    checks.extend(snoop::cache(config));
    checks.extend(bundle::node(config));
    checks.extend(bentpipe_proxy::check_protected_legs(config));
    checks.extend(service::checks(config));
    checks
}

/// A link of 10 Mbit/s over a geostationary satellite.
fn geostationary() -> Vec<LinkNeeds> {
    let rtt = Duration::from_millis(600);
    vec![LinkNeeds { name: "GEO".into(), rate: Rate::mbps(10), rtt, send_buffer: None, receive_buffer: None }]
}

/// Legs without a rate have no bandwidth-delay product to check.
fn legs_of(config: &Config) -> Vec<LinkNeeds> {
    let needs = |(name, leg): (&String, &SatelliteLeg)| {
        Some(LinkNeeds {
            name: name.clone(),
            rate: leg.rate?,
            rtt: leg.rtt.get(),
            send_buffer: leg.send_buffer,
            receive_buffer: leg.receive_buffer,
        })
    };
    config.legs.iter().filter_map(needs).collect()
}

/// The additional needs of `bentpipe demo` and `bentpipe link`.
fn testbed() -> Vec<Check> {
    let name = || "testbed".to_owned();
    match require(LINK_NEEDS) {
        Ok(()) => {
            vec![Check::pass(name(), "namespaces and TUN devices")]
        }
        Err(missing) => {
            let check = |item: &MissingItem| Check::fail(name(), item.found.clone(), item.fix.clone());
            missing.items.iter().map(check).collect()
        }
    }
}

fn as_text(checks: &[Check]) -> String {
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for check in checks {
        let mark = match (check.ok, check.warning) {
            (false, _) => "LACK",
            (true, true) => "WARN",
            (true, false) => "ok  ",
        };
        text.push_str(&format!("{mark}  {:width$}  {}\n", check.name, check.found));
        if let Some(fix) = &check.fix {
            text.push_str(&format!("      {:width$}  → {fix}\n", ""));
        }
    }
    text
}
