//! Chromium without a window, for one page.

use std::error::Error;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use bentpipe_testbed::Namespace;
use tempfile::TempDir;

use crate::page::Identity;

/// It talks to nobody but the page's server, and gives up after four minutes.
const SWITCHES: [&str; 10] = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--timeout=240000",
    "--dump-dom",
];

/// The protocol by which the page is to be loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http2,
    Http3,
}

/// A browser with an empty profile.
pub(crate) struct Browser {
    command: Command,
    _profile: TempDir,
}

/// A page's times, seconds after the navigation began.
#[derive(Debug, Clone)]
pub(crate) struct Loaded {
    pub(crate) first_byte: f64,
    pub(crate) complete: f64,
    /// When the page and each of its objects was asked for, its first byte came, and its last one.
    pub(crate) objects: Vec<[f64; 3]>,
}

impl Protocol {
    /// Its name in ALPN, which the browser tells as well.
    pub(crate) fn alpn(self) -> &'static str {
        match self {
            Self::Http2 => "h2",
            Self::Http3 => "h3",
        }
    }
}

impl Browser {
    pub(crate) fn in_host(host: &Namespace) -> Result<Self, Box<dyn Error>> {
        let profile = tempfile::tempdir()?;
        let mut command = host.command("chromium");
        command.args(SWITCHES).arg(format!("--user-data-dir={}", profile.path().display()));
        Ok(Self { command, _profile: profile })
    }

    /// Loads the page from the server of this identity and reads the times that it tells.
    pub(crate) fn load(
        mut self,
        server: SocketAddr,
        identity: &Identity,
        protocol: Protocol,
    ) -> Result<Loaded, Box<dyn Error>> {
        self.command.arg(format!("--ignore-certificate-errors-spki-list={}", identity.fingerprint()));
        if protocol == Protocol::Http3 {
            self.command.arg(format!("--origin-to-force-quic-on={server}"));
        }
        let command = self.command.arg(format!("https://{server}/")).stderr(Stdio::null());
        let output = command.output().map_err(|error| {
            format!("cannot start chromium: {error}; install it by `scripts/setup-peers chromium`")
        })?;
        let page = String::from_utf8_lossy(&output.stdout);
        let title = between(&page, "<title>loaded ", "</title>");
        let title = title.ok_or_else(|| format!("the page has not been loaded: {page:.200}"))?;
        let [first_byte, complete, by] = title.split(' ').collect::<Vec<_>>()[..] else {
            return Err(format!("the page tells other times: {title}").into());
        };
        if by != protocol.alpn() {
            return Err(format!("the page came by {by} instead of {}", protocol.alpn()).into());
        }
        let times = between(&page, "<pre id=\"times\">", "</pre>").ok_or("the objects' times are missing")?;
        let objects = times.split(';').map(triple).collect::<Result<_, _>>()?;
        Ok(Loaded { first_byte: seconds(first_byte)?, complete: seconds(complete)?, objects })
    }
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    Some(text.split_once(before)?.1.split_once(after)?.0)
}

fn triple(text: &str) -> Result<[f64; 3], Box<dyn Error>> {
    let times = text.split(' ').map(seconds).collect::<Result<Vec<_>, _>>()?;
    times.try_into().map_err(|_| format!("an object's times are {text}").into())
}

/// The browser tells milliseconds.
fn seconds(text: &str) -> Result<f64, Box<dyn Error>> {
    Ok(text.parse::<f64>()? / 1e3)
}
