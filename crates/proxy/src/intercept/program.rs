//! The programs `nft` and `ip`, each with a time limit.

use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;

use bentpipe_kernel::program::{Outcome, run};

use crate::error::Error;

/// How long a program may take: on a busy machine a large rule set takes `nft` a second. The daemon waits at
/// its start and at a reload, and so does the watchdog when it repairs: rules that are not renewed in the
/// meantime expire, and new connections pass unsplit.
const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Loads rules with `nft -f -`: in one transaction, or not at all.
pub(super) fn load_rules(text: &str) -> Result<(), Error> {
    let outcome = run(&mut arguments("nft", "-f -"), text.as_bytes(), TIME_LIMIT);
    check("load the interception rules", "nft -f -", "install the package nftables", outcome)
}

/// Runs `ip` with these arguments.
pub(crate) fn ip(action: &'static str, line: &str) -> Result<(), Error> {
    let outcome = run(&mut arguments("ip", line), &[], TIME_LIMIT);
    check(action, &format!("ip {line}"), "install the package iproute2", outcome)
}

/// Whether this program ends in order.
pub(super) fn succeeds(program: &str, line: &str) -> bool {
    let outcome = run(&mut arguments(program, line), &[], TIME_LIMIT);
    outcome.is_ok_and(|outcome| outcome.status.is_some_and(|status| status.success()))
}

fn check(
    action: &'static str,
    command: &str,
    package: &str,
    outcome: io::Result<Outcome>,
) -> Result<(), Error> {
    let reason = match outcome {
        Ok(Outcome { status: Some(status), .. }) if status.success() => return Ok(()),
        Ok(Outcome { status: Some(_), stderr }) => {
            let said = String::from_utf8_lossy(&stderr);
            said.lines().find(|line| !line.trim().is_empty()).unwrap_or("it failed without a word").to_owned()
        }
        Ok(Outcome { status: None, .. }) => format!(
            "it did not end within {} s and was killed; run it by hand to see what it waits for",
            TIME_LIMIT.as_secs()
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => format!("{error}; {package}"),
        Err(error) => error.to_string(),
    };
    Err(Error::Tool { action, command: command.to_owned(), reason })
}

/// In a process group of its own: Ctrl-C is for the daemon, whose programs have rules and routes to remove.
fn arguments(program: &str, line: &str) -> Command {
    let mut command = Command::new(program);
    command.args(line.split(' ')).process_group(0);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_from_the_terminal_does_not_reach_the_programs_that_undo_things() {
        let output = arguments("cat", "/proc/self/stat").output().unwrap();
        let stat = String::from_utf8(output.stdout).unwrap();
        let (pid, after_name) = (stat.split(' ').next(), stat.rsplit_once(") ").unwrap().1);
        // State, parent, process group (proc_pid_stat(5)).
        assert_eq!(after_name.split(' ').nth(2), pid, "{stat}");
    }

    #[test]
    fn a_program_that_hangs_is_an_error_that_says_so() {
        let outcome = run(&mut arguments("sleep", "60"), &[], Duration::from_millis(50));
        let complaint = check("route", "ip x", "", outcome).unwrap_err().to_string();
        assert!(complaint.contains("`ip x`: it did not end within 10 s and was killed"), "{complaint}");
    }

    #[test]
    fn a_missing_program_is_an_error_that_names_its_package() {
        let outcome = run(&mut arguments("no-such-program", "x"), &[], TIME_LIMIT);
        let complaint = check("route", "ip x", "install the package iproute2", outcome).unwrap_err();
        assert!(complaint.to_string().ends_with("install the package iproute2"), "{complaint}");
    }
}
