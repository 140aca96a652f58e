//! Segments that no TCP would send, in the name of a connection's end.

use std::io::Read;
use std::net::SocketAddrV4;

use socket2::{Domain, Protocol, Socket, Type};

use super::{Host, PATIENCE};

pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const PSH: u8 = 0x08;
pub const ACK: u8 = 0x10;
pub const URG: u8 = 0x20;

const HEADER: usize = 20;

/// Forges segments from `source` to `destination` on the host that has the source's address.
pub struct Forger {
    socket: Socket,
    source: SocketAddrV4,
    destination: SocketAddrV4,
}

/// Where a connection stands, as its end at `source` sees it.
#[derive(Debug, Clone, Copy)]
pub struct Sequence {
    /// The next that this end sends: the only one at which a reset is believed at once (RFC 5961 §3.2).
    pub send_next: u32,
    /// The next that this end expects.
    pub receive_next: u32,
}

impl Forger {
    pub fn new(host: &Host, source: SocketAddrV4, destination: SocketAddrV4) -> Self {
        let socket = host.enter(|| Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::TCP)).unwrap());
        // What the kernel cannot send at once is to be waited for, not lost.
        socket.connect(&SocketAddrV4::new(*destination.ip(), 0).into()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket, source, destination }
    }

    /// Learns the sequence numbers from the next segment with data that arrives: a raw socket gets a copy of
    /// each (raw(7)).
    pub fn overhear(&mut self) -> Sequence {
        let mut packet = [0; 2048];
        loop {
            let length = self.socket.read(&mut packet).unwrap();
            if let Some(sequence) = self.sequence_of(&packet[..length]) {
                return sequence;
            }
        }
    }

    /// Sends one segment.
    pub fn send(&self, flags: u8, sequence: u32, acknowledgement: u32, payload: &[u8]) {
        let mut segment = Vec::with_capacity(HEADER + payload.len());
        segment.extend(self.source.port().to_be_bytes());
        segment.extend(self.destination.port().to_be_bytes());
        segment.extend(sequence.to_be_bytes());
        segment.extend(acknowledgement.to_be_bytes());
        segment.extend([((HEADER / 4) << 4) as u8, flags, 0xff, 0xff, 0, 0, 0, 0]);
        segment.extend(payload);
        let checksum = self.checksum(&segment);
        segment[16..18].copy_from_slice(&checksum.to_be_bytes());
        self.socket.send(&segment).unwrap();
    }

    fn sequence_of(&self, packet: &[u8]) -> Option<Sequence> {
        let segment = packet.get(usize::from(packet[0] & 0xf) * 4..)?;
        let word = |at: usize| u32::from_be_bytes(segment[at..at + 4].try_into().unwrap());
        let ports = [self.destination.port(), self.source.port()].map(u16::to_be_bytes).concat();
        let data = segment.len().checked_sub(usize::from(segment[12] >> 4) * 4)?;
        let sequence = Sequence { send_next: word(8), receive_next: word(4).wrapping_add(data as u32) };
        (segment[..4] == ports && data > 0).then_some(sequence)
    }

    /// Over the pseudo-header and the segment (RFC 9293 §3.1).
    fn checksum(&self, segment: &[u8]) -> u16 {
        let mut bytes = [self.source.ip().octets(), self.destination.ip().octets()].concat();
        bytes.extend([0, 6]);
        bytes.extend((segment.len() as u16).to_be_bytes());
        bytes.extend(segment);
        let pair = |pair: &[u8]| (u32::from(pair[0]) << 8) | u32::from(pair.get(1).copied().unwrap_or(0));
        let mut sum: u32 = bytes.chunks(2).map(pair).sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }
}
