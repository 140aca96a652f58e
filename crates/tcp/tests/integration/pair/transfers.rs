//! What two honest endpoints reach, whatever the channel between them does.

use std::time::Duration;

use bentpipe_tcp::congestion::{Algorithm, Components};
use bentpipe_tcp::{Config, End, Recovery, State};
use bentpipe_units::Time;
use proptest::prelude::*;

use crate::pair::channel::Conditions;
use crate::pair::connection::{Application, Opening, Pair};
use crate::pair::plan::{Plan, cases, clean, plan, rough};

/// Nothing may take longer: some 80 losses, each at a backed-off timeout, and a thousand pauses of the
/// applications.
const LONGEST: Duration = Duration::from_secs(100_000);
/// Nor more events than this: a few for each byte that goes in the smallest segments.
const MOST_EVENTS: u64 = 200_000;

fn finish(plan: &Plan) -> Pair {
    let mut pair = plan.pair();
    assert!(pair.run(Time::ZERO + LONGEST), "not at its end: {:?}", report(&pair));
    assert!(pair.events < MOST_EVENTS, "{} events", pair.events);
    pair
}

fn report(pair: &Pair) -> [impl std::fmt::Debug; 2] {
    [0, 1].map(|side| {
        let endpoint = &pair.sides[side].endpoint;
        (endpoint.state(), endpoint.end(), endpoint.statistics(), endpoint.variables())
    })
}

fn assert_complete(pair: &Pair) {
    for side in [0, 1] {
        let (here, there) = (&pair.sides[side], &pair.sides[1 - side]);
        let statistics = here.endpoint.statistics();
        assert_eq!(here.endpoint.end(), Some(End::Finished), "side {side}: {:?}", report(pair));
        assert_eq!(here.endpoint.state(), State::Established);
        assert_eq!(here.read, there.written, "what side {side} has read");
        assert_eq!(statistics.bytes_read, here.read);
        assert_eq!(statistics.bytes_acknowledged, here.written);
        assert_eq!(here.endpoint.receive_buffered(), 0);
        assert_eq!(here.endpoint.send_buffered(), 0);
        assert!(here.endpoint.is_at_end());
        let again = statistics.bytes_sent - here.written;
        assert!(statistics.retransmissions > 0 || again == 0, "{statistics:?}");
        assert!(statistics.retransmissions >= statistics.timeouts, "{statistics:?}");
        let repeated = pair.path[side].duplicated > 0;
        let most = there.endpoint.statistics().duplicate_bytes;
        assert!(repeated || most <= again, "{most} bytes arrived twice, {again} were sent twice");
    }
}

proptest! {
    #![proptest_config(cases(4000))]

    /// With a finite number of losses everything arrives once and in order, and both sides know.
    #[test]
    fn everything_written_arrives_and_both_sides_finish(plan in plan(rough)) {
        assert_complete(&finish(&plan));
    }

    /// Over a channel that loses and reorders nothing, nothing is sent twice; but a delayed acknowledgement
    /// may provoke a tail loss probe (RFC 8985 §7.2: several segments are expected to be acknowledged at
    /// once). What that acknowledges is dropped with it (RFC 9293 §3.10.7.4), so the other side may time out.
    /// Nobody takes it for a loss.
    #[test]
    fn a_clean_channel_sees_no_retransmission(plan in plan(clean)) {
        let pair = finish(&plan);
        assert_complete(&pair);
        let probes = |config: &Config| config.recovery == Recovery::Rack && config.tail_loss_probe;
        // A round trip that is remembered and was shorter makes the first timeout too short.
        if plan.configs.iter().any(|config| config.srtt.is_some()) {
            return Ok(());
        }
        let provoked =
            (0..2).any(|side| probes(&plan.configs[side]) && plan.configs[1 - side].delayed_ack.is_some());
        for side in &pair.sides {
            let statistics = side.endpoint.statistics();
            prop_assert_eq!(statistics.recoveries, 0, "{:?}", statistics);
            prop_assert!(provoked || statistics.retransmissions == 0, "{:?}", statistics);
        }
    }
}

/// A round trip that varies looks to Hybla like a queue that never empties, before which it paces by the rate
/// of the last round: with losses each round was slower than the one before, down to less than a byte in a
/// second.
#[test]
fn hybla_does_not_slow_down_for_ever_before_a_queue_that_is_none() {
    let components = Components { rho: false, hoe: false, recovery_growth: false, ..Components::ALL };
    let host = Config {
        mss: 88,
        initial_window: 1,
        send_buffer: 1500,
        receive_buffer: 1500,
        window_scaling: false,
        timestamps: false,
        delayed_ack: None,
        limited_transmit: false,
        nagle: false,
        restart_after_idle: false,
        byte_counting_limit: None,
        retries: None,
        proportional_rate_reduction: false,
        congestion: Algorithm::Hybla(components),
        ..Config::default()
    };
    let delay = Duration::from_millis(205);
    let seed = 2550485711512454540;
    let there = Conditions { loss_permille: 124, losses: 27, seed, ..Conditions::clean(delay) };
    let back = Conditions {
        jitter: Duration::from_millis(73),
        fifo: false,
        loss_permille: 173,
        losses: 23,
        lost: vec![17, 25, 30],
        seed: 6140304282898908038,
        ..Conditions::clean(Duration::from_millis(1))
    };
    let applications = [Application::eager(0), Application::eager(25_697)];
    let mut pair = Pair::new(Opening::Call, [host; 2], applications, [there, back], [0, 0]);
    assert!(pair.run(Time::ZERO + Duration::from_secs(1_000)), "{:?}", report(&pair));
    assert_complete(&pair);
}
