//! The file in memory that carries a snapshot's bytes: a header, an index of the sections, and the sections.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use super::PROTOCOL_VERSION;
use crate::snapshot::{Fd, Section, Snapshot};

/// How the file begins. The protocol version and the length of the index follow, 32 bits each, little-endian.
const MAGIC: &[u8; 8] = b"bentpipe";
const HEADER: usize = MAGIC.len() + 2 * size_of::<u32>();
/// More bytes than any daemon has in its buffers, so that a broken one cannot fill our memory.
const MAX_LENGTH: u64 = 16 << 30;

/// A section in the index. Its bytes and descriptors follow those of the section before it.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    name: String,
    bytes: u64,
    descriptors: usize,
}

/// Why a file is no snapshot that this program can read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error("its snapshot is of version {0}")]
    Version(u32),
    #[error("it sends something else than a snapshot; restart the daemon instead")]
    NoSnapshot,
    #[error("its snapshot has {0} bytes, which is more than a daemon can have")]
    TooLong(u64),
    #[error("its snapshot: {0}")]
    File(#[from] io::Error),
    #[error("the index of its snapshot: {0}")]
    Index(#[from] rmp_serde::decode::Error),
}

/// Writes a snapshot; and the descriptors that go beside the file.
pub(super) fn write(snapshot: &Snapshot) -> io::Result<(File, Vec<&Fd>)> {
    let entry = |(name, section): (&str, &Section)| Entry {
        name: name.to_owned(),
        bytes: section.bytes().len() as u64,
        descriptors: section.descriptors().len(),
    };
    let index: Vec<Entry> = snapshot.sections().map(entry).collect();
    let index = rmp_serde::to_vec_named(&index).map_err(io::Error::other)?;
    let mut file = File::from(memfd_create("bentpipe-snapshot", MemfdFlags::CLOEXEC)?);
    file.write_all(MAGIC)?;
    file.write_all(&PROTOCOL_VERSION.to_le_bytes())?;
    file.write_all(&u32::try_from(index.len()).map_err(io::Error::other)?.to_le_bytes())?;
    file.write_all(&index)?;
    snapshot.sections().try_for_each(|(_, section)| file.write_all(section.bytes()))?;
    Ok((file, snapshot.sections().flat_map(|(_, section)| section.descriptors()).collect()))
}

/// Reads a snapshot of this version.
pub(super) fn read(file: &File, descriptors: Vec<OwnedFd>) -> Result<Snapshot, ReadError> {
    let length = file.metadata()?.len();
    if length > MAX_LENGTH {
        return Err(ReadError::TooLong(length));
    }
    let (mut at, mut descriptors) = (0, descriptors.into_iter().map(Fd::from));
    let mut next = |count: u64| -> io::Result<Vec<u8>> {
        if count > length - at {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut bytes = vec![0; usize::try_from(count).map_err(io::Error::other)?];
        file.read_exact_at(&mut bytes, at)?;
        at += count;
        Ok(bytes)
    };
    let index = index_length(&next(HEADER as u64)?)?;
    let index: Vec<Entry> = rmp_serde::from_slice(&next(index)?)?;
    let mut snapshot = Snapshot::default();
    for Entry { name, bytes, descriptors: count } in index {
        let section = Section::received(next(bytes)?, descriptors.by_ref().take(count).collect());
        snapshot.insert(&name, section);
    }
    Ok(snapshot)
}

/// The length of the index behind this header.
fn index_length(header: &[u8]) -> Result<u64, ReadError> {
    let numbers = header.strip_prefix(MAGIC).map(<[u8]>::as_chunks::<4>);
    let Some((&[version, length], [])) = numbers else { return Err(ReadError::NoSnapshot) };
    match u32::from_le_bytes(version) {
        PROTOCOL_VERSION => Ok(u32::from_le_bytes(length).into()),
        theirs => Err(ReadError::Version(theirs)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(content: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        file
    }

    fn content(file: &File) -> Vec<u8> {
        let mut content = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut content, 0).unwrap();
        content
    }

    fn sample() -> Snapshot {
        let mut snapshot = Snapshot::default();
        let pipe = || Fd::from(OwnedFd::from(std::io::pipe().unwrap().1));
        snapshot.write("two descriptors", &[pipe(), pipe()]).unwrap();
        snapshot.write("none", &(7, "seven")).unwrap();
        snapshot.write("one", &(pipe(), vec![1; 1000])).unwrap();
        snapshot
    }

    fn copies(descriptors: &[&Fd]) -> Vec<OwnedFd> {
        descriptors.iter().map(|fd| (*fd).clone().into_owned().unwrap()).collect()
    }

    #[test]
    fn a_snapshot_comes_back_section_by_section() {
        let snapshot = sample();
        let (file, descriptors) = write(&snapshot).unwrap();
        let mut back = read(&file, copies(&descriptors)).unwrap();
        assert_eq!(back.read::<(i32, String)>("none").unwrap(), (7, "seven".into()));
        assert_eq!(back.read::<(Fd, Vec<u8>)>("one").unwrap().1, [1; 1000]);
        assert_eq!(back.read::<Vec<Fd>>("two descriptors").unwrap().len(), 2);
    }

    #[test]
    fn a_file_that_is_cut_short_is_an_error() {
        let snapshot = sample();
        let (whole, descriptors) = write(&snapshot).unwrap();
        let whole = content(&whole);
        for end in (0..whole.len()).rev().step_by(7) {
            assert!(read(&file(&whole[..end]), copies(&descriptors)).is_err(), "{end} of {}", whole.len());
        }
        // Lengths that are not there are not allocated.
        let most = [&whole[..HEADER - 4], &u32::MAX.to_le_bytes(), &whole[HEADER..]].concat();
        assert!(read(&file(&most), Vec::new()).is_err());
        let mut back = read(&file(&whole), copies(&descriptors[..2])).unwrap();
        let error = back.read::<Vec<Fd>>("two descriptors").unwrap_err().to_string();
        assert!(error.contains("is not there"), "{error}");
    }

    #[test]
    fn the_snapshot_of_the_version_before_is_refused() {
        let mut before = content(&write(&sample()).unwrap().0);
        before[MAGIC.len()] -= 1;
        let error = read(&file(&before), Vec::new()).unwrap_err();
        assert!(matches!(error, ReadError::Version(theirs) if theirs == PROTOCOL_VERSION - 1), "{error}");
        // Version 1 itself had no header: the length of a list of everything in JSON, and the list.
        let list = br#"{"claim":0,"listeners":[],"ports":[],"flows":[],"rules":""}"#;
        let first = [&(list.len() as u64).to_le_bytes()[..], list].concat();
        let error = read(&file(&first), Vec::new()).unwrap_err();
        assert!(error.to_string().contains("restart the daemon"), "{error}");
    }
}
