//! The examples of RFC 9173 Appendix A, what is added by this node, and what others may send.

use std::time::Duration;

use proptest::prelude::*;

use super::super::cbor::{Item, Reader};
use super::super::{CrcType, fragment};
use super::block::Value;
use super::integrity::Variant;
use super::*;
use crate::{DtnTime, Eid};

mod extensions;

const TEXT: &[u8] = b"Ready to generate a 32-byte payload";
/// Appendix A: the keys.
const HMAC_KEY: &str = "1a2b1a2b1a2b1a2b1a2b1a2b1a2b1a2b";
const AES_KEY: &str = "71776572747975696f70617364666768";
/// The former, wrapped by AES-128 with the key 00 01 … 0f: `openssl enc -id-aes128-wrap -e -iv a6a6a6a6a6a6a6a6`.
const WRAPPED_HMAC_KEY: &str = "28fc68a6fc8d58666d8e225ab9291e2464088a1df5423dca";
/// Appendix A.1–A.4: the primary block, and blocks of the resulting bundles.
const PRIMARY_BLOCK: &str = "88070000820282010282028202018202820201820018281a000f4240";
const A1_BIB: &str = "850b0200005856810101018202820201828201078203008181820158403bdc69b3a34a2b5d3a8554368bd1e808\
    f606219d2a10a846eae3886ae4ecc83c4ee550fdfb1cc636b904e2f1a73e303dcd4b6ccece003e95e8164dcc89a156e1";
const A2_BCB: &str = "850c02010058508101020182028202018482014c5477656c76653132313231328202018203581869c411276f\
    ecddc4780df42c8a2af89296fabf34d7fae7008204008181820150efa4b5ac0108e3816c5606479801bc04";
const A2_TEXT: &str = "3a09c1e63fe23a7f66a59c7303837241e070b02619fc59c5214a22f08cd70795e73e9a";
const A3_BIB: &str = "850b030000585c8200020101820282030082820105820300828182015820cac6ce8e4c5dae57988b757e49a6\
    dd1431dc04763541b2845098265bc817241b81820158203ed614c0d97f49b3633627779aa18a338d212bf3c92b97759d9739cd50725596";
const A3_BCB: &str = "850c04010058348101020182028202018382014c5477656c7665313231323132820201820400818182\
    0150efa4b5ac0108e3816c5606479801bc04";
const A4_BIB: &str = "850b0300005846438ed6208eb1c1ffb94d952175167df0902902064a2983910c4fb2340790bf420a7d1921d5\
    bf7c4721e02ab87a93ab1e0b75cf62e4948727c8b5dae46ed2af05439b88029191";
const A4_BCB: &str = "850c0201005849820301020182028202018382014c5477656c7665313231323132820203820407828182015022\
    0ffc45c8a901999ecc60991dd78b2981820150d2c51cb2481792dae8b21d848cede99b";
const A4_KEY: &str = "71776572747975696f7061736466676871776572747975696f70617364666768";
const A4_TEXT: &str = "90eab6457593379298a8724e16e61f837488e127212b59ac91f8a86287b7d07630a122";
/// The BIB of A.4 before it was encrypted.
const A4_PLAIN_BIB: &str = "81010101820282020182820106820307818182015830f75fe4c37f76f046165855bd5ff72fbfd4e3a64b\
    4695c40e2b787da005ae819f0a2e30a2e8b325527de8aefb52e73d71";

fn hex(digits: &str) -> Vec<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap() as u8;
    digits.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

fn eid(text: &str) -> Eid {
    text.parse().unwrap()
}

/// The bundle of Appendix A.1 with these blocks.
fn example(blocks: &[&str]) -> Bundle {
    let lifetime = Duration::from_secs(1000);
    let mut bundle = Bundle::new(eid("ipn:2.1"), DtnTime::UNKNOWN, 40, eid("ipn:1.2"), lifetime);
    bundle.report_to = eid("ipn:2.1");
    (bundle.primary_crc, bundle.payload_crc) = (CrcType::None, CrcType::None);
    bundle.payload_len = TEXT.len() as u64;
    assert_eq!(bundle.own_primary(), hex(PRIMARY_BLOCK));
    for block in blocks {
        let raw = hex(block);
        let mut reader = Reader::new(&raw);
        assert_eq!(reader.item(), Ok(Item::Array(Some(5))));
        let [kind, number, flags, _crc] = [(); 4].map(|()| reader.uint().unwrap());
        bundle.received.slots.push(Slot { kind, number, flags, crc: CrcType::None, raw: Some(raw.into()) });
    }
    bundle
}

fn example_key(variant: Variant) -> IntegrityKey {
    IntegrityKey::with(variant, &hex(HMAC_KEY))
}

fn check(
    bundle: &Bundle,
    key: &IntegrityKey,
    is_authenticated: bool,
    text: &[u8],
) -> Result<(), SecurityFault> {
    match bundle.check_integrity(key, is_authenticated, || text) {
        Ok(()) => Ok(()),
        Err(CheckError::Fault(fault)) => Err(fault),
        Err(CheckError::Read(error)) => panic!("{error}"),
    }
}

const MISSING: Result<(), SecurityFault> = Err(SecurityFault::Missing("integrity"));
const FALSE: Result<(), SecurityFault> = Err(SecurityFault::Failed("integrity"));

/// RFC 9172 §3.6: what is read is written in the same way.
#[test]
fn security_blocks_of_the_standard_read_back() {
    for block in [A1_BIB, A2_BCB, A3_BIB, A3_BCB, A4_BCB] {
        let bundle = example(&[block]);
        let content = bundle.received.slots[0].raw_content().unwrap();
        assert_eq!(SecurityBlock::decode(content).unwrap().encode(), content);
    }
}

/// RFC 9173 §A.1: HMAC 512/512 of the payload alone; the primary block is not in its scope.
#[test]
fn example_1_simple_integrity() {
    let bundle = example(&[A1_BIB]);
    let key = example_key(Variant::Sha512);
    assert_eq!(check(&bundle, &key, false, TEXT), MISSING);
    let mut changed = TEXT.to_vec();
    changed[3] ^= 1;
    assert_eq!(check(&bundle, &key, false, &changed), FALSE);
    assert_eq!(check(&bundle, &IntegrityKey::new(&[7; 64]).unwrap(), false, TEXT), FALSE);
}

/// RFC 9173 §3.7, §3.8: what this node makes of the examples' input is what the examples have.
#[test]
fn results_are_those_of_the_examples() {
    let results = |bib, variant| {
        let bundle = example(&[bib]);
        let header = scope::Header::of(&bundle.received.slots[0]);
        let (key, source) = (example_key(variant), eid("ipn:3.0"));
        let made = bundle.integrity_block(&key, 0, header, &source, Some(&mut &TEXT[..])).unwrap();
        (SecurityBlock::decode(bundle.received.slots[0].raw_content().unwrap()).unwrap(), made)
    };
    let (example_1, made) = results(A1_BIB, Variant::Sha512);
    assert_eq!(made.results[1], example_1.results[0]);
    assert_eq!(made.parameters, example_1.parameters);
    let (example_3, made) = results(A3_BIB, Variant::Sha256);
    assert_eq!((&made.results[0], &made.source), (&example_3.results[0], &example_3.source));
}

/// RFC 9173 §A.2: the key comes with the bundle, wrapped by one that the destination has.
#[test]
fn example_2_has_a_wrapped_key() {
    // Another key than that of the bundle.
    let key = ConfidentialityKey::new(&[7; 32]).unwrap();
    let wrapping = |digits: &str| KeyEncryptionKey::new(&hex(digits));
    let decrypt = |wrapping: Option<KeyEncryptionKey>| {
        let (mut bundle, mut text) = (example(&[A2_BCB]), hex(A2_TEXT));
        assert!(bundle.is_encrypted());
        bundle.decrypt(&key.clone().unwrapping_by(wrapping), &mut text).map(|()| text)
    };
    assert_eq!(decrypt(wrapping("6162636465666768696a6b6c6d6e6f70")).unwrap(), TEXT);
    let fault = decrypt(None).unwrap_err();
    assert_eq!((fault, fault.reason()), (SecurityFault::Unknown(NO_WRAPPING_KEY), ReasonCode(13)));
    let fault = decrypt(wrapping("6162636465666768696a6b6c6d6e6f71")).unwrap_err();
    assert_eq!(fault, SecurityFault::Unknown(NOT_UNWRAPPED));
}

/// RFC 3394 §4.1, §4.3, §4.6: the wrapped keys of the standard.
#[test]
fn keys_are_unwrapped_as_the_standard_wraps_them() {
    let key = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    for (wrapping, wrapped, plain) in [
        (16, "1fa68b0a8112b447aef34bd8fb5a7b829d3e862371d2cfe5", "00112233445566778899aabbccddeeff"),
        (24, "96778b25ae6ca435f92b5b97c050aed2468ab8a17ad84e5d", "00112233445566778899aabbccddeeff"),
        (
            32,
            "28c9f404c4b810f4cbccb35cfb87f8263f5786e2d80ed326cbc7f0e71a99f43bfb988b9b7a02dd21",
            "00112233445566778899aabbccddeeff000102030405060708090a0b0c0d0e0f",
        ),
    ] {
        let by = KeyEncryptionKey::new(&hex(key)[..wrapping]).unwrap();
        assert_eq!(by.unwrap_key(&hex(wrapped)), Some(hex(plain)));
        let mut changed = hex(wrapped);
        changed[9] ^= 1;
        assert_eq!(by.unwrap_key(&changed), None);
        assert_eq!(by.unwrap_key(&changed[..7]), None);
        assert_eq!(by.unwrap_key(&[0; 200]), None);
    }
    assert!(KeyEncryptionKey::new(&[0; 17]).is_none());
}

/// A block of integrity whose key comes with it.
#[test]
fn a_wrapped_key_of_integrity_is_used() {
    let mut block =
        SecurityBlock::decode(example(&[A1_BIB]).received.slots[0].raw_content().unwrap()).unwrap();
    // HMAC_KEY, wrapped by the 128-bit key of RFC 3394 §4.1.
    let wrapped = WRAPPED_HMAC_KEY;
    block.parameters.insert(1, (2, Value::Bytes(hex(wrapped).into())));
    let mut bundle = example(&[A1_BIB]);
    bundle.received.slots[0] = bundle.received.slots[0].clone().with_content(&block.encode());
    let own = IntegrityKey::new(&[7; 64]).unwrap();
    let by = KeyEncryptionKey::new(&hex("000102030405060708090a0b0c0d0e0f"));
    // The example does not protect the primary block, and what it protects is right.
    let missing = check(&bundle, &own.clone().unwrapping_by(by.clone()), false, TEXT);
    assert_eq!(missing, Err(SecurityFault::Missing("integrity")));
    assert_eq!(
        check(&bundle, &own.clone().unwrapping_by(by), false, b"Ready to generate a 33-byte payload"),
        FALSE
    );
    assert_eq!(check(&bundle, &own, false, TEXT), Err(SecurityFault::Unknown(NO_WRAPPING_KEY)));
}

/// RFC 9173 §A.3: integrity of the primary block, confidentiality of the payload, each by another source.
#[test]
fn example_3_multiple_sources() {
    let mut bundle = example(&[A3_BIB, A3_BCB]);
    let mut text = hex(A2_TEXT);
    bundle.decrypt(&ConfidentialityKey::new(&hex(AES_KEY)).unwrap(), &mut text).unwrap();
    assert_eq!((&text[..], bundle.payload_len), (TEXT, TEXT.len() as u64));
    assert!(!bundle.is_encrypted());
    let key = example_key(Variant::Sha256);
    assert_eq!(check(&bundle, &key, true, TEXT), Ok(()));
    assert_eq!(check(&bundle, &key, false, TEXT), MISSING, "nothing speaks for the payload");
    bundle.lifetime += Duration::from_millis(1);
    assert_eq!(check(&bundle, &key, true, TEXT), FALSE);
}

/// RFC 9173 §3.7, erratum 9192: the primary block as it is, with the result that the erratum has.
#[test]
fn example_3_by_its_erratum() {
    let published = "cac6ce8e4c5dae57988b757e49a6dd1431dc04763541b2845098265bc817241b";
    let corrected = "8e059b8e71f7218264185a666bf3e453076f2b883f4dce9b3cdb6464ed0dcf0f";
    let bundle = example(&[&A3_BIB.replace(published, corrected)]);
    assert_eq!(check(&bundle, &example_key(Variant::Sha256), true, TEXT), Ok(()));
}

/// RFC 9173 §A.4: A256GCM of the payload and of its block of integrity, HMAC 384/384, full scope.
#[test]
fn example_4_full_scope() {
    let encrypted = example(&[A4_BIB, A4_BCB]);
    let integrity = example_key(Variant::Sha384);
    let mut bundle = encrypted.clone();
    let mut text = hex(A4_TEXT);
    let unread = Err(SecurityFault::Unknown("a block of integrity is encrypted and could not be decrypted"));
    assert_eq!(check(&bundle, &integrity, false, &text), unread);
    bundle.decrypt(&ConfidentialityKey::new(&hex(A4_KEY)).unwrap(), &mut text).unwrap();
    assert_eq!(text, TEXT);
    assert_eq!(bundle.received.slots[0].raw_content().unwrap(), hex(A4_PLAIN_BIB));
    assert_eq!(check(&bundle, &integrity, false, &text), Ok(()));
    // With a false tag the block of integrity is gone.
    let mut bundle = example(&[&A4_BIB.replace("846438e", "846438f"), A4_BCB]);
    let mut text = hex(A4_TEXT);
    bundle.decrypt(&ConfidentialityKey::new(&hex(A4_KEY)).unwrap(), &mut text).unwrap();
    assert_eq!(check(&bundle, &integrity, true, &text), MISSING);
}

/// RFC 9173 §4.4: without a result the tag is the end of the ciphertext.
#[test]
fn a_tag_may_be_a_part_of_the_ciphertext() {
    let tag = "efa4b5ac0108e3816c5606479801bc04";
    let without = A3_BCB.replace(&format!("8181820150{tag}"), "8180").replace("5834", "5821");
    let mut bundle = example(&[&without]);
    let mut text = hex(&format!("{A2_TEXT}{tag}"));
    bundle.payload_len = text.len() as u64;
    bundle.decrypt(&ConfidentialityKey::new(&hex(AES_KEY)).unwrap(), &mut text).unwrap();
    assert_eq!((&text[..], bundle.payload_len), (TEXT, TEXT.len() as u64));
}

/// What a node sends under these keys.
fn protected(
    integrity: Option<&IntegrityKey>,
    confidentiality: Option<&ConfidentialityKey>,
    text: &mut [u8],
) -> Bundle {
    let created = DtnTime::from_millis(1000);
    let mut bundle = Bundle::new(eid("dtn://a/x"), created, 7, eid("ipn:5.7"), Duration::from_secs(60));
    bundle.payload_len = text.len() as u64;
    let me = eid("dtn://a/");
    if let Some(key) = integrity {
        let mut reader = &*text;
        let reader: &mut dyn std::io::Read = &mut reader;
        bundle.add_integrity(key, &me, confidentiality.is_none().then_some(reader)).unwrap();
    }
    if let Some(key) = confidentiality {
        bundle.encrypt(key, &me, [9; IV_LEN], text).unwrap();
    }
    bundle
}

/// What its destination does; the payload, if it may be delivered.
fn accepted(
    bundle: &Bundle,
    integrity: Option<&IntegrityKey>,
    confidentiality: Option<&ConfidentialityKey>,
    text: &[u8],
) -> Result<Vec<u8>, SecurityFault> {
    let (mut bundle, mut text) = (bundle.clone(), text.to_vec());
    assert_eq!(bundle.is_encrypted(), confidentiality.is_some());
    if let Some(key) = confidentiality {
        bundle.decrypt(key, &mut text)?;
    }
    if let Some(key) = integrity {
        check(&bundle, key, confidentiality.is_some(), &text)?;
    }
    Ok(text)
}

fn keys(choice: u8) -> (Option<IntegrityKey>, Option<ConfidentialityKey>) {
    let integrity = [32, 48, 64].map(|len| IntegrityKey::new(&vec![5; len]));
    let confidentiality = [16, 32].map(|len| ConfidentialityKey::new(&vec![6; len]));
    match choice % 6 {
        index @ 0..3 => (integrity[usize::from(index)].clone(), None),
        index @ 3..5 => (None, confidentiality[usize::from(index) - 3].clone()),
        _ => (integrity[0].clone(), confidentiality[1].clone()),
    }
}

/// RFC 9172 §3.8: a block of confidentiality stays, whatever its flags ask of nodes that do not know it.
#[test]
fn security_blocks_are_no_unknown_blocks() {
    let (integrity, confidentiality) = keys(5);
    let mut bundle = protected(integrity.as_ref(), confidentiality.as_ref(), &mut TEXT.to_vec());
    for slot in &mut bundle.received.slots {
        let content = slot.raw_content().unwrap().to_vec();
        slot.flags |= 0x16;
        *slot = slot.clone().with_content(&content);
    }
    let before = bundle.clone();
    assert_eq!(bundle.process_unknown_blocks(), super::super::Unprocessable::default());
    assert_eq!(bundle, before);
}

/// RFC 9172 §3.2, §3.7, §3.8: one operation of a kind on a target, and none on what must not be one.
#[test]
fn conflicting_operations_are_refused() {
    let key = example_key(Variant::Sha512);
    let second = A1_BIB.replace("850b0200", "850b0900");
    let fault = check(&example(&[A1_BIB, &second]), &key, false, TEXT).unwrap_err();
    assert_eq!(fault.reason(), ReasonCode::CONFLICTING_SECURITY_OPERATION);
    let of_security = A1_BIB.replace("5856810101", "5856810201");
    let fault = check(&example(&[&of_security]), &key, false, TEXT).unwrap_err();
    assert_eq!(fault.reason(), ReasonCode::CONFLICTING_SECURITY_OPERATION);
    let aes = ConfidentialityKey::new(&hex(AES_KEY)).unwrap();
    let second = A3_BCB.replace("850c0401", "850c0901");
    let of_primary = A3_BCB.replace("58348101", "58348100");
    let of_itself = A3_BCB.replace("58348101", "58348104");
    for blocks in
        [vec![A3_BCB, &second], vec![A3_BCB, &of_primary.replace("850c04", "850c05")], vec![&of_itself]]
    {
        let fault = example(&blocks).decrypt(&aes, &mut hex(A2_TEXT)).unwrap_err();
        assert_eq!(fault.reason(), ReasonCode::CONFLICTING_SECURITY_OPERATION, "{blocks:?}");
    }
}

/// RFC 9172 §7.1: what is not understood is an unknown operation, not a failed one.
#[test]
fn unknown_contexts_and_parameters_have_their_reason() {
    let key = example_key(Variant::Sha512);
    for (from, to) in
        [("5856810101", "5856810105"), ("82820107", "82820108"), ("820300", "820308"), ("820300", "820900")]
    {
        let fault = check(&example(&[&A1_BIB.replacen(from, to, 1)]), &key, false, TEXT).unwrap_err();
        assert_eq!(fault.reason(), ReasonCode::UNKNOWN_SECURITY_OPERATION, "{from} {to}: {fault}");
    }
    let aes = ConfidentialityKey::new(&hex(AES_KEY)).unwrap();
    let context = ("5834810102", "5834810107");
    for (from, to) in
        [context, ("8202018204", "8202038204"), ("820400", "820408"), ("8202018204", "8209018204")]
    {
        let fault = example(&[&A3_BCB.replacen(from, to, 1)]).decrypt(&aes, &mut hex(A2_TEXT)).unwrap_err();
        assert_eq!(fault.reason(), ReasonCode::UNKNOWN_SECURITY_OPERATION, "{from} {to}: {fault}");
    }
}

/// RFC 9173 §3.5, §4.5: keys stay secret, in what is written to a log, too.
#[test]
fn keys_are_not_shown() {
    let (integrity, confidentiality) = keys(5);
    let shown = format!("{integrity:?} {confidentiality:?}");
    assert!(!shown.contains("5, 5") && !shown.contains("0505") && !shown.contains("bytes"), "{shown}");
}

/// RFC 9172 §3.6: what is longer than it says, or an array of almost endless length, ends with the bytes.
#[test]
fn announced_lengths_are_not_believed() {
    for start in ["9bffffffffffffffff", "5bffffffffffffffff", "9f", "81", "8101019bffffffffffffffff"] {
        let mut bytes = hex(start);
        bytes.extend([0; 600]);
        assert!(SecurityBlock::decode(&bytes).is_err(), "{start}");
    }
}

proptest! {
    /// RFC 9172 §5.2: also where it came in fragments, or another node has passed it on.
    #[test]
    fn what_is_protected_is_accepted(text: Vec<u8>, choice: u8, cut in any::<prop::sample::Index>()) {
        let (integrity, confidentiality) = keys(choice);
        let (integrity, confidentiality) = (integrity.as_ref(), confidentiality.as_ref());
        let mut sent = text.clone();
        let bundle = protected(integrity, confidentiality, &mut sent);
        prop_assert!(text.is_empty() || confidentiality.is_none() == (text == sent));
        let passed_on = bundle.for_next_hop(&eid("dtn://r/"), DtnTime::from_millis(5), DtnTime::from_millis(2));
        let received = Bundle::decode_head(&passed_on.unwrap().head()).unwrap();
        prop_assert_eq!(accepted(&received, integrity, confidentiality, &sent), Ok(text));
        let end = cut.index(sent.len().max(1)) as u64;
        if let Some(first) = fragment::cut(&received, 0..end).filter(|first| first.id.fragment.is_some()) {
            let first = Bundle::decode_head(&first.head()).unwrap();
            let whole = fragment::whole(&first);
            prop_assert!(accepted(&whole, integrity, confidentiality, &sent).is_ok());
        }
    }

    /// RFC 9172 §5.1.1, §5.1.2: neither ciphertext nor plain text can be changed.
    #[test]
    fn a_changed_bit_of_the_payload_is_never_accepted(
        text in prop::collection::vec(any::<u8>(), 1..300), choice: u8, bit in any::<prop::sample::Index>(),
    ) {
        let (integrity, confidentiality) = keys(choice);
        let mut sent = text;
        let bundle = protected(integrity.as_ref(), confidentiality.as_ref(), &mut sent);
        let bit = bit.index(sent.len() * 8);
        sent[bit / 8] ^= 1 << (bit % 8);
        let fault = accepted(&bundle, integrity.as_ref(), confidentiality.as_ref(), &sent).unwrap_err();
        prop_assert_eq!(fault.reason(), ReasonCode::FAILED_SECURITY_OPERATION);
    }

    /// RFC 9173 §3.7, §4.7.2: the primary block and the payload block's flags are in the scope.
    #[test]
    fn a_changed_primary_block_is_never_accepted(text: Vec<u8>, choice: u8, field in 0..9_u8) {
        let (integrity, confidentiality) = keys(choice);
        let mut sent = text;
        let mut bundle = protected(integrity.as_ref(), confidentiality.as_ref(), &mut sent);
        match field {
            0 => bundle.lifetime += Duration::from_millis(1),
            1 => bundle.destination = eid("ipn:5.8"),
            2 => bundle.report_to = eid("dtn://a/x"),
            3 => bundle.id.sequence += 1,
            4 => bundle.id.created = DtnTime::from_millis(1001),
            5 => bundle.id.source = eid("dtn://b/x"),
            6 => bundle.is_admin = true,
            7 => bundle.must_not_fragment = true,
            _ => bundle.received.payload_flags ^= 1,
        }
        let fault = accepted(&bundle, integrity.as_ref(), confidentiality.as_ref(), &sent);
        // In the form with both, the payload's flags are in the scope of its encryption.
        prop_assert_eq!(fault.unwrap_err().reason(), ReasonCode::FAILED_SECURITY_OPERATION);
    }

    /// RFC 9173 §3.3.3, §4.3.4: a result, an initialization vector and a header that is in the scope cannot be
    /// changed; the rest of a security block may be, but nothing that was not sent becomes right by that.
    #[test]
    fn a_changed_security_block_makes_nothing_right(
        text in prop::collection::vec(any::<u8>(), 1..60), choice: u8,
        which in any::<prop::sample::Index>(), bit in any::<prop::sample::Index>(),
    ) {
        let (integrity, confidentiality) = keys(choice);
        let (integrity, confidentiality) = (integrity.as_ref(), confidentiality.as_ref());
        let mut sent = text.clone();
        let bundle = protected(integrity, confidentiality, &mut sent);
        let index = which.index(bundle.received.slots.len());
        let content = bundle.received.slots[index].raw_content().unwrap().to_vec();
        let with = |content: &[u8], flags, number| {
            let mut changed = bundle.clone();
            let slot = &mut changed.received.slots[index];
            slot.flags ^= flags;
            slot.number += number;
            *slot = slot.clone().with_content(content);
            let (mut head, mut plain) = (changed.clone(), sent.clone());
            if let Some(key) = confidentiality {
                head.decrypt(key, &mut plain)?;
            }
            if let Some(key) = integrity {
                check(&head, key, confidentiality.is_some(), &plain)?;
            }
            Ok::<_, SecurityFault>(plain)
        };
        prop_assert_eq!(with(&content, 0, 0), Ok(text.clone()));
        prop_assert!(with(&content, 0x02, 0).is_err() && with(&content, 0, 9).is_err());
        let mut block = SecurityBlock::decode(&content).unwrap();
        for result in block.results.iter_mut().flatten() {
            if let Value::Bytes(bytes) = &mut result.1 {
                let bit = bit.index(bytes.len() * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
        prop_assert!(with(&block.encode(), 0, 0).is_err());
        let mut flipped = content.clone();
        let bit = bit.index(content.len() * 8);
        flipped[bit / 8] ^= 1 << (bit % 8);
        let plain = with(&flipped, 0, 0);
        prop_assert!(plain.is_err() || plain == Ok(text));
    }

    /// RFC 9172 §3.6: nothing that comes in a security block makes this node panic, and nothing of it is a right result.
    #[test]
    fn garbage_in_security_blocks_is_refused(
        garbage: Vec<u8>, at in any::<prop::sample::Index>(), byte: u8, len in any::<prop::sample::Index>(),
        sample in prop::sample::select(vec![A1_BIB, A2_BCB, A3_BIB, A3_BCB, A4_BIB, A4_BCB]),
        kind in prop::sample::select(KINDS.to_vec()),
    ) {
        let mut changed = example(&[sample]).received.slots[0].raw_content().unwrap().to_vec();
        let at = at.index(changed.len());
        changed[at] = byte;
        let len = len.index(changed.len()) + 1;
        for content in [&garbage[..], &changed, &changed[..len]] {
            if let Ok(block) = SecurityBlock::decode(content) {
                prop_assert_eq!(SecurityBlock::decode(&block.encode()), Ok(block));
            }
            let mut bundle = example(&[]);
            let slot = Slot { kind, number: 2, flags: 1, crc: CrcType::None, raw: None };
            bundle.received.slots.push(slot.with_content(content));
            let key = ConfidentialityKey::new(&[1; 16]).unwrap();
            prop_assert!(check(&bundle, &IntegrityKey::new(&[1; 32]).unwrap(), false, TEXT).is_err());
            prop_assert!(bundle.decrypt(&key, &mut TEXT.to_vec()).is_err());
        }
    }
}
