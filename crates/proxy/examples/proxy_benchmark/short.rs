//! Short connections: connect, a small request, a small reply, close; so many at once, over and over.
//!
//! One thread is all clients and one is the server.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bentpipe_kernel::sockopt;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, accept_with, connect, recv, send,
    socket_with,
};

use crate::bulk::until_stopped;
use crate::common::SERVER;
use crate::cpu::Usage;
use crate::way::Way;

pub(crate) const CONCURRENCIES: [usize; 3] = [1, 64, 256];

const REQUEST: [u8; 100] = [b'q'; 100];
const REPLY: [u8; 1000] = [b'r'; 1000];
const LISTENER: u64 = u64::MAX;

pub(crate) struct Outcome {
    /// Connections per second whose reply and end arrived.
    pub(crate) rate: f64,
    /// Connections that ended otherwise, of all.
    pub(crate) failed: f64,
    /// Processor time of the whole machine for each connection, other programs' excepted; microseconds.
    pub(crate) cost: f64,
}

/// The state that the generators share.
#[derive(Default)]
struct State {
    stop: AtomicBool,
    done: AtomicU64,
    failed: AtomicU64,
}

/// A client's connection and how far it has come.
struct Client {
    socket: OwnedFd,
    asked: bool,
    received: usize,
}

pub(crate) fn measure(way: &Way, concurrency: usize, time: Duration) -> Result<Outcome, String> {
    let listener = way.net.server.enter(listen);
    let to = listener.local_addr().unwrap();
    let state = State::default();
    let (seconds, done, failed, usage) = thread::scope(|scope| {
        scope.spawn(|| state.answer(&listener));
        scope.spawn(|| way.net.client.enter(|| state.ask(to, concurrency)));
        thread::sleep(time / 4);
        let (start, before) = (Instant::now(), state.counts());
        let usage = Usage::now(way.proxy_group());
        thread::sleep(time);
        let usage = Usage::now(way.proxy_group()).since(usage);
        let after = state.counts();
        let seconds = start.elapsed().as_secs_f64();
        state.stop.store(true, Ordering::Relaxed);
        (seconds, after.0 - before.0, after.1 - before.1, usage)
    });
    if done == 0 {
        return Err(format!("{concurrency} connections at once: none came to its end"));
    }
    Ok(Outcome {
        rate: done as f64 / seconds,
        failed: failed as f64 / (done + failed) as f64,
        cost: usage.machine * 1e6 / done as f64,
    })
}

/// A listener with a backlog that no burst of ours fills.
fn listen() -> TcpListener {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&crate::common::socket_address(SERVER[0], 0).into()).unwrap();
    socket.listen(4096).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.into()
}

impl State {
    fn counts(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed))
    }

    /// Keeps `concurrency` connections going.
    fn ask(&self, to: SocketAddr, concurrency: usize) {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let mut clients: Vec<Client> =
            (0..concurrency).map(|index| Client::start(&poll, to, index)).collect();
        until_stopped(&self.stop, &poll, |index| {
            let client = &mut clients[index as usize];
            let Some(in_order) = client.go_on() else { return };
            let count = if in_order { &self.done } else { &self.failed };
            count.fetch_add(1, Ordering::Relaxed);
            *client = Client::start(&poll, to, index as usize);
        });
        clients.iter().for_each(|client| sockopt::set_linger_reset(&client.socket).unwrap());
    }

    /// Replies to each request and closes.
    fn answer(&self, listener: &TcpListener) {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        epoll::add(&poll, listener, EventData::new_u64(LISTENER), EventFlags::IN).unwrap();
        let mut open: Vec<Option<OwnedFd>> = Vec::new();
        let mut free = Vec::new();
        until_stopped(&self.stop, &poll, |index| {
            if index == LISTENER {
                return accept_all(&poll, listener, &mut open, &mut free);
            }
            let place = &mut open[index as usize];
            let mut request = [0; REQUEST.len()];
            let received = place.as_ref().map(|socket| recv(socket, &mut request, RecvFlags::DONTWAIT));
            if matches!(received, None | Some(Err(Errno::AGAIN))) {
                return;
            }
            // The request is one segment. Whatever else was received, an end or a reset, is the client's
            // failure.
            if let Some(socket) = place.take_if(|_| true) {
                let _ = send(&socket, &REPLY, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
                free.push(index as usize);
            }
        });
    }
}

impl Client {
    fn start(poll: &OwnedFd, to: SocketAddr, index: usize) -> Self {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
        // A failure is met by the first request.
        let _ = connect(&socket, &to);
        let interest = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        epoll::add(poll, &socket, EventData::new_u64(index as u64), interest).unwrap();
        Self { socket, asked: false, received: 0 }
    }

    /// Continues the connection; at its end, whether the whole reply arrived.
    fn go_on(&mut self) -> Option<bool> {
        if !self.asked {
            match send(&self.socket, &REQUEST, SendFlags::NOSIGNAL) {
                Ok(_) => self.asked = true,
                Err(Errno::AGAIN | Errno::NOTCONN) => return None,
                Err(_) => return Some(false),
            }
        }
        let mut reply = [0; 2 * REPLY.len()];
        loop {
            match recv(&self.socket, &mut reply, RecvFlags::empty()) {
                Ok((_, 0)) => return Some(self.received == REPLY.len()),
                Ok((_, count)) => self.received += count,
                Err(Errno::AGAIN) => return None,
                Err(_) => return Some(false),
            }
        }
    }
}

fn accept_all(
    poll: &OwnedFd,
    listener: &TcpListener,
    open: &mut Vec<Option<OwnedFd>>,
    free: &mut Vec<usize>,
) {
    while let Ok(socket) = accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
        let index = free.pop().unwrap_or_else(|| {
            open.push(None);
            open.len() - 1
        });
        epoll::add(poll, &socket, EventData::new_u64(index as u64), EventFlags::IN | EventFlags::ET).unwrap();
        open[index] = Some(socket);
    }
}
