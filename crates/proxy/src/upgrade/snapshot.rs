//! Everything that a daemon leaves to its successor.

use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};

use serde::{Deserialize, Serialize};

use super::protocol::PROTOCOL_VERSION;
use super::records::{FlowSnapshot, PendingSnapshot};
use crate::telemetry::CounterSnapshot;

/// What there is, said before anything is handed over.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Inventory {
    pub(crate) form: u32,
    /// The devices of the deferred_accept and of the snoop are there.
    #[serde(default)]
    pub(crate) deferred_accept: bool,
    #[serde(default)]
    pub(crate) snoop: bool,
    /// The names of descriptors that the daemon itself knows nothing of.
    #[serde(default)]
    pub(crate) extra_fds: Vec<String>,
}

/// The list of everything; what is not a number or a name is a place among the descriptors or bytes. A program of the same form may
/// list more than another knows, and less: what one can do without has a default.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// The claim to the network namespace.
    pub(crate) claim: usize,
    #[serde(default)]
    pub(crate) deferred_accept: Option<[usize; 2]>,
    #[serde(default)]
    pub(crate) snoop: Option<[usize; 2]>,
    /// By what the listeners are as they are: a successor that would open the same ones takes them as they are.
    #[serde(default)]
    pub(crate) signature: String,
    pub(crate) listeners: Vec<ListenerSnapshot>,
    pub(crate) ports: Vec<PortsSnapshot>,
    pub(crate) flows: Vec<FlowSnapshot>,
    /// Handshakes in the making.
    #[serde(default)]
    pub(crate) pending: PendingSnapshot,
    #[serde(default)]
    pub(crate) draining: Option<DrainSnapshot>,
    /// The rules that are in force, and the interfaces by which they tell the sides of snooped flows apart.
    pub(crate) rules: String,
    #[serde(default)]
    pub(crate) sides: Vec<String>,
    /// What has been counted.
    #[serde(default)]
    pub(crate) counters: CounterSnapshot,
    #[serde(default)]
    pub(crate) extra_fds: Vec<(String, usize)>,
    #[serde(default)]
    pub(crate) memory: serde_json::Value,
}

/// New connections pass, and the end comes with the last one.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DrainSnapshot {
    /// Until what is left is reset, ms; nothing where that takes as long as it takes.
    pub(crate) left_ms: Option<u64>,
}

/// A listener.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ListenerSnapshot {
    pub(crate) socket: usize,
    pub(crate) address: SocketAddr,
    /// As [`FlowSnapshot::legs`].
    pub(crate) legs: [Option<String>; 2],
    #[serde(default)]
    pub(crate) weight: u16,
    /// The worker that served it.
    #[serde(default)]
    pub(crate) worker: usize,
    /// When it is closed, ms from now; it gets no more connections.
    pub(crate) retires_ms: Option<u64>,
}

/// Ports that listeners have.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PortsSnapshot {
    pub(crate) ports: Range<u32>,
    /// Since others have taken their place, ms.
    pub(crate) replaced_ms: Option<u64>,
}

/// What has come from a predecessor.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) manifest: Manifest,
    pub(crate) reader: SnapshotReader,
}

/// Gives what is handed over its places.
#[derive(Debug, Default)]
pub(crate) struct SnapshotWriter<'a> {
    descriptors: Vec<BorrowedFd<'a>>,
    bytes: Vec<u8>,
}

/// Finds by their places what has come.
#[derive(Debug)]
pub(crate) struct SnapshotReader {
    descriptors: Vec<Option<OwnedFd>>,
    /// The file, and where the bytes begin in it.
    content: Vec<u8>,
    bytes_from: usize,
}

impl Inventory {
    pub(crate) fn new(deferred_accept: bool, snoop: bool, extra_fds: Vec<String>) -> Self {
        Self { form: PROTOCOL_VERSION, deferred_accept, snoop, extra_fds }
    }
}

impl<'a> SnapshotWriter<'a> {
    pub(crate) fn descriptor(&mut self, descriptor: BorrowedFd<'a>) -> usize {
        self.descriptors.push(descriptor);
        self.descriptors.len() - 1
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }

    /// The list and the bytes, which make one file, and the descriptors. The bytes may be many: they are not copied.
    pub(crate) fn seal(self, manifest: &Manifest) -> serde_json::Result<([Vec<u8>; 2], Vec<BorrowedFd<'a>>)> {
        let list = serde_json::to_vec(manifest)?;
        let mut beginning = Vec::with_capacity(8 + list.len());
        beginning.extend_from_slice(&(list.len() as u64).to_le_bytes());
        beginning.extend_from_slice(&list);
        Ok(([beginning, self.bytes], self.descriptors))
    }
}

impl Snapshot {
    /// What [`SnapshotWriter::seal`] made.
    pub(crate) fn open(content: Vec<u8>, descriptors: Vec<OwnedFd>) -> Result<Self, String> {
        let (length, rest) = content.split_first_chunk::<8>().ok_or("the list has no length")?;
        let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|error| error.to_string())?;
        let (list, _) = rest.split_at_checked(length).ok_or("the list is longer than the file")?;
        let manifest = serde_json::from_slice(list).map_err(|error| error.to_string())?;
        let descriptors = descriptors.into_iter().map(Some).collect();
        Ok(Self { manifest, reader: SnapshotReader { descriptors, bytes_from: 8 + length, content } })
    }
}

#[cfg(test)]
impl Snapshot {
    /// Packs, and unpacks with copies of the descriptors, as if another process had them.
    pub(crate) fn rehearse<T: Serialize + serde::de::DeserializeOwned>(
        writer: SnapshotWriter<'_>,
        snapshot: &T,
    ) -> (SnapshotReader, T) {
        let copies = writer.descriptors.iter().map(|fd| Some(fd.try_clone_to_owned().unwrap())).collect();
        let reader = SnapshotReader { descriptors: copies, content: writer.bytes, bytes_from: 0 };
        (reader, serde_json::from_slice(&serde_json::to_vec(snapshot).unwrap()).unwrap())
    }
}

impl SnapshotReader {
    /// Takes the descriptor of this place, once.
    pub(crate) fn descriptor(&mut self, place: usize) -> Result<OwnedFd, String> {
        let taken = self.descriptors.get_mut(place).and_then(Option::take);
        taken.ok_or_else(|| format!("there is no descriptor {place}, or it is given twice"))
    }

    /// The bytes of this place.
    pub(crate) fn bytes(&self, place: Range<usize>) -> Result<&[u8], String> {
        let bytes = self.content.get(self.bytes_from..).unwrap_or_default();
        bytes.get(place).ok_or_else(|| "bytes are listed that are not there".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_another_version_has_what_is_needed_and_what_is_not() {
        let least = r#"{"claim":0,"listeners":[],"ports":[],"flows":[],"rules":"","weather":"fine"}"#;
        let mut content = (least.len() as u64).to_le_bytes().to_vec();
        content.extend_from_slice(least.as_bytes());
        content.extend_from_slice(b"bytes");
        let snapshot = Snapshot::open(content.clone(), Vec::new()).unwrap();
        assert_eq!((snapshot.reader.bytes(1..3).unwrap(), snapshot.manifest.draining), (&b"yt"[..], None));
        assert!(snapshot.reader.bytes(3..6).is_err());
        // Cut short, or without what nobody can do without.
        assert!(
            (0..content.len() - 6).all(|end| Snapshot::open(content[..end].to_vec(), Vec::new()).is_err())
        );
        let nothing = [&2u64.to_le_bytes()[..], b"{}"].concat();
        assert!(Snapshot::open(nothing, Vec::new()).unwrap_err().contains("claim"));
    }
}
