//! Bulk: flows that send one way as fast as they can, and their cost.
//!
//! One thread sends for all flows and one receives. The receiver has the kernel discard the data (tcp(7),
//! `MSG_TRUNC`), and blocks are large, so that on a machine with few processors as much as possible is left
//! to what is measured.

use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bentpipe_kernel::sockopt;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::common::SERVER;
use crate::cpu::Usage;
use crate::way::Way;

pub(crate) const FLOWS: [usize; 3] = [1, 10, 100];
pub(crate) const DIRECTIONS: [Direction; 2] = [Direction::Up, Direction::Down];

const SEND_BLOCK: usize = 256 * 1024;
const RECEIVE_BLOCK: usize = 1024 * 1024;
/// How soon an idle generator notices the end.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

/// One measurement.
pub(crate) struct Outcome {
    /// Gbit/s that arrived.
    pub(crate) rate: f64,
    /// Processor seconds per 10⁹ bytes that arrived: the whole machine's, other programs' excepted.
    pub(crate) machine_per_gb: f64,
    /// The same of the proxy alone.
    pub(crate) proxy_per_gb: f64,
    /// How many processors other programs kept busy.
    pub(crate) others: f64,
}

/// The state that the generators share.
#[derive(Default)]
struct State {
    stop: AtomicBool,
    arrived: AtomicU64,
}

pub(crate) fn measure(
    way: &Way,
    direction: Direction,
    flows: usize,
    time: Duration,
) -> Result<Outcome, String> {
    let listener = way.net.listen(SERVER[0]);
    let (clients, servers): (Vec<_>, Vec<_>) = (0..flows).map(|_| way.net.connection(&listener)).unzip();
    let (senders, receivers) = match direction {
        Direction::Up => (&clients, &servers),
        Direction::Down => (&servers, &clients),
    };
    let state = State::default();
    let (seconds, bytes, usage) = thread::scope(|scope| {
        scope.spawn(|| state.send(senders));
        scope.spawn(|| state.receive(receivers));
        thread::sleep(time / 4);
        let (start, before) = (Instant::now(), state.arrived.load(Ordering::Relaxed));
        let usage = Usage::now(way.proxy_group());
        thread::sleep(time);
        let usage = Usage::now(way.proxy_group()).since(usage);
        let bytes = state.arrived.load(Ordering::Relaxed) - before;
        let seconds = start.elapsed().as_secs_f64();
        state.stop.store(true, Ordering::Relaxed);
        (seconds, bytes, usage)
    });
    if bytes == 0 {
        return Err(format!("{flows} flows, {direction:?}: nothing arrived"));
    }
    // Data in flight do not matter any more.
    clients.iter().chain(&servers).for_each(|stream| sockopt::set_linger_reset(stream).unwrap());
    let gigabytes = bytes as f64 / 1e9;
    Ok(Outcome {
        rate: gigabytes * 8.0 / seconds,
        machine_per_gb: usage.machine / gigabytes,
        proxy_per_gb: usage.proxy / gigabytes,
        others: usage.others / seconds,
    })
}

impl State {
    fn send(&self, streams: &[TcpStream]) {
        let block = vec![1u8; SEND_BLOCK];
        self.serve(streams, EventFlags::OUT, |stream| {
            // A receiver that is gone is seen by what does not arrive.
            let _ = send(stream, &block, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        });
    }

    fn receive(&self, streams: &[TcpStream]) {
        let mut block = vec![0u8; RECEIVE_BLOCK];
        self.serve(streams, EventFlags::IN, |stream| {
            if let Ok((_, count)) = recv(stream, &mut *block, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
                self.arrived.fetch_add(count as u64, Ordering::Relaxed);
            }
        });
    }

    /// One call of `work` for each stream that is ready, over and over, until the end.
    fn serve(&self, streams: &[TcpStream], interest: EventFlags, mut work: impl FnMut(&TcpStream)) {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        for (index, stream) in streams.iter().enumerate() {
            epoll::add(&poll, stream, EventData::new_u64(index as u64), interest).unwrap();
        }
        until_stopped(&self.stop, &poll, |index| work(&streams[index as usize]));
    }
}

/// One call of `work` for each socket in `poll` that is ready, with its number, until the end.
pub(crate) fn until_stopped(stop: &AtomicBool, poll: &OwnedFd, mut work: impl FnMut(u64)) {
    let mut events = Vec::with_capacity(256);
    while !stop.load(Ordering::Relaxed) {
        events.clear();
        let spare = rustix::buffer::spare_capacity(&mut events);
        if epoll::wait(poll, spare, Some(&PATIENCE)).is_ok() {
            events.iter().for_each(|event| work(event.data.u64()));
        }
    }
}
