//! The command line.

use std::path::Path;
use std::time::Duration;

use clap::{Parser, ValueEnum, value_parser};

use crate::peer::Peer;

const FILES: &str = "\
FILE is TOML. Its commands run on the gateway, whose interface ground0 faces the client (10.77.1.2) and sat0
the server (10.77.2.2); {dir} stands for the file's folder, {bin} for the folder of this build's programs.

  command = [\"haproxy\", \"-db\", \"-f\", \"{dir}/haproxy.cfg\"]   # stays in the foreground, ends at SIGTERM
  setup = [\"nft -f {dir}/rules.nft\"]      # lines for the shell, before the proxy starts
  teardown = []                            # and after it has ended
  ready.port = 7700                        # ready when this TCP port listens, or
  ready.line = \"ready\"                   # when it has written a line with this on standard error";

/// The folder of the proxies that come with bentpipe.
const PEERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../peers");
const DEFAULTS: [(&str, &str); 3] = [
    ("bentpipe", "bentpipe/proxy.toml"),
    ("haproxy", "haproxy/proxy.toml"),
    ("haproxy-tuned", "haproxy/tuned.toml"),
];

/// Transparent proxies side by side, on network namespaces of this machine. Needs root.
#[derive(Debug, Parser)]
#[command(after_help = FILES)]
pub(crate) struct Options {
    /// Measure the proxy that FILE describes; may be given several times [default: bentpipe, haproxy and
    /// haproxy-tuned, of the folder peers/]
    #[arg(long = "proxy", value_name = "NAME=FILE", value_parser = load)]
    proxies: Vec<Peer>,
    /// The proxy that the others are compared with
    #[arg(long, value_name = "NAME", default_value = "haproxy")]
    pub(crate) reference: String,
    /// Measure only this; may be given several times
    #[arg(long, value_name = "WHAT")]
    only: Vec<Measurement>,
    /// How often everything is measured
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u16).range(1..=3600))]
    rounds: u16,
    /// How long each measurement takes, after a quarter of it to warm up
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    seconds: f64,
    /// One short round: does everything work?
    #[arg(long)]
    quick: bool,
    /// One JSON document instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Measurement {
    Bulk,
    Short,
    Latency,
}

impl Options {
    /// Plain forwarding, which is no proxy, then the proxies.
    pub(crate) fn ways(&self) -> Result<Vec<Option<Peer>>, String> {
        let load = |(name, file): &(&str, &str)| Peer::load(name, &Path::new(PEERS).join(file));
        let proxies = match self.proxies.is_empty() {
            true => DEFAULTS.iter().map(load).collect::<Result<_, _>>()?,
            false => self.proxies.clone(),
        };
        Ok([None].into_iter().chain(proxies.into_iter().map(Some)).collect())
    }

    pub(crate) fn rounds(&self) -> usize {
        if self.quick { 1 } else { self.rounds.into() }
    }

    /// The length of each measurement, after a quarter of it to warm up.
    pub(crate) fn time(&self) -> Duration {
        Duration::from_secs_f64(if self.quick { 0.2 } else { self.seconds })
    }

    /// Whether this kind of measurement is wanted.
    pub(crate) fn measures(&self, what: Measurement) -> bool {
        self.only.is_empty() || self.only.contains(&what)
    }
}

fn load(argument: &str) -> Result<Peer, String> {
    let (name, file) = argument.split_once('=').ok_or("write NAME=FILE")?;
    Peer::load(name, Path::new(file))
}

fn seconds(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.05..=3600.0).contains(number));
    number.ok_or(format!("{text} is not a number from 0.05 to 3600"))
}
