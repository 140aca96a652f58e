//! Registering congestion controls in the kernel.
//!
//! A congestion control is registered for the whole machine under one name and chosen per socket. Each
//! process registers copies of its own, so that two versions of bentpipe can run side by side. Since Linux
//! 6.4 a link holds the [registration], and the kernel removes it when the process ends; before, the
//! process removes it, and what a killed one leaves behind is found at the next start. Sockets that use the
//! congestion control keep it until they close.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use crate::feature::Feature;

pub(crate) mod kernel_form;
pub(crate) mod registration;

pub(crate) use kernel_form::KernelForm;
pub(crate) use registration::Registration;

/// How many processes can have a copy at the same time.
const COPIES: u32 = 64;

/// How often a program is loaded that the kernel puts off, and the pause between. While a signal is
/// pending, the verifier gives up with `EAGAIN`, and `bpf(2)` says to call again; libbpf does so five times
/// without a pause.
const LOADS: (u32, Duration) = (20, Duration::from_millis(10));

/// The names of the maps that hold them.
const MAPS: [&str; 3] = ["bp_explicit", "bp_hybla", "bp_xcp"];

/// Why an eBPF congestion control is not available.
#[derive(Debug, thiserror::Error)]
pub enum StructOpsError {
    /// The kernel did not take the program.
    #[error("cannot load the eBPF program of {feature}: {source} ({})", feature.needs())]
    Load {
        /// Its function.
        feature: Feature,
        /// The kernel's error.
        source: libbpf_rs::Error,
    },
    /// The kernel took the program but not the congestion control.
    #[error("cannot register the congestion control {name}: {source}")]
    Register {
        /// The name that was tried.
        name: String,
        /// The kernel's error.
        source: libbpf_rs::Error,
    },
    /// Other processes have taken every name.
    #[error(
        "{COPIES} processes have a congestion control called {base} already \
         (end one: each has a copy of its own)"
    )]
    Names {
        /// The name without a number.
        base: String,
    },
    /// The memory that the program shares with this process cannot be mapped.
    #[error(
        "cannot share memory with the eBPF program of {feature}: {source} \
         (is there a limit to this process's memory, RLIMIT_AS?)"
    )]
    Share {
        /// Its function.
        feature: Feature,
        /// The system's error.
        source: std::io::Error,
    },
}

/// The copy of this process, if one is in use: each use of it holds a reference.
#[derive(Debug)]
pub(crate) struct ProcessCopy<T>(Mutex<Weak<T>>);

impl<T> ProcessCopy<T> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Weak::new()))
    }

    /// Another reference to the copy, registering it if this is the first one.
    pub(crate) fn acquire<E>(&self, register: impl FnOnce() -> Result<T, E>) -> Result<Arc<T>, E> {
        let mut current = lock(&self.0);
        if let Some(registration) = current.upgrade() {
            return Ok(registration);
        }
        let registration = Arc::new(register()?);
        *current = Arc::downgrade(&registration);
        Ok(registration)
    }
}

/// Locks a value that is valid after each statement, so that a panic elsewhere leaves a valid one behind.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers under `base`, or if other processes have taken that, with a number behind it.
pub(crate) fn under_a_free_name<T>(
    base: &str,
    mut register: impl FnMut(&str) -> Result<T, StructOpsError>,
) -> Result<(String, T), StructOpsError> {
    log_libbpf();
    match remove_leftovers() {
        Ok(0) => {}
        Ok(count) => tracing::info!(count, "unregistered congestion controls of a daemon that was killed"),
        Err(error) => tracing::debug!(%error, "cannot look for congestion controls that were left behind"),
    }
    for copy in 1..=COPIES {
        let name = if copy == 1 { base.to_owned() } else { format!("{base}{copy}") };
        match patiently(|| register(&name)) {
            Err(StructOpsError::Register { source, .. })
                if source.kind() == libbpf_rs::ErrorKind::AlreadyExists => {}
            outcome => return outcome.map(|registered| (name, registered)),
        }
    }
    Err(StructOpsError::Names { base: base.to_owned() })
}

/// Loads again while the kernel puts it off.
fn patiently<T>(mut register: impl FnMut() -> Result<T, StructOpsError>) -> Result<T, StructOpsError> {
    let (loads, pause) = LOADS;
    for _ in 1..loads {
        match register() {
            Err(StructOpsError::Load { source, .. }) if source.kind() == libbpf_rs::ErrorKind::WouldBlock => {
                std::thread::sleep(pause);
            }
            outcome => return outcome,
        }
    }
    register()
}

/// Unregisters what killed processes have left behind, and returns how many.
///
/// # Errors
/// Looking for them takes `CAP_SYS_ADMIN`.
pub(crate) fn remove_leftovers() -> std::io::Result<usize> {
    registration::remove_leftovers(&MAPS)
}

/// Whether `name` is one that [`under_a_free_name`] gives a copy of `base`.
pub(crate) fn is_copy(base: &str, name: &str) -> bool {
    name.strip_prefix(base).is_some_and(|number| number.is_empty() || number.parse::<u32>().is_ok())
}

/// Copies `name` and a zero; the names made here are shorter than the field.
pub(crate) fn write_name(field: &mut [i8; 16], name: &str) {
    field.fill(0);
    for (place, byte) in field[..15].iter_mut().zip(name.bytes()) {
        *place = byte.cast_signed();
    }
}

/// Sends libbpf's messages to the log.
pub(crate) fn log_libbpf() {
    let log = |_, text: String| tracing::debug!("libbpf: {}", text.trim_end());
    libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Warn, log)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(name: &str) -> StructOpsError {
        StructOpsError::Register {
            name: name.to_owned(),
            source: libbpf_rs::Error::from_raw_os_error(libc::EEXIST),
        }
    }

    #[test]
    fn names_that_others_have_taken_are_passed_over() {
        let (name, ()) = under_a_free_name("bp_x", |name| match name {
            "bp_x" | "bp_x2" => Err(taken(name)),
            _ => Ok(()),
        })
        .unwrap();
        assert_eq!(name, "bp_x3");
    }

    #[test]
    fn where_all_names_are_taken_it_says_so_and_tries_no_further() {
        let mut tried = Vec::new();
        let outcome = under_a_free_name("bp_x", |name| {
            tried.push(name.to_owned());
            Err::<(), _>(taken(name))
        });
        let error = outcome.unwrap_err().to_string();
        assert!(error.starts_with("64 processes have a congestion control called bp_x"), "{error}");
        assert_eq!((tried.len(), tried[63].as_str()), (64, "bp_x64"));
        assert!(tried.iter().all(|name| is_copy("bp_x", name)));
    }

    #[test]
    fn another_failure_than_a_taken_name_ends_the_search() {
        let mut tries = 0;
        let outcome = under_a_free_name("bp_x", |name| {
            tries += 1;
            let source = libbpf_rs::Error::from_raw_os_error(libc::EPERM);
            Err::<(), _>(StructOpsError::Register { name: name.to_owned(), source })
        });
        assert!(matches!(outcome, Err(StructOpsError::Register { .. })));
        assert_eq!(tries, 1);
    }

    #[test]
    fn a_load_that_the_kernel_puts_off_is_tried_again_but_not_for_ever() {
        let put_off = || StructOpsError::Load {
            feature: Feature::Hybla,
            source: libbpf_rs::Error::from_raw_os_error(libc::EAGAIN),
        };
        let after = |failures: u32| {
            let mut tries = 0;
            let outcome = under_a_free_name("bp_x", |_| {
                tries += 1;
                if tries <= failures { Err(put_off()) } else { Ok(()) }
            });
            (outcome.is_ok(), tries)
        };
        assert_eq!([after(0), after(3), after(u32::MAX)], [(true, 1), (true, 4), (false, LOADS.0)]);
    }

    #[test]
    fn copies_are_recognised_by_their_names() {
        assert!(is_copy("bp_hybla", "bp_hybla") && is_copy("bp_hybla", "bp_hybla64"));
        assert!(!is_copy("bp_hybla", "hybla") && !is_copy("bp_hybla", "bp_hyblax"));
    }
}
