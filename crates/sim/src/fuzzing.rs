//! The body of the fuzz target `scenario`; see `fuzz/README.md`.

use crate::file::Source;

/// The text of a scenario's file.
///
/// # Panics
/// An error is more than one line, or does not name its file.
pub fn scenario(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // Files of outages are read from the disk, where a device may have no end.
    if text.contains('/') && (text.contains("file") || text.contains('\\')) {
        return;
    }
    if let Err(error) = Source::parse("x", text).and_then(|source| source.with(&[])) {
        assert!(error.to_string().lines().all(|line| line.starts_with('x')), "{error}");
    }
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_corpus_breaks_nothing() {
        replay::replay("scenario", scenario);
    }
}
