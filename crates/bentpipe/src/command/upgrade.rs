use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bentpipe_admin::Flows;
use clap::Args;
use rustix::process::{Pid, Signal, kill_process};

use super::daemon::Folder;
use super::run::READY;

/// The longest that a successor may take: less than the service manager waits for a reload
/// (TimeoutStartSec=).
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(45);
const UNCHANGED: &str = "the running daemon goes on as before";

/// Replace the running daemon by this program, which takes over its listeners and its connections.
///
/// No connection is dropped, and none pauses for more than a few milliseconds. If this program cannot start
/// or cannot take over, the daemon continues unchanged, and the exit code reports the failure.
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
        refuse_outside_the_service(status.pid)?;
        let config = self.config.unwrap_or_else(|| status.config.into());
        let pid = take_over(self.folder.path(), &config)?;
        super::print_note(format_args!(
            "process {pid} has taken over from {} ({})",
            status.pid, status.version
        ));
        Ok(ExitCode::SUCCESS)
    }
}

/// Refuses if the daemon belongs to a service, because a process started from here would not be part of it.
pub(super) fn refuse_outside_the_service(daemon: u32) -> anyhow::Result<()> {
    match service_of_another(daemon) {
        None => Ok(()),
        Some(unit) => bail!(
            "the daemon is the service {unit}, which the new process must be a part of: \
             systemctl reload {unit} lets it take over"
        ),
    }
}

/// Starts this program as the daemon's successor and waits until it has taken over. Returns its process
/// number.
///
/// The process that starts it ends at once, so that the successor is the service manager's child when it
/// becomes the service's main process. systemd does not wait for a main process that is not its child: it
/// would kill the successor at the start of an orderly end.
pub(super) fn take_over(folder: &Path, config: &Path) -> anyhow::Result<u32> {
    let mut starter = successor(folder, config)?
        .arg("--orphan")
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start this program again")?;
    let lines = lines_of(starter.stdout.take().context("its output is not there")?);
    starter.wait().context("cannot wait for the process that starts the new one")?;
    let deadline = Instant::now() + TAKEOVER_TIMEOUT;
    let (mut pid, mut is_ready) = (None, false);
    loop {
        if let (Some(pid), true) = (pid, is_ready) {
            return Ok(pid);
        }
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) if line == READY => is_ready = true,
            Ok(line) => pid = line.parse().ok(),
            Err(RecvTimeoutError::Disconnected) => {
                bail!("the new process did not take over, its log says why; {UNCHANGED}")
            }
            Err(RecvTimeoutError::Timeout) => {
                pid.into_iter().for_each(kill);
                bail!("the new process was not ready within {TAKEOVER_TIMEOUT:?}; {UNCHANGED}")
            }
        }
    }
}

/// Starts a successor without a parent and prints its process number. The successor prints [`READY`] later.
pub(super) fn start_orphan(folder: &Path, config: &Path) -> anyhow::Result<()> {
    let child = successor(folder, config)?.spawn().context("cannot start this program again")?;
    super::print(&format!("{}\n", child.id()))
}

/// The command line of a successor.
fn successor(folder: &Path, config: &Path) -> anyhow::Result<Command> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut command = Command::new(program);
    // It outlives this command and its terminal.
    command
        .arg("run")
        .arg("-c")
        .arg(config)
        .arg("--take-over")
        .arg(folder)
        .stdin(Stdio::null())
        .process_group(0);
    Ok(command)
}

/// The lines that processes print, until the last of them has ended.
fn lines_of(output: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut lines = BufReader::new(output).lines().map_while(Result::ok);
        // The receiver is gone after the timeout.
        lines.all(|line| sender.send(line).is_ok())
    });
    receiver
}

/// Kills a process that was to take over. Nothing has been handed over yet.
fn kill(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw)
        && let Err(error) = kill_process(pid, Signal::KILL)
    {
        super::print_note(format_args!("cannot end the new process: {error}"));
    }
}

/// The unit of systemd that a process belongs to and this one does not. A process started from here would not
/// be part of it: it would lack its restrictions and outlive the service.
fn service_of_another(pid: u32) -> Option<String> {
    let read = |process: &str| std::fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap_or_default();
    service_of(&read(&pid.to_string())).filter(|unit| service_of(&read("self")).as_ref() != Some(unit))
}

/// The unit among a process's control groups (cgroups(7): lines of `NUMBER:CONTROLLERS:PATH`).
fn service_of(groups: &str) -> Option<String> {
    let paths = groups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let units = paths.filter_map(|path| path.rsplit('/').find(|part| part.ends_with(".service")));
    // A user's own service manager is a service that contains others.
    units.map(str::to_owned).find(|unit| !unit.starts_with("user@"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_known_by_the_control_groups_of_its_processes() {
        let service = Some("bentpipe.service".to_owned());
        assert_eq!(service_of("0::/system.slice/bentpipe.service\n"), service);
        assert_eq!(service_of("9:name=systemd:/system.slice/bentpipe.service/sub\n1:cpu:/\n0::/\n"), service);
        for other in [
            "",
            "0::/\n",
            "0::/user.slice/user-0.slice/session-3.scope\n",
            "0::/user.slice/user-1.slice/user@1.service/app.slice/vte-spawn-1.scope\n",
        ] {
            assert_eq!(service_of(other), None, "{other}");
        }
        assert_eq!(service_of_another(std::process::id()), None);
    }
}
