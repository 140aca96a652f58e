//! One pair of nodes on one link.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bentpipe_dtn::Eid;
use bentpipe_dtn::config::NodeConfig;
use bentpipe_dtn::daemon::{Prepared, Running};
use bentpipe_dtn::node::{Node, SendOptions};
use bentpipe_link::{DirectionConfig, LinkConfig};
use bentpipe_testbed::{Namespace, SatelliteLink, Subnet};
use bentpipe_units::{Probability, Rate, Span};
use clap::ValueEnum;

/// The devices' MTU, bytes.
const MTU: u32 = 1500;
/// A trial in which nothing arrives for so long has failed.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of payload that wait at the sender, in seconds of the link's rate.
const AHEAD: f64 = 5.0;

/// The convergence layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Layer {
    /// LTP over UDP.
    Ltp,
    /// TCPCLv4 with explicit rates.
    Tcpcl,
    /// TCPCLv4 with CUBIC.
    Cubic,
}

/// What is tried.
#[derive(Debug)]
pub(crate) struct Trial {
    pub(crate) layer: Layer,
    pub(crate) rate: Rate,
    pub(crate) one_way: Duration,
    pub(crate) per: Probability,
    pub(crate) span: Duration,
    pub(crate) seed: u64,
    /// Bytes of a payload.
    pub(crate) size: usize,
}

impl Trial {
    /// The payload that reaches the far node's store, as a part of what the link can carry.
    pub(crate) fn run(&self) -> Result<f64, String> {
        let text = |error: bentpipe_testbed::Error| error.to_string();
        let (near, far) = (Namespace::new("near").map_err(text)?, Namespace::new("far").map_err(text)?);
        for host in [&near, &far] {
            // A window of TCP holds the link's round trip many times over.
            for buffer in ["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"] {
                host.sysctl(buffer, "4096 131072 134217728").map_err(text)?;
            }
        }
        let direction =
            DirectionConfig { rate: Some(self.rate), delay: self.one_way, ..DirectionConfig::default() };
        let lossy = DirectionConfig { per: self.per, ..direction };
        let config = LinkConfig::symmetric(lossy);
        let _link =
            SatelliteLink::start(&near, "sat0", &far, "sat0", &config, self.seed, MTU).map_err(text)?;
        Subnet::new(1).assign(&near, "sat0", &far, "sat0").map_err(text)?;
        let folder = tempfile::tempdir().map_err(|error| format!("cannot make a folder: {error}"))?;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| self.in_host(&near, folder.path(), 0, &stop));
            let received = self.in_host(&far, folder.path(), 1, &stop);
            stop.store(true, Ordering::Relaxed);
            let sent = sender.join().map_err(|_| "the sending node has panicked".to_owned())?;
            sent.and(received)
        })
    }

    /// Runs the node of this end: the near one sends until it is told to stop, the far one measures.
    fn in_host(&self, host: &Namespace, folder: &Path, end: usize, stop: &AtomicBool) -> Result<f64, String> {
        let work = || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
            let runtime = runtime.map_err(|error| format!("cannot start a runtime: {error}"))?;
            runtime.block_on(async {
                let running = self.start(folder, end).await?;
                let node = running.node().clone();
                let outcome = match end {
                    0 => tokio::task::block_in_place(|| self.send(&node, stop)).map(|()| 0.0),
                    _ => tokio::task::block_in_place(|| self.measure(&node)),
                };
                drop(running);
                outcome
            })
        };
        host.run(work).map_err(|error| error.to_string())?
    }

    async fn start(&self, folder: &Path, end: usize) -> Result<Running, String> {
        let text = self.config(folder, end);
        let config = NodeConfig::parse("node.toml", &text).map_err(|error| error.to_string())?;
        let prepared = Prepared::new(config, None).map_err(|error| error.to_string())?;
        prepared.start().await.map_err(|error| error.to_string())
    }

    fn config(&self, folder: &Path, end: usize) -> String {
        let subnet = Subnet::new(1);
        let addresses = [subnet.left4(), subnet.right4()];
        let (names, congestion) =
            (["near", "far"], if self.layer == Layer::Cubic { "cubic" } else { "explicit" });
        let (own, peer) = (addresses[end], addresses[1 - end]);
        let place = folder.join(names[end]);
        let (store, socket) = (place.join("store"), place.join("sock"));
        let node = format!(
            "[node]\nid = \"dtn://{}/\"\nstore = {store:?}\nsocket = {socket:?}\nkeep_free = \"0B\"\n\
             [legs.satellite]\ninterface = \"sat0\"\ncongestion = \"{congestion}\"\nrate = \"{}\"\nrtt = \"{}\"\n\
             [[peers]]\nid = \"dtn://{}/\"\nleg = \"satellite\"\n",
            names[end],
            self.rate,
            Span(2 * self.one_way),
            names[1 - end],
        );
        let more = match (self.layer, end) {
            (Layer::Ltp, _) => format!(
                "[peers.ltp]\naddress = \"{peer}:1113\"\nengine = {}\n[ltp]\naddress = \"{own}:1113\"\nengine = {}\n",
                2 - end,
                1 + end
            ),
            (_, 0) => format!("address = \"{peer}:4556\"\n"),
            (_, _) => format!("[[listen]]\naddress = \"{own}:4556\"\nleg = \"satellite\"\n"),
        };
        node + &more
    }

    /// Keeps some seconds of bundles waiting.
    fn send(&self, node: &Node, stop: &AtomicBool) -> Result<(), String> {
        let destination: Eid = "dtn://far/in".parse().map_err(|error| format!("{error}"))?;
        let ahead = (AHEAD * self.rate.bps() as f64 / 8.0) as u64;
        let mut number = 0;
        while !stop.load(Ordering::Relaxed) {
            if node.store().usage().bytes.get() > ahead {
                std::thread::sleep(Duration::from_millis(5));
                continue;
            }
            let bundle =
                node.bundle(&SendOptions::to(destination.clone())).map_err(|error| error.to_string())?;
            let mut receiver =
                node.begin(bundle, Some(self.size as u64)).map_err(|error| error.to_string())?;
            receiver.write(&payload(number, self.size)).map_err(|error| error.to_string())?;
            receiver.finish().map_err(|error| error.to_string())?;
            number += 1;
        }
        Ok(())
    }

    /// Takes bundles, compares them, and counts what comes within the span that begins with the first.
    fn measure(&self, node: &Node) -> Result<f64, String> {
        let service: Eid = "dtn://far/in".parse().map_err(|error| format!("{error}"))?;
        let (mut begun, mut last, mut bytes) = (None::<Instant>, Instant::now(), 0_u64);
        loop {
            let now = Instant::now();
            if let Some(begun) = begun.filter(|begun| now - *begun >= self.span) {
                let limit = self.rate.bps() as f64 / 8.0 * (1.0 - self.per.get());
                return Ok(bytes as f64 / (limit * (now - begun).as_secs_f64()));
            }
            if now - last > PATIENCE {
                return Err(format!("nothing has arrived for {} s", PATIENCE.as_secs()));
            }
            let Some(record) = node.next_delivery(&service) else {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            let mut read = Vec::new();
            std::io::Read::read_to_end(&mut node.store().read(&record.payload), &mut read)
                .map_err(|error| format!("cannot read a payload: {error}"))?;
            let number = read.get(..8).and_then(|head| head.try_into().ok()).map_or(0, u64::from_be_bytes);
            if read != payload(number, self.size) {
                return Err(format!("payload {number} has changed"));
            }
            node.acknowledge(record.key).map_err(|error| error.to_string())?;
            last = now;
            // The first one only begins the span.
            match begun {
                Some(_) => bytes += read.len() as u64,
                None => begun = Some(now),
            }
        }
    }
}

/// The bytes of payload `number`, the number first.
fn payload(number: u64, len: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = number.to_be_bytes().to_vec();
    bytes.resize_with(len.max(8), || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    });
    bytes
}
