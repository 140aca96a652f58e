//! The comparison with the TCP of this machine's kernel, in real time.

use std::io;
use std::time::{Duration, Instant};

use bentpipe_link::LinkConfig;
use bentpipe_link::agent::arq::{ArqConfig, Delivery};
use bentpipe_link::agent::delayed_dup_ack::DelayedDupAckConfig;
use bentpipe_link::agent::{AgentConfig, LinkEndConfig};
use bentpipe_proxy::{Config, Daemon};
use bentpipe_units::{ByteCount, Probability, Rate};

use super::super::{Lab, Load, Output, rows};
use super::{CACHE_BDPS, Comparison, DELAY_RTTS, Measured, Mitigation, PERS, RTT, SenderCounts, TIME};
use crate::Error;
use crate::download::{self, Request, SAMPLE_INTERVAL, Server};
use crate::topology::{FarEnd, Proxy, SATELLITE, Topology, symmetric};
use crate::unsplit::{Boxes, Class, SETTLED};

const RATE: Rate = Rate::mbps(10);
const SERVER: &str = "reno";
/// The interval between two samples of the bytes that the gateway holds.
const HELD_INTERVAL: Duration = Duration::from_millis(50);
/// The longest wait until the server learns that the client has gone. The reset, and its repetition in answer
/// to the next segment, may be lost several times.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(15);
/// Seeds or packet error rates that run at the same time. Each link takes about a twentieth of a CPU.
const ROUNDS_AT_ONCE: usize = 2;

/// All mitigations run at the same time.
pub(super) fn run(lab: &Lab<'_>) -> Result<Output, Error> {
    let lasts = if lab.quick { TIME / 2 } else { TIME };
    let mut jobs = Vec::new();
    for per in PERS {
        for seed in lab.seeds() {
            for mitigation in Mitigation::ALL {
                let download = Download { mitigation, sender: SERVER, queue: None, per, lasts, seed };
                jobs.push(move || download.measure());
            }
        }
    }
    let runs = rows(
        lab.side_by_side(ROUNDS_AT_ONCE * Mitigation::ALL.len(), Load::of_link(RATE), jobs)?,
        Mitigation::ALL.len(),
    );
    let by_per = rows(runs, lab.seeds().count());
    let of_mitigation = |index: usize| -> Vec<Vec<Measured>> {
        by_per.iter().map(|seeds| seeds.iter().map(|runs| runs[index]).collect()).collect()
    };
    let by_mitigation: Vec<_> = (0..Mitigation::ALL.len()).map(of_mitigation).collect();
    Ok(Comparison::of(&by_mitigation).output())
}

/// A download of a fixed length of time.
#[derive(Debug, Clone, Copy)]
pub(in crate::experiment) struct Download {
    pub mitigation: Mitigation,
    /// The congestion control of the server.
    pub sender: &'static str,
    /// The size of the queue in front of the link, each way; `None`: one bandwidth-delay product.
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
    /// If the link, the daemon or the connection fails.
    pub(in crate::experiment) fn measure(self) -> Result<Measured, Error> {
        let Self { mitigation, sender, per, lasts, seed, .. } = self;
        let run = format!("{} from {sender} at PER {per}", mitigation.label().0);
        let fail = |source| Error::Transfer { run: run.clone(), source };
        let link = self.link();
        let is_protected = mitigation == Mitigation::Protected;
        // What a box sends itself is not protected: the client needs one of its own in front of it.
        let far_end = if is_protected { FarEnd::ForwardingTerminal } else { FarEnd::Client };
        let topology = Topology::build_with(&link, &link_ends(mitigation, &link), seed, far_end)?;
        let boxes = is_protected.then(|| Boxes::start(&topology, RATE, Class::Auto, "tcp")).transpose()?;
        if boxes.is_some() {
            std::thread::sleep(SETTLED);
        }
        let server = topology.serve(Some(sender), SAMPLE_INTERVAL).map_err(fail)?;
        let action = match mitigation {
            Mitigation::Split => Some("split"),
            Mitigation::Snoop => Some("snoop"),
            Mitigation::EndToEnd | Mitigation::DelayedDupAcks | Mitigation::Protected => None,
        };
        let daemon = action.map(|action| Proxy::start(&topology.gateway, &proxy(action))).transpose()?;
        let at_gateway = daemon.as_deref().or(boxes.as_ref().map(Boxes::gateway));
        let (held, got) = self.transfer(&topology, at_gateway);
        let goodput_bps = got.map_err(fail)?.bytes as f64 * 8.0 / lasts.as_secs_f64();
        Ok(Measured { goodput_bps, held_bytes: held as f64, sender: sender_counts(&server, lasts) })
    }

    /// The most bytes that the gateway held at a time, and the client's download.
    fn transfer(
        &self,
        topology: &Topology,
        daemon: Option<&Daemon>,
    ) -> (u64, io::Result<download::Download>) {
        let progress = download::Progress::default();
        let request = Request { seed: self.seed, bytes: u64::MAX };
        let started = Instant::now();
        std::thread::scope(|scope| {
            let client = scope.spawn(|| topology.download(request, &progress));
            let mut most = 0;
            while started.elapsed() < self.lasts && !client.is_finished() {
                most = most.max(held(topology, daemon));
                std::thread::sleep(HELD_INTERVAL);
            }
            progress.cancel();
            (most, client.join().expect("the download does not panic"))
        })
    }

    fn link(&self) -> LinkConfig {
        let per = Probability::new(self.per).expect("the experiment's rates are probabilities");
        let mut link = symmetric(RATE, RTT, per);
        (link.forward.queue, link.reverse.queue) = (self.queue, self.queue);
        link
    }
}

/// The counters of the server's socket (tcp(7), `TCP_INFO`) at the end of the download. They are recorded
/// until the server learns that the client has gone, and available when its connection has ended.
fn sender_counts(server: &Server, lasts: Duration) -> Option<SenderCounts> {
    let asked = Instant::now();
    while server.traces().is_empty() && asked.elapsed() < CLOSE_TIMEOUT {
        std::thread::sleep(HELD_INTERVAL);
    }
    let traces = server.traces();
    let during = || traces.first().into_iter().flatten().filter(|sample| sample.at <= lasts);
    Some(SenderCounts {
        retransmissions: during().map(|sample| sample.info.retransmissions).max()?.into(),
        timeouts: during().map(|sample| sample.info.timeouts).max()?.into(),
    })
}

/// The bytes of the download that the gateway holds now.
fn held(topology: &Topology, daemon: Option<&Daemon>) -> u64 {
    let [gateway, _] = topology.link.held_bytes();
    let of_daemon = |daemon: &Daemon| {
        let stats = daemon.stats();
        let [snoop, protect] = [
            stats.snoop.held_bytes + stats.snoop.queued_bytes,
            stats.protect.held_bytes + stats.protect.queued_bytes,
        ];
        stats.buffered + snoop + protect
    };
    gateway + daemon.map_or(0, of_daemon)
}

/// The agents and ARQs at the gateway and at the client.
fn link_ends(mitigation: Mitigation, link: &LinkConfig) -> [LinkEndConfig; 2] {
    let nothing = LinkEndConfig::default;
    match mitigation {
        Mitigation::EndToEnd | Mitigation::Split | Mitigation::Snoop | Mitigation::Protected => {
            [nothing(), nothing()]
        }
        Mitigation::DelayedDupAcks => {
            let arq = Some(ArqConfig { delivery: Delivery::Immediate, ..ArqConfig::for_link(link) });
            let delayed = DelayedDupAckConfig::with_delay(RTT.mul_f64(DELAY_RTTS));
            [
                LinkEndConfig { agents: Vec::new(), arq },
                LinkEndConfig { agents: vec![AgentConfig::DelayedDupAck(delayed)], arq },
            ]
        }
    }
}

/// The configuration of a daemon that takes this action. Snoop's cache is [`CACHE_BDPS`] of the leg, and its
/// pace follows from the leg's rate.
fn proxy(action: &str) -> Config {
    let text = format!(
        "[legs.satellite]\ninterface = \"{SATELLITE}\"\ncongestion = \"hybla\"\nrate = \"{RATE}\"\nrtt = \
         \"{}ms\"\n\
         [snoop]\ncache = \"{}B\"\n[[rules]]\naction = \"{action}\"\n",
        RTT.as_millis(),
        CACHE_BDPS * RATE.bytes_in(RTT) as f64,
    );
    Config::parse("the experiment's configuration", &text).expect("its values are valid")
}
