//! ESP (RFC 4303) in tunnel mode between the server and the client, as IP protocol 50 and not in UDP, with
//! AES-128-GCM (RFC 4106). Keys are new for each tunnel and not negotiated: no IKE is needed for what a link
//! does to the packets.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use bentpipe_kernel::tun::Tun;
use bentpipe_testbed::Namespace;
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, ipproto, recv, send, socket_with,
};

use crate::Error;
use crate::topology::Topology;

/// The interface of the tunnel, on both hosts.
const INTERFACE: &str = "esp0";
/// SPI and sequence number.
const HEADER: usize = 8;
/// The part of the nonce that is sent (RFC 4106 §3.1), and the rest, which belongs to the key (§4).
const IV: usize = 8;
const SALT: usize = 4;
/// The integrity check value.
const ICV: usize = 16;
/// Pad length and next header.
const TRAILER: usize = 2;
/// The next header of an IPv4 packet in tunnel mode.
const IPV4: u8 = 4;
/// Sequence numbers that are remembered (RFC 4303 §3.4.3: at least 32, 64 is preferred).
const REPLAY_WINDOW: u32 = 64;
/// How long an end waits for packets before it looks whether the tunnel is closed.
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Longer than any packet here.
const LONGEST: usize = 2048;

/// A security association of one direction.
#[derive(Debug)]
struct Association {
    spi: u32,
    key: LessSafeKey,
    salt: [u8; SALT],
}

/// The sender's end of an association.
#[derive(Debug)]
struct Outbound {
    association: Arc<Association>,
    /// The last one used; the first packet has 1.
    sequence: u32,
}

/// The receiver's.
#[derive(Debug)]
struct Inbound {
    association: Arc<Association>,
    replay: Replay,
}

/// Which sequence numbers have come: the highest one, and a bit for each of the window below it.
#[derive(Debug, Default)]
struct Replay {
    highest: u32,
    seen: u64,
}

/// A tunnel that is up; it ends with this value.
#[derive(Debug)]
pub struct Esp {
    closed: Arc<AtomicBool>,
    ends: Vec<JoinHandle<()>>,
}

impl Association {
    fn new(spi: u32) -> Result<Arc<Self>, ring::error::Unspecified> {
        let (random, mut key, mut salt) = (SystemRandom::new(), [0; 16], [0; SALT]);
        random.fill(&mut key)?;
        random.fill(&mut salt)?;
        let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key)?);
        Ok(Arc::new(Self { spi, key, salt }))
    }

    fn nonce(&self, iv: &[u8]) -> Nonce {
        let mut nonce = [0; SALT + IV];
        nonce[..SALT].copy_from_slice(&self.salt);
        nonce[SALT..].copy_from_slice(iv);
        Nonce::assume_unique_for_key(nonce)
    }
}

impl Outbound {
    /// The ESP packet of an IPv4 packet; `None` after 2³² - 1 of them, when no number is left.
    fn seal(&mut self, packet: &[u8]) -> Option<Vec<u8>> {
        self.sequence = self.sequence.checked_add(1)?;
        let mut sealed = Vec::with_capacity(HEADER + IV + packet.len() + 3 + TRAILER + ICV);
        sealed.extend(self.association.spi.to_be_bytes());
        sealed.extend(self.sequence.to_be_bytes());
        // The sequence number with zeros in front never comes twice under one key (RFC 4106 §3.1).
        sealed.extend(u64::from(self.sequence).to_be_bytes());
        let mut text = packet.to_vec();
        let padding = (4 - (packet.len() + TRAILER) % 4) % 4;
        text.extend(1..=padding as u8);
        text.extend([padding as u8, IPV4]);
        let (aad, nonce) =
            (Aad::from(sealed[..HEADER].to_vec()), self.association.nonce(&sealed[HEADER..HEADER + IV]));
        self.association.key.seal_in_place_append_tag(nonce, aad, &mut text).ok()?;
        sealed.extend(text);
        Some(sealed)
    }
}

impl Inbound {
    /// The IPv4 packet in an ESP packet; `None` if it is not of this association, is not authentic, or its
    /// number has come before or is too old.
    fn open<'a>(&mut self, packet: &'a mut [u8]) -> Option<&'a [u8]> {
        let (head, rest) = packet.split_at_mut_checked(HEADER)?;
        let (iv, text) = rest.split_at_mut_checked(IV)?;
        let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let sequence = word(4);
        if word(0) != self.association.spi || !self.replay.is_new(sequence) {
            return None;
        }
        let nonce = self.association.nonce(iv);
        let text = self.association.key.open_in_place(nonce, Aad::from(&*head), text).ok()?;
        self.replay.accept(sequence);
        let (&mut next_header, text) = text.split_last_mut()?;
        let (&mut padding, text) = text.split_last_mut()?;
        let length = text.len().checked_sub(padding.into())?;
        (next_header == IPV4).then_some(&text[..length])
    }
}

impl Replay {
    fn is_new(&self, sequence: u32) -> bool {
        match self.highest.checked_sub(sequence) {
            None => true,
            Some(back) => sequence > 0 && back < REPLAY_WINDOW && self.seen & (1 << back) == 0,
        }
    }

    /// Only once it is known to be authentic.
    fn accept(&mut self, sequence: u32) {
        match sequence.checked_sub(self.highest) {
            Some(ahead) => {
                self.seen = self.seen.checked_shl(ahead).unwrap_or(0) | 1;
                self.highest = sequence;
            }
            None => self.seen |= 1 << (self.highest - sequence),
        }
    }
}

impl Esp {
    /// Starts both ends, the server's and the client's.
    ///
    /// # Errors
    /// [`Error::Tunnel`] without the privileges for raw sockets and TUN devices.
    pub fn start(topology: &Topology) -> Result<Self, Error> {
        let failed = |error: &dyn std::fmt::Display| Error::Tunnel(format!("ESP: {error}"));
        let association = |spi| Association::new(spi).map_err(|error| failed(&error));
        let [forward, back] = [association(0x1001)?, association(0x1002)?];
        let addresses = [topology.server_address(0).ip(), topology.client_address()];
        let closed = Arc::new(AtomicBool::new(false));
        let mut tunnel = Self { closed: Arc::clone(&closed), ends: Vec::new() };
        let ends = [
            (&topology.server, addresses[1], &forward, &back),
            (&topology.client, addresses[0], &back, &forward),
        ];
        for (host, peer, outbound, inbound) in ends {
            let outbound = Outbound { association: Arc::clone(outbound), sequence: 0 };
            let inbound = Inbound { association: Arc::clone(inbound), replay: Replay::default() };
            let (device, socket) = open(host, peer).map_err(|error| failed(&error))?;
            let closed = Arc::clone(&closed);
            let end = move || carry(&device, &socket, outbound, inbound, &closed);
            tunnel.ends.push(std::thread::spawn(end));
        }
        Ok(tunnel)
    }

    /// The names of the interfaces, the server's and the client's.
    pub fn interfaces(&self) -> [&str; 2] {
        [INTERFACE; 2]
    }
}

impl Drop for Esp {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Relaxed);
        for end in self.ends.drain(..) {
            // A thread that has panicked has said so.
            let _ = end.join();
        }
    }
}

/// The device and the socket of one end, in its namespace.
fn open(host: &Namespace, peer: IpAddr) -> io::Result<(Tun, OwnedFd)> {
    let opened = host.run(|| {
        let device = Tun::create(INTERFACE).map_err(io::Error::other)?;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::RAW, flags, Some(ipproto::ESP))?;
        connect(&socket, &SocketAddr::from((peer, 0)))?;
        Ok((device, socket))
    });
    opened.map_err(io::Error::other)?
}

/// Moves packets both ways until the tunnel is closed. What does not fit anywhere is lost, as on any link.
fn carry(device: &Tun, socket: &OwnedFd, mut outbound: Outbound, mut inbound: Inbound, closed: &AtomicBool) {
    let mut buffer = [0; LONGEST];
    while !closed.load(Ordering::Relaxed) {
        let mut fds = [device.as_fd(), socket.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        if poll(&mut fds, Some(&WAIT)).is_err_and(|error| error != Errno::INTR) {
            return;
        }
        while let Ok(length) = device.read(&mut buffer) {
            if let Some(sealed) = outbound.seal(&buffer[..length]) {
                let _ = send(socket, &sealed, SendFlags::empty());
            }
        }
        while let Ok((length, _)) = recv(socket, &mut buffer[..], RecvFlags::empty()) {
            let opened = without_ip_header(&mut buffer[..length]).and_then(|packet| inbound.open(packet));
            if let Some(packet) = opened {
                let _ = device.write(packet);
            }
        }
    }
}

/// A raw socket delivers packets with their IPv4 header (raw(7)).
fn without_ip_header(packet: &mut [u8]) -> Option<&mut [u8]> {
    let header = usize::from(packet.first()? & 15) * 4;
    packet.get_mut(header..)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Outbound, Inbound) {
        let association = Association::new(7).unwrap();
        let outbound = Outbound { association: Arc::clone(&association), sequence: 0 };
        (outbound, Inbound { association, replay: Replay::default() })
    }

    #[test]
    fn a_packet_of_any_length_arrives_as_it_was_and_is_padded_to_words() {
        let (mut outbound, mut inbound) = pair();
        for length in [20, 21, 22, 23, 1360] {
            let packet: Vec<u8> = (0..length).map(|byte| byte as u8).collect();
            let mut sealed = outbound.seal(&packet).unwrap();
            assert_eq!(sealed.len() % 4, 0, "{length}");
            assert!(sealed.len() - packet.len() <= HEADER + IV + 3 + TRAILER + ICV, "{length}");
            assert_eq!(inbound.open(&mut sealed), Some(&packet[..]));
        }
        assert_eq!(inbound.replay.highest, 5);
    }

    #[test]
    fn the_header_has_spi_and_number_and_the_rest_is_what_ring_opens_by_itself() {
        let (mut outbound, inbound) = pair();
        let packet = [0x45; 30];
        outbound.seal(&packet).unwrap();
        let mut sealed = outbound.seal(&packet).unwrap();
        assert_eq!(sealed[..16], [0, 0, 0, 7, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 2]);
        let mut nonce = [0; 12];
        nonce[..4].copy_from_slice(&inbound.association.salt);
        nonce[11] = 2;
        let aad = Aad::from([0, 0, 0, 7, 0, 0, 0, 2]);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let text = inbound.association.key.open_in_place(nonce, aad, &mut sealed[16..]).unwrap();
        assert_eq!(text, [&packet[..], &[0, IPV4]].concat());
    }

    #[test]
    fn what_has_come_before_is_too_old_or_has_a_wrong_bit_is_refused() {
        let (mut outbound, mut inbound) = pair();
        let sealed: Vec<Vec<u8>> = (0..100).map(|byte| outbound.seal(&[byte; 20]).unwrap()).collect();
        let mut open = |index: usize| inbound.open(&mut sealed[index].clone()).is_some();
        assert!(open(3) && open(1) && open(0), "out of order");
        assert!(!open(1) && !open(3), "again");
        assert!(open(99) && open(36) && !open(35), "the window has 64 numbers");
        let mut forged = outbound.seal(&[1; 20]).unwrap();
        for bit in 0..forged.len() * 8 {
            forged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(inbound.open(&mut forged.clone()), None, "bit {bit}");
            forged[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(inbound.open(&mut forged).is_some(), "a forged number has not moved the window");
        assert_eq!(inbound.open(&mut [0; 9]), None);
    }
}
