//! A proxy as a file describes it, and as it runs on a gateway.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use bentpipe_testbed::Child;
use rustix::process::Signal;
use serde::Deserialize;

use crate::common::Host;

/// How long a proxy may take to be ready, and to end.
const PATIENCE: Duration = Duration::from_secs(10);
/// How many bytes of its last output an error quotes.
const LAST_WORDS: usize = 2000;

/// A proxy that is to run.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) name: String,
    description: Description,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    command: Vec<String>,
    #[serde(default)]
    setup: Vec<String>,
    #[serde(default)]
    teardown: Vec<String>,
    ready: Ready,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
enum Ready {
    Port(u16),
    Line(String),
}

/// A running proxy.
pub(crate) struct Running {
    peer: Peer,
    child: Child,
}

/// The standard error of a program.
#[derive(Clone, Default)]
struct Words {
    text: Arc<Mutex<String>>,
    ended: Arc<AtomicBool>,
}

impl Peer {
    pub(crate) fn load(name: &str, file: &Path) -> Result<Self, String> {
        let fail = |error: &dyn std::fmt::Display| format!("proxy {name}: {}: {error}", file.display());
        let folder = file.canonicalize().map_err(|error| fail(&error))?;
        let text = std::fs::read_to_string(file).map_err(|error| fail(&error))?;
        let text = fill_in(&text, folder.parent().unwrap_or(Path::new("/")));
        let description: Description = toml::from_str(&text).map_err(|error| fail(&error))?;
        if description.command.is_empty() {
            return Err(fail(&"the command is empty"));
        }
        Ok(Self { name: name.to_owned(), description })
    }

    /// Sets the gateway up and starts the proxy there; it is ready when this returns.
    pub(crate) fn start(&self, gateway: &Host) -> Result<Running, String> {
        let Description { command: words, setup, ready, .. } = &self.description;
        self.shell(gateway, setup)?;
        let mut command = gateway.command(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = Child::spawn(command).map_err(|error| format!("proxy {}: {error}", self.name))?;
        let words = Words::listen_to(&mut child);
        let start = Instant::now();
        while !ready.is_reached(gateway, &words) {
            if words.ended.load(Ordering::Acquire) || start.elapsed() > PATIENCE {
                return Err(format!("proxy {} did not become ready; it said: {}", self.name, words.last()));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(Running { peer: self.clone(), child })
    }

    fn shell(&self, gateway: &Host, lines: &[String]) -> Result<(), String> {
        for line in lines {
            let output = gateway.command("sh").args(["-c", line]).output();
            let output = output.map_err(|error| format!("proxy {}: sh: {error}", self.name))?;
            if !output.status.success() {
                let said = String::from_utf8_lossy(&output.stderr);
                return Err(format!("proxy {}: `{line}` failed: {}", self.name, said.trim()));
            }
        }
        Ok(())
    }
}

impl Ready {
    fn is_reached(&self, gateway: &Host, words: &Words) -> bool {
        match self {
            Ready::Line(line) => words.text.lock().unwrap().contains(line),
            Ready::Port(port) => {
                gateway.enter(|| listens(*port, "/proc/thread-self/net/tcp"))
                    || gateway.enter(|| listens(*port, "/proc/thread-self/net/tcp6"))
            }
        }
    }
}

impl Running {
    /// Its process group, which is named after its leader.
    pub(crate) fn group(&self) -> u32 {
        self.child.id()
    }

    /// Terminates it, or kills it if it does not end, and runs the teardown.
    pub(crate) fn stop(mut self, gateway: &Host) -> Result<(), String> {
        let name = &self.peer.name;
        let fail = |error| format!("proxy {name}: {error}");
        if self.child.wait_timeout(Duration::ZERO).map_err(fail)?.is_some() {
            return Err(format!("proxy {name} ended during the measurements"));
        }
        self.child.signal(Signal::TERM).map_err(fail)?;
        if self.child.wait_timeout(PATIENCE).map_err(fail)?.is_none() {
            self.child.kill().map_err(fail)?;
        }
        self.peer.shell(gateway, &self.peer.description.teardown)
    }
}

impl Words {
    /// Reads everything that the program writes, so that it never blocks.
    fn listen_to(child: &mut Child) -> Self {
        let words = Self::default();
        let (heard, stderr) = (words.clone(), child.stderr());
        thread::spawn(move || {
            for line in
                stderr.into_iter().flat_map(|stderr| BufReader::new(stderr).lines()).map_while(Result::ok)
            {
                let mut text = heard.text.lock().unwrap();
                text.push_str(&line);
                text.push('\n');
            }
            heard.ended.store(true, Ordering::Release);
        });
        words
    }

    fn last(&self) -> String {
        let text = self.text.lock().unwrap();
        let from = text.char_indices().map(|(at, _)| at).find(|at| text.len() - at <= LAST_WORDS);
        text[from.unwrap_or(0)..].trim().to_owned()
    }
}

/// Whether a table such as /proc/net/tcp has a socket in the state LISTEN, 0A, on this port.
fn listens(port: u16, table: &str) -> bool {
    let local = format!(":{port:04X}");
    let is_it = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.len() > 3 && fields[1].ends_with(&local) && fields[3] == "0A"
    };
    std::fs::read_to_string(table).is_ok_and(|text| text.lines().any(is_it))
}

fn fill_in(text: &str, folder: &Path) -> String {
    let program = std::env::current_exe().unwrap_or_default();
    // This program is in the folder `examples` of the build's.
    let build: PathBuf = program.ancestors().nth(2).unwrap_or(Path::new("/")).into();
    text.replace("{dir}", &folder.display().to_string()).replace("{bin}", &build.display().to_string())
}
