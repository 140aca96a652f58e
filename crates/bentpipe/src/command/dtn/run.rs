use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use bentpipe_dtn::config::NodeConfig;
use bentpipe_dtn::daemon::Prepared;
use bentpipe_kernel::limits::raise_descriptor_limit;
use bentpipe_kernel::notify::Notifier;
use bentpipe_kernel::privileges::{self, drop_to};
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use crate::command::account;

/// How long the process waits for threads that still do something when the node has stopped.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Run a bundle node.
///
/// It ends at SIGTERM or Ctrl-C, and reads its configuration again at SIGHUP, as by `bentpipe dtn reload`. The
/// bundles that it is responsible for are in its store when it starts
/// again. Started by root, it drops to an ordinary account (node.user) once everything is set up.
#[derive(Debug, Args)]
pub(super) struct Run {
    /// The configuration.
    #[arg(short, long, value_name = "FILE", default_value = "/etc/bentpipe/node.toml")]
    config: PathBuf,
}

impl Run {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        crate::command::log::to_stderr("info");
        let manager = Notifier::from_environment();
        let config = NodeConfig::load(&self.config)?;
        if let Err(error) = raise_descriptor_limit() {
            tracing::warn!("cannot raise the number of descriptors to its hard limit: {error}");
        }
        let account = match config.node.user.as_deref() {
            // An ordinary user's node stays that user's.
            None if !rustix::process::geteuid().is_root() => None,
            wanted => account::choose(wanted, "node.user")?,
        };
        let prepared = Prepared::new(config, account.as_ref())?.reloads_from(self.config);
        // Before the first thread: capabilities belong to threads. An ordinary user without any has nothing
        // to give up.
        drop_to(account.as_ref(), &privileges::DAEMON)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .thread_name("bentpipe-dtn")
            .build()
            .context("cannot start the node's threads")?;
        let ended = runtime.block_on(async {
            let mut term = signal(SignalKind::terminate()).context("cannot listen for signals")?;
            let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for signals")?;
            let mut hangup = signal(SignalKind::hangup()).context("cannot listen for signals")?;
            let running = prepared.start().await?;
            tracing::info!("ready");
            manager.ready();
            loop {
                tokio::select! {
                    _ = term.recv() => break tracing::info!("ending at SIGTERM"),
                    _ = interrupt.recv() => break tracing::info!("ending at SIGINT"),
                    _ = hangup.recv() => {
                        let reloader = running.reloader().clone();
                        // The log has the outcome.
                        let _ = tokio::task::spawn_blocking(move || reloader.reload()).await;
                    }
                }
            }
            manager.stopping();
            running.stop().await;
            anyhow::Ok(())
        });
        // A lookup of a peer's name may go on for half a minute; the store is closed.
        runtime.shutdown_timeout(STOP_TIMEOUT);
        ended?;
        Ok(ExitCode::SUCCESS)
    }
}
