//! Packets that would leave by an interface with a certain mark are taken into a TUN device instead, and
//! packets that are written into the device arrive as if by the interface (`bpf/divert.bpf.c`). A process that
//! carries packets between two hosts in a form of its own needs both, so that nothing else on either host sees
//! a difference: the netfilter hooks, connection tracking and the reverse path filter meet packets at the
//! interface that they know.
//!
//! The program at the egress comes before other programs there: those see what really leaves. Packets on their
//! way into the device are cut to the segments that they would have had on the wire, with complete checksums.
//! They are as long as the interface's MTU allows, whatever that of the device.
//!
//! No packet is held by a process that hangs: unless [`Divert::divert_until`] is called again and again,
//! marked packets are passed, or dropped ([`WhenSilent`]). A process that ends or is killed takes the programs
//! with it (tcx, Linux 6.6); then packets leave with their mark, also with [`WhenSilent::Drop`]. On earlier
//! kernels the filter of a killed process goes on as if the process were silent, until the next attachment or
//! `bentpipe clean-up` removes it.
//!
//! While one process takes over from another, both have programs at the interface, and the latest meets
//! packets first. It [stands by](Divert::stand_by), which leaves packets to the other one, until its first
//! [`Divert::divert_until`]. Then it diverts them, and clears the mark, so that the other does nothing: no
//! packet is lost, passed or diverted twice. Before it is certain that it takes over, it can
//! [stand in](Divert::stand_in_until) for a time.

use std::io;
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bentpipe_units::Time;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};

use crate::feature::Feature;
use crate::link_address::LinkAddress;
use crate::mapped::{Integers, Mapped};
use crate::owner::Owner;
use crate::skel::divert::{self as skel, types};
use crate::struct_ops::log_libbpf;
use crate::tc_hook::{self, Attachment, Hook, Target};

#[cfg(test)]
mod tests;

/// Whether there is an interface of this name in the calling thread's network namespace.
pub fn exists(interface: &str) -> bool {
    tc_hook::index_of(interface).is_ok()
}

/// As in the program.
const HAS_ETHERNET: u64 = 1 << 48;

// SAFETY: integers of 8 bytes.
unsafe impl Integers for types::divert {}

/// What becomes of marked packets while nobody says that they are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenSilent {
    /// They leave by the interface as other packets do.
    Pass,
    /// They do not leave.
    Drop,
}

/// The packets that are diverted: those with `mark & mask == value`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MarkMatch {
    /// Not 0, as packets without a mark have that; and within the mask.
    pub value: u32,
    /// The bits that belong to this purpose. They are cleared from packets that are diverted or passed.
    pub mask: u32,
}

/// Counters of a [`Divert`] since it was loaded, in packets on the wire and in bytes of IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DivertCounters {
    /// Packets that were taken into the device. It drops some if nobody reads as fast.
    pub diverted: u64,
    /// Their bytes.
    pub diverted_bytes: u64,
    /// Marked packets that left by the interface, as nobody read.
    pub passed: u64,
    /// Marked packets that were dropped, as nobody read.
    pub dropped: u64,
    /// Packets from the device that arrived as if by the interface.
    pub arrived: u64,
    /// Their bytes.
    pub arrived_bytes: u64,
    /// Packets from the device that were dropped, as there was no interface by which they could arrive.
    pub homeless: u64,
}

/// Why packets cannot be diverted.
#[derive(Debug, thiserror::Error)]
pub enum DivertError {
    /// The mark does not tell packets apart.
    #[error(
        "cannot divert packets by mark {:#x}/{:#x}: the value must not be 0, and have no bit that the mask \
         lacks", mark.value, mark.mask
    )]
    Mark {
        /// The mark that was asked for.
        mark: MarkMatch,
    },
    /// There is no such device.
    #[error("cannot divert packets into \"{device}\": {source}; create the TUN device first")]
    Device {
        /// The name that was looked for.
        device: String,
        /// What the system said.
        source: io::Error,
    },
    /// The kernel did not take the programs.
    #[error("cannot load the eBPF programs that divert packets: {0} ({n})", n = Feature::Divert.needs())]
    Load(#[source] libbpf_rs::Error),
    /// The memory that programs and process share could not be mapped.
    #[error(
        "cannot share memory with the eBPF programs that divert packets: {0} (is there a limit to this \
         process's memory, RLIMIT_AS?)"
    )]
    Map(#[source] io::Error),
    /// The kernel took a program but not for this interface.
    #[error(
        "cannot attach the eBPF program that diverts packets to {interface}: {source} ({}, and fewer than 63 \
         programs there)", Feature::Divert.needs()
    )]
    Attach {
        /// The interface, or the device.
        interface: String,
        /// What the system said.
        source: io::Error,
    },
    /// The kernel did not say what the interface is like.
    #[error("cannot divert packets at {interface}: cannot ask for the interface: {source}; try again")]
    Interface {
        /// The interface.
        interface: String,
        /// What the system said.
        source: io::Error,
    },
    /// Packets have a link header there that this cannot write.
    #[error(
        "cannot divert packets at {interface}: it is an interface of kind {kind} (ARPHRD_* of \
         linux/if_arp.h); name one of Ethernet, or one without link headers such as a tunnel"
    )]
    Kind {
        /// The interface.
        interface: String,
        /// Its kind.
        kind: u16,
    },
    /// The interface is the device.
    #[error("cannot divert packets at {device} into itself; name the interface by which they leave")]
    Itself {
        /// The device.
        device: String,
    },
}

/// Packets with a mark are diverted from interfaces into a device, and arrive from there, as long as this
/// lives.
#[derive(Debug)]
pub struct Divert {
    /// Those that it has been told to follow, in that order.
    interfaces: Vec<Followed>,
    /// At the device.
    _arrival: Attachment,
    egress: OwnedFd,
    /// The filters of `egress` are this process's.
    _owner: Option<Owner>,
    memory: Mapped<types::divert>,
    device: (u32, String),
    attach: Attach,
}

/// [`tc_hook::attach`], but in tests.
type Attach = fn(BorrowedFd<'_>, Target) -> io::Result<Attachment>;

#[derive(Debug)]
struct Followed {
    name: String,
    there: Option<There>,
}

/// Where an interface is now.
#[derive(Debug)]
struct There {
    index: u32,
    address: u64,
    attachment: Attachment,
}

impl Divert {
    /// Loads the programs, and attaches the one for arriving packets to the TUN device `device` of the
    /// calling thread's network namespace. It stands by until the first [`Divert::divert_until`]. It needs
    /// `CAP_BPF`, `CAP_PERFMON` and `CAP_NET_ADMIN`; afterwards `CAP_NET_ADMIN` is enough.
    ///
    /// # Errors
    /// [`DivertError::Mark`], [`DivertError::Device`], [`DivertError::Load`] and [`DivertError::Attach`] on
    /// older kernels or without the rights, [`DivertError::Map`].
    pub fn load(device: &str, mark: MarkMatch, when_silent: WhenSilent) -> Result<Self, DivertError> {
        Self::load_with(tc_hook::attach, device, mark, when_silent)
    }

    /// Whether this kernel takes the programs, with the rights that this thread has.
    ///
    /// # Errors
    /// [`DivertError::Load`], [`DivertError::Map`].
    pub fn probe() -> Result<(), DivertError> {
        Programs::load().map(drop)
    }

    fn load_with(
        attach: Attach,
        device: &str,
        mark: MarkMatch,
        when_silent: WhenSilent,
    ) -> Result<Self, DivertError> {
        if mark.value == 0 || mark.value & !mark.mask != 0 {
            return Err(DivertError::Mark { mark });
        }
        let missing = |source| DivertError::Device { device: device.to_owned(), source };
        let index = tc_hook::index_of(device).map_err(missing)?;
        let Programs { egress, arrival, memory } = Programs::load()?;
        let settings = types::divert {
            mark_value: mark.value.into(),
            mark_mask: mark.mask.into(),
            standing_by: 1,
            drop: (when_silent == WhenSilent::Drop).into(),
            device: index.into(),
            ..types::divert::default()
        };
        memory.write(0, 0, &settings);
        let attached = attach(arrival.as_fd(), Target::first(index, Hook::Ingress));
        let arrival =
            attached.map_err(|source| DivertError::Attach { interface: device.to_owned(), source })?;
        // Later there may be no right to mark it.
        let owner = if arrival.is_filter() { tc_hook::own(egress.as_fd()).ok() } else { None };
        let device = (index, device.to_owned());
        Ok(Self { interfaces: Vec::new(), _arrival: arrival, egress, _owner: owner, memory, device, attach })
    }

    /// Follows the interface of this name in the calling thread's network namespace: attaches if it has come,
    /// or has come back as another one, and learns its address. True if it is there. Cheap where nothing has
    /// changed, so that it can be called twice a second. It needs `CAP_NET_ADMIN` alone.
    ///
    /// Several interfaces can be followed. Packets are diverted from all of them; they arrive by the one that
    /// is there and was followed first. Once its Ethernet address has changed, packets that arrive are lost
    /// until the next call.
    ///
    /// # Errors
    /// [`DivertError::Attach`], [`DivertError::Kind`], [`DivertError::Interface`], [`DivertError::Itself`].
    pub fn follow(&mut self, interface: &str) -> Result<bool, DivertError> {
        let found = self.look_for(interface)?;
        let place = self.interfaces.iter().position(|followed| followed.name == interface);
        let place = place.unwrap_or_else(|| {
            self.interfaces.push(Followed { name: interface.to_owned(), there: None });
            self.interfaces.len() - 1
        });
        let is_there = found.is_some();
        let (attach, egress, followed) = (self.attach, self.egress.as_fd(), &mut self.interfaces[place]);
        let attached = followed.update(found, |index| attach(egress, Target::first(index, Hook::Egress)));
        self.let_arrive();
        attached.map_err(|source| DivertError::Attach { interface: interface.to_owned(), source })?;
        Ok(is_there)
    }

    /// Diverts nothing from an interface any more, and lets nothing arrive by it.
    pub fn leave(&mut self, interface: &str) {
        self.interfaces.retain(|followed| followed.name != interface);
        self.let_arrive();
    }

    /// Diverts marked packets until then, by `CLOCK_MONOTONIC`; a time that is past says that nobody reads
    /// them any more.
    pub fn divert_until(&self, until: Time) {
        self.memory.write(0, offset_of!(types::divert, until_ns), &until.as_nanos());
        self.memory.write(0, offset_of!(types::divert, standing_by), &0_u64);
    }

    /// Leaves marked packets as they are to the programs of another process, until the next
    /// [`Divert::divert_until`]. Packets from the device still arrive.
    pub fn stand_by(&self) {
        self.stand_in_until(Time::ZERO);
    }

    /// Diverts marked packets until then, as [`divert_until`](Self::divert_until) does, and stands by
    /// afterwards: for a process that is about to take over, and may never do it.
    pub fn stand_in_until(&self, until: Time) {
        self.memory.write(0, offset_of!(types::divert, standing_by), &1_u64);
        self.memory.write(0, offset_of!(types::divert, until_ns), &until.as_nanos());
    }

    /// What becomes of marked packets from now on while nobody reads them.
    pub fn set_when_silent(&self, when_silent: WhenSilent) {
        let drop = u64::from(when_silent == WhenSilent::Drop);
        self.memory.write(0, offset_of!(types::divert, drop), &drop);
    }

    /// The counters, of all interfaces together.
    pub fn counters(&self) -> DivertCounters {
        let now = self.memory.read(0);
        DivertCounters {
            diverted: now.diverted,
            diverted_bytes: now.diverted_bytes,
            passed: now.passed,
            dropped: now.dropped,
            arrived: now.arrived,
            arrived_bytes: now.arrived_bytes,
            homeless: now.homeless,
        }
    }

    /// The index and the address of an interface, if it is there.
    fn look_for(&self, interface: &str) -> Result<Option<(u32, u64)>, DivertError> {
        let found = tc_hook::index_of(interface)
            .and_then(|index| LinkAddress::of(interface).map(|address| (index, address)));
        match found {
            Ok((index, _)) if index == self.device.0 => {
                Err(DivertError::Itself { device: self.device.1.clone() })
            }
            Ok((index, LinkAddress::Ethernet([a, b, c, d, e, f]))) => {
                Ok(Some((index, HAS_ETHERNET | u64::from_le_bytes([a, b, c, d, e, f, 0, 0]))))
            }
            Ok((index, LinkAddress::None)) => Ok(Some((index, 0))),
            Ok((_, LinkAddress::Other(kind))) => {
                Err(DivertError::Kind { interface: interface.to_owned(), kind })
            }
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(source) => Err(DivertError::Interface { interface: interface.to_owned(), source }),
        }
    }

    /// Tells the program by which interface packets arrive.
    fn let_arrive(&self) {
        let there = self.interfaces.iter().find_map(|followed| followed.there.as_ref());
        let (index, address) = there.map_or((0, 0), |there| (u64::from(there.index), there.address));
        let now = self.memory.read(0);
        let [interface_at, address_at] =
            [offset_of!(types::divert, interface), offset_of!(types::divert, address)];
        if now.interface != index {
            // No packet gets the header of another interface.
            self.memory.write(0, interface_at, &0_u64);
        }
        if now.address != address {
            self.memory.write(0, address_at, &address);
        }
        if now.interface != index {
            self.memory.write(0, interface_at, &index);
        }
    }
}

impl Followed {
    /// The interface has this index and this address now, if it is there.
    fn update(
        &mut self,
        found: Option<(u32, u64)>,
        attach: impl FnOnce(u32) -> io::Result<Attachment>,
    ) -> io::Result<()> {
        let Some((index, address)) = found else {
            self.there = None;
            return Ok(());
        };
        if let Some(there) = &mut self.there
            && there.index == index
            && there.attachment.is_there()
        {
            there.address = address;
            return Ok(());
        }
        self.there = None;
        self.there = Some(There { index, address, attachment: attach(index)? });
        Ok(())
    }
}

struct Programs {
    egress: OwnedFd,
    arrival: OwnedFd,
    memory: Mapped<types::divert>,
}

impl Programs {
    fn load() -> Result<Self, DivertError> {
        log_libbpf();
        let mut storage = MaybeUninit::uninit();
        let open = skel::DivertSkelBuilder::default().open(&mut storage).map_err(DivertError::Load)?;
        let loaded = open.load().map_err(DivertError::Load)?;
        let memory = Mapped::new(loaded.maps.diverts.as_fd(), 1).map_err(DivertError::Map)?;
        let [egress, arrival] = [&loaded.progs.divert_egress, &loaded.progs.divert_arrival];
        let own = |program: BorrowedFd<'_>| program.try_clone_to_owned().map_err(DivertError::Map);
        Ok(Self { egress: own(egress.as_fd())?, arrival: own(arrival.as_fd())?, memory })
    }
}
