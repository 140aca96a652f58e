//! Words of memory that two processes share.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};

use crate::mapped::Mapped;

/// The file keeps its size, and these seals (memfd_create(2)).
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Words of 64 bits, each of which another process may change at any time.
///
/// Their file can neither shrink nor grow, so no process can take the memory away from under another, which
/// would end that one by SIGBUS.
#[derive(Debug)]
pub struct SharedWords(Mapped<u64>);

impl SharedWords {
    /// So many words, all of them zero, and the file by which another process [maps](Self::map) them. `name`
    /// is what `/proc/PID/maps` calls it.
    ///
    /// # Errors
    /// The system has no memory, descriptor or mapping left.
    pub fn create(name: &str, count: usize) -> io::Result<(Self, OwnedFd)> {
        let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, length_of(count))?;
        fcntl_add_seals(&file, SEALS)?;
        Ok((Self(Mapped::new(&file, count)?), file))
    }

    /// The words in a file that another process has [created](Self::create) for so many.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] for a file of another size, or one that can shrink; otherwise the
    /// system's error.
    pub fn map(file: impl AsFd, count: usize) -> io::Result<Self> {
        let is_sealed = fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SEALS));
        let length = u64::try_from(fstat(&file)?.st_size).unwrap_or(0);
        if !is_sealed || length != length_of(count) {
            let reason = format!(
                "a file of {length} bytes, sealed: {is_sealed}, is no shared memory of {count} words"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        Ok(Self(Mapped::new(file, count)?))
    }

    /// All words.
    pub fn words(&self) -> &[AtomicU64] {
        self.0.words()
    }
}

fn length_of(count: usize) -> u64 {
    (count * size_of::<u64>()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn what_one_mapping_writes_the_other_reads() {
        let (one, file) = SharedWords::create("test", 3).unwrap();
        let other = SharedWords::map(&file, 3).unwrap();
        drop(file);
        assert_eq!(other.words().len(), 3);
        one.words()[1].store(7, Ordering::Release);
        other.words()[2].store(8, Ordering::Release);
        let read =
            |words: &SharedWords| words.words().iter().map(|word| word.load(Ordering::Acquire)).collect();
        let (seen_here, seen_there): (Vec<u64>, Vec<u64>) = (read(&one), read(&other));
        assert_eq!((seen_here, seen_there), (vec![0, 7, 8], vec![0, 7, 8]));
    }

    #[test]
    fn no_process_can_take_the_memory_away_from_under_another() {
        let (_words, file) = SharedWords::create("test", 2).unwrap();
        ftruncate(&file, 0).unwrap_err();
        // A file that could shrink, one of another size, and one that is no memory at all.
        let soft = memfd_create("soft", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&soft, 16).unwrap();
        let other = std::fs::File::open("/dev/null").unwrap();
        for wrong in [SharedWords::map(&soft, 2), SharedWords::map(&file, 3), SharedWords::map(&other, 2)] {
            assert_eq!(wrong.unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }
}
