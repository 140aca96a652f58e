//! What two honest endpoints reach, whatever the channel between them does.

use std::time::Duration;

use bentpipe_tcp::congestion::{Algorithm, Components};
use bentpipe_tcp::{Config, End, Recovery, State};
use bentpipe_units::Time;
use proptest::prelude::*;

use crate::channel::Conditions;
use crate::pair::{Application, Opening, Pair};
use crate::plan::{Plan, cases, clean, plan, rough};

/// Nothing may take longer: some 80 losses, each at a backed-off timeout, and a thousand pauses of the applications.
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
    #![proptest_config(cases(2000))]

    /// With a finite number of losses everything arrives once and in order, and both sides know.
    #[test]
    fn everything_written_arrives_and_both_sides_finish(plan in plan(rough)) {
        assert_complete(&finish(&plan));
    }

    /// Over a channel that loses and reorders nothing, nothing is sent twice.
    #[test]
    fn a_clean_channel_sees_no_retransmission(plan in plan(clean)) {
        let pair = finish(&plan);
        assert_complete(&pair);
        for side in &pair.sides {
            let statistics = side.endpoint.statistics();
            prop_assert_eq!((statistics.retransmissions, statistics.timeouts), (0, 0), "{:?}", statistics);
        }
    }
}

/// What a delayed acknowledgement adds to the round trip of a lone segment looks like a queue to Hybla, which then paces by
/// the rate of the last round: each round was slower than the one before, down to a byte in a second.
#[test]
fn hybla_does_not_slow_down_for_ever_before_a_queue_that_is_none() {
    let hybla = Config {
        mss: 125,
        initial_window: 1,
        receive_buffer: 1500,
        timestamps: false,
        sack: false,
        recovery: Recovery::Reno,
        congestion: Algorithm::Hybla(Components { rho: false, ..Components::ALL }),
        delayed_ack: Some(Duration::from_millis(116)),
        retries: None,
        ..Config::default()
    };
    let there = Conditions {
        loss_permille: 200,
        losses: 40,
        seed: 5,
        jitter: Duration::from_millis(30),
        ..Conditions::clean(Duration::from_millis(117))
    };
    let back = Conditions::clean(Duration::from_millis(60));
    let applications = [Application::eager(100_000), Application::eager(0)];
    let mut pair = Pair::new(Opening::Call, [hybla; 2], applications, [there, back], [1, 2]);
    assert!(pair.run(Time::ZERO + Duration::from_secs(1_000)), "{:?}", report(&pair));
}
