//! The TCP sockets of this host: those whose handshakes are not complete, those that listen, those that are
//! connected, and those of connections that have ended (sock_diag(7)).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;

use rustix::net::netlink;

use crate::netlink::{Message, Socket, Writer, attributes};
use crate::tcp_info::{self, TcpInfo};

/// `SOCK_DIAG_BY_FAMILY` of linux/sock_diag.h.
const BY_FAMILY: u16 = 20;
/// `SOCK_DESTROY` of linux/sock_diag.h, Linux 4.5.
const DESTROY: u16 = 21;
/// Sizes of `struct inet_diag_req_v2` and of `struct inet_diag_msg` of linux/inet_diag.h.
const REQUEST: usize = 56;
const ANSWER: usize = 72;
/// Offsets in the request.
const PROTOCOL: usize = 1;
const STATES: usize = 4;
/// Where a `struct inet_diag_sockid`, which ends with the socket's cookie, stands in the request and in the
/// answer.
const ID_ASKED: Range<usize> = 8..56;
const ID_ANSWERED: Range<usize> = 4..52;
/// Offsets in the answer.
const STATE: usize = 1;
const LOCAL_PORT: usize = 4;
const REMOTE_PORT: usize = 6;
const LOCAL_ADDRESS: usize = 8;
const REMOTE_ADDRESS: usize = 24;
const RECEIVE_QUEUE: usize = 56;
const SEND_QUEUE: usize = 60;
/// In the request, a bit for each attribute that is asked for; `TCP_INFO` is one (linux/inet_diag.h).
const EXTENSIONS: usize = 2;
const INFO: u16 = 2;
/// States of net/tcp_states.h. Asked for the first, the kernel shows request sockets, too.
const SYN_RECEIVED: u8 = 3;
const TIME_WAIT: u8 = 6;
const LISTEN: u8 = 10;
/// `ESTABLISHED`, `FIN_WAIT1`, `FIN_WAIT2`, `CLOSE_WAIT`, `LAST_ACK`, `CLOSING`.
const CONNECTED: [u8; 6] = [1, 4, 5, 8, 9, 11];

/// A TCP socket of the network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TcpSocket {
    /// A SYN has been answered, and the client's acknowledgement has not come.
    SynReceived {
        /// The address that the client connects to.
        local: SocketAddr,
    },
    /// It takes connections.
    Listening {
        /// Where it listens.
        local: SocketAddr,
        /// Connections that are complete and have not been accepted.
        accept_queue: u32,
    },
}

/// A connection of this host, as its socket sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// Its own end.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// Bytes that have arrived in order and that the application has not read.
    pub unread: u32,
    /// Bytes that the application has written and that are not acknowledged.
    pub unacknowledged: u32,
    /// The inner variables.
    pub info: TcpInfo,
    /// By which it is found again.
    pub id: SocketId,
}

/// What identifies a socket of its network namespace: no other one has it, not even with the same ends later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SocketId {
    family: u8,
    id: [u8; ID_ASKED.end - ID_ASKED.start],
}

/// A connection to the kernel's list of sockets, in the network namespace of the thread that opened it. It
/// needs no privileges.
#[derive(Debug)]
pub struct SockDiag {
    socket: Socket,
}

impl SockDiag {
    /// Opens the connection, which survives a later change of the thread's namespace.
    ///
    /// # Errors
    /// Those of socket(2): `EPROTONOSUPPORT` where this kernel lacks the protocol, `EMFILE` without a
    /// descriptor left.
    pub fn open() -> io::Result<Self> {
        Ok(Self { socket: Socket::open(Some(netlink::SOCK_DIAG))? })
    }

    /// The sockets, of both families, that listen or whose handshake is not complete. The kernel looks at
    /// every socket of the namespace for it: some milliseconds.
    ///
    /// # Errors
    /// `NotFound` where the kernel has no module `tcp_diag`, `TimedOut` if it does not answer for a second,
    /// and its other errors.
    pub fn handshakes(&mut self) -> io::Result<Vec<TcpSocket>> {
        let mut found = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            self.list(family, &[SYN_RECEIVED, LISTEN], |message| found.extend(socket(message)))?;
        }
        Ok(found)
    }

    /// The local and the remote end of every connection of this host, of both families. The kernel looks at
    /// every socket of the namespace for it.
    ///
    /// # Errors
    /// Those of [`handshakes`](Self::handshakes).
    pub fn connections(&mut self) -> io::Result<Vec<(SocketAddr, SocketAddr)>> {
        let mut found = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            self.list(family, &CONNECTED, |message| found.extend(ends(message)))?;
        }
        Ok(found)
    }

    /// The connections of this host, of both families, with their inner variables. The kernel looks at every
    /// socket of the namespace for it.
    ///
    /// # Errors
    /// Those of [`handshakes`](Self::handshakes).
    pub fn connection_infos(&mut self) -> io::Result<Vec<ConnectionInfo>> {
        let mut found = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            let sequence = self.socket.take_sequence(1);
            let flags = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
            let request = request_with(sequence, BY_FAMILY, flags, family, &CONNECTED, &[], 1 << (INFO - 1));
            self.ask(request, sequence, |message| found.extend(connection_info(&message)))?;
        }
        Ok(found)
    }

    /// One of them again, which the kernel finds at once; `None` if it is no more.
    ///
    /// # Errors
    /// Those of [`handshakes`](Self::handshakes) but `NotFound`.
    pub fn connection_info(&mut self, id: &SocketId) -> io::Result<Option<ConnectionInfo>> {
        let (mut found, sequence) = (None, self.socket.take_sequence(1));
        let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK;
        let family = libc::c_int::from(id.family);
        let request = request_with(sequence, BY_FAMILY, flags, family, &CONNECTED, &id.id, 1 << (INFO - 1));
        match self.ask(request, sequence, |message| found = connection_info(&message)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            outcome => outcome.map(|()| found),
        }
    }

    /// Makes a listener forget a handshake: it repeats its answer no more, and its client's packets do not
    /// meet it. False if there is none between these ends. Needs `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// Those of [`handshakes`](Self::handshakes); `EOPNOTSUPP` where the kernel is built without
    /// `CONFIG_INET_DIAG_DESTROY`.
    pub fn forget_handshake(&mut self, local: SocketAddr, remote: SocketAddr) -> io::Result<bool> {
        let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let found = self.identities(family, SYN_RECEIVED, |ends| ends == (local, remote))?;
        let Some(id) = found.first() else { return Ok(false) };
        self.destroy(family, SYN_RECEIVED, id)?;
        Ok(true)
    }

    /// Forgets connections that have ended (TIME-WAIT), of both families, whose local end is `unwanted`; how
    /// many there were. While this host remembers one, it forwards no packet between the same ends. Needs
    /// `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// Those of [`forget_handshake`](Self::forget_handshake).
    pub fn forget_ended(&mut self, mut unwanted: impl FnMut(SocketAddr) -> bool) -> io::Result<usize> {
        let mut count = 0;
        for family in [libc::AF_INET, libc::AF_INET6] {
            for id in self.identities(family, TIME_WAIT, |(local, _)| unwanted(local))? {
                match self.destroy(family, TIME_WAIT, &id) {
                    Ok(()) => count += 1,
                    // Its time is over.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(count)
    }

    /// What identifies the sockets in a state that are `wanted` by their ends, the local one first.
    fn identities(
        &mut self,
        family: libc::c_int,
        state: u8,
        mut wanted: impl FnMut((SocketAddr, SocketAddr)) -> bool,
    ) -> io::Result<Vec<Vec<u8>>> {
        let mut found = Vec::new();
        self.list(family, &[state], |message| {
            if ends(message).is_some_and(&mut wanted) {
                found.extend(message.payload.get(ID_ANSWERED).map(<[u8]>::to_vec));
            }
        })?;
        Ok(found)
    }

    /// With its cookie in the identity, so that nothing is meant but this socket: the kernel looks for a
    /// listener, too.
    fn destroy(&mut self, family: libc::c_int, state: u8, id: &[u8]) -> io::Result<()> {
        let sequence = self.socket.take_sequence(1);
        let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK;
        self.ask(request(sequence, DESTROY, flags, family, &[state], id), sequence, |_| {})
    }

    fn list(&mut self, family: libc::c_int, states: &[u8], each: impl FnMut(Message<'_>)) -> io::Result<()> {
        let sequence = self.socket.take_sequence(1);
        let flags = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
        self.ask(request(sequence, BY_FAMILY, flags, family, states, &[]), sequence, each)
    }

    /// Sends a request, and waits for the end of its answer.
    fn ask(&mut self, request: Writer, sequence: u32, mut each: impl FnMut(Message<'_>)) -> io::Result<()> {
        self.socket.send(request.as_bytes())?;
        self.socket.receive_until(|message| {
            if message.sequence != sequence {
                return None;
            }
            match (libc::c_int::from(message.kind), message.error_number()) {
                (libc::NLMSG_DONE, _) | (_, Some(0)) => Some(Ok(())),
                (_, Some(code)) => Some(Err(io::Error::from_raw_os_error(code))),
                _ => {
                    each(message);
                    None
                }
            }
        })?
    }
}

/// About the sockets of a family in these states; about one of them if there is an `id`.
fn request(
    sequence: u32,
    kind: u16,
    flags: libc::c_int,
    family: libc::c_int,
    states: &[u8],
    id: &[u8],
) -> Writer {
    request_with(sequence, kind, flags, family, states, id, 0)
}

/// The same, with these attributes in each answer.
fn request_with(
    sequence: u32,
    kind: u16,
    flags: libc::c_int,
    family: libc::c_int,
    states: &[u8],
    id: &[u8],
    extensions: u8,
) -> Writer {
    let mut fixed = [0; REQUEST];
    fixed[0] = family as u8;
    fixed[EXTENSIONS] = extensions;
    fixed[PROTOCOL] = libc::IPPROTO_TCP as u8;
    let states = states.iter().fold(0u32, |mask, state| mask | 1 << state);
    fixed[STATES..STATES + 4].copy_from_slice(&states.to_ne_bytes());
    fixed[ID_ASKED][..id.len()].copy_from_slice(id);
    let mut writer = Writer::default();
    writer.message(kind, flags, sequence, &fixed, |_| {});
    writer
}

/// The socket in an answer; `None` for what is no answer, or of another state.
fn socket(message: Message<'_>) -> Option<TcpSocket> {
    let answer: &[u8; ANSWER] = message.payload.first_chunk()?;
    let local = end(answer, LOCAL_PORT, LOCAL_ADDRESS)?;
    match answer[STATE] {
        SYN_RECEIVED => Some(TcpSocket::SynReceived { local }),
        LISTEN => {
            let accept_queue = u32::from_ne_bytes(*answer[RECEIVE_QUEUE..].first_chunk()?);
            Some(TcpSocket::Listening { local, accept_queue })
        }
        _ => None,
    }
}

/// A connection with its inner variables.
fn connection_info(message: &Message<'_>) -> Option<ConnectionInfo> {
    let (answer, rest): (&[u8; ANSWER], _) = message.payload.split_first_chunk()?;
    let [local, remote] = [(LOCAL_PORT, LOCAL_ADDRESS), (REMOTE_PORT, REMOTE_ADDRESS)]
        .map(|(port, address)| end(answer, port, address));
    let word = |at: usize| Some(u32::from_ne_bytes(*answer[at..].first_chunk()?));
    let info = attributes(rest).find(|(kind, _)| *kind == INFO)?.1;
    Some(ConnectionInfo {
        local: local?,
        remote: remote?,
        unread: word(RECEIVE_QUEUE)?,
        unacknowledged: word(SEND_QUEUE)?,
        info: tcp_info::parse(info),
        id: SocketId { family: answer[0], id: answer[ID_ANSWERED].try_into().ok()? },
    })
}

/// Both ends of a connection.
fn ends(message: Message<'_>) -> Option<(SocketAddr, SocketAddr)> {
    let answer: &[u8; ANSWER] = message.payload.first_chunk()?;
    let [local, remote] = [(LOCAL_PORT, LOCAL_ADDRESS), (REMOTE_PORT, REMOTE_ADDRESS)]
        .map(|(port, address)| end(answer, port, address));
    Some((local?, remote?))
}

/// The address and the port at these offsets; that of IPv4 in a socket of IPv6 is one of IPv4.
fn end(answer: &[u8; ANSWER], port: usize, address: usize) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(*answer[port..].first_chunk()?);
    let address: [u8; 16] = *answer[address..].first_chunk()?;
    let address = match libc::c_int::from(answer[0]) {
        libc::AF_INET => IpAddr::from(Ipv4Addr::new(address[0], address[1], address[2], address[3])),
        _ => IpAddr::from(Ipv6Addr::from(address)).to_canonical(),
    };
    Some(SocketAddr::new(address, port))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;
    use crate::netlink::messages;
    use crate::sockopt;

    /// The answer of a socket of this state at 192.0.2.1:80, with one connection in its queue.
    fn answer(state: u8) -> Option<TcpSocket> {
        let mut fixed = [0; ANSWER];
        (fixed[0], fixed[STATE]) = (libc::AF_INET as u8, state);
        fixed[LOCAL_PORT + 1] = 80;
        fixed[LOCAL_ADDRESS..LOCAL_ADDRESS + 4].copy_from_slice(&[192, 0, 2, 1]);
        fixed[RECEIVE_QUEUE..RECEIVE_QUEUE + 4].copy_from_slice(&1u32.to_ne_bytes());
        let mut writer = Writer::default();
        writer.message(BY_FAMILY, 0, 1, &fixed, |_| {});
        socket(messages(writer.as_bytes()).next().unwrap())
    }

    #[test]
    fn an_answer_is_a_handshake_or_a_listener_or_of_no_interest() {
        let local = "192.0.2.1:80".parse().unwrap();
        assert_eq!(answer(SYN_RECEIVED), Some(TcpSocket::SynReceived { local }));
        assert_eq!(answer(LISTEN), Some(TcpSocket::Listening { local, accept_queue: 1 }));
        assert_eq!(answer(1), None);
    }

    #[test]
    fn a_connection_shows_its_ends_its_queues_and_its_variables() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, _) = listener.accept().unwrap();
            std::io::Write::write_all(&mut client, &[7; 1000]).unwrap();
            while sockopt::unacknowledged(&client).unwrap() > 0 {
                std::thread::yield_now();
            }
            let mut diag = SockDiag::open().unwrap();
            let infos = diag.connection_infos().unwrap();
            let of = |socket: &TcpStream| {
                let ends = (socket.local_addr().unwrap(), socket.peer_addr().unwrap());
                *infos.iter().find(|found| (found.local, found.remote) == ends).expect("it is listed")
            };
            let found = (of(&client), of(&server));
            assert_eq!((found.1.unread, found.0.unacknowledged), (1000, 0));
            assert_eq!((found.0.info.bytes_sent, found.1.info.bytes_received), (1000, 1000));

            let again = diag.connection_info(&found.1.id).unwrap().expect("it is there");
            assert_eq!((again.local, again.remote, again.id), (found.1.local, found.1.remote, found.1.id));
            assert_eq!((again.unread, again.info.bytes_received), (1000, 1000));
            let mut other = found.1.id;
            other.id[ID_ASKED.end - ID_ASKED.start - 1] ^= 1;
            assert_eq!(diag.connection_info(&other).unwrap(), None, "another cookie, the same ends");
            // A reset, which leaves no TIME-WAIT: there is something unread.
            drop(server);
            while diag.connection_info(&found.0.id).unwrap().is_some() {
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn connections_that_nobody_has_accepted_are_counted() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let local = listener.local_addr().unwrap();
            let mut diag = SockDiag::open().unwrap();
            let mut queue = || {
                diag.handshakes().unwrap().into_iter().find_map(|socket| match socket {
                    TcpSocket::Listening { local: at, accept_queue } if at == local => Some(accept_queue),
                    _ => None,
                })
            };
            assert_eq!(queue(), Some(0));
            let clients = [(); 2].map(|()| TcpStream::connect(local).unwrap());
            assert_eq!(queue(), Some(2));
            listener.accept().unwrap();
            assert_eq!(queue(), Some(1));
            drop((listener, clients));
            // A child that another test has just forked holds the listener open until it calls exec.
            let gone = (0..10_000).any(|_| {
                std::thread::sleep(Duration::from_millis(1));
                queue().is_none()
            });
            assert!(gone, "{local} still listens");
        }
    }
}
