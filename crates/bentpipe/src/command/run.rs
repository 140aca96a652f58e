use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use bentpipe_kernel::limits::raise_descriptor_limit;
use bentpipe_kernel::privileges::{self, Account, drop_to};
use bentpipe_proxy::{Config, Daemon};
use clap::Args;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::signal_name;

/// The accounts that a daemon goes on as where the configuration names none, the first that there is.
const ACCOUNTS: [&str; 2] = ["bentpipe", "nobody"];

/// Run the proxy: intercept TCP at the satellite legs, split it, and give each side what its link needs.
///
/// It ends at SIGTERM or Ctrl-C and takes its rules with it. At SIGHUP it reads its configuration again. Started by root,
/// it goes on as an ordinary account (proxy.user) once everything is set up.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The configuration.
    #[arg(short, long, value_name = "FILE", default_value = "/etc/bentpipe/bentpipe.toml")]
    config: PathBuf,
}

impl Run {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        super::log_to_stderr("info");
        let config = Config::load(&self.config)?;
        // Before the first thread, so that no signal is lost while the daemon starts.
        let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).context("cannot listen for signals")?;
        if let Err(error) = raise_descriptor_limit() {
            tracing::warn!("cannot raise the number of descriptors to its hard limit: {error}");
        }
        let prepared = Daemon::prepare(&config)?;
        drop_to(account(&config)?.as_ref(), &privileges::DAEMON)?;
        let mut daemon = prepared.start()?;
        tracing::info!("ready");
        for signal in signals.forever() {
            if signal != SIGHUP {
                tracing::info!("ending at {}", signal_name(signal).unwrap_or("a signal"));
                break;
            }
            if let Err(error) = self.reload(&mut daemon) {
                tracing::error!("the configuration stays as it was: {error:#}");
            }
        }
        drop(daemon);
        Ok(ExitCode::SUCCESS)
    }

    fn reload(&self, daemon: &mut Daemon) -> anyhow::Result<()> {
        let config = Config::load(&self.config)?;
        Ok(daemon.reload(&config)?)
    }
}

/// The account to go on as; none where there is no account to be found.
fn account(config: &Config) -> anyhow::Result<Option<Account>> {
    if let Some(name) = &config.proxy.user {
        return Ok(Some(Account::find(name).context("proxy.user")?));
    }
    let found = ACCOUNTS.into_iter().find_map(|name| Some((name, Account::find(name).ok()?)));
    match found {
        Some(("nobody", _)) => {
            tracing::warn!(
                "going on as nobody, whom others may be as well; better is an account of its own: useradd --system bentpipe"
            );
        }
        Some(_) => {}
        None => tracing::warn!(
            "there is neither an account bentpipe nor nobody: root's files stay open to the daemon"
        ),
    }
    Ok(found.map(|(_, account)| account))
}
