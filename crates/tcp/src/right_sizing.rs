//! A receive buffer that grows with what the application reads (Fisk and Feng, "Dynamic right-sizing in TCP",
//! 2001; the kernel's `tcp_moderate_rcvbuf`).

use std::time::Duration;

use bentpipe_units::Time;

/// The largest first window: that of a SYN is not scaled (RFC 7323 §2.2).
const LARGEST_FIRST: u64 = 65_535;
/// What the application is assumed to read in the first round trip, segments: the initial window of the
/// other side (RFC 6928).
const FIRST_READ: u64 = 10;
/// Segments by which the window opens with each one that arrives: it stays ahead of a sender in slow start.
const OPENED_PER_SEGMENT: u64 = 2;
/// Shorter segments do not open the window: beside them their bookkeeping fills the buffer.
const SHORTEST: u64 = 128;
/// The shortest round trip that timestamps of milliseconds tell.
const TICK: Duration = Duration::from_millis(1);

/// The measurements of a receiver, and how large its buffer and its window should be.
#[derive(Debug, Clone)]
pub(crate) struct RightSizing {
    /// The largest size of the buffer, bytes.
    max: u64,
    mss: u64,
    /// The most that is announced, bytes.
    window: u64,
    /// The round trip, as the receiver sees it.
    rtt: Option<Duration>,
    /// The timestamp that the last measurement was of.
    echo: u32,
    /// When everything before this offset has arrived, a window has, since this moment.
    window_end: Option<(u64, Time)>,
    /// Bytes read in the largest round so far.
    most_read: u64,
    /// Where and when this round began.
    round: (u64, Time),
}

impl RightSizing {
    /// A buffer of `first` bytes that may grow to `max`.
    pub(crate) fn new(first: u64, max: u64, mss: u64) -> Self {
        let window = first.min(LARGEST_FIRST);
        let window = if window > mss { window / mss * mss } else { window };
        Self {
            max,
            mss,
            window,
            rtt: None,
            echo: 0,
            window_end: None,
            most_read: window.min(FIRST_READ * mss).max(1),
            round: (1, Time::ZERO),
        }
    }

    /// The most that is to be announced, bytes.
    pub(crate) fn window(&self) -> u64 {
        self.window
    }

    /// A full segment has arrived that echoes the timestamp `echo`, sent `rtt` ago. Others with the same echo
    /// have waited for their turn.
    pub(crate) fn measure_by_timestamp(&mut self, echo: u32, rtt: Duration) {
        if echo == std::mem::replace(&mut self.echo, echo) {
            return;
        }
        let rtt = rtt.max(TICK);
        self.rtt = Some(match self.rtt {
            Some(known) if rtt > known => known + (rtt - known) / 8,
            _ => rtt,
        });
    }

    /// New data of a segment of `len` bytes has arrived: in order, everything before `nxt`. The window ends
    /// at `edge`, and there is `room` in the buffer.
    pub(crate) fn on_segment(&mut self, now: Time, nxt: u64, edge: u64, len: u64, room: u64) {
        self.measure_by_window(now, nxt, edge);
        if len >= SHORTEST {
            let opened = OPENED_PER_SEGMENT * len.max(self.mss);
            self.window += opened.min(room.saturating_sub(self.window));
        }
    }

    /// A window takes a round trip at the least: the shortest is an estimate from above.
    fn measure_by_window(&mut self, now: Time, nxt: u64, edge: u64) {
        if let Some((end, since)) = self.window_end {
            if nxt < end {
                return;
            }
            let rtt = (now - since).max(TICK);
            self.rtt = Some(self.rtt.map_or(rtt, |known| known.min(rtt)));
        }
        self.window_end = Some((edge.max(nxt + 1), now));
    }

    /// The application has read everything before `read`; beyond what has arrived in order, data have come up
    /// to a distance of `out_of_order` bytes. Returns how large the buffer should be.
    ///
    /// Once in a round trip it is twice what was read in it, for a sender in slow start doubles its window,
    /// and more where that was more than before, by how much.
    pub(crate) fn on_read(&mut self, now: Time, read: u64, out_of_order: u64) -> u64 {
        let (from, since) = self.round;
        if self.rtt.is_none_or(|rtt| now - since < rtt) {
            return 0;
        }
        self.round = (read, now);
        let bytes = read - from;
        if bytes <= self.most_read {
            return 0;
        }
        let before = std::mem::replace(&mut self.most_read, bytes);
        let twice = 2 * u128::from(bytes);
        let ahead = 2 * (twice * u128::from(bytes - before) / u128::from(before));
        let wanted = (twice + ahead).saturating_add(u128::from(out_of_order));
        wanted.min(u128::from(self.max)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1000;
    const RTT: Duration = Duration::from_millis(100);

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    fn sizing() -> RightSizing {
        RightSizing::new(64 << 10, 3 << 20, MSS)
    }

    #[test]
    fn the_first_window_is_of_whole_segments_and_fits_into_a_syn() {
        assert_eq!(RightSizing::new(64 << 10, 3 << 20, 1460).window(), 44 * 1460);
        assert_eq!(RightSizing::new(1 << 20, 3 << 20, 1).window(), 65_535);
        assert_eq!(RightSizing::new(500, 3 << 20, 1460).window(), 500, "less than a segment stays so");
    }

    #[test]
    fn each_segment_opens_the_window_by_two_as_far_as_there_is_room() {
        let mut sizing = sizing();
        sizing.on_segment(at(0), 1001, 65_001, MSS, 70_000);
        assert_eq!(sizing.window(), 67_000);
        sizing.on_segment(at(0), 1101, 65_001, 100, 70_000);
        assert_eq!(sizing.window(), 67_000, "not a short one");
        (0..3).for_each(|_| sizing.on_segment(at(0), 2001, 65_001, MSS, 70_000));
        assert_eq!(sizing.window(), 70_000);
        sizing.on_segment(at(0), 2001, 65_001, MSS, 10);
        assert_eq!(sizing.window(), 70_000, "it does not shrink");
    }

    #[test]
    fn the_buffer_is_twice_what_is_read_in_a_round_trip_and_more_where_that_grows() {
        let mut sizing = sizing();
        assert_eq!(sizing.on_read(at(10), 20_001, 0), 0, "the round trip is not known");
        sizing.measure_by_timestamp(7, RTT);
        assert_eq!(sizing.on_read(at(99), 20_001, 0), 0, "the round is not over");
        // 20 segments after 10: twice as much, and twice the growth of that.
        assert_eq!(sizing.on_read(at(100), 20_001, 0), 40_000 + 2 * 40_000);
        assert_eq!(sizing.on_read(at(200), 40_001, 0), 0, "not more than before");
        assert_eq!(sizing.on_read(at(300), 60_002, 5_000), 40_002 + 4 + 5_000);
        assert_eq!(sizing.on_read(at(400), 10_000_000, 0), 3 << 20, "the largest size");
    }

    #[test]
    fn a_timestamp_is_measured_once_and_a_longer_round_trip_is_smoothed() {
        let mut sizing = sizing();
        sizing.measure_by_timestamp(7, RTT);
        sizing.measure_by_timestamp(7, 3 * RTT);
        assert_eq!(sizing.rtt, Some(RTT), "it has waited behind others");
        sizing.measure_by_timestamp(8, 2 * RTT);
        assert_eq!(sizing.rtt, Some(RTT * 9 / 8));
        sizing.measure_by_timestamp(9, Duration::ZERO);
        assert_eq!(sizing.rtt, Some(TICK));
    }

    #[test]
    fn without_timestamps_a_window_takes_a_round_trip() {
        let mut sizing = sizing();
        sizing.on_segment(at(0), 1_001, 65_001, MSS, 1 << 20);
        sizing.on_segment(at(99), 65_000, 130_001, MSS, 1 << 20);
        assert_eq!(sizing.rtt, None);
        sizing.on_segment(at(100), 65_001, 130_001, MSS, 1 << 20);
        assert_eq!(sizing.rtt, Some(RTT));
        sizing.on_segment(at(350), 130_001, 200_001, MSS, 1 << 20);
        assert_eq!(sizing.rtt, Some(RTT), "the shortest of them");
    }
}
