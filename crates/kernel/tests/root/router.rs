//! The XCP router's eBPF program: what it counts, what it hands out, and that no packet is harmed by it.

use std::time::Duration;

use crate::common::frame::{HeaderFields, Segment, blank, checksum_is_right, feedback_of};
use crate::common::trial::{self, Frame};
use bentpipe_kernel::router::{Router, RouterConfig, Shares, Variant};
use bentpipe_units::Rate;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

fn config(variant: Variant) -> RouterConfig {
    RouterConfig { capacity: Rate::mbps(10), variant, longest_rtt: Duration::from_secs(2) }
}

fn runner() -> TestRunner {
    TestRunner::new(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })
}

fn detached(variant: Variant) -> Option<Router> {
    // SAFETY: geteuid only returns a number.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: needs root: to load an eBPF program");
        return None;
    }
    Some(Router::detached(&config(variant)).unwrap())
}

#[derive(Debug, Clone)]
struct Case {
    segment: Segment,
    segments: u32,
}

fn segment() -> impl Strategy<Value = Segment> {
    let asked = prop_oneof![-2_000_000i32..2_000_000, Just(i32::MAX), Just(i32::MIN), Just(0)];
    let fields = (0u32..3_000_000, 1_000u32..3_000_000_000, asked)
        .prop_map(|(rtt, spacing, feedback)| HeaderFields { rtt, spacing, feedback });
    (fields, any::<bool>(), 1usize..1400, 0usize..=24).prop_map(|(fields, v6, payload, nops)| Segment {
        fields: Some(fields),
        v6,
        payload,
        nops,
    })
}

fn case() -> impl Strategy<Value = Case> {
    (segment(), 1u32..40).prop_map(|(segment, segments)| Case { segment, segments })
}

fn shares() -> impl Strategy<Value = Shares> {
    (0.0..5e6, 0.0..5e6, 0.0..5e6, 0.0..50.0).prop_map(|(positive, negative, per_second, per_byte)| Shares {
        positive,
        negative,
        per_second,
        per_byte,
    })
}

#[test]
fn feedback_is_that_of_virtual_time_and_checksums_stay_right() {
    for variant in [Variant::Xcp, Variant::PXcp] {
        let Some(router) = detached(variant) else { return };
        runner()
            .run(&(shares(), prop::collection::vec(case(), 1..40)), |(shares, cases)| {
                router.set_shares(&shares, Duration::ZERO);
                let mut in_virtual_time = shares;
                let mut carried = 0.0;
                for Case { segment, segments } in cases {
                    let frame = segment.frame();
                    let wire = segment.wire_bytes(segments);
                    let fields = segment.fields.unwrap();
                    let run = Frame {
                        segments: if segments == 1 { 0 } else { segments },
                        wire_length: wire + 14 * segments,
                        ..Frame::new(&frame)
                    };
                    let trial = trial::run(router.program(), &run).unwrap();
                    let count = f64::from(segments);
                    let may_grow = variant == Variant::Xcp || fields.feedback > 0;
                    let rtt = f64::from(fields.rtt) * 1e-6;
                    let spacing = count * (f64::from(fields.spacing) * 1e-9).min(rtt).min(2.0);
                    let asked = count * f64::from(fields.feedback);
                    let spacing = Duration::from_secs_f64(spacing);
                    let wanted = in_virtual_time.give(spacing, f64::from(wire), asked, may_grow);
                    let given = count * f64::from(feedback_of(&trial.bytes));
                    // A part of a byte per second for each packet so far; and the factor, a multiple of 2⁻³²
                    // B/s for a nanosecond.
                    carried += count + spacing.as_secs_f64() * 0.24;
                    prop_assert!((given - wanted).abs() <= carried, "{given} and not {wanted} ± {carried}");
                    prop_assert!(feedback_of(&trial.bytes) <= fields.feedback);
                    prop_assert!(checksum_is_right(&trial.bytes));
                    prop_assert_eq!(trial.verdict, -1);
                    prop_assert_eq!(blank(&trial.bytes), blank(&frame));
                }
                Ok(())
            })
            .unwrap();
    }
}

#[test]
fn sums_are_those_of_the_packets_on_the_wire() {
    let Some(mut router) = detached(Variant::PXcp) else { return };
    let fields = |feedback| HeaderFields { rtt: 600_000, spacing: 1_200_000, feedback };
    let with = |feedback| Segment { fields: Some(fields(feedback)), v6: false, payload: 1000, nops: 0 };
    let (asking, limited, plain) = (with(1000), with(0), Segment { fields: None, ..with(0) });
    for (segment, segments) in [(&asking, 10), (&limited, 1), (&plain, 1)] {
        let frame = segment.frame();
        let wire_length = segment.wire_bytes(segments) + 14 * segments;
        trial::run(router.program(), &Frame { segments, wire_length, ..Frame::new(&frame) }).unwrap();
    }
    let sums = router.take_sums();
    // The headers of IPv4 and TCP with sixteen bytes of options, and without: ten times a tenth of the data,
    // once all of it.
    assert_eq!(sums.bytes, f64::from(10 * 56 + 1000 + 56 + 1000 + 40 + 1000));
    let close = |a: f64, b: f64| (a - b).abs() < 1e-5 * b;
    assert!(close(sums.spacing, 11.0 * 1.2e-3) && close(sums.asking_spacing, 10.0 * 1.2e-3), "{sums:?}");
    assert!(close(sums.rtt_spacing, 11.0 * 0.6 * 1.2e-3), "{sums:?}");
    let counters = router.counters();
    assert_eq!((counters.packets, counters.with_header, counters.malformed), (12, 11, 0));
    assert_eq!(router.take_sums().bytes, 0.0);
}

#[test]
fn the_queue_drains_at_the_capacity() {
    let Some(mut router) = detached(Variant::Xcp) else { return };
    assert_eq!(router.take_sums().queue, 0.0);
    let frame = Segment { fields: None, v6: false, payload: 1210, nops: 0 }.frame();
    // 1250 bytes each: a second of 10 Mbit/s.
    trial::run(router.program(), &Frame { repeat: 1000, ..Frame::new(&frame) }).unwrap();
    // No queue has stood yet. One that is still there when a watch of 2 ms has passed has.
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(3));
        trial::run(router.program(), &Frame::new(&frame)).unwrap();
    }
    let queue = router.take_sums().queue;
    // The program runs a thousand times in much less than half a second even on a busy machine.
    assert!((600_000.0..=1_252_000.0).contains(&queue), "{queue}");
    crate::common::wait_for("the queue to drain", || (router.take_sums().queue == 0.0).then_some(()));
    // Each of these has left, in a millisecond, before the next one comes.
    for _ in 0..4 {
        trial::run(router.program(), &Frame::new(&frame)).unwrap();
        std::thread::sleep(Duration::from_millis(3));
        assert_eq!(router.take_sums().queue, 0.0);
    }
}

#[test]
fn unreadable_packets_pass_unchanged() {
    let Some(router) = detached(Variant::Xcp) else { return };
    router.set_shares(&Shares { negative: 1e9, per_byte: 1e6, ..Shares::default() }, Duration::ZERO);
    let fields = HeaderFields { rtt: 600_000, spacing: 1_000_000, feedback: 1000 };
    let good = Segment { fields: Some(fields), v6: false, payload: 100, nops: 0 }.frame();
    let touched = |router: &Router, frame: &[u8]| {
        trial::run(router.program(), &Frame::new(frame)).unwrap().bytes != frame
    };
    assert!(touched(&router, &good));
    let option = 14 + 20 + 20;
    let spoilt = |at: usize, value: u8| {
        let mut frame = good.clone();
        frame[at] = value;
        frame
    };
    for (what, frame, malformed) in [
        ("another kind", spoilt(option, 253), false),
        ("another experiment", spoilt(option + 2, 1), false),
        ("an unknown length", spoilt(option + 1, 15), true),
        ("a length beyond the header", spoilt(option + 1, 60), true),
        ("a length of nothing", spoilt(option + 1, 0), true),
        ("a fragment", spoilt(14 + 6, 0x20), false),
        ("a later fragment", spoilt(14 + 7, 1), false),
        ("UDP", spoilt(14 + 9, 17), false),
        ("a TCP header too short", spoilt(14 + 20 + 12, 4 << 4), false),
        ("a TCP header beyond the packet", good[..14 + 20 + 30].to_vec(), false),
        ("no data", good[..14 + 20 + 36].to_vec(), false),
        ("ARP", spoilt(13, 6), false),
        ("end of options first", spoilt(option, 0), false),
    ] {
        let before = router.counters().malformed;
        assert!(!touched(&router, &frame), "{what}");
        assert_eq!(router.counters().malformed - before, u64::from(malformed), "{what}");
    }
    // Of an IPv6 packet with a header in between nothing is known.
    let mut extended = Segment { fields: Some(fields), v6: true, payload: 100, nops: 0 }.frame();
    assert!(touched(&router, &extended));
    extended[14 + 6] = 0;
    assert!(!touched(&router, &extended));
}

#[test]
fn a_sender_that_knows_no_round_trip_time_yet_gets_nothing() {
    let Some(mut router) = detached(Variant::Xcp) else { return };
    router.set_shares(&Shares { positive: 1e6, per_second: 1e6, ..Shares::default() }, Duration::ZERO);
    for (asked, given) in [(5000, 0), (0, 0), (-7, -7)] {
        let fields = HeaderFields { rtt: 0, spacing: 1_000_000, feedback: asked };
        let frame = Segment { fields: Some(fields), v6: true, payload: 9, nops: 3 }.frame();
        assert_eq!(feedback_of(&trial::run(router.program(), &Frame::new(&frame)).unwrap().bytes), given);
    }
    assert_eq!(router.take_sums().spacing, 0.0);
}

#[test]
fn any_bytes_pass_the_program() {
    let Some(router) = detached(Variant::Xcp) else { return };
    let types = prop_oneof![Just([8u8, 0]), Just([0x86, 0xdd]), any::<[u8; 2]>()];
    runner()
        .run(&(types, prop::collection::vec(any::<u8>(), 40..200)), |(protocol, rest)| {
            let frame = [&[0; 12][..], &protocol, &rest].concat();
            prop_assert_eq!(trial::run(router.program(), &Frame::new(&frame)).unwrap().verdict, -1);
            Ok(())
        })
        .unwrap();
}
