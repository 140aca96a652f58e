use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use bentpipe_proxy::{Config, Daemon};
use clap::Args;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::signal_name;

/// Run the proxy: intercept TCP at the satellite legs, split it, and give each side what its link needs.
///
/// It ends at SIGTERM, Ctrl-C or a hang-up, and takes its rules with it.
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
        let daemon = Daemon::start(&config)?;
        tracing::info!("ready");
        if let Some(signal) = signals.forever().next() {
            tracing::info!("ending at {}", signal_name(signal).unwrap_or("a signal"));
        }
        drop(daemon);
        Ok(ExitCode::SUCCESS)
    }
}
