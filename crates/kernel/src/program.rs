//! Running other programs, each with a time limit.

use std::io::{self, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

/// Between two looks whether a program has ended; most take one to twenty milliseconds.
const POLL: Duration = Duration::from_millis(1);

/// How a program ended.
#[derive(Debug)]
pub struct Outcome {
    /// `None` if it was killed at the time limit.
    pub status: Option<ExitStatus>,
    /// What it wrote to its standard error.
    pub stderr: Vec<u8>,
}

/// Runs a program that reads `input` on its standard input; its standard output is discarded. After `limit`
/// it is killed.
///
/// # Errors
/// The program cannot be started, or has ended in order without reading its input.
pub fn run(command: &mut Command, input: &[u8], limit: Duration) -> io::Result<Outcome> {
    // Threads write and read, so that neither a program that does not read nor one that says much can make
    // this wait for longer.
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

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_program_that_hangs_is_killed_although_it_does_not_read() {
        // More than a pipe holds (pipe(7)): whoever writes it waits.
        let (input, start) = (vec![b'#'; 1 << 20], Instant::now());
        let outcome = run(Command::new("sleep").arg("60"), &input, Duration::from_millis(50)).unwrap();
        assert!(outcome.status.is_none());
        assert!(start.elapsed() < LONG / 2, "{:?}", start.elapsed());
    }

    #[test]
    fn a_program_that_says_more_than_a_pipe_holds_is_heard_to_its_end() {
        let mut command = Command::new("sh");
        command.args(["-c", "head -c 300000 /dev/zero >&2; exit 3"]);
        let outcome = run(&mut command, &[], LONG).unwrap();
        assert_eq!((outcome.stderr.len(), outcome.status.unwrap().code()), (300_000, Some(3)));
    }

    #[test]
    fn a_program_that_ends_in_order_without_its_input_is_an_error() {
        let input = vec![b'#'; 1 << 20];
        assert_eq!(
            run(&mut Command::new("true"), &input, LONG).unwrap_err().kind(),
            io::ErrorKind::BrokenPipe
        );
        let failed = run(&mut Command::new("false"), &input, LONG).unwrap();
        assert_eq!(failed.status.unwrap().code(), Some(1));
    }
}
