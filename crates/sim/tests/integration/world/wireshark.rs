//! Wireshark's dissector of what bentpipe puts on the wire, `dist/wireshark/bentpipe.lua`, over captures that
//! runs write, and over bytes that nobody should send.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bentpipe_link::ip::internet_checksum;
use bentpipe_link::pcapng::{self, Heading, Interface, LinkType};
use bentpipe_protect::{Choice, Class, Config, Leg, Queue, Secret};
use bentpipe_tcp::{CongestionOption, Segment};
use bentpipe_units::{ByteCount, Time};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::capture::{captured, packets, reader};

const DISSECTOR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/wireshark/bentpipe.lua");
const HEADERS: usize = 28;
const PORT: u16 = 25_200;
/// Of session frames: before what is sealed, and behind it.
const HEADER: usize = 5;
const HELLO_HEADER: usize = 26;
const TAG: usize = 16;

/// The fields of each packet of a capture that a display filter lets through; `None` without tshark.
fn fields<const N: usize>(file: &Path, filter: &str, names: [&str; N]) -> Option<Vec<[String; N]>> {
    let script = format!("lua_script:{DISSECTOR}");
    let mut arguments = vec!["-X", &script, "-r", file.to_str().unwrap(), "-Y", filter, "-T", "fields"];
    names.iter().for_each(|name| arguments.extend(["-e", name]));
    let text = reader("tshark", &arguments)?;
    let row = |line: &str| {
        let fields: Vec<String> = line.split('\t').map(str::to_owned).collect();
        fields.try_into().expect("a value for each name")
    };
    Some(text.lines().map(row).collect())
}

/// All that is shown about a capture.
fn shown(file: &Path) -> Option<String> {
    let script = format!("lua_script:{DISSECTOR}");
    reader("tshark", &["-X", &script, "-r", file.to_str().unwrap(), "-V"])
}

/// A capture of these IPv4 packets.
fn write(folder: &Path, packets: impl IntoIterator<Item = Vec<u8>>) -> PathBuf {
    let (link_type, mut file) = (LinkType::Ipv4, Vec::new());
    pcapng::section(&mut file, "a test");
    pcapng::interface(&mut file, &Interface { link_type, name: "sat0", description: "", speed: None });
    for (bytes, nanos) in packets.into_iter().zip(0..) {
        let (heading, length) = (Heading::Outbound, bytes.len());
        let packet = pcapng::Packet { interface: 0, nanos, heading, bytes: &bytes, length, comment: "" };
        pcapng::packet(&mut file, &packet);
    }
    let path = folder.join("test.pcapng");
    std::fs::write(&path, file).unwrap();
    path
}

fn ipv4(protocol: u8, [from, to]: [u8; 2], payload: &[u8]) -> Vec<u8> {
    let length = (20 + payload.len()) as u16;
    let mut packet = vec![0x45, 0];
    packet.extend_from_slice(&length.to_be_bytes());
    packet.extend_from_slice(&[0, 0, 0x40, 0, 64, protocol, 0, 0, 192, 0, 2, from, 192, 0, 2, to]);
    let checksum = internet_checksum(&packet).to_be_bytes();
    packet[10..12].copy_from_slice(&checksum);
    packet.extend_from_slice(payload);
    packet
}

/// A datagram without a checksum.
fn udp(ends: [u8; 2], port: u16, payload: &[u8]) -> Vec<u8> {
    let mut datagram = Vec::new();
    for field in [port, port, 8 + payload.len() as u16, 0] {
        datagram.extend_from_slice(&field.to_be_bytes());
    }
    datagram.extend_from_slice(payload);
    ipv4(17, ends, &datagram)
}

fn number<T: std::str::FromStr + Default>(text: &str) -> T {
    if text.is_empty() { T::default() } else { text.parse().ok().unwrap_or_else(|| panic!("{text:?}")) }
}

#[test]
fn each_option_of_xcp_is_shown_with_its_values() {
    let folder = tempfile::tempdir().unwrap();
    captured(folder.path(), "xcp.toml", &["duration=4s"]);
    let file = folder.path().join("packets.pcapng");
    let names = ["type", "rtt", "spacing", "feedback", "total"].map(|name| format!("bentpipe.xcp.{name}"));
    let names = names.each_ref().map(String::as_str);
    let Some(found) = fields(&file, "bentpipe.xcp.kind", names) else { return };
    let option = |packet: &super::capture::Packet| Segment::decode(&packet.bytes[20..]).unwrap().congestion;
    let sent = packets(&std::fs::read(&file).unwrap());
    let sent: Vec<_> = sent.iter().map(option).filter(|option| *option != CongestionOption::None).collect();
    let read = |[kind, rtt, spacing, feedback, total]: &[String; 5]| match kind.as_str() {
        "offer" => CongestionOption::Offer,
        "request" => CongestionOption::Request {
            rtt: number(rtt),
            spacing: number(spacing),
            feedback: number(feedback),
        },
        "total" => CongestionOption::Total(number(total)),
        other => panic!("{other}"),
    };
    assert_eq!(found.iter().map(read).collect::<Vec<_>>(), sent);
    for kind in ["offer", "request", "total"] {
        assert!(found.iter().any(|option| option[0] == kind), "no {kind}");
    }
}

#[test]
fn frames_of_a_protected_leg_are_shown_and_their_content_is_encrypted() {
    let folder = tempfile::tempdir().unwrap();
    captured(folder.path(), "protected-leg.toml", &["duration=5s"]);
    let file = folder.path().join("packets.pcapng");
    let names = ["kind", "key_id", "number", "epoch", "sealed", "tag", "malformed"]
        .map(|name| format!("bentpipe.protect.{name}"));
    let names = names.each_ref().map(String::as_str);
    let Some(found) = fields(&file, "udp.port == 25200", names) else { return };
    let is_frame =
        |packet: &super::capture::Packet| packet.bytes[9] == 17 && packet.bytes[20..22] == PORT.to_be_bytes();
    let sent = packets(&std::fs::read(&file).unwrap());
    let sent: Vec<_> = sent.into_iter().filter(is_frame).collect();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let expected = |packet: &super::capture::Packet| {
        let frame = &packet.bytes[HEADERS..];
        let is_hello = frame[0] & 15 == 0;
        let (header, tag) = (if is_hello { HELLO_HEADER } else { HEADER }, frame.len() - TAG);
        let unless_hello = |text: String| if is_hello { String::new() } else { text };
        let number = u32::from_be_bytes([0, frame[2], frame[3], frame[4]]);
        [
            (frame[0] & 15).to_string(),
            unless_hello(format!("0x{:02x}", frame[1])),
            unless_hello(number.to_string()),
            unless_hello("0".to_owned()),
            hex(&frame[header..tag]),
            hex(&frame[tag..]),
            String::new(),
        ]
    };
    assert_eq!(found, sent.iter().map(expected).collect::<Vec<_>>());
    for kind in ["0", "2", "3", "5"] {
        assert!(found.iter().any(|frame| frame[0] == kind), "none of kind {kind}");
    }
}

/// What the two ends of a leg without a cipher send each other; every seventh frame is lost.
fn insecure_frames() -> Vec<([u8; 2], Vec<u8>)> {
    let end = |entropy| Leg::new(Config::default(), Secret::insecure(), [entropy; 32]);
    let mut legs = [end(1), end(2)];
    let mut queue = Queue::new(1, ByteCount::new(1_000_000));
    let (mut frames, mut frame) = (Vec::new(), Vec::new());
    for step in 0..300u64 {
        let now = Time::ZERO + Duration::from_millis(10 * step);
        let packet = udp([9, 10], 4000, &[step as u8; 100]);
        queue.push(packet, if step % 2 == 0 { Choice::Latency } else { Choice::Bulk }, now);
        if step % 50 == 0 {
            queue.push(vec![0xff; 33], Choice::Bulk, now);
        }
        for sender in 0..2 {
            legs[sender].on_timer(now);
            loop {
                let sent =
                    legs[sender].poll(now, &mut frame, || if sender == 0 { queue.pop(now) } else { None });
                if sent.is_none() {
                    break;
                }
                frames.push(([sender as u8 + 1, 2 - sender as u8], frame.clone()));
                if frames.len() % 7 > 0 {
                    // An end may refuse a frame of a session that has not begun for it.
                    let _ = legs[1 - sender].on_frame(&mut frame, now);
                }
            }
            while legs[sender].next_packet().is_some() {}
        }
    }
    frames
}

#[test]
fn without_a_cipher_packets_windows_reports_and_contexts_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let frames = insecure_frames();
    let file = write(folder.path(), frames.iter().map(|(ends, frame)| udp(*ends, PORT, frame)));
    let names = [
        "kind",
        "esi",
        "repair.key",
        "window.first",
        "report.received",
        "cid",
        "generation",
        "template",
        "malformed",
        "sealed",
    ]
    .map(|name| format!("bentpipe.protect.{name}"));
    let names = names.each_ref().map(String::as_str);
    let Some(found) = fields(&file, "bentpipe_protect", names) else { return };
    assert_eq!(found.len(), frames.len());
    let three = |bytes: &[u8]| u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]).to_string();
    let mut kinds = [0; 7];
    for (shown, (_, frame)) in found.iter().zip(&frames) {
        let [kind, esi, key, window, received, cid, generation, template, malformed, sealed] = shown;
        assert_eq!((&**malformed, &**sealed), ("", ""), "{shown:?}");
        assert_eq!(*kind, (frame[0] & 15).to_string());
        let body = &frame[HEADER..];
        kinds[usize::from(frame[0] & 15)] += 1;
        match frame[0] & 15 {
            0 => {}
            1 | 2 => assert_eq!(*esi, three(body)),
            3 | 4 => {
                let expected = (format!("0x{:02x}{:02x}", body[0], body[1]), three(&body[2..]));
                assert_eq!((key.clone(), window.clone()), expected);
            }
            5 => {
                let count = u64::from_be_bytes(*body[12..].first_chunk().unwrap());
                assert_eq!(*received, count.to_string());
            }
            _ => {
                let length = usize::from(body[3]);
                let hex: String = body[4..4 + length].iter().map(|byte| format!("{byte:02x}")).collect();
                let first = (number::<u8>(cid.split(',').next().unwrap()), generation.split(',').next());
                assert_eq!(
                    (first, template.split(',').next()),
                    ((body[0], Some("0")), Some(&*hex)),
                    "{shown:?}"
                );
            }
        }
    }
    assert!(kinds.iter().all(|count| *count > 0), "each kind: {kinds:?}");
    // The packets inside are read on: as IP, or with their context.
    let inside = fields(&file, "bentpipe.protect.class && udp.port == 4000", ["ip.src"]).unwrap();
    assert!(inside.iter().any(|[addresses]| addresses.ends_with(",192.0.2.9")), "{inside:?}");
    let compressed = fields(&file, "bentpipe.protect.compressed", ["bentpipe.protect.cid"]).unwrap();
    assert!(!compressed.is_empty());
    assert!(!Class::ALL.is_empty() && shown(&file).unwrap().contains("Class: latency"));
}

#[test]
fn bytes_that_are_no_frame_and_no_option_raise_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = SplitMix64::seed_from_u64(7);
    let mut below = |limit: usize| (random.next_u64() % limit as u64) as usize;
    let frames = insecure_frames();
    let mut packets = Vec::new();
    // With cipher 255, what follows is read as cleartext.
    packets.push(udp([1, 2], PORT, &frames[0].1));
    for round in 0..3000 {
        let mut frame = frames[below(frames.len())].1.clone();
        match round % 3 {
            0 => frame.truncate(below(frame.len() + 1)),
            1 => (0..=below(4)).for_each(|_| {
                let at = below(frame.len().min(60));
                frame[at] = below(256) as u8;
            }),
            _ => {
                frame = (0..below(120)).map(|_| below(256) as u8).collect();
                let kind = 0x10 | below(8) as u8;
                frame.iter_mut().take(1).for_each(|first| *first = kind);
            }
        }
        // A hello with another cipher would end the cleartext.
        if frame.first().is_some_and(|first| first & 15 == 0) && frame.len() > 1 && round % 9 > 0 {
            frame[1] = 0xff;
        }
        packets.push(udp([1, 2], PORT, &frame));
    }
    for _ in 0..2000 {
        let mut options = vec![254, [4, 8, 16, below(41) as u8][below(4)], 0x42, 0x50];
        options.extend((0..36).map(|_| below(256) as u8));
        options.truncate(4 * (1 + below(10)));
        let mut header = vec![0; 12];
        header.extend_from_slice(&[(5 + options.len() as u8 / 4) << 4, 0x10, 0, 0, 0, 0, 0, 0]);
        header.extend_from_slice(&options);
        packets.push(ipv4(6, [3, 4], &header));
    }
    let count = packets.len();
    let file = write(folder.path(), packets);
    let Some(text) = shown(&file) else { return };
    assert!(!text.contains("Lua Error"), "{}", text.lines().find(|line| line.contains("Lua Error")).unwrap());
    assert!(text.matches("malformed frame").count() > 100 && text.matches("Frame ").count() >= count);
    assert!(text.contains("malformed option of XCP"));
}

#[test]
fn epochs_are_counted_where_numbers_begin_anew() {
    let folder = tempfile::tempdir().unwrap();
    let frame = |number: u32| [&[0x11, 7][..], &number.to_be_bytes()[1..], &[0; 40]].concat();
    let numbers = [0xff_fffe, 0xff_ffff, 1, 0xff_fffd, 2];
    let file = write(folder.path(), numbers.map(|number| udp([1, 2], PORT, &frame(number))));
    let Some(found) = fields(&file, "bentpipe_protect", ["bentpipe.protect.epoch"]) else { return };
    assert_eq!(found.concat(), ["0", "0", "1", "0", "1"]);
}
