//! The little of CBOR (RFC 8949) that bundles are made of: unsigned numbers, strings of known length, arrays,
//! and in administrative records true and false. All else, negative numbers, maps, tags, floats and strings
//! in pieces, is refused.

use crate::Eid;
use crate::eid::IpnForm;

/// An array without a length, and its end.
const INDEFINITE_ARRAY: u8 = 0x9f;
pub(super) const BREAK: u8 = 0xff;

/// How deep arrays may stand in arrays. A bundle needs four.
const MAX_DEPTH: usize = 16;

/// The first bytes of a data item: what it is, and its number or length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Item {
    Uint(u64),
    /// A byte string; its length.
    Bytes(u64),
    /// A text string; its length, bytes.
    Text(u64),
    /// An array; its length, or `None` if a break ends it.
    Array(Option<u64>),
    Bool(bool),
    Break,
}

/// Reads the head of the item that `input` begins with: it and its length, or `None` where bytes are missing.
pub(super) fn item(input: &[u8]) -> Result<Option<(Item, usize)>, &'static str> {
    let Some(&first) = input.first() else { return Ok(None) };
    let (major, info) = (first >> 5, first & 0x1f);
    let len = match info {
        0..24 | 31 => 1,
        24..=27 => 1 + (1 << (info - 24)),
        _ => return Err("a length that CBOR does not have"),
    };
    let Some(rest) = input.get(1..len) else { return Ok(None) };
    let argument = match rest {
        [] => u64::from(info),
        bytes => bytes.iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte)),
    };
    let item = match (major, info) {
        (4, 31) => Item::Array(None),
        (7, 31) => Item::Break,
        (_, 31) => return Err("a string in pieces, or a number without end"),
        (0, _) => Item::Uint(argument),
        (1, _) => return Err("a negative number"),
        (2, _) => Item::Bytes(argument),
        (3, _) => Item::Text(argument),
        (4, _) => Item::Array(Some(argument)),
        (7, 20 | 21) => Item::Bool(info == 21),
        _ => return Err("a map, tag or simple value, which bundles do not have"),
    };
    Ok(Some((item, len)))
}

/// Writes the heads of items, each in as few bytes as it needs (RFC 8949 §4.2.1).
pub(super) fn put(out: &mut Vec<u8>, items: impl IntoIterator<Item = Item>) {
    for item in items {
        let (major, argument) = match item {
            Item::Uint(number) => (0, number),
            Item::Bytes(len) => (2, len),
            Item::Text(len) => (3, len),
            Item::Array(Some(len)) => (4, len),
            Item::Array(None) => {
                out.push(INDEFINITE_ARRAY);
                continue;
            }
            Item::Bool(value) => (7, 20 + u64::from(value)),
            Item::Break => {
                out.push(BREAK);
                continue;
            }
        };
        let bytes = argument.to_be_bytes();
        let (info, width) = match argument {
            0..24 => (bytes[7], 0),
            24..0x100 => (24, 1),
            0x100..0x1_0000 => (25, 2),
            0x1_0000..0x1_0000_0000 => (26, 4),
            _ => (27, 8),
        };
        out.push(major << 5 | info);
        out.extend_from_slice(&bytes[8 - width..]);
    }
}

/// Writes an endpoint (RFC 9171 §4.2.5.1, RFC 9758 §6.1).
pub(super) fn put_endpoint(out: &mut Vec<u8>, eid: &Eid) {
    put(out, [Item::Array(Some(2))]);
    match eid {
        Eid::None => put(out, [Item::Uint(1), Item::Uint(0)]),
        Eid::Dtn { node, service } => {
            let name = format!("//{node}/{service}");
            put(out, [Item::Uint(1), Item::Text(name.len() as u64)]);
            out.extend_from_slice(name.as_bytes());
        }
        Eid::Ipn { node, service, form: IpnForm::Two } => {
            put(out, [Item::Uint(2), Item::Array(Some(2)), Item::Uint(*node), Item::Uint(*service)]);
        }
        Eid::Ipn { node, service, form: IpnForm::Three } => {
            put(out, [Item::Uint(2), Item::Array(Some(3))]);
            put(out, [node >> 32, node & u64::from(u32::MAX), *service].map(Item::Uint));
        }
    }
}

/// Follows one data item through bytes that come in pieces, and says where its parts begin. It keeps at most
/// [`MAX_DEPTH`] open arrays and the nine bytes of one head.
#[derive(Debug, Default)]
pub(super) struct Walker {
    open: Vec<OpenArray>,
    partial: [u8; 9],
    have: usize,
    /// Bytes of the current string that are still to come.
    string: u64,
}

/// An array that has not ended.
#[derive(Debug)]
struct OpenArray {
    left: Option<u64>,
    index: u64,
}

/// An item has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ItemStart {
    /// How many arrays it stands in.
    pub(super) depth: usize,
    /// How many items stand before it in the innermost one.
    pub(super) index: u64,
    pub(super) item: Item,
}

impl Walker {
    /// How many arrays are open.
    pub(super) fn depth(&self) -> usize {
        self.open.len()
    }

    /// Whether no head and no string is half read.
    pub(super) fn is_between(&self) -> bool {
        self.have == 0 && self.string == 0
    }

    /// How many bytes of a head have been taken that is not complete.
    pub(super) fn half_read(&self) -> usize {
        self.have
    }

    /// Takes bytes up to the end of the next head or string, or all: how many, and what has begun with them.
    /// Zero is taken only of none.
    pub(super) fn step(&mut self, input: &[u8]) -> Result<(usize, Option<ItemStart>), &'static str> {
        if self.string > 0 {
            let taken = usize::try_from(self.string).map_or(input.len(), |left| left.min(input.len()));
            self.string -= taken as u64;
            if self.string == 0 {
                self.ended();
            }
            return Ok((taken, None));
        }
        for (taken, &byte) in (1..).zip(input) {
            self.partial[self.have] = byte;
            self.have += 1;
            if let Some((item, _)) = item(&self.partial[..self.have])? {
                self.have = 0;
                return self.begin(item).map(|started| (taken, started));
            }
        }
        Ok((input.len(), None))
    }

    fn begin(&mut self, item: Item) -> Result<Option<ItemStart>, &'static str> {
        if item == Item::Break {
            return match self.open.pop() {
                Some(OpenArray { left: None, .. }) => {
                    self.ended();
                    Ok(None)
                }
                _ => Err("a break where no array of unknown length is open"),
            };
        }
        let index = self.open.last().map_or(0, |array| array.index);
        let started = ItemStart { depth: self.open.len(), index, item };
        match item {
            Item::Bytes(len @ 1..) | Item::Text(len @ 1..) => self.string = len,
            Item::Array(left @ (None | Some(1..))) if self.open.len() < MAX_DEPTH => {
                self.open.push(OpenArray { left, index: 0 });
            }
            Item::Array(None | Some(1..)) => return Err("arrays in arrays, deeper than any bundle has them"),
            _ => self.ended(),
        }
        Ok(Some(started))
    }

    /// An item is complete, and with it arrays that it was the last of.
    fn ended(&mut self) {
        while let Some(array) = self.open.last_mut() {
            array.index += 1;
            match &mut array.left {
                Some(left @ 2..) => *left -= 1,
                Some(_) => {
                    self.open.pop();
                    continue;
                }
                None => {}
            }
            return;
        }
    }
}

/// Reads one item after the other from bytes that are all there.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    len: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(input: &'a [u8]) -> Self {
        Self { rest: input, len: input.len() }
    }

    /// How many bytes have been read.
    pub(super) fn at(&self) -> usize {
        self.len - self.rest.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn item(&mut self) -> Result<Item, &'static str> {
        let (item, len) = item(self.rest)?.ok_or("the end, too early")?;
        self.rest = &self.rest[len..];
        Ok(item)
    }

    pub(super) fn uint(&mut self) -> Result<u64, &'static str> {
        match self.item()? {
            Item::Uint(number) => Ok(number),
            _ => Err("something else than a number"),
        }
    }

    /// The length of an array that says it.
    pub(super) fn array(&mut self) -> Result<u64, &'static str> {
        match self.item()? {
            Item::Array(Some(len)) => Ok(len),
            _ => Err("something else than an array of known length"),
        }
    }

    /// An array of two items, which may end with a break.
    pub(super) fn pair<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, &'static str>,
    ) -> Result<T, &'static str> {
        let has_break = match self.item()? {
            Item::Array(Some(2)) => false,
            Item::Array(None) => true,
            _ => return Err("something else than an array of two"),
        };
        let pair = read(self)?;
        match has_break && self.item()? != Item::Break {
            true => Err("an array that is longer than two"),
            false => Ok(pair),
        }
    }

    /// The items of an array, which may end with a break; of more than `limit` it is refused.
    pub(super) fn list<T>(
        &mut self,
        limit: usize,
        mut read: impl FnMut(&mut Self) -> Result<T, &'static str>,
    ) -> Result<Vec<T>, &'static str> {
        let Item::Array(mut left) = self.item()? else { return Err("something else than an array") };
        let mut list = Vec::new();
        loop {
            match &mut left {
                Some(0) => return Ok(list),
                Some(left) => *left -= 1,
                None if self.rest.first() == Some(&BREAK) => {
                    self.item()?;
                    return Ok(list);
                }
                None => {}
            }
            if list.len() == limit {
                return Err("an array that is longer than it may be");
            }
            list.push(read(self)?);
        }
    }

    /// An endpoint (RFC 9171 §4.2.5.1, RFC 9758 §6.1).
    pub(super) fn endpoint(&mut self) -> Result<Eid, &'static str> {
        const NO_ENDPOINT: &str = "what is no endpoint, or of a scheme that is not known";
        let text = self.pair(|reader| match (reader.uint()?, reader.item()?) {
            (1, Item::Uint(0)) => Ok("dtn:none".to_owned()),
            (1, Item::Text(len)) => {
                let name = std::str::from_utf8(reader.string(len)?).map_err(|_| NO_ENDPOINT)?;
                Ok(format!("dtn:{name}"))
            }
            (2, Item::Array(Some(2))) => Ok(format!("ipn:{}.{}", reader.uint()?, reader.uint()?)),
            // RFC 9758 §6.1.2.
            (2, Item::Array(Some(3))) => {
                Ok(format!("ipn:{}.{}.{}", reader.uint()?, reader.uint()?, reader.uint()?))
            }
            _ => Err(NO_ENDPOINT),
        })?;
        text.parse().map_err(|_| NO_ENDPOINT)
    }

    /// What a string of `len` bytes says, whose head has been read.
    pub(super) fn string(&mut self, len: u64) -> Result<&'a [u8], &'static str> {
        let len = usize::try_from(len).ok().filter(|&len| len <= self.rest.len());
        let (string, rest) = self.rest.split_at(len.ok_or("a string that is longer than what holds it")?);
        self.rest = rest;
        Ok(string)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn heads_of_every_width() {
        for (bytes, expected) in [
            (&[0x17][..], Item::Uint(23)),
            (&[0x18, 0x18], Item::Uint(24)),
            (&[0x19, 1, 0], Item::Uint(256)),
            (&[0x5a, 0, 1, 0, 0], Item::Bytes(65536)),
            (&[0x7b, 0, 0, 0, 1, 0, 0, 0, 0], Item::Text(1 << 32)),
            (&[0x9f], Item::Array(None)),
            (&[0xf5], Item::Bool(true)),
            (&[0xff], Item::Break),
        ] {
            assert_eq!(item(bytes), Ok(Some((expected, bytes.len()))));
            assert_eq!(item(&bytes[..bytes.len() - 1]), Ok(None));
        }
        for refused in [0x20, 0x5f, 0x7f, 0x1f, 0xa0, 0xc0, 0xf6, 0xfb, 0x1c] {
            assert!(item(&[refused, 0, 0, 0, 0, 0, 0, 0, 0]).is_err(), "{refused:#x}");
        }
    }

    #[test]
    fn the_walker_says_where_things_stand() {
        // [1, [2, "ab"], 3]
        let input = [0x83, 1, 0x82, 2, 0x62, b'a', b'b', 3];
        let mut walker = Walker::default();
        let mut seen = Vec::new();
        let mut at = 0;
        while at < input.len() {
            let (taken, started) = walker.step(&input[at..]).unwrap();
            at += taken;
            seen.extend(started.map(|started| (started.depth, started.index, started.item)));
        }
        assert_eq!(
            seen,
            [
                (0, 0, Item::Array(Some(3))),
                (1, 0, Item::Uint(1)),
                (1, 1, Item::Array(Some(2))),
                (2, 0, Item::Uint(2)),
                (2, 1, Item::Text(2)),
                (1, 2, Item::Uint(3)),
            ]
        );
        assert_eq!(walker.depth(), 0);
    }

    #[test]
    fn arrays_do_not_nest_without_end() {
        let mut walker = Walker::default();
        let result = [0x81; MAX_DEPTH + 1].iter().try_for_each(|&byte| walker.step(&[byte]).map(|_| ()));
        assert!(result.unwrap_err().contains("deeper"));
    }

    proptest! {
        #[test]
        fn written_and_read_values_agree(len: u64, shift in 0..64_u32) {
            let len = len >> shift;
            let mut out = Vec::new();
            put(&mut out, [Item::Bytes(len)]);
            prop_assert_eq!(item(&out), Ok(Some((Item::Bytes(len), out.len()))));
        }

        #[test]
        fn garbage_ends_in_an_error_or_in_progress(input: Vec<u8>) {
            let mut walker = Walker::default();
            let mut at = 0;
            while at < input.len() {
                let Ok((taken, _)) = walker.step(&input[at..]) else { break };
                prop_assert!(taken > 0 && walker.depth() <= MAX_DEPTH);
                at += taken;
            }
        }
    }
}
