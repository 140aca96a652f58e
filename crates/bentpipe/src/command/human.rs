//! Numbers of a daemon in a form for people.

pub(super) use bentpipe_units::human::{bytes, rate, seconds, span};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_percentages() {
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
