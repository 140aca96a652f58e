//! Nodes that reach each other by LTP (RFC 5326) over UDP.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::node_common::*;

/// A link between two nodes, which have its two sockets for their peers. It can lose datagrams.
pub(crate) struct LossyLink {
    pub(crate) ends: [SocketAddr; 2],
    pub(crate) nodes: [SocketAddr; 2],
    /// One in so many is lost; 0 loses none, 1 all.
    lost: [Arc<AtomicU32>; 2],
    _tasks: tokio::task::JoinSet<()>,
}

impl LossyLink {
    pub(crate) fn between(nodes: [SocketAddr; 2]) -> Self {
        let sockets = [0, 1].map(|_| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_nonblocking(true).unwrap();
            Arc::new(tokio::net::UdpSocket::from_std(socket).unwrap())
        });
        let ends = [0, 1].map(|end| sockets[end].local_addr().unwrap());
        let lost = [0, 1].map(|_| Arc::<AtomicU32>::default());
        let mut tasks = tokio::task::JoinSet::new();
        for end in 0..2 {
            let (from, to, loses) = (sockets[end].clone(), sockets[1 - end].clone(), lost[end].clone());
            tasks.spawn(async move {
                let (mut buffer, mut count) = (vec![0; 65_536], 0_u32);
                loop {
                    let Ok(len) = from.recv(&mut buffer).await else { continue };
                    count = count.wrapping_add(1);
                    // Not in step with the parts of an exchange.
                    let drawn = count.wrapping_mul(0x9e37_79b9) >> 16;
                    if drawn.checked_rem(loses.load(Ordering::Relaxed)).is_none_or(|rest| rest != 0) {
                        let _ = to.send_to(&buffer[..len], nodes[1 - end]).await;
                    }
                }
            });
        }
        Self { ends, nodes, lost, _tasks: tasks }
    }

    pub(crate) fn lose(&self, one_in: u32) {
        self.lost.iter().for_each(|lost| lost.store(one_in, Ordering::Relaxed));
    }

    /// The configuration of the node at this end, whose peer is `dtn://other/`.
    fn config(&self, end: usize, other: &str, more: &str) -> String {
        format!(
            "[ltp]\naddress = \"{}\"\nengine = {}\n[[peers]]\nid = \"dtn://{other}/\"\n[peers.ltp]\n\
             address = \"{}\"\nengine = {}\nrate = \"50Mbit/s\"\ndelay = \"1ms\"\nmargin = \"60ms\"\n{more}",
            self.nodes[end],
            end + 1,
            self.ends[end],
            2 - end,
        )
    }
}

pub(crate) fn free_udp_address() -> SocketAddr {
    UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

async fn pair(more: &str) -> (LossyLink, TestNode, TestNode) {
    let link = LossyLink::between([free_udp_address(), free_udp_address()]);
    let a = TestNode::start("dtn://a/", &link.config(0, "b", more)).await;
    let b = TestNode::start("dtn://b/", &link.config(1, "a", more)).await;
    (link, a, b)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bundles_of_any_length_cross_a_lossy_link_in_both_directions() {
    let (link, a, b) = pair("block = \"100kB\"\n").await;
    link.lose(10);
    for (index, len) in [8, 5000, 100_000, 1_000_000].into_iter().enumerate() {
        a.send("dtn://b/in", bytes(index as u64, len), &[]).await;
        b.send("dtn://a/in", bytes(index as u64 + 100, len), &[]).await;
    }
    for node in [&a, &b] {
        let mut came = BTreeSet::new();
        for _ in 0..4 {
            came.insert(number(&node.receive("in").await) % 100);
        }
        assert_eq!(came, BTreeSet::from([0, 1, 2, 3]));
    }
    for node in [&a, &b] {
        node.until_empty().await;
        let ltp = node.status().peers[0].ltp.unwrap();
        assert!(ltp.segments > 700 && ltp.repeated > 30, "{ltp:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_comes_back_gets_what_waits_for_it_once() {
    let (link, a, mut b) = pair("").await;
    link.lose(20);
    for index in 0..200 {
        a.send("dtn://b/in", bytes(index, 3000), &[]).await;
        if index == 100 {
            b.drop_dead();
            b.restart().await;
        }
    }
    let mut came = Vec::new();
    for _ in 0..200 {
        came.push(number(&b.receive("in").await));
    }
    came.sort_unstable();
    assert!(came.iter().copied().eq(0..200), "{came:?}");
    a.until_empty().await;
    assert!(b.receive_within("in", Duration::from_millis(300)).await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_peer_is_named_and_gets_all_when_it_is_heard_again() {
    let (link, a, b) = pair("").await;
    link.lose(1);
    for index in 0..50 {
        a.send("dtn://b/in", bytes(index, 100), &[]).await;
    }
    let status = a.until(|status| status.peers[0].ltp.is_some_and(|ltp| ltp.silent)).await;
    assert!(status.peers[0].last_error.as_ref().unwrap().contains("does not answer"), "{status:?}");
    link.lose(0);
    let mut came = BTreeSet::new();
    for _ in 0..50 {
        came.insert(number(&b.receive("in").await));
    }
    assert_eq!(came.len(), 50);
    a.until_empty().await;
    a.until(|status| status.peers[0].last_error.is_none()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn green_bundles_are_sent_once_and_need_no_way_back() {
    let (link, a, b) = pair("color = \"green\"\n").await;
    link.lost[1].store(1, Ordering::Relaxed);
    a.send("dtn://b/in", bytes(1, 50_000), &[]).await;
    assert_eq!(number(&b.receive("in").await), 1);
    a.until_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_without_room_says_so_and_gets_the_bundle_later() {
    let link = LossyLink::between([free_udp_address(), free_udp_address()]);
    let a = TestNode::start("dtn://a/", &link.config(0, "b", "")).await;
    let b = TestNode::start_with("dtn://b/", "quota = \"5kB\"\n", &link.config(1, "a", "")).await;
    a.send("dtn://b/in", bytes(1, 4000), &[]).await;
    b.until(|status| status.waiting.deliverable == 1).await;
    a.send("dtn://b/in", bytes(2, 4000), &[]).await;
    b.until(|status| status.totals.refused == 1).await;
    assert_eq!(number(&b.receive("in").await), 1);
    assert_eq!(number(&b.receive("in").await), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_and_what_is_no_segment_change_nothing() {
    let (link, a, b) = pair("").await;
    let stranger = UdpSocket::bind("127.0.0.2:0").unwrap();
    let near = UdpSocket::bind("127.0.0.1:0").unwrap();
    for (socket, bytes) in [
        (&stranger, &[0x03, 1, 9, 0, 1, 0, 1, 1, 0, 7][..]),
        (&near, &[0xff; 40]),
        // A block of an engine that is none of ours.
        (&near, &[0x03, 77, 9, 0, 1, 0, 1, 1, 0, 7]),
        // A bundle that is none, of the right engine.
        (&near, &[0x03, 1, 9, 0, 1, 0, 1, 1, 0, 7]),
    ] {
        socket.send_to(bytes, link.nodes[1]).unwrap();
    }
    a.send("dtn://b/in", bytes(1, 100), &[]).await;
    assert_eq!(number(&b.receive("in").await), 1);
    let status = b.until(|status| status.totals.refused == 1).await;
    assert_eq!(status.totals.strangers, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn segments_beyond_the_memory_are_dropped_and_counted() {
    let (link, _a, b) = pair("block = \"100kB\"\nwindow = \"150kB\"\n").await;
    let near = UdpSocket::bind("127.0.0.1:0").unwrap();
    for session in [100, 101] {
        // One byte at offset 98,304 of a block whose beginning never comes.
        near.send_to(&[0x00, 1, session, 0, 1, 0x86, 0x80, 0x00, 1, 7], link.nodes[1]).unwrap();
    }
    let status = b.until(|status| status.peers[0].ltp.is_some_and(|ltp| ltp.without_memory == 1)).await;
    assert_eq!((status.totals.strangers, status.totals.overrun), (0, 0));
}

/// The configuration of an end with a key of this name, which is in the folder.
fn key(folder: &std::path::Path, name: &str, digits: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, digits).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    format!("authentication = \"hmac-sha1-80\"\nkey = \"{}\"\n", path.display())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_key_only_authentic_segments_are_taken() {
    let folder = tempfile::tempdir().unwrap();
    let with_key = key(folder.path(), "key", &"5a".repeat(20));
    let (link, a, b) = pair(&with_key).await;
    let near = UdpSocket::bind("127.0.0.1:0").unwrap();
    // A bundle that is none, of the right engine; it would be refused.
    near.send_to(&[0x03, 1, 9, 0, 1, 0, 1, 1, 0, 7], link.nodes[1]).unwrap();
    for index in 0..10 {
        a.send("dtn://b/in", bytes(index, 20_000), &[]).await;
    }
    let mut came = BTreeSet::new();
    for _ in 0..10 {
        came.insert(number(&b.receive("in").await));
    }
    assert_eq!(came.len(), 10);
    a.until_empty().await;
    let status = b.status();
    let dropped = status.peers[0].ltp.unwrap().not_authentic;
    assert_eq!((dropped, status.totals.refused), (1, 0));
    assert_eq!(a.status().peers[0].ltp.unwrap().not_authentic, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_different_keys_nothing_arrives_until_they_are_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let [right, wrong] = ["5a", "5b"].map(|byte| key(folder.path(), byte, &byte.repeat(20)));
    let link = LossyLink::between([free_udp_address(), free_udp_address()]);
    let mut a = TestNode::start("dtn://a/", &link.config(0, "b", &wrong)).await;
    let b = TestNode::start("dtn://b/", &link.config(1, "a", &right)).await;
    a.send("dtn://b/in", bytes(1, 100), &[]).await;
    b.until(|status| status.peers[0].ltp.is_some_and(|ltp| ltp.not_authentic > 0)).await;
    assert!(b.receive_within("in", Duration::from_millis(100)).await.is_none());
    a.stop().await;
    a.configure(&(listen("127.0.0.1:0".parse().unwrap()) + &link.config(0, "b", &right)));
    a.restart().await;
    assert_eq!(number(&b.receive("in").await), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outside_of_its_contact_nothing_is_sent() {
    let contact = |from: &str, to: &str, start: &str| {
        format!(
            "[[contacts]]\nfrom = \"dtn://{from}/\"\nto = \"dtn://{to}/\"\nstart = {start}\n\
             end = 2199-01-01T00:00:00Z\nrate = \"50Mbit/s\"\n"
        )
    };
    let link = LossyLink::between([free_udp_address(), free_udp_address()]);
    let later = contact("a", "b", "2198-01-01T00:00:00Z");
    let mut a = TestNode::start("dtn://a/", &(link.config(0, "b", "") + &later)).await;
    let b = TestNode::start("dtn://b/", &link.config(1, "a", "")).await;
    a.send("dtn://b/in", bytes(1, 100), &[]).await;
    let status = a.until(|status| status.waiting.parked == 1).await;
    assert!(!status.peers[0].open);
    assert!(b.receive_within("in", Duration::from_millis(200)).await.is_none());
    a.stop().await;
    let now = contact("a", "b", "2001-01-01T00:00:00Z");
    a.configure(&(listen("127.0.0.1:0".parse().unwrap()) + &link.config(0, "b", "") + &now));
    a.restart().await;
    assert_eq!(number(&b.receive("in").await), 1);
}
