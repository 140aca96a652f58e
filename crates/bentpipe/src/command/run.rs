mod bypass;
mod capacities;
mod events;
mod kept_file;
mod outages;
mod service;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use bentpipe_admin::Sockets;
use bentpipe_kernel::limits::raise_descriptor_limit;
use bentpipe_kernel::notify::Notifier;
use bentpipe_kernel::privileges::{self, drop_to};
use bentpipe_proxy::config::AdminSettings;
use bentpipe_proxy::upgrade::{ExtraFds, Predecessor};
use bentpipe_proxy::{Config, Daemon, Prepared};
use clap::Args;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use self::bypass::BypassFile;
use self::capacities::CapacitiesFile;
use self::events::Events;
use self::service::Service;
use super::{account, program, upgrade};

/// The line on standard output with which a successor says that it has taken over, for which `bentpipe
/// upgrade` waits; and the last word of the line in the log that says what a daemon splits.
pub(crate) const READY: &str = "ready";

/// Run the proxy: intercept TCP on the satellite legs, split it, and give each side what its link needs.
///
/// It ends at SIGTERM or Ctrl-C and takes its rules with it. At SIGHUP it reads its configuration again.
/// Started by root, it continues as an ordinary account (proxy.user) once everything is set up.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The configuration.
    #[arg(short, long, value_name = "FILE", default_value = "/etc/bentpipe/bentpipe.toml")]
    config: PathBuf,
    /// Take over the listeners and the connections of the daemon whose sockets are in this folder. `bentpipe
    /// upgrade` uses this.
    #[arg(long, value_name = "FOLDER")]
    take_over: Option<PathBuf>,
    /// Start a process that takes over, and end.
    #[arg(long, hide = true, requires = "take_over")]
    orphan: bool,
}

impl Run {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(folder) = self.take_over.as_ref().filter(|_| self.orphan) {
            upgrade::start_orphan(folder, &self.config)?;
            return Ok(ExitCode::SUCCESS);
        }
        super::log::to_stderr("info");
        let notifier = Notifier::from_environment();
        let config = Config::load(&self.config)?;
        // Later reloads and upgrades are asked for from any folder. A symbolic link stays one: what it leads
        // to then is read.
        let file = std::path::absolute(&self.config).context("cannot tell the folder that this runs in")?;
        // Before the first thread, so that no signal is lost while the daemon starts.
        let signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).context("cannot listen for signals")?;
        if let Err(error) = raise_descriptor_limit() {
            tracing::warn!("cannot raise the number of descriptors to its hard limit: {error}");
        }
        let program = program::identity();
        let predecessor = self.predecessor()?;
        let prepared = match &predecessor {
            None => Daemon::prepare(&config)?,
            Some(predecessor) => Prepared::beside(&config, predecessor)?,
        };
        let account = account::choose(config.proxy.user.as_deref(), "proxy.user")?;
        let coming = predecessor.as_ref().map_or(&[][..], Predecessor::extra_fds);
        let sockets = Sockets::open(&config.admin, account.as_ref(), coming)?;
        if let Some(account) = account {
            prepared.give_files_to(account);
        }
        let bypass = BypassFile::locate(&config.admin);
        if predecessor.is_none() && bypass.is_on() {
            prepared.set_bypass(true);
        }
        let mut capacities = CapacitiesFile::locate(&config.admin);
        if let (None, Some(capacities)) = (&predecessor, &mut capacities) {
            prepared.remember(capacities.read());
        }
        drop_to(account.as_ref(), &privileges::DAEMON)?;
        let events = Events::new();
        events.listen_for(signals)?;
        // From here on nothing may fail, because there are connections, perhaps those of the previous
        // process.
        let started = match &predecessor {
            None => prepared.start().map(|daemon| (daemon, ExtraFds::default())),
            Some(predecessor) => {
                prepared.build_from(predecessor).and_then(|candidate| candidate.claim(predecessor))
            }
        };
        let (daemon, extra_fds) = match started {
            Ok(started) => started,
            Err(error) => {
                sockets.close();
                return Err(error.into());
            }
        };
        if daemon.is_bypassed() {
            tracing::warn!("bypass on, as before: new connections pass unsplit until `bentpipe bypass off`");
        }
        let mut service =
            Service::new(file, program, daemon, sockets, notifier, extra_fds, (bypass, capacities));
        service.open(&events);
        if predecessor.is_some()
            && let Err(error) = super::print(&format!("{READY}\n"))
        {
            // The process that started this one may have gone.
            tracing::warn!("took over, but cannot report it on standard output: {error:#}");
        }
        service.serve(&events)?;
        Ok(ExitCode::SUCCESS)
    }

    fn predecessor(&self) -> anyhow::Result<Option<Predecessor>> {
        let Some(folder) = &self.take_over else { return Ok(None) };
        let there = AdminSettings { folder: folder.clone(), ..AdminSettings::default() };
        Ok(Some(Predecessor::connect(&there.handover_socket())?))
    }
}
