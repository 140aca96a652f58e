//! UDP streams, on real sockets: one that sends at the stream's times, and one for each receiver.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use bentpipe_kernel::sockopt;
use bentpipe_sim::scenario::UdpSpec;
use bentpipe_sim::{Scenario, UdpArrivals, UdpResult};
use bentpipe_testbed::Namespace;
use bentpipe_units::{ByteCount, Time};
use rustix::net::sockopt::{set_ip_multicast_if, set_ip_multicast_loop, set_ip_multicast_ttl};

use super::plan::UdpPlan;

/// The headers of IPv4 and UDP.
const HEADERS: usize = 28;
/// A datagram begins with its number.
const NUMBER: usize = size_of::<u32>();
/// How long a socket waits before its thread looks whether the run is over.
const PATIENCE: Duration = Duration::from_millis(50);
/// A receiver's thread may be late by that much at 100 Mbit/s and a third of a second.
const RECEIVE_BUFFER: ByteCount = ByteCount::new(8_000_000);
/// Links enough for every path; the kernel's own for multicast is 1.
const TIME_TO_LIVE: u32 = 255;

/// A stream that is to run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stream<'a> {
    pub spec: &'a UdpSpec,
    pub plan: &'a UdpPlan,
    pub zero: Instant,
    /// The run is over.
    pub stop: &'a AtomicBool,
}

/// The threads of a stream that runs.
pub(super) struct Running<'scope> {
    sender: ScopedJoinHandle<'scope, io::Result<Vec<Time>>>,
    receivers: Vec<ScopedJoinHandle<'scope, io::Result<UdpArrivals>>>,
}

/// What a stream has done.
#[derive(Debug)]
pub(super) struct Done {
    sent: Vec<Time>,
    arrivals: Vec<UdpArrivals>,
}

impl<'a> Stream<'a> {
    /// Starts a thread for each of its sockets. All receivers are bound when this returns.
    pub(super) fn start<'scope>(
        self,
        scope: &'scope Scope<'scope, '_>,
        nodes: &[Namespace],
    ) -> io::Result<Running<'scope>>
    where
        'a: 'scope,
    {
        let mut receivers = Vec::new();
        for (receiver, &comes_by) in self.spec.receivers.iter().zip(&self.plan.comes_by) {
            let bound = nodes[receiver.node].run(|| bind_receiver(self.plan.to, comes_by));
            let socket = bound.map_err(io::Error::other)??;
            receivers.push(scope.spawn(move || self.receive(&socket)));
        }
        let bound = nodes[self.spec.source].run(|| self.bind_senders());
        let sockets = bound.map_err(io::Error::other)??;
        Ok(Running { sender: scope.spawn(move || Ok(self.send(&sockets))), receivers })
    }

    /// A socket for each interface by which a datagram leaves; by unicast the routes know.
    fn bind_senders(&self) -> io::Result<Vec<UdpSocket>> {
        let bind = || UdpSocket::bind((self.plan.source, 0));
        let sockets = if self.plan.to.ip().is_multicast() {
            let by_interface = |interface: &Ipv4Addr| {
                let socket = bind()?;
                set_ip_multicast_if(&socket, interface)?;
                set_ip_multicast_ttl(&socket, TIME_TO_LIVE)?;
                set_ip_multicast_loop(&socket, false)?;
                Ok(socket)
            };
            self.plan.leaves_by.iter().map(by_interface).collect::<io::Result<Vec<_>>>()?
        } else {
            vec![bind()?]
        };
        sockets.iter().try_for_each(|socket| socket.set_nonblocking(true))?;
        Ok(sockets)
    }

    /// Sends each datagram at its time, and those that are overdue at once.
    fn send(&self, sockets: &[UdpSocket]) -> Vec<Time> {
        let (mut sent, mut datagram) = (Vec::new(), vec![0; usize::from(self.spec.packet) - HEADERS]);
        for number in 0..self.spec.datagrams() as u32 {
            let due = self.zero + self.spec.sent_at(number.into()).since(Time::ZERO);
            while Instant::now() < due && !self.is_over() {
                std::thread::sleep(due.saturating_duration_since(Instant::now()).min(PATIENCE));
            }
            if self.is_over() {
                break;
            }
            datagram[..NUMBER].copy_from_slice(&number.to_be_bytes());
            sent.push(Time::ZERO + self.zero.elapsed());
            for socket in sockets {
                // One for which this host has no room is lost.
                let _ = socket.send_to(&datagram, self.plan.to);
            }
        }
        sent
    }

    fn receive(&self, socket: &UdpSocket) -> io::Result<UdpArrivals> {
        let (mut arrivals, mut datagram) = (UdpArrivals::default(), [0; 1 << 11]);
        while !self.is_over() {
            match socket.recv(&mut datagram) {
                Ok(length) => {
                    let number = datagram[..length].first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
                    if let Some(number) = number.filter(|&number| u64::from(number) < self.spec.datagrams()) {
                        arrivals.arrive(number, Time::ZERO + self.zero.elapsed());
                    }
                }
                Err(error) if crate::download::is_timeout(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(arrivals)
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl Running<'_> {
    /// Waits for the threads, which end with the run.
    pub(super) fn join(self) -> io::Result<Done> {
        let sent = self.sender.join().expect("a sender does not panic")?;
        let arrivals =
            self.receivers.into_iter().map(|thread| thread.join().expect("a receiver does not panic"));
        Ok(Done { sent, arrivals: arrivals.collect::<io::Result<_>>()? })
    }
}

impl Done {
    /// The result of the stream in a run that ended at `end`.
    pub(super) fn result(&self, scenario: &Scenario, spec: &UdpSpec, end: Time) -> UdpResult {
        let until = self.sent.partition_point(|&sent| sent <= end);
        UdpResult::of(scenario, spec, &self.sent[..until], &self.arrivals, end)
    }
}

/// A socket that receives what is sent to this address, of a group what comes by this interface.
fn bind_receiver(to: SocketAddrV4, comes_by: Ipv4Addr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(to)?;
    if to.ip().is_multicast() {
        socket.join_multicast_v4(to.ip(), &comes_by)?;
    }
    sockopt::set_receive_buffer(&socket, RECEIVE_BUFFER)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket)
}
