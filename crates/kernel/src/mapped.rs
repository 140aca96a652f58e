//! Memory that an eBPF program and this process share.

use std::io;
use std::ops::Deref;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A type that such memory may hold.
///
/// # Safety
/// It is `repr(C)`, consists of atomics only, and is a multiple of eight bytes long: then any bytes are a value of it, the other
/// side may change it at any time, and the entries of an eBPF array are adjacent.
pub(crate) unsafe trait Shared {}

/// An eBPF array (`BPF_F_MMAPABLE`) in this process's memory.
#[derive(Debug)]
pub(crate) struct Mapped<T: Shared> {
    start: NonNull<T>,
    entries: usize,
}

// SAFETY: it is a slice of atomics that nobody else frees.
unsafe impl<T: Shared> Send for Mapped<T> {}
// SAFETY: the same.
unsafe impl<T: Shared> Sync for Mapped<T> {}

impl<T: Shared> Mapped<T> {
    /// The first `entries` entries of the array `map`, which has at least as many.
    pub(crate) fn new(map: impl AsFd, entries: usize) -> io::Result<Self> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let start = unsafe { mmap(std::ptr::null_mut(), entries * size_of::<T>(), access, flags, map, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, entries })
    }
}

impl<T: Shared> Deref for Mapped<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the mapping is as long, page-aligned, and any bytes are values of `T`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.entries) }
    }
}

impl<T: Shared> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and the last reference to it ends here.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.entries * size_of::<T>()) };
    }
}
