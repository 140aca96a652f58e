//! The programs `nft` and `ip`, each with a time limit.

use std::io::{self, ErrorKind, Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

use crate::error::Error;

/// How long a program may take: on a busy machine a large rule set takes `nft` a second. The daemon waits at
/// its start and at a reload, and so does the watchdog when it repairs: rules that are not renewed in the
/// meantime expire, and new connections pass unsplit.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Between two looks whether a program has ended; most take one to twenty milliseconds.
const POLL: Duration = Duration::from_millis(1);

/// How a program ended.
struct Outcome {
    /// `None` if it was killed at the time limit.
    status: Option<ExitStatus>,
    stderr: Vec<u8>,
}

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

/// Runs a program that reads `input`. Threads write and read, so that neither a program that does not read
/// nor one that says much can make this wait for longer than `limit`.
fn run(command: &mut Command, input: &[u8], limit: Duration) -> io::Result<Outcome> {
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = Running(command.spawn()?);
    let (stdin, stderr) = (child.0.stdin.take(), child.0.stderr.take());
    thread::scope(|scope| {
        // Declared inside, so that a program that is still there is killed before its threads are waited for.
        let mut child = child;
        let writer =
            Builder::new().spawn_scoped(scope, || stdin.map_or(Ok(()), |mut to| to.write_all(input)))?;
        let reader = Builder::new().spawn_scoped(scope, || {
            let mut said = Vec::new();
            let _ = stderr.map(|mut from| from.read_to_end(&mut said));
            said
        })?;
        let status = child.wait(limit)?;
        drop(child);
        let stderr = reader.join().unwrap_or_default();
        let written = writer.join().unwrap_or(Ok(()));
        // One that ends before it has read everything says why.
        if status.is_some_and(|status| status.success()) {
            written?;
        }
        Ok(Outcome { status, stderr })
    })
}

/// A program that is killed when it is dropped.
struct Running(Child);

impl Running {
    /// How it ended; `None` if it has not after this time.
    fn wait(&mut self, limit: Duration) -> io::Result<Option<ExitStatus>> {
        let start = Instant::now();
        loop {
            match self.0.try_wait()? {
                None if start.elapsed() < limit => thread::sleep(POLL),
                ended => return Ok(ended),
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
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
    fn a_program_that_hangs_is_killed_whether_it_reads_or_not() {
        // More than a pipe holds (pipe(7)): whoever writes it waits.
        let input = vec![b'#'; 1 << 20];
        let start = Instant::now();
        let outcome = run(&mut arguments("sleep", "60"), &input, Duration::from_millis(50)).unwrap();
        assert!(outcome.status.is_none());
        let complaint = check("route", "ip x", "", Ok(outcome)).unwrap_err().to_string();
        assert!(complaint.contains("`ip x`: it did not end within 10 s and was killed"), "{complaint}");
        assert!(start.elapsed() < TIME_LIMIT);
    }

    #[test]
    fn a_program_that_says_more_than_a_pipe_holds_is_heard_to_its_end() {
        let mut command = Command::new("sh");
        command.args(["-c", "head -c 300000 /dev/zero >&2; exit 3"]);
        let outcome = run(&mut command, &[], TIME_LIMIT).unwrap();
        assert_eq!((outcome.stderr.len(), outcome.status.unwrap().code()), (300_000, Some(3)));
    }

    #[test]
    fn a_missing_program_is_an_error_that_names_its_package() {
        let outcome = run(&mut arguments("no-such-program", "x"), &[], TIME_LIMIT);
        let complaint = check("route", "ip x", "install the package iproute2", outcome).unwrap_err();
        assert!(complaint.to_string().ends_with("install the package iproute2"), "{complaint}");
    }
}
