//! The metrics of a node over TCP.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;

use bentpipe_dtn::config::NodeConfig;
use bentpipe_dtn::daemon::Prepared;

use crate::node_common::*;
use crate::transfer_common::talk;

const TOKEN: &str = "0123456789abcdef0123";

/// A reply to a request for `path` with further lines.
async fn ask(to: SocketAddr, method: &str, path: &str, more: &str) -> String {
    let request = format!("{method} {path} HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n{more}\r\n");
    talk(to, request.as_bytes()).await
}

fn node(address: &SocketAddr, more: &str) -> String {
    format!("metrics = \"{address}\"\n{more}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_can_be_read_over_tcp_and_nothing_else() {
    let node = TestNode::start_with("dtn://a/", "metrics = \"127.0.0.1:0\"", "").await;
    let address = node.running().metrics_address().unwrap();
    let answer = ask(address, "GET", "/metrics", "").await;
    assert!(
        answer.starts_with("HTTP/1.1 200 ") && answer.contains("bentpipe_dtn_store_bundles 0"),
        "{answer}"
    );
    for (method, path, status) in [
        ("GET", "/status", "404"),
        ("GET", "/bundles", "404"),
        ("GET", "/reports?id=x", "404"),
        ("POST", "/bundles?destination=dtn://b/x", "403"),
        ("DELETE", "/bundles/1", "403"),
        ("POST", "/metrics", "403"),
    ] {
        let answer = ask(address, method, path, "").await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{method} {path}: {answer}");
    }
    // A page of another site, whose name leads here.
    let foreign = b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    assert!(talk(address, foreign).await.starts_with("HTTP/1.1 421 "));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_token_only_its_holders_read_the_metrics() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, TOKEN).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let more = format!("metrics_token_file = {file:?}");
    let node = TestNode::start_with("dtn://a/", &node(&"127.0.0.1:0".parse().unwrap(), &more), "").await;
    let address = node.running().metrics_address().unwrap();
    for more in ["", "Authorization: Bearer wrong\r\n", "Cookie: token=0123456789abcdef0123\r\n"] {
        let answer = ask(address, "GET", "/metrics", more).await;
        assert!(answer.starts_with("HTTP/1.1 401 ") && !answer.contains("bentpipe_dtn_store"), "{answer}");
    }
    let answer = ask(address, "GET", "/metrics", &format!("Authorization: Bearer {TOKEN}\r\n")).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_that_is_taken_or_a_token_that_all_can_read_prevents_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let prepare = |more: &str, address: SocketAddr| {
        let text = config(folder.path(), "dtn://a/", &node(&address, more), "");
        Prepared::new(NodeConfig::parse("node.toml", &text).unwrap(), None).unwrap_err().to_string()
    };
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let error = prepare("", address);
    assert!(error.contains(&address.to_string()) && error.contains("node.metrics"), "{error}");
    let file = folder.path().join("token");
    std::fs::write(&file, TOKEN).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let error = prepare(&format!("metrics_token_file = {file:?}"), "127.0.0.1:0".parse().unwrap());
    assert!(error.contains("node.metrics_token_file") && error.contains("chmod"), "{error}");
}

/// The proxy's live page reads this of a node on its host (crates/admin/src/bundle_node.rs).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_has_what_the_live_page_reads() {
    let node = TestNode::start("dtn://a/", &peer("dtn://b/", Some(free_address()), "")).await;
    node.send("dtn://b/x", bytes(1, 100), &[]).await;
    node.until(|status| status.peers[0].last_error.is_some()).await;
    let status: serde_json::Value = node.client().get("/status", &[]).await.unwrap();
    assert_eq!(status["node"], "dtn://a/");
    for path in [
        "/store/bundles",
        "/store/payload_bytes",
        "/store/quota_bytes",
        "/waiting/queued",
        "/waiting/parked",
        "/waiting/deliverable",
        "/peers/0/sessions",
    ] {
        assert!(status.pointer(path).is_some_and(serde_json::Value::is_u64), "{path}: {status}");
    }
    let peer = &status["peers"][0];
    assert!(
        peer["peer"] == "dtn://b/" && peer["trouble"].as_str().unwrap().contains("cannot connect"),
        "{peer}"
    );
}
