//! Differentiated services code points (RFC 2474).

use bentpipe_config::Scalar;
use serde::Deserialize;

/// A code point, 0–63: the upper six bits of the octet that IPv4 calls type of service and IPv6 traffic
/// class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "Scalar")]
pub struct Dscp(u8);

impl Dscp {
    /// The number.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl TryFrom<Scalar> for Dscp {
    type Error = String;

    fn try_from(value: Scalar) -> Result<Self, String> {
        let (known, written) = match value {
            Scalar::Number(number) => {
                (u8::try_from(number).ok().filter(|&number| number < 64), number.to_string())
            }
            Scalar::Text(name) => {
                (by_name(&name.to_ascii_lowercase()), format!("\"{}\"", name.escape_debug()))
            }
        };
        known.map(Self).ok_or_else(|| {
            format!(
                "{written} is not a code point; write 0 to 63, \"df\", \"le\", \"ef\", \"voice-admit\", \"cs0\" to \
                 \"cs7\" or \"af11\" to \"af43\""
            )
        })
    }
}

fn by_name(name: &str) -> Option<u8> {
    match name.as_bytes() {
        // RFC 2474 §4.1, of old best effort.
        b"df" | b"be" => Some(0),
        // RFC 8622 §5.
        b"le" => Some(1),
        // RFC 3246 §2.7.
        b"ef" => Some(46),
        // RFC 5865 §4.
        b"voice-admit" => Some(44),
        // RFC 2474 §4.2.2: three bits that were the precedence.
        [b'c', b's', class @ b'0'..=b'7'] => Some((class - b'0') << 3),
        // RFC 2597 §6: four classes, three drop precedences.
        [b'a', b'f', class @ b'1'..=b'4', drop @ b'1'..=b'3'] => {
            Some((class - b'0') << 3 | (drop - b'0') << 1)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_meaning_of_their_rfcs() {
        for (name, number) in [
            ("df", 0),
            ("be", 0),
            ("cs0", 0),
            ("le", 1),
            ("cs1", 8),
            ("af11", 10),
            ("af43", 38),
            ("voice-admit", 44),
            ("EF", 46),
            ("cs7", 56),
        ] {
            assert_eq!(Dscp::try_from(Scalar::Text(name.to_owned())), Ok(Dscp(number)), "{name}");
        }
    }

    #[test]
    fn an_unknown_code_point_is_refused_with_the_known_ones() {
        for value in [
            Scalar::Number(64),
            Scalar::Number(-1),
            Scalar::Text("cs8".into()),
            Scalar::Text("af44".into()),
            Scalar::Text("46".into()),
        ] {
            let error = Dscp::try_from(value).unwrap_err();
            assert!(error.contains("is not a code point; write 0 to 63"), "{error}");
        }
    }
}
