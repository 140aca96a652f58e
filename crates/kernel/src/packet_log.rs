//! Copies of packets that rules log: `log group N` of nftables, through nfnetlink_log
//! (linux/netfilter/nfnetlink_log.h).
//!
//! The kernel keeps a copy until it is received, as far as there is room; a packet whose copy finds none is
//! logged to nobody.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};
use rustix::net::{RecvFlags, netlink, recv};

use crate::netlink::{Message, Socket, Writer, attributes, messages};

/// The subsystem, in the upper byte of a message's type.
const SUBSYSTEM: u16 = (libc::NFNL_SUBSYS_ULOG as u16) << 8;
/// `enum nfulnl_msg_types`.
const PACKET: u16 = SUBSYSTEM;
const CONFIG: u16 = SUBSYSTEM | 1;
/// `enum nfulnl_attr_config`, `NFULNL_CFG_CMD_BIND`, `NFULNL_COPY_PACKET`.
const CONFIG_COMMAND: u16 = 1;
const CONFIG_MODE: u16 = 2;
const CONFIG_BUFFER: u16 = 3;
const CONFIG_THRESHOLD: u16 = 5;
const BIND: u8 = 1;
const COPY_PACKET: u8 = 2;
/// `enum nfulnl_attr_type`.
const MARK: u16 = 2;
const INPUT: u16 = 4;
const OUTPUT: u16 = 5;
const PAYLOAD: u16 = 9;
const PREFIX: u16 = 10;

/// The longest copy, in bytes. What opens connections is far shorter.
const LONGEST: u16 = u16::MAX;
/// Memory for one message, in bytes, if the packet does not need more.
const LEAST_BUFFER: u32 = 256;
/// Room for copies that wait to be received, in bytes: some thousand.
const WAITING: usize = 4 << 20;
/// Longer than one message with the longest copy.
const BUFFER: usize = 80 << 10;
/// Size of `struct nfgenmsg`.
const GENERIC_HEADER: usize = 4;

/// The receiver of one log group, in the network namespace of the thread that opened it. The group has no
/// other receiver as long as the socket exists.
#[derive(Debug)]
pub struct PacketLog {
    fd: OwnedFd,
    buffer: Box<[u8]>,
}

/// A packet that a rule has logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoggedPacket<'a> {
    /// The rule's `prefix`.
    pub prefix: &'a str,
    /// The packet's mark.
    pub mark: u32,
    /// The index of the interface that it came in by.
    pub input: Option<u32>,
    /// The index of the interface that it is about to leave by.
    pub output: Option<u32>,
    /// The packet from its IP header on. The checksum of a packet that a local sender has left to its
    /// device may still be missing.
    pub packet: &'a [u8],
}

impl PacketLog {
    /// Receives what rules log to `group`. Needs `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// `EBUSY` if another process receives this group, `EPERM`, and `EPROTONOSUPPORT` or `EOPNOTSUPP` where
    /// the kernel lacks nfnetlink_log.
    pub fn open(group: u16) -> io::Result<Self> {
        let mut socket = Socket::open(Some(netlink::NETFILTER))?;
        configure(&mut socket, group, |writer| writer.attribute(CONFIG_COMMAND, &[BIND]))?;
        let [high, low] = LONGEST.to_be_bytes();
        configure(&mut socket, group, |writer| {
            writer.attribute(CONFIG_MODE, &[0, 0, high, low, COPY_PACKET, 0]);
            // A copy takes the memory that it needs, and not a page.
            writer.attribute(CONFIG_BUFFER, &LEAST_BUFFER.to_be_bytes());
            // Every packet at once.
            writer.attribute(CONFIG_THRESHOLD, &1u32.to_be_bytes());
        })?;
        set_socket_recv_buffer_size_force(&socket, WAITING)
            .or_else(|_| set_socket_recv_buffer_size(&socket, WAITING))?;
        Ok(Self::inherited(socket.into_fd()))
    }

    /// The receiver that another process has opened.
    pub fn inherited(fd: OwnedFd) -> Self {
        Self { fd, buffer: vec![0; BUFFER].into() }
    }

    /// Receives one message, and shows `each` its packets. False if none has come.
    ///
    /// # Errors
    /// `ENOBUFS` if copies were lost because nobody received them in time; the next call continues.
    pub fn receive(&mut self, mut each: impl FnMut(LoggedPacket<'_>)) -> io::Result<bool> {
        let length = match recv(&self.fd, &mut *self.buffer, RecvFlags::DONTWAIT) {
            Ok((length, _)) => length,
            Err(Errno::AGAIN) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        messages(&self.buffer[..length]).filter_map(|message| read(&message)).for_each(&mut each);
        Ok(true)
    }
}

impl AsFd for PacketLog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn configure(socket: &mut Socket, group: u16, body: impl FnOnce(&mut Writer)) -> io::Result<()> {
    let sequence = socket.take_sequence(1);
    let [high, low] = group.to_be_bytes();
    let header = [libc::AF_UNSPEC as u8, libc::NFNETLINK_V0 as u8, high, low];
    let mut writer = Writer::default();
    writer.message(CONFIG, libc::NLM_F_REQUEST | libc::NLM_F_ACK, sequence, &header, body);
    socket.send(writer.as_bytes())?;
    let code =
        socket.receive_until(|message| message.error_number().filter(|_| message.sequence == sequence))?;
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code)) }
}

fn read<'a>(message: &Message<'a>) -> Option<LoggedPacket<'a>> {
    if message.kind != PACKET {
        return None;
    }
    let mut logged = LoggedPacket { prefix: "", mark: 0, input: None, output: None, packet: &[] };
    for (kind, payload) in attributes(message.payload.get(GENERIC_HEADER..)?) {
        let number = || payload.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
        match kind {
            MARK => logged.mark = number()?,
            INPUT => logged.input = number(),
            OUTPUT => logged.output = number(),
            PAYLOAD => logged.packet = payload,
            PREFIX => logged.prefix = std::str::from_utf8(payload).ok()?.trim_end_matches('\0'),
            _ => {}
        }
    }
    (!logged.packet.is_empty()).then_some(logged)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn logged(body: impl FnOnce(&mut Writer)) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.message(PACKET, 0, 0, &[0; GENERIC_HEADER], body);
        writer.as_bytes().to_vec()
    }

    #[test]
    fn a_message_tells_prefix_mark_interfaces_and_packet() {
        let bytes = logged(|writer| {
            writer.attribute(1, &[8, 0, 2, 0]);
            writer.attribute(MARK, &0x100u32.to_be_bytes());
            writer.attribute(INPUT, &2u32.to_be_bytes());
            writer.attribute(OUTPUT, &3u32.to_be_bytes());
            writer.text(PREFIX, "early 7602");
            writer.attribute(PAYLOAD, &[0x45, 0, 0]);
        });
        let message = messages(&bytes).next().unwrap();
        let expected = LoggedPacket {
            prefix: "early 7602",
            mark: 0x100,
            input: Some(2),
            output: Some(3),
            packet: &[0x45, 0, 0],
        };
        assert_eq!(read(&message), Some(expected));
    }

    #[test]
    fn a_message_without_a_packet_is_none() {
        let bytes = logged(|writer| writer.text(PREFIX, "x"));
        assert_eq!(read(&messages(&bytes).next().unwrap()), None);
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_read(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let message = Message { kind: PACKET, flags: 0, sequence: 0, payload: &bytes };
            read(&message);
        }
    }
}
