//! Endpoint identifiers: the sources and destinations of bundles.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The longest identifier that is accepted, bytes.
pub(crate) const MAX_LEN: usize = 1024;

/// An endpoint identifier (RFC 9171 §4.2.5.1): `dtn://node/service`, `ipn:node.service`,
/// `ipn:allocator.node.service` (RFC 9758), or `dtn:none`.
///
/// The node itself is the endpoint with an empty service, `dtn://node/`, or service 0, `ipn:node.0`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Eid {
    /// The null endpoint, `dtn:none`.
    None,
    /// `dtn://node/service`.
    Dtn {
        /// The node's name, not empty.
        node: Box<str>,
        /// What follows the slash after the node; empty is the node itself.
        service: Box<str>,
    },
    /// `ipn:node.service` or `ipn:allocator.node.service`.
    Ipn {
        /// The node's fully qualified number: the allocator's 32 bits, then those of the node (RFC 9758
        /// §6.1.1). The default allocator is 0.
        node: u64,
        /// The service's number; 0 is the node itself.
        service: u64,
        /// How it is written.
        form: IpnForm,
    },
}

/// With how many numbers an `ipn` endpoint is written, as text and in bundles (RFC 9758 §6). Two forms of one
/// endpoint are the same endpoint, so that all forms are equal.
#[derive(Debug, Clone, Copy, Default)]
pub enum IpnForm {
    /// Node and service. RFC 9171 has no other.
    #[default]
    Two,
    /// Allocator, node and service.
    Three,
}

impl PartialEq for IpnForm {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for IpnForm {}

impl PartialOrd for IpnForm {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for IpnForm {
    fn cmp(&self, _: &Self) -> Ordering {
        Ordering::Equal
    }
}

impl Hash for IpnForm {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// Text that is not an endpoint identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no endpoint: {reason}; endpoints are written dtn://node/service, ipn:5.7, ipn:977000.5.7 or dtn:none"
)]
pub struct EidError {
    text: String,
    reason: &'static str,
}

/// A pattern of endpoints: one endpoint, or with a `*` at the end all that begin with what precedes it
/// (`dtn://moon/*`, `dtn://m*`, `ipn:5.*`, `*`). Of `ipn` endpoints a beginning with a dot stands for those
/// with as many numbers: `ipn:5.*` are the services of node 5, and no nodes of the allocator 5.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EidPattern(String);

impl Eid {
    /// The node that the endpoint belongs to, as an endpoint; that of `None` is `None`.
    pub fn node(&self) -> Self {
        match self {
            Self::None => Self::None,
            Self::Dtn { node, .. } => Self::Dtn { node: node.clone(), service: "".into() },
            Self::Ipn { node, form, .. } => Self::Ipn { node: *node, service: 0, form: *form },
        }
    }

    /// Whether it is a node, not a service of one.
    pub fn is_node(&self) -> bool {
        match self {
            Self::None => false,
            Self::Dtn { service, .. } => service.is_empty(),
            Self::Ipn { service, .. } => *service == 0,
        }
    }

    /// The service as text, without the node; `None` if it is a node or the null endpoint.
    pub fn service(&self) -> Option<String> {
        match self {
            Self::Dtn { service, .. } if !service.is_empty() => Some(service.to_string()),
            Self::Ipn { service, .. } if *service != 0 => Some(service.to_string()),
            _ => None,
        }
    }

    /// A service of the same node, under the rules of its scheme: any path, or a number.
    ///
    /// # Errors
    /// [`EidError`] if the scheme has no such service, or this is the null endpoint.
    pub fn with_service(&self, service: &str) -> Result<Self, EidError> {
        match self {
            Self::None => Err(EidError { text: service.into(), reason: "nobody has no services" }),
            Self::Dtn { node, .. } => format!("dtn://{node}/{service}").parse(),
            Self::Ipn { node, form, .. } => format!("{}.{service}", IpnNode(*node, *form)).parse(),
        }
    }

    /// The one text that all forms of an endpoint have: with an allocator where it is not the default one.
    pub(crate) fn canonical(&self) -> String {
        match *self {
            Self::Ipn { node, service, .. } => {
                let form = if node >> 32 == 0 { IpnForm::Two } else { IpnForm::Three };
                Self::Ipn { node, service, form }.to_string()
            }
            _ => self.to_string(),
        }
    }
}

impl FromStr for Eid {
    type Err = EidError;

    fn from_str(text: &str) -> Result<Self, EidError> {
        parse(text).map_err(|reason| EidError { text: text.chars().take(80).collect(), reason })
    }
}

fn parse(text: &str) -> Result<Eid, &'static str> {
    if text.len() > MAX_LEN {
        return Err("it is too long");
    }
    if text == "dtn:none" {
        return Ok(Eid::None);
    }
    if let Some(rest) = text.strip_prefix("dtn://") {
        let (node, service) = rest.split_once('/').ok_or("after the node's name comes a slash")?;
        if node.is_empty() {
            return Err("the node has no name");
        }
        // RFC 3986: what is not visible ASCII has to be written with percent signs.
        if !rest.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("only visible ASCII characters are allowed");
        }
        if !is_registered_name(node) {
            return Err(
                "a node's name is made of letters, digits, -._~!$&'()*+,;= and percent-encoded bytes",
            );
        }
        return Ok(Eid::Dtn { node: node.into(), service: service.into() });
    }
    if let Some(rest) = text.strip_prefix("ipn:") {
        return parse_ipn(rest);
    }
    Err("its scheme is neither dtn nor ipn")
}

/// The form of a node's name (RFC 9171 §4.2.5.1.1: the reg-name of RFC 3986 §3.2.2).
fn is_registered_name(name: &str) -> bool {
    let mut rest = name.as_bytes();
    while let [first, behind @ ..] = rest {
        rest = match (first, behind) {
            (b'%', [high, low, behind @ ..]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => behind,
            (b'%', _) => return false,
            (byte, behind) if byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(byte) => behind,
            _ => return false,
        };
    }
    true
}

fn parse_ipn(rest: &str) -> Result<Eid, &'static str> {
    let number = |text: &str| -> Result<u64, &'static str> {
        if !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err("allocator, node and service are numbers");
        }
        text.parse().map_err(|_| "allocator, node and service are numbers below 2^64")
    };
    let half = |text: &str| {
        number(text)?.try_into().map_err(|_| "beside an allocator, it and the node are numbers below 2^32")
    };
    let parts: Vec<&str> = rest.split('.').collect();
    let (node, service, form) = match parts[..] {
        [node, service] => (number(node)?, number(service)?, IpnForm::Two),
        [allocator, node, service] => {
            (fully_qualified(half(allocator)?, half(node)?), number(service)?, IpnForm::Three)
        }
        _ => return Err("after ipn: come two or three numbers with dots between them"),
    };
    // ipn:0.0 is nobody (RFC 9758 §3.4.1).
    match (node, service) {
        (0, 0) => Ok(Eid::None),
        (0, _) => Err("node 0 has no services"),
        _ => Ok(Eid::Ipn { node, service, form }),
    }
}

/// A node's number with its allocator's (RFC 9758 §6.1.1).
fn fully_qualified(allocator: u32, node: u32) -> u64 {
    u64::from(allocator) << 32 | u64::from(node)
}

/// The numbers of a node, as text.
struct IpnNode(u64, IpnForm);

impl fmt::Display for IpnNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(node, form) = self;
        match form {
            IpnForm::Two => write!(f, "ipn:{node}"),
            IpnForm::Three => write!(f, "ipn:{}.{}", node >> 32, node & u64::from(u32::MAX)),
        }
    }
}

impl fmt::Display for Eid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("dtn:none"),
            Self::Dtn { node, service } => write!(f, "dtn://{node}/{service}"),
            Self::Ipn { node, service, form } => write!(f, "{}.{service}", IpnNode(*node, *form)),
        }
    }
}

impl EidPattern {
    /// The pattern that all endpoints match.
    pub fn any() -> Self {
        Self("*".into())
    }

    /// Whether this endpoint matches.
    pub fn matches(&self, eid: &Eid) -> bool {
        let text = eid.canonical();
        let dots = |text: &str| text.bytes().filter(|byte| *byte == b'.').count();
        match self.0.strip_suffix('*') {
            Some(beginning) if beginning.starts_with("ipn:") && beginning.contains('.') => {
                text.starts_with(beginning) && dots(&text) == dots(beginning)
            }
            Some(beginning) => text.starts_with(beginning),
            None => text == self.0,
        }
    }

    /// Its precision: of two patterns that match, the more precise one decides.
    pub fn precision(&self) -> usize {
        if self.0.ends_with('*') { self.0.len() - 1 } else { usize::MAX }
    }
}

impl FromStr for EidPattern {
    type Err = EidError;

    fn from_str(text: &str) -> Result<Self, EidError> {
        let error = |reason| EidError { text: text.chars().take(80).collect(), reason };
        if text.len() > MAX_LEN {
            return Err(error("it is too long"));
        }
        match text.strip_suffix('*') {
            Some(beginning) if beginning.contains('*') => Err(error("a * may stand at the end only")),
            Some(beginning)
                if beginning.is_empty()
                    || beginning.starts_with("dtn://")
                    || beginning.starts_with("ipn:") =>
            {
                Ok(Self(format!("{}*", canonical_beginning(beginning))))
            }
            Some(_) => Err(error("before the * comes the beginning of an endpoint")),
            None => text.parse::<Eid>().map(|eid| Self(eid.canonical())),
        }
    }
}

/// The beginning of [`Eid::canonical`] texts that these characters mean.
fn canonical_beginning(beginning: &str) -> String {
    let Some(rest) = beginning.strip_prefix("ipn:") else { return beginning.to_owned() };
    let parts: Vec<&str> = rest.split('.').collect();
    match parts[..] {
        [node, last] => match node.parse::<u64>() {
            Ok(node) if node >> 32 > 0 => format!("{}.{last}", IpnNode(node, IpnForm::Three)),
            _ => beginning.to_owned(),
        },
        ["0", node, last] => format!("ipn:{node}.{last}"),
        _ => beginning.to_owned(),
    }
}

impl fmt::Display for EidPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Eid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Eid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for EidPattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    static FIXED: std::hash::BuildHasherDefault<std::hash::DefaultHasher> =
        std::hash::BuildHasherDefault::new();

    fn eid(text: &str) -> Eid {
        text.parse().unwrap()
    }

    #[test]
    fn writing_restores_the_read_text() {
        for text in [
            "dtn:none",
            "dtn://gs1/",
            "dtn://gs1/files/in",
            "dtn://gs1/~group",
            "ipn:5.0",
            "ipn:5.7",
            "ipn:977000.5.7",
            "ipn:0.5.7",
        ] {
            assert_eq!(eid(text).to_string(), text);
        }
    }

    #[test]
    fn an_invalid_endpoint_id_is_refused_with_the_reason() {
        for (text, reason) in [
            ("", "scheme"),
            ("gs1", "scheme"),
            ("dtn:", "scheme"),
            ("dtn://gs1", "slash"),
            ("dtn:///x", "no name"),
            ("dtn://gs 1/", "ASCII"),
            ("dtn://gs1/ä", "ASCII"),
            ("ipn:5", "dots"),
            ("ipn:1.2.3.4", "dots"),
            ("ipn:4294967296.2.3", "below 2^32"),
            ("ipn:1.4294967296.3", "below 2^32"),
            ("ipn:1.2.x", "numbers"),
            ("ipn:5.x", "numbers"),
            ("ipn:5.+7", "numbers"),
            ("ipn:18446744073709551616.0", "2^64"),
            ("ipn:0.3", "node 0"),
        ] {
            let error = text.parse::<Eid>().unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("written"), "{text}: {error}");
        }
        assert!(format!("dtn://{}/", "x".repeat(MAX_LEN)).parse::<Eid>().is_err());
    }

    /// RFC 9171 §4.2.5.1.1: a node's name is a registered name (RFC 3986 §3.2.2), and a service any visible
    /// characters.
    #[test]
    fn the_name_of_a_node_is_a_registered_name() {
        for text in ["dtn://a-Z0._~!$&'()*+,;=/", "dtn://g%C3%A4/", "dtn://a/`{}|^%[]:@/?#"] {
            assert_eq!(eid(text).to_string(), text);
        }
        for name in ["g`", "a:1", "a@b", "[::1]", "a%", "a%4", "a%4g", "a|b", "a\\b", "a{b}", "a?b", "a#b"] {
            let error = format!("dtn://{name}/x").parse::<Eid>().unwrap_err().to_string();
            assert!(error.contains("a node's name is made of"), "{name}: {error}");
        }
    }

    #[test]
    fn nodes_and_services() {
        assert_eq!(eid("dtn://gs1/a/b").node(), eid("dtn://gs1/"));
        assert_eq!(eid("ipn:5.7").node(), eid("ipn:5.0"));
        assert!(eid("dtn://gs1/").is_node() && eid("ipn:5.0").is_node());
        assert!(!eid("dtn:none").is_node() && !eid("ipn:5.7").is_node());
        assert_eq!(eid("dtn://gs1/a/b").service().as_deref(), Some("a/b"));
        assert_eq!(eid("ipn:5.0").with_service("9").unwrap(), eid("ipn:5.9"));
        assert!(eid("ipn:5.0").with_service("files").is_err());
        assert!(Eid::None.with_service("files").is_err());
        assert_eq!(eid("ipn:0.0"), Eid::None);
        assert_eq!(eid("ipn:0.0.0"), Eid::None);
    }

    /// RFC 9758 §6.1: the upper half of a node's number is its allocator's.
    #[test]
    fn two_forms_of_an_endpoint_are_the_same_endpoint() {
        let hash = |eid: &Eid| std::hash::BuildHasher::hash_one(&FIXED, eid);
        for (one, other) in [("ipn:4196183048192005.7", "ipn:977000.5.7"), ("ipn:5.7", "ipn:0.5.7")] {
            let (one, other) = (eid(one), eid(other));
            assert_eq!((&one, hash(&one), one.canonical()), (&other, hash(&other), other.canonical()));
            assert_ne!(one.to_string(), other.to_string());
        }
        assert_eq!(eid("ipn:977000.5.7").node().to_string(), "ipn:977000.5.0");
        assert_eq!(eid("ipn:977000.5.0").with_service("7").unwrap().to_string(), "ipn:977000.5.7");
    }

    #[test]
    fn patterns_speak_of_one_endpoint_or_of_a_beginning() {
        let matches = |pattern: &str, text: &str| pattern.parse::<EidPattern>().unwrap().matches(&eid(text));
        assert!(
            matches("dtn://moon/*", "dtn://moon/base")
                && matches("*", "ipn:1.2")
                && matches("ipn:5.*", "ipn:5.7")
        );
        assert!(!matches("dtn://moon/*", "dtn://moon2/base") && !matches("ipn:5.*", "ipn:51.7"));
        for pattern in ["ipn:977000.5.*", "ipn:4196183048192005.*", "ipn:*", "ipn:977000.5.7"] {
            assert!(matches(pattern, "ipn:977000.5.7") && matches(pattern, "ipn:4196183048192005.7"));
        }
        assert!(matches("ipn:0.5.*", "ipn:5.7") && matches("ipn:5.*", "ipn:0.5.7"));
        assert!(!matches("ipn:5.*", "ipn:5.1.7"), "these are services of a node, not nodes of an allocator");
        assert!(matches("dtn://moon/x", "dtn://moon/x") && !matches("dtn://moon/x", "dtn://moon/xy"));
        for text in ["dtn://*/x*", "moon*", "moon"] {
            assert!(text.parse::<EidPattern>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,64}") {
            if let Ok(eid) = text.parse::<Eid>() {
                prop_assert_eq!(eid.to_string().parse::<Eid>().unwrap(), eid);
            }
            let _ = text.parse::<EidPattern>();
        }
    }
}
