//! How much memory agents take for many connections, counted by an allocator: a program of its own, since the
//! allocator is the process's.

#[path = "../common/mod.rs"]
mod common;

mod delayed_dup_ack;
mod snoop;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes that are allocated now.
static NOW: AtomicUsize = AtomicUsize::new(0);
/// The most bytes that were allocated at a time since [`Counting::begin`] or [`Counting::forget_peak`].
static PEAK: AtomicUsize = AtomicUsize::new(0);
/// Only one test at a time counts.
static TURN: Mutex<()> = Mutex::new(());

struct Counting;

// SAFETY: all calls go to the system's allocator unchanged; the counters do not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(now, Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise is passed on; the memory comes from `alloc` above, that is, from the
        // system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Counts allocations while it lives; no other test of this program does meanwhile.
struct Count(#[expect(dead_code, reason = "held for its lock")] MutexGuard<'static, ()>);

impl Count {
    fn begin() -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let count = Self(turn);
        count.forget_peak();
        count
    }

    /// Bytes that are allocated now.
    fn now(&self) -> usize {
        NOW.load(Relaxed)
    }

    /// The most bytes at a time since the beginning, or since the peak was forgotten.
    fn peak(&self) -> usize {
        PEAK.load(Relaxed)
    }

    fn forget_peak(&self) {
        PEAK.store(self.now(), Relaxed);
    }
}
