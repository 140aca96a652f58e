//! eBPF programs at the egress of an interface (tcx, Linux 6.6).

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys;

/// The number of an interface of the calling thread's network namespace (if_nametoindex(3)).
pub(crate) fn index_of(interface: &str) -> io::Result<u32> {
    let name = CString::new(interface)?;
    // SAFETY: `name` ends with a zero and lives through the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// bpf(2), `BPF_LINK_CREATE`: behind the programs that are there already. The program is there as long as the
/// descriptor.
pub(crate) fn attach_egress(program: BorrowedFd<'_>, interface: u32) -> io::Result<OwnedFd> {
    let interface = i32::try_from(interface).map_err(io::Error::other)?;
    // SAFETY: the program is open, and a null pointer stands for no options.
    let link = unsafe {
        libbpf_sys::bpf_link_create(
            program.as_raw_fd(),
            interface,
            libbpf_sys::BPF_TCX_EGRESS,
            std::ptr::null(),
        )
    };
    if link < 0 {
        return Err(io::Error::from_raw_os_error(-link));
    }
    // SAFETY: the kernel has just made the descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}
