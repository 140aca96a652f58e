//! Congestion controls of ours in the kernel: under which names they are registered.
//!
//! A congestion control is registered for the whole machine under one name and chosen per socket. Each process registers
//! copies of its own, so that two versions of bentpipe can run side by side. The registration is a BPF link: the kernel
//! takes it back when the process lets go of it, however the process ends. Sockets that use it then go on to their end.

/// How many processes can have a copy at the same time.
const COPIES: u32 = 64;

/// Why an eBPF congestion control is not to be had here.
#[derive(Debug, thiserror::Error)]
pub enum StructOpsError {
    /// The kernel did not take the program.
    #[error(
        "cannot load the eBPF program of {program}: {source} (it needs Linux 6.4 with BTF, and root or CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN)"
    )]
    Load {
        /// What it does.
        program: &'static str,
        /// What the kernel said.
        source: libbpf_rs::Error,
    },
    /// The kernel took the program but not the congestion control.
    #[error("cannot register the congestion control {name}: {source}")]
    Register {
        /// The name that was tried.
        name: String,
        /// What the kernel said.
        source: libbpf_rs::Error,
    },
    /// The memory that the program shares with this process.
    #[error("cannot share memory with the eBPF program of {program}: {source}")]
    Share {
        /// What it does.
        program: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Registers under `base`, or if other processes have taken that, with a number behind it.
pub(crate) fn under_a_free_name<T>(
    base: &str,
    mut register: impl FnMut(&str) -> Result<T, StructOpsError>,
) -> Result<(String, T), StructOpsError> {
    libbpf_rs::set_print(Some((libbpf_rs::PrintLevel::Warn, log_from_libbpf)));
    let mut copy = 1;
    loop {
        let name = if copy == 1 { base.to_owned() } else { format!("{base}{copy}") };
        match register(&name) {
            Err(StructOpsError::Register { source, .. })
                if source.kind() == libbpf_rs::ErrorKind::AlreadyExists && copy < COPIES =>
            {
                copy += 1;
            }
            outcome => return outcome.map(|registered| (name, registered)),
        }
    }
}

/// Whether `name` is one that [`under_a_free_name`] gives a copy of `base`.
pub(crate) fn is_copy(base: &str, name: &str) -> bool {
    name.strip_prefix(base).is_some_and(|number| number.is_empty() || number.parse::<u32>().is_ok())
}

/// Copies `name` with a zero behind it; the names made here are shorter than the field.
pub(crate) fn write_name(field: &mut [i8; 16], name: &str) {
    field.fill(0);
    for (place, byte) in field[..15].iter_mut().zip(name.bytes()) {
        *place = byte.cast_signed();
    }
}

fn log_from_libbpf(_level: libbpf_rs::PrintLevel, text: String) {
    tracing::debug!("libbpf: {}", text.trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_recognised_by_their_names() {
        assert!(is_copy("bp_hybla", "bp_hybla") && is_copy("bp_hybla", "bp_hybla64"));
        assert!(!is_copy("bp_hybla", "hybla") && !is_copy("bp_hybla", "bp_hyblax"));
    }
}
