//! The kernel's notifications that network interfaces have come, gone or changed (rtnetlink(7), `RTM_NEWLINK`
//! and `RTM_DELLINK`).
//!
//! A socket that nobody reads for a while loses some, so the notifications themselves are not read: they wake
//! the caller, who looks for what there is.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

/// Notifications of the network namespace of the thread that opened it. It needs no privileges; poll it for
/// input.
#[derive(Debug)]
pub struct LinkEvents {
    fd: OwnedFd,
}

impl LinkEvents {
    /// Asks for notifications from now on.
    ///
    /// # Errors
    /// Those of socket(2) and bind(2): `EMFILE` without a descriptor left.
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        bind(&fd, &SocketAddrNetlink::new(0, libc::RTMGRP_LINK.unsigned_abs()))?;
        Ok(Self { fd })
    }

    /// Takes the notifications that have come: the next poll waits for others. Call it before looking, so
    /// that what changes meanwhile wakes the caller again.
    pub fn clear(&self) {
        // Lost notifications (ENOBUFS) are among those that have come; the others follow.
        while matches!(
            recv(&self.fd, &mut [0u8; 64], RecvFlags::TRUNC),
            Ok(_) | Err(Errno::INTR | Errno::NOBUFS)
        ) {}
    }
}

impl AsFd for LinkEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    #[test]
    fn without_a_change_of_any_interface_there_is_nothing_to_read() {
        let events = LinkEvents::open().unwrap();
        events.clear();
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        assert_eq!(poll(&mut [PollFd::new(&events, PollFlags::IN)], Some(&at_once)).unwrap(), 0);
    }
}
