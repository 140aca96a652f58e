use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use bentpipe_kernel::tcp_info::tcp_info;

use super::*;
use crate::telemetry::LegStatsTable;
use crate::telemetry::leg_stats::LegGain;

/// A socket that nothing has happened to, for figures of one's own.
fn blank() -> TcpInfo {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let info = tcp_info(TcpStream::connect(listener.local_addr().unwrap()).unwrap()).unwrap();
    TcpInfo {
        state: State::Established,
        bytes_acked: 0,
        bytes_received: 0,
        segments_in: 0,
        data_segments_out: 0,
        unacked: 0,
        sacked: 0,
        unsent: 0,
        srtt: Duration::from_millis(600),
        min_rtt: TcpInfo::NO_MIN_RTT,
        mss: 1000,
        since_ack_received: Duration::ZERO,
        since_data_received: Duration::from_secs(1 << 20),
        ..info
    }
}

/// An account between the ground, where the client is, and the sky.
fn account(leg_stats: &LegStatsTable, now: Instant) -> FlowStats {
    FlowStats::open(1, [leg_stats.leg(false, "terrestrial"), leg_stats.leg(true, "sky")], now)
}

#[test]
fn data_behind_a_hole_are_counted_once_on_arrival() {
    let (leg_stats, start) = (LegStatsTable::default(), Instant::now());
    let mut account = account(&leg_stats, start);
    let sky = |leg_stats: &LegStatsTable, now| leg_stats.leg(true, "sky").figures(now).totals.moved.sent;
    let mut now = start;
    // Ten segments are on their route, the first is lost; then it comes, too.
    for (acked, sacked, sent) in [(1, 0, 0), (1, 9, 9000), (10_001, 0, 10_000)] {
        now += Duration::from_secs(1);
        account.look(now, [Some(blank()), Some(TcpInfo { bytes_acked: acked, sacked, ..blank() })]);
        assert_eq!(sky(&leg_stats, now), sent);
    }
}

#[test]
fn each_byte_is_counted_once_and_the_syn_is_none() {
    let (leg_stats, start) = (LegStatsTable::default(), Instant::now());
    let mut account = account(&leg_stats, start);
    let figures = |now| leg_stats.leg(true, "sky").figures(now);
    let info = |acked, segments| TcpInfo { bytes_acked: acked, data_segments_out: segments, ..blank() };
    let client = Some(blank());
    // The SYN is not acknowledged yet, then it is, and nothing else.
    account.look(start, [client, Some(TcpInfo { state: State::SynSent, ..info(0, 0) })]);
    account.look(start + Duration::from_secs(1), [client, Some(info(1, 0))]);
    assert_eq!(figures(start).totals, Totals::default());
    let now = start + Duration::from_secs(2);
    account.look(now, [client, Some(info(125_001, 125))]);
    assert_eq!((figures(now).totals.moved.sent, figures(now).totals.segments), (125_000, 125));
    assert_eq!((figures(now).sent_bps, account.rates()), (1e6, (1e6, 0.0)));
    assert_eq!((figures(now).flows, figures(now).shares.active), (1, 1));
    account.close(now + Duration::from_millis(1), [client, Some(info(125_501, 126))]);
    drop(account);
    let figures = figures(now + Duration::from_millis(2));
    assert_eq!((figures.totals.moved.sent, figures.totals.segments), (125_500, 126));
    assert_eq!((figures.flows, figures.shares), (0, Share::default()));
    assert_eq!(figures.sent_bps, 4000.0, "the last 500 bytes");
}

#[test]
fn the_kernels_numbers_may_wrap() {
    let (leg_stats, now) = (LegStatsTable::default(), Instant::now());
    let mut account = account(&leg_stats, now);
    let first =
        TcpInfo { data_segments_out: u32::MAX, retransmissions: u32::MAX, timeouts: 65_535, ..blank() };
    account.look(now, [Some(first), None]);
    let next = TcpInfo { data_segments_out: 9, retransmissions: 1, timeouts: 2, ..blank() };
    account.look(now + Duration::from_secs(1), [Some(next), None]);
    let totals = leg_stats.leg(false, "terrestrial").figures(now).totals;
    let u32_max = u64::from(u32::MAX);
    assert_eq!(
        (totals.segments, totals.retransmissions, totals.timeouts),
        (u32_max + 10, u32_max + 2, 65_538)
    );
}

#[test]
fn a_flow_from_another_process_brings_nothing_that_was_counted_there() {
    let (leg_stats, now) = (LegStatsTable::default(), Instant::now());
    let before = TcpInfo { bytes_acked: 5000, bytes_received: 7000, data_segments_out: 5, ..blank() };
    let mut account = account(&leg_stats, now).continue_from([Some(before); 2], (7000, 5000));
    assert!(!account.note_bytes(now, (7000, 5000)), "nothing has moved since");
    account.look(now, [Some(TcpInfo { bytes_acked: 5600, ..before }), Some(before)]);
    assert_eq!(
        leg_stats.leg(false, "terrestrial").figures(now).totals.moved,
        Moved { sent: 600, received: 0 }
    );
    assert_eq!(leg_stats.leg(true, "sky").figures(now).totals, Totals::default());
}

#[test]
fn a_flow_that_rests_is_looked_at_once_more_and_then_not() {
    let (leg_stats, start) = (LegStatsTable::default(), Instant::now());
    let mut account = account(&leg_stats, start);
    let at = |second: u64| start + Duration::from_secs(second);
    assert!(!account.is_due(start) && account.is_due(at(1)));
    let info = TcpInfo { bytes_acked: 100, ..blank() };
    assert!(account.note_bytes(at(1), (0, 100)));
    account.look(at(1), [Some(info), Some(blank())]);
    assert!(account.note_bytes(at(2), (0, 100)), "its share is to be taken away");
    account.look(at(2), [Some(info), Some(blank())]);
    assert!(!account.note_bytes(at(3), (0, 100)));
    assert_eq!((account.rates(), account.moved), ((0.0, 0.0), at(1)));
    assert_eq!(leg_stats.leg(false, "terrestrial").figures(at(3)).shares, Share::default());
}

#[test]
fn splitting_gains_by_losses_on_the_satellite_leg() {
    let (leg_stats, start) = (LegStatsTable::default(), Instant::now());
    let mut account = account(&leg_stats, start);
    let at = |second: u32| start + Duration::from_secs(second.into());
    // Losses of the other leg do not count, nor does what goes there.
    for second in 1..=120 {
        let info = TcpInfo {
            bytes_acked: u64::from(second) * 1_250_000 + 1,
            data_segments_out: second * 1000,
            retransmissions: second * 10,
            ..blank()
        };
        account.look(at(second), [Some(info), Some(info)]);
    }
    let LegGain { sums, seconds, is_unsettled } = leg_stats.leg(true, "sky").gain(at(120));
    assert!((30.0..32.0).contains(&seconds) && !is_unsettled, "{seconds}");
    assert!((9.9e6..10.4e6).contains(&(sums.bytes * 8.0 / seconds)), "{sums:?}");
    // RFC 9438 §5.1 at a round trip of 1.2 s: 38.2 segments of 8000 bit.
    let end_to_end = sums.bytes_end_to_end * 8.0 / seconds;
    assert!((240_000.0..280_000.0).contains(&end_to_end), "{end_to_end}");
    assert_eq!(leg_stats.leg(false, "terrestrial").gain(at(120)), LegGain::default());
}

/// The one that was found: three seconds after an outage of five, what had waited came at once, while nearly
/// every segment of the last ten seconds had been sent again.
#[test]
fn what_comes_at_once_after_an_outage_is_no_gain() {
    let (leg_stats, start) = (LegStatsTable::default(), Instant::now());
    let mut account = account(&leg_stats, start);
    let at = |second: u64| start + Duration::from_secs(second);
    let gain = |second: u64| leg_stats.leg(true, "sky").gain(at(second));
    let (mut acked, mut segments, mut retransmissions) = (1, 0, 0);
    for second in 1..=60u64 {
        let mut info = TcpInfo { min_rtt: Duration::from_millis(600), unacked: 700, ..blank() };
        match second {
            21..=25 => {
                retransmissions += 1;
                let silence = Duration::from_secs(second - 20);
                info = TcpInfo { since_ack_received: silence, consecutive_retransmits: 1, ..info };
            }
            26 => {
                (acked, segments, retransmissions) =
                    (acked + 6_000_000, segments + 700, retransmissions + 700)
            }
            _ => (acked, segments) = (acked + 1_000_000, segments + 1000),
        }
        let info = TcpInfo { bytes_acked: acked, data_segments_out: segments, retransmissions, ..info };
        account.look(at(second), [Some(blank()), Some(info)]);
        let LegGain { sums, is_unsettled, .. } = gain(second);
        let ratio = sums.bytes / sums.bytes_end_to_end;
        assert!(sums.bytes == 0.0 || (1.0..9.0).contains(&ratio), "×{ratio} after {second} s");
        match second {
            20 => assert!(sums.bytes > 0.0 && !is_unsettled),
            24..=33 => assert!(is_unsettled && sums.bytes == 0.0, "{second} s: {sums:?}"),
            40 => assert!(!is_unsettled && sums.bytes > 0.0),
            _ => {}
        }
    }
}

#[test]
fn the_socket_tells_unacknowledged_data_and_the_last_arrival() {
    let now = Instant::now();
    let ago = |seconds: u64| now - Duration::from_secs(seconds);
    let see = |info: TcpInfo| look(&info, now, ago(1), false);
    let silent = TcpInfo { since_ack_received: Duration::from_secs(9), ..blank() };
    assert_eq!(see(silent), Observation { heard: Some(ago(9)), waits: false, is_overdue: false });
    let data = TcpInfo { since_data_received: Duration::from_secs(4), ..silent };
    assert_eq!(see(data).heard, Some(ago(4)));
    // Sent a moment ago; it is not time for an answer.
    let sent = TcpInfo { unacked: 1, since_data_sent: Duration::from_millis(10), ..silent };
    assert_eq!((see(sent).waits, see(sent).is_overdue), (true, false));
    let late = TcpInfo { since_data_sent: Duration::from_millis(700), ..sent };
    assert!(see(late).is_overdue);
    let again = TcpInfo { consecutive_retransmits: 1, ..sent };
    assert!(see(again).is_overdue);
    // A closed window whose first probe is on its route, and whose first probe was not answered.
    let probe = |count| TcpInfo { unsent: 1, unanswered_probes: count, ..silent };
    assert_eq!((see(probe(1)).waits, see(probe(1)).is_overdue), (true, false));
    assert!(see(probe(2)).is_overdue);
    // A keepalive of the peer's is neither data nor an acknowledgement; it came after the last look.
    assert_eq!(look(&silent, now, ago(1), true).heard, Some(ago(1)));
    // Servers that do not answer are no outage, nor is a socket that is closed.
    for state in [State::SynSent, State::Close] {
        let look = see(TcpInfo { state, ..again });
        assert!(!look.waits && !look.is_overdue, "{state:?}");
    }
}

#[test]
fn real_sockets_are_counted_to_the_byte() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut upstream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    let (leg_stats, now) = (LegStatsTable::default(), Instant::now());
    let mut account = account(&leg_stats, now);
    upstream.write_all(&[7; 10_000]).unwrap();
    accepted.read_exact(&mut [0; 10_000]).unwrap();
    accepted.write_all(&[7; 300]).unwrap();
    upstream.read_exact(&mut [0; 300]).unwrap();
    let infos = || [tcp_info(&accepted).ok(), tcp_info(&upstream).ok()];
    while infos().iter().flatten().any(|info| info.unacked > 0) {
        std::thread::yield_now();
    }
    account.look(now + Duration::from_secs(1), infos());
    let moved = |is_satellite, name| leg_stats.leg(is_satellite, name).figures(now).totals.moved;
    assert_eq!(moved(true, "sky"), Moved { sent: 10_000, received: 300 });
    assert_eq!(moved(false, "terrestrial"), Moved { sent: 300, received: 10_000 });
}
