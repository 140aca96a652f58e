//! The interface for applications: clients that disconnect, wrong requests, many clients at once.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::node_common::*;
use bentpipe_dtn::app::{Accepted, ClientError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_lost_within_a_transfer_gets_it_again_at_once() {
    let a = TestNode::start("dtn://a/", "").await;
    a.send("dtn://a/in", bytes(1, 5_000_000), &[]).await;
    for _ in 0..3 {
        let mut delivery = a.client().next("in", LONG).await.unwrap().unwrap();
        assert!(delivery.part().await.unwrap().is_some());
        assert!(a.client().next("in", Duration::ZERO).await.unwrap().is_none(), "somebody has it");
        drop(delivery);
    }
    let begun = Instant::now();
    assert_eq!(number(&a.receive("in").await), 1);
    // A minute would be the time of who has all of it and has not acknowledged it yet.
    assert!(begun.elapsed() < Duration::from_secs(30));
    a.until_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sender_lost_within_a_transfer_has_sent_nothing() {
    let a = TestNode::start_with("dtn://a/", "quota = \"1MB\"", "").await;
    let mut stream = tokio::net::UnixStream::connect(a.client().socket()).await.unwrap();
    let head = "POST /bundles?destination=dtn://a/in HTTP/1.1\r\nhost: x\r\ncontent-length: 900000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&[7; 100_000]).await.unwrap();
    a.until(|status| status.store.payload_bytes == 900_000).await;
    // There is no room for another one meanwhile, and it is said so.
    let error = a.try_send("dtn://a/in", bytes(1, 200_000), &[]).await.unwrap_err();
    let ClientError::Refused { status: 507, reason: message, .. } = error else { panic!("{error}") };
    assert!(message.contains("raise quota"), "{message}");
    drop(stream);
    a.until_empty().await;
    a.send("dtn://a/in", bytes(1, 200_000), &[]).await;
    assert_eq!(number(&a.receive("in").await), 1);
}

/// What has left the store must leave the queue, or the node would offer a bundle that it has not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_application_that_goes_before_its_acknowledgement_is_on_the_disk_has_acknowledged() {
    let a = TestNode::start("dtn://a/", "").await;
    for number in 0..50 {
        a.send("dtn://a/in", bytes(number, 10), &[]).await;
        let delivery = a.client().next("in", LONG).await.unwrap().unwrap();
        let mut stream = tokio::net::UnixStream::connect(a.client().socket()).await.unwrap();
        let head = format!("POST /bundles/{}/acknowledge HTTP/1.1\r\nhost: x\r\n\r\n", delivery.key);
        stream.write_all(head.as_bytes()).await.unwrap();
        // The node has begun with it, now or a little later; the commit is under way.
        tokio::time::sleep(Duration::from_micros(20 * number)).await;
        drop(stream);
        let is_empty = async {
            while a.status().store.bundles > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        // If the connection ended before the node had read it, it is still to be acknowledged.
        if tokio::time::timeout(Duration::from_millis(200), is_empty).await.is_err() {
            a.client().acknowledge(delivery.key).await.unwrap();
        }
        a.until_empty().await;
    }
    a.until(|status| status.waiting.in_hand == 0).await;
    assert!(a.node().bundles(1).is_empty(), "nothing is offered any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_questions_get_answers_that_help() {
    let a = TestNode::start("dtn://a/", "").await;
    for (to, parameter, says) in [
        ("a", ("priority", "bulk"), "dtn://node/service"),
        ("dtn:none", ("priority", "bulk"), "cannot be a destination"),
        ("dtn://b/x", ("priority", "soon"), "expedited"),
        ("dtn://b/x", ("lifetime", "long"), "lifetime"),
        ("dtn://b/x", ("hop_limit", "256"), "hop_limit"),
        ("dtn://b/x", ("report", "arrival"), "reception, forwarding, delivery"),
        ("dtn://b/x", ("service", "a b"), "ASCII"),
        ("dtn://b/x", ("colour", "red"), "colour"),
    ] {
        let error = a.try_send(to, bytes(1, 10), &[parameter]).await.unwrap_err();
        let ClientError::Refused { status: 400, reason: message, .. } = error else {
            panic!("{to} {parameter:?}: {error}")
        };
        assert!(message.contains(says), "{to} {parameter:?}: {message}");
    }
    let error = a.client().acknowledge(77).await.unwrap_err();
    assert!(matches!(error, ClientError::Refused { status: 404, .. }), "{error}");
    a.until_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_receivers_get_each_bundle_once() {
    let a = TestNode::start("dtn://a/", "").await;
    let receiver = async |client: bentpipe_dtn::app::Client| {
        let mut numbers = Vec::new();
        while let Some(mut delivery) = client.next("in", Duration::from_secs(60)).await.unwrap() {
            let mut payload = Vec::new();
            while let Some(part) = delivery.part().await.unwrap() {
                payload.extend_from_slice(&part);
            }
            client.acknowledge(delivery.key).await.unwrap();
            numbers.push(number(&payload));
            if numbers.len() == 25 {
                break;
            }
        }
        numbers
    };
    let receivers: Vec<_> = (0..20).map(|_| tokio::spawn(receiver(a.client()))).collect();
    for index in 0..500 {
        a.send("dtn://a/in", bytes(index, 100), &[]).await;
    }
    let mut seen = BTreeSet::new();
    for receiver in receivers {
        for number in receiver.await.unwrap() {
            assert!(seen.insert(number), "{number} twice");
        }
    }
    assert_eq!(seen.len(), 500);
    a.until_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_bundles_in_one_request_arrive_in_one_reply() {
    let b = TestNode::start("dtn://b/", &peer("dtn://a/", None, "")).await;
    let a = TestNode::start("dtn://a/", &peer("dtn://b/", Some(b.address()), "")).await;
    let to_b = [("destination", "dtn://b/in".to_owned())];
    let payloads: Vec<Vec<u8>> = (0..300).map(|number| bytes(number, 8 + number as usize * 7)).collect();
    let payloads: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
    let named = [&to_b[..], &[("name", "part.bin".to_owned())]].concat();
    let sent = a.client().send_all(&named, &payloads).await.unwrap();
    let ids: Vec<String> = sent
        .into_iter()
        .map(|bundle| match bundle {
            Accepted::Sent(sent) => sent.id,
            Accepted::Refused { error } => panic!("{error}"),
        })
        .collect();
    b.until(|status| status.waiting.deliverable == 300).await;
    let (mut seen, client) = (Vec::new(), b.client());
    while seen.len() < 300 {
        let received = client.next_all("in", LONG, 128).await.unwrap();
        assert!(!received.is_empty() && received.len() <= 128);
        let keys: Vec<u64> = received.iter().map(|bundle| bundle.line.key).collect();
        for bundle in received {
            assert_eq!(bundle.payload.as_ref(), payloads[number(&bundle.payload) as usize]);
            assert_eq!(bundle.line.name.as_deref(), Some("part.bin"));
            seen.push(bundle.line.id);
        }
        let answer = client.acknowledge_all(&[&keys[..], &[u64::MAX]].concat()).await.unwrap();
        assert_eq!((answer.acknowledged, answer.unknown), (keys, vec![u64::MAX]));
    }
    assert_eq!(seen, ids);
    assert!(client.next_all("in", Duration::ZERO, 5).await.unwrap().is_empty());
    a.until_empty().await;
    b.until_empty().await;
    assert_eq!((b.status().totals.delivered, b.status().waiting.in_hand), (300, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_of_many_says_what_became_of_each() {
    let a = TestNode::start_with("dtn://a/", "quota = \"100kB\"", "").await;
    let query = [("destination", "dtn://a/in".to_owned())];
    let post = async |body: &str| {
        let url = format!("/bundles/batch?destination={}", query[0].1);
        raw(&a, "POST", &url, body).await
    };
    // The second has no destination that there can be, the third no room; the others are not their fault.
    let long = "x".repeat(150_000);
    let body = format!(
        "{{\"payload_bytes\":3}}\nabc{{\"payload_bytes\":2,\"destination\":\"dtn:none\"}}\nde\
         {{\"payload_bytes\":150000}}\n{long}{{\"payload_bytes\":0,\"name\":\"empty.txt\"}}\n"
    );
    let (status, answer) = post(&body).await;
    assert_eq!(status, 200, "{answer}");
    let outcomes: Vec<Accepted> = serde_json::from_str(&answer).unwrap();
    let refused = |index: usize| match &outcomes[index] {
        Accepted::Refused { error } => error.clone(),
        Accepted::Sent(sent) => panic!("{sent:?}"),
    };
    assert!(refused(1).contains("cannot be a destination") && refused(2).contains("quota"));
    assert!(matches!(&outcomes[0], Accepted::Sent(sent) if sent.payload_bytes == 3));
    let received = a.client().next_all("in", LONG, 10).await.unwrap();
    let names: Vec<_> = received.iter().map(|bundle| bundle.line.name.as_deref()).collect();
    assert_eq!((names, &received[0].payload[..]), (vec![None, Some("empty.txt")], &b"abc"[..]));
    for (body, why) in [
        (
            "{\"payload_bytes\":3}\nabc{\"payload_bytes\":3}\nab",
            "within a payload; of the 1 bundles before, 1",
        ),
        ("{\"payload_bytes\":3}\nabc{\"payload", "within a line"),
        ("hello\n", "no line of a bundle"),
        ("{\"payload_bytes\":1,\"nmae\":\"x\"}\nx", "unknown field"),
        (&"x".repeat(5000), "more than 4096"),
    ] {
        let (status, answer) = post(body).await;
        assert!(status == 400 && answer.contains(why), "{status} {answer}");
    }
    let (status, answer) = raw(&a, "POST", "/bundles/acknowledge", "7").await;
    assert!((400..500).contains(&status) && answer.contains("list of keys"), "{status} {answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_payload_ends_a_reply_and_what_was_not_read_is_delivered_again() {
    let a = TestNode::start("dtn://a/", "").await;
    for (number, len) in [(1, 100), (2, 3_000_000), (3, 100)] {
        a.send("dtn://a/in", bytes(number, len), &[]).await;
    }
    let client = a.client();
    let received = client.next_all("in", LONG, 10).await.unwrap();
    let numbers: Vec<u64> = received.iter().map(|bundle| number(&bundle.payload)).collect();
    assert_eq!(numbers, [1, 2]);
    client.acknowledge_all(&[received[0].line.key]).await.unwrap();
    // The third is still there for others, the second is held until its time is over.
    let third = client.next_all("in", LONG, 10).await.unwrap();
    assert_eq!((third.len(), number(&third[0].payload)), (1, 3));
    assert_eq!(a.status().waiting.in_hand, 2);
    a.node().release(bentpipe_dtn::store::Key(received[1].line.key));
    // A reader that closes in the middle has received nothing.
    let mut stream = tokio::net::UnixStream::connect(client.socket()).await.unwrap();
    let request = "GET /bundles/next?service=in&max=9 HTTP/1.1\r\nhost: localhost\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.read_exact(&mut [0; 1000]).await.unwrap();
    drop(stream);
    let again = client.next_all("in", LONG, 10).await.unwrap();
    assert_eq!(number(&again[0].payload), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_echo_service_answers_everybody_but_its_like() {
    let b_address = free_address();
    let c =
        TestNode::start("dtn://c/", &(peer("dtn://b/", Some(b_address), "") + &route("*", "dtn://b/"))).await;
    let ends = peer("ipn:1.0", None, "") + &peer("dtn://c/", Some(c.address()), "");
    let b = TestNode::start("dtn://b/", &(listen(b_address) + &ends)).await;
    let way = peer("dtn://b/", Some(b.address()), "") + &route("*", "dtn://b/");
    let a = TestNode::start("ipn:1.0", &way).await;
    let all = ("report", "reception,forwarding,delivery");
    let sent = a.send("dtn://c/echo", bytes(1, 3000), &[("service", "9"), all]).await;
    assert_eq!(number(&a.receive("9").await), 1);
    // Who has had it, and in which order.
    let events = a.until_reported(&sent.id, |events| events.len() == 6).await;
    let received: Vec<&str> =
        events.iter().filter(|event| event.status == "received").map(|event| event.node.as_str()).collect();
    assert_eq!(received, ["ipn:1.0", "dtn://b/", "dtn://c/"]);
    assert!(events.iter().any(|event| (&*event.status, &*event.node) == ("delivered", "dtn://c/")));
    c.send("ipn:1.2047", bytes(2, 10), &[("service", "asks")]).await;
    assert_eq!(number(&c.receive("asks").await), 2);
    // Two echo services would never come to an end; what is long is too much.
    c.send("dtn://b/echo", bytes(3, 10), &[("service", "echo")]).await;
    c.send("dtn://b/echo", bytes(5, 70_000), &[("service", "asks")]).await;
    assert_eq!(c.receive_within("asks", Duration::from_millis(300)).await, None);
    for node in [&a, &b, &c] {
        node.until_empty().await;
    }
    let quiet = TestNode::start_with("dtn://d/", "echo = \"\"", "").await;
    quiet.send("dtn://d/echo", bytes(1, 10), &[]).await;
    assert_eq!(number(&quiet.receive("echo").await), 1);
}

/// A request as somebody writes it by hand: the status, and the body of the reply.
async fn raw(node: &TestNode, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = tokio::net::UnixStream::connect(node.client().socket()).await.unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\
         content-type: application/json\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // A refusal may come before all of it has been read.
    let _ = stream.write_all(body.as_bytes()).await;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), body.to_owned())
}
