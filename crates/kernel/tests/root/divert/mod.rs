//! Marked packets go into a device instead of leaving by an interface, and what is written into the device
//! arrives as if by the interface.

mod arrival;
mod egress;
mod end_to_end;
mod follow;

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use bentpipe_kernel::divert::{Divert, MarkMatch, WhenSilent};
use bentpipe_kernel::tun::Tun;
use bentpipe_units::Time;
use rustix::time::{ClockId, clock_gettime};
use socket2::SockRef;

use crate::common::{in_namespace, run, wait_for};

const MARK: MarkMatch = MarkMatch { value: 0x20, mask: 0x30 };
/// A mark with a bit that is another's.
const MARKED: u32 = 0x21;
const ETHERNET: usize = 14;
/// The addresses of this host and of one behind the interface, of both families.
const HERE: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
const THERE: [&str; 2] = ["192.0.2.2", "2001:db8::2"];
/// The port of all datagrams that tests look at: the kernel says things of its own.
const PORT: u16 = 7009;

/// What kind of interface the leg has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ethernet,
    Layer3,
}

/// Where packets come out that leave by `sat0`.
enum Line {
    /// The other end of the cable, `sat1`.
    Ethernet(OwnedFd),
    Layer3(Tun),
}

/// The device `bp0`, and the leg's interface `sat0`, which has an address of each family.
struct World {
    device: Tun,
    line: Line,
}

impl World {
    fn new(kind: Kind) -> Self {
        let device = Tun::create("bp0").unwrap();
        let line = match kind {
            Kind::Ethernet => {
                run("ip", "link add sat0 type veth peer name sat1 address 02:00:00:00:00:02", "");
                run("ip", "link set sat1 up", "");
                Line::Ethernet(packet_socket("sat1"))
            }
            Kind::Layer3 => Line::Layer3(Tun::create("sat0").unwrap()),
        };
        for interface in ["bp0", "sat0"] {
            run("ip", &format!("link set {interface} up"), "");
        }
        for (here, there) in HERE.into_iter().zip(THERE) {
            let (length, nodad) = if here.contains(':') { (64, "nodad") } else { (24, "") };
            run("ip", &format!("addr add {here}/{length} dev sat0 {nodad}"), "");
            if kind == Kind::Ethernet {
                run("ip", &format!("neigh add {there} lladdr 02:00:00:00:00:02 dev sat0"), "");
            }
        }
        Self { device, line }
    }

    /// The length of the interface's link headers.
    fn link_header(&self) -> usize {
        if matches!(self.line, Line::Ethernet(_)) { ETHERNET } else { 0 }
    }

    /// The datagrams that have left by the interface since the last call.
    fn left(&self) -> Vec<Vec<u8>> {
        datagrams(|buffer| match &self.line {
            Line::Ethernet(socket) => rustix::io::read(socket, buffer).ok(),
            Line::Layer3(tun) => tun.read(buffer).ok(),
        })
    }

    /// The datagrams that have come into the device since the last call.
    fn diverted(&self) -> Vec<Vec<u8>> {
        datagrams(|buffer| self.device.read(buffer).ok())
    }

    /// How many have come into the device, and how many have left.
    fn count(&self) -> (usize, usize) {
        (self.diverted().len(), self.left().len())
    }
}

/// Runs `test` for interfaces with and without a link header.
fn with_each_kind(test: impl Fn(&World) + Sync) {
    for kind in [Kind::Ethernet, Kind::Layer3] {
        println!("{kind:?}");
        in_namespace(&["ip", "nft"], || test(&World::new(kind)));
    }
}

fn load(when_silent: WhenSilent) -> Divert {
    Divert::load("bp0", MARK, when_silent).unwrap()
}

/// Diverts from `sat0` for a minute.
fn diverting() -> Divert {
    let mut divert = load(WhenSilent::Pass);
    assert!(divert.follow("sat0").unwrap());
    divert.divert_until(in_future(60));
    divert
}

fn in_future(seconds: u64) -> Time {
    let now = clock_gettime(ClockId::Monotonic);
    Time::from_nanos((now.tv_sec as u64 + seconds) * 1_000_000_000 + now.tv_nsec as u64)
}

const PAST: Time = Time::from_nanos(1);

/// A packet socket (packet(7)) that sees what arrives at an interface, without link headers.
fn packet_socket(interface: &str) -> OwnedFd {
    let name = std::ffi::CString::new(interface).unwrap();
    // SAFETY: plain system calls; `name` ends with a zero and lives through its call.
    let (socket, index) = unsafe {
        let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        (libc::socket(libc::AF_PACKET, kind, 0), libc::if_nametoindex(name.as_ptr()))
    };
    assert!(socket >= 0 && index > 0, "{}", io::Error::last_os_error());
    // SAFETY: the kernel has just made the descriptor for us.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: all-zero bits are a valid `sockaddr_ll`.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index as i32;
    // SAFETY: the address lives through the call, with its length.
    let bound =
        unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as u32) };
    assert_eq!(bound, 0, "{}", io::Error::last_os_error());
    socket
}

/// The packets with a datagram to [`PORT`] until there are no more.
fn datagrams(mut read: impl FnMut(&mut [u8]) -> Option<usize>) -> Vec<Vec<u8>> {
    let (mut buffer, mut found) = ([0; 70_000], Vec::new());
    while let Some(length) = read(&mut buffer) {
        let packet = &buffer[..length];
        let transport = headers(packet);
        if packet.get(transport + 2..transport + 4) == Some(&PORT.to_be_bytes()) {
            found.push(packet.to_vec());
        }
    }
    found
}

/// The length of the IP header.
fn headers(packet: &[u8]) -> usize {
    if packet[0] >> 4 == 6 { 40 } else { 20 }
}

/// A socket of this host towards the host behind the interface.
fn socket(family: usize, mark: u32) -> UdpSocket {
    let here: IpAddr = HERE[family].parse().unwrap();
    let there: IpAddr = THERE[family].parse().unwrap();
    let socket = UdpSocket::bind(SocketAddr::new(here, 0)).unwrap();
    SockRef::from(&socket).set_mark(mark).unwrap();
    socket.connect(SocketAddr::new(there, PORT)).unwrap();
    socket
}

/// A packet with a datagram from the host behind the interface.
fn datagram(family: usize, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let length = ((8 + payload.len()) as u16).to_be_bytes();
    let mut packet = match family {
        0 => vec![0x45, 0, 0, 28 + payload.len() as u8, 0, 0, 0, 0, 64, 17, 0, 0],
        _ => vec![0x60, 0, 0, 0, length[0], length[1], 17, 64],
    };
    for address in [THERE[family].parse().unwrap(), to.ip()] {
        match address {
            IpAddr::V4(address) => packet.extend(address.octets()),
            IpAddr::V6(address) => packet.extend(address.octets()),
        }
    }
    if family == 0 {
        let sum = !folded(&packet);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    packet.extend(PORT.to_be_bytes());
    packet.extend(to.port().to_be_bytes());
    packet.extend(length);
    packet.extend([0, 0]);
    packet.extend(payload);
    let (at, sum) = (headers(&packet) + 6, !udp_sum(&packet));
    packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// The sum of a datagram with its pseudo header (RFC 768): 0xffff if the checksum is right.
fn udp_sum(packet: &[u8]) -> u16 {
    let transport = headers(packet);
    let addresses = if transport == 40 { 8 } else { 12 };
    let length = ((packet.len() - transport) as u16).to_be_bytes();
    folded(&[&[0, 17], &length, &packet[addresses..]].concat())
}

fn folded(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// What arrives, which is to do so.
fn receive(socket: &UdpSocket) -> Option<Vec<u8>> {
    receive_within(Duration::from_secs(20), socket)
}

/// Whether nothing arrives for a moment.
fn is_silent(socket: &UdpSocket) -> bool {
    receive_within(Duration::from_millis(200), socket).is_none()
}

fn receive_within(time: Duration, socket: &UdpSocket) -> Option<Vec<u8>> {
    socket.set_read_timeout(Some(time)).unwrap();
    let mut buffer = [0; 2000];
    let length = socket.recv(&mut buffer).ok()?;
    Some(buffer[..length].to_vec())
}
