//! What a file says, as it may stand in a message.

/// The longest text about a value, characters; beyond it, the middle is left out.
const MAX_CHARS: usize = 600;

/// The text as one line, not too long.
pub(crate) fn one_line(text: &str) -> String {
    shortened(text, MAX_CHARS)
}

/// The text without line breaks and other control characters, which could come from the file, and not too
/// long.
pub(crate) fn shortened(text: &str, longest: usize) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let length = text.chars().count();
    if length <= longest {
        return text.chars().map(plain).collect();
    }
    let half = longest / 2;
    let (head, tail) = (text.chars().take(half), text.chars().skip(length - half));
    head.chain(" … ".chars()).chain(tail).map(plain).collect()
}
