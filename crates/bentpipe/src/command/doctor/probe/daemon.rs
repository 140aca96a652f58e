//! A daemon on the copy: this program, with the legs of the configuration.

use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bentpipe_proxy::Config;
use bentpipe_proxy::config::Handshake;
use bentpipe_testbed::Child;

use super::trial::Trial;

/// Loading rules takes a fraction of it.
const START: Duration = Duration::from_secs(10);

/// It ends with this value.
pub(super) struct Daemon {
    _child: Child,
    folder: Folder,
}

/// A folder that nobody else may enter, and that is removed in the end.
struct Folder(PathBuf);

impl Daemon {
    /// Starts one that is ready.
    pub(super) fn start(trial: &Trial, config: &Config) -> anyhow::Result<Self> {
        let folder = Folder::new()?;
        let file = folder.0.join("bentpipe.toml");
        fs::write(&file, configuration(config, &folder.0)).context("cannot write its configuration")?;
        let log = File::create(folder.0.join("log")).context("cannot write its log")?;
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut command = trial.copy.gateway.command(program);
        command.arg("run").arg("--config").arg(&file);
        // It is nobody's service.
        for variable in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "LISTEN_FDS", "JOURNAL_STREAM", "RUST_LOG"] {
            command.env_remove(variable);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut daemon = Self { _child: Child::spawn(command)?, folder };
        daemon.wait()?;
        Ok(daemon)
    }

    fn wait(&mut self) -> anyhow::Result<()> {
        let start = Instant::now();
        while !self.log().lines().any(|line| line.trim_end().ends_with(" ready")) {
            if self._child.wait_timeout(Duration::from_millis(10))?.is_some() {
                bail!("{}", self.log().lines().last().unwrap_or("it said nothing").trim());
            }
            if start.elapsed() > START {
                bail!("it is not ready after {} s", START.as_secs());
            }
        }
        Ok(())
    }

    /// The last warning of its log.
    pub(super) fn warning(&self) -> Option<String> {
        let log = self.log();
        let of = |level: &str| log.lines().rev().find_map(|line| Some(line.split_once(level)?.1.trim().to_owned()));
        of(" WARN ").or_else(|| of(" ERROR "))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.0.join("log")).unwrap_or_default()
    }
}

/// The legs by their interfaces; no rules, since what they say is not in question, and no rates.
fn configuration(config: &Config, folder: &Path) -> String {
    let handshake = match config.proxy.handshake {
        Handshake::Early => "early",
        Handshake::Faithful => "faithful",
    };
    let mut text = format!("[proxy]\nhandshake = \"{handshake}\"\n");
    if let Some(user) = &config.proxy.user {
        let _ = writeln!(text, "user = {user:?}");
    }
    let _ = writeln!(text, "[admin]\nfolder = {folder:?}\nlisten = \"off\"");
    for (number, leg) in config.legs.values().enumerate() {
        let _ = writeln!(text, "[legs.leg{number}]\ninterface = \"{}\"\ncongestion = \"reno\"", leg.interface.as_str());
    }
    text
}

impl Folder {
    fn new() -> anyhow::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("bentpipe-probe-{}-{number}", std::process::id()));
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| format!("cannot make the folder {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!("cannot remove {}: {error}", self.0.display());
        }
    }
}
