use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::{Context, bail};
use bentpipe_admin::Flows;
use clap::Args;

use super::daemon::Folder;
use super::run::READY;

/// Let this program take the place of the daemon that runs, with its listeners and its connections.
///
/// No connection is dropped, and none stands still for more than some milliseconds. If this program cannot start or cannot take over, the daemon goes
/// on as if nothing had been, and the exit code says so.
#[derive(Debug, Args)]
pub(crate) struct Upgrade {
    /// The configuration; by default the one that the running daemon reads.
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    folder: Folder,
}

impl Upgrade {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let status = self.folder.client()?.status(Flows::Most(0))?;
        let config = self.config.unwrap_or_else(|| status.config.into());
        let pid = take_over(self.folder.path(), &config)?;
        super::tell(format_args!("process {pid} has taken over from {} ({})", status.pid, status.version));
        Ok(ExitCode::SUCCESS)
    }
}

/// Starts this program as the daemon's successor and waits until it has taken over; its process.
pub(super) fn take_over(folder: &Path, config: &Path) -> anyhow::Result<u32> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut child = Command::new(&program)
        .arg("run")
        .arg("-c")
        .arg(config)
        .arg("--take-over")
        .arg(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // It outlives this command and whoever typed it.
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    wait_until_ready(&mut child)?;
    Ok(child.id())
}

fn wait_until_ready(child: &mut Child) -> anyhow::Result<()> {
    let output = child.stdout.take().context("its output is not there")?;
    let mut said = String::new();
    BufReader::new(output).read_line(&mut said).context("cannot hear the new process")?;
    if said.trim_end() == READY {
        return Ok(());
    }
    let status = child.wait().context("cannot wait for the new process")?;
    bail!("the new process did not take over ({status}); the running daemon goes on as before")
}
