//! Connections and datagrams that find out what a rule does with them.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use bentpipe_kernel::sockopt;
use socket2::{Domain, Socket, Type};

use super::{Host, PATIENCE};

/// A server at one port of all of a host's addresses, for TCP and for UDP.
pub struct Server {
    tcp: TcpListener,
    udp: UdpSocket,
    port: u16,
}

/// What a client sends, and to which address.
#[derive(Debug, Clone, Copy)]
pub struct Probe {
    pub from: IpAddr,
    pub to: IpAddr,
    pub dscp: u8,
}

impl Server {
    pub fn open(host: &Host, port: u16) -> Self {
        let server = host.enter(|| Self {
            tcp: TcpListener::bind(("::", port)).unwrap(),
            udp: UdpSocket::bind(("::", port)).unwrap(),
            port,
        });
        server.tcp.set_nonblocking(true).unwrap();
        server.udp.set_nonblocking(true).unwrap();
        server
    }

    /// Makes a connection and carries a byte over it each way, so that whoever relays it has counted it.
    pub fn connect(&self, client: &Host, probe: Probe) {
        let to = SocketAddr::new(probe.to, self.port);
        let mut ours = client.enter(|| {
            let socket = probe.socket(Type::STREAM);
            socket
                .connect(&to.into())
                .unwrap_or_else(|error| panic!("{probe:?} to port {}: {error}", self.port));
            TcpStream::from(socket)
        });
        let (mut theirs, seen) = wait_for(|| self.tcp.accept());
        assert_eq!(seen.ip().to_canonical(), probe.from);
        theirs.set_nonblocking(false).unwrap();
        for stream in [&ours, &theirs] {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        ours.write_all(b"a").unwrap();
        theirs.read_exact(&mut [0]).unwrap();
        theirs.write_all(b"b").unwrap();
        ours.read_exact(&mut [0]).unwrap();
    }

    /// Sends a datagram again and again, until it has arrived (true) or the client has been told that nobody
    /// listens (false).
    pub fn reach(&self, client: &Host, probe: Probe) -> bool {
        let sender = client.enter(|| UdpSocket::from(probe.socket(Type::DGRAM)));
        sender.set_nonblocking(true).unwrap();
        sender.connect((probe.to, self.port)).unwrap();
        let ours = sender.local_addr().unwrap();
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let outcome = sender.send(b"datagram").and_then(|_| {
                std::thread::sleep(Duration::from_millis(2));
                sender.recv(&mut [0; 16])
            });
            if outcome.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
                return false;
            }
            while let Ok((_, seen)) = self.udp.recv_from(&mut [0; 16]) {
                if (seen.ip().to_canonical(), seen.port()) == (ours.ip(), ours.port()) {
                    return true;
                }
            }
        }
        panic!("{probe:?}: neither did it arrive nor was it refused");
    }
}

impl Probe {
    fn socket(&self, kind: Type) -> Socket {
        let source = SocketAddr::new(self.from, 0);
        let socket = Socket::new(Domain::for_address(source), kind, None).unwrap();
        sockopt::set_dscp(&socket, &source, self.dscp).unwrap();
        socket.bind(&source.into()).unwrap();
        socket
    }
}

fn wait_for<T>(mut attempt: impl FnMut() -> std::io::Result<T>) -> T {
    let start = Instant::now();
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(error) if error.kind() == ErrorKind::WouldBlock && start.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("{error}"),
        }
    }
}
