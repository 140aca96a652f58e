//! Self-delimiting numeric values: seven bits a byte, the highest first, the eighth bit set in all but the
//! last (RFC 6256).

/// Why a number could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The bytes end within it.
    #[error("it ends within a number")]
    Truncated,
    /// It has more than 64 bits, which is what RFC 5326 §3 lets an implementation ask for.
    #[error("a number has more than 64 bits")]
    TooLong,
}

/// Appends a number.
pub fn write(value: u64, out: &mut Vec<u8>) {
    let last = len(value) - 1;
    for place in (0..=last).rev() {
        let more = if place > 0 { 0x80 } else { 0 };
        out.push((value >> (7 * place)) as u8 & 0x7f | more);
    }
}

/// How many bytes a number takes, 1 to 10.
pub fn len(value: u64) -> usize {
    (64 - value.leading_zeros() as usize).div_ceil(7).max(1)
}

/// Takes a number from the beginning of `bytes`. Zeros in front of it are accepted.
///
/// # Errors
/// [`Malformed`].
pub fn read(bytes: &mut &[u8]) -> Result<u64, Malformed> {
    let mut value = 0_u64;
    loop {
        let (&byte, rest) = bytes.split_first().ok_or(Malformed::Truncated)?;
        *bytes = rest;
        if value >> 57 != 0 {
            return Err(Malformed::TooLong);
        }
        value = value << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_examples_of_the_rfc() {
        // RFC 6256 §2.
        for (value, bytes) in [
            (0xabc, &[0x95, 0x3c][..]),
            (0x1234, &[0xa4, 0x34]),
            (0x4234, &[0x81, 0x84, 0x34]),
            (0x7f, &[0x7f]),
        ] {
            let mut out = Vec::new();
            write(value, &mut out);
            assert_eq!(out, bytes);
            assert_eq!(read(&mut &out[..]), Ok(value));
        }
    }

    #[test]
    fn what_is_no_number_is_refused() {
        assert_eq!(read(&mut &[][..]), Err(Malformed::Truncated));
        assert_eq!(read(&mut &[0x81][..]), Err(Malformed::Truncated));
        assert_eq!(read(&mut &[[0xff; 10].as_slice(), &[0x7f]].concat()[..]), Err(Malformed::TooLong));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(value: u64, behind: Vec<u8>) {
            let mut out = Vec::new();
            write(value, &mut out);
            prop_assert_eq!(out.len(), len(value));
            out.extend(&behind);
            let mut rest = &out[..];
            prop_assert_eq!(read(&mut rest), Ok(value));
            prop_assert_eq!(rest, &behind[..]);
        }
    }
}
