//! `bentpipe`: TCP over satellite links, fast and unbreakable.
#![forbid(unsafe_code)]

mod command;

use std::process::ExitCode;

#[cfg(feature = "laboratory")]
use clap::CommandFactory;
use clap::{Parser, Subcommand};

/// TCP over satellite links, fast and unbreakable.
#[derive(Debug, Parser)]
#[command(version, about = "TCP over satellite links, fast and unbreakable.")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[cfg(feature = "laboratory")]
    Demo(command::demo::Demo),
    Run(command::run::Run),
    Status(command::status::Status),
    Top(command::top::Top),
    Reload(command::reload::Reload),
    Drain(command::drain::Drain),
    Bypass(command::bypass::Bypass),
    CleanUp(command::clean_up::CleanUp),
    Upgrade(command::upgrade::Upgrade),
    Check(command::check::Check),
    Doctor(command::doctor::Doctor),
    #[cfg(feature = "laboratory")]
    Link(Box<command::link::Link>),
    #[cfg(feature = "laboratory")]
    Sim(command::sim::Sim),
    #[cfg(feature = "laboratory")]
    Verify(command::verify::Verify),
    #[cfg(feature = "laboratory")]
    Lab(command::lab::Lab),
    #[cfg(feature = "laboratory")]
    Radius(command::radius::Radius),
    #[cfg(feature = "dtn")]
    Dtn(command::dtn::Dtn),
    #[cfg(feature = "laboratory")]
    Man(command::manual::Manual),
    #[cfg(feature = "laboratory")]
    Completions(command::manual::Completions),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match arguments.command {
        #[cfg(feature = "laboratory")]
        Command::Demo(demo) => demo.run(),
        Command::Run(run) => run.run(),
        Command::Status(status) => status.run(),
        Command::Top(top) => top.run(),
        Command::Reload(reload) => reload.run(),
        Command::Drain(drain) => drain.run(),
        Command::Bypass(bypass) => bypass.run(),
        Command::CleanUp(clean_up) => clean_up.run(),
        Command::Upgrade(upgrade) => upgrade.run(),
        Command::Check(check) => check.run(),
        Command::Doctor(doctor) => doctor.run(),
        #[cfg(feature = "laboratory")]
        Command::Link(link) => link.run(),
        #[cfg(feature = "laboratory")]
        Command::Sim(sim) => sim.run(),
        #[cfg(feature = "laboratory")]
        Command::Verify(verify) => verify.run(),
        #[cfg(feature = "laboratory")]
        Command::Lab(lab) => lab.run(),
        #[cfg(feature = "laboratory")]
        Command::Radius(radius) => radius.run(),
        #[cfg(feature = "dtn")]
        Command::Dtn(dtn) => dtn.run(),
        #[cfg(feature = "laboratory")]
        Command::Man(manual) => manual.run(Arguments::command()),
        #[cfg(feature = "laboratory")]
        Command::Completions(completions) => completions.run(Arguments::command()),
    };
    outcome.unwrap_or_else(|error| {
        command::print_note(format_args!("bentpipe: {}", one_line(&error)));
        ExitCode::FAILURE
    })
}

/// The error and its causes on one line. A cause that the text already contains is not repeated.
fn one_line(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |text, cause| match cause.to_string() {
        cause if text.is_empty() => cause,
        cause if text.contains(&cause) => text,
        cause => format!("{text}: {cause}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let error =
            anyhow::anyhow!("no such file").context("cannot read x: no such file").context("cannot start");
        assert_eq!(one_line(&error), "cannot start: cannot read x: no such file");
    }
}
