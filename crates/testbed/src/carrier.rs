use std::collections::VecDeque;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bentpipe_link::{Counters, Direction, Fate};
use bentpipe_units::Time;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::clock::{Clock, timespec};
use crate::lateness::Lateness;
use crate::outage::CommandedOutages;
use crate::signals;
use crate::tun::Tun;

/// Carries packets in one direction of the link, on a thread of its own.
///
/// The walk of a packet: read from the TUN device at the near end, judged by the [`Direction`], kept until its time,
/// written to the TUN device at the far end. Agents of the link's ends belong at `receive` (near) and `deliver` (far).
#[derive(Debug)]
pub(crate) struct Carrier {
    from: Arc<Tun>,
    to: Arc<Tun>,
    clock: Clock,
    delay: Duration,
    state: Arc<CarrierState>,
    stop: Arc<Stop>,
    /// Packets in flight in the order of their delivery, which the model keeps monotone.
    in_flight: VecDeque<InFlight>,
    /// Buffers that are free; after the first round trip no packet allocates.
    pool: Vec<Box<[u8]>>,
    buffer_len: usize,
}

/// What the thread shares with those who watch it.
#[derive(Debug)]
pub(crate) struct CarrierState {
    direction: Mutex<Direction>,
    outages: Arc<CommandedOutages>,
    lateness: Lateness,
    written: AtomicU64,
    written_bytes: AtomicU64,
    refused: AtomicU64,
    cut: AtomicU64,
    cut_bytes: AtomicU64,
    failure: OnceLock<Errno>,
}

/// Asks both carriers to end, also one that sleeps.
#[derive(Debug)]
pub(crate) struct Stop {
    asked: AtomicBool,
    event: OwnedFd,
}

#[derive(Debug)]
struct InFlight {
    at: Time,
    packet: Box<[u8]>,
    len: usize,
}

impl Carrier {
    pub(crate) fn new(
        (from, to): (&Arc<Tun>, &Arc<Tun>),
        mtu: u32,
        clock: Clock,
        delay: Duration,
        state: Arc<CarrierState>,
        stop: Arc<Stop>,
    ) -> Self {
        Self {
            from: Arc::clone(from),
            to: Arc::clone(to),
            clock,
            delay,
            state,
            stop,
            in_flight: VecDeque::new(),
            pool: Vec::new(),
            buffer_len: mtu as usize,
        }
    }

    /// Carries packets until it is asked to stop, or a device fails.
    pub(crate) fn run(mut self) {
        become_prompt();
        while !self.stop.asked.load(Ordering::Relaxed) {
            self.deliver_due();
            let outcome = match self.receive() {
                Err(Errno::AGAIN) => self.sleep(),
                outcome => outcome,
            };
            if let Err(errno) = outcome.or_else(ignore_interruption) {
                let _ = self.state.failure.set(errno);
                return;
            }
        }
    }

    /// Reads one packet at the near end and lets the model decide its fate; `EAGAIN` if none is there.
    fn receive(&mut self) -> rustix::io::Result<()> {
        let mut packet = self.pool.pop().unwrap_or_else(|| vec![0; self.buffer_len].into_boxed_slice());
        let outcome = self.from.read(&mut packet);
        let fate = outcome.map(|len| (self.state.direction().offer(self.clock.now(), len), len));
        match fate {
            Ok((Fate::Deliver { at }, len)) => self.in_flight.push_back(InFlight { at, packet, len }),
            _ => self.pool.push(packet),
        }
        outcome.map(drop)
    }

    /// Writes every packet whose time has come. The clock is asked again for each: writing one takes as long as its way
    /// through the far kernel.
    fn deliver_due(&mut self) {
        while let Some(next) = self.next_due() {
            self.deliver(&next);
            self.pool.push(next.packet);
        }
    }

    fn next_due(&mut self) -> Option<InFlight> {
        let due = self.in_flight.front()?.at <= self.clock.now();
        if due { self.in_flight.pop_front() } else { None }
    }

    fn deliver(&self, next: &InFlight) {
        let state = &self.state;
        let departure = Time::from_nanos(next.at.as_nanos().saturating_sub(self.delay.as_nanos() as u64));
        let bytes = next.len as u64;
        if state.outages.cover(departure) {
            state.cut_bytes.fetch_add(bytes, Ordering::Release);
            state.cut.fetch_add(1, Ordering::Release);
        } else if self.to.write(&next.packet[..next.len]).is_ok() {
            state.lateness.record(self.clock.now() - next.at);
            state.written.fetch_add(1, Ordering::Relaxed);
            state.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        } else {
            state.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sleeps until a packet arrives, the next delivery is due or the end is asked for.
    fn sleep(&self) -> rustix::io::Result<()> {
        let timeout = self.in_flight.front().map(|next| timespec(next.at - self.clock.now()));
        let mut events =
            [PollFd::new(&*self.from, PollFlags::IN), PollFd::new(&self.stop.event, PollFlags::IN)];
        poll(&mut events, timeout.as_ref()).map(drop)
    }
}

impl CarrierState {
    pub(crate) fn new(direction: Direction, outages: Arc<CommandedOutages>) -> Self {
        Self {
            direction: Mutex::new(direction),
            outages,
            lateness: Lateness::new(),
            written: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            cut: AtomicU64::new(0),
            cut_bytes: AtomicU64::new(0),
            failure: OnceLock::new(),
        }
    }

    /// The model's counters, with the packets that a commanded outage lost moved to where the model counts outages.
    pub(crate) fn counters(&self) -> Counters {
        // Before the model's, so that no packet is counted as cut and not yet as delivered.
        let (cut, cut_bytes) = (self.cut.load(Ordering::Acquire), self.cut_bytes.load(Ordering::Acquire));
        let mut counters = *self.direction().counters();
        counters.delivered -= cut;
        counters.delivered_bytes -= cut_bytes;
        counters.dropped.outage += cut;
        counters
    }

    pub(crate) fn written(&self) -> (u64, u64) {
        (self.written.load(Ordering::Relaxed), self.written_bytes.load(Ordering::Relaxed))
    }

    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    pub(crate) fn lateness(&self) -> &Lateness {
        &self.lateness
    }

    pub(crate) fn failure(&self) -> Option<io::Error> {
        self.failure.get().map(|&errno| errno.into())
    }

    fn direction(&self) -> std::sync::MutexGuard<'_, Direction> {
        self.direction.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stop {
    pub(crate) fn new() -> io::Result<Self> {
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
        Ok(Self { asked: AtomicBool::new(false), event })
    }

    /// The event is never read, so it wakes every carrier, whenever it looks.
    pub(crate) fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
        // Adding 1 to a counter of zero cannot fail.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }
}

fn ignore_interruption(errno: Errno) -> rustix::io::Result<()> {
    if errno == Errno::INTR { Ok(()) } else { Err(errno) }
}

/// Makes the calling thread wake up on time: no timer slack (the default rounds by 50 µs), and real-time priority where
/// that is permitted. Where it is not the link works too, and what it costs is in its lateness.
fn become_prompt() {
    signals::block_all();
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    // SAFETY: a sched_param of zeroes is valid; sched_setscheduler(2) with 0 changes the calling thread only.
    unsafe {
        let mut parameters: libc::sched_param = std::mem::zeroed();
        parameters.sched_priority = 1;
        libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &parameters);
    }
}
