//! The codec as a whole: what is written is read, what came is passed on, and nothing hostile gets through or
//! takes it down.

use std::time::Duration;

use bp7::EndpointID;
use bp7::bundle::Block;
use bp7::canonical::{CanonicalData, new_canonical_block};
use bp7::crc::CrcBlock;
use bp7::eid::{DtnAddress, IpnAddress};
use bp7::flags::BlockControlFlags;
use bp7::primary::PrimaryBlockBuilder;
use proptest::prelude::*;

use super::report::ReasonCode;
use super::*;
use crate::IpnForm;

mod hostile;

const NOW: DtnTime = DtnTime::from_millis(10_000);

/// A block's bytes, with its CRC, by another implementation.
fn closed<B: CrcBlock + Block>(mut block: B, crc: CrcType) -> Vec<u8> {
    block.set_crc_type(crc as u8);
    block.update_crc();
    block.to_cbor()
}

/// An endpoint as the other implementation has it.
fn endpoint(eid: &Eid) -> EndpointID {
    match eid {
        Eid::None => EndpointID::none(),
        Eid::Dtn { node, service } => EndpointID::Dtn(1, DtnAddress::new(node, service)),
        Eid::Ipn { node, service, .. } => EndpointID::Ipn(2, IpnAddress::new(*node, *service)),
    }
}

fn eid(text: &str) -> Eid {
    text.parse().unwrap()
}

fn bundle(payload: &[u8]) -> Bundle {
    let created = DtnTime::from_millis(1000);
    let mut bundle = Bundle::new(eid("dtn://a/x"), created, 7, eid("ipn:5.7"), Duration::from_secs(60));
    bundle.payload_len = payload.len() as u64;
    bundle
}

fn encode(bundle: &Bundle, payload: &[u8]) -> Vec<u8> {
    let mut bytes = bundle.head();
    let mut tail = bundle.tail();
    for part in payload.chunks(7) {
        bytes.extend_from_slice(part);
        tail.update(part);
    }
    bytes.extend(tail.finish());
    assert_eq!(bytes.len() as u64, bundle.encoded_len());
    bytes
}

/// Decodes input that comes in chunks of this size, and must end where the bundle does.
fn decode(bytes: &[u8], chunk: usize) -> Result<(Bundle, Vec<u8>), Malformed> {
    let mut decoder = Decoder::new();
    let (mut head, mut payload) = (None, Vec::new());
    for mut rest in bytes.chunks(chunk) {
        loop {
            let (taken, piece) = decoder.feed(rest)?;
            rest = &rest[taken..];
            match piece {
                Piece::More => break,
                Piece::Head(bundle) => head = Some(*bundle),
                Piece::Payload(part) => payload.extend_from_slice(part),
                Piece::End => {}
            }
        }
        assert!(rest.is_empty(), "More says that all has been taken");
    }
    decoder.finish()?;
    Ok((head.expect("before the end comes a head"), payload))
}

/// A bundle of another implementation's making: `9f`, a primary block, blocks, a payload of "hello", `ff`.
fn foreign(primary_crc: CrcType, blocks: &[&[u8]]) -> Vec<u8> {
    let primary = PrimaryBlockBuilder::new()
        .source(endpoint(&eid("dtn://a/x")))
        .destination(endpoint(&eid("dtn://b/y")))
        .report_to(endpoint(&eid("dtn://a/r")))
        .bundle_control_flags(0x20)
        .lifetime(Duration::from_secs(60))
        .creation_timestamp(bp7::CreationTimestamp::with_time_and_seq(1000, 7))
        .build()
        .unwrap();
    let payload = new_canonical_block(1, 1, 0, CanonicalData::Data(b"hello".to_vec()));
    let parts = [&[0x9f][..], &closed(primary, primary_crc), &blocks.concat(), &payload.to_cbor(), &[0xff]];
    parts.concat()
}

fn unknown_block(kind: u64, number: u64, flags: u8) -> Vec<u8> {
    closed(
        new_canonical_block(kind, number, flags, CanonicalData::Unknown(b"whatever".to_vec())),
        CrcType::Crc16,
    )
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

fn problem(bytes: &[u8]) -> String {
    decode(bytes, 1).unwrap_err().to_string()
}

/// RFC 9171 §4.4.3: a limit is from 1 to 255.
#[test]
fn an_impossible_hop_limit_is_unintelligible() {
    for limit in [0, 300] {
        let content = [&[0x82][..], &[0x19, (limit >> 8) as u8, limit as u8], &[1]].concat();
        let block = new_canonical_block(10, 2, 0x02, CanonicalData::Unknown(content));
        let block = closed(block, CrcType::Crc16);
        let (mut bundle, _) = decode(&foreign(CrcType::None, &[&block]), 64).unwrap();
        assert_eq!(bundle.hops, None);
        let asked = bundle.process_unknown_blocks();
        assert_eq!((asked.report, asked.delete), (Some(ReasonCode::BLOCK_UNINTELLIGIBLE), None));
    }
}

/// RFC 9171 §4.2.4: flags that no standard has assigned yet are passed on, in blocks of every kind.
#[test]
fn flags_that_are_not_assigned_are_passed_on() {
    // Hop count, and a block that nobody knows, both with the flags 0x1201, and a payload with 0x1000.
    let known = [0x85, 10, 2, 0x19, 0x12, 0x01, 0, 0x43, 0x82, 9, 1];
    let unknown = [0x85, 0x18, 77, 3, 0x19, 0x12, 0x01, 0, 0x41, 7];
    let bytes = foreign(CrcType::None, &[&known, &unknown]);
    let plain = [0x85, 1, 1, 0, 0, 0x45];
    let at = bytes.windows(plain.len()).position(|window| window == plain).unwrap();
    let payload = [0x85, 1, 1, 0x19, 0x10, 0, 0, 0x45];
    let bytes = [&bytes[..at], &payload, &bytes[at + plain.len()..]].concat();
    let (mut bundle, text) = decode(&bytes, 64).unwrap();
    assert_eq!((bundle.hops, &text[..]), (Some(HopCount { limit: 9, count: 1 }), &b"hello"[..]));
    assert_eq!(bundle.process_unknown_blocks(), Unprocessable::default());
    let next = bundle.for_next_hop(&eid("dtn://r/"), bundle.id.created, bundle.id.created).unwrap();
    let head = next.head();
    let counted = [0x85, 10, 2, 0x19, 0x12, 0x01, 0, 0x43, 0x82, 9, 2];
    for block in [&counted[..], &unknown, &payload] {
        assert!(contains(&head, block), "{head:x?}");
    }
}

/// RFC 9171 §4.2.3: what has no source has no identity, by which fragments would find each other.
#[test]
fn a_fragment_without_a_source_is_malformed() {
    let mut part = fragment::cut(&bundle(b"hello"), 0..2).unwrap();
    part.id.source = Eid::None;
    assert!(problem(&encode(&part, b"he")).contains("without a source"));
}

/// RFC 9171 §4.1: what this node writes is read by another implementation.
#[test]
fn another_implementation_reads_our_bundles() {
    let mut bundle = bundle(b"hello");
    bundle.report_to = eid("dtn://a/r");
    bundle.reports.delivery = true;
    bundle.hops = Some(HopCount { limit: 30, count: 2 });
    bundle.age = Some(Duration::from_millis(500));
    bundle.previous_node = Some(eid("ipn:9.0"));
    bundle.priority = Priority::Expedited;
    let read = bp7::Bundle::try_from(&encode(&bundle, b"hello")[..]).unwrap();
    read.validate().unwrap();
    assert_eq!(read.payload().unwrap(), b"hello");
    assert_eq!(read.primary.source, endpoint(&bundle.id.source));
    let data: Vec<_> = read.canonicals.iter().map(|block| block.data().clone()).collect();
    let expected = [
        CanonicalData::PreviousNode(endpoint(&eid("ipn:9.0"))),
        CanonicalData::HopCount(30, 2),
        CanonicalData::BundleAge(500),
        CanonicalData::Unknown(vec![2]),
        CanonicalData::Data(b"hello".to_vec()),
    ];
    assert_eq!(data, expected);
}

/// RFC 9171 §4.3.1, §5.4: the primary block and blocks of other types are passed on byte for byte.
#[test]
fn foreign_blocks_are_forwarded_unchanged() {
    let blocks = [unknown_block(200, 9, 0), unknown_block(99, 2, 1)];
    let blocks = [&blocks[0][..], &blocks[1]];
    for crc in [CrcType::None, CrcType::Crc16, CrcType::Crc32] {
        let bytes = foreign(crc, &blocks);
        let (bundle, payload) = decode(&bytes, 3).unwrap();
        assert_eq!(payload, b"hello");
        assert_eq!(encode(&bundle, b"hello"), bytes);
        let next = bundle.for_next_hop(&eid("dtn://me/x"), NOW, NOW).unwrap();
        assert_eq!(next.previous_node, Some(eid("dtn://me/")));
        let sent = encode(&next, b"hello");
        let received = blocks.concat();
        let primary = &bytes[1..bytes.len() - 12 - received.len()];
        assert!(sent[1..].starts_with(primary) && contains(&sent, &received), "{crc:?}");
        // Numbers 2 and 9 were taken.
        assert!(contains(&sent, &[0x86, 6, 3]));
        assert_eq!(decode(&sent, 5).unwrap().0, next);
        assert_eq!(Bundle::decode_head(&next.head()).unwrap(), next);
    }
}

#[test]
fn a_changed_field_is_written_whatever_came() {
    let (mut bundle, _) = decode(&foreign(CrcType::None, &[]), 64).unwrap();
    bundle.lifetime = Duration::from_secs(5);
    assert_eq!(Bundle::decode_head(&bundle.head()).unwrap().lifetime, Duration::from_secs(5));
}

/// RFC 9171 §4.2.4, §4.3.2: a known block is written anew under its number, with its flags and kind of CRC.
#[test]
fn known_blocks_keep_number_flags_and_crc() {
    let hops = closed(new_canonical_block(10, 77, 0x11, CanonicalData::HopCount(9, 3)), CrcType::Crc16);
    let (bundle, _) = decode(&foreign(CrcType::Crc32, &[&hops]), 64).unwrap();
    assert_eq!(bundle.hops, Some(HopCount { limit: 9, count: 3 }));
    let next = bundle.for_next_hop(&eid("dtn://me/"), NOW, NOW).unwrap();
    let hops = closed(new_canonical_block(10, 77, 0x11, CanonicalData::HopCount(9, 4)), CrcType::Crc16);
    assert!(contains(&next.head(), &hops));
}

/// RFC 9171 §5.6: a block of an unknown type is kept, removed, reported, or deletes its bundle, by its flags.
#[test]
fn unknown_blocks_are_treated_by_their_flags() {
    let received = |flags| {
        let (mut bundle, _) = decode(&foreign(CrcType::None, &[&unknown_block(200, 2, flags)]), 64).unwrap();
        let asked = bundle.process_unknown_blocks();
        (asked.report, asked.delete, contains(&bundle.head(), &unknown_block(200, 2, flags)))
    };
    let unsupported = Some(ReasonCode::BLOCK_UNSUPPORTED);
    assert_eq!(received(0), (None, None, true));
    assert_eq!(received(BlockControlFlags::BLOCK_STATUS_REPORT.bits()), (unsupported, None, true));
    assert_eq!(received(BlockControlFlags::BLOCK_DELETE_BUNDLE.bits()), (None, unsupported, true));
    assert_eq!(received(BlockControlFlags::BLOCK_REMOVE.bits()), (None, None, false));
    let both = BlockControlFlags::BLOCK_STATUS_REPORT | BlockControlFlags::BLOCK_DELETE_BUNDLE;
    assert_eq!(received(both.bits()), (unsupported, unsupported, true));
}

/// RFC 9171 §5.6: a block of a known type that makes no sense is treated by its flags.
#[test]
fn a_known_block_that_is_not_understood_is_an_unknown_one() {
    for kind in [6, 7, 10, 224, 225] {
        let block = unknown_block(kind, 2, 0x10);
        let (mut bundle, _) = decode(&foreign(CrcType::None, &[&block]), 64).unwrap();
        assert!(bundle.previous_node.is_none() && bundle.age.is_none() && bundle.hops.is_none());
        assert!(contains(&bundle.head(), &block));
        let next = bundle.for_next_hop(&eid("dtn://me/"), NOW, NOW).unwrap();
        assert!(Bundle::decode_head(&next.head()).is_ok(), "block type {kind} twice");
        bundle.process_unknown_blocks();
        assert!(!contains(&bundle.head(), &block));
    }
}

#[test]
fn arrays_with_lengths_and_with_breaks() {
    let bytes = foreign(CrcType::None, &[]);
    let (bundle, _) = decode(&bytes, 64).unwrap();
    let mut with_length = bytes.clone();
    with_length[0] = 0x82;
    with_length.pop();
    let (same, payload) = decode(&with_length, 1).unwrap();
    assert_eq!((same.id.clone(), &payload[..]), (bundle.id.clone(), &b"hello"[..]));
    // It is passed on as the standard says.
    assert_eq!(encode(&same, b"hello"), bytes);

    let place = bytes.len() - 12;
    let mut block_with_break = bytes.clone();
    block_with_break[place] = 0x9f;
    block_with_break.push(0xff);
    assert_eq!(decode(&block_with_break, 1).unwrap().0.id, bundle.id);
    let mut with_both = block_with_break;
    with_both[0] = 0x82;
    with_both.pop();
    assert_eq!(decode(&with_both, 1).unwrap().1, b"hello");
}

#[test]
fn an_empty_payload_ends_too() {
    for crc in [CrcType::None, CrcType::Crc32] {
        let mut bundle = bundle(b"");
        bundle.payload_crc = crc;
        assert_eq!(decode(&encode(&bundle, b""), 1).unwrap(), (bundle, vec![]));
    }
    let mut bytes = encode(&Bundle { payload_crc: CrcType::None, ..bundle(b"") }, b"");
    bytes[0] = 0x82;
    bytes.pop();
    let mut decoder = Decoder::new();
    assert!(matches!(decoder.feed(&bytes), Ok((taken, Piece::Head(_))) if taken == bytes.len()));
    assert!(decoder.finish().is_err());
    assert_eq!(decoder.feed(&[]), Ok((0, Piece::End)));
    assert_eq!(decoder.feed(&[]), Ok((0, Piece::More)));
}

#[test]
fn without_a_clock_there_is_an_age() {
    let unknown = DtnTime::UNKNOWN;
    let mut bundle = Bundle::new(eid("dtn://a/x"), unknown, 7, eid("dtn://b/y"), Duration::from_secs(60));
    assert_eq!(bundle.age, Some(Duration::ZERO));
    bundle.age = Some(Duration::from_secs(15));
    let received = DtnTime::from_millis(1_000_000);
    assert_eq!(bundle.expires(received), DtnTime::from_millis(1_045_000));
    let now = received.after(Duration::from_secs(3));
    let next = bundle.for_next_hop(&eid("dtn://me/"), now, received).unwrap();
    assert_eq!(next.age, Some(Duration::from_secs(18)));

    bundle.age = None;
    let written = Bundle::decode_head(&bundle.head()).unwrap();
    assert_eq!(written.age, Some(Duration::ZERO), "it is written where it is needed");
    let without = PrimaryBlockBuilder::new().destination(endpoint(&eid("dtn://b/y"))).build().unwrap();
    let bytes = [&[0x9f][..], &without.to_cbor(), &[0x85, 1, 1, 0, 0, 0x40, 0xff]].concat();
    assert!(problem(&bytes).contains("needs an age"));
}

#[test]
fn with_a_clock_age_does_not_matter() {
    let mut bundle = bundle(b"");
    bundle.age = Some(Duration::from_secs(3600));
    assert_eq!(bundle.expires(NOW), DtnTime::from_millis(61_000));
}

#[test]
fn hops_end() {
    let mut bundle = bundle(b"");
    bundle.hops = Some(HopCount { limit: 2, count: 1 });
    let next = bundle.for_next_hop(&eid("dtn://me/"), NOW, NOW).unwrap();
    assert_eq!(next.hops, Some(HopCount { limit: 2, count: 2 }));
    assert_eq!(next.for_next_hop(&eid("dtn://me/"), NOW, NOW), Err(HopLimitExceeded { limit: 2 }));
    bundle.hops = Some(HopCount { limit: 255, count: 255 });
    assert!(bundle.for_next_hop(&eid("dtn://me/"), NOW, NOW).is_err());
}

#[test]
fn blocks_go_with_the_fragments_that_their_flags_say() {
    let (once, always) = (unknown_block(200, 2, 0), unknown_block(201, 3, 1));
    let (bundle, _) = decode(&foreign(CrcType::Crc16, &[&once, &always]), 64).unwrap();
    let first = fragment::cut(&bundle, 0..2).unwrap();
    let second = fragment::cut(&bundle, 2..5).unwrap();
    assert!(contains(&first.head(), &once) && contains(&first.head(), &always));
    assert!(!contains(&second.head(), &once) && contains(&second.head(), &always));
    assert_eq!(decode(&encode(&second, b"llo"), 1).unwrap(), (second.clone(), b"llo".to_vec()));
    // Joined, it is what it was, the foreign primary block too.
    let first = decode(&encode(&first, b"he"), 1).unwrap().0;
    assert_eq!(fragment::whole(&first).id, bundle.id);
    assert_eq!(Bundle::decode_head(&fragment::whole(&first).head()).unwrap().payload_len, 5);
}

fn any_eid() -> impl Strategy<Value = Eid> {
    prop_oneof![
        Just(Eid::None),
        "[a-z0-9.-]{1,9}/[a-z0-9/~.-]{0,30}".prop_map(|text| eid(&format!("dtn://{text}"))),
        (1..u64::MAX, any::<u64>()).prop_map(|(node, service)| Eid::Ipn {
            node,
            service,
            form: IpnForm::Two
        }),
        (any::<u32>(), 1..u32::MAX, any::<u64>())
            .prop_map(|(allocator, node, service)| eid(&format!("ipn:{allocator}.{node}.{service}"))),
    ]
}

prop_compose! {
    fn any_bundle()(
        (source, destination, report_to) in (any_eid(), any_eid(), any_eid()),
        (created, sequence, lifetime) in any::<(u64, u64, u64)>(),
        flags in any::<[bool; 7]>(),
        priority in prop::sample::select(vec![Priority::Bulk, Priority::Normal, Priority::Expedited]),
        file_name in prop::option::of("[a-zä ][a-zä .-]{0,20}"),
        hops in prop::option::of((1..=u8::MAX, any::<u8>())),
        age: Option<u64>,
        previous_node in prop::option::of(any_eid()),
        crc in prop::sample::select(vec![CrcType::None, CrcType::Crc16, CrcType::Crc32]),
        fragment in prop::option::of((0..1_000_000_u64, 0..1_000_000_u64)),
        payload_len in 0..400_u64,
    ) -> Bundle {
        let created = DtnTime::from_millis(created);
        let lifetime = Duration::from_millis(lifetime);
        let mut bundle = Bundle::new(source, created, sequence, destination, lifetime);
        bundle.report_to = report_to;
        bundle.is_admin = flags[0];
        bundle.must_not_fragment = flags[1];
        bundle.report_times = flags[2];
        let [.., reception, forwarding, delivery, deletion] = flags;
        bundle.reports = ReportRequests { reception, forwarding, delivery, deletion };
        bundle.priority = priority;
        bundle.file_name = file_name.map(|name| name.parse().unwrap());
        bundle.hops = hops.map(|(limit, count)| HopCount { limit, count });
        bundle.age = age.map(Duration::from_millis).or(bundle.age);
        bundle.previous_node = previous_node;
        bundle.payload_len = payload_len;
        bundle.payload_crc = crc;
        bundle.id.fragment = fragment.filter(|_| bundle.id.is_unique()).map(|(offset, more)| {
            Fragment { offset, len: payload_len, total: offset + payload_len + more }
        });
        bundle
    }
}

proptest! {
    #[test]
    fn written_values_are_read_back(bundle in any_bundle(), chunk in 1..600_usize, seed: u8) {
        let len = u8::try_from(bundle.payload_len % 251).unwrap();
        let payload: Vec<u8> =
            (0..bundle.payload_len).map(|at| (at as u8).wrapping_mul(seed) ^ len).collect();
        let (read, read_payload) = decode(&encode(&bundle, &payload), chunk).unwrap();
        prop_assert_eq!(&read, &bundle);
        prop_assert_eq!(read_payload, payload);
        prop_assert_eq!(Bundle::decode_head(&bundle.head()).unwrap(), bundle);
    }
}
