//! What RFC 9171 and RFC 9174 ask of a node, seen from outside: a peer sends, and looks at what comes.

use std::time::Duration;

use crate::node_common::fake::{Fake, bundle, decoded, encoded};
use crate::node_common::*;
use bentpipe_dtn::bundle::report::{AdminRecord, ReasonCode, Report, Status};
use bentpipe_dtn::bundle::{Bundle, Fragment, HopCount};
use bentpipe_dtn::convergence::Refusal;
use bentpipe_dtn::{DtnTime, Eid};

/// So long nothing has to come for us to believe that nothing does.
const QUIET: Duration = Duration::from_millis(300);

/// A node `dtn://a/` that sends everything it has no other way for to `dtn://b/`.
async fn node() -> TestNode {
    node_with("").await
}

async fn node_with(more: &str) -> TestNode {
    let peers = peer("dtn://b/", None, "") + &peer("dtn://c/", None, "");
    TestNode::start("dtn://a/", &(peers + &route("*", "dtn://b/") + more)).await
}

fn eid(text: &str) -> Eid {
    text.parse().unwrap()
}

/// An extension block as it is written, without a CRC.
fn block(kind: u8, flags: u8, content: &[u8]) -> Vec<u8> {
    [&[0x85, 0x18, kind, 2, flags, 0, 0x40 + content.len() as u8][..], content].concat()
}

/// A bundle with another block before its payload.
fn with_block(bundle: &Bundle, payload: &[u8], block: &[u8]) -> Vec<u8> {
    let (head, wire) = (bundle.head(), encoded(bundle, payload));
    // The payload block begins after the primary one: `86 01 01 00 02` and the head of its string.
    let at = head.windows(4).rposition(|window| window == [0x86, 1, 1, 0]).unwrap();
    [&wire[..at], block, &wire[at..]].concat()
}

/// The reports that have come to `dtn://b/`, as status, reason.
async fn reports(b: &mut Fake, count: usize) -> Vec<(Status, ReasonCode)> {
    let mut seen = Vec::new();
    while seen.len() < count {
        let (bundle, payload) = decoded(&b.receive().await.1);
        assert!(bundle.is_admin, "{bundle:?}");
        let AdminRecord::Reports(reports) = Report::parse(&payload).unwrap() else { panic!("{payload:?}") };
        seen.extend(reports.into_iter().map(|report| (report.status, report.reason)));
    }
    seen
}

/// Everything of it is to be reported to `dtn://b/reports`.
fn reported(bundle: &mut Bundle) {
    bundle.report_to = eid("dtn://b/reports");
    bundle.reports.reception = true;
    bundle.reports.deletion = true;
}

/// RFC 9171 §4.2.3: bundles without a source are not told apart by their timestamps; both are delivered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anonymous_bundles_with_one_timestamp_are_two_bundles() {
    let mut a = node().await;
    let mut b = Fake::connect(a.address(), "dtn://b/").await;
    let anonymous = bundle("dtn:none", 1, "dtn://a/in", 500);
    for number in [1, 2] {
        assert_eq!(b.transfer(&encoded(&anonymous, &bytes(number, 500))).await, Some(Ok(())));
    }
    a.until(|status| status.waiting.deliverable == 2).await;
    a.stop().await;
    a.restart().await;
    for expected in [1, 2] {
        assert_eq!(number(&a.receive("in").await), expected);
    }
    let mut b = Fake::connect(a.address(), "dtn://b/").await;
    // Delivered ones are not remembered, either.
    assert_eq!(b.transfer(&encoded(&anonymous, &bytes(3, 500))).await, Some(Ok(())));
    assert_eq!(number(&a.receive("in").await), 3);
    a.until_empty().await;
}

/// RFC 9171 §4.2.3: a bundle without a source is forwarded whole, and fragments of one are not accepted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anonymous_bundles_are_never_fragments() {
    let a = node().await;
    let mut c = Fake::connect(a.address(), "dtn://c/").await;
    let whole = bundle("dtn:none", 1, "dtn://a/in", 1000);
    let mut part = bundle("dtn://x/", 1, "dtn://a/in", 500);
    part.id.fragment = Some(Fragment { offset: 0, len: 500, total: 1000 });
    part.id.source = Eid::None;
    let wire = encoded(&part, &bytes(1, 500));
    assert_eq!(c.transfer(&wire).await, Some(Err(Refusal::NotAcceptable)));
    // To a peer that takes less it waits.
    let mut onwards = whole;
    onwards.destination = eid("dtn://z/in");
    assert_eq!(c.transfer(&encoded(&onwards, &bytes(2, 1000))).await, Some(Ok(())));
    let mut small = Fake::connect_with(a.address(), "dtn://b/", 600).await;
    a.until(|status| status.waiting.parked == 1).await;
    assert!(small.is_alive().await);
    assert_eq!(a.status().store.bundles, 1);
}

/// RFC 9171 §5.6: what must be deleted is accepted, deleted and reported, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bundle_that_must_be_deleted_is_accepted_and_reported_once() {
    let a = node().await;
    let mut b = Fake::connect(a.address(), "dtn://b/").await;
    let payload = bytes(1, 3000);
    let new = |sequence| {
        let mut bundle = bundle("dtn://b/x", sequence, "dtn://a/in", 3000);
        reported(&mut bundle);
        bundle
    };
    let mut tired = new(1);
    tired.hops = Some(HopCount { limit: 3, count: 4 });
    let mut over = new(2);
    over.id.created = DtnTime::from_millis(1);
    let unknown = with_block(&new(3), &payload, &block(200, 0x04, b"x"));
    let (none, limit) = (ReasonCode::NO_INFORMATION, ReasonCode::HOP_LIMIT_EXCEEDED);
    for (wire, why) in [
        (encoded(&tired, &payload), limit),
        (encoded(&over, &payload), ReasonCode::LIFETIME_EXPIRED),
        (unknown.clone(), ReasonCode::BLOCK_UNSUPPORTED),
    ] {
        assert_eq!(b.transfer(&wire).await, Some(Ok(())), "{why}");
        assert_eq!(reports(&mut b, 2).await, [(Status::Received, none), (Status::Deleted, why)]);
    }
    // A peer that offers it again is told that it has been here.
    assert_eq!(b.transfer(&encoded(&tired, &payload)).await, Some(Err(Refusal::Completed)));
    assert_eq!(b.transfer(&unknown).await, Some(Err(Refusal::Completed)));
    assert!(tokio::time::timeout(QUIET, b.receive()).await.is_err(), "no other report");
    a.until_empty().await;
    assert_eq!((a.status().totals.given_up, a.status().totals.refused), (3, 0));
}

/// RFC 9171 §5.6: a block that cannot be processed is reported if it asks for that, also where it asks for the
/// bundle's deletion, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_that_cannot_be_processed_is_reported_by_its_flags() {
    let a = node().await;
    let mut b = Fake::connect(a.address(), "dtn://b/").await;
    let payload = bytes(1, 100);
    let (unsupported, unintelligible) = (ReasonCode::BLOCK_UNSUPPORTED, ReasonCode::BLOCK_UNINTELLIGIBLE);
    let hop_limit_of_300 = [0x85, 10, 2, 0x02, 0, 0x45, 0x82, 0x19, 0x01, 0x2c, 0x01];
    let no_hop_count = [0x85, 10, 2, 0x02, 0, 0x41, 0xf5];
    for (sequence, block, expected) in [
        (1, block(200, 0x06, b"x"), vec![(Status::Received, unsupported), (Status::Deleted, unsupported)]),
        (2, block(200, 0x02, b"x"), vec![(Status::Received, unsupported)]),
        (3, hop_limit_of_300.to_vec(), vec![(Status::Received, unintelligible)]),
        (4, no_hop_count.to_vec(), vec![(Status::Received, unintelligible)]),
    ] {
        let mut bundle = bundle("dtn://b/x", sequence, "dtn://a/in", 100);
        reported(&mut bundle);
        bundle.reports.reception = false;
        assert_eq!(b.transfer(&with_block(&bundle, &payload, &block)).await, Some(Ok(())));
        let mut seen = reports(&mut b, expected.len()).await;
        seen.sort_by_key(|(status, _)| *status);
        assert_eq!(seen, expected, "{block:02x?}");
    }
    assert_eq!(a.status().waiting.deliverable, 3);
}

/// RFC 9174 §5.2.4: what a peer refuses as not acceptable is not offered to it again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_acceptable_is_offered_once() {
    let a = node().await;
    a.send("dtn://z/in", bytes(1, 100), &[]).await;
    let mut b = Fake::connect(a.address(), "dtn://b/").await;
    b.refuse_next(Refusal::NotAcceptable).await;
    let waits = a.until(|status| status.waiting.parked == 1).await;
    assert_eq!(waits.store.bundles, 1);
    // Neither the next attempt nor another session offers it; what comes after it goes.
    let state = a.node().bundles(1)[0].state;
    assert!(state.contains("refused"), "{state}");
    drop(b);
    let mut b = Fake::connect(a.address(), "dtn://b/").await;
    a.send("dtn://z/in", bytes(2, 100), &[]).await;
    assert_eq!(number(&decoded(&b.receive().await.1).1), 2);
    assert!(tokio::time::timeout(QUIET, b.receive()).await.is_err(), "it was offered again");
    assert_eq!(a.status().store.bundles, 1);
}

/// RFC 9174 §4.6, §5.2.1: the announced transfer MRU is what can be stored, so that senders fragment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_longer_than_the_next_nodes_store_goes_through_it_in_fragments() {
    let b_address = free_address();
    let c = TestNode::start("dtn://c/", &peer("dtn://b/", None, "")).await;
    let ends = listen(b_address) + &peer("dtn://a/", None, "") + &peer("dtn://c/", Some(c.address()), "");
    let b = TestNode::start_with("dtn://b/", "quota = \"1MB\"", &ends).await;
    let way = peer("dtn://b/", Some(b.address()), "") + &route("*", "dtn://b/");
    let a = TestNode::start("dtn://a/", &way).await;
    a.send("dtn://c/in", bytes(1, 1_800_000), &[]).await;
    // The first goes at once; what meets a full store is tried again after ten seconds.
    assert_eq!(number(&c.receive("in").await), 1);
    assert_eq!(b.status().totals.received, 2);
    for node in [&a, &b, &c] {
        node.until_empty().await;
    }
}

/// RFC 9171 §6.1: an administrative record of a type that this node does not know is counted, not delivered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_administrative_records_are_counted() {
    let a = node().await;
    let mut b = Fake::connect(a.address(), "dtn://b/").await;
    let record = [0x82, 0x07, 0x81, 0x01];
    let mut admin = bundle("dtn://b/", 1, "dtn://a/", record.len() as u64);
    admin.is_admin = true;
    assert_eq!(b.transfer(&encoded(&admin, &record)).await, Some(Ok(())));
    a.until(|status| status.totals.unknown_records == 1).await;
    a.until_empty().await;
}

/// RFC 9171 §4.4.3, §5.4: a bundle that comes back in a circle is kept, and does not go around again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bundle_that_comes_back_does_not_go_around_again() {
    let a = node().await;
    let mut b = Fake::connect(a.address(), "dtn://b/").await;
    let mut c = Fake::connect(a.address(), "dtn://c/").await;
    let onwards = encoded(&bundle("dtn://s/x", 1, "dtn://z/in", 100), &bytes(1, 100));
    assert_eq!(c.transfer(&onwards).await, Some(Ok(())));
    let (_, wire) = b.receive().await;
    let (bundle, _) = decoded(&wire);
    assert_eq!(bundle.hops, Some(HopCount { limit: 255, count: 1 }), "a limit ends all circles");
    a.until(|status| status.totals.sent == 1).await;
    // Its previous node repeats it: a duplicate.
    assert_eq!(c.transfer(&onwards).await, Some(Err(Refusal::Completed)));
    // The next one sends it back: this node has it again, and somebody has to keep it.
    assert_eq!(b.transfer(&wire).await, Some(Ok(())));
    a.until(|status| status.waiting.parked == 1).await;
    assert!(tokio::time::timeout(QUIET, b.receive()).await.is_err(), "it went around again");
}

/// RFC 9171 §4.4.3: reports have a hop limit as other bundles do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_have_a_hop_limit() {
    let a = node().await;
    let mut b = Fake::connect(a.address(), "dtn://b/").await;
    let mut asked = bundle("dtn://b/x", 1, "dtn://a/in", 8);
    reported(&mut asked);
    assert_eq!(b.transfer(&encoded(&asked, &bytes(1, 8))).await, Some(Ok(())));
    let (report, _) = decoded(&b.receive().await.1);
    assert!(report.is_admin);
    assert_eq!(report.hops, Some(HopCount { limit: 32, count: 1 }));
}

/// RFC 9758 §6.1.2: `ipn` endpoints with an allocator are node, source, destination and report-to, and are
/// written as they are configured.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ipn_endpoints_with_three_numbers_are_spoken() {
    let a = TestNode::start("ipn:977000.1.0", &peer("ipn:977000.2.0", None, "")).await;
    let mut b = Fake::connect(a.address(), "ipn:977000.2.0").await;
    let mut asked = bundle("ipn:977000.2.5", 1, "ipn:977000.1.7", 8);
    asked.report_to = eid("ipn:977000.2.6");
    asked.reports.reception = true;
    let wire = encoded(&asked, &bytes(1, 8));
    // [2, [977000, 1, 7]]
    let three = [0x82, 0x02, 0x83, 0x1a, 0x00, 0x0e, 0xe8, 0x68, 0x01, 0x07];
    assert!(wire.windows(three.len()).any(|window| window == three));
    assert_eq!(b.transfer(&wire).await, Some(Ok(())));
    let (report, payload) = decoded(&b.receive().await.1);
    assert_eq!((report.destination.to_string(), report.is_admin), ("ipn:977000.2.6".into(), true));
    assert_eq!(report.id.source.to_string(), "ipn:977000.1.0");
    let AdminRecord::Reports(reports) = Report::parse(&payload).unwrap() else { panic!() };
    assert_eq!(reports[0].subject.source.to_string(), "ipn:977000.2.5");
    assert_eq!(number(&a.receive("7").await), 1);
    // The same endpoints in the other form are the same.
    let node = (977_000_u64 << 32) + 1;
    let mut other = bundle("ipn:977000.2.5", 2, &format!("ipn:{node}.7"), 8);
    other.id.created = asked.id.created;
    assert_eq!(b.transfer(&encoded(&other, &bytes(2, 8))).await, Some(Ok(())));
    assert_eq!(number(&a.receive("7").await), 2);
}

/// The name of a file travels with it, as it does with files of folders and PUTs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_files_name_travels() {
    let b = TestNode::start("dtn://b/", &peer("dtn://a/", None, "")).await;
    let a = TestNode::start("dtn://a/", &peer("dtn://b/", Some(b.address()), "")).await;
    for name in ["report.pdf", "Übersicht, 3. Quartal.pdf"] {
        a.send("dtn://b/in", bytes(1, 100), &[("name", name)]).await;
        let delivery = b.client().next("in", LONG).await.unwrap().unwrap();
        assert_eq!(delivery.file_name.as_ref().unwrap().as_str(), name);
        b.client().acknowledge(delivery.key).await.unwrap();
    }
    for name in ["../up", ".hidden", "a/b", ""] {
        let error = a.try_send("dtn://b/in", bytes(1, 8), &[("name", name)]).await.unwrap_err();
        assert!(error.to_string().contains("not a file's name"), "{error}");
    }
}
