use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus};
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, getppid, kill_process_group, pidfd_open, pidfd_send_signal,
    set_parent_process_death_signal, setpgid,
};

use crate::clock::timespec;
use crate::reaper::reaper;
use crate::{Error, Result, signals};

/// A running program that never outlives this process, whatever ends this process.
///
/// Dropping it kills the program and its process group and waits for it. If this process is killed, the
/// kernel kills the program (PR_SET_PDEATHSIG) and a reaper process kills its group. Two kinds of program
/// escape: one that changes its own process group or session (a daemon), and, after a kill of this process
/// only, the descendants of a program that runs [in the foreground](Child::spawn_in_foreground).
///
/// The kernel sends the death signal when the *thread* that started the program ends, so all programs are
/// started by one thread that ends with the process.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    pidfd: OwnedFd,
    program: String,
    own_group: bool,
    status: Option<ExitStatus>,
}

impl Child {
    /// Starts `command` in a process group of its own, with no signal blocked.
    ///
    /// # Errors
    /// [`Error::Spawn`] if the program does not exist, cannot be executed, or its namespace cannot be
    /// entered.
    pub fn spawn(command: Command) -> Result<Self> {
        Self::start(command, true)
    }

    /// Starts `command` in the process group of this process, so that it may read from the terminal and
    /// Ctrl-C reaches it.
    ///
    /// # Errors
    /// As [`Child::spawn`].
    pub fn spawn_in_foreground(command: Command) -> Result<Self> {
        Self::start(command, false)
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// The program's standard input, if it was piped; the second call returns nothing.
    pub fn stdin(&mut self) -> Option<ChildStdin> {
        self.process.stdin.take()
    }

    /// The program's standard output, if it was piped; the second call returns nothing.
    pub fn stdout(&mut self) -> Option<ChildStdout> {
        self.process.stdout.take()
    }

    /// The program's standard error, if it was piped; the second call returns nothing.
    pub fn stderr(&mut self) -> Option<ChildStderr> {
        self.process.stderr.take()
    }

    /// Waits until the program has ended. Other processes of its group are ended too.
    ///
    /// # Errors
    /// [`Error::Child`] if the kernel refuses.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        loop {
            if let Some(status) = self.wait_timeout(Duration::from_secs(3600))? {
                return Ok(status);
            }
        }
    }

    /// Waits for at most `limit`; nothing if the program is still running then.
    ///
    /// # Errors
    /// [`Error::Child`] if the kernel refuses.
    pub fn wait_timeout(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        let deadline = Instant::now() + limit;
        while self.status.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            let ended = wait_readable(&self.pidfd, left).map_err(|source| self.failed("wait for", source))?;
            if ended {
                self.reap().map_err(|source| self.failed("wait for", source))?;
            } else if left.is_zero() {
                return Ok(None);
            }
        }
        Ok(self.status)
    }

    /// Sends a signal to the program, which may have ended already.
    ///
    /// # Errors
    /// [`Error::Child`] if the kernel refuses, for example because the program became another user's.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        match pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(errno) => Err(self.failed("signal", errno.into())),
        }
    }

    /// Kills the program with its process group and waits for it.
    ///
    /// # Errors
    /// As [`Child::signal`] and [`Child::wait`].
    pub fn kill(&mut self) -> Result<ExitStatus> {
        if self.status.is_none() {
            self.signal(Signal::KILL)?;
        }
        self.wait()
    }

    fn start(mut command: Command, own_group: bool) -> Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        let process = tie_to_this_process(&mut command, own_group)
            .and_then(|()| spawn_on_parent_thread(command))
            .map_err(|source| Error::Spawn { program: program.clone(), source })?;
        let pidfd = pidfd_open(Pid::from_child(&process), PidfdFlags::empty())
            .map_err(|errno| Error::Spawn { program: program.clone(), source: errno.into() })?;
        Ok(Self { process, pidfd, program, own_group, status: None })
    }

    /// Waits for a program that has ended. Its process id, and its group's, are not used again until `wait`
    /// returns: so the rest of the group is ended, and the reaper notified, before that.
    fn reap(&mut self) -> io::Result<()> {
        if self.own_group {
            let group = Pid::from_child(&self.process);
            // An error means that nothing is left of the group.
            let _ = kill_process_group(group, Signal::KILL);
            reaper()?.forget(group);
        }
        self.status = Some(self.process.wait()?);
        Ok(())
    }

    fn failed(&self, attempt: &'static str, source: io::Error) -> Error {
        Error::Child { attempt, program: self.program.clone(), pid: self.process.id(), source }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // An error means that the program has ended, or may no longer be signalled by this process.
        let _ = self.kill();
    }
}

/// Makes the command, between fork and exec, a program that dies with this process.
fn tie_to_this_process(command: &mut Command, own_group: bool) -> io::Result<()> {
    let reaper = own_group.then(reaper).transpose()?;
    let parent = getpid();
    // SAFETY: the closure makes system calls only (setpgid, write, prctl, getppid, sigprocmask) and allocates
    // nothing.
    unsafe {
        command.pre_exec(move || {
            if let Some(reaper) = reaper {
                setpgid(None, None)?;
                reaper.watch_own_group()?;
            }
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may have died before the line above took effect.
            if getppid() != Some(parent) {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            signals::unblock_all()
        });
    }
    Ok(())
}

type Request = (Command, mpsc::SyncSender<io::Result<std::process::Child>>);

/// Starts the command from the one thread that lives as long as the process.
fn spawn_on_parent_thread(command: Command) -> io::Result<std::process::Child> {
    static PARENT_THREAD: OnceLock<mpsc::Sender<Request>> = OnceLock::new();
    let parent = PARENT_THREAD.get_or_init(|| {
        let (sender, requests) = mpsc::channel::<Request>();
        thread::spawn(move || {
            signals::block_all();
            for (mut command, reply) in requests {
                // The caller waits for the answer; if it has ended, the child is dropped here and stays until
                // this process ends.
                let _ = reply.send(command.spawn());
            }
        });
        sender
    });
    let (reply, answer) = mpsc::sync_channel(1);
    let gone = || io::Error::other("the thread that starts programs has ended");
    parent.send((command, reply)).map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}

fn wait_readable(fd: &OwnedFd, limit: Duration) -> io::Result<bool> {
    match poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timespec(limit))) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::process::Stdio;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(Stdio::piped());
        command
    }

    #[test]
    fn the_exit_status_is_the_programs() {
        assert_eq!(Child::spawn(shell("exit 3")).unwrap().wait().unwrap().code(), Some(3));
    }

    #[test]
    fn a_program_that_runs_on_is_not_waited_for_beyond_the_limit() {
        let mut child = Child::spawn(shell("sleep 1000")).unwrap();
        assert_eq!(child.wait_timeout(Duration::from_millis(20)).unwrap(), None);
    }

    #[test]
    fn dropping_a_child_ends_its_grandchildren() {
        let mut child = Child::spawn(shell("sleep 1000 & sleep 1000; :")).unwrap();
        let mut stdout = child.stdout().unwrap();
        drop(child);
        // Both sleeps held the pipe: end of file means that they are gone.
        assert_eq!(stdout.read_to_end(&mut Vec::new()).unwrap(), 0);
    }

    #[test]
    fn a_child_survives_the_thread_that_asked_for_it() {
        let mut child =
            thread::spawn(|| Child::spawn(shell("sleep 0.2; echo alive")).unwrap()).join().unwrap();
        let mut text = String::new();
        child.stdout().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "alive\n");
    }

    #[test]
    fn a_program_that_does_not_exist_is_named() {
        let error = Child::spawn(Command::new("/no/such/program")).unwrap_err().to_string();
        assert!(error.contains("cannot start `/no/such/program`"), "{error}");
    }
}
