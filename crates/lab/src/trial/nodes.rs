//! A bundle node at each end of the link, and the applications that send and receive.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bentpipe_dtn::app::{Client, Delivery, ReadBody};
use bentpipe_dtn::config::NodeConfig;
use bentpipe_dtn::daemon::{Prepared, Running};
use bentpipe_testbed::Namespace;
use bentpipe_units::ByteCount;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use crate::Error;
use crate::topology::Topology;

const PORT: u16 = 4556;
const SERVICE: &str = "files";
/// The bytes that the gateway's node has queued beyond those in transfer: two seconds at 10 Mbit/s, so that
/// the link does not wait for the application.
const AHEAD: u64 = 2_500_000;
const QUEUE_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// How long the receiver waits for a bundle before it checks whether the trial is over.
const RECEIVE_TIMEOUT: Duration = Duration::from_millis(500);
/// The longest that the session may take to begin: a few round trips, and lost SYNs.
const SESSION_WITHIN: Duration = Duration::from_secs(60);
/// How long a node's threads may take to end.
const END_WITHIN: Duration = Duration::from_secs(2);

/// The two nodes. The sender's application and the receiver's are on the hosts of their nodes.
pub(super) struct Nodes {
    gateway: Host,
    terminal: Host,
    /// Their stores and sockets; removed after them.
    _folder: TempDir,
}

/// A host with a node.
struct Host {
    /// Its threads are in the host's namespace, because the one that has made them was.
    runtime: Option<Runtime>,
    running: Option<Running>,
    client: Client,
}

impl Nodes {
    /// Starts both, with this satellite leg, and waits until they have a session. The terminal's connects, as
    /// terminals do.
    pub(super) fn start(topology: &Topology, leg: &str) -> Result<Self, Error> {
        let folder = tempfile::Builder::new().prefix("bentpipe-nodes-").tempdir().map_err(|e| failed(&e))?;
        let address = SocketAddr::new(topology.gateway_address(), PORT);
        // Of its own name: in one process legs of the same name are the same, and a daemon and a node are two
        // processes.
        let leg = leg.replace("[legs.satellite]", "[legs.node]");
        let listens = format!(
            "[[listen]]\naddress = \"{address}\"\nleg = \"node\"\n\
             [[peers]]\nid = \"dtn://terminal/\"\nleg = \"node\"\n"
        );
        let connects =
            format!("[[peers]]\nid = \"dtn://gateway/\"\naddress = \"{address}\"\nleg = \"node\"\n");
        let start = |host, name, rest: &str| {
            Host::start(host, &folder.path().join(name), name, &format!("{leg}{rest}"))
        };
        let gateway = start(&topology.gateway, "gateway", &listens)?;
        let terminal = start(&topology.client, "terminal", &connects)?;
        gateway.wait_for_session()?;
        Ok(Self { gateway, terminal, _folder: folder })
    }

    /// Sends bundles of this size until it is over, with a few in the store so that the link need not wait.
    pub(super) fn send(&self, size: ByteCount, over: &AtomicBool) -> io::Result<()> {
        let ahead = AHEAD.div_ceil(size.get().max(1)).max(2) as usize;
        self.gateway.block_on(async {
            while !over.load(Ordering::Relaxed) {
                if self.gateway.running().node().status().waiting.queued < ahead {
                    self.gateway.send(size).await?;
                } else {
                    tokio::time::sleep(QUEUE_CHECK_INTERVAL).await;
                }
            }
            Ok(())
        })
    }

    /// Receives until it is over, counting the bytes.
    pub(super) fn receive(&self, read: &AtomicU64, over: &AtomicBool) -> io::Result<()> {
        self.terminal.block_on(async {
            while !over.load(Ordering::Relaxed) {
                if let Some(delivery) = self.terminal.next().await? {
                    self.terminal.take(delivery, read).await?;
                }
            }
            Ok(())
        })
    }

    /// How long a single bundle of this size takes, from one application to the other.
    pub(super) fn file(&self, size: ByteCount) -> io::Result<Duration> {
        let (begun, read) = (Instant::now(), AtomicU64::new(0));
        self.gateway.block_on(self.gateway.send(size))?;
        self.terminal.block_on(async {
            loop {
                if let Some(delivery) = self.terminal.next().await? {
                    return self.terminal.take(delivery, &read).await;
                }
            }
        })?;
        let (taken, read) = (begun.elapsed(), read.into_inner());
        if read != size.get() {
            return Err(io::Error::other(format!("{read} bytes of a bundle of {size} have arrived")));
        }
        Ok(taken)
    }
}

impl Host {
    fn start(host: &Namespace, folder: &Path, name: &str, rest: &str) -> Result<Self, Error> {
        std::fs::create_dir(folder).map_err(|error| failed(&error))?;
        let socket = folder.join("socket");
        let text = format!(
            "[node]\nid = \"dtn://{name}/\"\nstore = \"{}\"\nsocket = \"{}\"\n{rest}",
            folder.join("store").display(),
            socket.display()
        );
        let config = NodeConfig::parse(name, &text).map_err(|error| failed(&error))?;
        let started = host.run(|| {
            let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
            let runtime = runtime.map_err(|error| failed(&error))?;
            let prepared = Prepared::new(config, None).map_err(|error| failed(&error))?;
            let running = runtime.block_on(prepared.start()).map_err(|error| failed(&error))?;
            Ok::<_, Error>((runtime, running))
        })?;
        let (runtime, running) = started?;
        Ok(Self { runtime: Some(runtime), running: Some(running), client: Client::new(socket) })
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("it runs until it is dropped")
    }

    fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.as_ref().expect("it runs until it is dropped").block_on(work)
    }

    fn wait_for_session(&self) -> Result<(), Error> {
        let begun = Instant::now();
        while self.running().node().status().peers.iter().all(|peer| peer.sessions == 0) {
            if begun.elapsed() > SESSION_WITHIN {
                return Err(Error::Node(format!("there is no session after {SESSION_WITHIN:?}")));
            }
            std::thread::sleep(QUEUE_CHECK_INTERVAL);
        }
        Ok(())
    }

    async fn send(&self, size: ByteCount) -> io::Result<()> {
        let payload = ReadBody::new(io::repeat(b'b').take(size.get()), Some(size.get()), |_| {});
        let destination = format!("dtn://terminal/{SERVICE}");
        let sent = self.client.send(&[("destination", destination)], payload).await;
        sent.map(drop).map_err(io::Error::other)
    }

    async fn next(&self) -> io::Result<Option<Delivery>> {
        self.client.next(SERVICE, RECEIVE_TIMEOUT).await.map_err(io::Error::other)
    }

    async fn take(&self, mut delivery: Delivery, read: &AtomicU64) -> io::Result<()> {
        while let Some(part) = delivery.part().await.map_err(io::Error::other)? {
            read.fetch_add(part.len() as u64, Ordering::Relaxed);
        }
        self.client.acknowledge(delivery.key).await.map_err(io::Error::other)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let (Some(runtime), running) = (self.runtime.take(), self.running.take()) {
            // Sessions are ended where they run.
            runtime.block_on(async { drop(running) });
            runtime.shutdown_timeout(END_WITHIN);
        }
    }
}

fn failed(error: &dyn std::error::Error) -> Error {
    Error::Node(error.to_string())
}
