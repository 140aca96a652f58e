//! TCP Fast Open towards a server (RFC 7413): our SYN carries the client's first data and saves a round trip.
//!
//! A SYN can only carry data that the client has already sent, and in some protocols the server speaks first
//! (SMTP, SSH). So a connection towards a leg with `fast_open` waits for its client's first data, but never
//! longer than [`PATIENCE`]; then it connects as any other does. `TCP_FASTOPEN_CONNECT`, which holds the SYN
//! back until something is written, would wait for ever: both ends of an SMTP connection would.
//!
//! The first data are peeked at, sent, and only then read from the client, as many bytes as the kernel has
//! taken for the SYN. So all others are still where the relay finds them, and the stream keeps its order. The
//! kernel repeats what a server does not take from the SYN, and connects in the usual way where it has no
//! cookie of the server's yet.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bentpipe_legs::Legs;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, sendto};

use crate::admission::Permit;
use crate::connect::upstream::{Endpoints, connect};
use crate::types::leg_pair::LegPair;
use crate::types::slab::{Key, Slab, Token};

/// How long to wait for the first data of a client.
///
/// A client answers our SYN-ACK after one round trip of its own leg, and a network at a gateway's feet has
/// one of a few milliseconds. A protocol whose server speaks first pays this once for each connection: a
/// thirtieth of the round trip to a geostationary satellite, which the others save.
pub(crate) const PATIENCE: Duration = Duration::from_millis(20);

/// The most that is offered to a SYN: what an Ethernet frame holds. The kernel takes what fits the path.
const SYN_DATA: usize = 1460;

/// `MSG_FASTOPEN` of linux/socket.h: connect, and let the SYN take data (tcp(7)).
const MSG_FASTOPEN: SendFlags = SendFlags::from_bits_retain(0x2000_0000);

/// The data that a client has sent so far; a SYN may carry a part of it.
#[derive(Debug)]
pub(crate) struct EarlyData {
    bytes: [u8; SYN_DATA],
    length: usize,
}

impl EarlyData {
    /// Peeks at the data that the client has sent. A client that has closed its side in order has sent
    /// nothing.
    ///
    /// An error is that of the client's connection, and is gone from it: the connection must be reset.
    pub(crate) fn peek(client: impl AsFd) -> io::Result<Self> {
        let mut bytes = [0; SYN_DATA];
        match recv(client, &mut bytes, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((_, length)) => Ok(Self { bytes, length }),
            Err(Errno::AGAIN) => Ok(Self { bytes, length: 0 }),
            Err(error) => Err(error.into()),
        }
    }

    /// Begins to connect a non-blocking socket, with the early data in the SYN if there are any. Returns how
    /// many bytes of them the kernel has taken: none where it has no cookie of the server's yet, or where
    /// Fast Open is switched off.
    pub(crate) fn connect(&self, socket: impl AsFd, server: &SocketAddr) -> io::Result<usize> {
        if self.length == 0 {
            return connect(socket, server).map(|()| 0);
        }
        let flags = MSG_FASTOPEN | SendFlags::NOSIGNAL;
        match sendto(&socket, &self.bytes[..self.length], flags, server) {
            Ok(taken) => Ok(taken),
            // The SYN has left without data, and asks for a cookie.
            Err(Errno::INPROGRESS) => Ok(0),
            Err(Errno::OPNOTSUPP) => connect(socket, server).map(|()| 0),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the first `count` bytes, which a SYN has carried, from the client's socket.
    pub(crate) fn consume(mut self, client: impl AsFd, count: usize) -> io::Result<()> {
        let mut left = &mut self.bytes[..count.min(self.length)];
        while !left.is_empty() {
            match recv(&client, &mut *left, RecvFlags::DONTWAIT)? {
                (_, 0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                (_, taken) => left = &mut left[taken..],
            }
        }
        Ok(())
    }
}

/// An accepted connection whose upstream connection has not been started.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) client: OwnedFd,
    pub(crate) ends: Endpoints,
    pub(crate) pair: LegPair,
    pub(crate) legs: Arc<Legs>,
    pub(crate) permit: Permit,
}

/// The connections whose clients have not sent anything yet.
#[derive(Debug)]
pub(crate) struct AwaitingData {
    accepted: Slab<Accepted>,
    /// By deadline. Connections that have received data since are still listed.
    deadlines: VecDeque<(Instant, Key)>,
}

impl AwaitingData {
    pub(crate) fn new() -> Self {
        Self { accepted: Slab::new(), deadlines: VecDeque::new() }
    }

    /// Keeps a connection until its client has sent data, closed or been reset, which `epoll` then reports as
    /// [`Token::Pending`], or until its deadline. Returns it at once if it cannot be registered.
    pub(crate) fn keep(&mut self, epoll: &OwnedFd, accepted: Accepted, now: Instant) -> Option<Accepted> {
        let key = self.accepted.insert(accepted);
        let client = &self.accepted.get_mut(key)?.client;
        let data = EventData::new_u64(Token::Pending(key).encode());
        if let Err(error) = epoll::add(epoll, client, data, EventFlags::IN | EventFlags::RDHUP) {
            tracing::debug!(%error, "cannot wait for a client's first data");
            return self.accepted.remove(key);
        }
        self.deadlines.push_back((now + PATIENCE, key));
        None
    }

    /// Removes a connection, also from `epoll`.
    pub(crate) fn take(&mut self, epoll: &OwnedFd, key: Key) -> Option<Accepted> {
        let accepted = self.accepted.remove(key)?;
        if let Err(error) = epoll::delete(epoll, &accepted.client) {
            tracing::error!(%error, "cannot stop waiting for a client's first data");
        }
        Some(accepted)
    }

    /// Removes a connection whose deadline has passed, if there is one.
    pub(crate) fn take_overdue(&mut self, epoll: &OwnedFd, now: Instant) -> Option<Accepted> {
        while let Some(&(deadline, key)) = self.deadlines.front() {
            if self.accepted.get_mut(key).is_some() && deadline > now {
                return None;
            }
            self.deadlines.pop_front();
            if let Some(accepted) = self.take(epoll, key) {
                return Some(accepted);
            }
        }
        None
    }

    /// The next deadline.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.deadlines.front().map(|&(deadline, _)| deadline)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use bentpipe_kernel::Weight;

    use super::*;
    use crate::admission::tests::permit;
    use crate::config::Config;
    use crate::types::leg_pair::LegId;

    /// The client's end, and ours.
    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    fn accepted(ours: TcpStream) -> Accepted {
        let address = ours.local_addr().unwrap();
        let (client, server) = (LegId::Terrestrial, LegId::Satellite(0));
        let pair = LegPair { client, server, weight: Weight::default(), port: 1 };
        let config = Config::parse("x", "[legs.a]\ninterface = \"sat0\"\ncongestion = \"reno\"").unwrap();
        let ends = Endpoints { client: address, server: address, dscp: 0 };
        Accepted { client: ours.into(), ends, pair, legs: Arc::new(config.prepare_legs()), permit: permit() }
    }

    #[test]
    fn data_that_the_syn_does_not_carry_stay_queued() {
        let (mut client, mut ours) = connection();
        client.write_all(b"first and second").unwrap();
        drop(client);
        ours.peek(&mut [0]).unwrap();
        let word = EarlyData::peek(&ours).unwrap();
        assert_eq!(&word.bytes[..word.length], b"first and second");
        word.consume(&ours, 5).unwrap();
        let mut rest = String::new();
        ours.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, " and second");
    }

    #[test]
    fn a_silent_client_has_said_nothing_and_a_reset_one_is_an_error() {
        let (client, ours) = connection();
        assert_eq!(EarlyData::peek(&ours).unwrap().length, 0);
        bentpipe_kernel::sockopt::set_linger_reset(&client).unwrap();
        drop(client);
        while EarlyData::peek(&ours).is_ok() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn each_is_given_back_once_when_it_is_overdue_and_not_before() {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let (mut listening, now) = (AwaitingData::new(), Instant::now());
        let clients: Vec<_> = (0..3)
            .map(|_| {
                let (client, ours) = connection();
                assert!(listening.keep(&epoll, accepted(ours), now).is_none());
                client
            })
            .collect();
        let (_, spoken) = listening.deadlines[1];
        assert!(listening.take(&epoll, spoken).is_some());
        assert!(listening.take(&epoll, spoken).is_none(), "an event that was already on its way");
        let almost = now + PATIENCE - Duration::from_millis(1);
        assert!(listening.take_overdue(&epoll, almost).is_none());
        assert_eq!(listening.due(), Some(now + PATIENCE));
        assert!(listening.take_overdue(&epoll, now + PATIENCE).is_some());
        assert!(listening.take_overdue(&epoll, now + PATIENCE).is_some());
        assert!(listening.take_overdue(&epoll, now + PATIENCE).is_none());
        assert_eq!((listening.due(), clients.len()), (None, 3));
    }
}
