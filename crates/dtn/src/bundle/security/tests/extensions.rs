//! Operations of integrity on extension blocks.

use super::*;
use crate::bundle::blocks::Slot;
use crate::bundle::{Decoder, Piece};

/// Appendix A.3.3: the bundle age block.
const A3_AGE: &str = "85070200004319012c";

/// The bundle of Appendix A.3, with these blocks before its payload, as it is received.
fn received(blocks: &[&str]) -> Bundle {
    let bytes = hex(&format!("9f{PRIMARY_BLOCK}{}85010100005823{A2_TEXT}ff", blocks.concat()));
    let Ok((_, Piece::Head(bundle))) = Decoder::new().feed(&bytes) else { panic!("it is no bundle") };
    assert!(bytes.starts_with(&bundle.head()));
    *bundle
}

/// RFC 9173 §A.3: the operation on the bundle age block, over the bytes as they are received.
#[test]
fn example_3_protects_the_age_as_it_was_sent() {
    let key = example_key(Variant::Sha256);
    let bundle = received(&[A3_BIB, A3_BCB, A3_AGE]);
    let right = ExtensionCheck {
        kind: 7,
        number: 2,
        source: eid("ipn:3.0"),
        is_right: true,
        changes_on_the_way: true,
    };
    assert_eq!(bundle.check_extension_blocks(&key), std::slice::from_ref(&right));
    let wrong = [ExtensionCheck { is_right: false, ..right }];
    assert_eq!(bundle.check_extension_blocks(&IntegrityKey::new(&[7; 32]).unwrap()), wrong);
    let younger = received(&[A3_BIB, A3_BCB, &A3_AGE.replace("12c", "12b")]);
    assert_eq!(younger.check_extension_blocks(&key), wrong);
    let forged = received(&[&A3_BIB.replace("58203ed6", "58203ed7"), A3_BCB, A3_AGE]);
    assert_eq!(forged.check_extension_blocks(&key), wrong);
}

/// RFC 9171 §4.4.2: the node that passes a bundle on changes its age, and the bundle is delivered all the same.
#[test]
fn an_age_that_grows_on_the_way_is_no_fault() {
    let key = example_key(Variant::Sha256);
    let mut bundle = received(&[A3_BIB, A3_BCB, A3_AGE]);
    let (came, left) = (DtnTime::from_millis(5), DtnTime::from_millis(6));
    let next = bundle.for_next_hop(&eid("ipn:9.0"), left, came).unwrap();
    let [check_of_age] = &next.check_extension_blocks(&key)[..] else { panic!("one operation") };
    assert!(!check_of_age.is_right && check_of_age.changes_on_the_way);
    let mut text = hex(A2_TEXT);
    bundle.decrypt(&ConfidentialityKey::new(&hex(AES_KEY)).unwrap(), &mut text).unwrap();
    assert_eq!(check(&bundle, &key, true, &text), Ok(()));
}

/// A bundle with a block of this type, the content of which is protected, and what it says of that.
fn with_protected(kind: u64, content: &[u8], scope: u64) -> Bundle {
    let mut bundle = example(&[]);
    let slot = Slot { kind, number: 9, flags: 1, crc: CrcType::None, raw: None }.with_content(content);
    let security = Slot { kind: INTEGRITY_BLOCK, number: 4, flags: 0, crc: CrcType::None, raw: None };
    let protected = bundle.protected_block(&slot, content, scope, scope::Header::of(&security));
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &hex(HMAC_KEY));
    let tag = ring::hmac::sign(&key, &protected);
    let block = SecurityBlock {
        targets: vec![9],
        context: 1,
        source: eid("ipn:2.1"),
        parameters: vec![(1, Value::Uint(5)), (3, Value::Uint(scope))],
        results: vec![vec![(1, Value::Bytes(tag.as_ref().into()))]],
    };
    bundle.received.slots.extend([security.with_content(&block.encode()), slot]);
    bundle.age = Some(Duration::ZERO);
    let head = bundle.head();
    Bundle::decode_head(&head).unwrap()
}

/// RFC 9172 §5.1.2: an extension block that is not what its source protected is removed, the bundle stays.
#[test]
fn a_block_that_has_changed_is_removed() {
    let key = example_key(Variant::Sha256);
    // A type that nobody knows, and the name of a file, which is a field here.
    for (kind, content, other) in [(77, &b"abc"[..], &b"abd"[..]), (225, b"\x63a.b", b"\x63a.c")] {
        for scope in 0..=scope::ALL {
            let mut bundle = with_protected(kind, content, scope);
            let of_block = |bundle: &Bundle| match &bundle.check_extension_blocks(&key)[..] {
                [check] => (check.number, check.is_right, check.changes_on_the_way),
                checks => panic!("{checks:?}"),
            };
            assert_eq!(of_block(&bundle), (9, true, false), "{kind} {scope}");
            let head = bundle.head();
            let at = head.windows(content.len()).position(|window| window == content).unwrap();
            let mut changed = head;
            changed[at..at + other.len()].copy_from_slice(other);
            let mut changed = Bundle::decode_head(&changed).unwrap();
            assert_eq!(of_block(&changed), (9, false, false), "{kind} {scope}");
            changed.remove_extension_block(9);
            assert_eq!((changed.check_extension_blocks(&key), &changed.file_name), (vec![], &None));
            bundle.remove_extension_block(9);
            assert_eq!(bundle.head(), changed.head());
        }
    }
}
