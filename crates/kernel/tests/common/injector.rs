//! Packets put on an interface as the kernel's own TCP puts them there: cut and checksummed only on the way
//! out.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const PACKET_VNET_HDR: libc::c_int = 15;
/// linux/virtio_net.h.
const NEEDS_CSUM: u8 = 1;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;

/// A packet socket (packet(7)) of an interface.
#[derive(Debug)]
pub(crate) struct Injector {
    socket: OwnedFd,
    interface: i32,
}

impl AsFd for Injector {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Injector {
    pub(crate) fn open(interface: &str) -> Self {
        let name = CString::new(interface).unwrap();
        // SAFETY: plain system calls; `name` ends with a zero and lives through its call.
        let (socket, index) = unsafe {
            (libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0), libc::if_nametoindex(name.as_ptr()))
        };
        assert!(socket >= 0 && index > 0, "{}", io::Error::last_os_error());
        // SAFETY: the kernel has just made the descriptor for us.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        let on: libc::c_int = 1;
        // SAFETY: the option is an int, which lives through the call.
        let set = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_PACKET,
                PACKET_VNET_HDR,
                (&raw const on).cast(),
                size_of_val(&on) as u32,
            )
        };
        assert_eq!(set, 0, "{}", io::Error::last_os_error());
        Self { socket, interface: index as i32 }
    }

    /// Sends what begins with a link header of `link` bytes. The checksum field holds the sum of the pseudo
    /// header; data beyond `size` bytes are for further segments.
    pub(crate) fn send(&self, packet: &[u8], link: usize, size: usize) {
        let v6 = packet[link] >> 4 == 6;
        let transport = link + if v6 { 40 } else { 20 };
        let headers = transport + usize::from(packet[transport + 12] >> 4) * 4;
        let is_long = packet.len() - headers > size;
        let gso = if !is_long {
            0
        } else if v6 {
            GSO_TCPV6
        } else {
            GSO_TCPV4
        };
        let mut message = vec![NEEDS_CSUM, gso];
        for number in [headers, if is_long { size } else { 0 }, transport, 16] {
            message.extend((number as u16).to_ne_bytes());
        }
        message.extend(packet);
        self.write(&message, if v6 { libc::ETH_P_IPV6 } else { libc::ETH_P_IP });
    }

    fn write(&self, message: &[u8], protocol: i32) {
        // SAFETY: all-zero bits are a valid `sockaddr_ll`.
        let mut to: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_protocol = (protocol as u16).to_be();
        to.sll_ifindex = self.interface;
        // SAFETY: message and address live through the call, with their lengths.
        let sent = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                message.as_ptr().cast(),
                message.len(),
                0,
                (&raw const to).cast(),
                size_of_val(&to) as u32,
            )
        };
        assert_eq!(sent, message.len() as isize, "{}", io::Error::last_os_error());
    }
}
