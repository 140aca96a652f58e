//! Authenticated segments (RFC 5327).

use std::sync::Arc;
use std::time::Duration;

use bentpipe_ltp::{Authentication, Color, Engine, NotAuthentic, Unreadable, UnusableKey};
use bentpipe_units::{Rate, Time};
use proptest::prelude::*;
use ring::rand::SystemRandom;

use crate::world::{World, at, block, config};

const KEY: &[u8] = b"0123456789abcdef0123";

fn hmac() -> Authentication {
    Authentication::hmac_sha1_80(KEY).unwrap()
}

/// Two pairs of 2048 bits, which are used nowhere else: `openssl genpkey -algorithm RSA -outform DER`, and
/// `openssl rsa -RSAPublicKey_out -outform DER`.
fn rsa(own: usize) -> Authentication {
    let private = [&include_bytes!("../keys/a.pk8")[..], include_bytes!("../keys/b.pk8")];
    let public = [&include_bytes!("../keys/a.pub")[..], include_bytes!("../keys/b.pub")];
    Authentication::rsa_sha256(private[own], public[1 - own], Arc::new(SystemRandom::new())).unwrap()
}

fn engine(own: u64, authentication: Option<Authentication>) -> Engine {
    let config = config(own, Duration::from_millis(1), Rate::mbps(50));
    Engine::new(config, 0, Time::ZERO).authenticated_by(authentication)
}

/// The only segment of a short block.
fn segment(authentication: Option<Authentication>) -> Vec<u8> {
    let (mut sender, mut out) = (engine(1, authentication), Vec::new());
    sender.send(1, Color::Red, b"block"[..].into());
    assert!(sender.transmit(Time::ZERO, &mut out));
    out
}

fn take(authentication: Option<Authentication>, datagram: &[u8]) -> (Result<(), Unreadable>, Engine) {
    let mut receiver = engine(2, authentication);
    (receiver.receive(Time::ZERO, datagram), receiver)
}

fn of_every_suite() -> [(Authentication, Authentication); 3] {
    [(hmac(), hmac()), (Authentication::null(), Authentication::null()), (rsa(0), rsa(1))]
}

#[test]
fn an_authenticated_segment_has_these_bytes() {
    let mut expected = vec![0x03, 1, 1, 0x11, 0x00, 1, 0, 1, 0, 5, 1, 0];
    expected.extend(b"block");
    expected.extend([0x00, 10]);
    // `openssl dgst -sha1 -mac HMAC -macopt hexkey:…` over all of that, and the first ten bytes of it.
    expected.extend([0x76, 0xb4, 0xd5, 0xb8, 0x37, 0xff, 0x51, 0xc3, 0x0d, 0xf4]);
    assert_eq!(segment(Some(hmac())), expected);
    // The NULL cipher suite has another number, and another key.
    let with_null = segment(Some(Authentication::null()));
    assert_eq!((with_null[6], with_null.len()), (255, expected.len()));
    let proof = [0x72, 0x9c, 0x98, 0xe0, 0xe3, 0xaa, 0x40, 0x55, 0x9d, 0x57];
    assert_eq!(with_null[expected.len() - 10..], proof);
}

#[test]
fn blocks_cross_a_lossy_link_with_every_suite() {
    for (a, b) in of_every_suite() {
        let mut world =
            World::symmetric(Rate::mbps(10), Duration::from_millis(300), "5%", 3).authenticated_by([a, b]);
        for number in 0..20 {
            world.send(number, 30_000);
        }
        world.run(at(60.0));
        assert_eq!((world.received[1].len(), world.sent[0].len()), (20, 20));
        let mut came: Vec<&[u8]> = world.received[1].iter().map(|(_, block)| &block[..]).collect();
        came.sort_unstable();
        let blocks: Vec<Box<[u8]>> = (0..20).map(|number| block(number, 30_000)).collect();
        assert!(came.into_iter().eq(blocks.iter().map(|block| &block[..])));
        assert!(world.ends[0].statistics().lost > 0);
        assert!(world.ends.iter().all(|end| end.statistics().not_authentic == 0));
    }
}

#[test]
fn no_datagram_is_longer_than_it_may_be() {
    for (a, b) in of_every_suite() {
        let mut world =
            World::symmetric(Rate::mbps(10), Duration::from_millis(300), "30%", 3).authenticated_by([a, b]);
        world.loses = Box::new(|_, datagram| {
            assert!(datagram.len() <= 1400, "{}", datagram.len());
            false
        });
        world.send(1, 1_000_000);
        world.run(at(60.0));
        assert_eq!(world.received[1].len(), 1);
    }
}

#[test]
fn what_has_no_proof_or_that_of_another_is_not_taken() {
    let other = Authentication::hmac_sha1_80(&[7; 20]).unwrap();
    let authentic = |datagram: &[u8]| take(Some(hmac()), datagram).0;
    assert_eq!(authentic(&segment(Some(hmac()))), Ok(()));
    let missing = Err(NotAuthentic::Missing("HMAC-SHA1-80").into());
    for strange in [None, Some(Authentication::null()), Some(rsa(0))] {
        assert_eq!(authentic(&segment(strange)), missing);
    }
    assert_eq!(authentic(&segment(Some(other))), Err(NotAuthentic::False("HMAC-SHA1-80").into()));
    // Its own signature, sent back to it.
    assert_eq!(take(Some(rsa(0)), &segment(Some(rsa(0)))).0, Err(NotAuthentic::False("RSA-SHA256").into()));
    let mut longer = segment(Some(hmac()));
    longer.push(0);
    assert_eq!(authentic(&longer), Err(NotAuthentic::NotLast.into()));
    // The proof is announced and not there.
    let mut without = segment(Some(hmac()));
    without.truncate(without.len() - 12);
    assert!(matches!(authentic(&without), Err(Unreadable::Malformed(_))));
    without[3] = 0x10;
    assert_eq!(authentic(&without), missing);
    // An engine without keys takes it, and skips the extensions.
    assert_eq!(take(None, &segment(Some(hmac()))).0, Ok(()));
    let (_, receiver) = take(Some(hmac()), &longer);
    assert_eq!(receiver.statistics().not_authentic, 1);
}

#[test]
fn the_lengths_of_keys_are_bounded() {
    for len in [0, 15, 65] {
        assert_eq!(Authentication::hmac_sha1_80(&vec![1; len]).unwrap_err(), UnusableKey::Length(len));
    }
    let public = include_bytes!("../keys/a.pub");
    let random = Arc::new(SystemRandom::new());
    assert!(matches!(Authentication::rsa_sha256(public, public, random), Err(UnusableKey::Private(_))));
    let shown = format!("{:?}", hmac());
    assert_eq!(shown, "Authentication(\"HMAC-SHA1-80\")");
}

proptest! {
    /// A flipped bit, wherever it is.
    #[test]
    fn a_changed_segment_is_never_taken(suite in 0..3_usize, bit in any::<prop::sample::Index>()) {
        let (a, b) = of_every_suite()[suite].clone();
        let mut datagram = segment(Some(a));
        let bit = bit.index(datagram.len() * 8);
        datagram[bit / 8] ^= 1 << (bit % 8);
        let (result, mut receiver) = take(Some(b), &datagram);
        prop_assert!(result.is_err());
        prop_assert!(receiver.event().is_none() && receiver.due().is_none());
    }

    #[test]
    fn cut_and_random_datagrams_are_never_taken(
        suite in 0..3_usize, len in any::<prop::sample::Index>(), tail: Vec<u8>,
    ) {
        let (a, b) = of_every_suite()[suite].clone();
        let mut datagram = segment(Some(a));
        datagram.truncate(len.index(datagram.len()));
        datagram.extend(tail);
        prop_assert!(take(Some(b), &datagram).0.is_err());
    }
}
