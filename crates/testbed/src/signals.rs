//! Signals as events to wait for, instead of interrupting handlers.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::time::Duration;

/// Blocks all signals in the calling thread: signals are for the threads that wait for them.
pub(crate) fn block_all() {
    // SAFETY: sigfillset(3) initialises the set; pthread_sigmask(3) changes this thread's mask only.
    unsafe {
        let mut all = MaybeUninit::uninit();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), ptr::null_mut());
    }
}

/// Unblocks all signals; for a child between fork and exec, which inherits the mask of the thread that
/// forked.
pub(crate) fn unblock_all() -> io::Result<()> {
    // SAFETY: both calls are async-signal-safe (signal-safety(7)) and change this thread's mask only.
    let result = unsafe {
        let mut none = MaybeUninit::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The signals of a program that runs another one, blocked in this thread and in the threads that it starts.
/// Dropping it restores the former mask.
#[derive(Debug)]
pub(crate) struct HeldSignals {
    held: libc::sigset_t,
    before: libc::sigset_t,
}

/// A signal that has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// Its number.
    pub(crate) signal: i32,
    /// True if the terminal sent it, to the whole foreground group at once.
    pub(crate) from_terminal: bool,
}

impl HeldSignals {
    /// Blocks the signals that ask a program to end, and SIGCHLD.
    pub(crate) fn hold() -> io::Result<Self> {
        let signals = [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP, libc::SIGCHLD];
        let mut held = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: sigemptyset(3) initialises `held`; pthread_sigmask(3) initialises `before` when it returns
        // 0.
        unsafe {
            libc::sigemptyset(held.as_mut_ptr());
            for signal in signals {
                libc::sigaddset(held.as_mut_ptr(), signal);
            }
            match libc::pthread_sigmask(libc::SIG_BLOCK, held.as_ptr(), before.as_mut_ptr()) {
                0 => Ok(Self { held: held.assume_init(), before: before.assume_init() }),
                errno => Err(io::Error::from_raw_os_error(errno)),
            }
        }
    }

    /// Waits for the next of these signals, at most for `limit`.
    pub(crate) fn next(&self, limit: Duration) -> io::Result<Option<Arrival>> {
        let timeout =
            libc::timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: all three pointers are valid for the call; sigtimedwait(2) fills `info` when it succeeds.
        let signal = unsafe { libc::sigtimedwait(&self.held, info.as_mut_ptr(), &timeout) };
        if signal > 0 {
            // SAFETY: filled by the call above, and zeroed before it.
            let code = unsafe { info.assume_init() }.si_code;
            return Ok(Some(Arrival { signal, from_terminal: code == libc::SI_KERNEL }));
        }
        match io::Error::last_os_error() {
            error if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => Ok(None),
            error => Err(error),
        }
    }
}

impl Drop for HeldSignals {
    fn drop(&mut self) {
        // SAFETY: `before` is the mask that this thread had.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, ptr::null_mut()) };
    }
}
