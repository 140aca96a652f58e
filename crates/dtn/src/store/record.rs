//! Rows of the index: records as bytes.

use std::sync::Arc;

use crate::bundle::{Bundle, BundleId};
use crate::{DtnTime, Eid};

use super::{Extent, Key, Payload, Purpose, Record};

/// The first byte of a row: rows of another form are not read.
const ROW_VERSION: u8 = 1;

/// Where a row says what is to become of the bundle.
const PURPOSE_AT: usize = 1;

/// A row that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("its row in the index cannot be read: {0}")]
pub(crate) struct BadRow(pub(crate) String);

/// What the ledger needs of a row.
pub(crate) struct Outline {
    pub(crate) name: Vec<u8>,
    pub(crate) payload: Payload,
}

/// The name of a bundle as bytes, different for different names.
pub(crate) fn name(id: &BundleId) -> Vec<u8> {
    let mut out = Vec::with_capacity(80);
    put_bytes(&mut out, id.source.canonical().as_bytes());
    for number in [id.created.millis(), id.sequence] {
        put_number(&mut out, number);
    }
    if let Some(part) = id.fragment {
        for number in [part.offset, part.len, part.total] {
            put_number(&mut out, number);
        }
    }
    out
}

pub(crate) fn encode(record: &Record) -> Vec<u8> {
    let mut out = vec![ROW_VERSION, purpose_code(record.purpose)];
    put_bytes(&mut out, &name(&record.bundle.id));
    put_number(&mut out, record.payload.0.len() as u64);
    for extent in &record.payload.0 {
        for number in [extent.file, extent.offset, extent.len] {
            put_number(&mut out, number);
        }
    }
    put_number(&mut out, record.received.millis());
    put_number(&mut out, record.expires.millis());
    // No endpoint is empty text.
    put_bytes(&mut out, record.from.as_ref().map(Eid::to_string).unwrap_or_default().as_bytes());
    put_bytes(&mut out, &record.bundle.head());
    out
}

pub(crate) fn decode(key: Key, row: &[u8]) -> Result<Record, BadRow> {
    let mut rest = RowReader(row);
    let purpose = rest.purpose()?;
    let Outline { payload, .. } = rest.outline()?;
    let (received, expires) = (rest.number()?, rest.number()?);
    let from = match rest.bytes()? {
        [] => None,
        text => Some(std::str::from_utf8(text).map_err(bad)?.parse().map_err(bad)?),
    };
    let bundle = Bundle::decode_head(rest.bytes()?).map_err(bad)?;
    Ok(Record {
        key,
        bundle: Arc::new(bundle),
        payload,
        received: DtnTime::from_millis(received),
        expires: DtnTime::from_millis(expires),
        from,
        purpose,
    })
}

/// A row's beginning.
pub(crate) fn outline(row: &[u8]) -> Result<Outline, BadRow> {
    let mut rest = RowReader(row);
    rest.purpose()?;
    rest.outline()
}

/// The same row with another purpose.
pub(crate) fn with_purpose(row: &[u8], purpose: Purpose) -> Vec<u8> {
    let mut row = row.to_vec();
    if let Some(byte) = row.get_mut(PURPOSE_AT) {
        *byte = purpose_code(purpose);
    }
    row
}

fn purpose_code(purpose: Purpose) -> u8 {
    match purpose {
        Purpose::Forward => 0,
        Purpose::Deliver => 1,
        Purpose::Reassemble => 2,
    }
}

fn put_number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_number(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn bad(reason: impl ToString) -> BadRow {
    BadRow(reason.to_string())
}

/// What is left of a row.
struct RowReader<'a>(&'a [u8]);

impl<'a> RowReader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], BadRow> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or_else(|| bad("it is too short"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u64, BadRow> {
        let bytes = self.take(8)?;
        Ok(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn bytes(&mut self) -> Result<&'a [u8], BadRow> {
        let len = self.number()?;
        self.take(usize::try_from(len).map_err(bad)?)
    }

    fn purpose(&mut self) -> Result<Purpose, BadRow> {
        match self.take(2)? {
            [ROW_VERSION, 0] => Ok(Purpose::Forward),
            [ROW_VERSION, 1] => Ok(Purpose::Deliver),
            [ROW_VERSION, 2] => Ok(Purpose::Reassemble),
            [ROW_VERSION, other] => Err(BadRow(format!("purpose {other} is unknown"))),
            _ => Err(bad("it is of another version of this program")),
        }
    }

    fn outline(&mut self) -> Result<Outline, BadRow> {
        let name = self.bytes()?.to_vec();
        let extents = self.number()?;
        let mut payload = Payload::default();
        // What is missing is noticed before much memory is taken: each turn needs 24 bytes of the row.
        for _ in 0..extents {
            let (file, offset, len) = (self.number()?, self.number()?, self.number()?);
            payload.0.push(Extent { file, offset, len });
        }
        Ok(Outline { name, payload })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::bundle::Fragment;

    fn record() -> Record {
        let source: Eid = "dtn://moon/base".parse().unwrap();
        let to = "ipn:5.7".parse().unwrap();
        let bundle = Bundle::new(source, DtnTime::from_millis(7), 1, to, Duration::from_secs(60));
        Record {
            key: Key(3),
            bundle: Arc::new(bundle),
            payload: Payload(vec![
                Extent { file: 1, offset: 2, len: 3 },
                Extent { file: 4, offset: 0, len: 9 },
            ]),
            received: DtnTime::from_millis(8),
            expires: DtnTime::from_millis(60_007),
            from: Some("dtn://relay/".parse().unwrap()),
            purpose: Purpose::Reassemble,
        }
    }

    #[test]
    fn reading_returns_the_written_bytes() {
        for from in [record().from, None] {
            let written = Record { from, ..record() };
            let read = decode(Key(3), &encode(&written)).unwrap();
            assert_eq!(format!("{read:?}"), format!("{written:?}"));
        }
        let moved = decode(Key(3), &with_purpose(&encode(&record()), Purpose::Deliver)).unwrap();
        assert_eq!(moved.purpose, Purpose::Deliver);
        assert_eq!(outline(&encode(&record())).unwrap().payload, record().payload);
    }

    #[test]
    fn parts_of_one_bundle_have_different_names() {
        let whole = record().bundle.id.clone();
        let part = |offset| Some(Fragment { offset, len: 5, total: 10 });
        let names = [None, part(0), part(5)].map(|fragment| name(&BundleId { fragment, ..whole.clone() }));
        assert!(names[0] != names[1] && names[1] != names[2]);
    }

    proptest! {
        #[test]
        fn no_row_makes_it_panic(mut row in proptest::collection::vec(any::<u8>(), 0..200), valid in any::<bool>()) {
            if valid && row.len() > 1 {
                row[..2].copy_from_slice(&[ROW_VERSION, 1]);
            }
            let _ = decode(Key(0), &row);
            let whole = encode(&record());
            prop_assert!(decode(Key(0), &whole[..whole.len().min(row.len())]).is_err() || row.len() >= whole.len());
        }
    }
}
