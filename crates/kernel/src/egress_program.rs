//! The eBPF program that counts what leaves beside the connections of a leg, and marks or drops what is
//! beyond the leg's limit (`bpf/cross_traffic.bpf.c`), for all legs of a process.

use std::collections::HashMap;
use std::io;
use std::mem::{MaybeUninit, offset_of};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bentpipe_link::explicit::{CrossTrafficLimit, FLOW_BUCKETS, Signalled};
use bentpipe_units::Time;
use libbpf_rs::MapHandle;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};

use crate::mapped::{Integers, Mapped};
use crate::skel::cross_traffic::{self as skel, types};
use crate::sockopt;
use crate::tc_hook::{self, Attachment, Target};

/// The most legs that it can count for, as in the program.
pub(crate) const MAX_LEGS: usize = 64;

/// A limit holds for so long. The controller renews it every 20 ms; where it hangs, all packets pass.
const LIMIT_HOLDS: Duration = Duration::from_secs(1);

// SAFETY: five integers of 8 bytes.
unsafe impl Integers for types::count {}
// SAFETY: two integers of 8 bytes, two of 4, and seventeen of 8.
unsafe impl Integers for types::limit {}
// SAFETY: integers of 8 bytes.
unsafe impl Integers for types::flows {}

const _: () = assert!(size_of::<types::count>() == 5 * 8 && size_of::<types::limit>() == 20 * 8);
const _: () = assert!(size_of::<types::flows>() == FLOW_BUCKETS * 8, "as many buckets as in the program");

/// The program, which is loaded once for all legs of a process and is at an interface once it is attached.
#[derive(Debug)]
pub(crate) struct Program {
    program: OwnedFd,
    counts: Mapped<types::count>,
    limits: Mapped<types::limit>,
    flows: Mapped<types::flows>,
    places: Mutex<HashMap<Place, Weak<Attachment>>>,
}

/// An interface. Numbers of interfaces are those of a network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    network: u64,
    interface: u32,
}

/// The program counts for a leg while this lives.
#[derive(Debug)]
pub(crate) struct Counted {
    program: Arc<Program>,
    leg: usize,
    place: Place,
    _attachment: Arc<Attachment>,
}

impl Program {
    /// Loads it, with the map in which sockets have the numbers of their legs.
    pub(crate) fn load(members: &MapHandle) -> libbpf_rs::Result<Self> {
        let mut storage = MaybeUninit::uninit();
        let mut open = skel::CrossTrafficSkelBuilder::default().open(&mut storage)?;
        open.maps.members.reuse_fd(members.as_fd())?;
        let loaded = open.load()?;
        let program = loaded.progs.cross_traffic.as_fd().try_clone_to_owned()?;
        let counts = Mapped::new(loaded.maps.counts.as_fd(), MAX_LEGS)?;
        let limits = Mapped::new(loaded.maps.limits.as_fd(), MAX_LEGS)?;
        let flows = Mapped::new(loaded.maps.flows.as_fd(), MAX_LEGS)?;
        Ok(Self { program, counts, limits, flows, places: Mutex::default() })
    }

    /// Counts for this leg at an interface from now on, until the returned value is dropped.
    ///
    /// # Errors
    /// The kernel does not take the program there.
    pub(crate) fn count(self: &Arc<Self>, leg: usize, place: Place) -> io::Result<Counted> {
        let attachment = self.attach(place)?;
        self.counts.write(leg, offset_of!(types::count, network), &place.network);
        self.counts.write(leg, offset_of!(types::count, interface), &u64::from(place.interface));
        Ok(Counted { program: self.clone(), leg, place, _attachment: attachment })
    }

    /// Legs at one interface share one attachment: the program counts for all of them.
    fn attach(&self, place: Place) -> io::Result<Arc<Attachment>> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(attached) = places.get(&place).and_then(Weak::upgrade) {
            return Ok(attached);
        }
        let attachment = Arc::new(tc_hook::attach(self.program.as_fd(), Target::egress(place.interface))?);
        places.retain(|_, attachment| attachment.strong_count() > 0);
        places.insert(place, Arc::downgrade(&attachment));
        Ok(attachment)
    }

    /// The bytes that it has counted for a leg.
    pub(crate) fn bytes(&self, leg: usize) -> u64 {
        self.counts.read(leg).bytes
    }

    /// The packets of a leg that it has marked or dropped.
    pub(crate) fn signalled(&self, leg: usize) -> Signalled {
        let count = self.counts.read(leg);
        Signalled { marked: count.marked, dropped: count.dropped }
    }

    /// The bytes of each flow of a leg that have left while there was a limit, by a hash of the flow.
    pub(crate) fn flows(&self, leg: usize) -> impl Iterator<Item = u64> {
        let of_leg = &self.flows.words()[leg * FLOW_BUCKETS..][..FLOW_BUCKETS];
        of_leg.iter().map(|bytes| bytes.load(Ordering::Relaxed))
    }

    /// What may leave over a leg for the next second, by `CLOCK_MONOTONIC`.
    pub(crate) fn limit(&self, leg: usize, now: Time, limit: Option<&CrossTrafficLimit>) {
        let Some(limit) = limit else { return self.unlimit(leg) };
        let micros = |span: Duration| u32::try_from(span.as_micros()).unwrap_or(u32::MAX);
        let entry = types::limit {
            until_ns: (now + LIMIT_HOLDS).as_nanos(),
            rate: limit.rate as u64,
            target_us: micros(limit.target),
            interval_us: micros(limit.interval),
            may_drop: limit.may_drop.into(),
            judged: limit.judged,
        };
        self.limits.write(leg, 0, &entry);
    }

    fn unlimit(&self, leg: usize) {
        self.limits.write(leg, offset_of!(types::limit, until_ns), &0_u64);
    }
}

impl Place {
    /// The interface of this name in the network namespace of the calling thread.
    pub(crate) fn of(interface: &str) -> io::Result<Self> {
        let interface = tc_hook::index_of(interface)?;
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        Ok(Self { network: sockopt::network_namespace(&socket)?, interface })
    }
}

impl Counted {
    /// Where that is.
    pub(crate) fn place(&self) -> Place {
        self.place
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.program.unlimit(self.leg);
        self.program.counts.write(self.leg, offset_of!(types::count, interface), &0_u64);
    }
}
