//! The interface for applications: clients that disconnect, wrong requests, many clients at once.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::node_common::*;
use bentpipe_dtn::app::ClientError;
use tokio::io::AsyncWriteExt;

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
