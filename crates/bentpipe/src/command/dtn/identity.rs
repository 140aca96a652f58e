use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use bentpipe_dtn::{Eid, tcpcl};
use clap::Args;

/// Make a node's certificate and key.
///
/// The certificate goes to the other nodes, who name it in their `[[peers]]`; the key stays with the node.
#[derive(Debug, Args)]
pub(super) struct Identity {
    /// The node: dtn://name/ or ipn:5.0.
    node: Eid,
    /// The certificate's file.
    #[arg(long, value_name = "FILE", default_value = "node.pem")]
    certificate: PathBuf,
    /// The key's file, which only its owner may read.
    #[arg(long, value_name = "FILE", default_value = "node.key")]
    key: PathBuf,
}

impl Identity {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        anyhow::ensure!(self.node.is_node(), "{} is no node; write dtn://name/ or ipn:5.0", self.node);
        let (certificate, key) = tcpcl::identity::generate(&self.node)?;
        // The key first, because a certificate without its key would look complete.
        write(&self.key, &key, 0o600)?;
        write(&self.certificate, &certificate, 0o644)?;
        crate::command::print(&format!("{}\n{}\n", self.certificate.display(), self.key.display()))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Writes a new file; one that is there stays as it is.
fn write(path: &Path, text: &str, mode: u32) -> anyhow::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()));
    written.with_context(|| format!("cannot make {}", path.display()))
}
