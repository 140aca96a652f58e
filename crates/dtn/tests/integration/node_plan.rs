//! Contact plans, what is booked of them, and configurations that are read again.

use std::time::{Duration, SystemTime};

use bentpipe_dtn::store::Key;

use crate::node_common::*;

/// A contact from `dtn://a/` to `dtn://b/` of two hours, one of which is over, repeated twice a day. At 100 bytes
/// per second, 360 kB are left of it.
fn contact(bytes_per_second: u64) -> String {
    let ago = Duration::from_secs(3600);
    let start = SystemTime::now() - ago;
    let (start, end) = (date(start), date(start + 2 * ago));
    format!(
        "[[contacts]]\nfrom = \"dtn://a/\"\nto = \"dtn://b/\"\nstart = {start}\nend = {end}\nrate = \"{}bit/s\"\n\
         every = \"12h\"\n",
        bytes_per_second * 8
    )
}

/// A node that knows another, which does not run, and sends it bundles of 50 kB.
async fn with_backlog(contact: &str, count: u64) -> TestNode {
    let rest = peer("dtn://b/", None, "") + contact;
    let a = TestNode::start("dtn://a/", &rest).await;
    for index in 0..count {
        a.send("dtn://b/in", bytes(index, 50_000), &[]).await;
    }
    a
}

fn waiting(node: &TestNode) -> (usize, usize) {
    let waiting = node.status().waiting;
    (waiting.queued, waiting.parked)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_waits_for_as_many_contacts_as_it_needs() {
    let a = with_backlog(&contact(100), 10).await;
    // Six of some 51,500 bytes fit into 360,000.
    assert_eq!(waiting(&a), (6, 4));
    let first = a.node().bundles(1).remove(0).key;
    assert!(a.node().delete(Key(first)).unwrap());
    a.send("dtn://b/in", bytes(11, 50_000), &[]).await;
    assert_eq!(waiting(&a), (6, 4), "the next has the place of the one that is gone");
    a.send("dtn://b/in", bytes(12, 50_000), &[("priority", "expedited")]).await;
    a.until(|status| (status.waiting.queued, status.waiting.parked) == (6, 5)).await;
    let states = a.node().bundles(20);
    assert_eq!((states[9].state, states[10].state), ("waiting for a route", "queued"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bundle_longer_than_any_contact_goes_in_parts() {
    let b = TestNode::start("dtn://b/", &peer("dtn://a/", None, "")).await;
    let to_b = peer("dtn://b/", Some(b.address()), "");
    // 3.6 MB are left of this contact, and the next ones carry 7.2 MB.
    let a = TestNode::start("dtn://a/", &(to_b.clone() + &contact(1000))).await;
    a.send("dtn://b/in", bytes(1, 8_000_000), &[]).await;
    a.send("dtn://b/in", bytes(2, 8_000_000), &[("whole", "true")]).await;
    b.until(|status| status.waiting.fragments == 1).await;
    let rest = a.until(|status| (status.store.bundles, status.waiting.parked) == (2, 2)).await;
    assert!((3_000_000..3_600_000).contains(&rest.totals.sent_bytes), "{rest:?}");
    a.write_config("", &(listen("127.0.0.1:0".parse().unwrap()) + &to_b));
    a.client().reload().await.unwrap();
    let mut numbers = [number(&b.receive("in").await), number(&b.receive("in").await)];
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2]);
    a.until_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_faster_contact_takes_all_of_a_backlog_after_a_reload() {
    let a = with_backlog(&contact(100), 10).await;
    let listening = listen("127.0.0.1:0".parse().unwrap());
    let rest = |contact: &str| format!("{listening}{}{contact}", peer("dtn://b/", None, ""));
    a.write_config("", &rest(&contact(1000)));
    let report = a.client().reload().await.unwrap();
    assert_eq!((report.changed, report.needs_restart), (vec!["contacts".to_owned()], vec![]));
    assert_eq!(waiting(&a), (10, 0));
    // Without a contact the peer can always be reached; with one that is over, never.
    a.write_config("", &rest(""));
    a.client().reload().await.unwrap();
    assert!(a.status().peers[0].open);
    let plan = "[[contacts]]\nfrom = \"dtn://a/\"\nto = \"dtn://b/\"\nrate = \"1Gbit/s\"\nstart = 2020-01-01T00:00:00Z\n\
                end = 2020-01-02T00:00:00Z\n";
    a.write_config("", &rest(plan));
    a.client().reload().await.unwrap();
    assert_eq!(waiting(&a), (0, 10));
    assert!(!a.status().peers[0].open);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_keeps_sessions_and_loses_no_bundle() {
    let b = TestNode::start("dtn://b/", &peer("dtn://a/", None, "")).await;
    let peers = peer("dtn://b/", Some(b.address()), "");
    let a = TestNode::start("dtn://a/", &peers).await;
    a.until(connected).await;
    // There is no route to it.
    a.send("dtn://far/in", bytes(1, 5000), &[]).await;
    a.until(|status| status.waiting.parked == 1).await;
    let sessions = a.status().totals.sessions;
    for index in 2..100 {
        a.send("dtn://b/in", bytes(index, 20_000), &[]).await;
        if index % 10 == 0 {
            let listening = listen("127.0.0.1:0".parse().unwrap());
            a.write_config("quota = \"5GB\"", &(listening + &peers + &route("dtn://far/*", "dtn://b/")));
            let report = a.client().reload().await.unwrap();
            assert_eq!(report.needs_restart, ["node.quota"]);
        }
    }
    let mut numbers = Vec::new();
    for _ in 2..100 {
        numbers.push(number(&b.receive("in").await));
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (2..100).collect::<Vec<_>>());
    b.until(|status| status.waiting.parked == 1).await;
    a.until_empty().await;
    let status = a.status();
    assert_eq!((status.totals.sessions, status.totals.broken_off), (sessions, 0));
    assert_eq!(status.store.quota_bytes, 10_000_000_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_configuration_with_errors_is_refused_as_a_whole() {
    let a = with_backlog(&contact(100), 10).await;
    let rest = |more: &str| listen("127.0.0.1:0".parse().unwrap()) + &peer("dtn://b/", None, "") + more;
    let with_key = |file: &str| format!("[[security]]\nsource = \"dtn://b/*\"\nintegrity = \"{file}\"\n");
    let new_peer = peer("dtn://c/", None, "") + &route("*", "dtn://c/");
    for (of_node, more, says) in [
        ("", contact(1000) + "colour = \"red\"\n", "node.toml:"),
        ("", contact(1000) + &with_key("lacking.hmac"), "cannot read the key"),
        ("", contact(1000) + &new_peer, "the route to * goes via dtn://c/, which is a new peer"),
        ("contact_plan = \"lacking.ionrc\"", contact(1000), "lacking.ionrc"),
    ] {
        a.write_config(of_node, &rest(&more));
        let error = a.client().reload().await.unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
        assert_eq!(waiting(&a), (6, 4));
    }
    std::fs::write(a.folder().join("plan.ionrc"), "# plan\na contact +0 +x 1 2 9\n").unwrap();
    a.write_config("contact_plan = \"plan.ionrc\"", &rest(&contact(1000)));
    let error = a.client().reload().await.unwrap_err().to_string();
    assert!(error.contains("plan.ionrc:2: \"+x\" is not a time"), "{error}");
    assert_eq!(waiting(&a), (6, 4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_of_ion_opens_and_closes_contacts() {
    let address = free_address();
    let plan = |line: &str| format!("a range +0 +86400 1 2 1\n{line}\n");
    let rest = peer("ipn:2.0", Some(address), "");
    let a = TestNode::start_with("ipn:1.0", "", &rest).await;
    let file = a.folder().join("plan.ionrc");
    let reload = async |line: &str| {
        std::fs::write(&file, plan(line)).unwrap();
        a.write_config("contact_plan = \"plan.ionrc\"", &(listen("127.0.0.1:0".parse().unwrap()) + &rest));
        a.client().reload().await.unwrap()
    };
    let report = reload("a contact +3600 +7200 1 2 1000000").await;
    assert_eq!(report.changed, ["node.contact_plan", "contacts"]);
    a.send("ipn:2.7", bytes(1, 5000), &[]).await;
    assert_eq!(waiting(&a), (0, 1));
    let b = TestNode::start("ipn:2.0", &(listen(address) + &peer("ipn:1.0", None, ""))).await;
    reload("a contact +0 +7200 1 2 1000000").await;
    assert_eq!(number(&b.receive("7").await), 1);
    a.until_empty().await;
}
