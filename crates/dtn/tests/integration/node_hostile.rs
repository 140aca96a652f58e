//! Peers that err, or mean harm, at a real node: what they send is refused or ends their session, and nothing
//! of it stays.

use crate::node_common::fake::{Fake, bundle, encoded};
use crate::node_common::*;
use bentpipe_dtn::bundle::Fragment;
use bentpipe_dtn::convergence::Refusal;

async fn node() -> TestNode {
    TestNode::start_with("dtn://a/", "quota = \"1MB\"", &peer("dtn://b/", None, "")).await
}

/// RFC 9174 §5.2.4: what is no bundle is refused as not acceptable, what does not fit for lack of resources,
/// and the session continues.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unacceptable_transfers_are_refused_and_the_session_continues() {
    let a = node().await;
    let mut b = Fake::connect(a.address(), "dtn://b/").await;
    let payload = bytes(1, 3000);
    let good = bundle("dtn://b/x", 1, "dtn://a/in", 3000);
    let wire = encoded(&good, &payload);
    let mut flipped = wire.clone();
    flipped[wire.len() - 1000] ^= 1;
    let huge = bundle("dtn://b/x", 2, "dtn://a/in", 1 << 40);
    for (what, bytes, why) in [
        ("a CRC that is wrong", flipped, Refusal::NotAcceptable),
        ("half of a bundle", wire[..wire.len() / 2].to_vec(), Refusal::NotAcceptable),
        ("more than a bundle", [&wire[..], b"more"].concat(), Refusal::NotAcceptable),
        ("no CBOR", b"hello, world".to_vec(), Refusal::NotAcceptable),
        ("nothing", Vec::new(), Refusal::NotAcceptable),
        ("a terabyte", huge.head(), Refusal::NoResources),
    ] {
        assert_eq!(b.transfer(&bytes).await, Some(Err(why)), "{what}");
        a.until_empty().await;
    }
    assert_eq!(b.transfer(&wire).await, Some(Ok(())));
    assert_eq!(b.transfer(&wire).await, Some(Err(Refusal::Completed)), "the same again");
    assert_eq!(number(&a.receive("in").await), 1);
    assert_eq!(b.transfer(&wire).await, Some(Err(Refusal::Completed)), "the same after its delivery");
    a.until_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_close_within_a_transfer_leaves_nothing() {
    let a = node().await;
    let wire = encoded(&bundle("dtn://b/x", 1, "dtn://a/in", 500_000), &bytes(1, 500_000));
    for _ in 0..3 {
        let mut b = Fake::connect(a.address(), "dtn://b/").await;
        b.begin(&wire[..300_000], false).await;
        a.until(|status| status.store.payload_bytes == 500_000).await;
        drop(b);
        a.until_empty().await;
    }
    let mut b = Fake::connect(a.address(), "dtn://b/").await;
    assert_eq!(b.transfer(&wire).await, Some(Ok(())));
    assert_eq!(number(&a.receive("in").await), 1);
}

/// RFC 9171 §5.9: fragments that contradict each other do not mix.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fragments_that_contradict_each_other_do_not_mix() {
    let a = node().await;
    let mut b = Fake::connect(a.address(), "dtn://b/").await;
    let payload = bytes(1, 1000);
    let whole = bundle("dtn://b/x", 1, "dtn://a/in", 1000);
    let part = |offset: u64, len: u64, total: u64| {
        let mut part = whole.clone();
        part.payload_len = len;
        part.id.fragment = Some(Fragment { offset, len, total });
        encoded(&part, &payload[offset as usize..(offset + len) as usize])
    };
    // A beginning of what is said to be longer, then the whole.
    for piece in [part(0, 600, 2000), part(0, 400, 1000), part(300, 300, 1000), part(500, 500, 1000)] {
        assert_eq!(b.transfer(&piece).await, Some(Ok(())));
    }
    assert_eq!(a.receive("in").await, payload);
    // Of what was put together nothing is wanted any more, however it is cut.
    assert_eq!(b.transfer(&part(100, 500, 1000)).await, Some(Err(Refusal::Completed)));
    a.until_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_takes_next_to_nothing_gets_no_million_fragments() {
    let a = TestNode::start("dtn://a/", &peer("dtn://b/", None, "")).await;
    a.send("dtn://b/in", bytes(1, 1_000_000), &[]).await;
    let mut b = Fake::connect_with(a.address(), "dtn://b/", 180).await;
    let status = a.until(|status| status.waiting.parked == 1).await;
    assert_eq!(status.store.bundles, 1);
    assert!(b.is_alive().await);
    // Another that takes enough gets it.
    let mut b = Fake::connect(a.address(), "dtn://b/").await;
    let expected = bytes(2, 10);
    a.send("dtn://b/in", expected.clone(), &[]).await;
    let (_, got) = b.receive().await;
    assert!(got.windows(10).any(|window| window == expected));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_are_turned_away() {
    let a = node().await;
    let mut stranger = Fake::connect(a.address(), "dtn://stranger/").await;
    while stranger.hear().await.is_some() {}
    assert!(!stranger.welcomed);
    assert_eq!(a.status().peers[0].sessions, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_bytes_are_refused_and_leave_nothing() {
    let seed = std::env::var("SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        now.as_nanos() as u64
    });
    println!("SEED={seed}");
    let a = node().await;
    let mut b = Fake::connect(a.address(), "dtn://b/").await;
    let wire = encoded(&bundle("dtn://b/x", 1, "dtn://a/in", 200), &bytes(1, 200));
    for round in 0..300_u64 {
        let random = bytes(seed.wrapping_add(round), 600);
        let garbage = match round % 3 {
            0 => random[..usize::from(random[9]) * 2].to_vec(),
            // A head that is nearly right. Its CRCs are not.
            1 => {
                let mut mutated = wire.clone();
                let at = usize::from(random[10]) % mutated.len();
                mutated[at] ^= random[11] | 1;
                mutated
            }
            _ => wire[..usize::from(random[12]) % wire.len()].to_vec(),
        };
        let answer = b.transfer(&garbage).await;
        assert!(matches!(answer, Some(Err(_))), "round {round}: {answer:?} to {garbage:02x?}");
    }
    assert_eq!(b.transfer(&wire).await, Some(Ok(())));
    assert_eq!(number(&a.receive("in").await), 1);
    a.until_empty().await;
}
