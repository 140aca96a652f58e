//! IDs of bundles, as text.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Fragment;
use crate::{DtnTime, Eid, EidError};

/// The ID of a bundle or of a fragment, which is unique (RFC 9171 §4.2.7) unless the source is `dtn:none`.
///
/// As text it is `SOURCE-CREATED-SEQUENCE`, of a fragment `SOURCE-CREATED-SEQUENCE-OFFSET.LENGTH.TOTAL`,
/// which is read from the right, because sources may have hyphens too. In files and in JSON it is this text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BundleId {
    /// The endpoint that made it.
    pub source: Eid,
    /// The creation time, by the source's clock.
    pub created: DtnTime,
    /// Distinguishes bundles of the same millisecond, or of a source without a clock.
    pub sequence: u64,
    /// The part of the payload that it has; `None` is all of it.
    pub fragment: Option<Fragment>,
}

/// Text that is not a bundle's ID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BundleIdError {
    /// It has another form.
    #[error(
        "{text:?} names no bundle: {reason}; bundles are named SOURCE-CREATED-SEQUENCE, \
         fragments SOURCE-CREATED-SEQUENCE-OFFSET.LENGTH.TOTAL"
    )]
    Form {
        /// Its beginning.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Its source is not an endpoint.
    #[error("the name of a bundle begins with its source: {0}")]
    Source(#[from] EidError),
}

impl BundleId {
    /// Whether it identifies the bundle: bundles of nobody have no identity (RFC 9171 §4.2.3).
    pub fn is_unique(&self) -> bool {
        self.source != Eid::None
    }

    /// The ID of the whole bundle.
    #[must_use]
    pub fn whole(&self) -> Self {
        Self { fragment: None, ..self.clone() }
    }
}

impl fmt::Display for BundleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.source, self.created, self.sequence)?;
        self.fragment.map_or(Ok(()), |part| write!(f, "-{}.{}.{}", part.offset, part.len, part.total))
    }
}

impl FromStr for BundleId {
    type Err = BundleIdError;

    fn from_str(text: &str) -> Result<Self, BundleIdError> {
        let form = |reason| BundleIdError::Form { text: text.chars().take(80).collect(), reason };
        let missing = || form("a part is missing");
        let (mut rest, mut last) = text.rsplit_once('-').ok_or_else(missing)?;
        let fragment = fragment(last).map_err(form)?;
        if fragment.is_some() {
            (rest, last) = rest.rsplit_once('-').ok_or_else(missing)?;
        }
        let (source, created) = rest.rsplit_once('-').ok_or_else(missing)?;
        Ok(Self {
            source: source.parse()?,
            created: DtnTime::from_millis(number(created).map_err(form)?),
            sequence: number(last).map_err(form)?,
            fragment,
        })
    }
}

/// The fragment that the last part of a name tells; `None` if it is the sequence number.
fn fragment(text: &str) -> Result<Option<Fragment>, &'static str> {
    let Some((offset, rest)) = text.split_once('.') else { return Ok(None) };
    let (len, total) = rest.split_once('.').ok_or("a fragment has three numbers")?;
    Ok(Some(Fragment { offset: number(offset)?, len: number(len)?, total: number(total)? }))
}

/// A number in the one way to write it, so that each bundle has one name.
fn number(text: &str) -> Result<u64, &'static str> {
    let only_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !only_digits || (text.len() > 1 && text.starts_with('0')) {
        return Err("a part is no number, or has zeros before it");
    }
    text.parse().map_err(|_| "a number is 2^64 or more")
}

impl Serialize for BundleId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for BundleId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_source_that_looks_like_the_rest_of_a_name() {
        let id = |source: &str, fragment| BundleId {
            source: source.parse().unwrap(),
            created: DtnTime::from_millis(7),
            sequence: 8,
            fragment,
        };
        let fragment = Fragment { offset: 1, len: 2, total: 3 };
        let names = [
            id("dtn://n/x", None),
            id("dtn://n/x-7-8", None),
            id("dtn://n/x-7-8-1.2.3", None),
            id("dtn://n/x", Some(fragment)),
            id("dtn://n/x-7-8", Some(fragment)),
        ];
        for name in &names {
            assert_eq!(name.to_string().parse().as_ref(), Ok(name));
        }
        assert_eq!(names[3].to_string(), "dtn://n/x-7-8-1.2.3");
        assert_eq!(serde_json::to_string(&names[3]).unwrap(), "\"dtn://n/x-7-8-1.2.3\"");
        assert_eq!(names[3].whole(), names[0]);
    }

    #[test]
    fn names_without_a_bundle() {
        for text in [
            "",
            "dtn://n/",
            "dtn://n/-1",
            "dtn://n/-1-",
            "dtn://n/-+1-2",
            "dtn://n/-01-2",
            "dtn://n/-1-2-3.4",
            "dtn://n/-1-2-3.4.x",
            "n-1-2",
            "dtn://n/-1-18446744073709551616",
        ] {
            assert!(text.parse::<BundleId>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn names_read_back(
            service in "[a-z0-9.-]{0,12}", created: u64, sequence: u64, part: Option<(u64, u64, u64)>,
        ) {
            let id = BundleId {
                source: format!("dtn://n/{service}").parse().unwrap(),
                created: DtnTime::from_millis(created),
                sequence,
                fragment: part.map(|(offset, len, total)| Fragment { offset, len, total }),
            };
            prop_assert_eq!(id.to_string().parse::<BundleId>().unwrap(), id);
        }

        #[test]
        fn there_is_one_way_to_write_a_name(text in "dtn://n/[0-9.-]{0,12}") {
            if let Ok(id) = text.parse::<BundleId>() {
                prop_assert_eq!(id.to_string(), text);
            }
        }
    }
}
