use std::process::ExitCode;

use bentpipe_admin::{ClientError, Flows, Status};
use clap::{Args, ValueEnum};

use super::daemon::Folder;

/// Maintenance mode: let all new connections pass unsplit until it is switched off.
///
/// Connections that are split go on. It stays on through a reload, an upgrade, a restart and a reboot.
/// Without an argument the command shows whether it is on.
#[derive(Debug, Args)]
pub(crate) struct Bypass {
    #[command(flatten)]
    folder: Folder,
    /// Whether new connections shall pass; without it, show whether they do.
    #[arg(value_enum)]
    switch: Option<Switch>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    /// New connections pass unsplit.
    On,
    /// New connections are split.
    Off,
}

impl Bypass {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let client = self.folder.client()?;
        if let Some(switch) = self.switch {
            client.set_bypass(switch == Switch::On).map_err(|error| match error {
                // It has obeyed, and says what it cannot do besides.
                ClientError::Refused { status: 409, reason, .. } => anyhow::Error::msg(reason),
                error => error.into(),
            })?;
        }
        super::print(&(describe(&client.status(Flows::Most(0))?) + "\n"))?;
        Ok(ExitCode::SUCCESS)
    }
}

fn describe(status: &Status) -> String {
    if status.bypass {
        return "bypass on: new connections pass unsplit until `bentpipe bypass off`".to_owned();
    }
    let drains =
        if status.draining.is_some() { "; they pass nonetheless, because the daemon drains" } else { "" };
    format!("bypass off: new connections are split{drains}")
}
