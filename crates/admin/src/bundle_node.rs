//! The bundle node of this host, if one runs: a summary of its status, for the live page.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use bentpipe_http::{Client, ClientError, Server};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::Method;
use hyper::body::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio::time::timeout;

/// How long the node may take to answer: the page waits for it.
const TIMEOUT: Duration = Duration::from_millis(300);
/// How long an answer is shown, and how long a node that gives none is not asked again.
const SHOWN_FOR: Duration = Duration::from_secs(1);
const ASKED_AFTER: Duration = Duration::from_secs(5);
/// The most bytes of an answer: thousands of peers.
const MAX_REPLY: usize = 4 << 20;
/// The most characters of an error.
const MAX_ERROR: usize = 300;

/// The node, in error messages.
const NODE: Server = Server { name: "the bundle node", hint: "start it with `bentpipe dtn run`" };

/// A summary of the bundle node's status.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BundleNodeReport {
    /// Its endpoint.
    pub node: String,
    /// Bundles in its store.
    pub bundles: u64,
    /// Those that wait for a session with the next node.
    pub queued: u64,
    /// Those that wait for a contact or a route.
    pub parked: u64,
    /// Those that wait for an application or an outlet.
    pub deliverable: u64,
    /// Payload in its store, bytes.
    pub payload_bytes: u64,
    /// The quota of payload, bytes.
    pub quota_bytes: u64,
    /// Its peers.
    pub peers: u64,
    /// Peers with a session.
    pub peers_connected: u64,
    /// The error of the first peer without a session that has one.
    #[serde(default)]
    pub last_error: Option<String>,
}

/// What is read of the node's own status (`GET /status`).
#[derive(Deserialize)]
struct NodeStatus {
    node: String,
    store: Store,
    waiting: Waiting,
    peers: Vec<Peer>,
}

#[derive(Deserialize)]
struct Store {
    bundles: u64,
    payload_bytes: u64,
    quota_bytes: u64,
}

#[derive(Deserialize)]
struct Waiting {
    queued: u64,
    parked: u64,
    deliverable: u64,
}

#[derive(Deserialize)]
struct Peer {
    peer: String,
    sessions: u64,
    trouble: Option<String>,
}

/// Asks the node, and remembers its answer for a moment: any number of pages may look.
#[derive(Debug)]
pub(crate) struct BundleNode {
    client: Client,
    last: Mutex<Option<(Instant, Option<BundleNodeReport>)>>,
}

impl BundleNode {
    /// The node with this socket, if one runs.
    pub(crate) fn new(socket: PathBuf) -> Self {
        Self { client: Client::new(NODE, socket), last: Mutex::new(None) }
    }

    /// Its summary; `None` if no node answers, or this process may not ask.
    pub(crate) async fn report(&self) -> Option<BundleNodeReport> {
        let mut last = self.last.lock().await;
        if let Some((at, report)) = &*last
            && at.elapsed() < if report.is_some() { SHOWN_FOR } else { ASKED_AFTER }
        {
            return report.clone();
        }
        let report = match timeout(TIMEOUT, self.ask()).await {
            Ok(Ok(report)) => Some(report),
            Ok(Err(error)) => {
                tracing::debug!("the page shows no bundle node: {error}");
                None
            }
            Err(_) => {
                tracing::debug!("the page shows no bundle node: no answer within {TIMEOUT:?}");
                None
            }
        };
        *last = Some((Instant::now(), report.clone()));
        report
    }

    async fn ask(&self) -> Result<BundleNodeReport, ClientError> {
        let reply = self.client.send(Method::GET, "/status", &[], Empty::<Bytes>::new()).await?;
        let body = Limited::new(reply.into_body(), MAX_REPLY).collect().await;
        let body = body.map_err(|error| self.client.disconnected(error))?.to_bytes();
        let status: NodeStatus =
            serde_json::from_slice(&body).map_err(|error| self.client.disconnected(error))?;
        Ok(summary(&status))
    }
}

fn summary(status: &NodeStatus) -> BundleNodeReport {
    let error = |peer: &Peer| {
        let trouble = peer.trouble.as_ref().filter(|_| peer.sessions == 0)?;
        Some(format!("{}: {trouble}", peer.peer).chars().take(MAX_ERROR).collect())
    };
    BundleNodeReport {
        node: status.node.clone(),
        bundles: status.store.bundles,
        queued: status.waiting.queued,
        parked: status.waiting.parked,
        deliverable: status.waiting.deliverable,
        payload_bytes: status.store.payload_bytes,
        quota_bytes: status.store.quota_bytes,
        peers: status.peers.len() as u64,
        peers_connected: status.peers.iter().filter(|peer| peer.sessions > 0).count() as u64,
        last_error: status.peers.iter().find_map(error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::Router;
    use axum::routing::get;
    use tokio::net::UnixListener;

    use super::*;

    /// As a node writes it, and more than is read here.
    const STATUS: &str = r#"{"node": "dtn://gw/", "uptime_s": 7.0,
        "store": {"bundles": 9, "payload_bytes": 1000, "quota_bytes": 5000},
        "waiting": {"queued": 4, "parked": 3, "in_hand": 0, "deliverable": 2, "fragments": 0},
        "peers": [
            {"peer": "dtn://a/", "sessions": 1, "address": null, "encrypted": true, "open": true, "queued": 0,
             "trouble": "it was there before"},
            {"peer": "dtn://b/", "sessions": 0, "address": "192.0.2.2:4556", "encrypted": true, "open": true,
             "queued": 4, "trouble": "cannot connect: refused"}],
        "totals": {"originated": 1}}"#;

    /// A node that answers this, and how often it was asked.
    fn node(socket: &std::path::Path, answer: &'static str, delay: Duration) -> Arc<AtomicUsize> {
        let (listener, asked) = (UnixListener::bind(socket).unwrap(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&asked);
        let status = move || async move {
            count.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(delay).await;
            answer
        };
        tokio::spawn(async move { axum::serve(listener, Router::new().route("/status", get(status))).await });
        asked
    }

    #[tokio::test]
    async fn a_node_that_runs_is_summed_up_and_not_asked_by_each_page() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("dtn.sock");
        let asked = node(&socket, STATUS, Duration::ZERO);
        let node = BundleNode::new(socket);
        let report = node.report().await.unwrap();
        assert_eq!((report.node.as_str(), report.bundles, report.quota_bytes), ("dtn://gw/", 9, 5000));
        assert_eq!((report.queued, report.parked, report.deliverable), (4, 3, 2));
        assert_eq!((report.peers_connected, report.peers), (1, 2));
        assert_eq!(report.last_error.as_deref(), Some("dtn://b/: cannot connect: refused"));
        for _ in 0..20 {
            assert_eq!(node.report().await.as_ref(), Some(&report));
        }
        // A slow machine may take more than a second for it.
        assert!(asked.load(Ordering::SeqCst) < 10);
    }

    #[tokio::test]
    async fn where_none_answers_the_page_does_not_wait() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(BundleNode::new(folder.path().join("none")).report().await, None);
        for (name, answer, delay) in [
            ("garbage", "garbage", Duration::ZERO),
            ("other", "{\"node\": 1}", Duration::ZERO),
            ("hung", STATUS, Duration::from_secs(60)),
        ] {
            let socket = folder.path().join(name);
            let asked = node(&socket, answer, delay);
            let node = BundleNode::new(socket);
            let start = Instant::now();
            for _ in 0..5 {
                assert_eq!(node.report().await, None, "{name}");
            }
            assert!(start.elapsed() < 10 * TIMEOUT, "{name}");
            // It is not asked each time.
            assert!(asked.load(Ordering::SeqCst) < 3, "{name}");
        }
    }
}
