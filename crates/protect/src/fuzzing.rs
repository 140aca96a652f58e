//! The bodies of the fuzz targets `protect` and `headers`; see `fuzz/README.md`.

use std::time::Duration;

use bentpipe_units::Time;

use crate::compress::{Compressor, ContextId, Expander};
use crate::config::{ClassConfig, Config};
use crate::encoder::Memory;
use crate::frame::Class;
use crate::header::Template;
use crate::ip::{UDP, checksum};
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
                // Sources, repair symbols, reports and contexts.
                let head = 0x10 | (2 * (act & 7) - 5 + (act >> 3 & 1));
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

/// Contexts in `headers`: few, so that their numbers are used again and again.
const CONTEXTS: usize = 2;
/// Acts of one input of `headers` at most.
const MOST_HEADER_ACTS: usize = 400;
/// Frames of each kind that are on their way at most; the oldest one gives way.
const UNDER_WAY: usize = 16;

/// One direction of header compression, over a network that loses, repeats and delays without end.
struct Headers {
    compressor: Compressor,
    expander: Expander,
    now: Time,
    /// The number that the next packet of each class gets.
    ends: [u64; 2],
    /// Which packets the receiver has, from `needs_from` on.
    came: [Vec<bool>; 2],
    needs_from: [u64; 2],
    /// What the sender knows of it.
    told: [u64; 2],
    packets: Vec<(usize, u64, Vec<u8>, Vec<u8>)>,
    openings: Vec<(ContextId, Template)>,
    reports: Vec<(Vec<ContextId>, [u64; 2])>,
}

/// Packets, contexts and reports in whatever order the input chooses, each act a byte for what it is and a
/// byte for a choice: packets that the input makes up, or with headers that are right; any packet, context
/// or report of those that are under way, which stay there and may come again; what the receiver gives up;
/// and bytes that are no form.
///
/// # Panics
/// A packet comes out changed, or one is refused that the receiver has not given up.
pub fn headers(data: &[u8]) {
    let mut world = Headers {
        compressor: Compressor::new(CONTEXTS),
        expander: Expander::default(),
        now: Time::ZERO,
        ends: [0; 2],
        came: [Vec::new(), Vec::new()],
        needs_from: [0; 2],
        told: [0; 2],
        packets: Vec::new(),
        openings: Vec::new(),
        reports: Vec::new(),
    };
    let mut rest = data;
    for _ in 0..MOST_HEADER_ACTS {
        let Some((&[act, choice], tail)) = rest.split_first_chunk::<2>() else { break };
        rest = tail;
        world.now += Duration::from_millis(1 << (act >> 4));
        let class = usize::from(act >> 3 & 1);
        match act & 7 {
            0 => {
                let (packet, tail) = rest.split_at(usize::from(choice).min(rest.len()));
                rest = tail;
                world.send(class, packet.to_vec());
            }
            1 | 2 => world.send(class, right_packet(choice)),
            3 => world.arrive(usize::from(choice)),
            4 => {
                let openings = world.compressor.openings(world.now, Duration::from_millis(50));
                openings.into_iter().for_each(|opening| keep(&mut world.openings, opening));
            }
            5 => {
                if let Some((id, template)) = world.openings.get(usize::from(choice) % UNDER_WAY) {
                    world.expander.on_opening(*id, *template, world.needs_from);
                }
            }
            6 if choice & 1 == 0 => {
                let confirmed = world.expander.confirmations();
                keep(&mut world.reports, (confirmed, world.needs_from));
            }
            6 => {
                if let Some((confirmed, needs_from)) = world.reports.get(usize::from(choice) / 2 % UNDER_WAY)
                {
                    world.compressor.on_confirmed(confirmed);
                    world.told = std::array::from_fn(|class| world.told[class].max(needs_from[class]));
                }
            }
            _ if choice & 1 == 0 => world.give_up(class, u64::from(choice / 2)),
            _ => {
                let (form, tail) = rest.split_at(usize::from(choice).min(rest.len()));
                rest = tail;
                let _ = world.expander.expand(form, class, u64::from(choice), &mut Vec::new());
            }
        }
    }
}

impl Headers {
    fn send(&mut self, class: usize, packet: Vec<u8>) {
        let esi = self.ends[class];
        self.ends[class] += 1;
        self.came[class].push(false);
        let form = self.compressor.compress(packet.clone(), class, esi, self.told, self.now);
        let ip = packet.first().is_some_and(|first| matches!(first >> 4, 4 | 6));
        assert!(form.len() <= packet.len() + usize::from(!ip), "{} bytes of {packet:?}", form.len());
        keep(&mut self.packets, (class, esi, packet, form));
    }

    fn arrive(&mut self, choice: usize) {
        let Some((class, esi, packet, form)) = self.packets.get(choice % UNDER_WAY) else { return };
        let mut out = Vec::new();
        match self.expander.expand(form, *class, *esi, &mut out) {
            Ok(()) => assert_eq!(&out, packet, "changed"),
            Err(_) => assert!(*esi < self.needs_from[*class], "refused: {packet:?}"),
        }
        self.came[*class][*esi as usize] = true;
        self.advance(*class);
    }

    /// The receiver gives up so many that have not come.
    fn give_up(&mut self, class: usize, packets: u64) {
        self.needs_from[class] = (self.needs_from[class] + packets).min(self.ends[class]);
        self.advance(class);
    }

    fn advance(&mut self, class: usize) {
        let came = &self.came[class][self.needs_from[class] as usize..];
        self.needs_from[class] += came.iter().take_while(|came| **came).count() as u64;
    }
}

fn keep<T>(under_way: &mut Vec<T>, item: T) {
    if under_way.len() == UNDER_WAY {
        under_way.remove(0);
    }
    under_way.push(item);
}

/// A packet with UDP whose lengths and checksum are right: bits of the choice are a port, IPv6 or IPv4, ECN,
/// and whether there is an identification. Behind the header those of a flow share five bytes; where ECN says
/// that there was congestion, the first of them may differ.
fn right_packet(choice: u8) -> Vec<u8> {
    let (flow, v6, ecn, id) = (choice & 7, choice & 8 != 0, choice >> 4 & 3, choice >> 6 & 1);
    let payload = [if ecn == 3 { choice >> 6 } else { 0 }, 7, 7, 7, flow, choice];
    let length = 8 + payload.len() as u8;
    let mut packet = if v6 {
        [&[0x60, ecn << 4, 0, 0, 0, length, UDP, 64][..], &[0x20; 32]].concat()
    } else {
        let mut header =
            vec![0x45, ecn, 0, 20 + length, 0, id, 0x40, 0, 64, UDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let checksum = checksum(&header);
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        header
    };
    packet.extend_from_slice(&[0, flow, 1, 0xbb, 0, length, choice, 7]);
    packet.extend_from_slice(&payload);
    packet
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn their_corpora_break_nothing() {
        replay::replay("protect", protect);
        replay::replay("headers", headers);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn nothing_forged_changed_or_repeated_is_taken_and_nothing_panics(
            data in proptest::collection::vec(any::<u8>(), 0..600),
        ) {
            protect(&data);
        }

        #[test]
        fn headers_come_out_as_they_went_in_or_not_at_all(
            acts in proptest::collection::vec((any::<u8>(), any::<u8>()), 0..400),
        ) {
            headers(&acts.into_iter().flat_map(|(act, choice)| [act, choice]).collect::<Vec<u8>>());
        }

        /// The same, with flows that have enough packets for a longer template, in which one byte changes now and
        /// then.
        #[test]
        fn longer_templates_are_sought_used_and_given_up_without_harm(
            rounds in proptest::collection::vec((0u8..4, 0usize..24, any::<u8>(), 0u8..16), 0..40),
        ) {
            let round = |(flow, packets, which, at): (u8, usize, u8, u8)| {
                let mut acts = [0x09, flow, 0x03, at].repeat(packets);
                acts.extend([0x09, flow | which & 0xf0, 0x03, at, 0x94, 0, 0x05, at, 0x06, 0, 0x06, 1, 0x06, 0x1f]);
                acts
            };
            headers(&rounds.into_iter().flat_map(round).collect::<Vec<u8>>());
        }

        /// The same, with time for flows to be confirmed and to give way to others.
        #[test]
        fn contexts_are_used_again_without_harm(
            rounds in proptest::collection::vec((any::<[u8; 4]>(), 0u8..16, 0u8..16), 0..40),
        ) {
            let round = |(flows, first, second): ([u8; 4], u8, u8)| {
                let [a, b, c, d] = flows;
                vec![
                    0xa9, a, 0x09, b, 0x09, a, 0x09, b, 0x04, 0, 0x05, first, 0x05, second, 0x06, 0,
                    0x06, 0x1f, 0x09, a, 0x09, b, 0x03, first, 0x03, second, 0x0f, c & !1, 0x06, 0, 0x06, 0x1f, 0x0b, d,
                ]
            };
            headers(&rounds.into_iter().flat_map(round).collect::<Vec<u8>>());
        }
    }
}
