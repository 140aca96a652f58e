//! TUN devices: network interfaces whose far side is this process (Documentation/networking/tuntap.rst of
//! Linux).
//!
//! Packets that the kernel sends through the device are read here, one by one; packets written here arrive at
//! the kernel as if by that interface. A packet begins with its IP header. The device offers no segmentation
//! offload, so that a packet is never longer than the MTU and its checksums are complete.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

/// The device node that makes TUN devices.
pub const DEV_NET_TUN: &str = "/dev/net/tun";

/// One TUN device. It vanishes, with the routes that lead through it, when this value is dropped or the
/// process ends.
#[derive(Debug)]
pub struct Tun {
    file: File,
    name: String,
}

/// Why a TUN device could not be made.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot create the TUN device \"{name}\" ({step}): {source}; it needs {DEV_NET_TUN} (`modprobe tun`, \
     `chmod 0666 {DEV_NET_TUN}`), CAP_NET_ADMIN and a free name of at most 15 characters"
)]
pub struct TunError {
    /// The device's name.
    pub name: String,
    /// The system call that failed.
    pub step: &'static str,
    /// What the system said.
    pub source: io::Error,
}

impl Tun {
    /// A new device in the network namespace of the calling thread: down, without addresses, and non-blocking
    /// here. Needs `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// [`TunError`], also if there is an interface of this name already.
    pub fn create(name: &str) -> Result<Self, TunError> {
        let fail = |step| move |source| TunError { name: name.to_owned(), step, source };
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open(DEV_NET_TUN);
        let file = file.map_err(fail("open /dev/net/tun"))?;
        let request = request(name).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL));
        let request = request.map_err(fail("name the device"))?;
        attach(&file, request).map_err(fail("ioctl TUNSETIFF"))?;
        Ok(Self { file, name: name.to_owned() })
    }

    /// The device that another process has made and handed over.
    pub fn inherited(descriptor: OwnedFd, name: &str) -> Self {
        Self { file: File::from(descriptor), name: name.to_owned() }
    }

    /// Another descriptor of the same device: it lives as long as either.
    ///
    /// # Errors
    /// There is no descriptor to spare.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.file.as_fd().try_clone_to_owned()
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The next packet that the kernel sent through the device: its length. A packet longer than `buffer` is
    /// truncated.
    ///
    /// # Errors
    /// `WouldBlock` if there is none; `EIO` while the device is down.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        (&self.file).read(buffer)
    }

    /// Lets a packet arrive at the kernel. It is taken whole or not at all.
    ///
    /// # Errors
    /// `InvalidInput` if it is not an IP packet; `EIO` while the device is down.
    pub fn write(&self, packet: &[u8]) -> io::Result<()> {
        (&self.file).write(packet).map(drop)
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The request: packets without a header of the driver's (`IFF_NO_PI`), and a device that is new. `None` for
/// a name that no interface can have.
fn request(name: &str) -> Option<libc::ifreq> {
    // SAFETY: an ifreq of zeroes is a valid one, with an empty name.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return None;
    }
    for (slot, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *slot = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_TUN_EXCL) as libc::c_short;
    Some(request)
}

fn attach(file: &File, mut request: libc::ifreq) -> io::Result<()> {
    // SAFETY: TUNSETIFF reads and writes one ifreq, which `request` is for the length of the call.
    match unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &mut request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_name_has_1_to_15_bytes() {
        for (name, good) in [("", false), ("a", true), ("fifteen-letters", true), ("sixteen-letters!", false)]
        {
            assert_eq!(request(name).is_some(), good, "{name}");
        }
    }
}
