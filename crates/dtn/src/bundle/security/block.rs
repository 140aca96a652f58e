//! The abstract security block (RFC 9172 §3.6), which the content of both kinds of security blocks is.

use super::super::cbor::{Item, Reader, put, put_endpoint};
use super::super::decode::BLOCKS_LIMIT;
use crate::Eid;

/// The only flag there is: the block has parameters.
const HAS_PARAMETERS: u64 = 1;

/// The most parameters of a block, and the most results of one of its targets. The contexts of RFC 9173 have
/// four and one.
const ENTRIES_LIMIT: usize = 16;

/// A security operation for each of its targets, all of one context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SecurityBlock {
    /// Numbers of blocks.
    pub(super) targets: Vec<u64>,
    pub(super) context: u64,
    pub(super) source: Eid,
    pub(super) parameters: Vec<Entry>,
    /// Those of each target, in the order of the targets.
    pub(super) results: Vec<Vec<Entry>>,
}

/// A parameter or a result: its number, and its value.
pub(super) type Entry = (u64, Value);

/// A value as the contexts of RFC 9173 have them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Uint(u64),
    Bytes(Box<[u8]>),
}

impl SecurityBlock {
    /// Reads a block's content. It keeps no more bytes than there are, whatever lengths they announce.
    pub(super) fn decode(content: &[u8]) -> Result<Self, &'static str> {
        let mut reader = Reader::new(content);
        let (targets, context) = (targets(&mut reader)?, reader.uint()?);
        let flags = reader.uint()?;
        if flags & !HAS_PARAMETERS != 0 {
            return Err("a security block has flags that do not exist");
        }
        let source = reader.endpoint()?;
        let parameters = if flags == 0 { vec![] } else { entries(&mut reader)? };
        let results = reader.list(BLOCKS_LIMIT, entries)?;
        if !reader.is_empty() {
            return Err("after the security results come more bytes");
        }
        if results.len() != targets.len() {
            return Err("there are results for each security target, and for no other");
        }
        Ok(Self { targets, context, source, parameters, results })
    }

    /// The targets alone, which can be read in blocks of contexts that are not known.
    pub(super) fn targets(content: &[u8]) -> Option<Vec<u64>> {
        targets(&mut Reader::new(content)).ok()
    }

    /// The content as bytes.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        put(&mut out, [Item::Array(Some(self.targets.len() as u64))]);
        put(&mut out, self.targets.iter().copied().map(Item::Uint));
        put(&mut out, [self.context, u64::from(!self.parameters.is_empty())].map(Item::Uint));
        put_endpoint(&mut out, &self.source);
        if !self.parameters.is_empty() {
            put_entries(&mut out, &self.parameters);
        }
        put(&mut out, [Item::Array(Some(self.results.len() as u64))]);
        self.results.iter().for_each(|results| put_entries(&mut out, results));
        out
    }
}

impl Value {
    fn read(reader: &mut Reader<'_>) -> Result<Self, &'static str> {
        match reader.item()? {
            Item::Uint(number) => Ok(Self::Uint(number)),
            Item::Bytes(len) => Ok(Self::Bytes(reader.string(len)?.into())),
            _ => Err("something else than a number or a byte string"),
        }
    }
}

fn targets(reader: &mut Reader<'_>) -> Result<Vec<u64>, &'static str> {
    let targets = reader.list(BLOCKS_LIMIT, Reader::uint)?;
    if targets.is_empty() {
        return Err("a security block without a target");
    }
    let is_repeated = |(index, target): (usize, &u64)| targets[..index].contains(target);
    if targets.iter().enumerate().any(is_repeated) {
        return Err("a security block has the same target twice");
    }
    Ok(targets)
}

fn entries(reader: &mut Reader<'_>) -> Result<Vec<Entry>, &'static str> {
    reader.list(ENTRIES_LIMIT, |reader| reader.pair(|reader| Ok((reader.uint()?, Value::read(reader)?))))
}

fn put_entries(out: &mut Vec<u8>, entries: &[Entry]) {
    put(out, [Item::Array(Some(entries.len() as u64))]);
    for (id, value) in entries {
        put(out, [Item::Array(Some(2)), Item::Uint(*id)]);
        match value {
            Value::Uint(number) => put(out, [Item::Uint(*number)]),
            Value::Bytes(bytes) => {
                put(out, [Item::Bytes(bytes.len() as u64)]);
                out.extend_from_slice(bytes);
            }
        }
    }
}
