//! The memory that the eBPF program of the router and its process share: `struct router` of
//! `bpf/router.bpf.c`.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::RouterCounters;
use crate::mapped::{Mapped, Shared};

/// Fractional bits of a rate in bytes per second.
pub(super) const FEEDBACK_SHIFT: u32 = 8;
/// Further fractional bits of a rate for a nanosecond or a byte.
pub(super) const FACTOR_SHIFT: u32 = 24;
/// Fractional bits of a time for a byte.
pub(super) const TRANSMIT_SHIFT: u32 = 16;
/// Bits that Σ RTT·X lacks.
pub(super) const RTT_SPACING_SHIFT: u32 = 10;

/// The memory, which this process and the program write.
#[derive(Debug)]
pub(super) struct Page(Mapped<Memory>);

/// The layout of `struct router`.
#[derive(Debug)]
#[repr(C)]
struct Memory {
    generation: AtomicU64,
    slots: [Shares; 2],
    transmit_time: AtomicU64,
    mean_rtt: AtomicU64,
    longest_rtt: AtomicU32,
    only_to_askers: AtomicU32,
    packets: AtomicU64,
    with_header: AtomicU64,
    lowered: AtomicU64,
    malformed: AtomicU64,
    bytes: AtomicU64,
    spacing: AtomicU64,
    rtt_spacing: AtomicU64,
    asking_spacing: AtomicU64,
    busy_until: AtomicU64,
    watch_end: AtomicU64,
    watch_shortest: AtomicU64,
    standing: AtomicU64,
    adopted: AtomicU64,
    positive: AtomicU64,
    _negative: AtomicU64,
}

#[derive(Debug)]
#[repr(C)]
struct Shares {
    positive: AtomicU64,
    negative: AtomicU64,
    per_ns: SharedRatio,
    per_byte: SharedRatio,
}

#[derive(Debug)]
#[repr(C)]
struct SharedRatio {
    factor: AtomicU64,
    limit: AtomicU64,
}

// SAFETY: atomics, a multiple of eight bytes.
unsafe impl Shared for Memory {}

/// The settings that follow from the configuration.
pub(super) struct Settings {
    /// Of a byte, ns, fixed point.
    pub(super) transmit_time: u64,
    /// µs.
    pub(super) longest_rtt: u32,
    pub(super) only_to_askers: bool,
}

/// The feedback to distribute, in fixed point.
pub(super) struct Slot {
    /// ns.
    pub(super) mean_rtt: u64,
    pub(super) positive: u64,
    pub(super) negative: u64,
    pub(super) per_ns: Ratio,
    pub(super) per_byte: Ratio,
}

/// A factor, and the highest number that it can be multiplied by within 64 bits.
pub(super) struct Ratio {
    factor: u64,
    limit: u64,
}

impl From<u64> for Ratio {
    fn from(factor: u64) -> Self {
        Self { factor, limit: u64::MAX.checked_div(factor).unwrap_or(u64::MAX) }
    }
}

/// Sums as the program keeps them: they grow, and wrap round.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sums {
    pub(super) bytes: u64,
    pub(super) spacing: u64,
    pub(super) rtt_spacing: u64,
    pub(super) asking_spacing: u64,
}

impl Sums {
    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            bytes: self.bytes.wrapping_sub(before.bytes),
            spacing: self.spacing.wrapping_sub(before.spacing),
            rtt_spacing: self.rtt_spacing.wrapping_sub(before.rtt_spacing),
            asking_spacing: self.asking_spacing.wrapping_sub(before.asking_spacing),
        }
    }
}

impl Page {
    /// Maps the only element of the array.
    pub(super) fn map(array: BorrowedFd<'_>) -> io::Result<Self> {
        Mapped::new(array, 1).map(Self)
    }

    pub(super) fn configure(&self, settings: &Settings) {
        let memory = self.memory();
        memory.transmit_time.store(settings.transmit_time, Ordering::Relaxed);
        memory.longest_rtt.store(settings.longest_rtt, Ordering::Relaxed);
        memory.only_to_askers.store(settings.only_to_askers.into(), Ordering::Relaxed);
    }

    /// Writes the slot that the program does not read, and then has it read that one.
    pub(super) fn publish(&self, shares: &Slot) {
        let memory = self.memory();
        let next = memory.generation.load(Ordering::Relaxed).wrapping_add(1);
        let slot = &memory.slots[(next & 1) as usize];
        slot.positive.store(shares.positive, Ordering::Relaxed);
        slot.negative.store(shares.negative, Ordering::Relaxed);
        slot.per_ns.store(&shares.per_ns);
        slot.per_byte.store(&shares.per_byte);
        memory.mean_rtt.store(shares.mean_rtt, Ordering::Relaxed);
        memory.generation.store(next, Ordering::Release);
    }

    /// The rest of r⁺ as last published, in fixed point.
    pub(super) fn positive_left(&self) -> u64 {
        let memory = self.memory();
        let generation = memory.generation.load(Ordering::Relaxed);
        if memory.adopted.load(Ordering::Relaxed) == generation {
            return memory.positive.load(Ordering::Relaxed);
        }
        // No packet has come since.
        memory.slots[(generation & 1) as usize].positive.load(Ordering::Relaxed)
    }

    pub(super) fn sums(&self) -> Sums {
        let memory = self.memory();
        Sums {
            bytes: memory.bytes.load(Ordering::Relaxed),
            spacing: memory.spacing.load(Ordering::Relaxed),
            rtt_spacing: memory.rtt_spacing.load(Ordering::Relaxed),
            asking_spacing: memory.asking_spacing.load(Ordering::Relaxed),
        }
    }

    /// The shortest queue of the last watch, as the time that it needs.
    pub(super) fn queue(&self) -> Duration {
        let memory = self.memory();
        let now = monotonic();
        let left = memory.busy_until.load(Ordering::Relaxed).saturating_sub(now);
        // The next packet would have begun another watch.
        let is_over = now >= memory.watch_end.load(Ordering::Relaxed);
        let of_this_watch = || memory.watch_shortest.load(Ordering::Relaxed).min(left);
        let standing = if is_over { of_this_watch() } else { memory.standing.load(Ordering::Relaxed) };
        Duration::from_nanos(standing)
    }

    pub(super) fn counters(&self) -> RouterCounters {
        let memory = self.memory();
        RouterCounters {
            packets: memory.packets.load(Ordering::Relaxed),
            with_header: memory.with_header.load(Ordering::Relaxed),
            lowered: memory.lowered.load(Ordering::Relaxed),
            malformed: memory.malformed.load(Ordering::Relaxed),
        }
    }

    fn memory(&self) -> &Memory {
        &self.0[0]
    }
}

impl SharedRatio {
    fn store(&self, ratio: &Ratio) {
        self.factor.store(ratio.factor, Ordering::Relaxed);
        self.limit.store(ratio.limit, Ordering::Relaxed);
    }
}

/// `bpf_ktime_get_ns()` in this process, ns.
fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_differences_across_the_wrap_too() {
        let before = Sums { bytes: u64::MAX, ..Sums::default() };
        assert_eq!(Sums { bytes: 4, ..Sums::default() }.since(&before).bytes, 5);
    }

    #[test]
    fn a_factor_times_its_limit_fits() {
        for factor in [0, 1, 3, u64::MAX] {
            let ratio = Ratio::from(factor);
            assert!(ratio.factor.checked_mul(ratio.limit).is_some());
        }
    }
}
