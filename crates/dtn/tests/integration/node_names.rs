//! Peers whose address is a name.

use crate::node_common::*;

/// `[[peers]]` with an address that is a name.
fn peer_at(id: &str, name: &str) -> String {
    format!("[[peers]]\nid = \"{id}\"\naddress = \"{name}\"\nretry_within = \"500ms\"\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_can_be_found_by_its_name() {
    let mut b = TestNode::start("dtn://b/", &peer("dtn://a/", None, "")).await;
    // Where localhost is ::1, too, nobody listens there: all addresses are tried.
    let port = b.address().port();
    let a = TestNode::start("dtn://a/", &peer_at("dtn://b/", &format!("LocalHost:{port}"))).await;
    let status = a.until(connected).await;
    assert_eq!(status.peers[0].address.as_deref(), Some(&*format!("127.0.0.1:{port}")));
    a.send("dtn://b/x", bytes(1, 100), &[]).await;
    assert_eq!(number(&b.receive("x").await), 1);
    // It is looked up again when the session has ended.
    b.configure(&format!("{}{}", listen(b.address()), peer("dtn://a/", None, "")));
    b.stop().await;
    a.until(|status| !connected(status)).await;
    b.restart().await;
    a.until(connected).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_nobody_knows_is_said_and_tried_again() {
    let a = TestNode::start("dtn://a/", &peer_at("dtn://b/", "nothing.invalid:4556")).await;
    let status = a.until(|status| status.peers[0].last_error.is_some()).await;
    let error = status.peers[0].last_error.clone().unwrap();
    assert!(
        error.contains("cannot find the address of nothing.invalid") && error.contains("resolver"),
        "{error}"
    );
    assert_eq!(status.peers[0].address, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_no_address_answers_each_has_its_error() {
    let port = free_address().port();
    let a = TestNode::start("dtn://a/", &peer_at("dtn://b/", &format!("localhost:{port}"))).await;
    let status = a.until(|status| status.peers[0].last_error.is_some()).await;
    let error = status.peers[0].last_error.clone().unwrap();
    assert!(error.contains(&format!("127.0.0.1:{port}: Connection refused")), "{error}");
    assert!(status.peers[0].address.as_ref().unwrap().ends_with(&format!(":{port}")), "{status:?}");
}
