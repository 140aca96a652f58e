//! A daemon hands over to another process of the same program.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use bentpipe_proxy::upgrade::{Predecessor, wait_for_successor};
use bentpipe_proxy::{Config, Daemon, Prepared};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen,
    recv, send, socket_with,
};
use rustix::process::{Pid, Signal, kill_process};

use super::{Net, PATIENCE, Running};

/// What a successor does right before it claims the connections: the number of a signal, and of the process
/// that gets it, 0 for itself.
const BEFORE_CLAIM_VARIABLE: &str = "BENTPIPE_TEST_BEFORE_CLAIM";
/// The successor itself.
pub const ITSELF: u32 = 0;

/// Not for programs that other tests start meanwhile.
fn seqpacket_socket() -> OwnedFd {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

/// In the daemon's process: waits for somebody at this socket and hands over.
pub fn hand_over(daemon: Daemon, path: &Path) -> Result<(), (Box<Daemon>, String)> {
    let listener = seqpacket_socket();
    bind(&listener, &SocketAddrUnix::new(path).unwrap()).unwrap();
    listen(&listener, 4).unwrap();
    println!("waiting");
    let inventory = daemon.inventory(vec!["log".into()]);
    let successor = match wait_for_successor(listener.as_fd(), &inventory) {
        Ok(successor) => successor,
        Err(error) => return Err((Box::new(daemon), error.to_string())),
    };
    let extra_fds = [("log".to_owned(), listener.as_fd())];
    let outcome = daemon.hand_over(&successor, &extra_fds, serde_json::json!({ "remember": 7 }), |_| {});
    outcome.map_err(|(daemon, error)| (daemon, error.to_string()))
}

/// In the next one: takes over from whoever listens at this socket.
pub fn take_over(config: &Config, path: &Path) -> Result<Daemon, String> {
    let predecessor = Predecessor::connect(path).map_err(|error| error.to_string())?;
    let prepared = Prepared::beside(config, &predecessor).map_err(|error| error.to_string())?;
    let candidate = prepared.build_from(&predecessor).map_err(|error| error.to_string())?;
    if let Ok(order) = std::env::var(BEFORE_CLAIM_VARIABLE) {
        let (signal, victim) = order.split_once(' ').unwrap();
        send_signal(signal.parse().unwrap(), victim.parse().unwrap());
    }
    let (daemon, extra_fds) = candidate.claim(&predecessor).map_err(|error| error.to_string())?;
    assert_eq!((extra_fds.descriptors.len(), &extra_fds.memory["remember"]), (1, &serde_json::json!(7)));
    Ok(daemon)
}

/// Sends a signal; one that stops the process has stopped it when this returns.
fn send_signal(number: i32, pid: u32) {
    if pid == ITSELF {
        // To this thread: another one would take a signal to the process while this one goes on.
        // SAFETY: the signals that the tests send have no handlers.
        assert_eq!(unsafe { libc::raise(number) }, 0);
        return;
    }
    let signal = Signal::from_named_raw(number).unwrap();
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
    let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    while signal == Signal::STOP && !state().rsplit_once(") ").unwrap().1.starts_with('T') {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

impl Net {
    /// Starts a daemon that takes over from who waits at this socket, and before its claim sends a signal to
    /// a process.
    pub fn take_over_after(
        &self,
        text: &str,
        path: &Path,
        signal: Signal,
        to: u32,
    ) -> Result<Running, String> {
        self.try_daemon_changed(text, |command| {
            command.env(super::TAKE_OVER_VARIABLE, path);
            command.env(BEFORE_CLAIM_VARIABLE, format!("{} {to}", signal.as_raw()));
        })
    }

    /// Starts a daemon that takes over from who waits at this socket.
    fn take_over(&self, text: &str, path: &Path) -> Result<Running, String> {
        self.try_daemon_changed(text, |command| {
            command.env(super::TAKE_OVER_VARIABLE, path);
        })
    }
}

impl Running {
    /// Lets it wait for somebody who takes over; the socket, in a folder that must be kept for so long.
    pub fn await_successor(&mut self) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("handover.sock");
        writeln!(self.stdin.as_mut().unwrap(), "hand over {}", path.display()).unwrap();
        assert_eq!(self.line().as_deref(), Some("waiting"));
        (folder, path)
    }

    /// What it says when somebody had come: nothing if it has handed over.
    pub fn outcome_of_handover(&mut self) -> Option<String> {
        match self.line().expect("the daemon answers").as_str() {
            "handed over" => None,
            error => Some(error.to_owned()),
        }
    }

    /// It dies when another process with this configuration is about to take its place.
    pub fn succeed_while_dying(&mut self, net: &Net, text: &str) {
        let (_folder, path) = self.await_successor();
        let mut next = net.take_over_after(text, &path, Signal::KILL, self.pid()).unwrap();
        assert_eq!(self.child.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
        self.replace(&mut next);
    }

    /// It is frozen when another process with this configuration is about to take its place, and goes on when
    /// that one serves.
    pub fn succeed_while_frozen(&mut self, net: &Net, text: &str, meanwhile: impl FnOnce()) {
        let (_folder, path) = self.await_successor();
        let mut next = net.take_over_after(text, &path, Signal::STOP, self.pid()).unwrap();
        meanwhile();
        self.signal(Signal::CONT);
        assert_eq!(self.outcome_of_handover(), None);
        assert!(self.child.wait().unwrap().success());
        self.replace(&mut next);
    }

    /// Another process with this configuration is about to take its place, and is killed right before its
    /// claim; what is said against it here.
    pub fn outlive(&mut self, net: &Net, text: &str) -> String {
        let (_folder, path) = self.await_successor();
        assert!(net.take_over_after(text, &path, Signal::KILL, ITSELF).is_err());
        self.outcome_of_handover().expect("nobody has taken over")
    }

    /// This value is that process from now on, which has taken the place of the one before.
    fn replace(&mut self, next: &mut Running) {
        // The child of the other value is dead: what it does at its end is of no effect.
        std::mem::swap(self, next);
        // What it may hold in the end is what the first one held when it was ready.
        std::mem::swap(&mut self.accounts, &mut next.accounts);
    }

    /// Another process with this configuration takes its place; or what either of them says against it.
    pub fn succeed(&mut self, net: &Net, text: &str) -> Result<(), String> {
        self.succeed_changed(net, text, |_| {})
    }

    /// The same by a process that is changed before it runs.
    pub fn succeed_changed(
        &mut self,
        net: &Net,
        text: &str,
        change: impl FnOnce(&mut Command),
    ) -> Result<(), String> {
        let (_folder, path) = self.await_successor();
        let outcome = net.try_daemon_changed(text, |command| {
            command.env(super::TAKE_OVER_VARIABLE, &path);
            change(command);
        });
        match outcome {
            Ok(mut next) => {
                assert_eq!(self.outcome_of_handover(), None);
                assert!(self.child.wait().unwrap().success());
                self.replace(&mut next);
                Ok(())
            }
            Err(error) => {
                // It may have gone before it said anything.
                Err(format!("{error}; {}", self.outcome_of_handover().unwrap_or_default()))
            }
        }
    }

    /// Another process with this configuration tries to take its place while one of them may die; the other
    /// one, if it could.
    pub fn attempt(&mut self, net: &Net, text: &str) -> Option<Running> {
        let (_folder, path) = self.await_successor();
        let next = net.take_over(text, &path).ok();
        // In case that nobody has come there.
        let line = seqpacket_socket();
        let _ = connect(&line, &SocketAddrUnix::new(&path).unwrap());
        drop(line);
        let _ = self.line();
        next
    }

    /// A program that connects to take over, asks for the snapshot, and then does as `behave` says with the
    /// socket; and the daemon's error.
    pub fn disappoint(&mut self, behave: impl FnOnce(&OwnedFd)) -> String {
        self.call(|line| {
            send_message(line, r#"{"Hello":{"form":3,"version":"0"}}"#);
            assert!(recv_message(line).contains("Inventory"));
            send_message(line, r#""Freeze""#);
            behave(line);
        })
    }

    /// A program that connects and does as `behave` says with the socket; and the daemon's error.
    pub fn call(&mut self, behave: impl FnOnce(&OwnedFd)) -> String {
        let (_folder, path) = self.await_successor();
        let line = seqpacket_socket();
        connect(&line, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        behave(&line);
        let outcome = self.outcome_of_handover().expect("nobody has taken over");
        drop(line);
        outcome
    }
}

pub fn send_message(line: &OwnedFd, message: &str) {
    send(line, message.as_bytes(), SendFlags::NOSIGNAL).unwrap();
}

pub fn recv_message(line: &OwnedFd) -> String {
    let mut message = vec![0; 100_000];
    let (_, length) = recv(line, &mut message, RecvFlags::empty()).unwrap();
    String::from_utf8_lossy(&message[..length]).into_owned()
}

/// The process in the gateway's namespace that is not this one, when there is one and it has stopped.
pub fn frozen_beside(net: &Net, first: u32) -> Pid {
    let is_frozen = |process: &std::path::PathBuf| {
        let stat = std::fs::read_to_string(process.join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
    };
    let start = Instant::now();
    loop {
        let processes = super::accounts::processes_in(&net.gateway);
        let mut frozen = processes.iter().filter(|process| is_frozen(process));
        let pid = frozen.find_map(|process| process.file_name()?.to_str()?.parse::<i32>().ok());
        if let Some(pid) = pid.filter(|&pid| pid != first as i32) {
            return Pid::from_raw(pid).unwrap();
        }
        assert!(start.elapsed() < PATIENCE, "no successor is frozen");
        std::thread::sleep(Duration::from_millis(1));
    }
}
