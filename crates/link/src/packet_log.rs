//! The packet log: a row of CSV for each step of each packet on a link, and the sums at the end. It is the
//! same in virtual time and in the testbed, and what a verifier of the link reads.
//!
//! | column | meaning |
//! |---|---|
//! | `time_s` | seconds since the link began; nanoseconds are exact, here and in the other columns |
//! | `direction` | `forward` or `reverse`; in the testbed `down`, to the terminal, or `up` |
//! | `event` | `enter`: came to the transmitter; `arrive`; `duplicate`: arrived once more; or why it was lost: `queue_full`, `outage`, `burst_error`, `packet_error`; or a sum, see below |
//! | `packet` | number of the packet in its direction, from 1 on |
//! | `bytes` | of the packet; where agents are at the ends of the link, of the frame that they send |
//! | `queue_bytes` | with `enter`: wire bytes that wait before it or are being sent |
//! | `delay_s` | with `arrive` and `duplicate`: seconds since `enter` |
//! | `departure_s` | with these: when the last bit left the transmitter |
//! | `due_s` | with these: when the model says that it arrives |
//! | `corrupted` | with these: 1 if the link has flipped a bit of it, else 0 |
//! | `link` | the name of the link |
//!
//! A packet that is lost has the row of its loss directly behind its `enter`, among the rows of its
//! direction. The rows of a direction are in the order of time.
//!
//! At the end, each direction has the rows `sum_offered`, `sum_delivered`, `sum_wire`, one for each cause of
//! loss (`sum_queue_full` …) and one for each impairment (`sum_duplicated`, `sum_held_back`,
//! `sum_corrupted`): the counters of the link, packets in the column `packet` and, of the first three, bytes
//! in `bytes`. A log without them is not complete; nor is one whose last row has the event `missing`.

use std::fmt::{self, Display, Formatter, Write as _};

use bentpipe_units::{ByteCount, Time};

use crate::{Cause, Counters, ImpairmentCounters};

/// The header of the log.
pub const COLUMNS: &str =
    "time_s,direction,event,packet,bytes,queue_bytes,delay_s,departure_s,due_s,corrupted,link";

/// A row about a packet; [`Display`] writes it, without an end of line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row<'a> {
    /// When the step was made.
    pub at: Time,
    /// The name of the link, without a comma.
    pub link: &'a str,
    /// The name of the direction.
    pub direction: &'a str,
    /// Which of the packets offered to the direction it is, from 1 on.
    pub number: u64,
    /// Its length.
    pub bytes: usize,
    /// The step.
    pub step: Step,
}

/// A step of a packet over a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It came to the transmitter, where this much was waiting or being sent.
    Entered {
        /// Bytes on the wire.
        queue: ByteCount,
    },
    /// It will not arrive, or was not even sent.
    Lost(Cause),
    /// A copy of it has crossed the link.
    Arrived(Crossing),
}

/// How a copy of a packet has crossed the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crossing {
    /// When the packet came to the transmitter.
    pub entered: Time,
    /// When its last bit left it.
    pub departure: Time,
    /// When it arrives by the model.
    pub due: Time,
    /// Whether one of its bits was flipped.
    pub is_corrupted: bool,
    /// The second copy of a packet that was duplicated.
    pub is_duplicate: bool,
}

impl Display for Row<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { at, link, direction, number, bytes, step } = *self;
        write!(f, "{},{direction},", Seconds(at.as_nanos()))?;
        match step {
            Step::Entered { queue } => write!(f, "enter,{number},{bytes},{},,,,,{link}", queue.get()),
            Step::Lost(cause) => write!(f, "{},{number},{bytes},,,,,,{link}", name(cause)),
            Step::Arrived(Crossing { entered, departure, due, is_corrupted, is_duplicate }) => write!(
                f,
                "{},{number},{bytes},,{},{},{},{},{link}",
                if is_duplicate { "duplicate" } else { "arrive" },
                Seconds(at.as_nanos().saturating_sub(entered.as_nanos())),
                Seconds(departure.as_nanos()),
                Seconds(due.as_nanos()),
                u8::from(is_corrupted),
            ),
        }
    }
}

/// The rows at the end of a direction, each with its end of line.
pub fn sums(
    at: Time,
    link: &str,
    direction: &str,
    counters: &Counters,
    impairments: &ImpairmentCounters,
) -> String {
    let mut text = String::new();
    let mut row = |sum: &str, packets: u64, bytes: Option<u64>| {
        let bytes = bytes.map(|bytes| bytes.to_string()).unwrap_or_default();
        let at = Seconds(at.as_nanos());
        // Memory takes any text.
        let _ = writeln!(text, "{at},{direction},sum_{sum},{packets},{bytes},,,,,,{link}");
    };
    row("offered", counters.offered, Some(counters.offered_bytes));
    row("delivered", counters.delivered, Some(counters.delivered_bytes));
    row("wire", counters.offered - counters.dropped.queue_full, Some(counters.wire_bytes));
    Cause::ALL.iter().for_each(|&cause| row(name(cause), counters.dropped(cause), None));
    row("duplicated", impairments.duplicated, None);
    row("held_back", impairments.held_back, None);
    row("corrupted", impairments.corrupted, None);
    text
}

/// Two rows about a flow at the end of a run: the bytes that the application at its source has written, and
/// the one at its destination received; and whether it has ended well. Its name, without a comma, stands in
/// the column of the link.
pub fn application(now: Time, flow: &str, [written, received]: [u64; 2], is_finished: bool) -> String {
    let (at, finished) = (Seconds(now.as_nanos()), u8::from(is_finished));
    format!(
        "{at},,app_written,{finished},{written},,,,,,{flow}\n{at},,app_received,{finished},{received},,,,,,{flow}\n"
    )
}

/// The last row of a log in which so many rows are missing.
pub fn missing(rows: u64) -> String {
    format!("{},,missing,{rows},,,,,,,", Seconds(0))
}

fn name(cause: Cause) -> &'static str {
    match cause {
        Cause::QueueFull => "queue_full",
        Cause::Outage => "outage",
        Cause::BurstError => "burst_error",
        Cause::PacketError => "packet_error",
    }
}

/// Nanoseconds as seconds, all digits.
struct Seconds(u64);

impl Display for Seconds {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(step: Step) -> String {
        let at = Time::from_nanos(1_234_567_891);
        Row { at, link: "satellite", direction: "forward", number: 7, bytes: 1500, step }.to_string()
    }

    #[test]
    fn a_row_has_a_field_for_each_column() {
        let [entered, departure, due] = [934_567_890, 1_000_000_000, 1_234_567_890].map(Time::from_nanos);
        let crossing = Crossing { entered, departure, due, is_corrupted: true, is_duplicate: false };
        let duplicate = Crossing { is_duplicate: true, is_corrupted: false, ..crossing };
        for (step, expected) in [
            (
                Step::Entered { queue: ByteCount::new(3000) },
                "1.234567891,forward,enter,7,1500,3000,,,,,satellite",
            ),
            (Step::Lost(Cause::QueueFull), "1.234567891,forward,queue_full,7,1500,,,,,,satellite"),
            (
                Step::Arrived(crossing),
                "1.234567891,forward,arrive,7,1500,,0.300000001,1.000000000,1.234567890,1,satellite",
            ),
            (
                Step::Arrived(duplicate),
                "1.234567891,forward,duplicate,7,1500,,0.300000001,1.000000000,1.234567890,0,satellite",
            ),
        ] {
            assert_eq!(row(step), expected);
            assert_eq!(expected.split(',').count(), COLUMNS.split(',').count());
        }
    }

    #[test]
    fn the_sums_are_the_counters() {
        let mut counters = Counters::default();
        counters.count(1500, 1692, None);
        counters.count(1500, 1692, Some(Cause::QueueFull));
        counters.count(40, 188, Some(Cause::PacketError));
        let impairments = ImpairmentCounters { held_back: 3, duplicated: 2, corrupted: 1 };
        let text = sums(Time::from_nanos(5), "sat", "up", &counters, &impairments);
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(rows[0], "0.000000005,up,sum_offered,3,3040,,,,,,sat");
        assert_eq!(rows[2], "0.000000005,up,sum_wire,2,1880,,,,,,sat");
        assert!(rows.iter().all(|row| row.split(',').count() == COLUMNS.split(',').count()));
        assert_eq!(missing(12), "0.000000000,,missing,12,,,,,,,");
        let sums = rows.iter().map(|row| {
            let fields: Vec<&str> = row.split(',').collect();
            (fields[2].trim_start_matches("sum_"), fields[3])
        });
        let expected = [
            ("offered", "3"),
            ("delivered", "1"),
            ("wire", "2"),
            ("queue_full", "1"),
            ("outage", "0"),
            ("burst_error", "0"),
            ("packet_error", "1"),
            ("duplicated", "2"),
            ("held_back", "3"),
            ("corrupted", "1"),
        ];
        assert!(sums.eq(expected));
    }
}
