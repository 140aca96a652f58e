use std::process::ExitCode;

use bentpipe_admin::Flows;
use clap::Args;

use super::daemon::Folder;
use super::{program, upgrade};

/// Tell the running daemon to read its configuration again. No connection is affected.
///
/// If the new configuration is invalid, the daemon keeps the old one and this command says why.
#[derive(Debug, Args)]
pub(crate) struct Reload {
    #[command(flatten)]
    folder: Folder,
    /// Where this program is another one than the daemon's, let it take the daemon's place instead, as
    /// `bentpipe upgrade` does: it reads the configuration, too.
    #[arg(long)]
    upgrade: bool,
}

impl Reload {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let client = self.folder.client()?;
        if self.upgrade {
            let status = client.status(Flows::Most(0))?;
            if status.program != program::identity() {
                upgrade::refuse_outside_the_service(status.pid)?;
                let pid = upgrade::take_over(self.folder.path(), status.config.as_ref())?;
                super::print(&format!("process {pid} has taken over with the new configuration\n"))?;
                return Ok(ExitCode::SUCCESS);
            }
        }
        client.reload()?;
        super::print("the daemon uses the new configuration\n")?;
        Ok(ExitCode::SUCCESS)
    }
}
