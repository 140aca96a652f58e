//! What nodes do with bundles: ways, contacts, priorities, lifetimes, reports, fragments.

use std::time::{Duration, SystemTime};

use crate::node_common::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_in_a_row_by_a_static_route() {
    let c = TestNode::start("ipn:3.0", &peer("dtn://b/", None, "")).await;
    let to_a = peer("dtn://a/", None, "") + &peer("ipn:3.0", Some(c.address()), "");
    let b = TestNode::start("dtn://b/", &to_a).await;
    let way = peer("dtn://b/", Some(b.address()), "") + &route("ipn:3.*", "dtn://b/");
    let a = TestNode::start("dtn://a/", &way).await;
    for (index, len) in [8, 5000, 1_000_000].into_iter().enumerate() {
        a.send("ipn:3.7", bytes(index as u64, len), &[]).await;
        assert_eq!(number(&c.receive("7").await), index as u64);
    }
    for node in [&a, &b, &c] {
        node.until_empty().await;
        assert_eq!(node.files(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn urgent_bundles_overtake_waiting_ones() {
    let address = free_address();
    let a = TestNode::start("dtn://a/", &peer("dtn://b/", Some(address), "")).await;
    let all = [("bulk", 1), ("normal", 2), ("bulk", 3), ("expedited", 4), ("normal", 5), ("expedited", 6)];
    let mut ids = Vec::new();
    for (priority, index) in all {
        ids.push(a.send("dtn://b/in", bytes(index, 100), &[("priority", priority)]).await.id);
    }
    let b = TestNode::start("dtn://b/", &(listen(address) + &peer("dtn://a/", None, ""))).await;
    b.until(|status| status.waiting.deliverable == 6).await;
    // So they came, and so they are delivered.
    let came: Vec<String> = b.node().bundles(6).into_iter().map(|bundle| bundle.id).collect();
    let expected = [4, 6, 2, 5, 1, 3];
    assert_eq!(came, expected.map(|index| ids[index as usize - 1].clone()));
    for index in expected {
        assert_eq!(number(&b.receive("in").await), index);
    }
}

/// RFC 9171 §5.5: a bundle whose lifetime is over is deleted, and that is reported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_bundles_are_deleted_and_reported() {
    let a = TestNode::start("dtn://a/", &peer("dtn://b/", None, "")).await;
    let sent = a.send("dtn://b/in", bytes(1, 9000), &[("lifetime", "50ms"), ("report", "deletion")]).await;
    let events = a.until_reported(&sent.id, |events| !events.is_empty()).await;
    assert_eq!((events[0].status.as_str(), events[0].reason.as_str()), ("deleted", "lifetime expired"));
    a.until_empty().await;
    assert_eq!((a.status().totals.given_up, a.files()), (1, 0));
}

/// RFC 9171 §4.2.3, §5.1: reception, forwarding, delivery and deletion are reported to who asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_kind_of_report_comes_back() {
    let b_address = free_address();
    let c =
        TestNode::start("dtn://c/", &(peer("dtn://b/", Some(b_address), "") + &route("*", "dtn://b/"))).await;
    let ends = peer("dtn://a/", None, "") + &peer("dtn://c/", Some(c.address()), "");
    let b = TestNode::start("dtn://b/", &(listen(b_address) + &ends)).await;
    let a = TestNode::start("dtn://a/", &(peer("dtn://b/", Some(b.address()), "") + &route("*", "dtn://b/")))
        .await;
    let all = ("report", "reception,forwarding,delivery,deletion");
    let sent = a.send("dtn://c/in", bytes(1, 5000), &[all]).await;
    assert_eq!(number(&c.receive("in").await), 1);
    // Received by all three, forwarded by two, delivered by one.
    let events = a.until_reported(&sent.id, |events| events.len() == 6).await;
    let count = |status: &str| events.iter().filter(|event| event.status == status).count();
    assert_eq!((count("received"), count("forwarded"), count("delivered")), (3, 2, 1), "{events:#?}");
    assert!(events.iter().all(|event| event.time_ms.is_some()));
    // One hop is too few.
    let sent = a.send("dtn://c/in", bytes(2, 5000), &[all, ("hop_limit", "1")]).await;
    let is_deletion = |event: &bentpipe_dtn::node::ReportedEvent| event.status == "deleted";
    let events = a.until_reported(&sent.id, |events| events.iter().any(is_deletion)).await;
    assert_eq!(events.iter().find(|event| is_deletion(event)).unwrap().reason, "hop limit exceeded");
    a.send("dtn://c/in", bytes(3, 5000), &[("hop_limit", "2")]).await;
    assert_eq!(number(&c.receive("in").await), 3);
    for node in [&a, &b, &c] {
        node.until_empty().await;
    }
}

/// RFC 9171 §5.8, §5.9: what nodes on the way have cut, twice, comes together at the destination.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fragments_come_together_at_the_destination() {
    let c = TestNode::start("dtn://c/", &peer("dtn://b/", None, "")).await;
    // The first hop cuts, the second cuts again what still is too long for it.
    let ends = peer("dtn://a/", None, "") + &peer("dtn://c/", Some(c.address()), "transfer_mru = \"10kB\"");
    let b = TestNode::start("dtn://b/", &ends).await;
    let way = peer("dtn://b/", Some(b.address()), "fragment_above = \"100kB\"") + &route("*", "dtn://b/");
    let a = TestNode::start("dtn://a/", &way).await;
    a.send("dtn://c/in", bytes(1, 1_000_000), &[]).await;
    assert_eq!(number(&c.receive("in").await), 1);
    assert_eq!(b.status().totals.received, 10);
    assert!(c.status().totals.received > 100);
    // What must stay whole waits.
    a.send("dtn://c/in", bytes(2, 200_000), &[("whole", "true")]).await;
    a.send("dtn://c/in", bytes(3, 200_000), &[]).await;
    assert_eq!(number(&c.receive("in").await), 3);
    a.until(|status| status.waiting.parked == 1 && status.store.bundles == 1).await;
    for node in [&b, &c] {
        node.until_empty().await;
        assert_eq!(node.files(), 0);
    }
}

fn contact(from: &str, to: &str, begin: SystemTime, len: Duration) -> String {
    let (start, end) = (date(begin), date(begin + len));
    format!(
        "[[contacts]]\nfrom = \"{from}\"\nto = \"{to}\"\nstart = {start}\nend = {end}\nrate = \"100Mbit/s\"\n"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_goes_before_its_contact_and_short_contacts_are_used() {
    let b = TestNode::start("dtn://b/", &peer("dtn://a/", None, "")).await;
    // Two contacts of a third of a second; another node's look once a second would miss them.
    let begin = SystemTime::now() + Duration::from_millis(700);
    let (len, pause) = (Duration::from_millis(350), Duration::from_millis(1500));
    let plan =
        contact("dtn://a/", "dtn://b/", begin, len) + &contact("dtn://a/", "dtn://b/", begin + pause, len);
    let a = TestNode::start("dtn://a/", &(peer("dtn://b/", Some(b.address()), "") + &plan)).await;
    a.send("dtn://b/in", bytes(1, 5000), &[]).await;
    while SystemTime::now() < begin {
        let received = b.status().totals.received;
        assert!(received == 0 || SystemTime::now() >= begin, "it came before the contact");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(number(&b.receive("in").await), 1);
    while SystemTime::now() < begin + len {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    a.send("dtn://b/in", bytes(2, 5000), &[]).await;
    assert_eq!(a.until(|status| status.waiting.parked == 1).await.peers[0].queued, 0);
    assert_eq!(number(&b.receive("in").await), 2);
    assert!(SystemTime::now() >= begin + pause, "it came between the contacts");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_default_routes_at_each_other_are_no_pendulum() {
    let b_address = free_address();
    let a =
        TestNode::start("dtn://a/", &(peer("dtn://b/", Some(b_address), "") + &route("*", "dtn://b/"))).await;
    let back = listen(b_address) + &peer("dtn://a/", Some(a.address()), "") + &route("*", "dtn://a/");
    let b = TestNode::start("dtn://b/", &back).await;
    a.send("dtn://nobody/in", bytes(1, 5000), &[]).await;
    b.until(|status| status.waiting.parked == 1).await;
    // What comes after it would meet it on its way.
    a.send("dtn://b/in", bytes(2, 5000), &[]).await;
    assert_eq!(number(&b.receive("in").await), 2);
    assert_eq!((a.status().totals.received, b.status().totals.received), (0, 2));
}

/// The sender tries again after ten seconds: the longest test here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bundles_refused_by_a_full_node_stay_with_the_sender_until_there_is_room() {
    let b = TestNode::start_with("dtn://b/", "quota = \"1MB\"", &peer("dtn://a/", None, "")).await;
    let a = TestNode::start("dtn://a/", &peer("dtn://b/", Some(b.address()), "")).await;
    a.send("dtn://b/in", bytes(1, 700_000), &[]).await;
    b.until(|status| status.waiting.deliverable == 1).await;
    a.send("dtn://b/in", bytes(2, 700_000), &[]).await;
    b.until(|status| status.totals.refused > 0).await;
    let full = a.until(|status| status.waiting.parked == 1 && status.store.bundles == 1).await;
    assert_eq!(full.totals.given_up, 0);
    for index in [1, 2] {
        assert_eq!(number(&b.receive("in").await), index);
    }
    a.until_empty().await;
    b.until_empty().await;
    assert_eq!((a.files(), b.files()), (0, 0));
}
