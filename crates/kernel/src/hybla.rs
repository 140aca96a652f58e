//! TCP Hybla as an eBPF congestion control: loading it, and sharing it between processes.
//!
//! A congestion control is registered for the whole machine under one name and chosen per socket, so only one copy can
//! exist. The first process that needs it loads and registers it; the next ones take a reference to the same
//! registration. The kernel unregisters it when the last reference is gone, however its holder ended; sockets that
//! use it then go on to their end.

use std::os::fd::{FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys;
use libbpf_rs::query::{LinkInfoIter, LinkTypeInfo, MapInfoIter};
use libbpf_rs::skel::{OpenSkel, SkelBuilder};

#[allow(clippy::all, missing_docs, unreachable_pub, unused)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/hybla.skel.rs"));
}

/// The name under which sockets choose it (tcp(7), `TCP_CONGESTION`).
pub const NAME: &str = "bp_hybla";

/// Hybla's reference round-trip time RTT0 (Caini and Firrincieli 2004).
pub const RTT0: std::time::Duration = std::time::Duration::from_millis(25);

/// The standard initial window, segments, that ρ multiplies (RFC 6928).
pub const STANDARD_WINDOW: u32 = 10;

/// Why Hybla is not to be had here.
#[derive(Debug, thiserror::Error)]
pub enum HyblaError {
    /// The kernel did not take the program.
    #[error("cannot load the eBPF program of Hybla: {0} (it needs Linux 6.4 with BTF, and CAP_BPF with CAP_NET_ADMIN)")]
    Load(#[source] libbpf_rs::Error),
    /// The name is taken, and not by a registration that can be shared.
    #[error("cannot register the congestion control {NAME}: {0}")]
    Register(#[source] libbpf_rs::Error),
}

/// A reference to the registration: while it lives, sockets can choose [`NAME`].
#[derive(Debug)]
pub struct Hybla {
    _registration: Registration,
}

#[derive(Debug)]
enum Registration {
    Own(#[allow(dead_code)] libbpf_rs::Link),
    Shared(#[allow(dead_code)] OwnedFd),
}

impl Hybla {
    /// Takes a reference to Hybla, loading it if this is the first one on the machine.
    pub fn acquire() -> Result<Self, HyblaError> {
        libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Warn, log_from_libbpf)));
        // A holder may vanish between the failed registration and the look for it: then the name is free again.
        let mut refused = None;
        for _ in 0..5 {
            if let Some(shared) = find_registration() {
                tracing::debug!("sharing the Hybla that another process has registered");
                return Ok(Self { _registration: Registration::Shared(shared) });
            }
            match register() {
                Ok(link) => return Ok(Self { _registration: Registration::Own(link) }),
                Err(HyblaError::Register(error)) if error.kind() == libbpf_rs::ErrorKind::AlreadyExists => {
                    refused = Some(HyblaError::Register(error));
                }
                Err(error) => return Err(error),
            }
        }
        Err(refused.expect("each round that ends here was refused"))
    }

    /// Whether this process registered it, rather than sharing another's registration.
    pub fn is_own(&self) -> bool {
        matches!(self._registration, Registration::Own(_))
    }
}

fn register() -> Result<libbpf_rs::Link, HyblaError> {
    let mut storage = std::mem::MaybeUninit::uninit();
    let mut open = skel::HyblaSkelBuilder::default().open(&mut storage).map_err(HyblaError::Load)?;
    let parameters = open.maps.rodata_data.as_deref_mut().expect("the program has constants");
    parameters.rtt0_us = RTT0.as_micros() as u32;
    parameters.standard_window = STANDARD_WINDOW;
    let mut loaded = open.load().map_err(HyblaError::Load)?;
    loaded.maps.bp_hybla.attach_struct_ops().map_err(HyblaError::Register)
}

/// Looks among the kernel's struct_ops links for the one that registered [`NAME`], and opens it.
fn find_registration() -> Option<OwnedFd> {
    let map = MapInfoIter::default().find(|map| map.name == NAME)?.id;
    let link = LinkInfoIter::default()
        .find(|link| matches!(&link.info, LinkTypeInfo::StructOps(ops) if ops.map_id == map))?;
    // SAFETY: the call takes a number and returns a new descriptor or an error; it touches no memory of ours.
    let fd = unsafe { libbpf_sys::bpf_link_get_fd_by_id(link.id) };
    // SAFETY: a non-negative result is a descriptor that nobody else owns.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

fn log_from_libbpf(_level: libbpf_rs::PrintLevel, text: String) {
    tracing::debug!("libbpf: {}", text.trim_end());
}
