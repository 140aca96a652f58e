//! Netlink (netlink(7), netlink(3)): messages made of attributes, and a socket on which the kernel answers
//! them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_send_buffer_size, set_socket_send_buffer_size_force};
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recv, send, socket_with,
    sockopt,
};

use crate::sockopt::set_int;

/// Messages and attributes begin at multiples of this (`NLMSG_ALIGNTO`, `NLA_ALIGNTO`).
const ALIGNMENT: usize = 4;
/// Size of `struct nlmsghdr`.
const MESSAGE_HEADER: usize = 16;
/// Size of `struct nlattr`.
const ATTRIBUTE_HEADER: usize = 4;
/// `NLA_F_NESTED` of linux/netlink.h.
const NESTED: u16 = libc::NLA_F_NESTED as u16;
/// `NLA_TYPE_MASK` of linux/netlink.h.
const TYPE_MASK: u16 = libc::NLA_TYPE_MASK as u16;

/// The kernel answers at once, from within `send(2)`; one that is silent for so long will not answer at all.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Half of what one `send(2)` may hold, in bytes: the kernel doubles it (socket(7)). A limit, not an
/// allocation.
const SEND_BUFFER: usize = 1 << 20;
/// Longer than any datagram with answers to what this crate asks: an error without the request, one route, or
/// a part of a list, which the kernel sends in pieces of at most 32 KiB.
const RECEIVE_BUFFER: usize = 32 << 10;

/// How often a list is asked for that changed while it was read.
const LISTINGS: u32 = 20;

/// Writes messages, one behind the other.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Appends a message: its header, the family's `fixed` header, and the attributes that `body` writes.
    pub(crate) fn message(
        &mut self,
        kind: u16,
        flags: libc::c_int,
        sequence: u32,
        fixed: &[u8],
        body: impl FnOnce(&mut Self),
    ) {
        let start = self.bytes.len();
        self.bytes.extend([0; 4]);
        self.bytes.extend(kind.to_ne_bytes());
        // All flags are in the lower half of an integer: `nlmsg_flags` has 16 bits.
        self.bytes.extend((flags as u16).to_ne_bytes());
        self.bytes.extend(sequence.to_ne_bytes());
        // The port is the socket's own, which the kernel knows.
        self.bytes.extend([0; 4]);
        self.bytes.extend(fixed);
        self.pad();
        body(self);
        let len = u32::try_from(self.bytes.len() - start).expect("a message is far below 4 GiB");
        self.bytes[start..start + 4].copy_from_slice(&len.to_ne_bytes());
    }

    /// Appends an attribute with `payload`, which is below 64 KiB.
    pub(crate) fn attribute(&mut self, kind: u16, payload: &[u8]) {
        self.with_length(kind, |writer| writer.bytes.extend(payload));
    }

    /// Appends an attribute with a zero-terminated text (`NLA_STRING`).
    pub(crate) fn text(&mut self, kind: u16, text: &str) {
        self.with_length(kind, |writer| {
            writer.bytes.extend(text.as_bytes());
            writer.bytes.push(0);
        });
    }

    /// Appends an attribute that holds the attributes that `body` writes, in all below 64 KiB.
    pub(crate) fn nested(&mut self, kind: u16, body: impl FnOnce(&mut Self)) {
        self.with_length(kind | NESTED, body);
    }

    /// The message, ready to send.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn with_length(&mut self, kind: u16, body: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend([0; 2]);
        self.bytes.extend(kind.to_ne_bytes());
        body(self);
        let len = u16::try_from(self.bytes.len() - start).expect("callers keep attributes below 64 KiB");
        self.bytes[start..start + 2].copy_from_slice(&len.to_ne_bytes());
        // An attribute's length excludes its own padding, that of the enclosing one includes it.
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGNMENT), 0);
    }
}

/// One message that was received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    /// `nlmsg_type`.
    pub(crate) kind: u16,
    /// `nlmsg_flags`.
    pub(crate) flags: u16,
    /// That of the request which it answers.
    pub(crate) sequence: u32,
    /// Everything behind the header.
    pub(crate) payload: &'a [u8],
}

impl Message<'_> {
    /// The error number in an `NLMSG_ERROR`, 0 in an acknowledgement; `None` for every other message.
    pub(crate) fn error_number(&self) -> Option<i32> {
        let code =
            self.payload.first_chunk().filter(|_| libc::c_int::from(self.kind) == libc::NLMSG_ERROR)?;
        Some(i32::from_ne_bytes(*code).saturating_neg())
    }
}

/// The messages of a datagram; it ends at the first that is cut off or no message at all.
pub(crate) fn messages(mut datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let header: &[u8; MESSAGE_HEADER] = datagram.first_chunk()?;
        let len = u32_at(header, 0) as usize;
        let payload = datagram.get(MESSAGE_HEADER..len)?;
        let message = Message {
            kind: u16::from_ne_bytes([header[4], header[5]]),
            flags: u16::from_ne_bytes([header[6], header[7]]),
            sequence: u32_at(header, 8),
            payload,
        };
        datagram = datagram.get(len.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        Some(message)
    })
}

/// The attributes in `bytes` as pairs of type and payload; it ends at the first that is cut off or no
/// attribute at all.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let &[a, b, c, d] = bytes.first_chunk::<ATTRIBUTE_HEADER>()?;
        let len = usize::from(u16::from_ne_bytes([a, b]));
        let payload = bytes.get(ATTRIBUTE_HEADER..len)?;
        bytes = bytes.get(len.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        Some((u16::from_ne_bytes([c, d]) & TYPE_MASK, payload))
    })
}

/// A netlink socket whose only peer is the kernel, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    sequence: u32,
    buffer: Box<[u8]>,
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Socket {
    /// Opens a socket to the kernel's `protocol`; `None` is number 0, `NETLINK_ROUTE`.
    ///
    /// # Errors
    /// What socket(2) says: `EPROTONOSUPPORT` where this kernel lacks the protocol.
    pub(crate) fn open(protocol: Option<Protocol>) -> io::Result<Self> {
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
        // Connected to the kernel (port 0), it takes no message from another process.
        connect(&fd, &SocketAddrNetlink::new(0, 0))?;
        sockopt::set_socket_timeout(&fd, Timeout::Recv, Some(ANSWER_TIMEOUT))?;
        // Answers without a copy of the request fit the receive buffer however long the request is (Linux
        // 4.3).
        set_int(&fd, libc::SOL_NETLINK, libc::NETLINK_CAP_ACK, 1)?;
        set_socket_send_buffer_size_force(&fd, SEND_BUFFER)
            .or_else(|_| set_socket_send_buffer_size(&fd, SEND_BUFFER))?;
        Ok(Self { fd, sequence: 0, buffer: vec![0; RECEIVE_BUFFER].into() })
    }

    /// The socket itself, for a protocol on which the kernel speaks unasked.
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// Takes `count` sequence numbers, which wrap around, and returns the first.
    pub(crate) fn take_sequence(&mut self, count: u32) -> u32 {
        let first = self.sequence;
        self.sequence = first.wrapping_add(count);
        first
    }

    /// Sends messages to the kernel, which acts on them before this returns.
    ///
    /// # Errors
    /// `EMSGSIZE` for more than 2 MiB, or twice `net.core.wmem_max` if that is less and this socket was
    /// opened without `CAP_NET_ADMIN`; and what else send(2) says.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.discard_leftovers();
        loop {
            match send(&self.fd, bytes, SendFlags::empty()) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Shows `judge` the messages that arrive until it has come to a result.
    ///
    /// # Errors
    /// `TimedOut` if the kernel does not answer for a second, `ENOBUFS` if its answer did not fit the receive
    /// buffer and the rest gave no result, `InvalidData` for a message that is too long to be an answer.
    pub(crate) fn receive_until<T>(
        &mut self,
        mut judge: impl FnMut(Message<'_>) -> Option<T>,
    ) -> io::Result<T> {
        let mut flags = RecvFlags::TRUNC;
        loop {
            match recv(&self.fd, &mut *self.buffer, flags) {
                Ok((len, whole)) if len < whole => {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "netlink answer too long"));
                }
                Ok((len, _)) => {
                    if let Some(result) = messages(&self.buffer[..len]).find_map(&mut judge) {
                        return Ok(result);
                    }
                }
                Err(Errno::INTR) => {}
                // Some answers are lost. Those before them are still there, and nothing comes after them.
                Err(Errno::NOBUFS) => flags |= RecvFlags::DONTWAIT,
                Err(Errno::AGAIN) if flags.contains(RecvFlags::DONTWAIT) => return Err(Errno::NOBUFS.into()),
                Err(Errno::AGAIN) => return Err(timed_out()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Asks for a list by the message that `request` writes with a sequence number, and collects its items by
    /// `each`.
    ///
    /// The kernel sends a long list in parts. If it changes between two of them, items may be missing or come
    /// twice; the kernel says so (`NLM_F_DUMP_INTR`), and the list is asked for anew.
    ///
    /// # Errors
    /// Those of [`send`](Self::send) and [`receive_until`](Self::receive_until), the kernel's, and
    /// `ResourceBusy` for a list that changes all the time.
    pub(crate) fn list<T: Default>(
        &mut self,
        request: impl Fn(u32) -> Writer,
        mut each: impl FnMut(&mut T, Message<'_>),
    ) -> io::Result<T> {
        for _ in 0..LISTINGS {
            let sequence = self.take_sequence(1);
            self.send(request(sequence).as_bytes())?;
            let mut listing = Listing::default();
            self.receive_until(|message| listing.take(message, sequence, &mut each))??;
            if !listing.interrupted {
                return Ok(listing.items);
            }
        }
        Err(io::Error::new(io::ErrorKind::ResourceBusy, "the kernel's list changes while it is read"))
    }

    /// Late answers to earlier requests would take the room of later ones.
    fn discard_leftovers(&mut self) {
        while matches!(
            recv(&self.fd, &mut *self.buffer, RecvFlags::DONTWAIT),
            Ok(_) | Err(Errno::INTR | Errno::NOBUFS)
        ) {}
    }
}

/// A list that is arriving.
#[derive(Debug, Default)]
struct Listing<T> {
    items: T,
    /// It has changed between its parts.
    interrupted: bool,
}

impl<T> Listing<T> {
    /// Takes a message of the answer to the request with this number. `Some` at its end.
    fn take(
        &mut self,
        message: Message<'_>,
        sequence: u32,
        each: &mut impl FnMut(&mut T, Message<'_>),
    ) -> Option<io::Result<()>> {
        if message.sequence != sequence {
            return None;
        }
        self.interrupted |= libc::c_int::from(message.flags) & libc::NLM_F_DUMP_INTR != 0;
        match message.error_number() {
            Some(0) => Some(Ok(())),
            Some(code) => Some(Err(io::Error::from_raw_os_error(code))),
            None if libc::c_int::from(message.kind) == libc::NLMSG_DONE => Some(Ok(())),
            None => {
                each(&mut self.items, message);
                None
            }
        }
    }
}

fn timed_out() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("the kernel has not answered for {ANSWER_TIMEOUT:?}"))
}

fn u32_at(header: &[u8; MESSAGE_HEADER], at: usize) -> u32 {
    u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A tree of attributes.
    #[derive(Debug, Clone, PartialEq)]
    enum Node {
        Leaf(u16, Vec<u8>),
        Nest(u16, Vec<Node>),
    }

    fn any_node() -> impl Strategy<Value = Node> {
        let kind = 0u16..0x3fff;
        let leaf =
            (kind.clone(), proptest::collection::vec(any::<u8>(), 0..40)).prop_map(|(k, p)| Node::Leaf(k, p));
        leaf.prop_recursive(3, 24, 6, move |inner| {
            (kind.clone(), proptest::collection::vec(inner, 0..6)).prop_map(|(k, n)| Node::Nest(k, n))
        })
    }

    fn write(writer: &mut Writer, node: &Node) {
        match node {
            Node::Leaf(kind, payload) => writer.attribute(*kind, payload),
            Node::Nest(kind, nodes) => writer.nested(*kind, |w| nodes.iter().for_each(|node| write(w, node))),
        }
    }

    /// Reads `bytes` back in the shape of `model`, and sees that nothing is left over.
    fn read(bytes: &[u8], model: &[Node]) -> Vec<Node> {
        let nodes: Vec<Node> = attributes(bytes)
            .zip(model)
            .map(|((kind, payload), model)| match model {
                Node::Leaf(..) => Node::Leaf(kind, payload.to_vec()),
                Node::Nest(_, inner) => Node::Nest(kind, read(payload, inner)),
            })
            .collect();
        assert_eq!(attributes(bytes).count(), model.len());
        nodes
    }

    proptest! {
        #[test]
        fn written_values_read_back(
            nodes in proptest::collection::vec(any_node(), 0..8), kind: u16, sequence: u32
        ) {
            let mut writer = Writer::default();
            for _ in 0..2 {
                writer.message(kind, libc::NLM_F_REQUEST, sequence, &[7; 4], |w| {
                    nodes.iter().for_each(|node| write(w, node));
                });
            }
            prop_assert_eq!(writer.as_bytes().len() % ALIGNMENT, 0);
            let read_back: Vec<_> = messages(writer.as_bytes()).collect();
            prop_assert_eq!(read_back.len(), 2);
            for message in read_back {
                let header = (message.kind, message.flags, message.sequence);
                prop_assert_eq!(header, (kind, libc::NLM_F_REQUEST as u16, sequence));
                prop_assert_eq!(&message.payload[..4], &[7; 4]);
                prop_assert_eq!(read(&message.payload[4..], &nodes), nodes.clone());
            }
        }

        #[test]
        fn reading_anything_ends(bytes in proptest::collection::vec(0u8..24, 0..200)) {
            for message in messages(&bytes) {
                message.error_number();
                attributes(message.payload).for_each(drop);
            }
        }
    }

    #[test]
    fn an_error_carries_a_negative_number_and_an_acknowledgement_zero() {
        let message = |code: i32| {
            let mut writer = Writer::default();
            writer.message(libc::NLMSG_ERROR as u16, 0, 1, &code.to_ne_bytes(), |_| {});
            messages(writer.as_bytes()).next().unwrap().error_number()
        };
        assert_eq!(message(-libc::ENOENT), Some(libc::ENOENT));
        assert_eq!(message(0), Some(0));
        assert_eq!(message(i32::MIN), Some(i32::MAX));
    }

    /// What a list of these messages, by kind and flags, comes to: its items' first bytes, and whether they
    /// are all; `None` if it does not end.
    fn listed(answers: &[(libc::c_int, libc::c_int)]) -> Option<(Vec<u8>, bool)> {
        let (mut writer, mut listing) = (Writer::default(), Listing::<Vec<u8>>::default());
        for (place, (kind, flags)) in answers.iter().enumerate() {
            writer.message(*kind as u16, *flags, 7, &[place as u8; 4], |_| {});
        }
        let mut each = |items: &mut Vec<u8>, message: Message<'_>| items.push(message.payload[0]);
        messages(writer.as_bytes()).find_map(|message| listing.take(message, 7, &mut each))?.ok()?;
        Some((listing.items, !listing.interrupted))
    }

    #[test]
    fn a_list_that_changed_between_its_parts_is_not_taken_for_whole() {
        const ITEM: libc::c_int = 40;
        let (done, changed) = (libc::NLMSG_DONE, libc::NLM_F_DUMP_INTR);
        assert_eq!(listed(&[(ITEM, 0), (ITEM, 0), (done, 0), (ITEM, 0)]), Some((vec![0, 1], true)));
        assert_eq!(listed(&[(ITEM, 0), (ITEM, changed), (done, 0)]), Some((vec![0, 1], false)));
        assert_eq!(listed(&[(ITEM, 0), (done, changed)]), Some((vec![0], false)), "at the end");
        assert_eq!(listed(&[(ITEM, 0), (ITEM, 0)]), None);
    }

    #[test]
    fn a_kernel_that_says_nothing_is_not_waited_for_without_end() {
        let mut socket = Socket::open(None).unwrap();
        sockopt::set_socket_timeout(&socket.fd, Timeout::Recv, Some(Duration::from_millis(10))).unwrap();
        let error = socket.receive_until(|_| None::<()>).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn remains_of_an_earlier_request_are_gone_before_the_next() {
        let mut socket = Socket::open(None).unwrap();
        let mut noop = Writer::default();
        noop.message(libc::NLMSG_NOOP as u16, libc::NLM_F_REQUEST | libc::NLM_F_ACK, 1, &[], |_| {});
        socket.send(noop.as_bytes()).unwrap();
        let mut noop = Writer::default();
        noop.message(libc::NLMSG_NOOP as u16, libc::NLM_F_REQUEST | libc::NLM_F_ACK, 2, &[], |_| {});
        socket.send(noop.as_bytes()).unwrap();
        assert_eq!(socket.receive_until(|message| Some(message.sequence)).unwrap(), 2);
    }
}
