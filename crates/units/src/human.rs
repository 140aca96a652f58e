//! Measured quantities in a form for people, rounded. What is configured is shown as it is written: by
//! `Display`.

use std::time::{SystemTime, UNIX_EPOCH};

/// Three digits and a unit: `4.67 Mbit/s`.
pub fn rate(bits_per_second: f64) -> String {
    scaled(bits_per_second, &["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"])
}

/// The same for bytes: `34.5 MB`.
pub fn bytes(bytes: u64) -> String {
    scaled(bytes as f64, &["B", "kB", "MB", "GB", "TB", "PB"])
}

/// A short time: `600 ms`, `1.20 s`.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 0.000_999_5 => format!("{:.0} us", s * 1e6),
        s if s < 0.009_995 => format!("{:.1} ms", s * 1e3),
        s if s < 0.999_5 => format!("{:.0} ms", s * 1e3),
        s if s < 9.995 => format!("{s:.2} s"),
        s => format!("{s:.1} s"),
    }
}

/// A long time in two units at the most: `3 d 4 h`, `2 h 14 min`, `1 min 5 s`, `10 min`.
pub fn span(seconds: f64) -> String {
    // The conversion saturates, and a negative time becomes zero.
    let whole = seconds as u64;
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => two(whole / 60, "min", whole % 60, "s"),
        3600..86400 => two(whole / 3600, "h", whole % 3600 / 60, "min"),
        _ => two(whole / 86400, "d", whole % 86400 / 3600, "h"),
    }
}

/// `1 connection`, `2 connections`: a noun whose plural has an s.
pub fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// UTC with milliseconds (RFC 3339 §5.6). A time before 1970 is shown as its beginning.
pub fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", since.subsec_millis())
}

/// The date of a day after 1970-01-01, in the Gregorian calendar: whole cycles of 400 years, then the years
/// and months of what is left.
fn date(days: u64) -> (u64, u64, u64) {
    const CYCLE: u64 = 146_097;
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut left) = (1970 + days / CYCLE * 400, days % CYCLE);
    loop {
        let length = if is_leap(year) { 366 } else { 365 };
        if left < length {
            break;
        }
        left -= length;
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    for (month, length) in (1..).zip([31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]) {
        if left < length {
            return (year, month, left + 1);
        }
        left -= length;
    }
    unreachable!("the months of a year have as many days as the year");
}

fn two(large: u64, unit: &str, small: u64, small_unit: &str) -> String {
    match small {
        0 => format!("{large} {unit}"),
        small => format!("{large} {unit} {small} {small_unit}"),
    }
}

fn scaled(value: f64, units: &[&str]) -> String {
    let (mut value, mut place) = (value, 0);
    // A value that rounds up to 1000 is shown in the next unit.
    while value >= 999.5 && place + 1 < units.len() {
        value /= 1000.0;
        place += 1;
    }
    match value {
        v if place == 0 => format!("{v:.0} {}", units[place]),
        v if v < 9.995 => format!("{v:.2} {}", units[place]),
        v if v < 99.95 => format!("{v:.1} {}", units[place]),
        v => format!("{v:.0} {}", units[place]),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn one_is_singular() {
        let text = |number| count(number, "connection");
        assert_eq!([0, 1, 2].map(text), ["0 connections", "1 connection", "2 connections"]);
    }

    #[test]
    fn three_digits_and_a_unit() {
        for (bits, text) in [
            (0.0, "0 bit/s"),
            (999.4, "999 bit/s"),
            (999.6, "1.00 kbit/s"),
            (4_670_000.0, "4.67 Mbit/s"),
            (9_996_000.0, "10.0 Mbit/s"),
            (99_960_000.0, "100 Mbit/s"),
            (2.5e16, "25000 Tbit/s"),
        ] {
            assert_eq!(rate(bits), text, "{bits}");
        }
        assert_eq!((bytes(999).as_str(), bytes(34_500_000).as_str()), ("999 B", "34.5 MB"));
        assert_eq!(bytes(u64::MAX), "18447 PB");
    }

    #[test]
    fn times_have_the_unit_that_fits() {
        for (time, text) in [
            (0.000_05, "50 us"),
            (0.0042, "4.2 ms"),
            (0.6, "600 ms"),
            (0.999_9, "1.00 s"),
            (1.2, "1.20 s"),
            (62.0, "62.0 s"),
        ] {
            assert_eq!(seconds(time), text);
        }
        for (time, text) in [
            (-1.0, "0 s"),
            (59.9, "59 s"),
            (65.0, "1 min 5 s"),
            (600.0, "10 min"),
            (3600.0, "1 h"),
            (8040.0, "2 h 14 min"),
            (273_600.0, "3 d 4 h"),
        ] {
            assert_eq!(span(time), text);
        }
    }

    #[test]
    fn a_time_is_utc_with_milliseconds() {
        let at = |millis| rfc3339(UNIX_EPOCH + Duration::from_millis(millis));
        assert_eq!(at(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(951_782_399_999), "2000-02-28T23:59:59.999Z");
        assert_eq!(at(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(at(1_795_391_025_250), "2026-11-22T23:43:45.250Z");
        assert_eq!(at(4_107_542_400_000), "2100-03-01T00:00:00.000Z");
        assert_eq!(rfc3339(UNIX_EPOCH - Duration::from_secs(1)), at(0));
    }

    #[test]
    fn dates_follow_each_other() {
        for day in 0..200_000 {
            let (today, tomorrow) = (date(day), date(day + 1));
            assert!(today < tomorrow);
            assert!(tomorrow.2 == today.2 + 1 || (tomorrow.2 == 1 && today.2 >= 28), "{today:?}");
        }
    }
}
