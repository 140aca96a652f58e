//! Nodes that reach each other by UDP, a bundle in each datagram.

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::time::Duration;

use crate::node_common::*;
use crate::node_ltp::{LossyLink, free_udp_address};

fn config(link: &LossyLink, end: usize, other: &str) -> String {
    format!(
        "[udp]\naddress = \"{}\"\n[[peers]]\nid = \"dtn://{other}/\"\n[peers.udp]\naddress = \"{}\"\n\
         rate = \"50Mbit/s\"\n",
        link.nodes[end], link.ends[end],
    )
}

async fn pair() -> (LossyLink, TestNode, TestNode) {
    let link = LossyLink::between([free_udp_address(), free_udp_address()]);
    let a = TestNode::start("dtn://a/", &config(&link, 0, "b")).await;
    let b = TestNode::start("dtn://b/", &config(&link, 1, "a")).await;
    (link, a, b)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bundles_cross_in_both_directions_and_long_ones_in_fragments() {
    let (_link, a, b) = pair().await;
    for (index, len) in [8, 1000, 20_000].into_iter().enumerate() {
        a.send("dtn://b/in", bytes(index as u64, len), &[]).await;
        b.send("dtn://a/in", bytes(index as u64, len), &[]).await;
    }
    for node in [&a, &b] {
        let mut came = BTreeSet::new();
        for _ in 0..3 {
            came.insert(number(&node.receive("in").await));
        }
        assert_eq!(came, BTreeSet::from([0, 1, 2]));
        node.until_empty().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_lost_stays_lost_and_nobody_waits_for_it() {
    let (link, a, b) = pair().await;
    link.lose(1);
    a.send("dtn://b/in", bytes(1, 100), &[]).await;
    a.until_empty().await;
    link.lose(0);
    a.send("dtn://b/in", bytes(2, 100), &[]).await;
    assert_eq!(number(&b.receive("in").await), 2);
    assert!(b.receive_within("in", Duration::from_millis(100)).await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn datagrams_without_a_bundle_and_those_of_strangers_change_nothing() {
    let (link, a, b) = pair().await;
    let near = UdpSocket::bind("127.0.0.1:0").unwrap();
    let stranger = UdpSocket::bind("127.0.0.2:0").unwrap();
    // A keepalive, a bundle of version 6, DTLS, nothing, and what only begins as a bundle does.
    for bytes in [&[0, 0, 0, 0][..], &[6, 1, 2], &[0x16, 0xfe, 0xfd], &[], &[0x9f, 0x88, 7, 0xff]] {
        near.send_to(bytes, link.nodes[1]).unwrap();
        stranger.send_to(bytes, link.nodes[1]).unwrap();
    }
    a.send("dtn://b/in", bytes(1, 100), &[]).await;
    assert_eq!(number(&b.receive("in").await), 1);
    let status = b.until(|status| status.totals.refused == 1 && status.totals.strangers == 5).await;
    assert_eq!(status.totals.received, 1);
}

/// A peer that is reached by datagrams has no session of TCPCL, whose peers may have to prove who they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_in_the_name_of_such_a_peer_is_refused() {
    let (_link, _a, b) = pair().await;
    let to_b = peer("dtn://b/", Some(b.address()), "");
    let forger = TestNode::start("dtn://a/", &to_b).await;
    let status = forger.until(|status| status.peers[0].last_error.is_some()).await;
    assert_eq!(status.peers[0].sessions, 0);
    assert_eq!(b.status().peers[0].sessions, 1, "the exchange by UDP");
}
