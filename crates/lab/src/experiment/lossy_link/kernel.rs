//! The comparison with the TCP of this machine's kernel, in real time.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bentpipe_link::agent::arq::{ArqConfig, Delivery};
use bentpipe_link::agent::delayed_dup_ack::DelayedDupAckConfig;
use bentpipe_link::agent::{AgentConfig, LinkEndConfig};
use bentpipe_link::{DirectionConfig, LinkConfig};
use bentpipe_proxy::{Config, Daemon};
use bentpipe_units::{ByteCount, Probability, Rate};

use super::super::{Findings, Lab};
use super::{CACHE_BDPS, Comparison, DELAY_RTTS, Measured, PERS, RTT, SenderCounts, TIME, Way};
use crate::Error;
use crate::demo::start_proxy;
use crate::download::{self, Request, Server, download};
use crate::scene::{SATELLITE, Scene};

const RATE: Rate = Rate::mbps(10);
const PORT: u16 = 80;
const SERVER: &str = "reno";
/// How often what the gateway holds is looked at.
const INTERVAL: Duration = Duration::from_millis(50);
/// How long the server is waited for to learn that the client has gone; the reset, or its answer to the next segment, may
/// be lost several times.
const FAREWELL: Duration = Duration::from_secs(15);
/// Seeds or packet error rates that run at the same time: each of the links takes about a twentieth of a processor.
const ROUNDS_AT_ONCE: usize = 2;

pub(super) fn run(lab: &Lab<'_>) -> Result<Findings, Error> {
    let rounds: Vec<(usize, u64)> =
        (0..PERS.len()).flat_map(|per| lab.seeds().map(move |seed| (per, seed))).collect();
    lab.progress.planned.fetch_add((rounds.len() * Way::ALL.len()) as u64, Ordering::Relaxed);
    let mut by_way = vec![vec![Vec::new(); PERS.len()]; Way::ALL.len()];
    for together in rounds.chunks(ROUNDS_AT_ONCE) {
        for ((way, per), measured) in side_by_side(lab, together)? {
            by_way[way][per].push(measured);
        }
    }
    Ok(Comparison::of(&by_way).findings())
}

/// What is measured: the indices of the way and of the packet error rate.
type Case = (usize, usize);

/// All ways at the same time, so that what disturbs the machine disturbs all of them alike.
fn side_by_side(lab: &Lab<'_>, rounds: &[(usize, u64)]) -> Result<Vec<(Case, Measured)>, Error> {
    std::thread::scope(|scope| {
        let mut runs = Vec::new();
        for &(per, seed) in rounds {
            for (index, way) in Way::ALL.into_iter().enumerate() {
                let run = scope.spawn(move || {
                    let (queue, per) = (None, PERS[per]);
                    let outcome = Download { way, sender: SERVER, queue, per, lasts: TIME, seed }.measure();
                    lab.progress.done.fetch_add(1, Ordering::Relaxed);
                    outcome
                });
                runs.push(((index, per), run));
            }
        }
        let joined = runs
            .into_iter()
            .map(|(case, run)| Ok((case, run.join().expect("a measurement does not panic")?)));
        joined.collect()
    })
}

/// One download that ends when its time is over.
#[derive(Debug, Clone, Copy)]
pub(in crate::experiment) struct Download {
    pub way: Way,
    /// The congestion control of the server.
    pub sender: &'static str,
    /// In front of the link, each way; `None`: one bandwidth-delay product.
    pub queue: Option<ByteCount>,
    /// Packet error rate, each way.
    pub per: f64,
    pub lasts: Duration,
    pub seed: u64,
}

impl Download {
    /// Runs it in network namespaces.
    ///
    /// # Errors
    /// The link, the daemon or the connection failed.
    pub(in crate::experiment) fn measure(self) -> Result<Measured, Error> {
        let Self { way, sender, per, lasts, seed, .. } = self;
        let run = format!("{} from {sender} at PER {per}", way.name());
        let fail = |source| Error::Transfer { run: run.clone(), source };
        let link = self.link();
        let scene = Scene::build_with_stations(&link, &stations(way, &link), seed)?;
        let address = scene.server_address(PORT);
        let mut server = scene.server.run(|| Server::start(address, Some(sender)))?.map_err(fail)?;
        let daemon = match way {
            Way::Split => Some(start_proxy(&scene, &proxy("split"))?),
            Way::Snoop => Some(start_proxy(&scene, &proxy("snoop"))?),
            Way::EndToEnd | Way::DelayedDupAcks => None,
        };
        let (held, got) = self.transfer(&scene, address, daemon.as_ref());
        let got = got?.map_err(fail)?;
        let counts = sender_counts(&server, lasts);
        scene.server.run(|| server.stop())?;
        if let Some(daemon) = daemon {
            scene.gateway.run(|| drop(daemon))?;
        }
        let goodput_bps = got.bytes as f64 * 8.0 / lasts.as_secs_f64();
        Ok(Measured { goodput_bps, held_bytes: held as f64, sender: counts })
    }

    /// The most that the gateway held of it at a time, and what the client got.
    fn transfer(
        &self,
        scene: &Scene,
        address: SocketAddr,
        daemon: Option<&Daemon>,
    ) -> (u64, Result<io::Result<download::Download>, bentpipe_testbed::Error>) {
        let progress = download::Progress::default();
        let request = Request { seed: self.seed, bytes: u64::MAX };
        let started = Instant::now();
        std::thread::scope(|scope| {
            let client = scope.spawn(|| scene.client.run(|| download(address, request, &progress)));
            let mut most = 0;
            while started.elapsed() < self.lasts && !client.is_finished() {
                most = most.max(held(scene, daemon));
                std::thread::sleep(INTERVAL);
            }
            progress.cancel();
            (most, client.join().expect("the download does not panic"))
        })
    }

    fn link(&self) -> LinkConfig {
        let per = Probability::new(self.per).expect("the experiment's rates are probabilities");
        let queue = self.queue;
        let direction =
            DirectionConfig { rate: Some(RATE), delay: RTT / 2, per, queue, ..Default::default() };
        LinkConfig { forward: direction.clone(), reverse: direction }
    }
}

/// What the server's socket has counted (tcp(7), `TCP_INFO`) until it learned that the client had gone, up to a round trip
/// after the end: it says so when its connection ends.
fn sender_counts(server: &Server, lasts: Duration) -> Option<SenderCounts> {
    let asked = Instant::now();
    while server.traces().is_empty() && asked.elapsed() < FAREWELL {
        std::thread::sleep(INTERVAL);
    }
    let traces = server.traces();
    let during = || traces.first().into_iter().flatten().filter(|sample| sample.at <= lasts);
    Some(SenderCounts {
        retransmissions: during().map(|sample| sample.info.retransmissions).max()?.into(),
        timeouts: during().map(|sample| sample.info.timeouts).max()?.into(),
    })
}

/// What the gateway holds of the download now.
fn held(scene: &Scene, daemon: Option<&Daemon>) -> u64 {
    let [gateway, _] = scene.link.held_bytes();
    let of_daemon = |daemon: &Daemon| {
        let stats = daemon.stats();
        stats.buffered + stats.snoop.held_bytes + stats.snoop.queued_bytes
    };
    gateway + daemon.map_or(0, of_daemon)
}

/// What sits at the gateway and at the client.
fn stations(way: Way, link: &LinkConfig) -> [LinkEndConfig; 2] {
    let nothing = LinkEndConfig::default;
    match way {
        Way::EndToEnd | Way::Split | Way::Snoop => [nothing(), nothing()],
        Way::DelayedDupAcks => {
            let arq = Some(ArqConfig { delivery: Delivery::Immediate, ..ArqConfig::for_link(link) });
            let delayed = DelayedDupAckConfig::with_delay(RTT.mul_f64(DELAY_RTTS));
            [
                LinkEndConfig { agents: Vec::new(), arq },
                LinkEndConfig { agents: vec![AgentConfig::DelayedDupAck(delayed)], arq },
            ]
        }
    }
}

/// What the daemon does with the download. Snoop's cache is [`CACHE_BDPS`] of the leg, and its pace
/// follows from the leg's rate.
fn proxy(action: &str) -> Config {
    let text = format!(
        "[legs.satellite]\ninterface = \"{SATELLITE}\"\ncongestion = \"hybla\"\nrate = \"{RATE}\"\nrtt = \"{}ms\"\n\
         [snoop]\ncache = \"{}B\"\n[[rules]]\naction = \"{action}\"\n",
        RTT.as_millis(),
        CACHE_BDPS * RATE.bytes_in(RTT) as f64,
    );
    Config::parse("the experiment's configuration", &text).expect("it is made of valid values")
}
