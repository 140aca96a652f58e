//! The retransmission timeout (RFC 6298).

use std::time::Duration;

use bentpipe_units::Time;

/// The first timeout of a connection whose SYN had to be repeated (RFC 6298 §5.7).
const INITIAL_AFTER_REPEATED_SYN: Duration = Duration::from_secs(3);

/// The bounds of the timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RtoLimits {
    /// Before the first measurement (RFC 6298 §2.1: 1 s; RFC 2988: 3 s).
    pub initial: Duration,
    /// The floor (RFC 6298 §2.4: 1 s; Linux: 200 ms).
    pub min: Duration,
    /// The ceiling, of the backoff too (RFC 6298 §2.5: 60 s or more; Linux: 120 s; PSATS09 §3 tries 10 s).
    pub max: Duration,
    /// RFC 6298's G: the least addition to the smoothed round trip. Linux adds 200 ms here.
    pub granularity: Duration,
    /// The tick of the host's clock: timeouts are whole ticks, and expire where the timer wheel looks next,
    /// which is later by up to an eighth. Zero: exactly when they are due.
    pub tick: Duration,
}

impl RtoLimits {
    /// RFC 6298, with its lowest permitted ceiling left behind for Linux's.
    pub const RFC6298: RtoLimits = RtoLimits {
        initial: Duration::from_secs(1),
        min: Duration::from_secs(1),
        max: Duration::from_secs(120),
        granularity: Duration::from_millis(1),
        tick: Duration::ZERO,
    };

    /// Linux (tcp(7), `tcp_rto_min_us`, `tcp_rto_max_ms`).
    pub const LINUX: RtoLimits = RtoLimits {
        min: Duration::from_millis(200),
        granularity: Duration::from_millis(200),
        ..Self::RFC6298
    };

    /// Linux whose clock has 250 ticks a second, as Debian's.
    pub const LINUX_250_HZ: RtoLimits = RtoLimits { tick: Duration::from_millis(4), ..Self::LINUX };

    /// When a timer expires that is set at `now` for `timeout`.
    ///
    /// Linux' timer wheel (`kernel/time/timer.c`) has levels of 64 slots. A slot of the first level is a
    /// tick, and a slot of each further one is eight times as long as in the level before. A timer is in the
    /// first level that reaches far enough, and expires at the end of its slot.
    pub(crate) fn expiry(&self, now: Time, timeout: Duration) -> Time {
        let tick = self.tick.as_nanos() as u64;
        if tick == 0 {
            return now + timeout;
        }
        let ticks = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX).div_ceil(tick);
        let mut shift = 0;
        while ticks >= 63 << shift && shift < WHEEL_LEVELS * 3 {
            shift += 3;
        }
        let slot = ((now.as_nanos() / tick).saturating_add(ticks) >> shift).saturating_add(1);
        Time::from_nanos((slot << shift).saturating_mul(tick))
    }

    /// Whole ticks, as the timeout is kept in, nanoseconds.
    fn rounded(&self, timeout: u64) -> u64 {
        match nanos(self.tick) {
            0 => timeout,
            tick => timeout.div_ceil(tick).saturating_mul(tick),
        }
    }
}

/// Levels of the timer wheel beyond the first.
const WHEEL_LEVELS: u32 = 8;

/// The estimator of the round-trip time and the timeout that follows from it.
#[derive(Debug, Clone)]
pub struct Rto {
    limits: RtoLimits,
    initial: Duration,
    smoothed: Option<Smoothed>,
    /// The round trip of an earlier connection, until this one has measured with data.
    recalled: Option<Duration>,
    min_rtt: Duration,
    backoff: u32,
}

/// In nanoseconds: every acknowledgement computes with them, and a `Duration` is two numbers.
#[derive(Debug, Clone, Copy)]
struct Smoothed {
    srtt: u64,
    rttvar: u64,
}

impl Rto {
    /// Nothing measured yet.
    pub fn new(limits: RtoLimits) -> Self {
        Self {
            limits,
            initial: limits.initial,
            smoothed: None,
            recalled: None,
            min_rtt: Duration::ZERO,
            backoff: 0,
        }
    }

    /// Takes a measurement; `samples_per_rtt` is how many of them are expected in each round trip.
    ///
    /// RFC 6298 §2.3 has gains for one sample in a round trip. With more of them the deviation would be
    /// forgotten within a fraction of it, so where it shrinks RFC 7323 Appendix G divides the gain. Where the
    /// round trip grows it must not: a queue that fills in slow start doubles it within two round trips, and
    /// a timeout that lags behind is spurious; Linux makes the same difference. A measurement ends the
    /// backoff (RFC 6298 §5.7, Karn).
    pub fn measure(&mut self, rtt: Duration, samples_per_rtt: u32) {
        let sample = nanos(rtt);
        self.smoothed = Some(match self.smoothed {
            None => Smoothed { srtt: sample, rttvar: sample / 2 },
            Some(Smoothed { srtt, rttvar }) => {
                let deviation = srtt.abs_diff(sample);
                let samples = if deviation < rttvar { samples_per_rtt.max(1) } else { 1 };
                let rttvar = approach(rttvar, deviation, samples.saturating_mul(4));
                Smoothed { rttvar, srtt: approach(srtt, sample, 8) }
            }
        });
        self.min_rtt = if self.min_rtt.is_zero() { rtt } else { self.min_rtt.min(rtt) };
        self.backoff = 0;
        self.recalled = None;
    }

    /// Earlier connections have found this round trip: until the next measurement it makes the timeout, if it
    /// is longer than what the handshake has found (Linux' `tcp_init_metrics`).
    pub fn recall(&mut self, srtt: Duration) {
        self.recalled = Some(srtt).filter(|&srtt| srtt > self.srtt());
    }

    /// The SYN had to be repeated: until something is measured, the distance may be long (RFC 6298 §5.7).
    pub fn syn_was_repeated(&mut self) {
        self.initial = self.initial.max(INITIAL_AFTER_REPEATED_SYN).min(self.limits.max);
    }

    /// The timeout now, backoff included.
    pub fn timeout(&self) -> Duration {
        self.doubled(0)
    }

    /// The timeout now, doubled so many times more: probes of a closed window have a backoff of their own.
    pub(crate) fn doubled(&self, more: u32) -> Duration {
        let [min, max] = [self.limits.min, self.limits.max].map(nanos);
        let base = match (self.recalled, self.smoothed) {
            (Some(srtt), _) => {
                let srtt = nanos(srtt);
                srtt.saturating_add(srtt.min(max).saturating_mul(2).max(min))
            }
            (None, None) => nanos(self.initial),
            (None, Some(Smoothed { srtt, rttvar })) => {
                srtt.saturating_add(rttvar.saturating_mul(4).max(nanos(self.limits.granularity)))
            }
        };
        let base = self.limits.rounded(base.clamp(min.min(max), max));
        let doublings = 1u32.checked_shl(self.backoff.saturating_add(more)).unwrap_or(u32::MAX);
        Duration::from_nanos(base.saturating_mul(doublings.into()).min(max))
    }

    /// When the timer expires that is set `now`, after a timeout doubled so many times more.
    pub(crate) fn expiry(&self, now: Time, more: u32) -> Time {
        self.limits.expiry(now, self.doubled(more))
    }

    /// The timer expired: the next timeout is twice as long (RFC 6298 §5.5).
    pub fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(31);
    }

    /// Expiries since the last measurement.
    pub fn backoff(&self) -> u32 {
        self.backoff
    }

    /// The smoothed round-trip time; zero before the first measurement.
    pub fn srtt(&self) -> Duration {
        self.smoothed.map_or(Duration::ZERO, |smoothed| Duration::from_nanos(smoothed.srtt))
    }

    /// The smoothed deviation; zero before the first measurement.
    pub fn rttvar(&self) -> Duration {
        self.smoothed.map_or(Duration::ZERO, |smoothed| Duration::from_nanos(smoothed.rttvar))
    }

    /// The smallest round-trip time measured; zero before the first.
    pub fn min_rtt(&self) -> Duration {
        self.min_rtt
    }
}

/// `old` moved by 1/`divisor` of the way to `new`.
fn approach(old: u64, new: u64, divisor: u32) -> u64 {
    let divisor = u64::from(divisor);
    if new >= old { old + (new - old) / divisor } else { old - (old - new) / divisor }
}

/// A time of a protocol as nanoseconds, which last 584 years; what is longer is as long.
fn nanos(time: Duration) -> u64 {
    time.as_secs().saturating_mul(1_000_000_000).saturating_add(time.subsec_nanos().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn the_first_measurement_gives_three_round_trips() {
        let mut rto = Rto::new(RtoLimits { min: ms(1), ..RtoLimits::RFC6298 });
        assert_eq!(rto.timeout(), ms(1000));
        rto.measure(ms(600), 1);
        assert_eq!((rto.srtt(), rto.rttvar(), rto.timeout()), (ms(600), ms(300), ms(1800)));
        rto.measure(ms(680), 1);
        // RTTVAR = 3/4 · 300 + 1/4 · 80; SRTT = 7/8 · 600 + 1/8 · 680.
        assert_eq!((rto.srtt(), rto.rttvar(), rto.timeout()), (ms(610), ms(245), ms(1590)));
    }

    #[test]
    fn the_backoff_doubles_to_the_ceiling_and_a_measurement_ends_it() {
        let mut rto = Rto::new(RtoLimits { max: ms(10_000), ..RtoLimits::RFC6298 });
        let ladder: Vec<u64> = (0..6)
            .map(|_| {
                let timeout = rto.timeout();
                rto.back_off();
                timeout.as_secs()
            })
            .collect();
        assert_eq!(ladder, [1, 2, 4, 8, 10, 10]);
        rto.measure(ms(100), 1);
        assert_eq!((rto.backoff(), rto.timeout()), (0, ms(1000)));
    }

    /// With 250 ticks a second: up to 252 ms within a tick, up to 2 s within 32 ms, up to 16 s within 256 ms,
    /// and up to 129 s within 2 s.
    #[test]
    fn a_wheel_is_late_by_up_to_an_eighth() {
        let limits = RtoLimits::LINUX_250_HZ;
        for (timeout, slot) in [(200, 4), (248, 4), (252, 32), (2012, 32), (2016, 256), (16_128, 2048)] {
            for start in [0, 3, 1001, 77_777] {
                let now = Time::ZERO + ms(start);
                let late = limits.expiry(now, ms(timeout)) - (now + ms(timeout));
                assert!(late <= ms(slot), "{timeout} ms at {start} ms: {late:?} late");
                assert!(late <= (ms(timeout) / 7).max(ms(slot)), "{timeout} ms: {late:?} late");
                assert_eq!((limits.expiry(now, ms(timeout)).as_nanos() / 1_000_000) % slot, 0);
            }
        }
        let exact = RtoLimits::LINUX.expiry(Time::ZERO + ms(3), ms(777));
        assert_eq!(exact, Time::ZERO + ms(780));
        assert_eq!(limits.expiry(Time::MAX, Duration::MAX), Time::MAX);
    }

    #[test]
    fn timeouts_of_a_clock_with_ticks_are_whole_ones() {
        let mut rto = Rto::new(RtoLimits::LINUX_250_HZ);
        rto.measure(ms(25), 1);
        assert_eq!(rto.timeout(), ms(228));
        rto.back_off();
        assert_eq!(rto.timeout(), ms(456));
    }

    #[test]
    fn a_thousand_expiries_do_not_overflow() {
        let mut rto = Rto::new(RtoLimits::LINUX);
        (0..1000).for_each(|_| rto.back_off());
        assert_eq!(rto.timeout(), ms(120_000));
    }

    #[test]
    fn linux_stays_200_ms_above_the_round_trip() {
        let mut rto = Rto::new(RtoLimits::LINUX);
        (0..1000).for_each(|_| rto.measure(ms(600), 1));
        assert_eq!(rto.timeout(), ms(800));
    }

    #[test]
    fn the_timeout_keeps_ahead_of_a_queue_that_doubles_the_round_trip_in_two() {
        let mut rto = Rto::new(RtoLimits::RFC6298);
        rto.measure(ms(600), 1);
        (0..20).for_each(|_| rto.measure(ms(600), 1));
        for n in 1..=400 {
            let rtt = ms(600) + n * Duration::from_micros(1500);
            assert!(rto.timeout() > rtt, "sample {n}: {:?} for {rtt:?}", rto.timeout());
            rto.measure(rtt, 200);
        }
    }

    #[test]
    fn the_round_trip_of_an_earlier_connection_makes_the_timeout_until_the_next_measurement() {
        let mut rto = Rto::new(RtoLimits::LINUX);
        rto.measure(ms(300), 1);
        rto.recall(ms(600));
        assert_eq!((rto.timeout(), rto.srtt()), (ms(1800), ms(300)));
        rto.measure(ms(300), 1);
        assert!(rto.timeout() < ms(1000), "{:?}", rto.timeout());
        rto.recall(ms(200));
        assert!(rto.timeout() < ms(1000), "shorter than what is known");
        let mut rto = Rto::new(RtoLimits::LINUX);
        rto.recall(ms(50));
        assert_eq!(rto.timeout(), ms(250), "the floor is added");
    }

    #[test]
    fn a_deviation_is_remembered_for_a_round_trip_however_many_samples_it_has() {
        let (mut one, mut many) = (Rto::new(RtoLimits::RFC6298), Rto::new(RtoLimits::RFC6298));
        one.measure(ms(600), 1);
        many.measure(ms(600), 100);
        one.measure(ms(600), 1);
        (0..100).for_each(|_| many.measure(ms(600), 100));
        assert_eq!(one.rttvar(), ms(225));
        assert!((ms(220)..ms(240)).contains(&many.rttvar()), "{:?}", many.rttvar());
    }
}
