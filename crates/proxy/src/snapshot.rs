//! State that goes from process to process: any value that serde serialises, with file descriptors beside it.
//!
//! ```text
//! value ──► Section: MessagePack, and descriptors beside it ──► Snapshot: sections by their names ══► socket
//! ```
//!
//! Live objects keep what an upgrade hands over in types that derive `Serialize` and `Deserialize`, and their
//! sockets and pipes as [`Fd`]. There is no second description of them. MessagePack with named fields
//! describes itself: a program reads what another version wrote as long as it finds the fields that have no
//! default, and it ignores fields that it does not know.
//!
//! A descriptor is written as its place in a table that this thread keeps while it writes or reads one
//! section. It is taken out of that table once. Descriptors that nothing has taken are closed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use serde::de::{DeserializeOwned, Error as _};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

thread_local! {
    /// The descriptors of the section that this thread writes or reads; `None` at any other time.
    static TABLE: RefCell<Option<Table>> = const { RefCell::new(None) };
}

/// Descriptors by their places; `None` for one that has been taken.
type Table = Vec<Option<Fd>>;

/// One value in the form in which another process reads it. A section may be part of another section's value.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Section {
    #[serde(with = "serde_bytes")]
    bytes: Vec<u8>,
    descriptors: Vec<Fd>,
}

/// All that one process leaves to the next one: sections by their names.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    sections: BTreeMap<String, Section>,
}

/// A file descriptor that goes from process to process as part of a value. Clones share the descriptor; the
/// last one closes it.
#[derive(Debug, Clone)]
pub(crate) struct Fd(Arc<OwnedFd>);

/// Why a value cannot be written to a section or read from it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SnapshotError {
    #[error("{0}")]
    Write(#[from] rmp_serde::encode::Error),
    #[error("{0}")]
    Read(#[from] rmp_serde::decode::Error),
    #[error("cannot duplicate a descriptor: {0}")]
    Duplicate(#[from] std::io::Error),
    #[error("the snapshot has no section {0}")]
    Missing(String),
    #[error("the snapshot has a section {0}, which this program does not know; restart the daemon instead")]
    Unknown(String),
    #[error("section {name} of the snapshot: {reason}")]
    In { name: String, reason: String },
}

impl Section {
    /// Writes a value. The section shares the value's descriptors.
    pub(crate) fn of(value: &impl Serialize) -> Result<Self, SnapshotError> {
        let (bytes, table) = with_table(Table::new(), || rmp_serde::to_vec_named(value));
        Ok(Self { bytes: bytes?, descriptors: table.into_iter().flatten().collect() })
    }

    /// Reads the value. Descriptors that it does not take are closed.
    pub(crate) fn read<T: DeserializeOwned>(self) -> Result<T, SnapshotError> {
        let Self { bytes, descriptors } = self;
        let table = descriptors.into_iter().map(Some).collect();
        let (value, _not_taken) = with_table(table, || rmp_serde::from_slice(&bytes));
        Ok(value?)
    }

    /// A section that another process has sent.
    pub(crate) fn received(bytes: Vec<u8>, descriptors: Vec<Fd>) -> Self {
        Self { bytes, descriptors }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn descriptors(&self) -> &[Fd] {
        &self.descriptors
    }
}

impl Snapshot {
    /// Writes a value to a section of this name.
    pub(crate) fn write(&mut self, name: &str, value: &impl Serialize) -> Result<(), SnapshotError> {
        let section = Section::of(value).map_err(|error| in_section(name, error))?;
        self.insert(name, section);
        Ok(())
    }

    /// Reads the section of this name.
    pub(crate) fn read<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, SnapshotError> {
        let section = self.remove(name).ok_or_else(|| SnapshotError::Missing(name.to_owned()))?;
        section.read().map_err(|error| in_section(name, error))
    }

    pub(crate) fn insert(&mut self, name: &str, section: Section) {
        self.sections.insert(name.to_owned(), section);
    }

    pub(crate) fn remove(&mut self, name: &str) -> Option<Section> {
        self.sections.remove(name)
    }

    /// Fails if something is left that nothing has read: it would be lost.
    pub(crate) fn check_all_read(&self) -> Result<(), SnapshotError> {
        match self.sections.keys().next() {
            Some(name) => Err(SnapshotError::Unknown(name.clone())),
            None => Ok(()),
        }
    }

    pub(crate) fn sections(&self) -> impl Iterator<Item = (&str, &Section)> {
        self.sections.iter().map(|(name, section)| (name.as_str(), section))
    }
}

fn in_section(name: &str, error: SnapshotError) -> SnapshotError {
    SnapshotError::In { name: name.to_owned(), reason: error.to_string() }
}

impl Fd {
    /// For those who hold it weakly.
    pub(crate) fn shared(&self) -> &Arc<OwnedFd> {
        &self.0
    }

    /// The descriptor by itself: another one of the same file where this one is shared.
    pub(crate) fn into_owned(self) -> std::io::Result<OwnedFd> {
        Arc::try_unwrap(self.0).or_else(|shared| shared.try_clone())
    }
}

impl From<OwnedFd> for Fd {
    fn from(descriptor: OwnedFd) -> Self {
        Self(Arc::new(descriptor))
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Serialize for Fd {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let place = TABLE.with_borrow_mut(|table| {
            let table = table.as_mut()?;
            table.push(Some(self.clone()));
            u32::try_from(table.len() - 1).ok()
        });
        let place = place.ok_or_else(|| S::Error::custom("a descriptor is written outside of a section"))?;
        serializer.serialize_u32(place)
    }
}

impl<'de> Deserialize<'de> for Fd {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let place = u32::deserialize(deserializer)?;
        let taken =
            TABLE.with_borrow_mut(|table| table.as_mut()?.get_mut(usize::try_from(place).ok()?)?.take());
        taken.ok_or_else(|| {
            D::Error::custom(format_args!("descriptor {place} is not there, or is used twice"))
        })
    }
}

/// Runs `work` with this table as the thread's, and returns what is left in the table.
fn with_table<R>(table: Table, work: impl FnOnce() -> R) -> (R, Table) {
    /// Puts the table of the section around this one back, whether the work returns or panics.
    struct Restore(Option<Table>);
    impl Drop for Restore {
        fn drop(&mut self) {
            TABLE.set(self.0.take());
        }
    }
    let restore = Restore(TABLE.replace(Some(table)));
    let result = work();
    let table = TABLE.take().unwrap_or_default();
    drop(restore);
    (result, table)
}

/// `#[serde(with = "snapshot::instant")]`: an instant as its distance from now, in µs, negative if it has
/// passed. The time for which the value is on its way is not counted.
pub(crate) mod instant {
    use super::*;
    use std::time::{Duration, Instant};

    pub(crate) fn serialize<S: Serializer>(at: &Instant, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(distance(*at))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Instant, D::Error> {
        i64::deserialize(deserializer).map(at_distance)
    }

    pub(super) fn distance(at: Instant) -> i64 {
        let now = Instant::now();
        let micros = |length: Duration| i64::try_from(length.as_micros()).unwrap_or(i64::MAX);
        match at.checked_duration_since(now) {
            Some(left) => micros(left),
            None => -micros(now - at),
        }
    }

    pub(super) fn at_distance(micros: i64) -> Instant {
        let (now, length) = (Instant::now(), Duration::from_micros(micros.unsigned_abs()));
        let at = if micros < 0 { now.checked_sub(length) } else { now.checked_add(length) };
        at.unwrap_or(now)
    }
}

/// The same for an instant that may be missing.
pub(crate) mod optional_instant {
    use super::*;
    use std::time::Instant;

    pub(crate) fn serialize<S: Serializer>(at: &Option<Instant>, serializer: S) -> Result<S::Ok, S::Error> {
        at.map(instant::distance).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Instant>, D::Error> {
        Ok(Option::deserialize(deserializer)?.map(instant::at_distance))
    }
}

#[cfg(test)]
mod tests;
