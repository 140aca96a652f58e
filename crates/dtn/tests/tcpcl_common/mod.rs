//! A host for sessions that keeps everything in memory, and two ends of a connection.
#![allow(dead_code, unreachable_pub, reason = "each test file uses some of it")]

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bentpipe_dtn::Eid;
use bentpipe_dtn::convergence::{BundleAgent, BundleHandle, Incoming, Outcome, Outgoing, Refusal};
use bentpipe_dtn::tcpcl::{Role, SessionEnd, SessionSettings, Tls, TlsConfig, identity};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

pub const LONG: Duration = Duration::from_secs(60);

/// What has become of things, so far.
#[derive(Debug, Default, Clone)]
pub struct Seen {
    pub admitted: Vec<(Eid, Option<Eid>)>,
    pub sent: Vec<BundleHandle>,
    pub refused: Vec<(BundleHandle, Refusal)>,
    pub returned: Vec<BundleHandle>,
    /// Length and checksum of what was received.
    pub received: Vec<(u64, u64)>,
    pub announced: Vec<Option<u64>>,
    pub dropped: usize,
    pub longest_write: usize,
}

#[derive(Default)]
pub struct TestHost {
    pub seen: Arc<Mutex<Seen>>,
    pub queue: Mutex<VecDeque<(BundleHandle, u64)>>,
    pub changed: Arc<Notify>,
    pub news: Arc<Notify>,
    /// Refuse what comes after so many bytes.
    pub refuse_after: Option<u64>,
    pub reject_peer: bool,
    /// What it sends cannot be read after so many bytes.
    pub unreadable_after: Option<u64>,
}

/// Byte `at` of the transfer with this ticket.
fn byte(handle: BundleHandle, at: u64) -> u8 {
    (handle.wrapping_mul(31) ^ (at >> 3)) as u8
}

fn add(sum: u64, at: u64, bytes: &[u8]) -> u64 {
    bytes.iter().zip(at..).fold(sum, |sum, (byte, at)| sum.wrapping_add(u64::from(*byte) * (at % 251 + 1)))
}

pub fn checksum(handle: BundleHandle, len: u64) -> (u64, u64) {
    let bytes: Vec<u8> = (0..len).map(|at| byte(handle, at)).collect();
    (len, add(0, 0, &bytes))
}

impl TestHost {
    pub fn queue(&self, transfers: impl IntoIterator<Item = (BundleHandle, u64)>) {
        self.queue.lock().unwrap().extend(transfers);
        self.changed.notify_one();
    }

    pub fn seen(&self) -> Seen {
        self.seen.lock().unwrap().clone()
    }

    fn note(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut self.seen.lock().unwrap());
        self.news.notify_one();
    }

    pub async fn until(&self, what: impl Fn(&Seen) -> bool) {
        let met = async {
            while !what(&self.seen()) {
                self.news.notified().await;
            }
        };
        if tokio::time::timeout(LONG, met).await.is_err() {
            panic!("waited in vain: {:?}", self.seen());
        }
    }
}

impl BundleAgent for TestHost {
    fn admit(&self, peer: &Eid, proven: Option<&Eid>) -> Result<(), String> {
        self.note(|seen| seen.admitted.push((peer.clone(), proven.cloned())));
        if self.reject_peer { Err("it is not welcome".into()) } else { Ok(()) }
    }

    fn receive(&self, _: &Eid, announced: Option<u64>) -> Result<Box<dyn Incoming>, Refusal> {
        self.note(|seen| seen.announced.push(announced));
        Ok(Box::new(TestIncoming {
            seen: self.seen.clone(),
            news: self.news.clone(),
            refuse_after: self.refuse_after,
            len: 0,
            sum: 0,
            done: false,
        }))
    }

    fn next(&self, _: &Eid, limit: u64) -> Option<Box<dyn Outgoing>> {
        let (handle, len) = self.queue.lock().unwrap().pop_front()?;
        assert!(len <= limit);
        Some(Box::new(TestOutgoing { handle, len, at: 0, unreadable_after: self.unreadable_after }))
    }

    fn ready(&self, _: &Eid) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.changed.notified())
    }

    fn sent(&self, _: &Eid, handle: BundleHandle) {
        self.note(|seen| seen.sent.push(handle));
    }

    fn refused(&self, _: &Eid, handle: BundleHandle, why: Refusal) {
        self.note(|seen| seen.refused.push((handle, why)));
    }

    fn returned(&self, _: &Eid, handle: BundleHandle) {
        self.note(|seen| seen.returned.push(handle));
    }
}

struct TestOutgoing {
    handle: BundleHandle,
    len: u64,
    at: u64,
    unreadable_after: Option<u64>,
}

impl Outgoing for TestOutgoing {
    fn handle(&self) -> BundleHandle {
        self.handle
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.unreadable_after.is_some_and(|limit| self.at >= limit) {
            return Err(io::Error::other("the disk is broken"));
        }
        // Never all at once: readers may give less than there is.
        let len = buffer.len().min(10_000).min((self.len - self.at) as usize);
        for (place, at) in buffer[..len].iter_mut().zip(self.at..) {
            *place = byte(self.handle, at);
        }
        self.at += len as u64;
        Ok(len)
    }
}

struct TestIncoming {
    seen: Arc<Mutex<Seen>>,
    news: Arc<Notify>,
    refuse_after: Option<u64>,
    len: u64,
    sum: u64,
    done: bool,
}

impl Incoming for TestIncoming {
    fn write(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        self.sum = add(self.sum, self.len, bytes);
        self.len += bytes.len() as u64;
        let mut seen = self.seen.lock().unwrap();
        seen.longest_write = seen.longest_write.max(bytes.len());
        self.news.notify_one();
        if self.refuse_after.is_some_and(|limit| self.len > limit) {
            return Err(Refusal::NoResources);
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>, outcome: Outcome) {
        self.done = true;
        self.seen.lock().unwrap().received.push((self.len, self.sum));
        self.news.notify_one();
        outcome.tell(Ok(()));
    }
}

impl Drop for TestIncoming {
    fn drop(&mut self) {
        if !self.done {
            self.seen.lock().unwrap().dropped += 1;
            self.news.notify_one();
        }
    }
}

pub fn eid(text: &str) -> Eid {
    text.parse().unwrap()
}

pub fn settings(node: &str) -> SessionSettings {
    SessionSettings::new(eid(node))
}

/// A running session.
pub struct Node {
    pub host: Arc<TestHost>,
    pub stop: watch::Sender<bool>,
    pub end: JoinHandle<SessionEnd>,
}

impl Node {
    pub fn start(stream: TcpStream, role: Role, settings: SessionSettings, host: TestHost) -> Self {
        let (stop, stopped) = watch::channel(false);
        let host = Arc::new(host);
        let end = tokio::spawn(bentpipe_dtn::tcpcl::run(stream, role, settings, host.clone(), stopped));
        Self { host, stop, end }
    }

    pub async fn ends(self) -> (SessionEnd, Seen) {
        let end = tokio::time::timeout(10 * LONG, self.end).await.expect("the session ends").unwrap();
        (end, self.host.seen())
    }
}

/// Two ends of a connection over loopback.
pub async fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (one, other) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    (one.unwrap(), other.unwrap().0)
}

/// An active and a passive session with each other.
pub async fn pair(one: SessionSettings, other: SessionSettings) -> (Node, Node) {
    let (active, passive) = connection().await;
    (
        Node::start(active, Role::Active, one, TestHost::default()),
        Node::start(passive, Role::Passive, other, TestHost::default()),
    )
}

/// A certificate, with its key, for each of these nodes.
pub struct Ids(pub Vec<(Eid, String, String)>);

impl Ids {
    pub fn new(nodes: &[&str]) -> Self {
        let make = |node: &&str| {
            let (certificate, key) = identity::generate(&eid(node)).unwrap();
            (eid(node), certificate, key)
        };
        Self(nodes.iter().map(make).collect())
    }

    /// The TLS of one of them, which trusts some of the others.
    pub fn tls(&self, node: &str, trusts: &[&str]) -> Arc<TlsConfig> {
        let find = |name: &str| self.0.iter().find(|(node, ..)| *node == eid(name)).unwrap();
        let load = |(_, certificate, key): &(Eid, String, String)| {
            identity::Identity::from_pem(certificate, key).unwrap()
        };
        let peers = trusts.iter().map(|name| (eid(name), load(find(name)).certificate));
        Arc::new(TlsConfig::new(load(find(node)), peers).unwrap())
    }
}

pub fn with_tls(node: &str, tls: Tls) -> SessionSettings {
    SessionSettings { tls, ..settings(node) }
}
