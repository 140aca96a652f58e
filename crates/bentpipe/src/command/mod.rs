//! One file for each command: its arguments and its output.

mod account;
pub(crate) mod bypass;
pub(crate) mod check;
pub(crate) mod clean_up;
mod daemon;
#[cfg(feature = "laboratory")]
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod drain;
#[cfg(feature = "dtn")]
pub(crate) mod dtn;
mod human;
#[cfg(feature = "laboratory")]
pub(crate) mod lab;
#[cfg(feature = "laboratory")]
mod laboratory;
#[cfg(feature = "laboratory")]
pub(crate) mod link;
mod log;
#[cfg(feature = "laboratory")]
pub(crate) mod manual;
mod program;
#[cfg(feature = "laboratory")]
pub(crate) mod radius;
pub(crate) mod reload;
pub(crate) mod run;
#[cfg(feature = "laboratory")]
pub(crate) mod sim;
pub(crate) mod status;
pub(crate) mod top;
pub(crate) mod upgrade;
#[cfg(feature = "laboratory")]
pub(crate) mod verify;

use std::fmt::Display;
use std::io::{self, BufWriter, ErrorKind, StdoutLock, Write};

use anyhow::Context;
use serde::Serialize;

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
