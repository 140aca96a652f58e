//! What a node has taken responsibility for: payloads as files, an index in an embedded database.
//!
//! Nothing is acknowledged, to a node or to an application, before it is here, and nothing leaves before the next hop has
//! acknowledged it.

use std::ops::Range;
use std::sync::Arc;

use crate::bundle::Bundle;
use crate::{DtnTime, Eid};

/// A bundle's number in the store: it grows, so that it is the order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub u64);

/// A part of a file of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The file's number.
    pub file: u64,
    /// Where it begins, bytes.
    pub offset: u64,
    /// Its length, bytes.
    pub len: u64,
}

/// Where a payload's bytes are. Fragments share the file of what they were cut from, and a payload that came in fragments is a row
/// of their files: nothing is copied to cut or to join.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Payload(pub Vec<Extent>);

/// What is to become of a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// It goes to another node.
    Forward,
    /// It waits for an application of this node.
    Deliver,
    /// A fragment for this node that waits for the others.
    Reassemble,
}

/// A bundle in the store.
#[derive(Debug, Clone)]
pub struct Record {
    /// Its number.
    pub key: Key,
    /// Its blocks but the payload.
    pub bundle: Arc<Bundle>,
    /// Where its payload is.
    pub payload: Payload,
    /// When it arrived, by this node's clock.
    pub received: DtnTime,
    /// When it is of no more use.
    pub expires: DtnTime,
    /// The node that it came from; `None` is an application of this one.
    pub from: Option<Eid>,
    /// What is to become of it.
    pub purpose: Purpose,
}

impl Payload {
    /// Bytes.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|extent| extent.len).sum()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A part of it; what lies beyond its end is left out.
    #[must_use]
    pub fn slice(&self, range: Range<u64>) -> Self {
        let mut at = 0;
        let mut part = Vec::new();
        for extent in &self.0 {
            let (begin, end) = (range.start.max(at), range.end.min(at + extent.len));
            if begin < end {
                part.push(Extent {
                    file: extent.file,
                    offset: extent.offset + (begin - at),
                    len: end - begin,
                });
            }
            at += extent.len;
        }
        Self(part)
    }
}
