//! Two sessions with each other over loopback.

use crate::tcpcl_common::*;
use bentpipe_dtn::convergence::Refusal;
use bentpipe_dtn::tcpcl::{EndedBy, Role, SessionSettings, Tls};

const BOTH: [&str; 2] = ["dtn://one/", "dtn://two/"];

async fn plain_and_tls() -> [(Node, Node); 2] {
    let ids = Ids::new(&BOTH);
    let one = with_tls(BOTH[0], Tls::Require(ids.tls(BOTH[0], &BOTH[1..])));
    let two = with_tls(BOTH[1], Tls::Require(ids.tls(BOTH[1], &BOTH[..1])));
    [pair(settings(BOTH[0]), settings(BOTH[1])).await, pair(one, two).await]
}

/// Sends these lengths each way, ends in order, and sees all of it there.
async fn both_ways((one, two): (Node, Node), lengths: &[u64]) {
    let transfers: Vec<(u64, u64)> =
        lengths.iter().enumerate().map(|(handle, len)| (handle as u64, *len)).collect();
    one.host.queue(transfers.clone());
    two.host.queue(transfers.clone());
    for node in [&one, &two] {
        node.host.until(|seen| seen.sent.len() == lengths.len()).await;
    }
    one.stop.send(true).unwrap();
    let expected: Vec<_> = transfers.iter().map(|(handle, len)| checksum(*handle, *len)).collect();
    for node in [one, two] {
        let (end, seen) = node.ends().await;
        assert!(end.in_order, "{end}");
        assert_eq!(seen.received, expected);
        assert!(seen.longest_write <= 512 << 10);
        assert_eq!(seen.sent, (0..lengths.len() as u64).collect::<Vec<_>>());
        assert_eq!((seen.dropped, seen.returned.len(), seen.refused.len()), (0, 0, 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_byte_and_a_little_and_a_lot_come_through_both_ways_at_once() {
    for nodes in plain_and_tls().await {
        both_ways(nodes, &[1, 0, 64 << 10, 10 << 20]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_small_ones_come_through_both_ways_at_once() {
    for nodes in plain_and_tls().await {
        both_ways(nodes, &[100; 1000]).await;
    }
}

#[tokio::test]
async fn a_runtime_of_one_thread_does_too() {
    let [plain, _] = plain_and_tls().await;
    both_ways(plain, &[1 << 20, 5]).await;
}

/// RFC 9174 §4.4.2: with TLS a peer proves its node ID by its certificate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_peers_identity_is_claimed_and_with_tls_proven() {
    for (nodes, proven) in plain_and_tls().await.into_iter().zip([false, true]) {
        let (one, two) = nodes;
        for (node, peer) in [(&one, BOTH[1]), (&two, BOTH[0])] {
            node.host.until(|seen| !seen.admitted.is_empty()).await;
            assert_eq!(node.host.seen().admitted, [(eid(peer), proven.then(|| eid(peer)))]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bundles_refused_by_the_host_are_skipped_and_the_session_continues() {
    let (active, passive) = connection().await;
    let one = Node::start(active, Role::Active, settings(BOTH[0]), TestHost::default());
    let picky = TestHost { refuse_after: Some(1 << 20), ..TestHost::default() };
    let two = Node::start(passive, Role::Passive, settings(BOTH[1]), picky);
    one.host.queue([(1, 8 << 20), (2, 1 << 20)]);
    one.host.until(|seen| seen.sent == [2]).await;
    assert_eq!(one.host.seen().refused, [(1, Refusal::NoResources)]);
    let seen = two.host.seen();
    assert_eq!((seen.received, seen.dropped), (vec![checksum(2, 1 << 20)], 1));
    two.stop.send(true).unwrap();
    assert!(one.ends().await.0.in_order && two.ends().await.0.in_order);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_in_progress_is_finished_before_the_session_ends() {
    let (one, two) = pair(settings(BOTH[0]), settings(BOTH[1])).await;
    one.host.queue([(1, 20 << 20), (2, 1)]);
    two.host.until(|seen| seen.longest_write > 0).await;
    two.stop.send(true).unwrap();
    let ((end, sender), (_, receiver)) = (one.ends().await, two.ends().await);
    assert!(end.in_order, "{end}");
    assert_eq!(sender.sent.len(), receiver.received.len());
    assert_eq!(receiver.received[0], checksum(1, 20 << 20));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreadable_bundle_breaks_the_session_and_is_returned() {
    let (active, passive) = connection().await;
    let broken = TestHost { unreadable_after: Some(3 << 20), ..TestHost::default() };
    let one = Node::start(active, Role::Active, settings(BOTH[0]), broken);
    let two = Node::start(passive, Role::Passive, settings(BOTH[1]), TestHost::default());
    one.host.queue([(1, 8 << 20)]);
    let ((end, sender), (_, receiver)) = (one.ends().await, two.ends().await);
    assert!(end.reason.contains("the disk is broken"), "{end}");
    assert_eq!((sender.returned, receiver.received.len(), receiver.dropped), (vec![1], 0, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_session_returns_its_bundles() {
    let (active, mut peer) = connection().await;
    let one = Node::start(active, Role::Active, settings(BOTH[0]), TestHost::default());
    one.host.queue([(1, 1), (2, 100 << 20)]);
    answer_and_wait(&mut peer).await;
    one.end.abort();
    one.host.until(|seen| seen.returned == [1, 2]).await;
}

/// A peer that establishes the session, and reads until the second transfer has begun.
async fn answer_and_wait(peer: &mut tokio::net::TcpStream) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    peer.write_all(b"dtn!\x04\x00\x07\x00\x00").await.unwrap();
    peer.write_all(&[[0xFF; 8], [0xFF; 8]].concat()).await.unwrap();
    peer.write_all(b"\x00\x0Adtn://two/\x00\x00\x00\x00").await.unwrap();
    peer.read_exact(&mut [0; 100_000]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_wrong_node_is_turned_away_on_both_sides() {
    let one = SessionSettings { expected_peer: Some(eid("dtn://moon/")), ..settings(BOTH[0]) };
    let (one, two) = pair(one, settings(BOTH[1])).await;
    let (end, _) = one.ends().await;
    assert!(end.reason.contains("says it is dtn://two/, expected dtn://moon/"), "{end}");
    let (end, _) = two.ends().await;
    assert_eq!((end.by, end.in_order), (EndedBy::Peer, false));

    let (active, passive) = connection().await;
    let one = Node::start(active, Role::Active, settings(BOTH[0]), TestHost::default());
    let proud = TestHost { reject_peer: true, ..TestHost::default() };
    let two = Node::start(passive, Role::Passive, settings(BOTH[1]), proud);
    let (end, _) = two.ends().await;
    assert!(end.reason.contains("it is not welcome"), "{end}");
    let (end, _) = one.ends().await;
    assert!(end.reason.contains("does not want this session: contact failure"), "{end}");
}

/// RFC 9174 §4.4: where TLS is demanded and not possible there is no session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_that_is_not_possible_says_why_at_both_ends() {
    let ids = Ids::new(&["dtn://one/", "dtn://two/", "dtn://moon/"]);
    let require = |node, trusts: &[&str]| with_tls(node, Tls::Require(ids.tls(node, trusts)));
    let cases = [
        (
            require("dtn://one/", &["dtn://two/"]),
            settings("dtn://two/"),
            "plain text only, and TLS is required",
            "does not want this session",
        ),
        (
            require("dtn://one/", &["dtn://moon/"]),
            require("dtn://two/", &["dtn://one/"]),
            "not trusted here: it is none of the 1 that are configured",
            "does not trust this node's certificate",
        ),
        (
            require("dtn://one/", &["dtn://two/"]),
            require("dtn://two/", &["dtn://moon/"]),
            "does not trust this node's certificate",
            "not trusted here: it is none of the 1 that are configured",
        ),
        (
            // It is the moon's certificate, and it is trusted, but who has it says it is another.
            require("dtn://one/", &["dtn://moon/"]),
            with_tls("dtn://two/", Tls::Require(ids.tls("dtn://moon/", &["dtn://one/"]))),
            "says it is dtn://two/, but its certificate is that of dtn://moon/",
            "does not want this session",
        ),
    ];
    for (one, two, why_one, why_two) in cases {
        let (one, two) = pair(one, two).await;
        let ((one, seen), (two, _)) = (one.ends().await, two.ends().await);
        assert!(one.reason.contains(why_one), "{one}");
        assert!(two.reason.contains(why_two), "{two}");
        assert!(seen.admitted.is_empty(), "the host was asked");
    }
}

/// RFC 9174 §4.3, §4.4: TLS is spoken where both sides can.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_that_is_optional_is_spoken_where_both_can() {
    let ids = Ids::new(&BOTH);
    let offer = || with_tls(BOTH[0], Tls::Offer(ids.tls(BOTH[0], &BOTH[1..])));
    let can = with_tls(BOTH[1], Tls::Offer(ids.tls(BOTH[1], &BOTH[..1])));
    for (two, proven) in [(settings(BOTH[1]), None), (can, Some(eid(BOTH[1])))] {
        let (one, two) = pair(offer(), two).await;
        one.host.until(|seen| !seen.admitted.is_empty()).await;
        assert_eq!(one.host.seen().admitted[0].1, proven);
        two.stop.send(true).unwrap();
        one.ends().await;
    }
}
