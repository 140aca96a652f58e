//! TCP Hybla as an eBPF congestion control: loading and registering it, complete, or for a laboratory as its
//! authors published it.
//!
//! A process has one copy of each, which its legs share.

use std::mem::MaybeUninit;
use std::sync::Arc;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};

use crate::feature::Feature;
use crate::skel::hybla as skel;
use crate::struct_ops::{ProcessCopy, Registration, StructOpsError, is_copy, under_a_free_name, write_name};

/// The name under which sockets choose it (tcp(7), `TCP_CONGESTION`), if no other process has taken it; the
/// next ones have a number behind it.
pub const NAME: &str = "bp_hybla";

/// The name of the published algorithm, likewise.
pub const PUBLISHED_NAME: &str = "bp_hybla_pub";

/// Hybla's reference round-trip time RTT0 (Caini and Firrincieli 2004).
pub const RTT0: std::time::Duration = std::time::Duration::from_millis(25);

/// The standard initial window, segments, that ρ multiplies (RFC 6928).
pub const STANDARD_WINDOW: u32 = 10;

/// While it lives, sockets of the whole machine can choose its [`name`](Self::name). Clones share the
/// registration.
#[derive(Debug, Clone)]
pub struct Hybla {
    /// Its name, and what holds it.
    registration: Arc<(String, Registration)>,
}

static COPY: ProcessCopy<(String, Registration)> = ProcessCopy::new();
static PUBLISHED_COPY: ProcessCopy<(String, Registration)> = ProcessCopy::new();

impl Hybla {
    /// Takes a reference to this process's copy, loading it if this is the first one.
    ///
    /// # Errors
    /// [`StructOpsError::Load`] on a kernel without eBPF congestion control or without the privileges for it.
    pub fn acquire() -> Result<Self, StructOpsError> {
        Ok(Self { registration: COPY.acquire(|| under_a_free_name(NAME, |name| register(name, false)))? })
    }

    /// The same without bentpipe's two additions (`docs/hybla.md`).
    ///
    /// # Errors
    /// Those of [`acquire`](Self::acquire).
    pub fn acquire_published() -> Result<Self, StructOpsError> {
        let register = |name: &str| register(name, true);
        let registration = PUBLISHED_COPY.acquire(|| under_a_free_name(PUBLISHED_NAME, register))?;
        Ok(Self { registration })
    }

    /// The name for `TCP_CONGESTION`.
    pub fn name(&self) -> &str {
        &self.registration.0
    }

    /// Whether it is the published algorithm, which fills the queue until it overflows.
    pub fn is_published(&self) -> bool {
        is_copy(PUBLISHED_NAME, self.name())
    }
}

/// Whether `name` is one that a copy of the complete Hybla may have.
pub fn is_hybla(name: &str) -> bool {
    is_copy(NAME, name)
}

fn register(name: &str, published: bool) -> Result<Registration, StructOpsError> {
    let load = |source| StructOpsError::Load { feature: Feature::Hybla, source };
    let mut storage = MaybeUninit::uninit();
    let mut open = skel::HyblaSkelBuilder::default().open(&mut storage).map_err(load)?;
    let parameters = open.maps.rodata_data.as_deref_mut().expect("the program has constants");
    parameters.rtt0_us = RTT0.as_micros() as u32;
    parameters.standard_window = STANDARD_WINDOW;
    parameters.published = published.into();
    write_name(&mut open.struct_ops.bp_hybla_mut().name, name);
    Registration::prepare(&mut open.maps.bp_hybla).map_err(load)?;
    let mut loaded = open.load().map_err(load)?;
    Registration::new(&mut loaded.maps.bp_hybla, name)
}
