//! Explicit rates as an eBPF congestion control: loading it, and the memory that it shares with the rate
//! controller.
//!
//! The program measures and obeys; a controller (`bentpipe_link::explicit`) decides the rates: it reads
//! [`flows`](Explicit::flows) and writes [`set_rate`](Explicit::set_rate). A process has one copy for all its
//! legs.

use std::io;
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use crate::egress_program::{self, Program};
use crate::feature::Feature;
use crate::mapped::{Integers, Mapped};
use crate::skel::explicit::{self as skel, types};
use crate::sockopt;
use crate::struct_ops::{
    self, KernelForm, ProcessCopy, StructOpsError, is_copy, lock, under_a_free_name, write_name,
};

/// The name under which sockets choose it (tcp(7), `TCP_CONGESTION`), if no other process has taken it; the
/// next ones have a number behind it.
pub const NAME: &str = "bp_explicit";

/// The most legs that a copy can serve.
pub const MAX_LEGS: usize = egress_program::MAX_LEGS;

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

/// The report on a connection, of the congestion control or, without it, of [`paced`](crate::paced). Counters
/// wrap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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
    _held: struct_ops::Registration,
    members: MapHandle,
    leg_slots: Mutex<Vec<Weak<LegSlot>>>,
    legs: Mapped<types::leg>,
    owners: Mapped<u64>,
    slots: Mapped<types::slot>,
    cross_traffic: Option<Arc<Program>>,
}

/// The entry of a leg in `legs`.
#[derive(Debug)]
struct LegSlot {
    /// Legs of one name in two network namespaces are two.
    network: u64,
    leg: String,
    number: usize,
}

// SAFETY: four integers of 8, 8, 4 and 4 bytes.
unsafe impl Integers for types::leg {}
// SAFETY: three integers of 8 bytes and fourteen of 4.
unsafe impl Integers for types::slot {}

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
        let owners = owners.words().iter().map(|owner| owner.load(Ordering::Acquire)).enumerate();
        owners.filter(|(_, owner)| *owner != 0).map(|(slot, owner)| Flow::of(slot, owner, &slots.read(slot)))
    }

    /// Sets the rate of the connection in this slot, bytes on the wire per second; with zero it has the
    /// initial rate.
    pub fn set_rate(&self, slot: usize, rate: u64) {
        self.registration.slots.write(slot, offset_of!(types::slot, rate), &rate);
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

    /// The program that counts the leg's other traffic; `None` if this kernel does not take it.
    pub(crate) fn cross_traffic(&self) -> Option<&Arc<Program>> {
        self.explicit.registration.cross_traffic.as_ref()
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
        let leg = types::leg { rate, rtt_us: rtt.as_micros() as u64, weight, joined: 0 };
        self.explicit.registration.legs.write(self.slot.number, 0, &leg);
    }
}

/// Whether `name` is one that a copy may have.
pub fn is_explicit(name: &str) -> bool {
    is_copy(NAME, name)
}

impl Flow {
    fn of(slot: usize, owner: u64, entry: &types::slot) -> Self {
        let span = |us: u32, unknown: u32| (us != unknown).then(|| Duration::from_micros(us.into()));
        Self {
            slot,
            owner,
            leg: entry.leg as usize,
            weight: entry.weight,
            at: Duration::from_micros(entry.at_us),
            bytes_sent: entry.bytes_sent,
            segments_sent: entry.segments_sent,
            delivered: entry.delivered,
            lost: entry.lost,
            mss: entry.mss,
            header: entry.header,
            in_flight: entry.in_flight,
            rtt: span(entry.rtt_us, 0),
            min_rtt: span(entry.min_rtt_us, 0),
            forward: span(entry.forward_us, u32::MAX),
            window_limited: entry.window_limited != 0,
            backlogged: entry.backlogged != 0,
        }
    }
}

fn register(name: &str) -> Result<Registration, StructOpsError> {
    let load = |source| StructOpsError::Load { feature: Feature::Explicit, source };
    let share = |source| StructOpsError::Share { feature: Feature::Explicit, source };
    let slots = slots();
    let mut storage = MaybeUninit::uninit();
    let mut open = skel::ExplicitSkelBuilder::default().open(&mut storage).map_err(load)?;
    let constants = open.maps.rodata_data.as_deref_mut().expect("the program has constants");
    constants.slot_count = slots;
    constants.sample_argument = KernelForm::running().sample_argument;
    open.maps.slots.set_max_entries(slots).map_err(load)?;
    open.maps.owners.set_max_entries(slots).map_err(load)?;
    write_name(&mut open.struct_ops.bp_explicit_mut().name, name);
    struct_ops::Registration::prepare(&mut open.maps.bp_explicit).map_err(load)?;
    let mut loaded = open.load().map_err(load)?;
    let held = struct_ops::Registration::new(&mut loaded.maps.bp_explicit, name)?;
    let members = MapHandle::try_from(&loaded.maps.members).map_err(load)?;
    let cross_traffic = Program::load(&members);
    if let Err(error) = &cross_traffic {
        tracing::warn!(%error, "cannot count what is not split: it shows to explicit rates as a queue only");
    }
    Ok(Registration {
        name: name.to_owned(),
        _held: held,
        members,
        leg_slots: Mutex::new((0..MAX_LEGS).map(|_| Weak::new()).collect()),
        legs: Mapped::new(loaded.maps.legs.as_fd(), MAX_LEGS).map_err(share)?,
        owners: Mapped::new(loaded.maps.owners.as_fd(), slots as usize).map_err(share)?,
        slots: Mapped::new(loaded.maps.slots.as_fd(), slots as usize).map_err(share)?,
        cross_traffic: cross_traffic.ok().map(Arc::new),
    })
}

/// The network namespace of the calling thread.
pub(crate) fn network() -> u64 {
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
