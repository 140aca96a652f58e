//! The access log: one line for each connection that has ended.
//!
//! ```text
//! worker ── Record ──► AccessLog, a bounded queue ──► writer thread ── lines ──► file or journal
//! ```
//!
//! A worker never waits for it: a record that does not fit is lost, and counted. The writer is a
//! [service](crate::services).

mod file;
mod line;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bentpipe_legs::Legs;
use rustix::event::{EventfdFlags, eventfd};

use crate::admission::Limit;
use crate::config::Handshake;
use crate::types::Side;
use crate::types::leg_pair::LegPair;

pub(crate) use file::{LogFile, Lost};
pub(crate) use line::Line;

/// Records that wait for the writer at a time; one takes about 200 bytes. The writer takes them every few
/// milliseconds, so that this is enough for 100,000 connections that end in a second.
const MAX_WAITING: usize = 8192;

/// A connection that has ended.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    /// When it was accepted, or with a faithful handshake when its server had answered.
    pub(crate) start: SystemTime,
    pub(crate) duration: Duration,
    pub(crate) client: SocketAddr,
    pub(crate) server: SocketAddr,
    /// The differentiated services code point of the client's SYN.
    pub(crate) dscp: u8,
    pub(crate) pair: LegPair,
    pub(crate) legs: Arc<Legs>,
    /// Bytes written to the server.
    pub(crate) up: u64,
    /// Bytes written to the client.
    pub(crate) down: u64,
    pub(crate) ending: Ending,
    /// Segments sent again to the client and to the server (`tcpi_total_retrans`).
    pub(crate) retransmissions: [u32; 2],
    pub(crate) handshake: Handshake,
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Both ends closed it in order, this one first.
    Closed(Side),
    /// This end reset it.
    Reset(Side),
    /// This end did not answer any more, or the server never did.
    TimedOut(Side),
    /// No route led to this end any more, or never did.
    Unreachable(Side),
    /// The server refused it.
    Refused,
    /// This host could not serve it: no descriptor, no port.
    Failed,
    /// Nothing moved for too long.
    Idle,
    /// It came when this limit was reached.
    AtLimit(Limit),
    /// The time for draining was over.
    Drained,
    /// The daemon stopped.
    Stopped,
}

/// The queue of records. Workers put them in, one thread takes them out.
#[derive(Debug)]
pub(crate) struct AccessLog {
    is_on: AtomicBool,
    waiting: Mutex<Waiting>,
    /// Readable when there may be a record.
    arrived: OwnedFd,
}

#[derive(Debug, Default)]
struct Waiting {
    records: VecDeque<Record>,
    /// How many have been taken.
    taken: u64,
}

/// Records that the writer has taken out of the queue, in their order.
#[derive(Debug)]
pub(crate) struct Taken {
    records: VecDeque<Record>,
    /// The place of the first one.
    start: u64,
}

impl AccessLog {
    /// An empty queue that takes nothing.
    pub(crate) fn new() -> rustix::io::Result<Self> {
        let arrived = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { is_on: AtomicBool::new(false), waiting: Mutex::default(), arrived })
    }

    /// Whether anybody wants records. Without, none is made.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    pub(crate) fn set_on(&self, on: bool) {
        self.is_on.store(on, Ordering::Relaxed);
    }

    /// Puts a record in; gives it back if there is no room.
    pub(crate) fn push(&self, record: Record) -> Result<(), Box<Record>> {
        let mut waiting = self.waiting();
        if waiting.records.len() >= MAX_WAITING {
            return Err(Box::new(record));
        }
        waiting.records.push_back(record);
        let is_first = waiting.records.len() == 1;
        drop(waiting);
        if is_first {
            // An eventfd can refuse only where it is signalled already.
            let _ = rustix::io::write(&self.arrived, &1u64.to_ne_bytes());
        }
        Ok(())
    }

    /// The place that the next record will have: all records are numbered in the order in which they come.
    pub(crate) fn end(&self) -> u64 {
        let waiting = self.waiting();
        waiting.taken + waiting.records.len() as u64
    }

    /// Takes all records.
    pub(crate) fn take(&self) -> Taken {
        let _ = rustix::io::read(&self.arrived, &mut [0; 8]);
        let mut waiting = self.waiting();
        let (records, start) = (std::mem::take(&mut waiting.records), waiting.taken);
        waiting.taken += records.len() as u64;
        Taken { records, start }
    }

    /// The queue is consistent at every step, so a poisoned lock can be used.
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    /// Removes those before this place.
    pub(crate) fn before(&mut self, place: u64) -> VecDeque<Record> {
        let count = place.saturating_sub(self.start).min(self.records.len() as u64);
        self.start += count;
        let rest = self.records.split_off(count as usize);
        std::mem::replace(&mut self.records, rest)
    }

    pub(crate) fn into_records(self) -> VecDeque<Record> {
        self.records
    }
}

impl AsFd for AccessLog {
    /// Readable when there may be a record.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.arrived.as_fd()
    }
}

impl Ending {
    /// How a connection has ended whose socket on this side has this error.
    pub(crate) fn of(side: Side, error: &io::Error) -> Self {
        use io::ErrorKind::*;
        match error.kind() {
            ConnectionRefused => Self::Refused,
            ConnectionReset | ConnectionAborted | BrokenPipe => Self::Reset(side),
            TimedOut => Self::TimedOut(side),
            HostUnreachable | NetworkUnreachable | NetworkDown => Self::Unreachable(side),
            _ => Self::Failed,
        }
    }

    /// The word that the log has for it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Closed(_) => "closed",
            Self::Reset(_) => "reset",
            Self::TimedOut(_) => "timed_out",
            Self::Unreachable(_) => "unreachable",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Idle => "idle",
            Self::AtLimit(_) => "limit",
            Self::Drained => "drained",
            Self::Stopped => "stopped",
        }
    }

    /// Which end, or which limit, ended it.
    pub(crate) fn by(self) -> Option<&'static str> {
        match self {
            Self::Closed(side) | Self::Reset(side) | Self::TimedOut(side) | Self::Unreachable(side) => {
                Some(match side {
                    Side::Client => "client",
                    Side::Server => "server",
                })
            }
            Self::Refused => Some("server"),
            Self::AtLimit(limit) => Some(limit.key()),
            Self::Failed | Self::Idle | Self::Drained | Self::Stopped => None,
        }
    }
}
