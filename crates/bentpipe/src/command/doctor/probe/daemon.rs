//! A daemon on the copy: this program, with the legs of the configuration.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bentpipe_proxy::Config;
use bentpipe_testbed::{Child, with_own_folder};
use rustix::fs::{MemfdFlags, memfd_create};

use super::trial::Trial;
use crate::command::run::READY;

/// Loading rules takes a fraction of it.
const START: Duration = Duration::from_secs(10);
/// What of the host's files it sees as an empty folder, and fills with its sockets.
const FOLDER: &str = "/tmp";

/// It ends with this value and, like all that it has, with this process.
pub(super) struct Daemon {
    process: Child,
    log: File,
}

impl Daemon {
    /// Starts one that is ready.
    pub(super) fn start(trial: &Trial, config: &Config) -> anyhow::Result<Self> {
        let file =
            memory(&configuration(config)).context("cannot make a file in memory for its configuration")?;
        let log = memory("").context("cannot make a file in memory for its log")?;
        // A program in FOLDER is found by this path, too, and so is one that an upgrade has replaced.
        let mut command = trial.copy.gateway.command(format!("/proc/{}/exe", std::process::id()));
        command.args(["run", "--config", "/dev/stdin"]);
        // It is no service, and has nobody's state folder.
        command.env_clear().env("PATH", path());
        command.stdin(file).stdout(Stdio::null()).stderr(log.try_clone()?);
        with_own_folder(&mut command, FOLDER);
        let mut daemon = Self { process: Child::spawn(command)?, log };
        daemon.wait()?;
        Ok(daemon)
    }

    fn wait(&mut self) -> anyhow::Result<()> {
        let start = Instant::now();
        while !self.log().lines().any(is_ready) {
            if self.process.wait_timeout(Duration::from_millis(10))?.is_some() {
                bail!("{}", self.log().lines().last().unwrap_or("it said nothing").trim());
            }
            if start.elapsed() > START {
                bail!("it is not ready after {} s", START.as_secs());
            }
        }
        Ok(())
    }

    /// The last error that it has logged since it was ready, or else the last warning.
    pub(super) fn complaint(&self) -> Option<String> {
        complaint(&self.log())
    }

    fn log(&self) -> String {
        let read = || -> io::Result<Vec<u8>> {
            let mut bytes = vec![0; self.log.metadata()?.len() as usize];
            self.log.read_exact_at(&mut bytes, 0)?;
            Ok(bytes)
        };
        String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
    }
}

fn is_ready(line: &str) -> bool {
    line.contains(" INFO ") && line.ends_with(READY)
}

fn complaint(log: &str) -> Option<String> {
    let lines: Vec<&str> = log.lines().skip_while(|line| !is_ready(line)).collect();
    let last =
        |level: &str| lines.iter().rev().find_map(|line| Some(line.split_once(level)?.1.trim().to_owned()));
    last(" ERROR ").or_else(|| last(" WARN "))
}

/// The legs by their interfaces; no rules, since what they say is not in question, and no rates.
fn configuration(config: &Config) -> String {
    let mut text = format!("[proxy]\nhandshake = \"{}\"\n", config.proxy.handshake.name());
    // Writing to a String cannot fail.
    let _ = writeln!(text, "mark = \"{}\"", config.proxy.mark);
    if let Some(user) = &config.proxy.user {
        let _ = writeln!(text, "user = {user:?}");
    }
    let _ = writeln!(text, "[admin]\nfolder = \"{FOLDER}/bentpipe\"\nlisten = \"off\"");
    for (number, leg) in config.legs.values().enumerate() {
        let _ = writeln!(
            text,
            "[legs.leg{number}]\ninterface = \"{}\"\ncongestion = \"reno\"",
            leg.interface.as_str()
        );
    }
    text
}

/// A file that has no name and is gone when it is closed.
fn memory(text: &str) -> io::Result<File> {
    let mut file = File::from(memfd_create("bentpipe-probe", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    Ok(file)
}

/// An administrator's PATH, which may lack the folders of `ip` and `nft`.
fn path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin");
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemon_on_the_copy_has_the_legs_and_the_mark_of_the_configuration_and_accepts_them() {
        let text = "[proxy]\nhandshake = \"faithful\"\nmark = \"0x700\"\nuser = \"us\\\\er\"\n\
                    [legs.a]\ninterface = \"sat0\"\nrate = \"10Mbit/s\"\n[[rules]]\naction = \"pass\"\nport = 22\n";
        let copy = configuration(&Config::parse("x", text).unwrap());
        let parsed = Config::parse("copy", &copy).unwrap_or_else(|error| panic!("{error}: {copy}"));
        assert_eq!(parsed.proxy.handshake.name(), "faithful");
        assert_eq!(parsed.proxy.mark.to_string(), "0x700");
        assert_eq!(parsed.proxy.user.as_deref(), Some("us\\er"));
        assert_eq!(parsed.legs["leg0"].interface.as_str(), "sat0");
        assert!(parsed.rules.is_empty());
    }

    #[test]
    fn an_error_since_the_start_tells_more_than_a_warning_or_what_was_before() {
        let log = "t  WARN before\nt  INFO splits; ready\nt  WARN mended\nt ERROR passes\nt  WARN later\n";
        assert_eq!(complaint(log).unwrap(), "passes");
        assert_eq!(complaint("t  WARN before\nt  INFO ready\nt  WARN mended\n").unwrap(), "mended");
        assert_eq!(complaint("t  WARN before\nt  INFO ready\n"), None);
    }
}
