use std::process::ExitCode;

use anyhow::Context;
use bentpipe_kernel::leftovers;
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
        let said = match count {
            0 => "nothing was left in the kernel".to_owned(),
            count => {
                format!("removed from the kernel: {}", bentpipe_units::human::count(count, "eBPF program"))
            }
        };
        super::print(&(said + "\n"))?;
        Ok(ExitCode::SUCCESS)
    }
}
