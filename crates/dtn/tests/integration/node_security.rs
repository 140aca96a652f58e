//! Bundles that are protected from their source to their destination: a node as security source and as security
//! acceptor, seen from outside.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::node_common::fake::{Fake, bundle, decoded, encoded};
use crate::node_common::*;
use bentpipe_dtn::bundle::report::{AdminRecord, ReasonCode, Report, Status};
use bentpipe_dtn::bundle::security::{ConfidentialityKey, IV_LEN, IntegrityKey};
use bentpipe_dtn::bundle::{Bundle, fragment};
use bentpipe_dtn::config::SecuritySettings;
use bentpipe_dtn::node::Policies;
use bentpipe_dtn::{Eid, EidPattern};

/// So long nothing has to come for us to believe that nothing does.
const QUIET: Duration = Duration::from_millis(300);

const HMAC_KEY: [u8; 32] = [0xab; 32];
const AES_KEY: [u8; 16] = [0xcd; 16];

/// The keys of a test in files.
struct Keys(tempfile::TempDir);

impl Keys {
    fn new() -> Self {
        let keys = Self(tempfile::tempdir().unwrap());
        keys.write("hmac", &HMAC_KEY);
        keys.write("aes", &AES_KEY);
        keys
    }

    fn write(&self, name: &str, key: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        std::fs::write(&path, digits + "\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// `[[security]]` for bundles of this source, with the keys of these kinds.
    fn policy(&self, source: &str, kinds: &[&str]) -> String {
        let file = |kind: &str| self.path(if kind == "integrity" { "hmac" } else { "aes" });
        let keys: String = kinds.iter().map(|kind| format!("{kind} = {:?}\n", file(kind))).collect();
        format!("[[security]]\nsource = \"{source}\"\n{keys}")
    }
}

fn hmac_key() -> IntegrityKey {
    IntegrityKey::new(&HMAC_KEY).unwrap()
}

fn aes_key() -> ConfidentialityKey {
    ConfidentialityKey::new(&AES_KEY).unwrap()
}

fn eid(text: &str) -> Eid {
    text.parse().unwrap()
}

/// A node `dtn://a/` with a peer `dtn://b/` that connects.
async fn node(policies: &str) -> TestNode {
    TestNode::start("dtn://a/", &(peer("dtn://b/", None, "") + policies)).await
}

/// A bundle of `dtn://b/x` to `dtn://a/in`, all of which is to be reported.
fn sent(sequence: u64, payload: &[u8]) -> Bundle {
    let mut bundle = bundle("dtn://b/x", sequence, "dtn://a/in", payload.len() as u64);
    bundle.report_to = eid("dtn://b/reports");
    bundle.reports.deletion = true;
    bundle
}

fn with_integrity(mut bundle: Bundle, payload: &[u8]) -> Vec<u8> {
    bundle.add_integrity(&hmac_key(), &eid("dtn://b/"), Some(&mut &payload[..])).unwrap();
    encoded(&bundle, payload)
}

/// The bundle, and its payload encrypted.
fn encrypted(mut bundle: Bundle, payload: &[u8]) -> (Bundle, Vec<u8>) {
    let mut text = payload.to_vec();
    bundle.encrypt(&aes_key(), &eid("dtn://b/"), [1; IV_LEN], &mut text).unwrap();
    (bundle, text)
}

/// The reason of the deletion that is reported to `dtn://b/`.
async fn deletion(b: &mut Fake) -> ReasonCode {
    let (_, payload) = decoded(&b.receive().await.1);
    let AdminRecord::Reports(reports) = Report::parse(&payload).unwrap() else { panic!("{payload:?}") };
    assert_eq!(reports[0].status, Status::Deleted);
    reports[0].reason
}

/// All of it is gone and nothing of it was delivered.
async fn assert_deleted(a: &TestNode, count: u64) {
    assert!(a.receive_within("in", QUIET).await.is_none(), "it was delivered");
    a.until_empty().await;
    let totals = a.status().totals;
    assert_eq!((totals.security_failed, totals.given_up, totals.refused), (count, count, 0));
}

/// RFC 9172 §5.1.1: a payload that cannot be decrypted is not delivered, with or without a policy for other
/// bundles; the reason is that this node was not expected to decrypt it (§7.1).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_encrypted_payload_without_a_key_is_never_delivered() {
    let keys = Keys::new();
    let a = node(&keys.policy("dtn://c/*", &["confidentiality"])).await;
    let mut b = Fake::connect(a.address(), "dtn://b/").await;
    let (bundle, text) = encrypted(sent(1, &bytes(1, 500)), &bytes(1, 500));
    let wire = encoded(&bundle, &text);
    assert_eq!(b.transfer(&wire).await, Some(Ok(())));
    assert_eq!(deletion(&mut b).await, ReasonCode::UNEXPECTED_SECURITY_OPERATION);
    assert_deleted(&a, 1).await;
}

/// RFC 9172 §3.8: a block of confidentiality counts also if its flags ask that nodes that do not know it remove
/// it, and if nothing in it can be read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_malformed_block_of_confidentiality_does_not_pass_ciphertext_for_plain_text() {
    let a = node("").await;
    let mut b = Fake::connect(a.address(), "dtn://b/").await;
    for (sequence, content) in [(1, &[0x81, 1, 7][..]), (2, &[0x80]), (3, &[]), (4, &[0xff; 20])] {
        let payload = bytes(sequence, 100);
        let plain = sent(sequence, &payload);
        let (head, wire) = (plain.head(), encoded(&plain, &payload));
        let at = head.windows(4).rposition(|window| window == [0x86, 1, 1, 0]).unwrap();
        let block = [&[0x85, 12, 2, 0x10, 0, 0x40 + content.len() as u8][..], content].concat();
        let wire = [&wire[..at], &block, &wire[at..]].concat();
        assert_eq!(b.transfer(&wire).await, Some(Ok(())));
        assert_eq!(deletion(&mut b).await, ReasonCode::UNEXPECTED_SECURITY_OPERATION);
    }
    assert_deleted(&a, 4).await;
}

/// RFC 9172 §5.1.1: the plain text takes the place of the ciphertext, also after a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_encrypted_payload_is_delivered_as_plain_text() {
    let keys = Keys::new();
    let mut a = node(&keys.policy("dtn://b/*", &["confidentiality"])).await;
    let mut b = Fake::connect(a.address(), "dtn://b/").await;
    for (sequence, len) in [(1, 100), (2, 300_000)] {
        let payload = bytes(sequence, len);
        let (bundle, text) = encrypted(sent(sequence, &payload), &payload);
        assert_ne!(text, payload);
        assert_eq!(b.transfer(&encoded(&bundle, &text)).await, Some(Ok(())));
    }
    a.until(|status| status.waiting.deliverable == 2).await;
    a.stop().await;
    a.restart().await;
    for expected in [1, 2] {
        assert_eq!(number(&a.receive("in").await), expected);
    }
    a.until_empty().await;
}

/// RFC 9172 §5.1.1: a ciphertext that cannot be authenticated is discarded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_ciphertext_is_not_delivered() {
    let keys = Keys::new();
    let a = node(&keys.policy("dtn://b/*", &["confidentiality"])).await;
    let mut b = Fake::connect(a.address(), "dtn://b/").await;
    let (bundle, mut text) = encrypted(sent(1, &bytes(1, 5000)), &bytes(1, 5000));
    text[4999] ^= 0x80;
    assert_eq!(b.transfer(&encoded(&bundle, &text)).await, Some(Ok(())));
    assert_eq!(deletion(&mut b).await, ReasonCode::FAILED_SECURITY_OPERATION);
    assert_deleted(&a, 1).await;
}

/// RFC 9172 §5.1.2: a bundle of true integrity is delivered, one of false integrity deleted and reported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bundle_of_false_integrity_is_not_delivered() {
    let keys = Keys::new();
    let a = node(&keys.policy("dtn://b/*", &["integrity"])).await;
    let mut b = Fake::connect(a.address(), "dtn://b/").await;
    let payload = bytes(1, 200_000);
    assert_eq!(b.transfer(&with_integrity(sent(1, &payload), &payload)).await, Some(Ok(())));
    assert_eq!(number(&a.receive("in").await), 1);
    let (mut changed, _) = decoded(&with_integrity(sent(2, &payload), &payload));
    changed.lifetime += Duration::from_secs(1);
    let mut other = payload.clone();
    other[100_000] ^= 1;
    let (unchanged, _) = decoded(&with_integrity(sent(3, &payload), &payload));
    for wire in [encoded(&changed, &payload), encoded(&unchanged, &other)] {
        assert_eq!(b.transfer(&wire).await, Some(Ok(())));
        assert_eq!(deletion(&mut b).await, ReasonCode::FAILED_SECURITY_OPERATION);
    }
    assert_deleted(&a, 2).await;
    // Forged ones do not keep away the true one, which has the same ID.
    assert_eq!(b.transfer(&encoded(&unchanged, &payload)).await, Some(Ok(())));
    assert_eq!(number(&a.receive("in").await), 1);
}

/// RFC 9172 §5.1.1, §5.1.2: what the policy demands and is not there is a missing operation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bundle_that_has_to_be_protected_and_is_not_is_deleted() {
    let keys = Keys::new();
    let payload = bytes(1, 100);
    for kinds in [&["integrity"][..], &["confidentiality"], &["integrity", "confidentiality"]] {
        let a = node(&keys.policy("*", kinds)).await;
        let mut b = Fake::connect(a.address(), "dtn://b/").await;
        assert_eq!(b.transfer(&encoded(&sent(1, &payload), &payload)).await, Some(Ok(())));
        assert_eq!(b.receive().await.0, 0);
        // The report is protected as the policy demands of this node's bundles, too.
        assert_deleted(&a, 1).await;
        if kinds.len() == 2 {
            let (bundle, text) = encrypted(sent(2, &payload), &payload);
            assert_eq!(b.transfer(&encoded(&bundle, &text)).await, Some(Ok(())));
            b.receive().await;
            assert_deleted(&a, 2).await;
        }
    }
}

/// RFC 9172 §5.1.2: without a policy this node is no verifier, and a block of integrity is no obstacle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn integrity_without_a_key_is_not_checked() {
    let a = node("").await;
    let mut b = Fake::connect(a.address(), "dtn://b/").await;
    let payload = bytes(1, 100);
    let (mut changed, _) = decoded(&with_integrity(sent(1, &payload), &payload));
    changed.lifetime += Duration::from_secs(1);
    assert_eq!(b.transfer(&encoded(&changed, &payload)).await, Some(Ok(())));
    assert_eq!(number(&a.receive("in").await), 1);
}

/// RFC 9172 §5.1: an administrative record takes the same way as other payloads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_are_verified_too() {
    let keys = Keys::new();
    let a = node(&keys.policy("dtn://b/*", &["integrity"])).await;
    let mut b = Fake::connect(a.address(), "dtn://b/").await;
    let record = [0x82, 0x07, 0x81, 0x01];
    let mut admin = bundle("dtn://b/", 1, "dtn://a/", record.len() as u64);
    admin.is_admin = true;
    assert_eq!(b.transfer(&encoded(&admin, &record)).await, Some(Ok(())));
    admin.id.sequence = 2;
    assert_eq!(b.transfer(&with_integrity(admin, &record)).await, Some(Ok(())));
    let totals = a.until(|status| status.totals.unknown_records == 1).await.totals;
    assert_eq!(totals.security_failed, 1);
    a.until_empty().await;
}

/// RFC 9172 §5.2: operations are those of the whole bundle; it is verified when its fragments are joined.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fragments_are_verified_when_they_are_joined() {
    let keys = Keys::new();
    let a = node(&keys.policy("dtn://b/*", &["confidentiality"])).await;
    let mut b = Fake::connect(a.address(), "dtn://b/").await;
    let payload = bytes(1, 10_000);
    for (sequence, flipped) in [(1, 0x00), (2, 0x01)] {
        let (bundle, mut text) = encrypted(sent(sequence, &payload), &payload);
        text[7000] ^= flipped;
        for range in [4000..10_000, 0..4000] {
            let part = fragment::cut(&bundle, range.clone()).unwrap();
            let range = range.start as usize..range.end as usize;
            assert_eq!(b.transfer(&encoded(&part, &text[range])).await, Some(Ok(())));
        }
    }
    assert_eq!(number(&a.receive("in").await), 1);
    assert_eq!(deletion(&mut b).await, ReasonCode::FAILED_SECURITY_OPERATION);
    assert_deleted(&a, 1).await;
    // Nor do forged fragments keep away true ones.
    let (bundle, text) = encrypted(sent(2, &payload), &payload);
    for range in [0..4000, 4000..10_000] {
        let part = fragment::cut(&bundle, range.start as u64..range.end as u64).unwrap();
        assert_eq!(b.transfer(&encoded(&part, &text[range])).await, Some(Ok(())));
    }
    assert_eq!(number(&a.receive("in").await), 1);
}

/// RFC 9172 §5.1: two nodes with one policy exchange bundles of every kind of protection, whole, in fragments
/// and through a third that knows nothing of it, and what is on the wire is ciphertext.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_nodes_with_one_policy_exchange_protected_bundles() {
    let keys = Keys::new();
    for kinds in [&["integrity"][..], &["confidentiality"], &["integrity", "confidentiality"]] {
        let policy = keys.policy("dtn://*", kinds);
        let (c_address, r_address) = (free_address(), free_address());
        let of_c = peer("dtn://r/", None, "") + &route("*", "dtn://r/") + &policy;
        let c = TestNode::start("dtn://c/", &(listen(c_address) + &of_c)).await;
        let in_parts = peer("dtn://c/", Some(c_address), "fragment_above = \"50kB\"");
        let of_r = peer("dtn://a/", None, "") + &in_parts;
        let r = TestNode::start("dtn://r/", &(listen(r_address) + &of_r)).await;
        let of_a = peer("dtn://r/", Some(r_address), "") + &route("*", "dtn://r/") + &policy;
        let a = TestNode::start("dtn://a/", &of_a).await;
        let sent = a.send("dtn://c/in", bytes(1, 200), &[("report", "delivery")]).await;
        assert_eq!(number(&c.receive("in").await), 1);
        a.send("dtn://c/in", bytes(2, 180_000), &[("name", "a.bin")]).await;
        assert_eq!(number(&c.receive("in").await), 2);
        assert_eq!(c.status().totals.received, 5, "the second came in four fragments");
        // The report is a bundle of c that a has the policy for.
        a.until_reported(&sent.id, |events| events.iter().any(|event| event.status == "delivered")).await;
        for node in [&a, &r, &c] {
            node.until_empty().await;
            assert_eq!(node.status().totals.security_failed, 0);
        }
    }
}

/// RFC 9172 §3.6: what leaves a security source is under the blocks of its policy; nothing of the payload can
/// be read in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_leaves_a_source_is_protected() {
    let keys = Keys::new();
    let a = node(&keys.policy("dtn://a/*", &["integrity", "confidentiality"])).await;
    let mut b = Fake::connect(a.address(), "dtn://b/").await;
    let payload = bytes(1, 5000);
    a.send("dtn://b/in", payload.clone(), &[]).await;
    let (_, wire) = b.receive().await;
    assert!(!wire.windows(16).any(|window| window == &payload[..16]));
    let (mut bundle, mut text) = decoded(&wire);
    bundle.decrypt(&aes_key(), &mut text).unwrap();
    bundle.check_integrity(&hmac_key(), true, || &text[..]).unwrap();
    assert_eq!(text, payload);
    // Its own applications are no network.
    a.send("dtn://a/in", bytes(2, 100), &[]).await;
    assert_eq!(number(&a.receive("in").await), 2);
}

/// RFC 9172 §3.8: a payload that is too long to be encrypted is not sent in the clear.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_that_cannot_be_encrypted_is_refused() {
    let keys = Keys::new();
    let a = node(&keys.policy("dtn://a/*", &["confidentiality"])).await;
    let error = a.try_send("dtn://b/in", vec![0; (64 << 20) + 17], &[]).await.unwrap_err();
    assert!(error.to_string().contains("64 MiB"), "{error}");
    a.until_empty().await;
}

/// RFC 9173 §3.5: keys are replaced while the node runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_can_be_replaced() {
    let keys = Keys::new();
    let a = node(&keys.policy("dtn://b/*", &["integrity"])).await;
    let mut b = Fake::connect(a.address(), "dtn://b/").await;
    let payload = bytes(1, 100);
    let settings = |path: &Path| SecuritySettings {
        source: "dtn://b/*".parse().unwrap(),
        destination: EidPattern::any(),
        integrity: Some(path.to_owned()),
        confidentiality: None,
        key_encryption: None,
    };
    let other = keys.write("other", &[1; 32]);
    a.node().set_policies(Policies::load(&[settings(&other)]).unwrap());
    assert_eq!(b.transfer(&with_integrity(sent(1, &payload), &payload)).await, Some(Ok(())));
    assert_eq!(deletion(&mut b).await, ReasonCode::FAILED_SECURITY_OPERATION);
    a.node().set_policies(Policies::load(&[settings(&keys.path("hmac"))]).unwrap());
    assert_eq!(b.transfer(&with_integrity(sent(2, &payload), &payload)).await, Some(Ok(())));
    assert_eq!(number(&a.receive("in").await), 1);
}
