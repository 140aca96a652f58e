//! The manual pages and the completions of shells, from the definitions of `--help`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

/// Print the manual page of bentpipe or of one of its commands.
///
/// `bentpipe man doctor | man -l -` shows it.
#[derive(Debug, Args)]
pub(crate) struct Manual {
    /// The command, as in `bentpipe man dtn send`; without one the page of bentpipe.
    command: Vec<String>,
    /// Write the pages of all commands into this folder.
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    out: Option<PathBuf>,
}

/// Print the completions of a shell.
///
/// For bash: `bentpipe completions bash > /usr/share/bash-completion/completions/bentpipe`.
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell.
    shell: Shell,
}

impl Manual {
    /// `program` is the whole command line.
    pub(crate) fn run(self, program: clap::Command) -> anyhow::Result<ExitCode> {
        let program = named(program.disable_help_subcommand(true), "");
        if let Some(folder) = &self.out {
            super::laboratory::prepare_folder(folder)?;
            write_all(&program, folder)?;
        } else {
            let page = page(find(&program, &self.command)?)?;
            super::print(&String::from_utf8_lossy(&page))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Completions {
    /// `program` is the whole command line.
    pub(crate) fn run(self, mut program: clap::Command) -> anyhow::Result<ExitCode> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut program, "bentpipe", &mut script);
        super::print(&String::from_utf8_lossy(&script))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The command with its whole name, `bentpipe-dtn-send`, as its page is called, and so with all below it.
fn named(command: clap::Command, parents: &str) -> clap::Command {
    let words = format!("{parents}{}", command.get_name());
    let below = format!("{words} ");
    let command = command.mut_subcommands(|command| named(command, &below));
    command.display_name(words.replace(' ', "-")).bin_name(words)
}

fn find<'a>(program: &'a clap::Command, words: &[String]) -> anyhow::Result<&'a clap::Command> {
    let mut command = program;
    for word in words {
        let Some(found) = command.find_subcommand(word) else {
            let names: Vec<&str> = visible(command).map(clap::Command::get_name).collect();
            bail!("\"{}\" has no command \"{word}\"; it has: {}", title(command), names.join(", "));
        };
        command = found;
    }
    Ok(command)
}

/// The commands that `--help` lists.
fn visible(command: &clap::Command) -> impl Iterator<Item = &clap::Command> {
    command.get_subcommands().filter(|command| !command.is_hide_set())
}

fn title(command: &clap::Command) -> &str {
    command.get_bin_name().unwrap_or(command.get_name())
}

fn write_all(command: &clap::Command, folder: &Path) -> anyhow::Result<()> {
    let path = folder.join(format!("{}.1", title(command).replace(' ', "-")));
    std::fs::write(&path, page(command)?).with_context(|| format!("cannot write {}", path.display()))?;
    visible(command).try_for_each(|command| write_all(command, folder))
}

fn page(command: &clap::Command) -> anyhow::Result<Vec<u8>> {
    let mut page = Vec::new();
    let manual = concat!("bentpipe ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).title(title(command).replace(' ', "-")).source(manual);
    man.render(&mut page)?;
    if title(command) == "bentpipe" {
        files().to_writer(&mut page)?;
    }
    Ok(page)
}

/// The files of the program, which `--help` does not list.
fn files() -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["FILES"]);
    for (path, what) in [
        ("/etc/bentpipe/bentpipe.toml", "The configuration of the proxy. Every key is explained there."),
        ("/etc/bentpipe/node.toml", "The configuration of the bundle node."),
        (
            "/run/bentpipe",
            "Sockets for status, reload, drain and upgrade, and for applications of the bundle node.",
        ),
        ("/var/lib/bentpipe", "The store of the bundle node."),
        ("/var/lib/bentpipe-proxy", "Whether the proxy's bypass is on."),
        ("/usr/share/doc/bentpipe", "The documentation."),
    ] {
        roff.control("TP", []).text([bold(path)]).text([roman(what)]);
    }
    roff
}
