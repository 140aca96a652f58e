//! The router alone: a hand-computed interval, and what no header can do to it.

use proptest::prelude::*;

use super::*;

const MS: Duration = Duration::from_millis(1);

#[derive(Debug, Clone)]
struct Data {
    length: usize,
    header: Option<CongestionHeader>,
}

impl Packet for Data {
    type End = u8;

    fn ip_length(&self) -> usize {
        self.length
    }

    fn tcp(&self) -> Option<super::super::TcpHeader<'_, u8>> {
        None
    }

    fn without_sack(&self) -> Self {
        self.clone()
    }

    fn congestion_header(&self) -> Option<CongestionHeader> {
        self.header
    }

    fn with_feedback(mut self, feedback: i32) -> Self {
        self.header.iter_mut().for_each(|header| header.feedback = feedback);
        self
    }
}

fn header(rtt: Duration, spacing: Duration, feedback: i32) -> CongestionHeader {
    CongestionHeader { rtt, spacing, feedback }
}

fn at(time: Duration) -> Time {
    Time::ZERO + time
}

/// The feedback that a packet of 1000 bytes comes away with.
fn pass(xcp: &mut Xcp, now: Duration, header: CongestionHeader) -> i32 {
    let mut out = Outbox::default();
    xcp.outbound(at(now), Data { length: 1000, header: Some(header) }, &mut out);
    let sent = out.to_link.pop_front().unwrap();
    assert!(out.to_link.is_empty() && out.to_host.is_empty());
    sent.header.unwrap().feedback
}

/// As expected but for the fraction of a byte that is never given.
#[track_caller]
fn is_about(feedback: i32, expected: i32) {
    assert!((expected - 1..=expected).contains(&feedback), "{feedback} and not {expected}");
}

/// 1 Mbyte/s.
fn router(variant: Variant) -> Xcp {
    Xcp::new(&XcpConfig { variant, ..XcpConfig::with_capacity(Rate::mbps(8)) })
}

/// 100 packets of 1000 bytes in the first 200 ms, of a sender with 100 ms and 50 packets: X = 2 ms. y = 0.5
/// MB/s, φ = 0.4 · 0.5 MB/s = 200 kB/s, which is more than the 50 kB/s that could be shuffled. Σ X = 0.2 s,
/// so that each packet gets 200 kB/s · 2 ms / 0.2 s = 2 kB/s.
#[test]
fn an_interval_by_hand() {
    let mut xcp = router(Variant::Xcp);
    let asks = header(100 * MS, 2 * MS, i32::MAX);
    for n in 0..100 {
        assert_eq!(pass(&mut xcp, 2 * MS * n, asks), 0, "nothing is known yet");
    }
    is_about(pass(&mut xcp, 200 * MS, asks), 2000);
    // Half of X, half of it.
    is_about(pass(&mut xcp, 202 * MS, header(100 * MS, MS, i32::MAX)), 1000);
    assert_eq!(pass(&mut xcp, 203 * MS, header(100 * MS, 2 * MS, 700)), 700, "no more than is asked");
    assert_eq!(pass(&mut xcp, 204 * MS, header(100 * MS, 2 * MS, -700)), -700, "never raised");
    let expected = XcpCounters {
        headers: 104,
        lowered: 102,
        intervals: 1,
        asking_milli: 1000,
        limited_milli: 0,
        mean_rtt_us: 100_000,
    };
    assert_eq!(xcp.counters, expected);
    assert_eq!(Agent::<Data>::wake_at(&xcp), at(300 * MS), "the interval is the mean round trip");
}

/// 400 packets in 200 ms are twice the capacity, and a queue of 200 packets is left: φ = −0.4 · 1 MB/s −
/// 0.226 · Q/d.
#[test]
fn an_overload_is_taken_back_in_proportion_to_bytes() {
    let mut xcp = router(Variant::Xcp);
    let asks = header(100 * MS, MS / 2, i32::MAX);
    (0..400).for_each(|n| assert_eq!(pass(&mut xcp, MS / 2 * n, asks), 0));
    let queue = xcp.queue.standing();
    assert!(queue > 100_000.0, "{queue}");
    let feedback = pass(&mut xcp, 200 * MS, asks);
    let (by_rate, by_queue) = (0.4 * 1e6, 0.226 * 150_000.0 / 0.1);
    assert!((f64::from(feedback) + (by_rate + by_queue) / 400.0).abs() < 400.0, "{feedback}");
}

/// Two senders with the same rate, of which one asks for nothing.
#[test]
fn only_p_xcp_excludes_flows_without_demand() {
    let fed = |variant| {
        let mut xcp = router(variant);
        let (asks, limited) = (header(100 * MS, 4 * MS, i32::MAX), header(100 * MS, 4 * MS, 0));
        (0..50).for_each(|n| {
            pass(&mut xcp, 4 * MS * n, asks);
            pass(&mut xcp, 4 * MS * n, limited);
        });
        let feedback = pass(&mut xcp, 200 * MS, asks);
        assert_eq!((xcp.counters.asking_milli, xcp.counters.limited_milli), (1000, 1000));
        feedback
    };
    is_about(fed(Variant::Xcp), 2000);
    is_about(fed(Variant::PXcp), 4000);
}

#[test]
fn after_a_silence_nothing_old_is_given() {
    let mut xcp = router(Variant::Xcp);
    let asks = header(100 * MS, 10 * MS, i32::MAX);
    (0..20).for_each(|n| _ = pass(&mut xcp, 10 * MS * n, asks));
    for ms in [200, 300] {
        Agent::<Data>::on_timer(&mut xcp, at(ms * MS), &mut Outbox::default());
    }
    assert_eq!(Agent::<Data>::wake_at(&xcp), Time::MAX);
    assert_eq!(pass(&mut xcp, Duration::from_secs(9), asks), 0);
    assert_eq!(Agent::<Data>::wake_at(&xcp), at(Duration::from_millis(9100)));
}

/// 1 Mbyte/s is idle, and three quarters are offered. A first window of ten packets with 100 ms, X = 10 ms:
/// the link's own round trip is not known, 200 ms are assumed, so that each gets 750 kB/s · 10/200; with
/// the known one, after a silence, all of it is taken.
#[test]
fn an_idle_link_offers_most_of_what_is_spare_to_the_first_window() {
    let capacity = XcpConfig::with_capacity(Rate::mbps(8));
    let mut xcp = Xcp::new(&XcpConfig { idle_offer: control::IDLE_OFFER, ..capacity });
    let asks = header(100 * MS, 10 * MS, i32::MAX);
    (0..10).for_each(|_| is_about(pass(&mut xcp, Duration::ZERO, asks), 37_500));
    assert_eq!(Agent::<Data>::wake_at(&xcp), at(100 * MS), "an interval is this sender's round trip");
    // What was taken is not spare, although only 100 kB/s are seen: α of the rest, and no shuffling.
    let spare = 0.4 * (1e6 - 375_000.0);
    is_about(pass(&mut xcp, 100 * MS, asks), (spare / 10.0) as i32);
    // Two silent intervals, and it is offered anew.
    for ms in [200, 300] {
        Agent::<Data>::on_timer(&mut xcp, at(ms * MS), &mut Outbox::default());
    }
    assert_eq!(Agent::<Data>::wake_at(&xcp), Time::MAX);
    let later = Duration::from_secs(9);
    let given: i32 = (0..10).map(|_| pass(&mut xcp, later, asks)).sum();
    assert!((749_980..=750_000).contains(&given), "{given}");
    assert_eq!(pass(&mut xcp, later, asks), 0, "nothing is left");
}

/// What passes without a header takes its part of the capacity.
#[test]
fn traffic_that_does_not_take_part_counts() {
    let mut xcp = router(Variant::Xcp);
    let mut out = Outbox::default();
    let asks = header(100 * MS, 2 * MS, i32::MAX);
    for n in 0..100 {
        pass(&mut xcp, 2 * MS * n, asks);
        xcp.outbound(at(2 * MS * n), Data { length: 500, header: None }, &mut out);
    }
    // y = 750 kB/s; φ = 100 kB/s of which each of 100 packets gets its part.
    is_about(pass(&mut xcp, 200 * MS, asks), 1000);
    assert_eq!(out.to_link.len(), 100);
}

/// A fluid sender: it sends at its rate for a round trip, and what feedback it got acts a round trip later.
fn settle(rtt: Duration, max_rtt: Duration) -> (f64, f64) {
    let mut xcp = Xcp::new(&XcpConfig { max_rtt, ..XcpConfig::with_capacity(Rate::mbps(8)) });
    let (mut rate, mut now) = (20_000.0_f64, 0.0);
    let mut on_the_way = std::collections::VecDeque::new();
    let (mut least, mut most) = (f64::MAX, 0.0_f64);
    let end = 120.0 * rtt.as_secs_f64();
    while now < end {
        let spacing = Duration::from_secs_f64(1000.0 / rate).min(rtt);
        let feedback = pass(&mut xcp, Duration::from_secs_f64(now), header(rtt, spacing, i32::MAX));
        on_the_way.push_back((now + rtt.as_secs_f64(), feedback));
        while on_the_way.front().is_some_and(|(arrives, _)| *arrives <= now) {
            rate = (rate + f64::from(on_the_way.pop_front().unwrap().1)).max(1000.0 / rtt.as_secs_f64());
        }
        now += 1000.0 / rate;
        if now > end / 2.0 {
            (least, most) = (least.min(rate), most.max(rate));
        }
    }
    (least, most)
}

#[test]
fn a_round_trip_of_three_seconds_is_as_stable_as_one_of_60_milliseconds() {
    for rtt in [60 * MS, 600 * MS, 3000 * MS] {
        let (least, most) = settle(rtt, DEFAULT_MAX_RTT);
        assert!(least > 0.97e6 && most < 1.03e6, "{rtt:?}: {least} to {most}");
    }
}

/// What other routers do, that believe no round trip above a second.
#[test]
fn with_too_low_a_bound_the_control_is_too_fast() {
    let (least, most) = settle(3000 * MS, 1000 * MS);
    assert!(most > 1.2e6 && least < 0.8e6, "{least} to {most}");
}

proptest! {
    #[test]
    fn no_header_makes_it_give_more_than_it_has_decided_or_raise_a_feedback(
        bits in 1u64..1 << 62,
        p_xcp: bool,
        max_rtt in 0u64..1 << 40,
        idle_offer in prop_oneof![Just(0.0), 0.0..=1.0],
        packets in prop::collection::vec((0u64..1 << 31, any::<u32>(), any::<u32>(), any::<i32>(), 20usize..65536), 1..200),
    ) {
        let variant = if p_xcp { Variant::PXcp } else { Variant::Xcp };
        let capacity = Rate::from_bps(bits).unwrap();
        let max_rtt = Duration::from_nanos(max_rtt);
        let config = XcpConfig { variant, max_rtt, idle_offer, ..XcpConfig::with_capacity(capacity) };
        let mut xcp = Xcp::new(&config);
        let mut now = Time::ZERO;
        let (mut interval, mut decided, mut given, mut taken) = (0, xcp.shares, 0.0, 0.0);
        for (gap, rtt, spacing, feedback, length) in packets {
            now += Duration::from_nanos(gap);
            let rtt = Duration::from_micros(rtt.into());
            let header = header(rtt, Duration::from_nanos(spacing.into()), feedback);
            xcp.end_interval(now);
            if xcp.counters.intervals != interval {
                (interval, decided, given, taken) = (xcp.counters.intervals, xcp.shares, 0.0, 0.0);
            }
            let mut out = Outbox::default();
            xcp.outbound(now, Data { length, header: Some(header) }, &mut out);
            let left = out.to_link[0].header.unwrap().feedback;
            prop_assert!(left <= feedback);
            given += f64::from(left.max(0));
            taken += if left < feedback { f64::from(-left.min(0)) } else { 0.0 };
            let Shares { positive, negative, per_second, per_byte } = xcp.shares;
            prop_assert!([positive, negative, per_second, per_byte].iter().all(|share| share.is_finite() && *share >= 0.0));
            prop_assert!(given <= decided.positive * (1.0 + 1e-9) + 1.0, "{given} of {}", decided.positive);
            prop_assert!(taken <= decided.negative * (1.0 + 1e-9) + 1.0, "{taken} of {}", decided.negative);
        }
    }
}
