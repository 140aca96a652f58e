//! What must be on the disk before what: the system calls of a store, seen by ptrace(2). A power cut between
//! any two of them then leaves an index that names only what is there.

use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bentpipe_dtn::store::Change;

use crate::store_common::{open, payload, record};

const FOLDER: &str = "BENTPIPE_TEST_STORE";

/// A call that concerns the disk: what, and with which file of the folder.
type Call = (&'static str, String);

#[test]
fn a_bundle_is_on_the_disk_before_the_index_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let Some(calls) = trace(folder.path()) else {
        println!("skipped: this machine does not allow ptrace");
        return;
    };
    // From the moment when the store is open to its answer.
    let at = |wanted: &str| calls.iter().position(|(_, file)| file == wanted).unwrap();
    let calls = &calls[at("opened") + 1..at("committed")];
    let position = |verb: &str, file: &str, last: bool| {
        let is = |call: &Call| call.0 == verb && call.1 == file;
        let found = if last { calls.iter().rposition(is) } else { calls.iter().position(is) };
        found.unwrap_or_else(|| panic!("no {verb} {file} in {calls:?}"))
    };
    let payload = "store/payloads/0000000000000000";
    let order = [
        position("write", payload, true),
        position("sync", payload, false),
        position("sync", "store/payloads", false),
        position("write", "store/index.redb", false),
        position("write", "store/index.redb", true),
        position("sync", "store/index.redb", true),
    ];
    assert!(order.is_sorted(), "{order:?} in {calls:?}");
    assert!(order[3] < order[4], "an index is more than one page");
}

/// Not a test of its own: keeps one bundle, and says how far it is.
#[test]
#[ignore = "run by the test above"]
fn child() {
    let Ok(folder) = std::env::var(FOLDER).map(PathBuf::from) else { return };
    let say = |what: &str| File::create(folder.join(what)).unwrap().write_all(b".").unwrap();
    let (store, _) = open(&folder);
    say("opened");
    let record = record(&store, 1, payload(&store, 1, 200_000).unwrap());
    store.commit(vec![Change::Put(record)]).unwrap();
    say("committed");
}

/// Runs the child, and returns its calls in their order.
fn trace(folder: &Path) -> Option<Vec<Call>> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "store_order::child", "--ignored"]).env(FOLDER, folder).stdout(Stdio::null());
    // SAFETY: ptrace(2) is async-signal-safe, and this request passes no memory.
    let ask = || match unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    };
    // SAFETY: the closure makes one system call and allocates nothing.
    let child = unsafe { command.pre_exec(ask) }.spawn().ok()?;
    let child = libc::pid_t::try_from(child.id()).unwrap();
    let mut calls = Vec::new();
    let mut options = true;
    loop {
        let mut status = 0;
        // Other threads run tests with children of their own.
        let flags = libc::__WALL | libc::__WNOTHREAD;
        // SAFETY: `status` lives as long as the call.
        let thread = unsafe { libc::waitpid(-1, &raw mut status, flags) };
        assert!(thread > 0, "the child is gone");
        if !libc::WIFSTOPPED(status) {
            if thread == child {
                assert_eq!(status, 0, "the child has failed");
                return Some(calls);
            }
            continue;
        }
        if std::mem::take(&mut options) {
            let wanted = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;
            request(libc::PTRACE_SETOPTIONS, thread, wanted);
        }
        let signal = libc::WSTOPSIG(status);
        if signal == libc::SIGTRAP | 0x80 {
            calls.extend(call(thread, folder));
        }
        // A thread's first stop and the stops of tracing are none of the child's signals.
        let own = !matches!(signal & 0x7f, libc::SIGTRAP | libc::SIGSTOP);
        request(libc::PTRACE_SYSCALL, thread, if own { signal } else { 0 });
    }
}

fn request(what: libc::c_uint, thread: libc::pid_t, data: libc::c_int) {
    // SAFETY: these requests take a number, not an address. One for a thread that has just been killed fails,
    // which waitpid then tells.
    unsafe { libc::ptrace(what, thread, 0, libc::c_long::from(data)) };
}

/// The call that a thread is about to make, if it concerns a file of the folder.
fn call(thread: libc::pid_t, folder: &Path) -> Option<Call> {
    // SAFETY: a structure of numbers, for which zeros are valid.
    let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
    let size = size_of_val(&info);
    // SAFETY: the kernel writes at most `size` bytes to `info`.
    unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, thread, size, &raw mut info) };
    if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return None;
    }
    // SAFETY: `op` says that this member is the one that was filled in.
    let entry = unsafe { info.u.entry };
    let verb = match entry.nr as libc::c_long {
        libc::SYS_write | libc::SYS_pwrite64 => "write",
        libc::SYS_fsync | libc::SYS_fdatasync => "sync",
        _ => return None,
    };
    let file = std::fs::read_link(format!("/proc/{thread}/fd/{}", entry.args[0])).ok()?;
    Some((verb, file.strip_prefix(folder).ok()?.to_str()?.to_owned()))
}
