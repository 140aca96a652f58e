//! The eBPF program that counts what leaves beside the connections of a leg (`bpf/cross_traffic.bpf.c`), for
//! all legs of a process.

use std::collections::HashMap;
use std::io;
use std::mem::{MaybeUninit, offset_of};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use libbpf_rs::MapHandle;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};

use crate::egress::{self, Attachment};
use crate::mapped::{Integers, Mapped};
use crate::skel::cross_traffic::{self as skel, types};
use crate::sockopt;

/// The most legs that it can count for, as in the program.
pub(crate) const MAX_LEGS: usize = 64;

// SAFETY: three integers of 8 bytes.
unsafe impl Integers for types::count {}

/// The program, which is loaded once for all legs of a process and is at an interface once it is attached.
#[derive(Debug)]
pub(crate) struct Program {
    program: OwnedFd,
    counts: Mapped<types::count>,
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
        Ok(Self { program, counts, places: Mutex::default() })
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
        let attachment = Arc::new(egress::attach(self.program.as_fd(), place.interface)?);
        places.retain(|_, attachment| attachment.strong_count() > 0);
        places.insert(place, Arc::downgrade(&attachment));
        Ok(attachment)
    }

    /// The bytes that it has counted for a leg.
    pub(crate) fn bytes(&self, leg: usize) -> u64 {
        self.counts.read(leg).bytes
    }
}

impl Place {
    /// The interface of this name in the network namespace of the calling thread.
    pub(crate) fn of(interface: &str) -> io::Result<Self> {
        let interface = egress::index_of(interface)?;
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
        self.program.counts.write(self.leg, offset_of!(types::count, interface), &0_u64);
    }
}
