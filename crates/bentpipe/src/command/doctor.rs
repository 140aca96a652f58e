mod bundle;
mod legs;
mod limits;
mod snoop;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use bentpipe_kernel::host::{Check, LinkNeeds, checks};
use bentpipe_proxy::{Config, config::SatelliteLeg};
use bentpipe_testbed::{LINK_NEEDS, MissingItem, require};
use bentpipe_units::Rate;
use clap::Args;

/// List what this host has and lacks for bentpipe, each finding with the line that mends it.
///
/// The exit code is 0 when nothing is lacking.
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Check what this configuration says of its legs and limits, and the buffers for the legs instead of for a GEO link of
    /// 10 Mbit/s.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

impl Doctor {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        super::log_to_stderr("error");
        let config = self.config.as_ref().map(Config::load).transpose()?;
        let mut checks = checks(&config.as_ref().map_or_else(geostationary, legs_of));
        checks.extend(config.iter().flat_map(legs::checks));
        checks.extend(config.iter().flat_map(limits::checks));
        checks.extend(config.iter().filter_map(snoop::cache));
        checks.extend(config.iter().filter_map(bundle::node));
        checks.extend(testbed());
        super::print(&if self.json { as_json(&checks)? } else { as_text(&checks) })?;
        Ok(if checks.iter().all(|check| check.ok) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
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

/// What `bentpipe demo` and `bentpipe link` need beside the daemon's needs.
fn testbed() -> Vec<Check> {
    let name = || "testbed".to_owned();
    match require(LINK_NEEDS) {
        Ok(()) => {
            vec![Check { name: name(), ok: true, found: "namespaces and TUN devices".into(), fix: None }]
        }
        Err(missing) => {
            let check = |item: &MissingItem| Check {
                name: name(),
                ok: false,
                found: item.found.clone(),
                fix: Some(item.fix.clone()),
            };
            missing.items().iter().map(check).collect()
        }
    }
}

/// A check that is passed, and one that is not.
fn pass(name: impl Into<String>, found: impl Into<String>) -> Check {
    Check { name: name.into(), ok: true, found: found.into(), fix: None }
}

fn fail(name: impl Into<String>, found: impl Into<String>, fix: impl Into<String>) -> Check {
    Check { name: name.into(), ok: false, found: found.into(), fix: Some(fix.into()) }
}

fn as_json(checks: &[Check]) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(&serde_json::json!({ "checks": checks }))? + "\n")
}

fn as_text(checks: &[Check]) -> String {
    let width = checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for check in checks {
        let mark = if check.ok { "ok  " } else { "LACK" };
        text.push_str(&format!("{mark}  {:width$}  {}\n", check.name, check.found));
        if let Some(fix) = &check.fix {
            text.push_str(&format!("      {:width$}  → {fix}\n", ""));
        }
    }
    text
}
