//! Chromium without a window, for one page.

use std::error::Error;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use bentpipe_testbed::Namespace;
use tempfile::TempDir;

/// It talks to nobody but the page's server, whose certificate it accepts.
const SWITCHES: [&str; 10] = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--ignore-certificate-errors",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--dump-dom",
];

/// A browser with an empty profile.
pub(crate) struct Browser {
    command: Command,
    _profile: TempDir,
}

/// When the first byte had come and when all was there, seconds after the navigation began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Loaded {
    pub(crate) first_byte: f64,
    pub(crate) complete: f64,
}

impl Browser {
    pub(crate) fn in_host(host: &Namespace) -> Result<Self, Box<dyn Error>> {
        let profile = tempfile::tempdir()?;
        let mut command = host.command("chromium");
        command.args(SWITCHES).arg(format!("--user-data-dir={}", profile.path().display()));
        Ok(Self { command, _profile: profile })
    }

    /// Loads the page and reads the times from its title.
    pub(crate) fn load(mut self, server: SocketAddr) -> Result<Loaded, Box<dyn Error>> {
        let command = self.command.arg(format!("https://{server}/")).stderr(Stdio::null());
        let output = command.output().map_err(|error| {
            format!("cannot start chromium: {error}; install it by `scripts/setup-peers chromium`")
        })?;
        let page = String::from_utf8_lossy(&output.stdout);
        let title = page.split_once("<title>loaded ").and_then(|(_, rest)| rest.split_once("</title>"));
        let (times, _) = title.ok_or_else(|| format!("the page has not been loaded: {page:.200}"))?;
        let mut seconds = times.split(' ').map(|time| time.parse::<f64>().map(|ms| ms / 1e3));
        let mut next = || seconds.next().ok_or("a time is missing");
        Ok(Loaded { first_byte: next()??, complete: next()?? })
    }
}
