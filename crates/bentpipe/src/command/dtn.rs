use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};

mod identity;
mod ping;
mod recv;
mod reload;
mod run;
mod send;
mod status;

/// The bundle node: store and forward where an end-to-end connection has no chance.
#[derive(Debug, Args)]
pub(crate) struct Dtn {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Run),
    Send(send::Send),
    Recv(recv::Recv),
    Status(status::Status),
    Reload(reload::Reload),
    Ping(ping::Ping),
    Identity(identity::Identity),
}

/// Where the node is that a command speaks with.
#[derive(Debug, Args)]
struct Socket {
    /// The node's socket, `node.socket` of its configuration.
    #[arg(long, value_name = "PATH", default_value = "/run/bentpipe/dtn.sock")]
    socket: PathBuf,
}

impl Dtn {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Run(run) => run.run(),
            Command::Send(send) => send.run(),
            Command::Recv(recv) => recv.run(),
            Command::Status(status) => status.run(),
            Command::Reload(reload) => reload.run(),
            Command::Ping(ping) => ping.run(),
            Command::Identity(identity) => identity.run(),
        }
    }
}

/// The runtime for a command's requests to the node.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the command's runtime")
}
