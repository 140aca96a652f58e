//! The eBPF program that counts what leaves beside the connections of a leg (`bpf/cross_traffic.bpf.c`), for
//! all legs of a process.

use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libbpf_rs::MapHandle;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};

use crate::mapped::{Integers, Mapped};
use crate::skel::cross_traffic::{self as skel, types};

/// The most legs that it can count for, as in the program.
pub(crate) const MAX_LEGS: usize = 64;

// SAFETY: two integers of 8 bytes.
unsafe impl Integers for types::count {}

/// The program, which is loaded once for all legs of a process and is at an interface once it is attached.
#[derive(Debug)]
pub(crate) struct Program {
    program: OwnedFd,
    counts: Mapped<types::count>,
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
        Ok(Self { program, counts })
    }

    /// Counts for this leg at the interface of this index; 0: nowhere.
    pub(crate) fn set_interface(&self, leg: usize, index: u32) {
        self.counts.write(leg, offset_of!(types::count, interface), &u64::from(index));
    }

    /// The bytes that it has counted for a leg.
    pub(crate) fn bytes(&self, leg: usize) -> u64 {
        self.counts.read(leg).bytes
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}
