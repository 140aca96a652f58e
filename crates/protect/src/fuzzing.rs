//! The body of the fuzz target `protect`; see `fuzz/README.md`.

use std::time::Duration;

use bentpipe_units::Time;

use crate::config::{ClassConfig, Config};
use crate::encoder::Memory;
use crate::frame::Class;
use crate::leg::Leg;
use crate::seal::{Cipher, Secret};

/// Of each class at each end: little, so that it fills up.
const MEMORY: Memory = Memory { symbols: 64, bytes: 20_000 };
/// Acts of one input at most.
const MOST_ACTS: usize = 48;
/// A session begins with three hellos.
const HELLOS: usize = 4;

/// Two legs with a session, and acts that the input chooses, each a byte for what it is and how much time
/// passes, a byte for its length, and content:
///
/// - bytes that nobody sealed, and frames of the peer that are changed or cut: refused, and nothing comes of
///   them;
/// - frames of the peer as they are: taken once;
/// - content that the peer has sealed, whatever it is: a peer that is hostile has the key;
/// - packets to be sent, and time that passes.
///
/// # Panics
/// A forged, changed or repeated frame is taken, or a hostile peer makes the leg hold more than it may or
/// send more than one frame for each poll.
pub fn protect(data: &[u8]) {
    let Some((&settings, mut rest)) = data.split_first() else { return };
    let small = |class: ClassConfig| ClassConfig { memory: MEMORY, window: 32, ..class };
    let Config { latency, bulk, .. } = Config::default();
    let config = Config { latency: small(latency), bulk: small(bulk), ..Config::default() };
    let cipher = if settings & 1 == 0 { Cipher::Aes128Gcm } else { Cipher::ChaCha20Poly1305 };
    let leg = |entropy| Leg::new(config.clone(), Secret::new(cipher, [1; 32]), [entropy; 32]);
    let (mut victim, mut peer) = (leg(2), leg(3));
    let mut now = Time::from_nanos(1_000_000);
    for _ in 0..HELLOS {
        pass(&mut victim, &mut peer, now);
        pass(&mut peer, &mut victim, now);
        now += Duration::from_millis(30);
    }
    assert!(victim.is_alive(now) && peer.is_alive(now), "no session");
    let mut frame = Vec::new();
    for _ in 0..MOST_ACTS {
        let Some((&[act, length], tail)) = rest.split_first_chunk::<2>() else { break };
        let (content, tail) = tail.split_at(usize::from(length).min(tail.len()));
        rest = tail;
        now += Duration::from_micros(1 << (act >> 4));
        let class = if act & 8 == 0 { Class::Latency } else { Class::Bulk };
        match act & 7 {
            0 => refused(&mut victim, &mut content.to_vec(), now),
            1 | 2 => {
                if peer.poll(now, &mut frame, || Some((class, content.to_vec()))).is_none() {
                    continue;
                }
                let mut changed = frame.clone();
                match content {
                    [bit, mask, ..] if act & 7 == 1 && *mask != 0 => {
                        let index = usize::from(*bit) % changed.len();
                        changed[index] ^= mask;
                    }
                    _ => changed.truncate(usize::from(length) % frame.len()),
                }
                refused(&mut victim, &mut changed, now);
                let hello = frame[0] == crate::frame::HELLO;
                let mut once = frame.clone();
                assert!(victim.on_frame(&mut once, now).is_ok() || hello, "the frame itself is refused");
                drain(&mut victim);
                if !hello {
                    refused(&mut victim, &mut frame.clone(), now);
                }
            }
            3..=5 => {
                // Sources, repair symbols and reports.
                let kind = 2 * (act & 7) - 5 + (act >> 3 & 1);
                let head = 0x10 | kind.min(5);
                let mut sealed = peer.seal_as_it_is(head, content);
                let _ = victim.on_frame(&mut sealed, now);
                drain(&mut victim);
            }
            6 => {
                let _ = victim.poll(now, &mut frame, || Some((class, content.to_vec())));
                let _ = peer.on_frame(&mut frame, now);
                drain(&mut peer);
            }
            _ => now += Duration::from_millis(u64::from(length)),
        }
        let _ = victim.poll(now, &mut frame, || None);
        drain(&mut victim);
        // A class's decoder, its equations, and the packets that it has sent.
        let most = 2 * (2 * MEMORY.bytes + 256 * 512);
        assert!(victim.held_bytes() <= most, "it holds {} bytes", victim.held_bytes());
    }
}

/// One frame, if there is one.
fn pass(from: &mut Leg, to: &mut Leg, now: Time) {
    let mut frame = Vec::new();
    if from.poll(now, &mut frame, || None).is_some() {
        to.on_frame(&mut frame, now).expect("an honest frame is taken");
    }
}

/// Nothing comes of this frame.
fn refused(leg: &mut Leg, frame: &mut [u8], now: Time) {
    let before = leg.stats();
    assert!(leg.on_frame(frame, now).is_err(), "taken: {frame:?}");
    let after = leg.stats();
    assert_eq!((before.receiver, before.sessions), (after.receiver, after.sessions));
    assert!(leg.next_packet().is_none());
}

fn drain(leg: &mut Leg) {
    while leg.next_packet().is_some() {}
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn its_corpus_breaks_nothing() {
        replay::replay("protect", protect);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn nothing_forged_changed_or_repeated_is_taken_and_nothing_panics(
            data in proptest::collection::vec(any::<u8>(), 0..600),
        ) {
            protect(&data);
        }
    }
}
