//! Ports and ranges of them.

use bentpipe_config::Scalar;
use serde::Deserialize;

/// Successive ports, each 1–65535; often only one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "Scalar")]
pub struct Ports {
    first: u16,
    last: u16,
}

impl Ports {
    /// A single port.
    pub(super) const fn one(port: u16) -> Self {
        Self { first: port, last: port }
    }

    /// The lowest port.
    pub const fn first(&self) -> u16 {
        self.first
    }

    /// The highest port, which belongs to the range.
    pub const fn last(&self) -> u16 {
        self.last
    }

    /// Whether the port belongs to the range.
    pub const fn contains(&self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }
}

impl TryFrom<Scalar> for Ports {
    type Error = String;

    fn try_from(value: Scalar) -> Result<Self, String> {
        match value {
            Scalar::Number(number) => match u16::try_from(number) {
                Ok(port) if port > 0 => Ok(Self::one(port)),
                _ => Err(format!("{number} is not a port; write 1 to 65535, or a range like \"6000-6010\"")),
            },
            Scalar::Text(text) => range(&text),
        }
    }
}

fn range(text: &str) -> Result<Ports, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (port(first), port(last)) {
        (Some(first), Some(last)) if first <= last => Ok(Ports { first, last }),
        (Some(first), Some(last)) => {
            Err(format!("\"{text}\" is a range that ends before it begins; write \"{last}-{first}\""))
        }
        _ => Err(format!(
            "\"{}\" is not a port nor a range; write 1 to 65535, or for example \"6000-6010\"",
            text.escape_debug()
        )),
    }
}

fn port(text: &str) -> Option<u16> {
    let text = text.trim();
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|&port| digits && port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Ports, String> {
        Ports::try_from(Scalar::Text(text.to_owned()))
    }

    #[test]
    fn numbers_and_ranges_are_read() {
        assert_eq!(Ports::try_from(Scalar::Number(22)), Ok(Ports::one(22)));
        assert_eq!(read("22"), Ok(Ports::one(22)));
        assert_eq!(read("1-65535"), Ok(Ports { first: 1, last: 65535 }));
        assert_eq!(read("6000 - 6010"), Ok(Ports { first: 6000, last: 6010 }));
    }

    #[test]
    fn an_invalid_port_is_refused() {
        for text in ["", "-", "0", "65536", "ssh", "1-", "-5", "1-2-3", "+5", "22, 23"] {
            assert!(read(text).unwrap_err().contains("is not a port nor a range"), "{text}");
        }
        for number in [0, -1, 65536] {
            assert!(Ports::try_from(Scalar::Number(number)).unwrap_err().contains("is not a port"));
        }
        assert!(read("6010-6000").unwrap_err().contains("write \"6000-6010\""));
    }
}
