//! Bytes from those who make mistakes, or mean harm.

use super::*;

/// RFC 9171 §4.1, §4.3: bytes that are not a bundle are refused, each for its reason.
#[test]
fn refusals_give_their_reason() {
    let good = foreign(CrcType::None, &[]);
    let payload_at = good.len() - 12;
    let changed = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let two = |first: &[u8], second: &[u8]| foreign(CrcType::None, &[first, second]);
    let cases = [
        (changed(0, 0x80), "array of two blocks"),
        (changed(0, 0x83), "last"),
        (changed(0, 0x01), "array of two blocks"),
        (changed(2, 6), "version is 6"),
        (changed(2, 0x26), "negative"),
        (changed(payload_at, 0x86), "more elements"),
        (changed(payload_at + 2, 2), "number is 1"),
        (changed(payload_at + 4, 3), "no such type of CRC"),
        (changed(payload_at + 5, 0x65), "byte string"),
        (changed(payload_at + 5, 0x5f), "in pieces"),
        (changed(good.len() - 1, 0), "has to end"),
        ([&good[..], &[0]].concat(), "more bytes"),
        ([&good[..payload_at], &[0xff]].concat(), "no payload"),
        ([&good[..payload_at + 5], &[0x5b, 0xff, 0, 0, 0, 0, 0, 0, 0]].concat(), "as long as that"),
        ([&[0x9f][..], &[0x81; 20]].concat(), "deeper"),
        ([&[0x9f][..], &[0x80; BLOCKS_LIMIT + 1]].concat(), "more than 128 blocks"),
        (two(&unknown_block(200, 2, 0), &unknown_block(201, 2, 0)), "same number"),
        (two(&unknown_block(7, 2, 0), &unknown_block(7, 3, 0)), "only one block"),
        (foreign(CrcType::None, &[&unknown_block(200, 1, 0)]), "numbers 0 and 1"),
        (foreign(CrcType::None, &[&unknown_block(200, 0, 0)]), "numbers 0 and 1"),
    ];
    for (bytes, reason) in cases {
        let problem = problem(&bytes);
        assert!(problem.contains(reason) && problem.contains("at byte"), "{reason}: {problem}");
    }
}

#[test]
fn heads_are_bounded() {
    let huge = [&[0x9f, 0x85, 0x18, 200, 2, 0, 0, 0x5b, 0, 0, 0, 1, 0, 0, 0, 0][..], &[0; 2000]].concat();
    let mut decoder = Decoder::with_limit(1000);
    let error = huge.chunks(64).find_map(|part| decoder.feed(part).err()).unwrap();
    assert_eq!((error.at, error.problem), (1000, Problem::HeadTooLong(1000)));
    assert!(decoder.feed(&[0]).is_err() && decoder.finish().is_err(), "an error is for ever");
    let long = unknown_block(200, 2, 0);
    let blocks: Vec<&[u8]> = vec![&long; BLOCKS_LIMIT - 1];
    assert!(problem(&foreign(CrcType::None, &blocks)).contains("more than 128"));
}

/// RFC 9171 §4.3.1: a fragment that is longer than what it is a part of is malformed.
#[test]
fn a_fragment_lies_within_its_whole() {
    let mut part = fragment::cut(&bundle(b"hello"), 2..5).unwrap();
    part.id.fragment = Some(Fragment { offset: 3, len: 3, total: 5 });
    assert!(problem(&encode(&part, b"llo")).contains("longer than what it is a part of"));
    part.id.fragment = Some(Fragment { offset: u64::MAX, len: 3, total: 5 });
    assert!(problem(&encode(&part, b"llo")).contains("longer than what it is a part of"));
}

#[test]
fn no_flipped_bit_goes_unseen() {
    let mut bundle = bundle(b"hello");
    bundle.hops = Some(HopCount { limit: 30, count: 2 });
    bundle.priority = Priority::Bulk;
    for crc in [CrcType::Crc16, CrcType::Crc32] {
        bundle.payload_crc = crc;
        let good = encode(&bundle, b"hello");
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&bytes, 64).is_err(), "bit {bit} of {good:02x?}");
        }
    }
}

#[test]
fn a_bundle_that_ends_early_is_none() {
    let good = encode(&bundle(b"hello"), b"hello");
    for len in 0..good.len() {
        let error = decode(&good[..len], 4).unwrap_err();
        assert_eq!(error, Malformed { at: len as u64, problem: Problem::Truncated });
    }
    let head = bundle(b"hello").head();
    assert!(Bundle::decode_head(&head[..head.len() - 1]).is_err());
    assert!(Bundle::decode_head(&[&head[..], &[0]].concat()).is_err());
}

proptest! {
    #[test]
    fn garbage_is_no_bundle(mut bytes: Vec<u8>, chunk in 1..64_usize) {
        prop_assert!(decode(&bytes, chunk).is_err());
        // And what begins as one goes deeper.
        bytes.splice(0..0, foreign(CrcType::None, &[])[..40].to_vec());
        let _ = decode(&bytes, chunk);
    }

    #[test]
    fn known_blocks_may_say_anything(
        kind in prop::sample::select(vec![6_u64, 7, 10, 224]),
        content in prop_oneof![
            any::<Vec<u8>>(),
            (0..200_usize, any::<u8>()).prop_map(|(deep, last)| [vec![0x81; deep], vec![last]].concat()),
            (any::<[u8; 9]>(), any::<bool>()).prop_map(|(bytes, eid)| {
                [&[0x82, 1, 0x7b][..usize::from(eid) * 3], &bytes].concat()
            }),
        ],
    ) {
        let block = closed(new_canonical_block(kind, 2, 0, CanonicalData::Unknown(content)), CrcType::Crc32);
        let (bundle, _) = decode(&foreign(CrcType::None, &[&block]), 64).unwrap();
        prop_assert_eq!(Bundle::decode_head(&bundle.head()).unwrap(), bundle);
    }

    /// Bundles without CRCs, so that changes reach what reads the blocks' contents.
    #[test]
    fn changed_bundles_do_not_panic_and_read_the_same_in_any_chunks(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
        chunk in 1..64_usize,
    ) {
        let known = [
            new_canonical_block(6, 2, 0, CanonicalData::PreviousNode(endpoint(&eid("dtn://p/")))),
            new_canonical_block(7, 3, 1, CanonicalData::BundleAge(70_000)),
            new_canonical_block(10, 4, 1, CanonicalData::HopCount(30, 2)),
            new_canonical_block(224, 5, 1, CanonicalData::Unknown(vec![2])),
        ].map(|block| block.to_cbor());
        let blocks: Vec<&[u8]> = known.iter().map(|block| &block[..]).collect();
        let mut bytes = foreign(CrcType::None, &blocks);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if cut.index(3) == 0 {
            bytes.truncate(cut.index(bytes.len()));
        }
        let result = decode(&bytes, chunk);
        prop_assert_eq!(&result, &decode(&bytes, usize::MAX));
        if let Ok((bundle, _)) = result {
            // What has been taken can be passed on, and the next node takes it.
            let next = bundle.for_next_hop(&eid("dtn://me/"), NOW, NOW).unwrap_or(bundle);
            prop_assert_eq!(Bundle::decode_head(&next.head()).unwrap(), next);
        }
    }
}
