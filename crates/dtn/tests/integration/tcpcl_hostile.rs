//! Peers that mean harm, over a socket: each session ends with a clear sentence, and gives back what it had.
//!
//! Where a peer stalls, time is tokio's and jumps.

use crate::tcpcl_common::*;
use bentpipe_dtn::tcpcl::message::{
    Message, RejectReason, SegmentFlags, SegmentHead, SessInit, TermReason, TransferExtensions,
};
use bentpipe_dtn::tcpcl::{EndedBy, Role, SessionEnd, Tls};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const CONTACT: &[u8] = b"dtn!\x04\x00";

/// The hostile end of a connection with a node that has two things to send.
struct Attack {
    peer: TcpStream,
    node: Node,
}

impl Attack {
    async fn new() -> Self {
        let (peer, stream) = connection().await;
        let node = Node::start(stream, Role::Passive, settings("dtn://us/"), TestHost::default());
        node.host.queue([(1, 10), (2, 1 << 30)]);
        Self { peer, node }
    }

    /// One that has come as far as to have a session.
    async fn established() -> Self {
        let mut attack = Self::new().await;
        attack.writes(CONTACT).await;
        attack.says(&init(u64::MAX)).await;
        attack
    }

    async fn writes(&mut self, bytes: &[u8]) {
        self.peer.write_all(bytes).await.unwrap();
    }

    async fn says(&mut self, message: &Message) {
        let mut out = Vec::new();
        message.encode(&mut out);
        self.writes(&out).await;
    }

    /// Reads until the node has closed, while it says this again and again.
    async fn floods(mut self, message: &Message) -> (SessionEnd, Seen) {
        let mut out = Vec::new();
        for _ in 0..1000 {
            message.encode(&mut out);
        }
        let (mut from, mut to) = self.peer.split();
        let mut sink = vec![0; 1 << 16];
        let reads = async { while matches!(from.read(&mut sink).await, Ok(1..)) {} };
        let writes = async { while to.write_all(&out).await.is_ok() {} };
        tokio::join!(reads, writes);
        self.closes().await
    }

    async fn closes(self) -> (SessionEnd, Seen) {
        drop(self.peer);
        self.node.ends().await
    }

    /// Reads until the node has closed.
    async fn waits(mut self) -> (SessionEnd, Seen) {
        let mut sink = vec![0; 1 << 16];
        while matches!(self.peer.read(&mut sink).await, Ok(1..)) {}
        self.closes().await
    }
}

fn init(mru: u64) -> Message {
    Message::SessInit(SessInit {
        keepalive: 30,
        segment_mru: mru,
        transfer_mru: mru,
        node: "dtn://them/".into(),
        critical_extension: None,
    })
}

fn segment(start: bool, end: bool, len: u64) -> Message {
    let (flags, extensions) = (SegmentFlags::of(start, end), TransferExtensions::default());
    Message::Segment(SegmentHead { flags, id: 0, extensions, len })
}

#[track_caller]
fn blames((end, seen): &(SessionEnd, Seen), why: &str) {
    assert!(end.reason.contains(why), "{end}");
    assert!(end.reason.contains("127.0.0.1:"), "{end}");
    assert!(!end.in_order);
    assert!(seen.received.is_empty());
}

/// What was begun came back.
#[track_caller]
fn gave_back((_, seen): &(SessionEnd, Seen), handles: &[u64]) {
    assert_eq!(seen.returned, handles);
}

#[tokio::test(start_paused = true)]
async fn a_silent_connection_has_thirty_seconds() {
    let attack = Attack::new().await;
    let outcome = attack.waits().await;
    blames(&outcome, "gave no contact header within 30 s");
}

#[tokio::test(start_paused = true)]
async fn a_partial_contact_header_has_thirty_seconds() {
    let mut attack = Attack::new().await;
    attack.writes(CONTACT).await;
    attack.writes(b"\x07\x00\x1e").await;
    let outcome = attack.waits().await;
    blames(&outcome, "gave no SESS_INIT within 30 s");
    gave_back(&outcome, &[]);
}

#[tokio::test(start_paused = true)]
async fn a_stalled_tls_handshake_has_thirty_seconds() {
    let ids = Ids::new(&["dtn://us/"]);
    let (mut peer, stream) = connection().await;
    let settings = with_tls("dtn://us/", Tls::Require(ids.tls("dtn://us/", &[])));
    let node = Node::start(stream, Role::Passive, settings, TestHost::default());
    peer.write_all(b"dtn!\x04\x01\x16\x03\x01").await.unwrap();
    let outcome = node.ends().await;
    blames(&outcome, "gave no complete TLS handshake within 30 s");
    drop(peer);
}

#[tokio::test(start_paused = true)]
async fn a_peer_stalled_within_a_segment_is_dropped_after_two_intervals() {
    let mut attack = Attack::established().await;
    attack.says(&segment(true, true, 1000)).await;
    attack.writes(&[7; 500]).await;
    attack.node.host.until(|seen| seen.longest_write > 0).await;
    let outcome = attack.node.ends().await;
    blames(&outcome, "nothing came");
    gave_back(&outcome, &[1, 2]);
    assert_eq!(outcome.1.dropped, 1);
    drop(attack.peer);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_close_at_any_point_is_handled() {
    let outcome = Attack::new().await.closes().await;
    blames(&outcome, "closed the connection without a word");

    let mut attack = Attack::new().await;
    attack.writes(CONTACT).await;
    attack.peer.read_exact(&mut [0; 6]).await.unwrap();
    blames(&attack.closes().await, "before there was a session");

    let mut attack = Attack::established().await;
    attack.says(&segment(true, true, 1000)).await;
    attack.writes(&[7; 500]).await;
    attack.node.host.until(|seen| seen.longest_write > 0).await;
    attack.peer.shutdown().await.unwrap();
    let outcome = attack.waits().await;
    blames(&outcome, "in the middle of a session, with a transfer half done");
    assert_eq!(outcome.1.dropped, 1);
    assert_eq!(outcome.0.by, EndedBy::Peer);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_connection_returns_unfinished_transfers() {
    let mut attack = Attack::established().await;
    // The first transfer, and the beginning of the second.
    attack.peer.read_exact(&mut [0; 300_000]).await.unwrap();
    // Without this a close resets only if there is something unread.
    socket2::SockRef::from(&attack.peer).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    let outcome = attack.closes().await;
    blames(&outcome, "the connection with 127.0.0.1");
    gave_back(&outcome, &[1, 2]);
    assert_eq!(outcome.0.by, EndedBy::Network);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lies_end_the_session() {
    let announced = |length| TransferExtensions { length: Some(length), ..TransferExtensions::default() };
    let lies = [
        (
            Message::Ack { flags: SegmentFlags::WHOLE, id: 0, len: 11 },
            "acknowledged 11 bytes of transfer 0, of which 10",
        ),
        (
            Message::Ack { flags: SegmentFlags::WHOLE, id: 9, len: 1 },
            "acknowledged transfer 9, which was not sent",
        ),
        (segment(false, true, 1), "continued transfer 0, which has not begun"),
        (segment(true, true, 1 << 62), "a segment of 4611686018427387904 bytes"),
        (init(1), "sent a second SESS_INIT"),
        (Message::Reject { reason: RejectReason::UNSUPPORTED, header: 1 }, "rejected this node's message"),
    ];
    for (lie, why) in lies {
        let mut attack = Attack::established().await;
        // The first transfer, which is there in full when its 14 + 8 + 10 bytes are, after contact header and
        // SESS_INIT.
        attack.peer.read_exact(&mut [0; 100]).await.unwrap();
        attack.says(&lie).await;
        let outcome = attack.waits().await;
        blames(&outcome, why);
        gave_back(&outcome, &[1, 2]);
    }
    // A length that is announced and not kept is refused, and the session goes on.
    let mut attack = Attack::established().await;
    let head = SegmentHead { flags: SegmentFlags::WHOLE, id: 0, extensions: announced(3), len: 2 };
    attack.says(&Message::Segment(head)).await;
    attack.writes(b"ab").await;
    attack.says(&Message::SessTerm { reply: false, reason: TermReason::UNKNOWN }).await;
    attack.node.host.until(|seen| seen.dropped == 1).await;
    assert_eq!(attack.node.host.seen().announced, [Some(3)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_end_the_session() {
    for (flood, why) in [
        (Message::Keepalive, "floods this node with keepalives"),
        (Message::Ack { flags: SegmentFlags(0), id: 0, len: 0 }, "more often than it got segments"),
        (Message::Reject { reason: RejectReason::UNEXPECTED, header: 4 }, "rejected this node's message"),
    ] {
        let mut attack = Attack::established().await;
        attack.peer.read_exact(&mut [0; 100]).await.unwrap();
        let outcome = attack.floods(&flood).await;
        blames(&outcome, why);
        gave_back(&outcome, &[1, 2]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_sends_without_reading_loses_the_session() {
    let attack = Attack::established().await;
    let mut out = Vec::new();
    for id in 0..10_000 {
        let extensions = TransferExtensions::default();
        Message::Segment(SegmentHead { flags: SegmentFlags::WHOLE, id, extensions, len: 0 }).encode(&mut out);
    }
    // Transfer 2 fills what the sockets hold; then the answers wait. Identifiers may repeat, only not at
    // once.
    let Attack { mut peer, node } = attack;
    while peer.write_all(&out).await.is_ok() {}
    let (end, seen) = node.ends().await;
    assert!(end.reason.contains("sends but does not read"), "{end}");
    assert_eq!(seen.returned, [1, 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_and_other_protocols_end_the_session() {
    let mut attack = Attack::new().await;
    attack.writes(b"GET / HTTP/1.1\r\n\r\n").await;
    blames(&attack.waits().await, "no TCPCL speaks there");

    let mut attack = Attack::established().await;
    attack.writes(&[0xEE; 10_000]).await;
    let outcome = attack.waits().await;
    blames(&outcome, "unknown type 0xee");

    let ids = Ids::new(&["dtn://us/"]);
    let (mut peer, stream) = connection().await;
    let settings = with_tls("dtn://us/", Tls::Require(ids.tls("dtn://us/", &[])));
    let node = Node::start(stream, Role::Passive, settings, TestHost::default());
    peer.write_all(b"dtn!\x04\x01and now in plain text").await.unwrap();
    blames(&node.ends().await, "offered TLS and then did not speak it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_stopped_waits_for_no_handshake() {
    let (_peer, stream) = connection().await;
    let node = Node::start(stream, Role::Active, settings("dtn://us/"), TestHost::default());
    node.stop.send(true).unwrap();
    let (end, _) = node.ends().await;
    assert!(end.reason.contains("this node stopped"), "{end}");
}
