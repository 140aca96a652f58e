//! Explicit rates as an eBPF congestion control: loading it, and the memory that it shares with the rate
//! controller.
//!
//! The program measures and obeys; a controller (`bentpipe_link::explicit`) decides the rates: it reads
//! [`flows`](Explicit::flows) and writes [`set_rate`](Explicit::set_rate). A process has one copy for all its
//! legs.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::feature::Feature;
use crate::mapped::{Mapped, Shared};
use crate::skel::explicit as skel;
use crate::sockopt;
use crate::struct_ops::{ProcessCopy, StructOpsError, is_copy, lock, under_a_free_name, write_name};

/// The name under which sockets choose it (tcp(7), `TCP_CONGESTION`), if no other process has taken it; the
/// next ones have a number behind it.
pub const NAME: &str = "bp_explicit";

/// The most legs that a copy can serve.
pub const MAX_LEGS: usize = 64;

/// The fewest and the most connections that have a slot. Without one a connection keeps the initial rate.
const SLOTS: (u64, u64) = (1024, 1 << 18);

/// While it lives, sockets of the whole machine can choose its [`name`](Self::name). Clones share the
/// registration.
#[derive(Debug, Clone)]
pub struct Explicit {
    registration: Arc<Registration>,
}

/// One of the legs that the copy serves. While it lives, its number is not given to another leg.
#[derive(Debug, Clone)]
pub struct SharedLeg {
    explicit: Explicit,
    slot: Arc<LegSlot>,
}

/// The report of the congestion control on a connection. Counters wrap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// Its slot.
    pub slot: usize,
    /// A number that distinguishes it, almost always, from later connections in the same slot.
    pub owner: u64,
    /// The number of its leg.
    pub leg: usize,
    /// Its weight.
    pub weight: u32,
    /// When it last reported, by `CLOCK_MONOTONIC`; zero before the first report.
    pub at: Duration,
    /// Payload bytes sent, retransmissions included.
    pub bytes_sent: u64,
    /// Segments with data sent, retransmissions included.
    pub segments_sent: u32,
    /// Segments that have arrived at the receiver.
    pub delivered: u32,
    /// Segments that were declared lost.
    pub lost: u32,
    /// Payload bytes of a full segment.
    pub mss: u32,
    /// Bytes of IP and TCP headers in front of it.
    pub header: u32,
    /// Segments sent and not acknowledged.
    pub in_flight: u32,
    /// The shortest round trip of the last moment; `None` before the first measurement.
    pub rtt: Option<Duration>,
    /// The shortest round trip of the last 15 to 30 s.
    pub min_rtt: Option<Duration>,
    /// How much longer the way to the receiver alone has been lately than its shortest of the last 15 to 30
    /// s, by its timestamps (RFC 7323 §3); `None` without timestamps, or where they do not count
    /// milliseconds.
    pub forward: Option<Duration>,
    /// The window, not the rate, holds it back.
    pub window_limited: bool,
    /// There is something to send, and the receiver has room for it.
    pub backlogged: bool,
}

#[derive(Debug)]
struct Registration {
    name: String,
    _link: libbpf_rs::Link,
    members: MapHandle,
    leg_slots: Mutex<Vec<Weak<LegSlot>>>,
    legs: Mapped<LegEntry>,
    owners: Mapped<Owner>,
    slots: Mapped<SlotEntry>,
}

/// The entry of a leg in `legs`.
#[derive(Debug)]
struct LegSlot {
    /// Legs of one name in two network namespaces are two.
    network: u64,
    leg: String,
    number: usize,
}

/// `struct leg` of the program.
#[derive(Debug)]
#[repr(C)]
struct LegEntry {
    rate: AtomicU64,
    rtt_us: AtomicU64,
    weight: AtomicU32,
    joined: AtomicU32,
}

/// An entry of `owners`.
#[derive(Debug)]
#[repr(C)]
struct Owner(AtomicU64);

/// `struct slot` of the program.
#[derive(Debug)]
#[repr(C)]
struct SlotEntry {
    rate: AtomicU64,
    at_us: AtomicU64,
    bytes_sent: AtomicU64,
    segments_sent: AtomicU32,
    delivered: AtomicU32,
    lost: AtomicU32,
    mss: AtomicU32,
    header: AtomicU32,
    in_flight: AtomicU32,
    rtt_us: AtomicU32,
    min_rtt_us: AtomicU32,
    leg: AtomicU32,
    weight: AtomicU32,
    window_limited: AtomicU32,
    backlogged: AtomicU32,
    forward_us: AtomicU32,
    _reserved: AtomicU32,
}

// SAFETY: atomics, 24 bytes.
unsafe impl Shared for LegEntry {}
// SAFETY: an atomic, 8 bytes.
unsafe impl Shared for Owner {}
// SAFETY: atomics, 80 bytes.
unsafe impl Shared for SlotEntry {}

static COPY: ProcessCopy<Registration> = ProcessCopy::new();

impl Explicit {
    /// Takes a reference to this process's copy, loading it if this is the first one.
    ///
    /// # Errors
    /// [`StructOpsError`] on a kernel without eBPF congestion control or without the privileges for it.
    pub fn acquire() -> Result<Self, StructOpsError> {
        let registration = COPY.acquire(|| Ok(under_a_free_name(NAME, register)?.1))?;
        Ok(Self { registration })
    }

    /// The name for `TCP_CONGESTION`.
    pub fn name(&self) -> &str {
        &self.registration.name
    }

    /// The leg of this name in the calling thread's network namespace; `None` if there are [`MAX_LEGS`]
    /// others. Calls with the same name share the leg while one of them holds it.
    pub fn leg(&self, name: &str) -> Option<SharedLeg> {
        let network = network();
        let mut leg_slots = lock(&self.registration.leg_slots);
        let taken: Vec<_> = leg_slots.iter().map(Weak::upgrade).collect();
        let same = taken.iter().flatten().find(|slot| slot.network == network && slot.leg == name).cloned();
        let slot = same.or_else(|| {
            let number = taken.iter().position(Option::is_none)?;
            let slot = Arc::new(LegSlot { network, leg: name.to_owned(), number });
            leg_slots[number] = Arc::downgrade(&slot);
            Some(slot)
        })?;
        Some(SharedLeg { explicit: self.clone(), slot })
    }

    /// All connections. The report on one that begins or ends meanwhile may be half that of another.
    pub fn flows(&self) -> impl Iterator<Item = Flow> {
        let Registration { owners, slots, .. } = &*self.registration;
        let owners = owners.iter().map(|owner| owner.0.load(Ordering::Acquire));
        let taken = owners.zip(slots.iter()).enumerate().filter(|(_, (owner, _))| *owner != 0);
        taken.map(|(slot, (owner, entry))| entry.read(slot, owner))
    }

    /// Sets the rate of the connection in this slot, bytes on the wire per second; with zero it has the
    /// initial rate.
    pub fn set_rate(&self, slot: usize, rate: u64) {
        self.registration.slots[slot].rate.store(rate, Ordering::Relaxed);
    }
}

impl SharedLeg {
    /// The congestion control.
    pub fn explicit(&self) -> &Explicit {
        &self.explicit
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.slot.leg
    }

    /// Its number, [`Flow::leg`] of its connections.
    pub fn number(&self) -> usize {
        self.slot.number
    }

    /// Assigns a socket to this leg, with its weight, before it connects or listens. Accepted sockets inherit
    /// both from the listener. A socket without a leg keeps to the window of RFC 6928.
    ///
    /// # Errors
    /// The kernel has no memory for it.
    pub fn join(&self, socket: BorrowedFd<'_>, weight: u32) -> io::Result<()> {
        let key = socket.as_raw_fd().to_ne_bytes();
        let [a, b, c, d] = (self.slot.number as u32).to_ne_bytes();
        let [e, f, g, h] = weight.to_ne_bytes();
        let members = &self.explicit.registration.members;
        members.update(&key, &[a, b, c, d, e, f, g, h], MapFlags::ANY).map_err(io::Error::other)
    }

    /// Sets the initial rate of connections that begin before the next call: one of weight w has
    /// `rate`·w/(`weight` + w) bytes on the wire per second, and w is then added to `weight`; and `rtt`,
    /// which they use until they have measured a round trip.
    pub fn set_initial_rate(&self, rate: u64, weight: u32, rtt: Duration) {
        let entry = &self.explicit.registration.legs[self.slot.number];
        entry.rate.store(rate, Ordering::Relaxed);
        entry.rtt_us.store(rtt.as_micros() as u64, Ordering::Relaxed);
        entry.weight.store(weight, Ordering::Relaxed);
        entry.joined.store(0, Ordering::Relaxed);
    }
}

/// Whether `name` is one that a copy may have.
pub fn is_explicit(name: &str) -> bool {
    is_copy(NAME, name)
}

impl SlotEntry {
    fn read(&self, slot: usize, owner: u64) -> Flow {
        let word = |field: &AtomicU32| field.load(Ordering::Relaxed);
        let long = |field: &AtomicU64| field.load(Ordering::Relaxed);
        let span = |field| Some(word(field)).filter(|&us| us > 0).map(|us| Duration::from_micros(us.into()));
        Flow {
            slot,
            owner,
            leg: word(&self.leg) as usize,
            weight: word(&self.weight),
            at: Duration::from_micros(long(&self.at_us)),
            bytes_sent: long(&self.bytes_sent),
            segments_sent: word(&self.segments_sent),
            delivered: word(&self.delivered),
            lost: word(&self.lost),
            mss: word(&self.mss),
            header: word(&self.header),
            in_flight: word(&self.in_flight),
            rtt: span(&self.rtt_us),
            min_rtt: span(&self.min_rtt_us),
            forward: Some(word(&self.forward_us))
                .filter(|&us| us != u32::MAX)
                .map(|us| Duration::from_micros(us.into())),
            window_limited: word(&self.window_limited) != 0,
            backlogged: word(&self.backlogged) != 0,
        }
    }
}

fn register(name: &str) -> Result<Registration, StructOpsError> {
    let load = |source| StructOpsError::Load { feature: Feature::Explicit, source };
    let share = |source| StructOpsError::Share { feature: Feature::Explicit, source };
    let slots = slots();
    let mut storage = MaybeUninit::uninit();
    let mut open = skel::ExplicitSkelBuilder::default().open(&mut storage).map_err(load)?;
    open.maps.rodata_data.as_deref_mut().expect("the program has constants").slot_count = slots;
    open.maps.slots.set_max_entries(slots).map_err(load)?;
    open.maps.owners.set_max_entries(slots).map_err(load)?;
    write_name(&mut open.struct_ops.bp_explicit_mut().name, name);
    let mut loaded = open.load().map_err(load)?;
    let link = loaded.maps.bp_explicit.attach_struct_ops();
    let link = link.map_err(|source| StructOpsError::Register { name: name.to_owned(), source })?;
    Ok(Registration {
        name: name.to_owned(),
        _link: link,
        members: MapHandle::try_from(&loaded.maps.members).map_err(load)?,
        leg_slots: Mutex::new((0..MAX_LEGS).map(|_| Weak::new()).collect()),
        legs: Mapped::new(loaded.maps.legs.as_fd(), MAX_LEGS).map_err(share)?,
        owners: Mapped::new(loaded.maps.owners.as_fd(), slots as usize).map_err(share)?,
        slots: Mapped::new(loaded.maps.slots.as_fd(), slots as usize).map_err(share)?,
    })
}

/// The network namespace of the calling thread.
fn network() -> u64 {
    use rustix::net::{AddressFamily, SocketType, socket};
    let probe = socket(AddressFamily::UNIX, SocketType::DGRAM, None).map_err(io::Error::from);
    // Without a free descriptor, the leg will have no connections either.
    probe.and_then(sockopt::network_namespace).unwrap_or_default()
}

/// As many as this process can have sockets.
fn slots() -> u32 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    limit.clamp(SLOTS.0, SLOTS.1).next_power_of_two() as u32
}
