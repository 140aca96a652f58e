//! What every frame has: its version, a header, a tag, and reasons not to be taken.

/// The version of the protocol, which both boxes must share.
pub const VERSION: u8 = 1;

/// Bytes of the header of a sealed frame: version and kind, key id, end of the number.
pub const HEADER: usize = 1 + 1 + SHORT;
/// Bytes of a number of which only the end is told: that of a frame, and that of a packet.
pub(crate) const SHORT: usize = 3;
/// Bytes of the tag that authenticates a frame.
pub const TAG: usize = 16;

/// The number next to `expected` that has these lower 32 bits (as RFC 9000 appendix A.3); `None` if it would
/// be negative.
pub(crate) fn expand_low(low: u32, expected: u64) -> Option<u64> {
    let difference = low.wrapping_sub(expected as u32) as i32;
    expected.checked_add_signed(i64::from(difference))
}

/// The same for the lower 24 bits: the number is within 2²³ of `expected`. No sender gets so far ahead of what
/// its peer has reported: before that it begins a new session (`leg`).
pub(crate) fn expand_short(low: [u8; SHORT], expected: u64) -> Option<u64> {
    let [a, b, c] = low;
    // The signs of the differences are in the uppermost bits.
    let low = u32::from_be_bytes([a, b, c, 0]);
    let difference = low.wrapping_sub((expected as u32) << 8) as i32 >> 8;
    expected.checked_add_signed(i64::from(difference))
}

/// The lower 24 bits.
pub(crate) fn short(number: u64) -> [u8; SHORT] {
    let [.., a, b, c] = number.to_be_bytes();
    [a, b, c]
}

/// Why a frame is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// It ends too early.
    #[error("the frame of {bytes} bytes ends within its {what}")]
    Truncated {
        /// In what.
        what: &'static str,
        /// Its length.
        bytes: usize,
    },
    /// The peer speaks another version.
    #[error("the peer speaks version {theirs} of the protocol, and not {VERSION}")]
    Version {
        /// Its version.
        theirs: u8,
    },
    /// There is no such kind.
    #[error("frames of kind {0} do not exist")]
    Kind(u8),
    /// The peer uses another cipher.
    #[error("the peer uses cipher {theirs}, and not {ours}; both must have the same `cipher` and `insecure`")]
    Cipher {
        /// The code of its cipher.
        theirs: u8,
        /// The code of ours.
        ours: u8,
    },
    /// It belongs to no session that is known: one before a restart, or one of others.
    #[error("the frame belongs to no session with this peer (key id {id:#04x})")]
    UnknownKey {
        /// The id in the frame.
        id: u8,
    },
    /// It was changed on its way, or is of someone who has another key.
    #[error("the frame is not authentic: it was changed, or the peer has another key")]
    NotAuthentic,
    /// It has come before.
    #[error("frame {number} has come before")]
    Replayed {
        /// Its number.
        number: u64,
    },
    /// It is older than the replay window.
    #[error("the frame is too old to tell whether it has come before")]
    Old,
    /// It is our own.
    #[error("the frame is one of our own that came back")]
    Reflected,
    /// It is authentic and makes no sense.
    #[error("the frame has {0}")]
    Malformed(&'static str),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_lower_half_tells_the_number(expected in 0u64..1 << 50, ahead in -(1i64 << 31)..1 << 31) {
            let number = expected.checked_add_signed(ahead);
            let low = expected.wrapping_add_signed(ahead) as u32;
            prop_assert_eq!(expand_low(low, expected), number);
        }

        #[test]
        fn the_last_three_bytes_tell_the_number(expected in 0u64..1 << 50, ahead in -(1i64 << 23)..1 << 23) {
            let number = expected.checked_add_signed(ahead);
            let low = short(expected.wrapping_add_signed(ahead));
            prop_assert_eq!(expand_short(low, expected), number);
        }
    }
}
