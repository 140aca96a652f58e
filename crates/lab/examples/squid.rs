//! Squid on the gateway beside splitting: downloads of a minute over a GEO link that loses packets, one at a
//! time on each link. `squid [SEEDS] [PAGE]`; needs root and Squid. With a page, its table takes the place of
//! the one there.

use std::time::Duration;

use bentpipe_kernel::hybla::Hybla;
use bentpipe_lab::Error;
use bentpipe_lab::download::Request;
use bentpipe_lab::squid::{self, Squid, WebServer, block};
use bentpipe_lab::statistics::Sample;
use bentpipe_lab::topology::{Proxy, Topology, symmetric};
use bentpipe_proxy::Config;
use bentpipe_units::{Probability, Rate};

const RATE: Rate = Rate::mbps(10);
const RTT: Duration = Duration::from_millis(600);
const PER: f64 = 0.01;
const LASTS: Duration = Duration::from_secs(60);
const CUBIC: &str = "cubic";
/// What a page keeps its table between.
const MARKS: [&str; 2] = ["<!-- table -->\n", "<!-- end of table -->"];

/// What the gateway does.
#[derive(Debug, Clone, Copy)]
enum Scheme {
    EndToEnd,
    /// Squid with the kernel's congestion control on both sides.
    Squid,
    /// Squid as the guide has it.
    SquidHybla,
    /// The guide's daemon without Squid.
    Split,
}

const SCHEMES: [(Scheme, &str); 4] = [
    (Scheme::EndToEnd, "forwards: the server's CUBIC end to end"),
    (Scheme::Squid, "Squid, CUBIC on the satellite"),
    (Scheme::SquidHybla, "Squid, Hybla on the satellite"),
    (Scheme::Split, "bentpipe, Hybla on the satellite"),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let seeds: u64 = arguments.first().map_or(5, |seeds| seeds.parse().expect("SEEDS is a number"));
    let mut text = format!(
        "{} downloads each, Linux {}, {}.\n\n| the gateway | goodput (Mbit/s) |\n|---|---:|\n",
        seeds,
        std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim(),
        version()
    );
    // All schemes at the same time, so that a disturbance of the machine affects them alike.
    let mut goodput = vec![Vec::new(); SCHEMES.len()];
    for seed in 1..=seeds {
        std::thread::scope(|scope| {
            let running = SCHEMES.map(|(scheme, _)| scope.spawn(move || run(scheme, seed).expect("a run")));
            for (values, running) in goodput.iter_mut().zip(running) {
                values.push(running.join().expect("a measurement does not panic"));
            }
        });
    }
    for ((_, name), values) in SCHEMES.iter().zip(goodput) {
        let estimate = Sample::of(values).expect("a seed and more").estimate().in_unit(1e6);
        text += &format!("| {name} | {estimate:.2} |\n");
    }
    print!("{text}");
    if let Some(page) = arguments.get(1) {
        let old = std::fs::read_to_string(page).expect("the page can be read");
        let (before, rest) = old.split_once(MARKS[0]).expect("the page has a place for the table");
        let (_, after) = rest.split_once(MARKS[1]).expect("the place has an end");
        let new = format!("{before}{}{text}{}{after}", MARKS[0], MARKS[1]);
        std::fs::write(page, new).expect("the page can be written");
    }
}

/// The goodput of a download, bits per second.
fn run(scheme: Scheme, seed: u64) -> Result<f64, Error> {
    let per = Probability::new(PER).expect("a probability");
    let topology = Topology::build(&symmetric(RATE, RTT, per), seed)?;
    let hybla = Hybla::acquire()?;
    // Where nothing is asked for, a machine's default may be another than CUBIC. What the route asks for
    // would go before what the daemon does.
    let congestion = match scheme {
        Scheme::Squid => Some(CUBIC),
        Scheme::SquidHybla => Some(hybla.name()),
        Scheme::EndToEnd | Scheme::Split => None,
    };
    squid::route_to_client(&topology, congestion)?;
    let _squid =
        matches!(scheme, Scheme::Squid | Scheme::SquidHybla).then(|| Squid::start(&topology)).transpose()?;
    let config =
        Config::parse("the guide", block("toml")).map_err(|error| Error::Scenario(error.to_string()))?;
    let _daemon =
        matches!(scheme, Scheme::Split).then(|| Proxy::start(&topology.gateway, &config)).transpose()?;
    let transfer = |source| Error::Transfer { run: format!("{scheme:?}"), source };
    // More than the link can carry.
    let request = Request { seed, bytes: RATE.bytes_in(LASTS) };
    let _server = WebServer::start(&topology, request, Some(CUBIC)).map_err(transfer)?;
    let page = squid::load(&topology, request, LASTS).map_err(transfer)?;
    assert!(page.identical, "{scheme:?}: other bytes than were sent: {}", page.head);
    Ok(page.bytes as f64 * 8.0 / LASTS.as_secs_f64())
}

/// The version of Squid, as it says it.
fn version() -> String {
    let output = std::process::Command::new(bentpipe_testbed::find_tool("squid")).arg("-v").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let version = text.lines().next().and_then(|line| line.strip_prefix("Squid Cache: Version "));
    format!("Squid {}", version.unwrap_or("of an unknown version"))
}
