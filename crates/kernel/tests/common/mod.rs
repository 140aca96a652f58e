//! What the tests on the real kernel share. Each test file uses some of it.
#![allow(dead_code)]

pub(crate) mod frame;
pub(crate) mod injector;
pub(crate) mod trial;

use std::fmt::Debug;
use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Runs `test` on a thread in a network namespace of its own, which ends with it: every socket, thread and
/// process that it starts belongs to that namespace. Says why, and runs nothing, where this user or machine
/// cannot do so.
pub(crate) fn in_namespace(programs: &[&str], test: impl FnOnce() + Send) {
    if let Some(need) = missing(programs) {
        println!("skipped: needs root: {need}");
        return;
    }
    let entered = || {
        // SAFETY: NEWNET changes this thread's network only; descriptors stay shared with the other threads.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
        run("ip", "link set lo up", "");
        test();
    };
    let outcome = thread::scope(|scope| scope.spawn(entered).join());
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

fn missing(programs: &[&str]) -> Option<String> {
    if !is_root() {
        return Some("network namespaces can be made by root only".to_owned());
    }
    let is_there = |program: &&&str| Command::new(program).arg("--version").output().is_ok();
    let lacking: Vec<_> = ["ip"].iter().chain(programs).filter(|program| !is_there(program)).collect();
    (!lacking.is_empty()).then(|| format!("these programs are not installed: {lacking:?}"))
}

fn is_root() -> bool {
    // SAFETY: geteuid only returns a number.
    unsafe { libc::geteuid() == 0 }
}

/// Runs a program whose arguments are separated by spaces; what it prints. It must succeed.
pub(crate) fn run(program: &str, args: &str, input: &str) -> String {
    let mut child = Command::new(program)
        .args(args.split_whitespace())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{program} {args}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Looks every few milliseconds until `look` finds what it looks for, for at most a minute.
pub(crate) fn wait_for<T: Debug>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "waited a minute in vain: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
