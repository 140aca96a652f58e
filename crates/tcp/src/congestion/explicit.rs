//! A sender that is given its rate by whoever shares out its path, as bentpipe's eBPF program `bp_explicit` is.
//!
//! A loss changes nothing: it says that a segment must be sent again, not that the rate was wrong. After an expiry of the
//! retransmission timer one segment leaves at a time; the first acknowledgement says that the path is back, and the whole
//! window with it.

use std::time::Duration;

use bentpipe_units::{Rate, Time};

use super::slow_start::MAX_WINDOW;
use super::{Acked, CongestionControl, NO_SSTHRESH, Parameters, RoundTrips};

/// The window without a rate, segments in a round trip (RFC 6928).
const STANDARD_WINDOW: u64 = 10;
/// What the window has room for beside a round trip and its quarter, for acknowledgements that come late: time for the
/// scheduling of hosts, and segments that are in the making.
const SLACK: (Duration, u64) = (Duration::from_millis(20), 4);
/// The shortest round trip is of the last one to two of these: a path may have become longer.
const EPOCH: Duration = Duration::from_secs(15);
/// The recent round trip is the shortest of so long: a delayed acknowledgement makes single ones long.
const RECENT: Duration = Duration::from_millis(50);

/// Clocks that count milliseconds differ by less than this part of what passes.
const TICKS: u32 = 16;

/// No round trip is longer, as far as the window goes.
const LONGEST: Duration = Duration::from_secs(1 << 20);

/// A window and a pacing rate that follow from a rate given from outside.
#[derive(Debug)]
pub struct Explicit {
    mss: u64,
    initial_window: u64,
    /// Of payload.
    rate: Option<Rate>,
    /// The timer has expired, and nothing has been heard since.
    unheard: bool,
    measured: Measured,
}

/// The round trips: the shortest of this epoch and of the one before, and of the last moment.
#[derive(Debug, Default)]
struct Measured {
    epoch_ends: Time,
    this_epoch: Option<Duration>,
    epoch_before: Option<Duration>,
    moment_ends: Time,
    this_moment: Option<Duration>,
    told: Option<RoundTrips>,
    clocks: Clocks,
}

/// How long segments take to the receiver, by two clocks: when it acknowledges by its own, when they were sent by ours. Right but for
/// the difference of the clocks, in microseconds modulo 2³².
#[derive(Debug, Default)]
struct Clocks {
    /// How long ago the receiver has sent what has just come.
    age: Option<u32>,
    /// When that was first measured, and how long it was.
    first: Option<(Time, u32)>,
    this_epoch: Option<u32>,
    epoch_before: Option<u32>,
    this_moment: Option<u32>,
}

impl Explicit {
    /// A controller for a new connection, which has no rate yet.
    pub fn new(parameters: Parameters) -> Self {
        Self {
            mss: parameters.mss.clamp(1, MAX_WINDOW as u64),
            initial_window: parameters.initial_window,
            rate: None,
            unheard: false,
            measured: Measured::default(),
        }
    }

    /// The recent round trip, with the queue up to twice the shortest: that is for the rate to answer, and the path may
    /// have become longer. What acknowledgements wait on their way back no rate can answer, and it counts in full.
    fn round_trip(&self) -> Option<Duration> {
        let shortest = self.measured.shortest()?.max(Duration::from_micros(1));
        let Some(told) = self.measured.told else { return Some(shortest.min(LONGEST)) };
        let longest = shortest.saturating_mul(2).saturating_add(told.way_back());
        Some(told.recent.clamp(shortest, longest).min(LONGEST))
    }

    /// Payload's: what it was given, or ten segments in a round trip.
    fn rate(&self) -> Option<Rate> {
        self.rate.or_else(|| {
            let bits = (8 * STANDARD_WINDOW * self.mss) as f64;
            Rate::from_bps((bits / self.round_trip()?.as_secs_f64()) as u64)
        })
    }
}

impl CongestionControl for Explicit {
    fn cwnd(&self) -> u64 {
        if self.unheard {
            return self.mss;
        }
        let window = self.rate().zip(self.round_trip()).map_or(self.initial_window, |(rate, rtt)| {
            rate.bytes_in(rtt + rtt / 4 + SLACK.0).saturating_add(SLACK.1 * self.mss)
        });
        window.clamp(self.mss, MAX_WINDOW as u64)
    }

    fn ssthresh(&self) -> u64 {
        NO_SSTHRESH
    }

    fn pacing_rate(&self, _srtt: Duration) -> Option<Rate> {
        self.rate()
    }

    fn set_rate(&mut self, rate: Option<Rate>) {
        self.rate = rate;
    }

    fn round_trips(&self) -> Option<RoundTrips> {
        self.measured.told
    }

    fn on_established(&mut self, now: Time, rtt: Option<Duration>) {
        if let Some(rtt) = rtt {
            self.measured.follow(now, rtt);
        }
    }

    fn on_timestamp(&mut self, now: Time, value: u32) {
        self.measured.clocks.age = Some(micros(now).wrapping_sub(value.wrapping_mul(1000)));
    }

    fn on_ack(&mut self, ack: &Acked) {
        self.unheard = false;
        if let Some(rtt) = ack.rtt {
            self.measured.follow(ack.now, rtt);
        }
    }

    fn on_loss(&mut self, _now: Time, _in_flight: u64) {}

    fn on_timeout(&mut self, _now: Time, _in_flight: u64, _first: bool) {
        self.unheard = true;
    }

    /// Who shares out the path takes the rate back from who is silent.
    fn on_idle(&mut self, _now: Time) {}
}

impl Measured {
    fn follow(&mut self, now: Time, rtt: Duration) {
        let shorter = |known: Option<Duration>| Some(known.map_or(rtt, |known| known.min(rtt)));
        if now >= self.epoch_ends {
            self.epoch_before = self.this_epoch.take();
            self.clocks.epoch_before = self.clocks.this_epoch.take();
            self.epoch_ends = now + EPOCH;
        }
        self.this_epoch = shorter(self.this_epoch);
        self.this_moment = shorter(self.this_moment);
        self.clocks.follow(now, rtt);
        if now >= self.moment_ends {
            let recent = self.this_moment.take().unwrap_or(rtt);
            let forward = self.clocks.forward();
            self.told = self.shortest().map(|shortest| RoundTrips { recent, shortest, forward });
            self.moment_ends = now + RECENT;
        }
    }

    fn shortest(&self) -> Option<Duration> {
        self.this_epoch.into_iter().chain(self.epoch_before).min()
    }
}

impl Clocks {
    /// An acknowledgement has measured this round trip.
    fn follow(&mut self, now: Time, rtt: Duration) {
        let Some(age) = self.age.take() else { return };
        let (then, first) = *self.first.get_or_insert((now, age));
        // Acknowledgements can wait for a round trip at most. By more than that, the receiver's clock has other ticks.
        let most = rtt + (now - then) / TICKS;
        if u128::from((age.wrapping_sub(first) as i32).unsigned_abs()) > most.as_micros() {
            (self.this_epoch, self.epoch_before, self.this_moment) = (None, None, None);
            return;
        }
        let forward = Some((rtt.as_micros() as u32).wrapping_sub(age));
        self.this_epoch = shorter_way(self.this_epoch, forward);
        self.this_moment = shorter_way(self.this_moment, forward);
    }

    fn forward(&mut self) -> Option<Duration> {
        let least = shorter_way(self.this_epoch, self.epoch_before)?;
        let beyond = self.this_moment.take()?.wrapping_sub(least) as i32;
        Some(Duration::from_micros(beyond.max(0) as u64))
    }
}

fn shorter_way(a: Option<u32>, b: Option<u32>) -> Option<u32> {
    match (a, b) {
        (Some(a), Some(b)) if (a.wrapping_sub(b) as i32) > 0 => Some(b),
        (a, b) => a.or(b),
    }
}

/// Modulo 2³².
fn micros(now: Time) -> u32 {
    (now.as_nanos() / 1000) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1000;

    fn explicit() -> Explicit {
        Explicit::new(Parameters { mss: MSS, initial_window: 10 * MSS, byte_counting_limit: None })
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
        explicit.set_rate(Some(Rate::mbps(8)));
        assert_eq!(explicit.cwnd(), 1_000 * (600 + 150 + 20) + 4 * MSS);
        assert_eq!(explicit.pacing_rate(Duration::ZERO), Some(Rate::mbps(8)));
    }

    #[test]
    fn without_a_rate_it_is_ten_segments_in_a_round_trip() {
        let mut explicit = explicit();
        assert_eq!((explicit.cwnd(), explicit.pacing_rate(Duration::ZERO)), (10 * MSS, None));
        explicit.on_established(Time::ZERO, Some(ms(500)));
        assert_eq!(explicit.pacing_rate(Duration::ZERO), Rate::from_bps(160_000));
        explicit.set_rate(Some(Rate::mbps(8)));
        explicit.set_rate(None);
        assert_eq!(explicit.pacing_rate(Duration::ZERO), Rate::from_bps(160_000));
    }

    #[test]
    fn a_queue_makes_the_window_larger_up_to_twice_the_shortest_round_trip() {
        let mut explicit = explicit();
        explicit.set_rate(Some(Rate::mbps(8)));
        let window = |rtt_ms: u64| 1_000 * (rtt_ms + rtt_ms / 4 + 20) + 4 * MSS;
        ack(&mut explicit, 0, 400);
        ack(&mut explicit, 1000, 600);
        assert_eq!(explicit.cwnd(), window(600));
        ack(&mut explicit, 2000, 5000);
        assert_eq!(explicit.cwnd(), window(800));
    }

    #[test]
    fn a_longer_path_is_believed_after_two_epochs() {
        let mut explicit = explicit();
        (0..100).for_each(|step| ack(&mut explicit, 100 * step, 40));
        (100..390).for_each(|step| ack(&mut explicit, 100 * step, 200));
        assert_eq!(explicit.round_trips().map(|rtts| (rtts.recent, rtts.shortest)), Some((ms(200), ms(200))));
    }

    /// Acknowledgements each 100 ms, whose receiver counts so many ticks in a millisecond; with the waits of both ways.
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
    fn the_window_has_room_for_what_waits_on_its_way_back() {
        let mut explicit = explicit();
        explicit.set_rate(Some(Rate::mbps(8)));
        acks(&mut explicit, 1.0, std::iter::repeat_n([0, 0], 10).chain([[0, 900]]));
        assert_eq!(explicit.cwnd(), 1_000 * (1500 + 375 + 20) + 4 * MSS);
    }

    #[test]
    fn a_loss_changes_nothing_and_a_timeout_leaves_one_segment_until_something_is_heard() {
        let mut explicit = explicit();
        ack(&mut explicit, 0, 600);
        explicit.set_rate(Some(Rate::mbps(8)));
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
