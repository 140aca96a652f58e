//! An XCP router's work on each packet, at the egress of an interface: an eBPF program measures the traffic
//! and distributes feedback (`bpf/router.bpf.c`). The caller decides, once in each control interval, how much
//! feedback there is.
//!
//! The program is held by a BPF link: the kernel detaches it when the process closes the link or ends, and
//! packets then pass with the feedback that their senders request. Program and process share a page of
//! memory, so no privilege is needed after [`Router::attach`], unless the
//! router [follows](Router::follow) its interface.

use std::io;
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use bentpipe_units::Rate;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use rustix::time::{ClockId, clock_gettime};

use crate::feature::Feature;
use crate::mapped::{Integers, Mapped};
use crate::skel::router::{self as skel, types};
use crate::struct_ops::log_libbpf;
use crate::tc_hook::{self, Target};

pub use bentpipe_link::agent::xcp::Variant;
pub use bentpipe_link::agent::xcp::control::{Shares, Sums};

/// Fractional bits of a rate in bytes per second, as the program counts it.
const FEEDBACK_SHIFT: u32 = 8;
/// Further fractional bits of a rate for a nanosecond or a byte.
const FACTOR_SHIFT: u32 = 24;
/// Fractional bits of a time for a byte.
const TRANSMIT_SHIFT: u32 = 16;
/// Bits that Σ RTT·X lacks.
const RTT_SPACING_SHIFT: u32 = 10;

// SAFETY: integers of 8 bytes.
unsafe impl Integers for types::router {}
// SAFETY: the same.
unsafe impl Integers for types::shares {}

/// The configuration of a router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouterConfig {
    /// The capacity of the link, in IP packets with their headers.
    pub capacity: Rate,
    /// The senders that get positive feedback.
    pub variant: Variant,
    /// A longer round-trip time in a congestion header counts as this, and no queue as longer.
    pub longest_rtt: Duration,
}

/// Counters of a router, in packets on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RouterCounters {
    /// All that passed.
    pub packets: u64,
    /// Those with a congestion header.
    pub with_header: u64,
    /// Those of them whose sender got less than it requested.
    pub lowered: u64,
    /// Segments with TCP options that could not be read, which passed as they were.
    pub malformed: u64,
}

/// Why an interface has no router.
#[derive(Debug, thiserror::Error)]
pub enum RouterError {
    /// There is no such interface.
    #[error("cannot attach the XCP router: there is no network interface \"{interface}\": {source}")]
    Interface {
        /// The name that was looked for.
        interface: String,
        /// What the system said.
        source: io::Error,
    },
    /// The kernel did not take the program.
    #[error("cannot load the eBPF program of the XCP router: {0} ({n})", n = Feature::XcpRouter.needs())]
    Load(#[source] libbpf_rs::Error),
    /// The kernel took the program but not for this interface.
    #[error(
        "cannot attach the XCP router to {interface}: {source} ({}, and fewer than 63 programs there)",
        Feature::XcpRouter.needs()
    )]
    Attach {
        /// The interface.
        interface: String,
        /// What the system said.
        source: io::Error,
    },
    /// The kernel did not say which programs there are.
    #[error("cannot ask for the programs at an interface: {0} ({needs})", needs = Feature::XcpRouter.needs())]
    Query(#[source] io::Error),
    /// The page that program and process share could not be mapped.
    #[error("cannot map the memory of the XCP router: {0}")]
    Map(#[source] io::Error),
}

/// A router at the egress of an interface for as long as this value lives.
#[derive(Debug)]
pub struct Router {
    memory: Mapped<types::router>,
    program: OwnedFd,
    /// The memory when the sums were last taken.
    taken: types::router,
    capacity: Rate,
    /// What holds the program, and the index of the interface where it is.
    link: Option<(u32, tc_hook::Attachment)>,
}

impl Router {
    /// Attaches a router to `interface` in the network namespace of the calling thread. Until
    /// [`Router::set_shares`] there is no feedback: no sender gets more than zero.
    ///
    /// # Errors
    /// [`RouterError::Interface`], [`RouterError::Load`] and [`RouterError::Attach`] on older kernels or
    /// without the rights, [`RouterError::Map`].
    pub fn attach(interface: &str, config: &RouterConfig) -> Result<Self, RouterError> {
        let index = index_of(interface)?;
        let mut router = Self::load(config)?;
        router.attach_at(interface, index)?;
        Ok(router)
    }

    /// Attaches the router to the interface that has this name now, unless it is there: one that did not
    /// exist before, or another in the place of a former one. True if it was attached. Without such an
    /// interface it is nowhere. It needs `CAP_NET_ADMIN` alone.
    ///
    /// # Errors
    /// [`RouterError::Attach`].
    pub fn follow(&mut self, interface: &str) -> Result<bool, RouterError> {
        let Ok(index) = index_of(interface) else {
            self.link = None;
            return Ok(false);
        };
        if self.link.as_ref().is_some_and(|(at, _)| *at == index) {
            return Ok(false);
        }
        self.attach_at(interface, index).map(|()| true)
    }

    fn attach_at(&mut self, interface: &str, index: u32) -> Result<(), RouterError> {
        self.link = None;
        let link = tc_hook::attach(self.program.as_fd(), Target::egress(index))
            .map_err(|source| RouterError::Attach { interface: interface.to_owned(), source })?;
        self.link = Some((index, link));
        Ok(())
    }

    /// A router that is at no interface yet: [`Router::follow`] attaches it, or its
    /// [program](Router::program) is run on frames that are not sent.
    ///
    /// # Errors
    /// As [`Router::attach`].
    pub fn detached(config: &RouterConfig) -> Result<Self, RouterError> {
        Self::load(config)
    }

    /// Applies another configuration from the next packet on.
    pub fn configure(&mut self, config: &RouterConfig) {
        self.capacity = config.capacity;
        let bytes_per_second = (config.capacity.bps() as f64 / 8.0).max(1.0);
        let longest_rtt = u64::try_from(config.longest_rtt.as_micros()).unwrap_or(u64::MAX);
        let settings = [
            (offset_of!(types::router, transmit_time), fixed(1e9 / bytes_per_second, TRANSMIT_SHIFT)),
            (offset_of!(types::router, longest_rtt), longest_rtt.min(u32::MAX.into())),
            (offset_of!(types::router, only_to_askers), (config.variant == Variant::PXcp).into()),
        ];
        for (offset, value) in settings {
            self.memory.write(0, offset, &value);
        }
    }

    /// The traffic since the last call, or the beginning. A packet that passes meanwhile may be in one sum
    /// already and in another the next time.
    pub fn take_sums(&mut self) -> Sums {
        let now = self.memory.read(0);
        let before = std::mem::replace(&mut self.taken, now);
        let since = |sum: fn(&types::router) -> u64| since(&before, &now, sum) as f64;
        Sums {
            bytes: since(|router| router.bytes),
            spacing: since(|router| router.spacing) * 1e-9,
            rtt_spacing: since(|router| router.rtt_spacing) * f64::from(1 << RTT_SPACING_SHIFT) * 1e-15,
            asking_spacing: since(|router| router.asking_spacing) * 1e-9,
            queue: standing_queue(&now).as_secs_f64() * self.capacity.bps() as f64 / 8.0,
        }
    }

    /// Distributes this from the next packet on; the rest of the former shares is dropped. Of the queue, the
    /// shortest in about half of `mean_rtt` counts.
    pub fn set_shares(&self, shares: &Shares, mean_rtt: Duration) {
        let generation = self.memory.read(0).generation.wrapping_add(1);
        let fixed_shares = types::shares {
            positive: fixed(shares.positive, FEEDBACK_SHIFT),
            negative: fixed(shares.negative, FEEDBACK_SHIFT),
            per_ns: ratio(fixed(shares.per_second * 1e-9, FEEDBACK_SHIFT + FACTOR_SHIFT)),
            per_byte: ratio(fixed(shares.per_byte, FEEDBACK_SHIFT + FACTOR_SHIFT)),
        };
        // The slot that the program does not read; the generation then has it read that one.
        let slot = offset_of!(types::router, slots) + slot_of(generation) * size_of::<types::shares>();
        self.memory.write(0, slot, &fixed_shares);
        self.memory.write(0, offset_of!(types::router, mean_rtt), &nanos(mean_rtt));
        self.memory.write(0, offset_of!(types::router, generation), &generation);
    }

    /// How much of [`Shares::positive`] nobody has taken so far, bytes per second.
    pub fn positive_left(&self) -> f64 {
        let now = self.memory.read(0);
        // Otherwise no packet has come since they were set.
        let is_adopted = now.adopted == now.generation;
        let left = if is_adopted { now.positive } else { now.slots[slot_of(now.generation)].positive };
        left as f64 / f64::from(1 << FEEDBACK_SHIFT)
    }

    /// The counters since it was attached.
    pub fn counters(&self) -> RouterCounters {
        let types::router { packets, with_header, lowered, malformed, .. } = self.memory.read(0);
        RouterCounters { packets, with_header, lowered, malformed }
    }

    /// The eBPF program, to be tested or measured (`BPF_PROG_TEST_RUN`).
    pub fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    fn load(config: &RouterConfig) -> Result<Self, RouterError> {
        log_libbpf();
        let mut storage = MaybeUninit::uninit();
        let open = skel::RouterSkelBuilder::default().open(&mut storage).map_err(RouterError::Load)?;
        let loaded = open.load().map_err(RouterError::Load)?;
        let memory = Mapped::new(loaded.maps.routers.as_fd(), 1).map_err(RouterError::Map)?;
        let program = loaded.progs.xcp_router.as_fd().try_clone_to_owned().map_err(RouterError::Map)?;
        let taken = types::router::default();
        let mut router = Self { memory, program, taken, capacity: config.capacity, link: None };
        router.configure(config);
        Ok(router)
    }
}

/// The number of programs at the egress of an interface: of any owner by tcx, before Linux 6.6 those of
/// bentpipe's processes only.
///
/// # Errors
/// [`RouterError::Interface`]; [`RouterError::Query`] without `CAP_NET_ADMIN`.
pub fn programs_at(interface: &str) -> Result<usize, RouterError> {
    tc_hook::programs_at(index_of(interface)?).map_err(RouterError::Query)
}

fn index_of(interface: &str) -> Result<u32, RouterError> {
    tc_hook::index_of(interface)
        .map_err(|source| RouterError::Interface { interface: interface.to_owned(), source })
}

/// A fixed-point number of so many fractional bits. Negative numbers are zero, and too large ones the
/// largest.
fn fixed(value: f64, shift: u32) -> u64 {
    (value * (1u64 << shift) as f64) as u64
}

fn nanos(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}

/// By how much a sum, which wraps, has grown.
fn since(before: &types::router, now: &types::router, sum: fn(&types::router) -> u64) -> u64 {
    sum(now).wrapping_sub(sum(before))
}

/// A factor, and the highest number that it can be multiplied by within 64 bits.
fn ratio(factor: u64) -> types::ratio {
    types::ratio { factor, limit: u64::MAX.checked_div(factor).unwrap_or(u64::MAX) }
}

fn slot_of(generation: u64) -> usize {
    (generation & 1) as usize
}

/// The shortest queue of the last watch, as the time that it needs.
fn standing_queue(router: &types::router) -> Duration {
    // `bpf_ktime_get_ns()` in this process.
    let clock = clock_gettime(ClockId::Monotonic);
    let now = clock.tv_sec as u64 * 1_000_000_000 + clock.tv_nsec as u64;
    let left = router.busy_until.saturating_sub(now);
    // The next packet would have begun another watch.
    let is_over = now >= router.watch_end;
    Duration::from_nanos(if is_over { router.watch_shortest.min(left) } else { router.standing })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_differences_across_the_wrap_too() {
        let [before, now] = [u64::MAX, 4].map(|bytes| types::router { bytes, ..types::router::default() });
        assert_eq!(since(&before, &now, |router| router.bytes), 5);
    }

    #[test]
    fn a_factor_times_its_limit_fits() {
        for factor in [0, 1, 3, u64::MAX] {
            let ratio = ratio(factor);
            assert!(ratio.factor.checked_mul(ratio.limit).is_some());
        }
    }
}
