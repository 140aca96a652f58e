//! What was wrong once, or easily could be, as timelines.

use std::time::Duration;

use bentpipe_tcp::{Config, End, Endpoint, Flags, Recovery, Segment, State, SynOptions, Timestamps};
use bentpipe_units::Time;

use crate::pair::peer::{MSS, OURS, Peer, RTT, THEIRS, behind, config};

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Segments of `MSS` bytes, as the numbers of those sent.
fn numbers(data: Vec<(u64, u32)>) -> Vec<u64> {
    data.into_iter().map(|(start, _)| (start - 1) / MSS + 1).collect()
}

// The handshake.

/// The SYN-ACK that comes when both have called answers the SYN, not the SYN-ACK sent half a round trip ago.
#[test]
fn a_simultaneous_open_does_not_halve_the_round_trip() {
    for timestamps in [false, true] {
        let mut peer = calling(Config { timestamps, ..config() });
        let answer = peer.opening(Flags::SYN | Flags::ACK);
        peer.pass(RTT / 2).answer(Flags::SYN);
        assert_eq!(peer.sent()[0].flags, Flags::SYN | Flags::ACK);
        peer.pass(RTT / 2).arrives(answer);
        assert_eq!(peer.endpoint.state(), State::Established);
        let srtt = peer.endpoint.variables().srtt;
        assert_eq!(srtt, if timestamps { RTT } else { Duration::ZERO });
        peer.endpoint.write(MSS);
        let options = if timestamps { 12 } else { 0 };
        assert_eq!(peer.data(), [(1, MSS as u32 - options)], "the mss of the peer's SYN counts");
    }
}

fn calling(config: Config) -> Peer {
    let mut peer = Peer::before(Endpoint::connect(config, OURS, Time::ZERO), config);
    peer.sent();
    peer
}

fn called_upon(config: Config) -> Peer {
    let mut peer = Peer::before(Endpoint::listen(config, OURS), config);
    peer.answer(Flags::SYN);
    assert_eq!(peer.sent()[0].flags, Flags::SYN | Flags::ACK);
    peer
}

/// Karn's rule holds for a SYN-ACK that a repeated SYN has called forth: RFC 6298 §3.
#[test]
fn an_answer_given_twice_does_not_measure_the_round_trip() {
    let mut peer = called_upon(config());
    peer.pass(ms(900)).answer(Flags::SYN);
    assert_eq!(peer.sent().len(), 1, "the answer again");
    let third = peer.segment(1, 1, 0);
    peer.pass(RTT).arrives(third);
    assert_eq!(peer.endpoint.variables().srtt, Duration::ZERO);
}

/// What leaves in the first flight of a caller whose SYN was repeated so often before an answer came, to the
/// first SYN or the last one.
fn first_flight(config: Config, repetitions: u32, to_first: bool) -> usize {
    let mut peer = Peer::before(Endpoint::connect(config, OURS, Time::ZERO), config);
    peer.sent();
    let answer = peer.opening(Flags::SYN | Flags::ACK);
    for _ in 0..repetitions {
        peer.expire();
        assert_eq!(peer.sent().len(), 1, "the SYN again");
    }
    let late = peer.opening(Flags::SYN | Flags::ACK);
    peer.pass(RTT).arrives(if to_first { answer } else { late }).sent();
    peer.endpoint.write(20 * MSS);
    peer.data().len()
}

/// RFC 6928 §2 has one segment after a SYN that was lost. Linux asks whether it was: a second of waiting is
/// little (RFC 6298), and a timestamp tells which SYN was answered.
#[test]
fn the_initial_window_survives_a_syn_that_was_repeated_in_vain() {
    let linux = Config { recovery: Recovery::Rack, undo: true, ..config() };
    let with_timestamps = |config| Config { timestamps: true, ..config };
    for (config, flights) in [
        (config(), [1, 1, 1]),
        (with_timestamps(config()), [1, 1, 1]),
        (linux, [10, 1, 1]),
        (with_timestamps(linux), [10, 10, 1]),
    ] {
        let found = [(1, true), (2, true), (2, false)].map(|(n, to_first)| first_flight(config, n, to_first));
        assert_eq!(found, flights, "{config:?}");
        assert_eq!(first_flight(config, 0, true), 10);
    }
}

/// RFC 9293 §3.10.7.4: also before the handshake is over a reset must lie within the window.
#[test]
fn a_blind_reset_does_not_end_a_handshake() {
    let mut peer = called_upon(config());
    let reset = Segment { flags: Flags::RST, ..peer.segment(0x4000_0000, 1, 0) };
    peer.arrives(reset);
    assert_eq!(peer.endpoint.state(), State::SynReceived);
    let reset = Segment { flags: Flags::RST, ..peer.segment(1, 1, 0) };
    peer.arrives(reset);
    assert_eq!(peer.endpoint.state(), State::Listen, "one that lies within it does");
}

/// An old duplicate SYN, as RFC 9293 §3.5, figure 9, has it: the caller's reset clears the listener for the
/// true one.
#[test]
fn an_old_syn_is_reset_and_the_new_one_answered() {
    let mut peer = Peer::before(Endpoint::listen(config(), OURS), config());
    let options = Some(SynOptions::default());
    let old = Segment { seq: 90, flags: Flags::SYN, syn: options, ..Segment::default() };
    let answer = peer.arrives(old).sent()[0];
    assert_eq!(answer.ack, 91);
    peer.arrives(Segment { seq: answer.ack, flags: Flags::RST, ..Segment::default() });
    let new = Segment { seq: 100, flags: Flags::SYN, syn: options, ..Segment::default() };
    assert_eq!(peer.arrives(new).sent()[0].ack, 101);
}

/// RFC 7323 §2.3: a larger shift is taken as 14.
#[test]
fn a_shift_of_200_is_taken_as_14() {
    let mut peer = calling(config());
    let syn = Some(SynOptions { mss: None, window_scale: Some(200), sack_permitted: false });
    let answer = Segment { seq: THEIRS, flags: Flags::SYN | Flags::ACK, syn, ..peer.segment(0, 1, 0) };
    peer.pass(RTT).arrives(answer).sent();
    let ack = peer.segment(1, 1, 0);
    peer.arrives(ack);
    peer.endpoint.write(10 * MSS);
    assert_eq!(peer.data().len(), 10);
}

#[test]
fn a_user_timeout_ends_a_handshake_to_the_microsecond() {
    for (opened, end) in [(true, Some(End::ConnectTimedOut)), (false, None)] {
        let limited = Config { user_timeout: Some(ms(5_000)), ..config() };
        let mut peer = if opened { calling(limited) } else { called_upon(limited) };
        while peer.endpoint.wake_at() < Time::MAX {
            peer.expire();
            peer.sent();
        }
        assert_eq!((peer.now, peer.endpoint.end()), (Time::ZERO + ms(5_000), end));
    }
}

// What belongs to no stream of this connection.

/// A FIN below the window would end the stream in the middle of what has arrived.
#[test]
fn a_fin_from_before_the_window_is_none() {
    let mut peer = Peer::called(config());
    for start in [1, 1 + MSS] {
        let data = peer.segment(start, 1, MSS as u32);
        peer.arrives(data).sent();
    }
    let fin = Segment { flags: Flags::ACK | Flags::FIN, ..peer.segment(1, 1, 10) };
    peer.arrives(fin);
    assert_eq!(peer.endpoint.readable(), 2 * MSS);
    assert_eq!(peer.endpoint.read(peer.now, u64::MAX), 2 * MSS);
    peer.arrives(fin);
    assert!(!peer.endpoint.is_at_end());
}

/// RFC 9293 §3.10.7.4, seventh: after a FIN the segment text is ignored; a second FIN elsewhere is too.
#[test]
fn nothing_is_taken_behind_a_fin() {
    let mut peer = Peer::called(config());
    let fin = Segment { flags: Flags::ACK | Flags::FIN, ..peer.segment(1, 1, 100) };
    peer.arrives(fin);
    let more = Segment { flags: Flags::ACK | Flags::FIN, ..peer.segment(1, 1, 500) };
    peer.arrives(more);
    let more = Segment { flags: Flags::ACK | Flags::FIN, ..peer.segment(102, 1, 500) };
    peer.arrives(more);
    assert_eq!((peer.endpoint.read(peer.now, u64::MAX), peer.endpoint.is_at_end()), (100, true));
    assert_eq!(peer.sent().last().map(|segment| segment.ack), Some(THEIRS + 102));
}

#[test]
fn data_out_of_order_behind_a_fin_are_dropped() {
    let mut peer = Peer::called(config());
    let beyond = peer.segment(50, 1, 500);
    let fin = Segment { flags: Flags::ACK | Flags::FIN, ..peer.segment(1, 1, 100) };
    peer.arrives(beyond).arrives(fin);
    assert_eq!((peer.endpoint.read(peer.now, u64::MAX), peer.endpoint.is_at_end()), (100, true));
    assert_eq!(peer.endpoint.receive_buffered(), 0);
}

/// RFC 9293 §3.10.7.4, first and fifth: outside the window, without an ACK, or with an ACK of what was never
/// sent.
#[test]
fn segments_that_are_not_acceptable_change_nothing() {
    let mut peer = Peer::called(config());
    peer.endpoint.write(5 * MSS);
    peer.sent();
    let ack = behind(5);
    let before = peer.segment(1_u64.wrapping_sub(0x2000_0000), ack, 0);
    let beyond = peer.segment(0x4000_0000, ack, 0);
    let never_sent = peer.segment(1, behind(6), 100);
    for segment in [before, beyond, never_sent] {
        peer.arrives(segment);
        assert_eq!(peer.sent().len(), 1, "it is answered: {segment:?}");
    }
    let without = Segment { flags: Flags::PSH, ..peer.segment(1, 1, 100) };
    peer.arrives(without);
    assert_eq!(peer.endpoint.statistics().bytes_acknowledged, 0);
    assert_eq!(peer.endpoint.readable(), 0);
}

/// The peer probes our window from below its own (RFC 9293 §3.8.6.1): that repeats its acknowledgement, but
/// not because something has arrived there.
#[test]
fn a_probe_of_the_window_is_no_duplicate_acknowledgement() {
    let mut peer = Peer::called(Config { sack: false, ..config() });
    peer.endpoint.write(20 * MSS);
    assert_eq!(peer.data().len(), 10);
    let probe = peer.segment(0, 1, 0);
    peer.arrives(probe).arrives(probe).arrives(probe);
    assert_eq!(peer.data(), []);
    assert_eq!(peer.endpoint.statistics().retransmissions, 0);
}

/// RFC 9293 §3.10.7.4, fifth: SND.WL1 and SND.WL2 keep an older segment from taking the window back.
#[test]
fn an_overtaken_segment_does_not_take_the_window_back() {
    let mut peer = Peer::called(config());
    let closed = Segment { window: 0, ..peer.segment(1, 1, 100) };
    let open = peer.segment(101, 1, 100);
    peer.arrives(open).arrives(closed);
    peer.endpoint.write(MSS);
    assert_eq!(numbers(peer.data()), [1]);
}

/// After everything has ended in order neither a reset nor the application can make it otherwise.
#[test]
fn finished_results_stay_finished() {
    let mut peer = Peer::called(config());
    peer.endpoint.finish();
    peer.sent();
    let fin = Segment { flags: Flags::ACK | Flags::FIN, ..peer.segment(1, 2, 0) };
    peer.pass(RTT).arrives(fin).sent();
    let ended_at = peer.endpoint.statistics().ended_at;
    assert_eq!(peer.endpoint.end(), Some(End::Finished));
    let reset = Segment { flags: Flags::RST, ..peer.segment(2, 2, 0) };
    peer.pass(RTT).arrives(reset);
    assert_eq!((peer.endpoint.state(), peer.endpoint.end()), (State::Closed, Some(End::Finished)));
    let now = peer.now;
    peer.endpoint.abort(now);
    assert_eq!(peer.endpoint.end(), Some(End::Finished));
    assert_eq!(peer.endpoint.statistics().ended_at, ended_at);
}

// Loss recovery.

/// On a connection with SACK a sender that recovers by duplicates alone must not count each of them twice: as
/// a duplicate and as a block.
#[test]
fn a_recovery_by_duplicates_does_not_count_sack_blocks_too() {
    for recovery in [Recovery::Reno, Recovery::NewRenoSlowButSteady] {
        let mut peer = Peer::called(Config { recovery, limited_transmit: false, ..config() });
        peer.endpoint.write(100 * MSS);
        assert_eq!(peer.data().len(), 10);
        peer.pass(RTT);
        (3..=10).for_each(|n| {
            peer.acks(1, &[(behind(1), behind(n - 1))]);
        });
        // Ten are outstanding, eight of them have left: of five allowed three new ones go, and not eleven.
        assert_eq!(numbers(peer.data()), [1, 11, 12, 13], "{recovery}");
    }
}

/// RFC 6675 §4: what NextSeg's third rule sends is in the pipe, beside what was sent before.
#[test]
fn holes_that_are_not_lost_are_not_sent_again_in_one_burst() {
    let mut peer = Peer::called(Config { initial_window: 40, ..config() });
    peer.endpoint.write(40 * MSS);
    assert_eq!(peer.data().len(), 40);
    peer.pass(RTT).acks(1, &[(behind(1), behind(4))]);
    assert_eq!(numbers(peer.data()), [1]);
    // Of 18 outstanding one has arrived; the window is 20, so that three may go.
    peer.pass(RTT).acks(behind(22), &[(behind(39), behind(40))]);
    assert_eq!(numbers(peer.data()), [23, 24, 25]);
}

/// RFC 6582 §3.2, step 2: what a timeout made go out twice comes back as duplicates of the last
/// acknowledgement.
#[test]
fn duplicates_of_the_end_of_a_timeout_do_not_begin_a_recovery() {
    let recovery = Recovery::NewRenoSlowButSteady;
    let mut peer = Peer::called(Config { recovery, limited_transmit: false, ..config() });
    peer.endpoint.write(100 * MSS);
    assert_eq!(peer.data().len(), 10);
    peer.expire();
    assert_eq!(numbers(peer.data()), [1]);
    peer.pass(RTT).acks(behind(4), &[]);
    assert_eq!(numbers(peer.data()), [5, 6]);
    peer.pass(RTT).acks(behind(6), &[]).acks(behind(6), &[]);
    assert_eq!(numbers(peer.data()), [7, 8, 9]);
    // Only the seventh was missing: the others are duplicates to the receiver.
    peer.pass(RTT).acks(behind(10), &[]);
    let new = numbers(peer.data());
    assert!(new.len() >= 3 && new[0] == 11, "{new:?}");
    peer.acks(behind(10), &[]).acks(behind(10), &[]).acks(behind(10), &[]);
    assert_eq!(peer.endpoint.statistics().recoveries, 0);
}

/// Where no SACK tells what arrived when, what lay behind a hole was received long before it is acknowledged,
/// and says nothing of the round trip (RFC 6298 §3, RFC 7323 §4.1).
#[test]
fn an_acknowledgement_released_by_a_repair_is_no_rtt_sample() {
    let mut peer = Peer::called(Config { sack: false, recovery: Recovery::Reno, ..config() });
    peer.endpoint.write(4 * MSS);
    peer.sent();
    for _ in 0..3 {
        peer.expire();
        peer.sent();
    }
    peer.pass(RTT).acks(behind(4), &[]);
    assert_eq!(peer.endpoint.variables().srtt, RTT);
}

/// RFC 2018 §8: the first segment must be sent again after a timeout, even if it was selectively
/// acknowledged, for the receiver may have thrown it away.
#[test]
fn sacked_but_never_acknowledged_data_are_retransmitted() {
    let mut peer = Peer::called(config());
    peer.endpoint.write(3 * MSS);
    peer.sent();
    peer.pass(RTT).acks(1, &[(behind(0), behind(3))]).sent();
    peer.expire();
    assert_eq!(numbers(peer.data()), [1]);
    peer.pass(RTT).acks(behind(1), &[]);
    assert_eq!(numbers(peer.data()), [2, 3]);
}

// The window.

/// The probes of a closed window have a backoff of their own: once it is open, a loss is found as early as
/// ever.
#[test]
fn probes_do_not_slow_down_the_retransmission_timer() {
    let mut peer = Peer::called(config());
    peer.window = 0;
    peer.acks(1, &[]);
    peer.endpoint.write(10 * MSS);
    let waits: Vec<_> = (0..5)
        .map(|_| {
            peer.sent();
            let wait = peer.expire().as_secs();
            peer.sent();
            peer.acks(1, &[]);
            wait
        })
        .collect();
    assert_eq!(waits, [1, 2, 4, 8, 16]);
    peer.window = 60_000;
    peer.acks(1, &[]);
    assert_eq!(peer.data().len(), 10);
    assert_eq!(peer.expire(), ms(1000));
}

/// RFC 9293 §3.8.6.1: as long as the probes are answered the connection lives; where they are not it is given
/// up as for a retransmission.
#[test]
fn a_closed_window_is_borne_for_ever_and_silence_is_not() {
    for (retries, user_timeout) in [(Some(3), None), (None, Some(ms(20_000)))] {
        let mut peer = Peer::called(Config { retries, user_timeout, ..config() });
        peer.window = 0;
        peer.acks(1, &[]);
        peer.endpoint.write(MSS);
        for _ in 0..50 {
            peer.sent();
            peer.expire();
            assert_eq!(peer.sent().len(), 1, "a probe at {:?}", peer.now);
            peer.acks(1, &[]);
        }
        let answered_at = peer.now;
        while peer.endpoint.state() != State::Closed {
            peer.sent();
            peer.expire();
        }
        assert_eq!(peer.endpoint.end(), Some(End::TimedOut));
        // The first of the unanswered probes goes out a whole timeout later.
        let bound = retries.map_or(ms(40_000), |retries| Duration::from_secs(120) * (retries + 1));
        assert_eq!(peer.now - answered_at, bound);
    }
}

/// RFC 9293 §3.8.6.2.1 (4): a window that stays too small to be worth a segment is used after all, or a
/// receiver that waits for the rest of a message would wait for ever.
#[test]
fn a_small_window_is_used_after_a_while() {
    let mut peer = Peer::called(config());
    peer.window = 100;
    peer.acks(1, &[]);
    peer.endpoint.write(10 * MSS);
    assert_eq!(peer.data(), []);
    peer.expire();
    assert_eq!(peer.data(), [(1, 100)]);
    peer.pass(RTT).acks(101, &[]);
    assert_eq!(peer.data(), []);
}

/// The header cannot say more than 65,535 without a shift. An acknowledgement that says so again because the
/// application has read would be a duplicate, and three of them a loss (RFC 5681 §2).
#[test]
fn a_window_that_has_not_changed_is_not_announced() {
    let without_shift = Some(SynOptions { mss: Some(MSS as u16), ..SynOptions::default() });
    let mut peer = calling(Config { receive_buffer: 200_000, ..config() });
    let answer = Segment { syn: without_shift, ..peer.opening(Flags::SYN | Flags::ACK) };
    peer.pass(RTT).arrives(answer).sent();
    for n in 0..120 {
        let data = peer.segment(behind(n), 1, MSS as u32);
        peer.arrives(data);
        assert_eq!(peer.sent().len(), 1);
    }
    for _ in 0..40 {
        peer.endpoint.read(peer.now, 3 * MSS);
        assert_eq!(peer.sent(), []);
    }
}

/// The other side's buffer is full when the end comes.
#[test]
fn a_fin_needs_no_window_and_is_repeated() {
    let mut peer = Peer::called(config());
    peer.window = 0;
    peer.acks(1, &[]);
    peer.endpoint.finish();
    for wait in [1, 2, 4] {
        assert!(peer.sent()[0].is_fin());
        assert_eq!(peer.expire().as_secs(), wait);
    }
}

// Clocks.

/// The clock of the timestamps wraps after 49.7 days, and an echo may come from the future of a mad peer.
#[test]
fn the_clock_of_the_timestamps_wraps() {
    let mut peer = Peer::called(Config { timestamps: true, ..config() });
    for days in [24, 49, 50] {
        peer.now = Time::ZERO + Duration::from_secs(days * 86_400);
        peer.now = peer.now.max(Time::from_nanos(((1 << 32) - 1) * 1_000_000 * u64::from(days == 49)));
        peer.endpoint.write(MSS);
        assert_eq!(peer.data().len(), 1);
        peer.expire();
        let again = peer.sent()[0];
        let ack = again.seq.wrapping_add(again.len);
        let echo = again.timestamps.map_or(0, |timestamps| timestamps.value);
        peer.pass(RTT);
        let timestamps = Some(Timestamps { value: 1, echo });
        let segment = Segment { ack, timestamps, ..peer.segment(1, 0, 0) };
        peer.arrives(segment);
        let srtt = peer.endpoint.variables().srtt;
        assert!(srtt.abs_diff(RTT) <= ms(2), "{srtt:?}");
    }
    peer.endpoint.write(MSS);
    peer.sent();
    peer.expire();
    let again = peer.sent()[0];
    let echo = again.timestamps.map_or(0, |timestamps| timestamps.value + 1_000_000);
    let ack = again.seq.wrapping_add(again.len);
    let segment = Segment { ack, timestamps: Some(Timestamps { value: 1, echo }), ..peer.segment(1, 0, 0) };
    peer.pass(RTT).arrives(segment);
    assert!(peer.endpoint.variables().srtt.abs_diff(RTT) <= ms(2));
}

#[test]
fn a_delay_of_nothing_acknowledges_at_once() {
    let mut peer = Peer::called(Config { delayed_ack: Some(Duration::ZERO), ..config() });
    let data = peer.segment(1, 1, 100);
    peer.arrives(data);
    assert_eq!(peer.sent().len(), 1);
    assert_eq!(peer.endpoint.wake_at(), Time::MAX);
}
