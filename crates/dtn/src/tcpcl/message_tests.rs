use super::*;
use proptest::prelude::*;

fn encoded(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    bytes
}

fn any_message() -> impl Strategy<Value = Message> {
    let init = (any::<u16>(), any::<u64>(), any::<u64>(), "[ -~]{0,64}", any::<Option<u16>>());
    let flags = || any::<u8>().prop_map(SegmentFlags);
    let segment = (flags(), any::<u64>(), any::<Option<u64>>(), any::<u64>());
    prop_oneof![
        init.prop_map(|(keepalive, segment_mru, transfer_mru, node, critical_extension)| {
            Message::SessInit(SessInit { keepalive, segment_mru, transfer_mru, node, critical_extension })
        }),
        (any::<bool>(), any::<u8>())
            .prop_map(|(reply, code)| Message::SessTerm { reply, reason: TermReason(code) }),
        segment.prop_map(|(flags, id, length, len)| {
            let length = length.filter(|_| flags.is_start());
            let extensions = TransferExtensions { length, ..TransferExtensions::default() };
            Message::Segment(SegmentHead { flags, id, extensions, len })
        }),
        (flags(), any::<u64>(), any::<u64>()).prop_map(|(flags, id, len)| Message::Ack { flags, id, len }),
        (any::<u8>(), any::<u64>())
            .prop_map(|(code, id)| Message::Refuse { reason: Refusal::from_code(code), id }),
        Just(Message::Keepalive),
        (any::<u8>(), any::<u8>())
            .prop_map(|(code, header)| Message::Reject { reason: RejectReason(code), header }),
    ]
}

proptest! {
    #[test]
    fn reading_returns_the_written_bytes(message in any_message(), rest in prop::collection::vec(any::<u8>(), 0..32)) {
        let mut bytes = encoded(&message);
        let len = bytes.len();
        bytes.extend(rest);
        prop_assert_eq!(Message::decode(&bytes), Ok(Some((message, len))));
    }

    #[test]
    fn of_a_beginning_more_is_wanted(message in any_message(), cut in any::<prop::sample::Index>()) {
        let bytes = encoded(&message);
        prop_assert_eq!(Message::decode(&bytes[..cut.index(bytes.len())]), Ok(None));
    }

    #[test]
    fn garbage_is_an_error_or_a_message_of_bounded_length(
        kind in 0_u8..9, garbage in prop::collection::vec(any::<u8>(), 0..2 * MAX_HEAD),
    ) {
        let bytes: Vec<u8> = std::iter::once(kind).chain(garbage).collect();
        match Message::decode(&bytes) {
            Ok(Some((_, len))) => prop_assert!(len <= MAX_HEAD),
            Ok(None) => prop_assert!(bytes.len() < MAX_HEAD),
            Err(_) => {}
        }
    }

    #[test]
    fn a_mutated_message_does_not_panic(
        message in any_message(), at in any::<prop::sample::Index>(), byte in any::<u8>(),
    ) {
        let mut bytes = encoded(&message);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let _ = Message::decode(&bytes);
    }
}

/// RFC 9174 §4.2, §4.6, §5.2.2, §5.2.5.1, §6.1: the bytes are those of the layouts, written by hand.
#[test]
fn the_bytes_are_those_of_the_rfc() {
    assert_eq!(&Contact { version: 4, can_tls: true }.encode(), b"dtn!\x04\x01");
    let init = Message::SessInit(SessInit {
        keepalive: 30,
        segment_mru: 64_000,
        transfer_mru: 0x1_0000,
        node: "ipn:1.0".into(),
        critical_extension: None,
    });
    let mut bytes = vec![7, 0, 30, 0, 0, 0, 0, 0, 0, 0xFA, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 7];
    bytes.extend(b"ipn:1.0\0\0\0\0");
    assert_eq!(encoded(&init), bytes);
    let head = SegmentHead {
        flags: SegmentFlags::START,
        id: 5,
        extensions: TransferExtensions { length: Some(258), ..TransferExtensions::default() },
        len: 3,
    };
    let mut bytes = vec![1, 2, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 13, 0, 0, 1, 0, 8];
    bytes.extend([0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 3]);
    assert_eq!(encoded(&Message::Segment(head)), bytes);
    let term = Message::SessTerm { reply: true, reason: TermReason::BUSY };
    assert_eq!(encoded(&term), [5, 1, 3]);
}

fn start_with_extensions(items: &[u8]) -> Vec<u8> {
    let mut bytes = vec![1, 2, 0, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend((items.len() as u32).to_be_bytes());
    bytes.extend(items);
    bytes.extend([0; 8]);
    bytes
}

fn extensions_of(items: &[u8]) -> TransferExtensions {
    match Message::decode(&start_with_extensions(items)) {
        Ok(Some((Message::Segment(head), _))) => head.extensions,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_transfer_length_that_is_not_eight_bytes_long_is_an_unknown_item() {
    // dtn7-rs sends a bundle's name under the number of the transfer length.
    let found = extensions_of(b"\x00\x00\x01\x00\x03abc");
    assert_eq!(found, TransferExtensions::default());
    assert!(extensions_of(b"\x01\x00\x01\x00\x03abc").critical_unknown);
    assert!(extensions_of(b"\x01\x80\x00\x00\x00").critical_unknown);
    assert!(!extensions_of(b"\x00\x80\x00\x00\x00").critical_unknown);
}

#[test]
fn extension_items_that_do_not_add_up_are_seen() {
    for items in [&b"\x00"[..], b"\x00\x00\x01\x00\x09abc", b"\x00\x80\x00\x00\x00\x00"] {
        assert!(extensions_of(items).malformed, "{items:?}");
    }
}

/// RFC 9174 §4.6, §5.2.2: node IDs and lists of extension items that are too long are refused before they
/// have arrived.
#[test]
fn overlong_data_are_refused_before_they_arrive() {
    let mut init = vec![7; 19];
    init.extend([0x04, 0x01]);
    assert_eq!(Message::decode(&init), Err(MessageError::NodeIdTooLong(1025)));
    let start = [1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0x01];
    assert_eq!(Message::decode(&start), Err(MessageError::ExtensionsTooLong(4097)));
    assert_eq!(Message::decode(&[0x20]), Err(MessageError::UnknownType(0x20)));
    assert_eq!(Contact::decode(*b"GET / "), Err(MessageError::NotTcpcl));
}
