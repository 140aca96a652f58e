use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::Context;
use bentpipe_kernel::leftovers;
use bentpipe_units::human;
use clap::Args;

/// Remove what killed daemons have left in the kernel: eBPF programs, on Linux before 6.6.
///
/// The service does this by itself, and a daemon that may look for them does it at its start. What a running
/// daemon uses is left alone. Needs root.
#[derive(Debug, Args)]
pub(crate) struct CleanUp {}

impl CleanUp {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let count =
            leftovers::remove().context("cannot look for what was left in the kernel: run it as root")?;
        if count > 0 {
            super::print(&format!("removed from the kernel: {}\n", human::count(count, "eBPF program")))?;
        } else if std::io::stdout().is_terminal() {
            // The service's journal need not say it at every stop.
            super::print("nothing was left in the kernel\n")?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
