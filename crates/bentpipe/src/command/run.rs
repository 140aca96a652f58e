use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use bentpipe_kernel::limits::raise_descriptor_limit;
use bentpipe_kernel::privileges::{self, drop_to};
use bentpipe_proxy::{Config, Daemon};
use clap::Args;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::signal_name;

use super::account;

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
        let account = account::choose(config.proxy.user.as_deref(), "proxy.user")?;
        drop_to(account.as_ref(), &privileges::DAEMON)?;
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
