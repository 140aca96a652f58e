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
        refuse_to_leave_the_service(status.pid)?;
        let pid = take_over(self.folder.path(), &config)?;
        super::tell(format_args!("process {pid} has taken over from {} ({})", status.pid, status.version));
        Ok(ExitCode::SUCCESS)
    }
}

/// The successor is a child of this command: outside of the daemon's systemd service it would not be the service's any
/// more, which then counts as ended.
pub(super) fn refuse_to_leave_the_service(daemon: u32) -> anyhow::Result<()> {
    let cgroup = |who: &str| std::fs::read_to_string(format!("/proc/{who}/cgroup")).unwrap_or_default();
    if let Some(unit) = service_left(&cgroup(&daemon.to_string()), &cgroup("self")) {
        bail!(
            "the daemon is the service {unit}, and a process that is started here would not belong to it; install the new \
             program in the old one's place, then: systemctl reload {unit}"
        );
    }
    Ok(())
}

/// The service whose control group the one is in and the other is not, by their /proc/PID/cgroup (cgroups(7)).
fn service_left<'a>(daemon: &'a str, own: &str) -> Option<&'a str> {
    let unified = |text: &'a str| text.lines().find_map(|line| line.strip_prefix("0::"));
    let theirs = unified(daemon)?;
    let unit = theirs.split('/').rfind(|part| part.ends_with(".service"))?;
    let is_inside = own
        .lines()
        .filter_map(|line| line.strip_prefix("0::"))
        .any(|own| own.split('/').any(|part| part == unit));
    (!is_inside).then_some(unit)
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

#[cfg(test)]
mod tests {
    use super::service_left;

    #[test]
    fn a_successor_outside_of_the_daemons_service_is_noticed() {
        let service = "0::/system.slice/bentpipe.service\n";
        let login = "0::/user.slice/user-0.slice/session-1.scope\n";
        assert_eq!(service_left(service, login), Some("bentpipe.service"));
        assert_eq!(service_left(service, service), None);
        assert_eq!(service_left(service, "0::/system.slice/bentpipe.service/.control\n"), None);
        // Started by hand, or from where nothing is known.
        assert_eq!(service_left(login, "0::/\n"), None);
        assert_eq!(service_left("", login), None);
        // Whoever runs it inside of another service, as CI does, has both in there.
        assert_eq!(service_left("0::/system.slice/ci.service\n", "0::/system.slice/ci.service/x\n"), None);
    }
}
