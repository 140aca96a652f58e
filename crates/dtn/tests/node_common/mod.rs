//! Nodes in this process, as operators configure them and applications meet them, and payloads that follow
//! from a number.
#![allow(dead_code, unreachable_pub, reason = "each test file uses some of it")]

pub mod fake;

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use bentpipe_dtn::app::{Client, ClientError, Sent};
use bentpipe_dtn::config::NodeConfig;
use bentpipe_dtn::daemon::{Prepared, Running};
use bentpipe_dtn::node::{Node, NodeStatus, ReportedEvent};
use http_body_util::Full;
use hyper::body::Bytes;

/// After so long what is waited for has failed.
pub const LONG: Duration = Duration::from_secs(30);

/// A node with folders of its own, that can be stopped and started again.
pub struct TestNode {
    name: String,
    rest: String,
    folder: tempfile::TempDir,
    running: Option<Running>,
}

/// A port that nobody listens at.
pub fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// `[[listen]]` at an address.
pub fn listen(address: SocketAddr) -> String {
    format!("[[listen]]\naddress = \"{address}\"\n")
}

/// `[[peers]]`, which this node connects to if it has an address.
pub fn peer(id: &str, address: Option<SocketAddr>, more: &str) -> String {
    let address = address.map(|address| format!("address = \"{address}\"\n")).unwrap_or_default();
    format!("[[peers]]\nid = \"{id}\"\n{address}retry_within = \"500ms\"\n{more}\n")
}

/// `[[routes]]`.
pub fn route(to: &str, via: &str) -> String {
    format!("[[routes]]\nto = \"{to}\"\nvia = \"{via}\"\n")
}

/// RFC 3339 with milliseconds.
pub fn date(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let (days, rest) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil(days as i64);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", since.subsec_millis())
}

/// Year, month and day of a day since 1970, in the Gregorian calendar: years begin in March, so that leap
/// days are last.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    (year + era * 400 + i64::from(month <= 2), month, day)
}

/// `node.toml`: `of_node` are further lines of `[node]`, `rest` what follows.
pub fn config(folder: &Path, id: &str, of_node: &str, rest: &str) -> String {
    let (store, socket) = (folder.join("store"), folder.join("sock"));
    format!(
        "[node]\nid = \"{id}\"\nstore = {store:?}\nsocket = {socket:?}\nkeep_free = \"0B\"\n{of_node}\n{rest}"
    )
}

impl TestNode {
    /// A node that listens at a port of loopback, and has what else `rest` says.
    pub async fn start(id: &str, rest: &str) -> Self {
        Self::start_with(id, "", rest).await
    }

    /// The same with further lines of `[node]`.
    pub async fn start_with(id: &str, of_node: &str, rest: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let rest = if rest.contains("[[listen]]") {
            rest.to_owned()
        } else {
            format!("{}{rest}", listen("127.0.0.1:0".parse().unwrap()))
        };
        let rest = format!("{of_node}\n{rest}");
        let mut node = Self { name: id.into(), rest, folder, running: None };
        node.restart().await;
        node
    }

    /// Starts it again, with what its store holds.
    pub async fn restart(&mut self) {
        let text = config(self.folder.path(), &self.name, "", &self.rest);
        let file = self.folder.path().join("node.toml");
        std::fs::write(&file, text).unwrap();
        let config = NodeConfig::load(&file).unwrap();
        let until = Instant::now() + LONG;
        // The store's lock and the port are free when the last task of the run before has gone.
        let running = loop {
            let started = match Prepared::new(config.clone(), None) {
                Ok(prepared) => prepared.reloads_from(&file).start().await,
                Err(error) => Err(error),
            };
            match started {
                Ok(running) => break running,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        self.running = Some(running);
    }

    /// Other lines from the next start on.
    pub fn configure(&mut self, rest: &str) {
        self.rest = rest.to_owned();
    }

    /// Writes other lines to its file while it runs; `of_node` are those of `[node]`.
    pub fn write_config(&self, of_node: &str, rest: &str) {
        let text = config(self.folder.path(), &self.name, of_node, rest);
        std::fs::write(self.folder.path().join("node.toml"), text).unwrap();
    }

    pub async fn stop(&mut self) {
        self.running.take().unwrap().stop().await;
    }

    /// Ends it without a word.
    pub fn drop_dead(&mut self) {
        self.running = None;
    }

    pub fn running(&self) -> &Running {
        self.running.as_ref().unwrap()
    }

    pub fn node(&self) -> &Node {
        self.running().node()
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn address(&self) -> SocketAddr {
        self.running().addresses()[0]
    }

    pub fn status(&self) -> NodeStatus {
        self.node().status()
    }

    pub fn client(&self) -> Client {
        Client::new(self.folder.path().join("sock"))
    }

    pub async fn try_send(
        &self,
        to: &str,
        payload: Vec<u8>,
        more: &[(&str, &str)],
    ) -> Result<Sent, ClientError> {
        let mut query = vec![("destination", to.to_owned())];
        query.extend(more.iter().map(|(name, value)| (*name, (*value).to_owned())));
        self.client().send(&query, Full::new(Bytes::from(payload))).await
    }

    pub async fn send(&self, to: &str, payload: Vec<u8>, more: &[(&str, &str)]) -> Sent {
        self.try_send(to, payload, more).await.unwrap()
    }

    /// The next bundle of a service, acknowledged.
    pub async fn receive(&self, service: &str) -> Vec<u8> {
        self.receive_within(service, LONG).await.expect("a bundle comes")
    }

    pub async fn receive_within(&self, service: &str, wait: Duration) -> Option<Vec<u8>> {
        let mut delivery = self.client().next(service, wait).await.unwrap()?;
        let mut payload = Vec::new();
        while let Some(part) = delivery.part().await.unwrap() {
            payload.extend_from_slice(&part);
        }
        assert_eq!(payload.len() as u64, delivery.len);
        self.client().acknowledge(delivery.key).await.unwrap();
        Some(payload)
    }

    /// Waits until the node says so of itself.
    pub async fn until(&self, what: impl Fn(&NodeStatus) -> bool) -> NodeStatus {
        let until = Instant::now() + LONG;
        loop {
            let status = self.status();
            if what(&status) {
                return status;
            }
            assert!(Instant::now() < until, "waited in vain: {status:#?}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Waits until the store is empty.
    pub async fn until_empty(&self) {
        self.until(|status| {
            status.store.bundles == 0 && status.store.payload_bytes == 0 && self.files() == 0
        })
        .await;
    }

    /// Waits for reports of a bundle.
    pub async fn until_reported(
        &self,
        id: &str,
        what: impl Fn(&[ReportedEvent]) -> bool,
    ) -> Vec<ReportedEvent> {
        let id = id.parse().unwrap();
        let until = Instant::now() + LONG;
        loop {
            let events = self.node().reports_of(&id);
            if what(&events) {
                return events;
            }
            assert!(Instant::now() < until, "waited in vain: {events:#?}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Files of payloads on the disk.
    pub fn files(&self) -> usize {
        std::fs::read_dir(self.folder.path().join("store/payloads")).unwrap().count()
    }
}

/// Whether a session with a peer is there.
pub fn connected(status: &NodeStatus) -> bool {
    status.peers.iter().all(|peer| peer.sessions > 0)
}

/// The bytes of payload `number`, the number first.
pub fn bytes(number: u64, len: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    let mut bytes = number.to_be_bytes().to_vec();
    bytes.resize_with(len.max(8), &mut next);
    bytes
}

/// The number of a payload, whose bytes are checked.
#[track_caller]
pub fn number(payload: &[u8]) -> u64 {
    let number = u64::from_be_bytes(payload[..8].try_into().unwrap());
    assert!(payload == bytes(number, payload.len()), "payload {number} has changed");
    number
}
