//! What the daemon's `snoop` gains: `snoop_gain [RATE] [RTT] [PER] [BYTES]`, as root.
//!
//! The same download by Reno end to end, without a daemon and with its segments looked after by one, and split. Each way has
//! a link of its own with the same seed; all run at the same time.

use std::error::Error;
use std::str::FromStr;

use bentpipe_lab::download::{Progress, Request, Server, download};
use bentpipe_lab::scene::Scene;
use bentpipe_link::{DirectionConfig, LinkConfig};
use bentpipe_proxy::{Config, Daemon, Stats};
use bentpipe_units::{ByteCount, Probability, Rate, Span};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const PORT: u16 = 80;
const WAYS: [(&str, Option<&str>); 3] =
    [("end to end", None), ("snooped", Some("snoop")), ("split (Hybla)", Some("split"))];

/// Link and request.
#[derive(Clone)]
struct Case {
    rate: Rate,
    rtt: Span,
    per: Probability,
    bytes: ByteCount,
}

fn main() -> Outcome<()> {
    let case = Case {
        rate: argument(1, "10M")?,
        rtt: argument(2, "600ms")?,
        per: argument(3, "1%")?,
        bytes: argument(4, "4MB")?,
    };
    let results = std::thread::scope(|scope| {
        let case = &case;
        let runs = WAYS.map(|(_, action)| scope.spawn(move || run(case, action)));
        runs.map(|run| run.join().expect("no run panics"))
    });
    println!("{:<14} {:>8} {:>8}   {}", "", "s", "Mbit/s", "the daemon's part");
    for ((name, _), result) in WAYS.iter().zip(results) {
        let (seconds, stats) = result?;
        let goodput = case.bytes.get() as f64 * 8.0 / seconds / 1e6;
        let snoop = stats.map(|stats| stats.snoop).filter(|snoop| snoop.packets > 0);
        let part = snoop.map_or_else(String::new, |snoop| format!("{snoop:?}"));
        println!("{name:<14} {seconds:>8.1} {goodput:>8.2}   {part}");
    }
    Ok(())
}

fn argument<T: FromStr>(position: usize, default: &str) -> Outcome<T>
where
    T::Err: Error + Send + Sync + 'static,
{
    Ok(std::env::args().nth(position).unwrap_or_else(|| default.into()).parse()?)
}

/// Seconds from the start of the connection to the last byte, and what the daemon says.
fn run(case: &Case, action: Option<&str>) -> Outcome<(f64, Option<Stats>)> {
    let Case { rate, rtt, per, bytes } = case;
    let (delay, per) = (rtt.get() / 2, *per);
    let direction = DirectionConfig { rate: Some(*rate), delay, per, ..Default::default() };
    let scene = Scene::build(&LinkConfig { forward: direction.clone(), reverse: direction }, 1)?;
    let daemon = action.map(|action| {
        let text = format!(
            "[legs.satellite]\ninterface = \"sat0\"\nrate = \"{rate}\"\nrtt = \"{rtt}\"\n[[rules]]\naction = \"{action}\"\n"
        );
        let config = Config::parse("example", &text)?;
        Outcome::Ok(scene.gateway.run(|| Daemon::start(&config))??)
    });
    let daemon = daemon.transpose()?;
    let address = scene.server_address(PORT);
    let server = scene.server.run(|| Server::start(address, Some("reno")))??;
    let request = Request { seed: 1, bytes: bytes.get() };
    let got = scene.client.run(|| download(address, request, &Progress::default()))??;
    scene.server.run(|| drop(server))?;
    // In its own namespace, where its rules are.
    let stats = scene.gateway.run(|| daemon.map(Daemon::stop))?;
    if !got.identical {
        return Err("what arrived is not what was sent".into());
    }
    Ok((got.duration.as_secs_f64(), stats))
}
