use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use bentpipe_admin::{Client, ClientError, DrainTimes, Flows, Status};
use bentpipe_units::Span;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::daemon::Folder;
use super::human::span;

/// How long a daemon stays that is not waited for, if it has nothing left to do: the time to cancel.
const STAY: Duration = Duration::from_secs(20);
/// The interval between two requests for the draining daemon's status.
const INTERVAL: Duration = Duration::from_millis(500);
const BAR: &str = "{bar:40} {pos} of {len} flows have ended  {msg}";

/// Tell the running daemon to accept no new connections and to exit when the last one has ended.
///
/// New connections pass unsplit at once, and those that are split go on until the deadline, when the rest
/// is reset; connections in the making are waited for. The command waits for the end; interrupted, it leaves
/// the daemon draining. To let connections pass without ending the daemon, use `bentpipe bypass on`.
#[derive(Debug, Args)]
pub(crate) struct Drain {
    #[command(flatten)]
    folder: Folder,
    /// When connections that are left are reset.
    #[arg(long, value_name = "TIME", default_value = "10m", conflicts_with = "no_deadline")]
    deadline: Span,
    /// Wait for the last connection, however long that takes.
    #[arg(long)]
    no_deadline: bool,
    /// Split new connections again, if the daemon has not ended yet.
    #[arg(long, conflicts_with_all = ["deadline", "no_deadline", "no_wait"])]
    cancel: bool,
    /// Return at once, while the daemon drains. It then ends after 20 s at the earliest, even if it has no
    /// connection, so that --cancel finds it; a sooner deadline counts.
    #[arg(long)]
    no_wait: bool,
}

/// The state of a daemon that was told to drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// This many flows are left.
    Draining(u64),
    Ended,
    /// Another answers in its place.
    Replaced,
    /// Draining was cancelled.
    Cancelled,
}

impl Drain {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let client = self.folder.client()?;
        if self.cancel {
            client.stop_draining()?;
            super::print("cancelled: the daemon splits new connections again\n")?;
            return Ok(ExitCode::SUCCESS);
        }
        let pid = client.status(Flows::Most(0))?.pid;
        let deadline = (!self.no_deadline).then_some(self.deadline.get());
        let stay = if self.no_wait { STAY } else { Duration::ZERO };
        client.drain(DrainTimes { deadline, stay })?;
        if self.no_wait {
            super::print(&format!(
                "the daemon drains: new connections pass unsplit; it ends with the last split one, after {} s \
                 at the earliest; `bentpipe drain --cancel` stops it\n",
                STAY.as_secs()
            ))?;
            return Ok(ExitCode::SUCCESS);
        }
        await_end(&client, pid)
    }
}

fn await_end(client: &Client, pid: u32) -> anyhow::Result<ExitCode> {
    // It draws nothing where standard error is not a terminal.
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template(BAR) {
        bar.set_style(style);
    }
    let mut most = 0;
    let end = loop {
        let answer = client.status(Flows::Most(0));
        if let Ok(status) = &answer {
            bar.set_message(left(status));
        }
        match stage(answer, pid)? {
            Stage::Draining(flows) => {
                most = most.max(flows);
                bar.set_length(most);
                bar.set_position(most - flows);
            }
            end => break end,
        }
        sleep(INTERVAL);
    };
    bar.finish_and_clear();
    match end {
        Stage::Cancelled => {
            anyhow::bail!("draining was cancelled: the daemon splits new connections again and does not end")
        }
        Stage::Replaced => super::print("the daemon has ended, and another answers in its place\n")?,
        _ => super::print("the daemon has ended\n")?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The state of the daemon that had this process number, from its answer or from the lack of one.
fn stage(answer: Result<Status, ClientError>, pid: u32) -> Result<Stage, ClientError> {
    match answer {
        Ok(status) if status.pid != pid => Ok(Stage::Replaced),
        Ok(status) if status.draining.is_none() => Ok(Stage::Cancelled),
        Ok(status) => Ok(Stage::Draining(status.totals.flows_open)),
        Err(ClientError::NotRunning { .. }) => Ok(Stage::Ended),
        // The daemon may be ending right now; the next request will tell.
        Err(ClientError::Disconnected { .. }) => Ok(Stage::Draining(0)),
        Err(error) => Err(error),
    }
}

fn left(status: &Status) -> String {
    match status.draining.and_then(|drain| drain.left_s) {
        Some(left) => format!("{} left", span(left)),
        None => "no deadline".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::status::tests::sample;

    #[test]
    fn the_end_is_told_from_all_that_is_not_the_end() {
        let of = |draining: bool, pid: u32| {
            let mut status = sample();
            status.draining = draining.then_some(bentpipe_proxy::telemetry::Drain { left_s: None });
            (status.pid, status.totals.flows_open) = (pid, 3);
            stage(Ok(status), 7).unwrap()
        };
        assert_eq!(of(true, 7), Stage::Draining(3));
        assert_eq!(of(false, 7), Stage::Cancelled);
        assert_eq!(of(true, 8), Stage::Replaced);
        use bentpipe_admin::DAEMON;
        let socket = || "/x".into();
        let gone = ClientError::NotRunning {
            server: DAEMON,
            socket: socket(),
            source: std::io::ErrorKind::NotFound.into(),
        };
        assert_eq!(stage(Err(gone), 7).unwrap(), Stage::Ended);
        let broken = ClientError::Disconnected { server: DAEMON, socket: socket(), reason: String::new() };
        assert_eq!(stage(Err(broken), 7).unwrap(), Stage::Draining(0));
        assert!(stage(Err(ClientError::NotPermitted { server: DAEMON, socket: socket() }), 7).is_err());
    }
}
