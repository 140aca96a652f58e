//! One file for each command: its arguments and its output.

mod account;
pub(crate) mod bypass;
pub(crate) mod check;
pub(crate) mod clean_up;
mod daemon;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod drain;
pub(crate) mod dtn;
mod human;
pub(crate) mod lab;
pub(crate) mod link;
mod log;
pub(crate) mod manual;
mod program;
pub(crate) mod radius;
pub(crate) mod reload;
pub(crate) mod run;
pub(crate) mod sim;
pub(crate) mod status;
pub(crate) mod top;
pub(crate) mod upgrade;

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, StdoutLock, Write};
use std::path::Path;

use anyhow::Context;
use bentpipe_testbed::Need;
use serde::Serialize;

/// The privileges and programs that a topology with a proxy needs. The proxy intercepts and loads eBPF, which
/// a user namespace does not allow.
const TOPOLOGY_NEEDS: &[Need] =
    &[Need::Privileges, Need::Namespaces, Need::Tun, Need::Program("ip"), Need::Program("nft")];

/// Prints a result on standard output. A reader that has gone away, as in `| head`, is no error; a full disk
/// is.
fn print(text: &str) -> anyhow::Result<()> {
    print_with(|out| out.write_all(text.as_bytes()))
}

/// The same for a JSON document, which need not fit into the memory as a text.
fn print_json(document: &impl Serialize) -> anyhow::Result<()> {
    print_with(|out| {
        serde_json::to_writer_pretty(&mut *out, document)?;
        out.write_all(b"\n")
    })
}

fn print_with(
    write: impl FnOnce(&mut BufWriter<StdoutLock<'static>>) -> io::Result<()>,
) -> anyhow::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    match write(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("cannot write the result"),
        _ => Ok(()),
    }
}

/// Prints a message beside the result, on standard error. A failure to print it is ignored.
pub(crate) fn print_note(text: impl Display) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Creates the folder of a result and checks that it is writable before the run, so that no result is lost
/// after a long run.
fn prepare_folder(folder: &Path) -> anyhow::Result<()> {
    let trial = folder.join(format!(".bentpipe-{}.trial", std::process::id()));
    let outcome = std::fs::create_dir_all(folder)
        .and_then(|()| File::create_new(&trial))
        .and_then(|_| std::fs::remove_file(&trial));
    outcome.with_context(|| {
        format!("cannot write to the folder {}: choose one that is yours with --out DIR", folder.display())
    })
}
