use std::process::ExitCode;

use clap::Args;

use super::daemon::Folder;

/// Tell the running daemon to read its configuration again, without harm to any connection.
///
/// Where the new configuration is not good, the daemon keeps the old one and this command says why.
#[derive(Debug, Args)]
pub(crate) struct Reload {
    #[command(flatten)]
    folder: Folder,
}

impl Reload {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        self.folder.client()?.reload()?;
        super::print("the daemon goes by the new configuration\n")?;
        Ok(ExitCode::SUCCESS)
    }
}
