//! The UDP socket over which frames go to the peer.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bentpipe_kernel::sockopt;
use bentpipe_units::ByteCount;

/// Frames that wait for this thread, or for the interface: some tens of milliseconds of a fast link.
const BUFFER: ByteCount = ByteCount::new(4 << 20);
/// IPv4 or IPv6, and UDP.
const HEADERS: [usize; 2] = [20 + 8, 40 + 8];
/// The MTU until the path has told one.
const USUAL_MTU: usize = 1500;

/// A socket that knows its peer.
#[derive(Debug)]
pub(super) struct Transport {
    socket: UdpSocket,
    peer: SocketAddr,
    /// It is connected, so that the kernel knows the path, and takes frames of the peer alone.
    is_connected: bool,
}

impl Transport {
    /// In the network namespace of the calling thread.
    pub(super) fn open(peer: IpAddr, port: u16) -> io::Result<Self> {
        let any = match peer {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let socket = UdpSocket::bind((any, port))?;
        socket.set_nonblocking(true)?;
        // What the leg's MTU does not hold is cut by this host and not lost.
        sockopt::set_fragmentation(&socket, peer.is_ipv6())?;
        sockopt::set_send_buffer(&socket, BUFFER)?;
        sockopt::set_receive_buffer(&socket, BUFFER)?;
        Ok(Self { socket, peer: (peer, port).into(), is_connected: false })
    }

    /// The socket that another process has opened.
    pub(super) fn inherited(socket: OwnedFd, peer: IpAddr, port: u16) -> Self {
        Self { socket: socket.into(), peer: (peer, port).into(), is_connected: false }
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.socket.try_clone().map(OwnedFd::from)
    }

    /// Looks for the way to the peer, which may have come, or be another one.
    pub(super) fn follow(&mut self) {
        self.is_connected = self.socket.connect(self.peer).is_ok();
    }

    /// Sends a frame. What the interface does not take is lost, as on the link.
    pub(super) fn send(&self, frame: &[u8]) {
        let sent = match self.is_connected {
            true => self.socket.send(frame),
            false => self.socket.send_to(frame, self.peer),
        };
        if let Err(error) = sent {
            tracing::trace!(%error, "a frame was not sent");
        }
    }

    /// The next frame of the peer: its length.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> Option<usize> {
        loop {
            match self.socket.recv_from(buffer) {
                Ok((length, from)) if from == self.peer => return Some(length),
                // Somebody else's, or an ICMP error about a frame of ours.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(_) => return None,
            }
        }
    }

    /// Bytes of the headers in front of a frame.
    pub(super) fn headers(&self) -> usize {
        HEADERS[usize::from(self.peer.is_ipv6())]
    }

    /// The MTU of the path to the peer, as far as it is known.
    pub(super) fn mtu(&self) -> usize {
        let known = sockopt::path_mtu(&self.socket, self.peer.is_ipv6()).ok().filter(|_| self.is_connected);
        known.unwrap_or(USUAL_MTU)
    }
}
