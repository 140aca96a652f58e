//! TCP Hybla as an eBPF congestion control: loading and registering it.
//!
//! A congestion control is registered for the whole machine under one name and chosen per socket. Each process registers
//! a copy of its own, so that two versions of bentpipe can run side by side, and shares it among its legs. The
//! registration is a BPF link: the kernel takes it back when the process lets go of it, however the process ends.
//! Sockets that use it then go on to their end.

use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, Weak};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};

#[allow(
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    missing_docs,
    unreachable_pub,
    unused,
    unsafe_op_in_unsafe_fn
)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/hybla.skel.rs"));
}

/// The name under which sockets choose it (tcp(7), `TCP_CONGESTION`), if no other process has taken it; the next ones
/// have a number behind it.
pub const NAME: &str = "bp_hybla";

/// How many processes can have a copy at the same time.
const COPIES: u32 = 64;

/// Hybla's reference round-trip time RTT0 (Caini and Firrincieli 2004).
pub const RTT0: std::time::Duration = std::time::Duration::from_millis(25);

/// The standard initial window, segments, that ρ multiplies (RFC 6928).
pub const STANDARD_WINDOW: u32 = 10;

/// Why Hybla is not to be had here.
#[derive(Debug, thiserror::Error)]
pub enum HyblaError {
    /// The kernel did not take the program.
    #[error(
        "cannot load the eBPF program of Hybla: {0} (it needs Linux 6.4 with BTF, and root or CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN)"
    )]
    Load(#[source] libbpf_rs::Error),
    /// The kernel took the program but not the congestion control.
    #[error("cannot register the congestion control {name}: {source}")]
    Register {
        /// The name that was tried.
        name: String,
        /// What the kernel said.
        source: libbpf_rs::Error,
    },
}

/// While it lives, sockets of the whole machine can choose its [`name`](Self::name). Clones share the registration.
#[derive(Debug, Clone)]
pub struct Hybla {
    registration: Arc<Registration>,
}

#[derive(Debug)]
struct Registration {
    name: String,
    _link: libbpf_rs::Link,
}

/// The copy of this process, if one is in use.
static CURRENT: Mutex<Weak<Registration>> = Mutex::new(Weak::new());

impl Hybla {
    /// Takes a reference to this process's copy, loading it if this is the first one.
    ///
    /// # Errors
    /// [`HyblaError::Load`] on a kernel without eBPF congestion control or without the privileges for it.
    pub fn acquire() -> Result<Self, HyblaError> {
        // A panic elsewhere leaves a valid value behind.
        let mut current = CURRENT.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(registration) = current.upgrade() {
            return Ok(Self { registration });
        }
        let registration = Arc::new(register_under_a_free_name()?);
        *current = Arc::downgrade(&registration);
        Ok(Self { registration })
    }

    /// The name for `TCP_CONGESTION`.
    pub fn name(&self) -> &str {
        &self.registration.name
    }
}

/// Whether `name` is one that a copy of Hybla may have.
pub fn is_hybla(name: &str) -> bool {
    name.strip_prefix(NAME).is_some_and(|number| number.is_empty() || number.parse::<u32>().is_ok())
}

fn register_under_a_free_name() -> Result<Registration, HyblaError> {
    libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Warn, log_from_libbpf)));
    let mut copy = 1;
    loop {
        let name = if copy == 1 { NAME.to_owned() } else { format!("{NAME}{copy}") };
        match register(&name) {
            Err(HyblaError::Register { source, .. })
                if source.kind() == libbpf_rs::ErrorKind::AlreadyExists && copy < COPIES =>
            {
                copy += 1;
            }
            outcome => return outcome.map(|link| Registration { name, _link: link }),
        }
    }
}

fn register(name: &str) -> Result<libbpf_rs::Link, HyblaError> {
    let mut storage = MaybeUninit::uninit();
    let mut open = skel::HyblaSkelBuilder::default().open(&mut storage).map_err(HyblaError::Load)?;
    let parameters = open.maps.rodata_data.as_deref_mut().expect("the program has constants");
    parameters.rtt0_us = RTT0.as_micros() as u32;
    parameters.standard_window = STANDARD_WINDOW;
    write_name(&mut open.struct_ops.bp_hybla_mut().name, name);
    let mut loaded = open.load().map_err(HyblaError::Load)?;
    loaded
        .maps
        .bp_hybla
        .attach_struct_ops()
        .map_err(|source| HyblaError::Register { name: name.to_owned(), source })
}

/// Copies `name` with a zero behind it; the names made here are shorter than the field.
pub(crate) fn write_name(field: &mut [i8; 16], name: &str) {
    field.fill(0);
    for (place, byte) in field[..15].iter_mut().zip(name.bytes()) {
        *place = byte.cast_signed();
    }
}

pub(crate) fn log_from_libbpf(_level: libbpf_rs::PrintLevel, text: String) {
    tracing::debug!("libbpf: {}", text.trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_recognised_by_their_names() {
        assert!(is_hybla("bp_hybla") && is_hybla("bp_hybla64"));
        assert!(!is_hybla("hybla") && !is_hybla("bp_hyblax"));
    }
}
