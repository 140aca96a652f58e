//! What the command line says.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::peer::Peer;

pub(crate) const HELP: &str = "\
Transparent proxies side by side, on network namespaces of this machine. Needs root.

usage: proxy_benchmark [OPTIONS]

  --proxy NAME=FILE   measure the proxy that FILE describes; may be given several times
                      (default: bentpipe, haproxy and haproxy-tuned, of the folder peers/)
  --reference NAME    the proxy that the others are compared with (default: haproxy)
  --only WHAT         bulk, short or latency; may be given several times (default: all)
  --rounds N          how often everything is measured (default: 5)
  --seconds S         how long each measurement takes (default: 1)
  --quick             one short round: does everything work?
  --json              one JSON document instead of a table

FILE is TOML. Its commands run on the gateway, whose interface ground0 faces the client (10.77.1.2) and sat0 the server
(10.77.2.2); {dir} stands for the file's folder, {bin} for the folder of this build's programs.

  command = [\"haproxy\", \"-db\", \"-f\", \"{dir}/haproxy.cfg\"]   # stays in the foreground, ends at SIGTERM
  setup = [\"nft -f {dir}/rules.nft\"]                         # lines for the shell, before the proxy starts
  teardown = []                                             # and after it has ended
  ready.port = 7700                                         # ready when this TCP port listens, or
  ready.line = \"ready\"                                      # when it has written a line with this on standard error";

/// The folder of the proxies that come with bentpipe.
const PEERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../peers");
const DEFAULTS: [(&str, &str); 3] = [
    ("bentpipe", "bentpipe/proxy.toml"),
    ("haproxy", "haproxy/proxy.toml"),
    ("haproxy-tuned", "haproxy/tuned.toml"),
];
const MEASUREMENTS: [&str; 3] = ["bulk", "short", "latency"];

pub(crate) struct Options {
    /// Plain forwarding, which is nobody, then the proxies.
    pub(crate) ways: Vec<Option<Peer>>,
    pub(crate) reference: String,
    pub(crate) rounds: usize,
    /// The length of each measurement, after a quarter of it to warm up.
    pub(crate) time: Duration,
    pub(crate) json: bool,
    only: Vec<String>,
}

impl Options {
    /// Nothing if help is wanted.
    pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Option<Self>, String> {
        let mut options = Self {
            ways: vec![None],
            reference: "haproxy".into(),
            rounds: 5,
            time: Duration::from_secs(1),
            json: false,
            only: Vec::new(),
        };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value; see --help"));
            match argument.as_str() {
                "--proxy" => options.ways.push(Some(load(&value()?)?)),
                "--reference" => options.reference = value()?,
                "--only" => options.only.push(measurement(value()?)?),
                "--rounds" => options.rounds = number(&value()?)? as usize,
                "--seconds" => options.time = Duration::from_secs_f64(number(&value()?)?),
                "--quick" => (options.rounds, options.time) = (1, Duration::from_millis(200)),
                "--json" => options.json = true,
                "--help" | "-h" => return Ok(None),
                _ => return Err(format!("unknown option {argument}; see --help")),
            }
        }
        if options.ways.len() == 1 {
            for (name, file) in DEFAULTS {
                options.ways.push(Some(Peer::load(name, &Path::new(PEERS).join(file))?));
            }
        }
        Ok(Some(options))
    }

    /// Whether this kind of measurement is wanted.
    pub(crate) fn measures(&self, what: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == what)
    }
}

fn load(argument: &str) -> Result<Peer, String> {
    let (name, file) = argument.split_once('=').ok_or(format!("--proxy {argument}: write NAME=FILE"))?;
    Peer::load(name, &PathBuf::from(file))
}

fn measurement(name: String) -> Result<String, String> {
    let known = MEASUREMENTS.contains(&name.as_str());
    if known { Ok(name) } else { Err(format!("--only {name}: write one of {}", MEASUREMENTS.join(", "))) }
}

fn number(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|&number| (0.05..=3600.0).contains(&number))
        .ok_or(format!("{text} is not a number from 0.05 to 3600"))
}
