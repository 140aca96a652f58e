use std::process::ExitCode;

use bentpipe_dtn::app::{Client, ReloadReport};
use clap::Args;

use super::Socket;

/// Tell the running node to read its configuration again: routes, contacts, the contact plan, and keys for
/// bundles. No session and no bundle is lost; waiting bundles are routed again.
///
/// If the new configuration cannot be used, the node keeps the old one and this command says why.
#[derive(Debug, Args)]
pub(super) struct Reload {
    #[command(flatten)]
    socket: Socket,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

impl Reload {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let client = Client::new(&self.socket.socket);
        let report = super::runtime()?.block_on(client.reload())?;
        match self.json {
            true => crate::command::print_json(&report)?,
            false => crate::command::print(&text(&report))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn text(report: &ReloadReport) -> String {
    let mut lines: Vec<String> =
        report.warnings.iter().map(|warning| format!("warning: {warning}")).collect();
    lines.extend(report.needs_restart.iter().map(|key| {
        format!("{key} has changed in the file, and keeps its old value until the node is restarted")
    }));
    lines.push(match report.changed.is_empty() {
        true => "no route or contact has changed; keys for bundles were read again".to_owned(),
        false => format!("the node uses the new configuration; changed: {}", report.changed.join(", ")),
    });
    lines.into_iter().map(|line| line + "\n").collect()
}
