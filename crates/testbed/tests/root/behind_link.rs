//! A command behind the link, run by an ordinary user.
//!
//! `/dev/net/tun` may be root's alone on the machine, so each test has a private mount namespace in which
//! `/dev/net` is a fresh directory with a node for everybody, beside a copy of the programs that the user can
//! reach.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::common::{can_run, wait_until};

const NOBODY: u32 = 65534;

/// Built by `cargo test` with the tests.
fn example() -> PathBuf {
    let here = std::env::current_exe().unwrap();
    let path = here.parent().and_then(Path::parent).unwrap().join("examples/behind_link");
    assert!(path.exists(), "{} is missing: cargo build -p bentpipe-testbed --examples", path.display());
    path
}

/// `behind_link ARGS` as an ordinary user, after `prepare` has run in the fresh `/dev/net`.
fn as_ordinary_user(prepare: &str, args: &[&str]) -> Command {
    let script = format!(
        "set -e; server=$1; program=$2; shift 2
         mount -t tmpfs -o mode=0755 tmpfs /dev/net
         cp $server /dev/net/server; cp $program /dev/net/behind_link
         {prepare}
         cd /
         exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups --inh-caps -all /dev/net/behind_link \"$@\""
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script, "sh"]);
    command.arg(std::env::current_exe().unwrap()).arg(example()).args(args).stdin(Stdio::null());
    command
}

const TUN_FOR_ALL: &str = "mknod -m 0666 /dev/net/tun c 10 200";

fn run(args: &[&str]) -> Output {
    as_ordinary_user(TUN_FOR_ALL, args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Not a test of its own: the server that a test puts at the far end.
#[test]
#[ignore = "a process for another test to start"]
fn far_server() {
    if std::env::var_os("BENTPIPE_FAR").is_none() {
        return;
    }
    let listener = TcpListener::bind("0.0.0.0:80").unwrap();
    for stream in listener.incoming() {
        stream.unwrap().write_all(b"hello from the far end\n").unwrap();
    }
}

#[test]
fn an_ordinary_user_talks_to_a_server_over_the_link() {
    if !can_run() {
        return;
    }
    let output = run(&[
        "--far",
        "/dev/net/server --ignored --exact behind_link::far_server",
        "bash",
        "-c",
        "until exec 3<>/dev/tcp/$BENTPIPE_FAR/80; do sleep 0.1; done 2>/dev/null
         cat <&3
         id -u; grep CapEff /proc/self/status",
    ]);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(stdout.contains("hello from the far end"), "{stdout}\n{stderr}");
    assert!(stdout.contains("65534"), "the user stays who they are: {stdout}");
    assert!(stdout.contains("CapEff:\t0000000000000000"), "the command has no capability: {stdout}");
    assert!(stderr.contains("link: to the command") && stderr.contains("link: from the command"), "{stderr}");
    assert!(output.status.success(), "{}", output.status);
}

#[test]
fn the_link_is_the_only_way_out_and_has_its_delay() {
    if !can_run() {
        return;
    }
    let started = std::time::Instant::now();
    let output =
        run(&["bash", "-c", "exec 3<>/dev/tcp/$BENTPIPE_FAR/9; cat /proc/net/dev | tail -n +3 | wc -l"]);
    // The refusal of the connection comes back after one round trip.
    assert!(started.elapsed().as_millis() >= 600, "{:?}", started.elapsed());
    assert!(text(&output.stderr).contains("refused"), "{output:?}");
    assert!(text(&output.stderr).contains("1 packets sent, 1 delivered"), "{output:?}");
}

#[test]
fn the_exit_code_is_the_commands() {
    if !can_run() {
        return;
    }
    assert_eq!(run(&["sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(run(&["sh", "-c", "kill -9 $$"]).status.code(), Some(137));
}

#[test]
fn a_command_that_does_not_exist_is_named() {
    if !can_run() {
        return;
    }
    let output = run(&["/no/such/command"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot start `/no/such/command`"), "{output:?}");
}

#[test]
fn a_missing_tun_device_is_told_with_its_remedy() {
    if !can_run() {
        return;
    }
    let missing = as_ordinary_user("", &["true"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).contains("modprobe tun"), "{missing:?}");
    let locked = as_ordinary_user("mknod -m 0600 /dev/net/tun c 10 200", &["true"]).output().unwrap();
    assert!(text(&locked.stderr).contains("chmod 0666 /dev/net/tun"), "{locked:?}");
}

#[test]
fn sigterm_ends_the_command_and_the_far_server() {
    if !can_run() {
        return;
    }
    let far = "readlink /proc/self/ns/net; sleep 1000 & sleep 1000; :";
    let mut running = as_ordinary_user(
        TUN_FOR_ALL,
        &["--far", far, "sh", "-c", "readlink /proc/self/ns/net; echo $PPID; exec sleep 1000"],
    )
    .stdout(Stdio::piped())
    .stderr(Stdio::piped())
    .spawn()
    .unwrap();
    let mut stdout = BufReader::new(running.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut stderr = BufReader::new(running.stderr.take().unwrap()).lines().map(Result::unwrap);
    let (namespace, parent) = (stdout.next().unwrap(), stdout.next().unwrap());
    let far_namespace = stderr.find(|line| line.starts_with("net:[")).expect("what the far end prints");
    assert!(Command::new("kill").args(["-TERM", &parent]).status().unwrap().success());
    assert_eq!(running.wait().unwrap().code(), Some(128 + 15));
    wait_until("both namespaces are empty", || !has_processes(&namespace) && !has_processes(&far_namespace));
}

fn has_processes(namespace: &str) -> bool {
    let processes = std::fs::read_dir("/proc").unwrap();
    processes.flatten().any(|entry| {
        std::fs::read_link(entry.path().join("ns/net")).is_ok_and(|link| link.as_os_str() == namespace)
    })
}
