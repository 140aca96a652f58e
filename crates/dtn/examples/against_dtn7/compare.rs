//! The same payloads from application to application through two nodes of each kind, in turns.

use std::fs;
use std::future::Future;
use std::io::Cursor;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bentpipe_dtn::app::{Client, ReadBody};

use super::nodes::{Bentpipe, Contact, Dtn7, Programs, folder, free_port};
use super::web::{Web, WebSocket};
use crate::interop::payload;

/// Applications that send, and as many that receive, at a time.
const AT_ONCE: usize = 4;
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
}

/// What is compared. 50 MB are about as much as an application can give dtn7-rs at once.
pub(crate) const LOADS: [Load; 3] = [
    Load { count: 2, size: 50_000_000 },
    Load { count: 100, size: 1_000_000 },
    Load { count: 1000, size: 100 },
];

/// One run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    /// From the first byte that was sent until the last payload was received.
    pub(crate) seconds: f64,
    /// The most memory of the two nodes, sender first, bytes.
    pub(crate) memory: [u64; 2],
}

impl Load {
    /// All payloads, bytes.
    pub(crate) fn total(self) -> usize {
        self.count * self.size
    }
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
        bentpipe_load(&from, &to, Load { count: 1, size: 1 }, &[0]).await?;
        bentpipe_load(&from, &to, load, &content).await
    })?;
    Ok(Run { seconds, memory: [one.peak_memory(), two.peak_memory()] })
}

/// Through two dtn7-rs nodes, with bundles in memory.
///
/// # Errors
/// Something has not arrived.
pub(crate) fn dtn7(programs: &Programs, load: Load) -> Result<Run, String> {
    let (here, there) = (free_port()?, free_port()?);
    let contact = Contact { id: "dtn://b/".into(), port: Some(there) };
    let two = Dtn7::start(programs, "b", "in", there, None)?;
    let one = Dtn7::start(programs, "a", "in", here, Some(&contact))?;
    let content = payload(load.size);
    dtn7_load(&one, &two, Load { count: 1, size: 1 }, &[0])?;
    let seconds = dtn7_load(&one, &two, load, &content)?;
    Ok(Run { seconds, memory: [one.peak_memory(), two.peak_memory()] })
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
    let run = Run { seconds: begun.elapsed().as_secs_f64(), memory: [one.peak_memory(), two.peak_memory()] };
    match fs::read(&received) {
        Ok(arrived) if arrived == content => Ok(run),
        Ok(arrived) => Err(format!("{} bytes have come of {size}, and not the same", arrived.len())),
        Err(error) => Err(format!("cannot read what has come: {error}")),
    }
}

fn bentpipe_pair(programs: &Programs) -> Result<(Bentpipe, Bentpipe), String> {
    let (here, there) = (free_port()?, free_port()?);
    let first = Contact { id: "dtn://a/".into(), port: None };
    let second = Contact { id: "dtn://b/".into(), port: Some(there) };
    let two = Bentpipe::start(programs, "dtn://b/", there, &first)?;
    Ok((Bentpipe::start(programs, "dtn://a/", here, &second)?, two))
}

/// Seconds for a load.
async fn bentpipe_load(from: &Client, to: &Client, load: Load, content: &[u8]) -> Result<f64, String> {
    let begun = Instant::now();
    let next = AtomicUsize::new(0);
    let left = AtomicUsize::new(load.count);
    let last = OnceLock::new();
    let send = || async {
        while next.fetch_add(1, Ordering::Relaxed) < load.count {
            let query = [("destination", "dtn://b/in".to_owned())];
            let body = ReadBody::new(Cursor::new(content.to_vec()), Some(content.len() as u64), |_| ());
            from.send(&query, body).await.map_err(|error| error.to_string())?;
        }
        Ok(())
    };
    let receive = || async {
        while left.load(Ordering::Relaxed) > 0 {
            let delivery = to.next("in", Duration::from_millis(200)).await;
            let Some(mut delivery) = delivery.map_err(|error| error.to_string())? else { continue };
            let mut rest = content;
            while let Some(part) = delivery.part().await.map_err(|error| error.to_string())? {
                rest = rest.strip_prefix(&part[..]).ok_or("a payload is not what was sent")?;
            }
            to.acknowledge(delivery.key).await.map_err(|error| error.to_string())?;
            // Others may wait for a while for what does not come any more.
            if left.fetch_sub(1, Ordering::Relaxed) == 1 {
                let _ = last.set(begun.elapsed().as_secs_f64());
            }
        }
        Ok(())
    };
    let all = async {
        tokio::try_join!(
            all_of(send(), send(), send(), send()),
            all_of(receive(), receive(), receive(), receive())
        )
    };
    if let Ok(done) = tokio::time::timeout(RUN_WITHIN, all).await {
        done?;
    }
    let missing =
        || format!("bentpipe: {} of {} bundles have not come", left.load(Ordering::Relaxed), load.count);
    last.get().copied().ok_or_else(missing)
}

async fn all_of<F: Future<Output = Result<(), String>>>(
    one: F,
    two: F,
    three: F,
    four: F,
) -> Result<(), String> {
    tokio::try_join!(one, two, three, four).map(drop)
}

/// Seconds for a load.
fn dtn7_load(from: &Dtn7, to: &Dtn7, load: Load, content: &[u8]) -> Result<f64, String> {
    let begun = Instant::now();
    let next = AtomicUsize::new(0);
    let left = AtomicUsize::new(load.count);
    let last = OnceLock::new();
    let send = || -> std::io::Result<()> {
        let mut web = Web::connect(from.web)?;
        let mut socket = WebSocket::connect(from.web)?;
        while next.fetch_add(1, Ordering::Relaxed) < load.count {
            match load.size {
                ..=HTTP_MAX => web.send("dtn://b/in", content)?,
                _ => socket.send("dtn://a/", "dtn://b/in", content)?,
            }
        }
        Ok(())
    };
    let receive = || -> std::io::Result<()> {
        let mut web = Web::connect(to.web)?;
        while left.load(Ordering::Relaxed) > 0 && begun.elapsed() < RUN_WITHIN {
            let Some(bundle) = web.receive("in")? else {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            if !holds(&bundle, content) {
                return Err(std::io::Error::other("a payload is not what was sent"));
            }
            if left.fetch_sub(1, Ordering::Relaxed) == 1 {
                let _ = last.set(begun.elapsed().as_secs_f64());
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let senders: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(send)).collect();
        let receivers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(receive)).collect();
        for thread in senders.into_iter().chain(receivers) {
            let outcome = thread.join().map_err(|_| "an application panicked".to_owned())?;
            outcome.map_err(|error| format!("dtn7-rs: {error}"))?;
        }
        Ok::<(), String>(())
    })?;
    let missing =
        || format!("dtn7-rs: {} of {} bundles have not come", left.load(Ordering::Relaxed), load.count);
    last.get().copied().ok_or_else(missing)
}

/// Whether an encoded bundle ends with this payload; a CRC and the break byte may follow.
fn holds(bundle: &[u8], payload: &[u8]) -> bool {
    (0..=6).any(|tail| bundle.len().checked_sub(tail).is_some_and(|end| bundle[..end].ends_with(payload)))
}
