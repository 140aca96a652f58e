//! The log of a link in mahimahi's format (`mm-link --uplink-log`, Netravali et al., "Mahimahi: Accurate
//! Record-and-Replay for HTTP", 2015), which `mm-throughput-graph` and `mm-delay-graph` draw. Times are in
//! whole milliseconds.
//!
//! | line | meaning |
//! |---|---|
//! | `# base timestamp: 0` | when times begin |
//! | `MS # BYTES` | what the millisecond could have carried; none where the link is infinitely fast |
//! | `MS + BYTES` | a packet has come |
//! | `MS - BYTES DELAY` | a packet has arrived, so many milliseconds after it came |
//! | `MS d PACKETS BYTES` | packets have been lost |

use std::fmt::{self, Debug, Formatter, Write};

use bentpipe_units::Time;

use crate::packet_log::{Crossing, Step};
use crate::{Conditions, DirectionConfig};

const NANOS_PER_MS: u64 = 1_000_000;
/// Bits that last for nanoseconds, in a byte that lasts for a second.
const BYTE: u128 = 8_000_000_000;

/// The log of one direction of a link.
pub struct MahimahiLog {
    opportunities: Option<Opportunities>,
}

/// What milliseconds could have carried, as the rate says that the link has then.
struct Opportunities {
    next_ms: u64,
    spans: Box<dyn Iterator<Item = Conditions> + Send>,
    /// The span in which the next millisecond begins.
    span: Conditions,
    /// All before that, in bits per second times nanoseconds.
    carried: u128,
}

impl MahimahiLog {
    /// The log of a direction, from its beginning on.
    pub fn new(config: &DirectionConfig) -> Self {
        let mut spans = Box::new(config.conditions());
        let first = spans.next().filter(|span| span.bps.is_some());
        let opportunities = first.map(|span| Opportunities { next_ms: 0, spans, span, carried: 0 });
        Self { opportunities }
    }

    /// What a file begins with. `direction` is its name, in mahimahi `uplink` or `downlink`; `started` is when
    /// the link began, in milliseconds since the beginning of 1970, 0 in virtual time.
    pub fn header(direction: &str, started: u128) -> String {
        format!(
            "# bentpipe link ({direction}), in the format of mahimahi's mm-link\n# init timestamp: {started}\n\
             # base timestamp: 0\n"
        )
    }

    /// Appends a step of a packet of so many bytes, and what the milliseconds up to it could have carried.
    /// Steps come in the order of time.
    pub fn step(&mut self, at: Time, bytes: usize, step: Step, out: &mut String) {
        let ms = at.as_nanos() / NANOS_PER_MS;
        if let Some(opportunities) = &mut self.opportunities {
            opportunities.write(ms, out);
        }
        // Memory takes any text.
        let _ = match step {
            Step::Entered { .. } => writeln!(out, "{ms} + {bytes}"),
            Step::Lost(_) => writeln!(out, "{ms} d 1 {bytes}"),
            Step::Arrived(Crossing { is_duplicate: true, .. }) => Ok(()),
            Step::Arrived(Crossing { entered, .. }) => {
                writeln!(out, "{ms} - {bytes} {}", (at - entered).as_millis())
            }
        };
    }
}

impl Debug for MahimahiLog {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let next_ms = self.opportunities.as_ref().map(|opportunities| opportunities.next_ms);
        f.debug_struct("MahimahiLog").field("next_ms", &next_ms).finish_non_exhaustive()
    }
}

impl Opportunities {
    /// The milliseconds up to `now_ms`.
    fn write(&mut self, now_ms: u64, out: &mut String) {
        while self.next_ms <= now_ms {
            let before = self.carried / BYTE;
            self.carry(self.next_ms * NANOS_PER_MS, (self.next_ms + 1) * NANOS_PER_MS);
            // The difference of two sums: rounding does not add up.
            let _ = writeln!(out, "{} # {}", self.next_ms, self.carried / BYTE - before);
            self.next_ms += 1;
        }
    }

    fn carry(&mut self, mut from: u64, until: u64) {
        while from < until {
            let end = self.span.until.as_nanos().min(until);
            let bps = self.span.bps.unwrap_or_default();
            self.carried += u128::from(bps) * u128::from(end.saturating_sub(from));
            from = from.max(end);
            if from == self.span.until.as_nanos() {
                match self.spans.next() {
                    Some(span) => self.span = span,
                    None => return,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bentpipe_units::{ByteCount, Rate};

    use super::*;
    use crate::{Cause, LinkTrace};

    const AT: Time = Time::from_nanos(1_234_567_890);
    const ARRIVED: Step = Step::Arrived(Crossing {
        entered: Time::from_nanos(934_567_890),
        departure: AT,
        due: AT,
        is_corrupted: false,
        is_duplicate: false,
    });
    const ENTERED: Step = Step::Entered { queue: ByteCount::new(0) };

    fn config(rate: Option<Rate>, trace: &str) -> DirectionConfig {
        DirectionConfig { rate, trace: LinkTrace::from_csv(trace).unwrap(), ..DirectionConfig::default() }
    }

    fn opportunities(config: &DirectionConfig, until_ms: u64) -> Vec<u64> {
        let (mut log, mut text) = (MahimahiLog::new(config), String::new());
        log.step(Time::from_nanos(until_ms * NANOS_PER_MS), 1500, ENTERED, &mut text);
        let lines = text.lines().filter(|line| line.contains(" # ")).enumerate();
        lines.map(|(ms, line)| line.strip_prefix(&format!("{ms} # ")).unwrap().parse().unwrap()).collect()
    }

    #[test]
    fn lines_are_in_milliseconds_and_without_a_rate_nothing_says_what_could_be_carried() {
        let mut text = MahimahiLog::header("uplink", 7);
        let mut log = MahimahiLog::new(&DirectionConfig::default());
        for step in [ENTERED, Step::Lost(Cause::Outage), ARRIVED] {
            log.step(AT, 1500, step, &mut text);
        }
        let steps = text.split_once("# init timestamp: 7\n# base timestamp: 0\n").unwrap().1;
        assert_eq!(steps, "1234 + 1500\n1234 d 1 1500\n1234 - 1500 300\n");
    }

    #[test]
    fn each_millisecond_is_there_once() {
        assert_eq!(opportunities(&config(Some(Rate::mbps(12)), "at_s,rate\n"), 2), [1500; 3]);
        let mut log = MahimahiLog::new(&config(Some(Rate::mbps(12)), "at_s,rate\n"));
        let mut text = String::new();
        (0..3).for_each(|_| log.step(Time::from_nanos(1), 40, ENTERED, &mut text));
        assert_eq!(text, "0 # 1500\n0 + 40\n0 + 40\n0 + 40\n");
    }

    #[test]
    fn a_rate_below_a_byte_in_a_millisecond_adds_up_all_the_same() {
        let slow = config("1kbit/s".parse().ok(), "at_s,rate\n");
        assert_eq!(opportunities(&slow, 999).iter().sum::<u64>(), 125);
    }

    #[test]
    fn a_rate_that_changes_within_a_millisecond_counts_for_its_part() {
        let varying = config(Some(Rate::mbps(8)), "at_s,rate\n0.0015,0\n0.003,16M\n0.005,repeat\n");
        assert_eq!(opportunities(&varying, 6), [1000, 500, 0, 2000, 2000, 1000, 500]);
    }
}
