//! The rows of a packet log.

use std::io::BufRead;

use crate::InputError;

/// The columns that are read, by their names.
const COLUMNS: [&str; 11] = [
    "time_s",
    "direction",
    "event",
    "packet",
    "bytes",
    "queue_bytes",
    "delay_s",
    "departure_s",
    "due_s",
    "corrupted",
    "link",
];

/// A row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row<'a> {
    pub(crate) at: u64,
    pub(crate) link: &'a [u8],
    pub(crate) is_reverse: bool,
    pub(crate) number: u64,
    pub(crate) bytes: u64,
    pub(crate) event: Event<'a>,
}

/// What a row says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event<'a> {
    Enter {
        queue: u64,
    },
    Lost(Cause),
    Arrive(Crossing),
    Sum(&'a str),
    /// Rows that could not be written.
    Missing,
    /// Bytes of a flow that its source has written, or its destination received.
    Application {
        is_received: bool,
    },
}

/// Why a packet was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    QueueFull,
    Outage,
    BurstError,
    PacketError,
}

/// A copy of a packet that has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Crossing {
    pub(crate) delay: u64,
    pub(crate) departure: u64,
    pub(crate) due: u64,
    pub(crate) is_corrupted: bool,
    pub(crate) is_duplicate: bool,
}

impl Cause {
    pub(crate) const ALL: [Self; 4] = [Self::QueueFull, Self::Outage, Self::BurstError, Self::PacketError];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::Outage => "outage",
            Self::BurstError => "burst_error",
            Self::PacketError => "packet_error",
        }
    }
}

/// Reads a log row by row.
pub(crate) fn read(
    mut log: impl BufRead,
    mut each: impl FnMut(&Row<'_>) -> Result<(), String>,
) -> Result<(), InputError> {
    let mut line = Vec::with_capacity(200);
    for number in 1u64.. {
        let fail = |why: String| InputError(format!("line {number} of the packet log: {why}"));
        line.clear();
        let length = log.read_until(b'\n', &mut line).map_err(|error| fail(error.to_string()))?;
        if number == 1 {
            check_header(&line).map_err(fail)?;
            continue;
        }
        if length == 0 {
            break;
        }
        if line.pop() != Some(b'\n') {
            return Err(fail("it is cut off".to_owned()));
        }
        let row = parse(&line).ok_or_else(|| {
            let text = String::from_utf8_lossy(&line[..line.len().min(200)]).into_owned();
            fail(format!("\"{text}\" is no row of a packet log"))
        })?;
        each(&row).map_err(fail)?;
    }
    Ok(())
}

fn check_header(line: &[u8]) -> Result<(), String> {
    let expected = COLUMNS.join(",");
    if line.trim_ascii_end() == expected.as_bytes() {
        return Ok(());
    }
    Err(format!(
        "it does not begin with the columns {expected}: `bentpipe sim --log` and `bentpipe link --log` write them"
    ))
}

fn parse(line: &[u8]) -> Option<Row<'_>> {
    let mut fields = line.split(|byte| *byte == b',');
    let mut next = || fields.next();
    let (at, direction, event, number, bytes) = (nanos(next()?)?, next()?, next()?, next()?, next()?);
    let (queue, delay, departure, due, corrupted) = (next()?, next()?, next()?, next()?, next()?);
    let link = next()?;
    if next().is_some() {
        return None;
    }
    let crossing = |is_duplicate| {
        let is_corrupted = match corrupted {
            b"0" => false,
            b"1" => true,
            _ => return None,
        };
        let (delay, departure, due) = (nanos(delay)?, nanos(departure)?, nanos(due)?);
        Some(Event::Arrive(Crossing { delay, departure, due, is_corrupted, is_duplicate }))
    };
    let event = match event {
        b"enter" => Event::Enter { queue: whole(queue)? },
        b"arrive" => crossing(false)?,
        b"duplicate" => crossing(true)?,
        b"missing" => Event::Missing,
        b"app_written" => Event::Application { is_received: false },
        b"app_received" => Event::Application { is_received: true },
        event => match event.strip_prefix(b"sum_") {
            Some(sum) => Event::Sum(std::str::from_utf8(sum).ok()?),
            None => Event::Lost(Cause::ALL.into_iter().find(|cause| cause.name().as_bytes() == event)?),
        },
    };
    let has_no_direction = matches!(event, Event::Application { .. } | Event::Missing);
    let is_reverse = match direction {
        b"forward" | b"down" => false,
        b"reverse" | b"up" => true,
        b"" if has_no_direction => false,
        _ => return None,
    };
    let bytes = match (event, bytes) {
        (Event::Sum(_) | Event::Missing, b"") => 0,
        (_, bytes) => whole(bytes)?,
    };
    Some(Row { at, link, is_reverse, number: whole(number)?, bytes, event })
}

fn whole(field: &[u8]) -> Option<u64> {
    if field.is_empty() || field.len() > 18 {
        return None;
    }
    field.iter().try_fold(0, |sum, byte| byte.is_ascii_digit().then(|| 10 * sum + u64::from(byte - b'0')))
}

/// Seconds with nine decimals, as nanoseconds.
fn nanos(field: &[u8]) -> Option<u64> {
    let (seconds, fraction) = field.split_at(field.len().checked_sub(10)?);
    let fraction = fraction.strip_prefix(b".")?;
    whole(seconds)?.checked_mul(1_000_000_000)?.checked_add(whole(fraction)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_to_the_nanosecond() {
        let row =
            parse(b"1.234567891,up,duplicate,7,1500,,0.300000001,1.000000000,1.234567890,1,sat").unwrap();
        let crossing = Crossing {
            delay: 300_000_001,
            departure: 1_000_000_000,
            due: 1_234_567_890,
            is_corrupted: true,
            is_duplicate: true,
        };
        let event = Event::Arrive(crossing);
        let expected =
            Row { at: 1_234_567_891, link: b"sat", is_reverse: true, number: 7, bytes: 1500, event };
        assert_eq!(row, expected);
        let row = parse(b"0.000000005,forward,enter,1,40,3000,,,,,sat").unwrap();
        assert_eq!(row.event, Event::Enter { queue: 3000 });
        let row = parse(b"9.000000005,forward,sum_wire,2,1880,,,,,,sat").unwrap();
        assert_eq!((row.event, row.number, row.bytes), (Event::Sum("wire"), 2, 1880));
    }

    #[test]
    fn what_is_no_row_is_told_with_its_line() {
        let header = COLUMNS.join(",");
        let error = |text: &str| read(text.as_bytes(), |_| Ok(())).unwrap_err().to_string();
        assert!(error("").contains("line 1") && error("time_s,direction\n").contains("sim --log"));
        for row in ["x", "1.5,forward,enter,1,40,3000,,,,,sat", "1.500000000,left,enter,1,40,0,,,,,sat"] {
            assert!(error(&format!("{header}\n{row}\n")).contains("line 2"), "{row}");
        }
        let cut = format!("{header}\n0.000000005,forward,enter,1,40,3000,,,,,sat");
        assert!(error(&cut).ends_with("it is cut off"));
    }
}
