//! Numbers of a daemon in a form for people.

/// Three digits and a unit: `4.67 Mbit/s`.
pub(super) fn rate(bits_per_second: f64) -> String {
    scaled(bits_per_second, &["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"])
}

/// The same for bytes: `34.5 MB`.
pub(super) fn bytes(bytes: u64) -> String {
    scaled(bytes as f64, &["B", "kB", "MB", "GB", "TB", "PB"])
}

/// A short time: `600 ms`, `1.20 s`.
pub(super) fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 0.000_999_5 => format!("{:.0} us", s * 1e6),
        s if s < 0.009_995 => format!("{:.1} ms", s * 1e3),
        s if s < 0.999_5 => format!("{:.0} ms", s * 1e3),
        s if s < 9.995 => format!("{s:.2} s"),
        s => format!("{s:.1} s"),
    }
}

/// A long time in two units: `3 d 4 h`, `2 h 14 min`, `1 min 5 s`.
pub(super) fn span(seconds: f64) -> String {
    // The conversion saturates, and a negative time becomes zero.
    let whole = seconds as u64;
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        3600..86400 => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
        _ => format!("{} d {} h", whole / 86400, whole % 86400 / 3600),
    }
}

/// `1.2%`.
pub(super) fn share(ratio: f64) -> String {
    match ratio * 100.0 {
        0.0 => "0%".to_owned(),
        percent if percent < 0.0095 => "<0.01%".to_owned(),
        percent if percent < 0.995 => format!("{percent:.2}%"),
        percent => format!("{percent:.1}%"),
    }
}

/// A value, or a dash if it is unknown.
pub(super) fn known<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}

/// Text from elsewhere, with its control characters replaced.
pub(super) fn plain(text: &str) -> String {
    bentpipe_table::printable(text, '\u{fffd}')
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
    use super::*;

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
            (8040.0, "2 h 14 min"),
            (273_600.0, "3 d 4 h"),
        ] {
            assert_eq!(span(time), text);
        }
        for (ratio, text) in
            [(0.0, "0%"), (0.000_01, "<0.01%"), (0.0012, "0.12%"), (0.012, "1.2%"), (1.0, "100.0%")]
        {
            assert_eq!(share(ratio), text);
        }
    }

    #[test]
    fn names_cannot_control_the_terminal() {
        assert_eq!(plain("sat\u{1b}[2J\r\nä"), "sat\u{fffd}[2J\u{fffd}\u{fffd}ä");
    }
}
