//! What killed processes have left in the kernel: congestion controls on Linux before 6.4, and programs at
//! interfaces before 6.6. Later kernels remove both with the process.

use std::io;

use crate::{struct_ops, tc_hook};

/// Removes what no process owns any more, at the interfaces of the calling thread's network namespace, and
/// returns how many there were.
///
/// # Errors
/// Looking for them takes `CAP_SYS_ADMIN`.
pub fn remove() -> io::Result<usize> {
    // It speaks of each place that has no program.
    struct_ops::log_libbpf();
    Ok(struct_ops::remove_leftovers()? + tc_hook::remove_leftovers()?)
}
