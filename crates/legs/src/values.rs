//! Values that the kernel takes: one that exists is valid.

use std::fmt;

use bentpipe_kernel::timers::{self, KEEPALIVE_RANGE};
use bentpipe_link::explicit::{CrossTrafficAqm, CrossTrafficShare};
use bentpipe_units::{Probability, Span};
use serde::{Deserialize, Serialize};

/// The name of a network interface: 1 to 15 letters, digits and `.-_@:`, so that it can stand in a rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Interface(String);

impl Interface {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Interface {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        if is_kernel_name(&name) {
            Ok(Self(name))
        } else {
            Err(format!(
                "\"{name}\" is not an interface name; write 1 to 15 letters, digits or .-_@: like \"sat0\""
            ))
        }
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of a congestion control, as `net.ipv4.tcp_available_congestion_control` lists them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Congestion(String);

impl Congestion {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Congestion {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        if is_kernel_name(&name) {
            Ok(Self(name))
        } else {
            Err(format!(
                "\"{name}\" is not the name of a congestion control; write for example \"explicit\", \"hybla\" or \"bbr\""
            ))
        }
    }
}

/// When idle connections are probed: `off`, or after this time, from one second to nine hours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Keepalive {
    /// Never.
    Off,
    /// After this time without a segment received.
    After(Span),
}

impl Keepalive {
    /// The setting for the kernel crate; none is the default.
    pub(crate) fn of(setting: Option<Self>) -> timers::Keepalive {
        match setting {
            None => timers::Keepalive::Derived,
            Some(Self::Off) => timers::Keepalive::Off,
            Some(Self::After(idle)) => timers::Keepalive::After(idle.get()),
        }
    }
}

impl TryFrom<String> for Keepalive {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        let span: Option<Span> = text.parse().ok();
        span.filter(|span| KEEPALIVE_RANGE.contains(&span.get())).map(Self::After).ok_or_else(|| {
            format!("\"{text}\" is no time for keepalives; write \"off\" or a time from \"1s\" to \"9h\", such as \"5m\"")
        })
    }
}

/// The part of a leg that traffic without explicit rates may take under load: `50%` or `0.5`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(try_from = "String")]
pub struct Share(CrossTrafficShare);

impl Share {
    /// For the rate allocator.
    pub fn get(self) -> CrossTrafficShare {
        self.0
    }
}

impl TryFrom<String> for Share {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let part = text.parse::<Probability>().ok();
        let share = part.and_then(|part| CrossTrafficShare::new(part.get()));
        share.map(Self).ok_or_else(|| {
            format!(
                "\"{text}\" is no part of a link; write a percentage from \"0%\" to \"100%\", such as \"50%\""
            )
        })
    }
}

/// What becomes of packets without explicit rates when they are too many: `mark`, `drop` or `off`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(try_from = "String")]
pub struct Aqm(CrossTrafficAqm);

impl Aqm {
    /// For the rate allocator.
    pub fn get(self) -> CrossTrafficAqm {
        self.0
    }
}

impl fmt::Display for Aqm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            CrossTrafficAqm::Mark => "mark",
            CrossTrafficAqm::Drop => "drop",
            CrossTrafficAqm::Off => "off",
        })
    }
}

impl TryFrom<String> for Aqm {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "mark" => Ok(Self(CrossTrafficAqm::Mark)),
            "drop" => Ok(Self(CrossTrafficAqm::Drop)),
            "off" => Ok(Self(CrossTrafficAqm::Off)),
            _ => Err(format!("\"{text}\" is no verdict on packets; write \"mark\", \"drop\" or \"off\"")),
        }
    }
}

fn is_kernel_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || ".-_@:".contains(c);
    (1..=15).contains(&name.len()) && name.chars().all(allowed) && name != "." && name != ".."
}
