//! How fast two sessions are over loopback, with hosts that do nothing: `tcpcl_loopback [MEGABYTES [SEGMENT_KIB]]`.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bentpipe_dtn::Eid;
use bentpipe_dtn::tcpcl::{
    BundleAgent, BundleHandle, Incoming, Outgoing, Refusal, Role, SessionSettings, Tls, TlsConfig, identity,
    run,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};

/// Sends so many transfers of one length, and takes and forgets all.
#[derive(Default)]
struct Trivial {
    left: AtomicU64,
    len: u64,
    unacknowledged: AtomicU64,
    done: Notify,
}

struct Zeros(BundleHandle, u64);
struct Nothing;

impl Outgoing for Zeros {
    fn handle(&self) -> BundleHandle {
        self.0
    }

    fn len(&self) -> u64 {
        self.1
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // As much work as copying from the page cache.
        buffer.fill(self.0 as u8);
        Ok(buffer.len())
    }
}

impl Incoming for Nothing {
    fn write(&mut self, _: &[u8]) -> Result<(), Refusal> {
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<(), Refusal> {
        Ok(())
    }
}

impl BundleAgent for Trivial {
    fn admit(&self, _: &Eid, _: Option<&Eid>) -> Result<(), String> {
        Ok(())
    }

    fn receive(&self, _: &Eid, _: Option<u64>) -> Result<Box<dyn Incoming>, Refusal> {
        Ok(Box::new(Nothing))
    }

    fn next(&self, _: &Eid, _: u64) -> Option<Box<dyn Outgoing>> {
        let take = |left: u64| left.checked_sub(1);
        let handle = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok()?;
        Some(Box::new(Zeros(handle, self.len)))
    }

    fn ready(&self, _: &Eid) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::pending())
    }

    fn sent(&self, _: &Eid, _: BundleHandle) {
        if self.unacknowledged.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.done.notify_one();
        }
    }

    fn refused(&self, _: &Eid, handle: BundleHandle, why: Refusal) {
        println!("{handle} was refused: {why:?}");
    }

    fn returned(&self, _: &Eid, handle: BundleHandle) {
        println!("{handle} came back");
    }
}

async fn measure(one: SessionSettings, two: SessionSettings, count: u64, len: u64) -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (active, passive) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (active, passive) = (active.expect("a connection"), passive.expect("a connection").0);
    let sender = Trivial { left: count.into(), len, unacknowledged: count.into(), ..Trivial::default() };
    let sender = Arc::new(sender);
    let (stop, stopped) = watch::channel(false);
    let start = Instant::now();
    let one = tokio::spawn(run(active, Role::Active, one, sender.clone(), stopped.clone()));
    let two = tokio::spawn(run(passive, Role::Passive, two, Arc::new(Trivial::default()), stopped));
    sender.done.notified().await;
    let seconds = start.elapsed().as_secs_f64();
    let _ = stop.send(true);
    for end in [one, two] {
        let end = end.await.expect("no panic");
        if !end.in_order {
            println!("{end}");
        }
    }
    seconds
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u64>().expect("a number"));
    let megabytes = arguments.next().unwrap_or(1000);
    let segment_kib = arguments.next();
    let settings = |node: &str| {
        let mut settings = SessionSettings::new(node.parse().expect("a node"));
        if let Some(kib) = segment_kib {
            settings.segment_size = (kib as usize) << 10;
        }
        settings
    };
    let identities = ["dtn://one/", "dtn://two/"].map(|node| {
        let (certificate, key) = identity::generate(&node.parse().expect("a node")).expect("a certificate");
        (node, move || identity::Identity::from_pem(&certificate, &key).expect("a certificate"))
    });
    for (count, len) in [(1, megabytes * 1_000_000), (10_000, 100)] {
        let seconds = measure(settings("dtn://one/"), settings("dtn://two/"), count, len).await;
        report("plain", count, len, seconds);
        let tls = |own: usize| {
            let (node, load) = &identities[own];
            let (peer, load_peer) = &identities[1 - own];
            let peers = [(peer.parse().expect("a node"), load_peer().certificate)];
            let config = TlsConfig::new(load(), peers).expect("a configuration");
            SessionSettings { tls: Tls::Require(Arc::new(config)), ..settings(node) }
        };
        let seconds = measure(tls(0), tls(1), count, len).await;
        report("TLS", count, len, seconds);
    }
}

fn report(how: &str, count: u64, len: u64, seconds: f64) {
    let rate = (count * len) as f64 / seconds / 1e9;
    println!(
        "{how}: {count} × {len} bytes in {seconds:.3} s: {rate:.2} GB/s, {:.0} transfers/s, resident at most {} KiB",
        count as f64 / seconds,
        resident_kib()
    );
}
