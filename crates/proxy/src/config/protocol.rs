//! Protocols above IP, by name or number.

use std::fmt;

use bentpipe_config::Scalar;
use serde::Deserialize;

/// A protocol above IP (the field Protocol of IPv4, Next Header of IPv6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "Scalar")]
pub struct Protocol {
    number: u8,
    /// Its number in IPv6, if that has another: ICMP.
    ipv6: u8,
}

/// Names, numbers, and numbers in IPv6.
const NAMES: [(&str, u8, u8); 8] = [
    ("icmp", 1, 58),
    ("ipip", 4, 4),
    ("tcp", 6, 6),
    ("udp", 17, 17),
    ("gre", 47, 47),
    ("esp", 50, 50),
    ("ah", 51, 51),
    ("sctp", 132, 132),
];

impl Protocol {
    /// Its number in both families; the same one unless it is ICMP.
    pub(crate) fn numbers(self) -> [u8; 2] {
        [self.number, self.ipv6]
    }

    /// Whether rules may name its ports.
    pub(crate) fn has_ports(self) -> bool {
        matches!(self.number, 6 | 17)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(_, number, _)| *number == self.number) {
            Some((name, ..)) => f.write_str(name),
            None => self.number.fmt(f),
        }
    }
}

impl TryFrom<Scalar> for Protocol {
    type Error = String;

    fn try_from(value: Scalar) -> Result<Self, String> {
        let text = match &value {
            Scalar::Number(number) => number.to_string(),
            Scalar::Text(text) => text.to_lowercase(),
        };
        let named = NAMES.iter().find(|(name, number, _)| *name == text || number.to_string() == text);
        let numbers = match named {
            Some((_, number, ipv6)) => Some((*number, *ipv6)),
            None => text.parse().ok().map(|number| (number, number)),
        };
        let (number, ipv6) = numbers.ok_or_else(|| {
            let names = NAMES.map(|(name, ..)| name).join(", ");
            format!("\"{text}\" is not a protocol; write {names}, or a number from 0 to 255")
        })?;
        Ok(Self { number, ipv6 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Protocol, String> {
        Protocol::try_from(Scalar::Text(text.to_owned()))
    }

    #[test]
    fn a_protocol_has_a_name_or_a_number() {
        assert_eq!(read("esp").unwrap().numbers(), [50, 50]);
        assert_eq!(read("50"), read("ESP"));
        assert_eq!(Protocol::try_from(Scalar::Number(17)), read("udp"));
        assert_eq!(read("icmp").unwrap().numbers(), [1, 58]);
        assert_eq!(
            (read("255").unwrap().to_string(), read("udp").unwrap().to_string()),
            ("255".into(), "udp".into())
        );
        for text in ["quic", "256", "-1", ""] {
            assert!(read(text).unwrap_err().contains("write icmp, "), "{text}");
        }
    }
}
