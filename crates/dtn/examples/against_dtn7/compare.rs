//! The same payloads from application to application through two nodes of each kind, in turns.

use std::fs;
use std::io::Cursor;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bentpipe_dtn::app::{Accepted, Client, ReadBody};
use tokio::task::JoinSet;

use super::nodes::{Bentpipe, Contact, Dtn7, Layer, Programs, folder, free_port};
use super::web::{Web, WebSocket};
use crate::interop::payload;

/// The longest payload that goes over dtn7-rs's HTTP.
const HTTP_MAX: usize = 2_000_000;
/// A run that takes longer has failed.
const RUN_WITHIN: Duration = Duration::from_secs(180);

/// So many payloads of so many bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// Payloads.
    pub(crate) count: usize,
    /// Bytes of each.
    pub(crate) size: usize,
    /// How many bentpipe's applications send, receive and acknowledge in a request. dtn7-rs has one in each.
    pub(crate) batch: usize,
    /// Applications that send, and as many that receive, at a time.
    pub(crate) at_once: usize,
}

/// What is compared. 50 MB are about as much as an application can give dtn7-rs at once.
pub(crate) const LOADS: [Load; 5] = [
    Load { count: 2, size: 50_000_000, batch: 1, at_once: 4 },
    Load { count: 100, size: 1_000_000, batch: 1, at_once: 4 },
    Load { count: 1000, size: 100, batch: 1, at_once: 4 },
    Load { count: 10_000, size: 100, batch: 1, at_once: 64 },
    Load { count: 10_000, size: 100, batch: 100, at_once: 4 },
];
/// What a node carries before it is measured.
const FIRST: Load = Load { count: 1, size: 1, batch: 1, at_once: 1 };

#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    /// From the first byte that was sent until the last payload was received.
    pub(crate) seconds: f64,
    /// The most memory of the two nodes, sender first, bytes.
    pub(crate) memory: [u64; 2],
}

/// Through two bentpipe nodes.
///
/// # Errors
/// Something has not arrived.
pub(crate) fn bentpipe(programs: &Programs, load: Load) -> Result<Run, String> {
    let (one, two) = bentpipe_pair(programs)?;
    let content = payload(load.size);
    let (from, to) = (Client::new(one.socket()), Client::new(two.socket()));
    let runtime = tokio::runtime::Runtime::new().map_err(|error| format!("no runtime: {error}"))?;
    let seconds = runtime.block_on(async {
        bentpipe_load(&from, &to, FIRST, vec![0]).await?;
        bentpipe_load(&from, &to, load, content).await
    })?;
    Ok(Run { seconds, memory: [one.process.peak_memory(), two.process.peak_memory()] })
}

/// Through two dtn7-rs nodes, with bundles in memory.
///
/// # Errors
/// Something has not arrived.
pub(crate) fn dtn7(programs: &Programs, load: Load) -> Result<Run, String> {
    let (here, there) = (free_port()?, free_port()?);
    let contact = Contact { id: "dtn://b/".into(), port: Some(there), layer: Layer::Tcp };
    let two = Dtn7::start(programs, "b", "in", there, None)?;
    let one = Dtn7::start(programs, "a", "in", here, Some(&contact))?;
    let content = payload(load.size);
    dtn7_load(&one, &two, FIRST, &[0])?;
    let seconds = dtn7_load(&one, &two, load, &content)?;
    Ok(Run { seconds, memory: [one.process.peak_memory(), two.process.peak_memory()] })
}

/// A single bundle with the commands of an operator, `bentpipe dtn send` and `recv`.
///
/// # Errors
/// It has not arrived as it was sent.
pub(crate) fn one_file(programs: &Programs, size: usize) -> Result<Run, String> {
    let (one, two) = bentpipe_pair(programs)?;
    let work = folder()?;
    let (sent, received) = (work.path().join("sent"), work.path().join("received"));
    let content = payload(size);
    fs::write(&sent, &content).map_err(|error| format!("cannot write the payload: {error}"))?;
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| two.receive("in", &received, RUN_WITHIN.as_secs()));
        one.send(&sent, "dtn://b/in")?;
        receiver.join().map_err(|_| "the receiver panicked".to_owned())?
    })?;
    let run = Run {
        seconds: begun.elapsed().as_secs_f64(),
        memory: [one.process.peak_memory(), two.process.peak_memory()],
    };
    match fs::read(&received) {
        Ok(arrived) if arrived == content => Ok(run),
        Ok(arrived) => Err(format!("{} bytes have come of {size}, and not the same", arrived.len())),
        Err(error) => Err(format!("cannot read what has come: {error}")),
    }
}

fn bentpipe_pair(programs: &Programs) -> Result<(Bentpipe, Bentpipe), String> {
    let (here, there) = (free_port()?, free_port()?);
    let first = Contact { id: "dtn://a/".into(), port: None, layer: Layer::Tcp };
    let second = Contact { id: "dtn://b/".into(), port: Some(there), layer: Layer::Tcp };
    let two = Bentpipe::start(programs, "dtn://b/", there, &first)?;
    Ok((Bentpipe::start(programs, "dtn://a/", here, &second)?, two))
}

/// A load under way: what the applications share.
struct Progress {
    begun: Instant,
    count: usize,
    next: AtomicUsize,
    left: AtomicUsize,
    seconds: OnceLock<f64>,
}

impl Progress {
    fn begin(load: Load) -> Self {
        let (next, left) = (AtomicUsize::new(0), AtomicUsize::new(load.count));
        Self { begun: Instant::now(), count: load.count, next, left, seconds: OnceLock::new() }
    }

    /// Whether the caller is to send another payload.
    fn send_another(&self) -> bool {
        self.send_more(1) == 1
    }

    /// How many payloads the caller is to send, at most so many.
    fn send_more(&self, most: usize) -> usize {
        self.count.saturating_sub(self.next.fetch_add(most, Ordering::Relaxed)).min(most)
    }

    /// Whether payloads have not arrived, and may still.
    fn is_awaited(&self) -> bool {
        self.left.load(Ordering::Relaxed) > 0 && self.begun.elapsed() < RUN_WITHIN
    }

    fn arrived(&self, count: usize) {
        // Others may wait for a while for what does not come any more.
        if self.left.fetch_sub(count, Ordering::Relaxed) == count {
            let _ = self.seconds.set(self.begun.elapsed().as_secs_f64());
        }
    }

    /// How long all of it took.
    fn seconds(&self, node: &str) -> Result<f64, String> {
        let left = self.left.load(Ordering::Relaxed);
        let missing = || format!("{node}: {left} of {} bundles have not come", self.count);
        self.seconds.get().copied().ok_or_else(missing)
    }
}

/// Seconds for a load.
async fn bentpipe_load(from: &Client, to: &Client, load: Load, content: Vec<u8>) -> Result<f64, String> {
    let (progress, content) = (Arc::new(Progress::begin(load)), Arc::<[u8]>::from(content));
    let mut applications = JoinSet::new();
    for _ in 0..load.at_once {
        applications.spawn(send(from.clone(), load, content.clone(), progress.clone()));
        applications.spawn(receive(to.clone(), load, content.clone(), progress.clone()));
    }
    let all = async {
        while let Some(outcome) = applications.join_next().await {
            outcome.map_err(|_| "an application panicked".to_owned())??;
        }
        Ok::<(), String>(())
    };
    if let Ok(done) = tokio::time::timeout(RUN_WITHIN, all).await {
        done?;
    }
    progress.seconds("bentpipe")
}

async fn send(from: Client, load: Load, content: Arc<[u8]>, progress: Arc<Progress>) -> Result<(), String> {
    match load.batch {
        1 => send_each(&from, &content, &progress).await,
        _ => send_batches(&from, load, &content, &progress).await,
    }
}

async fn receive(to: Client, load: Load, content: Arc<[u8]>, progress: Arc<Progress>) -> Result<(), String> {
    match load.batch {
        1 => receive_each(&to, &content, &progress).await,
        _ => receive_batches(&to, load, &content, &progress).await,
    }
}

async fn send_each(from: &Client, content: &[u8], progress: &Progress) -> Result<(), String> {
    while progress.send_another() {
        let query = [("destination", "dtn://b/in".to_owned())];
        let body = ReadBody::new(Cursor::new(content.to_vec()), Some(content.len() as u64), |_| ());
        from.send(&query, body).await.map_err(|error| error.to_string())?;
    }
    Ok(())
}

async fn receive_each(to: &Client, content: &[u8], progress: &Progress) -> Result<(), String> {
    while progress.is_awaited() {
        let delivery = to.next("in", Duration::from_millis(200)).await;
        let Some(mut delivery) = delivery.map_err(|error| error.to_string())? else { continue };
        let mut rest = content;
        while let Some(part) = delivery.part().await.map_err(|error| error.to_string())? {
            rest = rest.strip_prefix(&part[..]).ok_or("a payload is not what was sent")?;
        }
        to.acknowledge(delivery.key).await.map_err(|error| error.to_string())?;
        progress.arrived(1);
    }
    Ok(())
}

async fn send_batches(from: &Client, load: Load, content: &[u8], progress: &Progress) -> Result<(), String> {
    let query = [("destination", "dtn://b/in".to_owned())];
    loop {
        let count = progress.send_more(load.batch);
        if count == 0 {
            return Ok(());
        }
        let sent = from.send_all(&query, &vec![content; count]).await.map_err(|error| error.to_string())?;
        if let Some(Accepted::Refused { error }) =
            sent.into_iter().find(|bundle| matches!(bundle, Accepted::Refused { .. }))
        {
            return Err(error);
        }
    }
}

async fn receive_batches(to: &Client, load: Load, content: &[u8], progress: &Progress) -> Result<(), String> {
    while progress.is_awaited() {
        let received = to.next_all("in", Duration::from_millis(200), load.batch).await;
        let received = received.map_err(|error| error.to_string())?;
        if received.is_empty() {
            continue;
        }
        if received.iter().any(|bundle| bundle.payload != content) {
            return Err("a payload is not what was sent".into());
        }
        let keys: Vec<u64> = received.iter().map(|bundle| bundle.line.key).collect();
        to.acknowledge_all(&keys).await.map_err(|error| error.to_string())?;
        progress.arrived(keys.len());
    }
    Ok(())
}

/// Seconds for a load.
fn dtn7_load(from: &Dtn7, to: &Dtn7, load: Load, content: &[u8]) -> Result<f64, String> {
    let progress = Progress::begin(load);
    let send = || -> std::io::Result<()> {
        let mut web = Web::connect(from.web)?;
        let mut socket = WebSocket::connect(from.web)?;
        while progress.send_another() {
            match load.size {
                ..=HTTP_MAX => web.send("dtn://b/in", content)?,
                _ => socket.send("dtn://a/", "dtn://b/in", content)?,
            }
        }
        Ok(())
    };
    let receive = || -> std::io::Result<()> {
        let mut web = Web::connect(to.web)?;
        while progress.is_awaited() {
            let Some(bundle) = web.receive("in")? else {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            if !holds(&bundle, content) {
                return Err(std::io::Error::other("a payload is not what was sent"));
            }
            progress.arrived(1);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let senders: Vec<_> = (0..load.at_once).map(|_| scope.spawn(send)).collect();
        let receivers: Vec<_> = (0..load.at_once).map(|_| scope.spawn(receive)).collect();
        for thread in senders.into_iter().chain(receivers) {
            let outcome = thread.join().map_err(|_| "an application panicked".to_owned())?;
            outcome.map_err(|error| format!("dtn7-rs: {error}"))?;
        }
        Ok::<(), String>(())
    })?;
    progress.seconds("dtn7-rs")
}

/// Whether an encoded bundle ends with this payload; a CRC and the break byte may follow.
fn holds(bundle: &[u8], payload: &[u8]) -> bool {
    (0..=6).any(|tail| bundle.len().checked_sub(tail).is_some_and(|end| bundle[..end].ends_with(payload)))
}
