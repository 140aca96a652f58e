//! A process that outlives this one by a moment, to end the programs that this one started.
//!
//! The death signal of prctl(2) reaches a child, not the child's own children: after `sh -c 'cd /srv;
//! server'` is killed, `server` would live on and hold its namespace. The reaper knows the process groups
//! that are running. It reads a pipe whose writing end only this process has, so that end of file means that
//! this process has ended, for whatever reason; then it kills the groups and exits.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Pid;

/// Limit of the groups that the reaper records; further ones are covered by the death signal only.
const CAPACITY: usize = 1024;

/// The pipe to the reaper process, which starts at the first call.
pub(crate) fn reaper() -> io::Result<&'static Reaper> {
    static REAPER: OnceLock<Reaper> = OnceLock::new();
    if let Some(reaper) = REAPER.get() {
        return Ok(reaper);
    }
    // Two threads that race here start two reapers; the one whose pipe is dropped reads end of file and
    // exits.
    let started = Reaper::start()?;
    Ok(REAPER.get_or_init(|| started))
}

#[derive(Debug)]
pub(crate) struct Reaper {
    pipe: OwnedFd,
}

impl Reaper {
    /// Watches over the group that the calling process leads. Async-signal-safe: a child calls it before
    /// exec, so that there is no moment at which a group runs unwatched.
    pub(crate) fn watch_own_group(&self) -> io::Result<()> {
        self.send(rustix::process::getpid().as_raw_nonzero().get())
    }

    /// Forgets a group, which the caller has ended. Call it before waiting for the leader: until then its
    /// number cannot belong to another process.
    pub(crate) fn forget(&self, group: Pid) {
        // The only failure is that the reaper has ended, and then nothing is left to do.
        let _ = self.send(-group.as_raw_nonzero().get());
    }

    fn start() -> io::Result<Self> {
        let (reader, pipe) = pipe_with(PipeFlags::CLOEXEC)?;
        // SAFETY: in the child only `watch` runs, which makes system calls and never returns; it takes no
        // lock and allocates nothing, so it does not matter what other threads were doing at the fork.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => watch(reader.as_raw_fd()),
            _ => Ok(Self { pipe }),
        }
    }

    /// Four bytes are written whole or not at all (pipe(7), PIPE_BUF), so writers need no lock.
    fn send(&self, message: i32) -> io::Result<()> {
        rustix::io::write(&self.pipe, &message.to_ne_bytes())?;
        Ok(())
    }
}

/// The main loop of the reaper: a positive number is a group to watch, a negative one a group to forget.
fn watch(reader: RawFd) -> ! {
    detach(reader);
    let mut groups = [0_i32; CAPACITY];
    while let Some(message) = next_message() {
        let (from, to) = if message > 0 { (0, message) } else { (-message, 0) };
        if let Some(slot) = groups.iter_mut().find(|slot| **slot == from) {
            *slot = to;
        }
    }
    for group in groups.into_iter().filter(|group| *group > 0) {
        // SAFETY: kill(2) on a group that this process's parent started and did not end.
        unsafe { libc::kill(-group, libc::SIGKILL) };
    }
    // SAFETY: _exit(2) ends the process without running the destructors of the parent's copy.
    unsafe { libc::_exit(0) }
}

/// Keeps the pipe, as descriptor 0, and gives up everything else that the fork copied: a descriptor of a
/// namespace or of a pipe would keep it alive; a signal of the terminal is not for the reaper.
fn detach(reader: RawFd) {
    // SAFETY: system calls on this process alone, which has one thread and whose descriptors nobody else
    // uses.
    unsafe {
        libc::setsid();
        let mut all = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
        libc::prctl(libc::PR_SET_NAME, c"bentpipe-guard".as_ptr());
        libc::dup2(reader, 0);
        libc::syscall(libc::SYS_close_range, 1, libc::c_uint::MAX, 0);
    }
}

fn next_message() -> Option<i32> {
    // SAFETY: descriptor 0 is the pipe for as long as this process lives.
    let pipe = unsafe { BorrowedFd::borrow_raw(0) };
    let mut message = [0; 4];
    loop {
        match rustix::io::read(pipe, &mut message) {
            Ok(4) => return Some(i32::from_ne_bytes(message)),
            Err(rustix::io::Errno::INTR) => {}
            _ => return None,
        }
    }
}
