//! What holds of every congestion control, whatever happens to it.

use std::time::Duration;

use bentpipe_tcp::RateSample;
use bentpipe_tcp::congestion::{Acked, Algorithm, Components, Delivery, Feedback, Parameters, Phase};
use bentpipe_units::{Rate, Time};
use proptest::prelude::*;

const MSS: u64 = 1448;

#[derive(Debug, Clone)]
enum Event {
    Established(Option<Duration>),
    Ack(Acked),
    Delivery(Delivery),
    Window(u64, u64),
    Feedback(Feedback),
    Loss(u64),
    RecoveryEnd,
    Spurious,
    Restart(u64),
    Timeout(u64, bool),
    Idle,
    Rate(Option<Rate>),
}

fn duration() -> impl Strategy<Value = Duration> {
    prop_oneof![
        Just(Duration::ZERO),
        Just(Duration::MAX),
        (1u64..2_000_000).prop_map(Duration::from_micros),
        any::<u64>().prop_map(Duration::from_nanos),
    ]
}

fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(MSS), 1..1_000_000u64, Just(u64::MAX), any::<u64>()]
}

fn acked() -> impl Strategy<Value = Acked> {
    (
        any::<u64>(),
        bytes(),
        proptest::option::of(duration()),
        duration(),
        duration(),
        bytes(),
        any::<[bool; 2]>(),
    )
        .prop_map(|(now, bytes, rtt, srtt, min_rtt, in_flight, [cwnd_limited, in_recovery])| Acked {
            now: Time::from_nanos(now),
            bytes,
            rtt,
            srtt,
            min_rtt,
            in_flight,
            cwnd_limited,
            in_recovery,
        })
}

fn feedback() -> impl Strategy<Value = Event> {
    let change = prop_oneof![any::<i32>(), -100_000i32..100_000];
    (any::<u64>(), change, duration(), bytes()).prop_map(|(now, change, srtt, demand)| {
        Event::Feedback(Feedback { now: Time::from_nanos(now), change, srtt, demand })
    })
}

/// What is delivered does not go back; the rest may be anything.
fn delivery() -> impl Strategy<Value = Event> {
    let sample = (bytes(), duration(), 0u64..1 << 40, any::<bool>(), self::bytes(), self::bytes()).prop_map(
        |(bytes, interval, prior_delivered, is_app_limited, in_flight, lost)| RateSample {
            bytes,
            interval,
            prior_delivered,
            is_app_limited,
            in_flight,
            lost,
        },
    );
    let phase = prop_oneof![Just(Phase::Open), Just(Phase::Recovery), Just(Phase::Timeout)];
    (acked(), bytes(), bytes(), phase, proptest::option::of(sample)).prop_map(
        |(acked, delivered, lost, phase, sample)| {
            Event::Delivery(Delivery {
                now: acked.now,
                bytes: acked.bytes,
                delivered,
                lost,
                in_flight: acked.in_flight,
                prior_in_flight: acked.in_flight,
                rtt: acked.rtt,
                srtt: acked.srtt,
                phase,
                sample,
            })
        },
    )
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        1 => proptest::option::of(duration()).prop_map(Event::Established),
        12 => acked().prop_map(Event::Ack),
        6 => delivery(),
        1 => (MSS..1 << 40, bytes()).prop_map(|(cwnd, ssthresh)| Event::Window(cwnd, ssthresh)),
        6 => feedback(),
        2 => bytes().prop_map(Event::Loss),
        2 => Just(Event::RecoveryEnd),
        1 => Just(Event::Spurious),
        1 => any::<u64>().prop_map(Event::Restart),
        2 => (bytes(), any::<bool>()).prop_map(|(in_flight, first)| Event::Timeout(in_flight, first)),
        1 => Just(Event::Idle),
        2 => any::<u64>().prop_map(|bps| Event::Rate(Rate::from_bps(bps))),
    ]
}

fn algorithm() -> impl Strategy<Value = Algorithm> {
    let hybla = any::<[bool; 5]>().prop_map(|[rho, pacing, hoe, recovery_growth, queue]| {
        Algorithm::Hybla(Components { rho, pacing, hoe, recovery_growth, queue })
    });
    let by_name = proptest::sample::select(&Algorithm::NAMES[..]).prop_map(|name| name.parse().unwrap());
    prop_oneof![4 => by_name, 1 => hybla]
}

proptest! {
    #[test]
    fn no_sequence_of_events_breaks_a_window(
        algorithm in algorithm(),
        mss in 1u64..65_536,
        initial_window in bytes(),
        byte_counting_limit in proptest::option::of(any::<u32>()),
        events in proptest::collection::vec(event(), 1..200),
    ) {
        let mut control = algorithm.build(Parameters { mss, initial_window, byte_counting_limit, hystart: false, linux_cubic: false });
        for event in events {
            let before = control.cwnd();
            match &event {
                Event::Established(rtt) => control.on_established(Time::ZERO, *rtt),
                Event::Ack(ack) => control.on_ack(ack),
                Event::Delivery(delivery) => control.on_delivery(delivery),
                Event::Window(cwnd, ssthresh) => control.set_window((*cwnd).max(mss), (*ssthresh).max(2 * mss)),
                Event::Feedback(feedback) => control.on_feedback(feedback),
                Event::Loss(in_flight) => control.on_loss(Time::ZERO, *in_flight),
                Event::Spurious => control.on_spurious(),
                Event::Restart(at) => control.on_restart(Time::from_nanos(*at)),
                Event::RecoveryEnd => control.on_recovery_end(Time::ZERO),
                Event::Timeout(in_flight, first) => control.on_timeout(Time::ZERO, *in_flight, *first),
                Event::Idle => control.on_idle(Time::ZERO),
                Event::Rate(rate) => control.set_rate(*rate, 40),
            }
            prop_assert!((mss..=1 << 40).contains(&control.cwnd()), "{control:?} after {event:?}");
            prop_assert!(!format!("{control:?}").contains("NaN"), "{control:?} after {event:?}");
            if let Event::Loss(_) | Event::Timeout(_, true) = event {
                prop_assert!(control.ssthresh() >= 2 * mss, "{control:?} after {event:?}");
            }
            if let Event::Loss(_) = event {
                prop_assert!(control.cwnd() <= before.max(2 * mss), "a loss raised {before}: {control:?}");
            }
            let _ = control.pacing_rate(Duration::from_millis(600));
            for srtt in [Duration::ZERO, Duration::from_millis(600), Duration::MAX] {
                let _ = control.request(mss, srtt, before);
            }
        }
    }
}
