//! `bentpipe`: TCP over satellite links, fast and unbreakable.

mod command;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// TCP over satellite links, fast and unbreakable.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(command::demo::Demo),
    Run(command::run::Run),
    Doctor(command::doctor::Doctor),
    Link(command::link::Link),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match arguments.command {
        Command::Demo(demo) => demo.run(),
        Command::Run(run) => run.run(),
        Command::Doctor(doctor) => doctor.run(),
        Command::Link(link) => link.run(),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("bentpipe: {error:#}");
        ExitCode::FAILURE
    })
}
