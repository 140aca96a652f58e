//! Segments that nobody sent, resets, aborts and dead channels.

use std::time::Duration;

use bentpipe_tcp::{
    Config, CongestionOption, End, Endpoint, Flags, SackBlocks, Segment, State, SynOptions, Timestamps,
};
use bentpipe_units::Time;
use proptest::prelude::*;

use crate::pair::channel::Conditions;
use crate::pair::connection::{Application, Opening, Pair};
use crate::pair::peer::Peer;
use crate::pair::plan::{Plan, cases, clean, config, plan, rough};

const HOUR: Duration = Duration::from_secs(3_600);

// Garbage.

/// A number anywhere, or near one that matters.
fn number(near: u32) -> impl Strategy<Value = u32> {
    let close = (-3_000i32..3_000).prop_map(move |distance| near.wrapping_add_signed(distance));
    prop_oneof![close, any::<u32>()]
}

fn options() -> impl Strategy<Value = SynOptions> {
    let mss = prop::option::of(any::<u16>());
    (mss, prop::option::of(any::<u8>()), any::<bool>())
        .prop_map(|(mss, window_scale, sack_permitted)| SynOptions { mss, window_scale, sack_permitted })
}

fn congestion() -> impl Strategy<Value = CongestionOption> {
    prop_oneof![
        Just(CongestionOption::None),
        Just(CongestionOption::Offer),
        any::<(u32, u32, i32)>().prop_map(|(rtt, spacing, feedback)| CongestionOption::Request {
            rtt,
            spacing,
            feedback
        }),
        any::<u32>().prop_map(CongestionOption::Total),
    ]
}

/// What an attacker who knows roughly where the two are, or a mad peer, may send.
fn garbage(theirs: u32, ours: u32) -> impl Strategy<Value = Segment> {
    let blocks = prop::collection::vec((number(ours), number(ours)), 0..4);
    let timestamps = prop::option::of((any::<u32>(), any::<u32>()));
    let len = prop_oneof![Just(0u32), 0u32..3_000];
    // Few resets, or most runs would be short.
    let fin = Flags::ACK | Flags::FIN;
    let bits = prop_oneof![6 => Just(Flags::ACK.bits()), 3 => Just(fin.bits()), 1 => 0u8..32];
    (
        (number(theirs), number(ours), len, any::<u16>(), bits),
        (prop::option::of(options()), timestamps, blocks, congestion()),
    )
        .prop_map(|((seq, ack, len, window, flags), (syn, timestamps, blocks, congestion))| {
            let mut sack = SackBlocks::default();
            blocks.into_iter().for_each(|(first, end)| sack.push(first, end));
            let flags = Flags::from_bits(flags);
            // Only a SYN has a SYN's options, and every SYN has them, as the codec makes sure.
            let syn = flags.has(Flags::SYN).then(|| syn.unwrap_or_default());
            let timestamps = timestamps.map(|(value, echo)| Timestamps { value, echo });
            Segment { seq, ack, len, window, flags, syn, timestamps, sack, congestion }
        })
}

/// What happens to an endpoint.
#[derive(Debug, Clone)]
enum Event {
    Arrives(Segment),
    Passes(Duration),
    Writes(u64),
    Reads(u64),
    Finishes,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        6 => garbage(crate::pair::peer::THEIRS, crate::pair::peer::OURS).prop_map(Event::Arrives),
        2 => (0u64..3_000).prop_map(|millis| Event::Passes(Duration::from_millis(millis))),
        1 => (1u64..5_000).prop_map(Event::Writes),
        1 => (1u64..5_000).prop_map(Event::Reads),
        1 => Just(Event::Finishes),
    ];
    prop::collection::vec(event, 0..60)
}

/// Lets `events` happen; whatever they are, the endpoint's sums add up after each of them.
fn survive(peer: &mut Peer, config: &Config, events: Vec<Event>) {
    let mut written = 0;
    for event in events {
        match event {
            Event::Arrives(segment) => {
                peer.arrives(segment);
            }
            Event::Passes(span) => peer.now += span,
            Event::Writes(bytes) => written += peer.endpoint.write(bytes),
            Event::Reads(bytes) => {
                peer.endpoint.read(peer.now, bytes);
            }
            Event::Finishes => peer.endpoint.finish(),
        }
        peer.sent();
        let now = peer.now;
        peer.endpoint.on_timer(now);
        peer.sent();
        let (endpoint, now) = (&peer.endpoint, peer.now);
        assert!(endpoint.wake_at() > now, "it wants to be woken at {:?}, now is {now:?}", endpoint.wake_at());
        assert!(endpoint.receive_buffered() <= config.receive_buffer + 1);
        assert!(endpoint.readable() <= config.receive_buffer);
        let statistics = endpoint.statistics();
        assert!(statistics.bytes_acknowledged <= written, "{statistics:?}");
        assert!(statistics.bytes_acknowledged <= statistics.bytes_sent, "{statistics:?}");
    }
}

proptest! {
    #![proptest_config(cases(4000))]

    /// In every state, whatever arrives, nothing panics and nothing is acknowledged that was not sent.
    #[test]
    fn garbage_breaks_nothing(config in config(), state in 0u8..4, events in events()) {
        let ours = crate::pair::peer::OURS;
        let mut peer = match state {
            0 => Peer::before(Endpoint::listen(config, ours), config),
            1 => Peer::before(Endpoint::connect(config, ours, Time::ZERO), config),
            2 => {
                let mut peer = Peer::before(Endpoint::listen(config, ours), config);
                peer.answer(Flags::SYN);
                peer
            }
            _ => Peer::called(config),
        };
        peer.sent();
        survive(&mut peer, &config, events);
    }

    /// What lies outside the window, with whatever acknowledgement, does not touch a transfer.
    #[test]
    fn segments_outside_the_window_do_not_touch_a_transfer(
        plan in plan(clean),
        strangers in prop::collection::vec((0u64..5_000, 0usize..2, garbage(0, 0), any::<u32>()), 0..30),
    ) {
        let mut pair = plan.pair();
        let mut strangers = strangers;
        strangers.sort_by_key(|stranger| stranger.0);
        for (millis, side, segment, anywhere) in strangers {
            pair.run(Time::ZERO + Duration::from_millis(millis));
            if pair.sides[side].endpoint.state() != State::Established {
                continue;
            }
            // Beyond the largest buffer, or far before the stream.
            let seq = plan.initials[1 - side].wrapping_add(0x2000_0000 + anywhere % 0x6000_0000);
            let stranger = Segment { seq, syn: None, flags: without_syn(segment.flags), ..segment };
            let now = pair.now;
            pair.sides[side].endpoint.on_segment(now, &stranger);
            pair.attend(side);
        }
        prop_assert!(pair.run(Time::ZERO + 100 * HOUR));
        for side in [0, 1] {
            prop_assert_eq!(pair.sides[side].endpoint.end(), Some(End::Finished));
            prop_assert_eq!(pair.sides[side].read, pair.sides[1 - side].written);
        }
    }

    /// A listener takes neither data nor resets of an earlier connection, and the next caller reaches it.
    #[test]
    fn a_listener_survives_remains_of_earlier_connections(
        plan in plan(clean),
        old in prop::collection::vec(garbage(77, 88), 0..10),
    ) {
        let plan = Plan { opening: Opening::Call, ..plan };
        let mut pair = plan.pair();
        for segment in old {
            let stranger = Segment { syn: None, flags: without_syn(segment.flags), ..segment };
            pair.sides[1].endpoint.on_segment(Time::ZERO, &stranger);
            prop_assert_eq!(pair.sides[1].endpoint.state(), State::Listen);
            while pair.sides[1].endpoint.poll_transmit(Time::ZERO).is_some() {}
        }
        prop_assert!(pair.run(Time::ZERO + 100 * HOUR));
        prop_assert_eq!(pair.sides[0].endpoint.end(), Some(End::Finished));
    }

    /// Whenever one side aborts: it ends so at once, and the other side learns it or has nothing to say.
    #[test]
    fn an_abort_reaches_a_peer_that_still_sends(
        plan in plan(rough),
        side in 0usize..2,
        millis in 0u64..10_000,
    ) {
        let mut plan = plan;
        let at = Time::ZERO + Duration::from_millis(millis);
        plan.applications[side].aborts_at = Some(at);
        let mut pair = plan.pair();
        // A client of a listener that has gone before the call was answered, or whose reset is lost, waits
        // for ever.
        prop_assert!(pair.run(Time::ZERO + 100 * HOUR), "{:?}", pair.now);
        let [aborted, other] = [side, 1 - side].map(|side| &pair.sides[side].endpoint);
        prop_assert!(matches!(aborted.end(), Some(End::Aborted | End::Finished | End::Refused | End::Reset)));
        let quiet = other.state() == State::Listen || other.send_buffered() == 0;
        prop_assert!(other.end().is_some() || quiet, "{:?} {:?}", other.state(), other.statistics());
        prop_assert!(pair.sides[1 - side].read <= pair.sides[side].written);
    }

    /// From some moment on nothing arrives: who still has something to send gives up, within what its timers
    /// allow.
    #[test]
    fn a_dead_channel_times_out(
        plan in plan(rough),
        millis in 0u64..20_000,
        retries in prop::option::of(0u32..8),
        user_timeout in 1u64..100,
    ) {
        let mut plan = plan;
        for config in &mut plan.configs {
            config.retries = retries;
            config.user_timeout = retries.is_none().then(|| Duration::from_secs(user_timeout));
            (config.syn.waits, config.syn_ack.waits) = (Some(6), Some(6));
        }
        let mut pair = plan.pair();
        pair.run(Time::ZERO + Duration::from_millis(millis));
        pair.path.iter_mut().for_each(|channel| channel.becomes(Conditions::dead()));
        prop_assert!(pair.run(Time::ZERO + 100 * HOUR), "it ends");
        for side in &pair.sides {
            let quiet = side.endpoint.send_buffered() == 0 || side.endpoint.state() == State::Listen;
            prop_assert!(side.endpoint.end().is_some() || quiet, "{:?}", side.endpoint.statistics());
        }
    }
}

fn without_syn(flags: Flags) -> Flags {
    Flags::from_bits(flags.bits() & !Flags::SYN.bits())
}

/// An unanswered FIN is given up like data: after (2^(n+1) − 1) timeouts.
#[test]
fn a_fin_into_a_dead_channel_is_given_up_when_the_formula_says() {
    let patient = Config { retries: Some(4), delayed_ack: None, ..Config::default() };
    let conditions = || Conditions::clean(Duration::from_millis(50));
    let waits = Application { finishes_last: true, ..Application::eager(0) };
    let applications = [Application::eager(0), waits];
    let mut pair =
        Pair::new(Opening::Call, [patient; 2], applications, [conditions(), conditions()], [u32::MAX, 2]);
    pair.path[0].becomes(Conditions::dead());
    assert!(pair.run(Time::ZERO + HOUR));
    assert_eq!(pair.sides[0].endpoint.end(), Some(End::TimedOut));
    // The handshake took 100 ms; the timeout is at its floor of a second.
    let ended_at = pair.sides[0].endpoint.statistics().ended_at;
    assert_eq!(ended_at, Some(Time::ZERO + Duration::from_millis(100) + Duration::from_secs((1 << 5) - 1)));
}
