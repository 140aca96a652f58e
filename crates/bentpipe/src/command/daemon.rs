//! The daemon that a command talks to.

use std::path::{Path, PathBuf};

use bentpipe_admin::{Client, ClientError, Flows};
use clap::Args;

/// The folder of a daemon's sockets.
#[derive(Debug, Args)]
pub(super) struct Folder {
    /// The folder of the daemon's sockets, its admin.folder.
    #[arg(long, value_name = "DIR", default_value = "/run/bentpipe")]
    folder: PathBuf,
}

impl Folder {
    pub(super) fn client(&self) -> Result<Client, ClientError> {
        Client::new(&self.folder)
    }

    pub(super) fn path(&self) -> &Path {
        &self.folder
    }
}

/// Reads `20` or `all`.
pub(super) fn flows(text: &str) -> Result<Flows, String> {
    match text {
        "all" => Ok(Flows::All),
        number => {
            number.parse().map(Flows::Most).map_err(|_| "write a number of flows, or \"all\"".to_owned())
        }
    }
}
