//! A daemon hands over to another process of the same program.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use bentpipe_proxy::upgrade::{Predecessor, wait_for_successor};
use bentpipe_proxy::{Config, Daemon, Prepared};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen,
    recv, send, socket_with,
};
use rustix::process::{Pid, Signal, kill_process};

use super::{Net, Running};

/// Names of sockets: who hands over there ends its successor, or itself, right before the last word.
pub const KILLING: &str = "killing";
pub const DYING: &str = "dying";

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
    let last = |successor| {
        let victim = match path.file_stem().and_then(|name| name.to_str()) {
            Some(KILLING) => Pid::from_raw(successor),
            Some(DYING) => Some(rustix::process::getpid()),
            _ => None,
        };
        if let Some(victim) = victim {
            kill_process(victim, Signal::KILL).unwrap();
        }
    };
    let outcome = daemon.hand_over(&successor, &extra_fds, serde_json::json!({ "remember": 7 }), last);
    outcome.map_err(|(daemon, error)| (daemon, error.to_string()))
}

/// In the next one: takes over from whoever listens at this socket.
pub fn take_over(config: &Config, path: &Path) -> Result<Daemon, String> {
    let predecessor = Predecessor::connect(path).map_err(|error| error.to_string())?;
    let prepared = Prepared::beside(config, &predecessor).map_err(|error| error.to_string())?;
    let (daemon, extra_fds) = prepared.take_over(&predecessor).map_err(|error| error.to_string())?;
    assert_eq!((extra_fds.descriptors.len(), &extra_fds.memory["remember"]), (1, &serde_json::json!(7)));
    Ok(daemon)
}

impl Net {
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
        self.await_successor_at("handover")
    }

    /// The same at a socket of this name.
    pub fn await_successor_at(&mut self, name: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name).with_extension("sock");
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

    /// It dies while another process with this configuration takes its place, when that is ready.
    pub fn succeed_while_dying(&mut self, net: &Net, text: &str) {
        let (_folder, path) = self.await_successor_at(DYING);
        let mut next = net.take_over(text, &path).unwrap();
        assert_eq!(self.child.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
        std::mem::swap(self, &mut next);
        std::mem::swap(&mut self.accounts, &mut next.accounts);
    }

    /// Another process with this configuration is about to take its place, and is killed when it is ready;
    /// what is said against it here.
    pub fn outlive(&mut self, net: &Net, text: &str) -> String {
        let (_folder, path) = self.await_successor_at(KILLING);
        assert!(net.take_over(text, &path).is_err());
        self.outcome_of_handover().expect("nobody has taken over")
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
                // The child of this value is dead: what it does at its end is of no effect.
                std::mem::swap(self, &mut next);
                // What it may hold in the end is what the first one held when it was ready.
                std::mem::swap(&mut self.accounts, &mut next.accounts);
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
            send_message(line, r#"{"Hello":{"form":2,"version":"0"}}"#);
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
