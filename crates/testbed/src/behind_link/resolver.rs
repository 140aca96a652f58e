//! Names behind the link, where the caller's name server is one that only the caller reaches: on 127.0.0.53,
//! or by IPv6. The far end then forwards queries to it, and the command's `/etc/resolv.conf` names the far
//! end.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use crate::waker::Stop;
use crate::{Error, Namespace, Result, signals, with_file};

const RESOLV_CONF: &str = "/etc/resolv.conf";
const PORT: u16 = 53;
/// As long as resolvers wait for an answer (resolv.conf(5), timeout).
const TIMEOUT: Duration = Duration::from_secs(5);
/// Queries at a time; further ones are dropped, and their senders repeat them.
const QUERIES: usize = 64;

/// A forwarder of queries at the far end; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Resolver {
    resolv_conf: String,
    stop: Arc<Stop>,
}

struct Forwarder {
    udp: Arc<UdpSocket>,
    tcp: TcpListener,
    upstream: SocketAddr,
    stop: Arc<Stop>,
    /// Each query that is being forwarded has a clone.
    queries: Arc<()>,
}

impl Resolver {
    /// Nothing where the caller's name server can be reached through the link.
    pub(super) fn start(far: &Namespace, address: Ipv4Addr) -> Result<Option<Self>> {
        // Without the file the name server is the host itself (resolv.conf(5)).
        let text = std::fs::read_to_string(RESOLV_CONF);
        let Some((upstream, resolv_conf)) = through(text.as_deref().unwrap_or_default(), address) else {
            return Ok(None);
        };
        if text.is_err() {
            // There is no file whose place another one could take; names are not resolved outside either.
            return Ok(None);
        }
        let failed = |source| Error::Outside { step: "forward queries for names", source };
        // The far end has the address only when the link is up.
        far.sysctl("net.ipv4.ip_nonlocal_bind", "1")?;
        let bind = || Ok((UdpSocket::bind((address, PORT))?, TcpListener::bind((address, PORT))?));
        let (udp, tcp) = far.run(bind)?.map_err(failed)?;
        let stop = Arc::new(Stop::new().map_err(failed)?);
        let queries = Arc::new(());
        let forwarder = Forwarder { udp: Arc::new(udp), tcp, upstream, stop: Arc::clone(&stop), queries };
        thread::spawn(move || {
            signals::block_all();
            forwarder.run();
        });
        Ok(Some(Self { resolv_conf, stop }))
    }

    /// Lets the command, when it starts, find the far end as its name server.
    pub(super) fn configure(&self, command: &mut Command) {
        with_file(command, c"/etc/resolv.conf", self.resolv_conf.clone());
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        self.stop.ask();
    }
}

impl Forwarder {
    fn run(&self) {
        while !self.stop.is_asked() {
            let mut events = [
                PollFd::new(&*self.stop, PollFlags::IN),
                PollFd::new(&*self.udp, PollFlags::IN),
                PollFd::new(&self.tcp, PollFlags::IN),
            ];
            if poll(&mut events, None).is_err() {
                continue;
            }
            let [_, udp, tcp] = events.map(|event| event.revents().contains(PollFlags::IN));
            // A query that fails is one without an answer, which its sender repeats.
            if udp {
                let _ = self.take_query();
            }
            if tcp {
                let _ = self.take_connection();
            }
        }
    }

    fn take_query(&self) -> io::Result<()> {
        let mut query = vec![0; 65_535];
        let (length, client) = self.udp.recv_from(&mut query)?;
        query.truncate(length);
        let (listener, upstream) = (Arc::clone(&self.udp), self.upstream);
        self.forward(move || {
            let mut answer = query;
            let socket = UdpSocket::bind((unspecified(upstream), 0))?;
            socket.set_read_timeout(Some(TIMEOUT))?;
            socket.connect(upstream)?;
            socket.send(&answer)?;
            answer.resize(65_535, 0);
            let length = socket.recv(&mut answer)?;
            listener.send_to(&answer[..length], client).map(drop)
        });
        Ok(())
    }

    fn take_connection(&self) -> io::Result<()> {
        let (client, _) = self.tcp.accept()?;
        let upstream = self.upstream;
        self.forward(move || {
            let server = TcpStream::connect_timeout(&upstream, TIMEOUT)?;
            for socket in [&client, &server] {
                socket.set_read_timeout(Some(TIMEOUT))?;
                socket.set_write_timeout(Some(TIMEOUT))?;
            }
            let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
            let queries = thread::spawn(move || {
                signals::block_all();
                let _ = io::copy(&mut from_client, &mut to_server);
                let _ = to_server.shutdown(std::net::Shutdown::Write);
            });
            let (mut from_server, mut to_client) = (server, client);
            let _ = io::copy(&mut from_server, &mut to_client);
            let _ = to_client.shutdown(std::net::Shutdown::Both);
            let _ = queries.join();
            Ok(())
        });
        Ok(())
    }

    fn forward(&self, work: impl FnOnce() -> io::Result<()> + Send + 'static) {
        if Arc::strong_count(&self.queries) > QUERIES {
            return;
        }
        let query = Arc::clone(&self.queries);
        thread::spawn(move || {
            signals::block_all();
            let _ = work();
            drop(query);
        });
    }
}

fn unspecified(of: SocketAddr) -> IpAddr {
    if of.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

/// The first name server of a `resolv.conf` and the text with `far` in its place, if that server is not one
/// that everybody reaches by IPv4.
fn through(text: &str, far: Ipv4Addr) -> Option<(SocketAddr, String)> {
    let server = |line: &str| Some(line.strip_prefix("nameserver")?.trim().to_owned());
    let first = text.lines().find_map(|line| server(line)?.parse().ok());
    let upstream = first.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    if matches!(upstream, IpAddr::V4(address) if !address.is_loopback()) {
        return None;
    }
    let others = text.lines().filter(|line| server(line).is_none());
    let inside = std::iter::once(format!("nameserver {far}")).chain(others.map(str::to_owned));
    Some(((upstream, PORT).into(), inside.map(|line| line + "\n").collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAR: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 1);

    #[test]
    fn a_name_server_of_the_network_is_asked_as_it_is() {
        assert_eq!(through("search example.org\nnameserver 192.0.2.53\nnameserver 127.0.0.1\n", FAR), None);
    }

    #[test]
    fn a_name_server_of_the_host_itself_is_reached_by_the_far_end() {
        let (upstream, inside) =
            through("nameserver 127.0.0.53\noptions edns0\nsearch a.org\n", FAR).unwrap();
        assert_eq!(upstream.to_string(), "127.0.0.53:53");
        assert_eq!(inside, "nameserver 10.98.0.1\noptions edns0\nsearch a.org\n");
        assert_eq!(through("nameserver 2001:db8::1", FAR).unwrap().0.to_string(), "[2001:db8::1]:53");
        assert_eq!(through("", FAR).unwrap().0.to_string(), "127.0.0.1:53");
    }
}
