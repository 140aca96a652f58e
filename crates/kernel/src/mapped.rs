//! Memory that this process shares with an eBPF program or with another process.

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A type that such memory may hold, and its parts.
///
/// # Safety
/// It is `repr(C)`, consists of integers without padding, and is a multiple of eight bytes long: then any
/// bytes are a value of it, and the entries of an eBPF array are adjacent.
pub(crate) unsafe trait Integers: Copy {}

// SAFETY: eight bytes.
unsafe impl Integers for u64 {}

/// An eBPF array (`BPF_F_MMAPABLE`), or a file, of `T` in this process's memory. Either side may change it at
/// any time, so it is read and written in words of 64 bits.
#[derive(Debug)]
pub(crate) struct Mapped<T> {
    start: NonNull<AtomicU64>,
    entries: usize,
    of: PhantomData<T>,
}

// SAFETY: it is a slice of atomics that nobody else frees.
unsafe impl<T> Send for Mapped<T> {}
// SAFETY: the same.
unsafe impl<T> Sync for Mapped<T> {}

impl<T: Integers> Mapped<T> {
    const WORDS: usize = size_of::<T>() / 8;

    /// The first `entries` entries of the array or file `map`, which has at least as many.
    pub(crate) fn new(map: impl AsFd, entries: usize) -> io::Result<Self> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let start = unsafe { mmap(std::ptr::null_mut(), entries * size_of::<T>(), access, flags, map, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, entries, of: PhantomData })
    }

    /// All entries, one after the other.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is as long and page-aligned, and any bytes are atomics.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.entries * Self::WORDS) }
    }

    /// An entry. If the other side is changing it, each word is the old or the new one.
    pub(crate) fn read(&self, index: usize) -> T {
        let mut entry = MaybeUninit::<T>::uninit();
        let words = &self.words()[index * Self::WORDS..][..Self::WORDS];
        for (place, word) in words.iter().enumerate() {
            // SAFETY: the entry has room for so many words.
            unsafe {
                entry.as_mut_ptr().cast::<u64>().add(place).write_unaligned(word.load(Ordering::Acquire))
            };
        }
        // SAFETY: all of it has been written, and any bytes are a value of `T`.
        unsafe { entry.assume_init() }
    }

    /// Writes the part of an entry that begins `offset` bytes, a multiple of eight, behind its beginning.
    pub(crate) fn write<P: Integers>(&self, index: usize, offset: usize, part: &P) {
        let words = &self.words()[index * Self::WORDS + offset / 8..][..size_of::<P>() / 8];
        for (place, word) in words.iter().enumerate() {
            // SAFETY: the part has so many words.
            let value = unsafe { std::ptr::from_ref(part).cast::<u64>().add(place).read_unaligned() };
            word.store(value, Ordering::Release);
        }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and the last reference to it ends here.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.entries * size_of::<T>()) };
    }
}
