//! A daemon hands over to another process of the same program.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Command;

use bentpipe_proxy::handover::{Predecessor, receive_heir};
use bentpipe_proxy::{Config, Daemon, Prepared};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType, bind, connect, listen, recv, send,
    socket,
};

use super::{Net, Running};

/// In the daemon's process: waits for somebody at this socket and hands over.
pub fn hand_over(daemon: Daemon, path: &Path) -> Result<(), (Daemon, String)> {
    let door = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    bind(&door, &SocketAddrUnix::new(path).unwrap()).unwrap();
    listen(&door, 4).unwrap();
    println!("waiting");
    let inventory = daemon.inventory(vec!["log".into()]);
    let heir = match receive_heir(door.as_fd(), &inventory) {
        Ok(heir) => heir,
        Err(error) => return Err((daemon, error.to_string())),
    };
    let belongings = [("log".to_owned(), door.as_fd())];
    let outcome = daemon.hand_over(&heir, &belongings, serde_json::json!({ "remember": 7 }), |_| {});
    outcome.map_err(|(daemon, error)| (daemon, error.to_string()))
}

/// In the next one: takes over from whoever listens at this socket.
pub fn take_over(config: &Config, path: &Path) -> Result<Daemon, String> {
    let predecessor = Predecessor::greet(path).map_err(|error| error.to_string())?;
    let prepared = Prepared::beside(config, &predecessor).map_err(|error| error.to_string())?;
    let (daemon, belongings) = prepared.take_over(&predecessor).map_err(|error| error.to_string())?;
    assert_eq!((belongings.descriptors.len(), &belongings.memory["remember"]), (1, &serde_json::json!(7)));
    Ok(daemon)
}

impl Running {
    /// Lets it wait for somebody who takes over; the socket, in a folder that must be kept for so long.
    pub fn await_heir(&mut self) -> (tempfile::TempDir, std::path::PathBuf) {
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
        let (_folder, path) = self.await_heir();
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

    /// Somebody comes to take over, asks for everything, and then does as `behave` says with the line; what the daemon says then.
    pub fn disappoint(&mut self, behave: impl FnOnce(&OwnedFd)) -> String {
        let (_folder, path) = self.await_heir();
        let line = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        connect(&line, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        say(&line, r#"{"Hello":{"form":1,"version":"0"}}"#);
        assert!(hear(&line).contains("Inventory"));
        say(&line, r#""Take""#);
        behave(&line);
        let outcome = self.outcome_of_handover().expect("nobody has taken over");
        drop(line);
        outcome
    }
}

pub fn say(line: &OwnedFd, word: &str) {
    send(line, word.as_bytes(), SendFlags::NOSIGNAL).unwrap();
}

pub fn hear(line: &OwnedFd) -> String {
    let mut word = vec![0; 100_000];
    let (_, length) = recv(line, &mut word, RecvFlags::empty()).unwrap();
    String::from_utf8_lossy(&word[..length]).into_owned()
}
