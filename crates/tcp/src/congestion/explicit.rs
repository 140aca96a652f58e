//! A sender with an explicit rate, which a controller sets, as bentpipe's eBPF program `bp_explicit` is: it
//! runs the same code.
//!
//! A loss changes nothing: it says that a segment must be sent again, not that the rate was wrong. After an
//! expiry of the retransmission timer one segment leaves at a time; the first acknowledgement shows that the
//! path is back, and restores the whole window.

use std::time::Duration;

use bentpipe_units::{Rate, Time};

use super::c_core::{EXPLICIT_INIT, EXPLICIT_OBEY, EXPLICIT_SAMPLE, ExplicitPath, ExplicitSocket, UNKNOWN};
use super::slow_start::MAX_WINDOW;
use super::{Acked, CongestionControl, NO_SSTHRESH, Parameters, RoundTrips, micros, micros_of};

/// The longest segment that the arithmetic takes, bytes.
const MAX_SEGMENT: u64 = 1 << 20;

/// A window and a pacing rate that follow from a rate set from outside.
#[derive(Debug)]
pub struct Explicit {
    mss: u64,
    initial_window: u64,
    path: ExplicitPath,
    socket: ExplicitSocket,
    /// The retransmission timer has expired, and nothing has arrived since.
    timed_out: bool,
}

impl Explicit {
    /// A controller for a new connection, which has no rate yet.
    pub fn new(parameters: Parameters) -> Self {
        let mss = parameters.mss.clamp(1, MAX_SEGMENT);
        let socket = ExplicitSocket {
            max_pacing_rate: u64::MAX,
            mss: mss as u32,
            cwnd_clamp: u32::MAX,
            ..ExplicitSocket::default()
        };
        let initial_window = parameters.initial_window;
        let path = ExplicitPath::default();
        let mut explicit = Self { mss, initial_window, path, socket, timed_out: false };
        explicit.step(EXPLICIT_INIT);
        explicit
    }

    fn step(&mut self, event: u32) {
        self.socket.event = event;
        self.path.step(&mut self.socket);
    }

    /// A measurement of the round trip, and the receiver's timestamp that came with it.
    fn sample(&mut self, now: Time, rtt: Duration) {
        (self.socket.now_us, self.socket.sample_us) = (micros_of(now), micros(rtt).max(1));
        self.step(EXPLICIT_SAMPLE);
        self.socket.timestamp = 0;
        self.step(EXPLICIT_OBEY);
    }

    fn has_measured(&self) -> bool {
        self.path.min_rtt_us > 0 || self.path.before_us > 0
    }
}

impl CongestionControl for Explicit {
    fn cwnd(&self) -> u64 {
        let window = match (self.timed_out, self.has_measured()) {
            (true, _) => self.mss,
            // The kernel knows the configured round trip of the link by then.
            (false, false) => self.initial_window,
            (false, true) => u64::from(self.socket.cwnd) * self.mss,
        };
        window.clamp(self.mss, MAX_WINDOW as u64)
    }

    fn ssthresh(&self) -> u64 {
        NO_SSTHRESH
    }

    fn pacing_rate(&self, _srtt: Duration) -> Option<Rate> {
        let is_known = self.has_measured() || self.socket.rate > 0;
        Rate::from_bps(8 * self.socket.pacing_rate).filter(|_| is_known)
    }

    fn set_rate(&mut self, rate: Option<Rate>, header: u64) {
        self.socket.rate = rate.map_or(0, |rate| (rate.bps() / 8).max(1));
        self.socket.header = header.min(MAX_SEGMENT) as u32;
        self.step(EXPLICIT_OBEY);
    }

    fn round_trips(&self) -> Option<RoundTrips> {
        let ExplicitPath { rtt_us, shortest_us, forward_us, .. } = self.path;
        let time = |us: u32| Duration::from_micros(us.into());
        (rtt_us > 0).then(|| RoundTrips {
            recent: time(rtt_us),
            shortest: time(shortest_us),
            forward: (forward_us != UNKNOWN).then(|| time(forward_us)),
        })
    }

    fn on_established(&mut self, now: Time, rtt: Option<Duration>) {
        if let Some(rtt) = rtt {
            self.sample(now, rtt);
        }
    }

    fn on_timestamp(&mut self, _now: Time, value: u32) {
        self.socket.timestamp = value;
    }

    fn on_ack(&mut self, ack: &Acked) {
        self.timed_out = false;
        if let Some(rtt) = ack.rtt {
            self.sample(ack.now, rtt);
        }
    }

    fn on_loss(&mut self, _now: Time, _in_flight: u64) {}

    fn on_timeout(&mut self, _now: Time, _in_flight: u64, _first: bool) {
        self.timed_out = true;
    }

    /// The rate controller takes the rate back from a silent connection.
    fn on_idle(&mut self, _now: Time) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1000;

    fn explicit() -> Explicit {
        Explicit::new(Parameters {
            mss: MSS,
            initial_window: 10 * MSS,
            byte_counting_limit: None,
            hystart: false,
            linux_cubic: false,
        })
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn ack(explicit: &mut Explicit, at_ms: u64, rtt_ms: u64) {
        explicit.on_ack(&Acked {
            now: Time::ZERO + ms(at_ms),
            bytes: MSS,
            rtt: Some(ms(rtt_ms)),
            srtt: ms(rtt_ms),
            min_rtt: ms(rtt_ms),
            in_flight: MSS,
            cwnd_limited: false,
            in_recovery: true,
        });
    }

    #[test]
    fn the_window_is_the_rate_times_a_round_trip_and_a_quarter_and_20_ms() {
        let mut explicit = explicit();
        explicit.on_established(Time::ZERO, Some(ms(600)));
        explicit.set_rate(Some(Rate::mbps(8)), 0);
        assert_eq!(explicit.cwnd(), 1_000 * (600 + 150 + 20) + 4 * MSS);
        assert_eq!(explicit.pacing_rate(Duration::ZERO), Some(Rate::mbps(8)));
    }

    #[test]
    fn without_a_rate_it_is_ten_segments_in_a_round_trip() {
        let mut explicit = explicit();
        assert_eq!((explicit.cwnd(), explicit.pacing_rate(Duration::ZERO)), (10 * MSS, None));
        explicit.on_established(Time::ZERO, Some(ms(500)));
        assert_eq!(explicit.pacing_rate(Duration::ZERO), Rate::from_bps(160_000));
        explicit.set_rate(Some(Rate::mbps(8)), 0);
        explicit.set_rate(None, 0);
        assert_eq!(explicit.pacing_rate(Duration::ZERO), Rate::from_bps(160_000));
    }

    #[test]
    fn a_queue_makes_the_window_larger_up_to_six_of_the_shortest_round_trip() {
        let mut explicit = explicit();
        explicit.set_rate(Some(Rate::mbps(8)), 0);
        let window = |rtt_ms: u64| 1_000 * (rtt_ms + rtt_ms / 4 + 20) + 4 * MSS;
        ack(&mut explicit, 0, 400);
        ack(&mut explicit, 1000, 600);
        assert_eq!(explicit.cwnd(), window(600));
        ack(&mut explicit, 2000, 5000);
        assert_eq!(explicit.cwnd(), window(400 + 6 * 400));
    }

    #[test]
    fn a_longer_path_is_believed_after_two_epochs() {
        let mut explicit = explicit();
        (0..100).for_each(|step| ack(&mut explicit, 100 * step, 40));
        (100..390).for_each(|step| ack(&mut explicit, 100 * step, 200));
        assert_eq!(explicit.round_trips().map(|rtts| (rtts.recent, rtts.shortest)), Some((ms(200), ms(200))));
    }

    /// Acknowledgements each 100 ms, whose receiver counts so many ticks in a millisecond; with the waits of
    /// both ways.
    fn acks(explicit: &mut Explicit, ticks: f64, waits: impl IntoIterator<Item = [u64; 2]>) {
        for (step, [out, back]) in waits.into_iter().enumerate() {
            let now = 1_000 + 100 * step as u64;
            let timestamp = ticks * (now - back) as f64;
            explicit.on_timestamp(Time::ZERO + ms(now), (timestamp as u32).wrapping_sub(50_000));
            ack(explicit, now, 600 + out + back);
        }
    }

    #[test]
    fn timestamps_tell_the_queue_of_the_way_out_from_that_of_the_way_back() {
        let told = |out: u64, back: u64| {
            let mut explicit = explicit();
            acks(&mut explicit, 1.0, std::iter::repeat_n([0, 0], 50).chain([[out, back]]));
            explicit.round_trips().map(|rtts| (rtts.recent, rtts.forward, rtts.way_back()))
        };
        for (out, back) in [(0, 0), (70, 0), (0, 500), (70, 500)] {
            assert_eq!(
                told(out, back),
                Some((ms(600 + out + back), Some(ms(out)), ms(back))),
                "{out} and {back}"
            );
        }
    }

    #[test]
    fn a_clock_that_does_not_count_milliseconds_tells_nothing() {
        for ticks in [0.002, 0.1, 0.25, 10.0, 1000.0] {
            let mut explicit = explicit();
            acks(&mut explicit, ticks, std::iter::repeat_n([0, 0], 80).chain([[70, 0]]));
            let told = explicit.round_trips().unwrap();
            assert_eq!(
                (told.forward, told.way_back()),
                (None, Duration::ZERO),
                "{ticks} ticks in a millisecond"
            );
        }
    }

    #[test]
    fn the_window_covers_acknowledgements_queued_on_the_way_back() {
        let mut explicit = explicit();
        explicit.set_rate(Some(Rate::mbps(8)), 0);
        acks(&mut explicit, 1.0, std::iter::repeat_n([0, 0], 10).chain([[0, 900]]));
        assert_eq!(explicit.cwnd(), 1_000 * (1500 + 375 + 20) + 4 * MSS);
    }

    #[test]
    fn a_loss_changes_nothing_and_a_timeout_leaves_one_segment_until_something_is_heard() {
        let mut explicit = explicit();
        ack(&mut explicit, 0, 600);
        explicit.set_rate(Some(Rate::mbps(8)), 0);
        let window = explicit.cwnd();
        explicit.on_loss(Time::ZERO, window);
        explicit.on_idle(Time::ZERO);
        assert_eq!(explicit.cwnd(), window);
        explicit.on_timeout(Time::ZERO, window, true);
        assert_eq!(explicit.cwnd(), MSS);
        ack(&mut explicit, 60_000, 600);
        assert_eq!(explicit.cwnd(), window);
    }
}
