//! Links whose rate, delay and errors change with time.

mod builder;
mod file;
mod leoreplayer;
mod steps;

use std::time::Duration;

use bentpipe_units::{Probability, Rate, Time};

pub(crate) use builder::TraceBuilder;
pub use file::LinkTraceError;
pub(crate) use steps::Steps;

/// How rate, delay and packet error rate of a direction change, known beforehand: weather, satellites that
/// come and go, measurements.
///
/// Each has a list of times and of the values from then on. Before the first of them the direction's own value
/// holds, after the last one that; but a trace with a period begins anew after it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LinkTrace {
    /// Bits per second; zero is a pause, in which nothing is sent and the queue waits.
    rates: Vec<(Time, u64)>,
    delays: Vec<(Time, Duration)>,
    error_rates: Vec<(Time, Probability)>,
    period: Option<Duration>,
}

impl LinkTrace {
    /// Reads a trace: a header that begins with `at_s` and has any of the columns `rate`, `delay` and `per`,
    /// then one line for each change, in the order of time.
    ///
    /// Values are written as everywhere (`10Mbit/s`, `300ms`, `1%`); the rate `0` is a pause, and an empty
    /// field changes nothing. Times are seconds between 0 and 10⁹. A last line `SECONDS,repeat` makes the
    /// trace begin anew then. Blank lines and lines that begin with `#` are ignored. While `per` is 100%, the
    /// link is down, and losses count as those of an outage.
    ///
    /// # Errors
    /// What is not as described, with its line and column; a rate that ends with a pause for ever.
    pub fn from_csv(text: &str) -> Result<Self, LinkTraceError> {
        file::read_csv(text)
    }

    /// Reads a trace of mahimahi (Netravali et al., "Mahimahi: Accurate Record-and-Replay for HTTP", 2015):
    /// a line for each time, in milliseconds, at which 1500 bytes can be delivered. It begins anew after the last
    /// one.
    ///
    /// The rate of each millisecond is what is delivered at its end. Packets of another size take their part of
    /// it, where mahimahi wastes the rest of an opportunity.
    ///
    /// # Errors
    /// A line that is no number, or less than the one before it.
    pub fn from_mahimahi(text: &str) -> Result<Self, LinkTraceError> {
        file::read_mahimahi(text)
    }

    /// Adds the delays of LeoReplayer (Lai et al., "LeoCC", SIGCOMM 2025), which replays records of Starlink:
    /// a line for each 10 ms, with the one-way delay in milliseconds. Its rates are those of mahimahi, of
    /// which this is the trace.
    ///
    /// The trace begins anew after its last rate, as before. Delays that end earlier begin anew then, as they
    /// do in LeoReplayer; those that last longer are cut, where LeoReplayer lets both begin anew by
    /// themselves. It lets packets overtake each other when the delay becomes shorter; here they stay in
    /// order.
    ///
    /// # Errors
    /// A line that is no delay; a text without any.
    pub fn with_leoreplayer_delays(self, text: &str) -> Result<Self, LinkTraceError> {
        leoreplayer::add_delays(self, text)
    }

    /// Without its rates, so that the direction's own holds.
    pub fn without_rates(self) -> Self {
        Self { rates: Vec::new(), ..self }
    }

    /// Without its delays, so that the direction's own holds.
    pub fn without_delays(self) -> Self {
        Self { delays: Vec::new(), ..self }
    }

    /// Without its packet error rates, so that the direction's own holds.
    pub fn without_error_rates(self) -> Self {
        Self { error_rates: Vec::new(), ..self }
    }

    /// Writes it as [`from_csv`](Self::from_csv) reads it: a line for each time at which something changes.
    pub fn to_csv(&self) -> String {
        file::write_csv(self)
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.rates.is_empty() && self.delays.is_empty() && self.error_rates.is_empty()
    }

    /// The highest rate; `None` if the trace has none.
    pub fn highest_rate(&self) -> Option<Rate> {
        self.rates.iter().filter_map(|&(_, rate)| Rate::from_bps(rate)).max()
    }

    /// The longest delay; `None` if the trace has none.
    pub fn longest_delay(&self) -> Option<Duration> {
        self.delays.iter().map(|&(_, delay)| delay).max()
    }

    /// The bytes that it lets through from the beginning until `end`, at `base` where it says nothing.
    pub fn capacity(&self, base: Option<Rate>, end: Time) -> Option<u64> {
        let mut rates = self.rates(base)?;
        u64::try_from(rates.integral(end.as_nanos()) / u128::from(BIT_NANOS)).ok()
    }

    /// The rate, bits per second; `None` if it is infinite all the time.
    pub(crate) fn rates(&self, base: Option<Rate>) -> Option<Steps<u64>> {
        let first = base.map_or_else(|| Some(self.rates.first()?.1), |rate| Some(rate.bps()))?;
        Some(Steps::new(first, &self.rates, self.period))
    }

    pub(crate) fn delays(&self, base: Duration) -> Option<Steps<Duration>> {
        (!self.delays.is_empty()).then(|| Steps::new(base, &self.delays, self.period))
    }

    pub(crate) fn error_rates(&self, base: Probability) -> Option<Steps<Probability>> {
        (!self.error_rates.is_empty()).then(|| Steps::new(base, &self.error_rates, self.period))
    }

    pub(crate) fn has_rates(&self) -> bool {
        !self.rates.is_empty()
    }
}

/// A byte in bits times nanoseconds: what a rate in bits per second sends in 8·10⁹/rate nanoseconds.
pub(crate) const BIT_NANOS: u64 = 8 * 1_000_000_000;
