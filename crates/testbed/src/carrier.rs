use std::collections::VecDeque;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bentpipe_link::{Arrival, Counters, Direction, Fate, Mangled, MangledCounters, Mangler, Mangling};
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
    /// Packets in flight in the order of their delivery.
    in_flight: VecDeque<InFlight>,
    /// Buffers that are free; after the first round trip no packet allocates.
    pool: Vec<Box<[u8]>>,
    buffer_len: usize,
}

/// What the thread shares with those who watch it.
#[derive(Debug)]
pub(crate) struct CarrierState {
    path: Mutex<Path>,
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

/// What decides over packets: the model, and behind it what mangles those that it delivers.
#[derive(Debug)]
struct Path {
    direction: Direction,
    mangler: Option<Mangler>,
}

#[derive(Debug)]
struct InFlight {
    at: Time,
    /// When its last bit left the transmitter.
    departure: Time,
    packet: Box<[u8]>,
    len: usize,
    /// Not what the model delivered but a second one of it.
    duplicate: bool,
    corrupt: bool,
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
        let mut packet = self.buffer();
        let outcome = self.from.read(&mut packet);
        let fate = outcome.map(|len| (self.state.path().offer(self.clock.now(), len), len));
        match fate {
            Ok((Some((arrives, mangled)), len)) => self.send_off(arrives, mangled, packet, len),
            _ => self.pool.push(packet),
        }
        outcome.map(drop)
    }

    /// Puts a packet, and its duplicate, among those in flight. `arrives` is when the model delivers it.
    fn send_off(&mut self, arrives: Time, mangled: Mangled, packet: Box<[u8]>, len: usize) {
        let departure = Time::from_nanos(arrives.as_nanos().saturating_sub(self.delay.as_nanos() as u64));
        if let Some(arrival) = mangled.duplicate {
            let mut copy = self.buffer();
            copy[..len].copy_from_slice(&packet[..len]);
            self.launch(arrival, InFlight::new(departure, copy, len, true));
        }
        self.launch(mangled.packet, InFlight::new(departure, packet, len, false));
    }

    /// The model delivers in order, so that the place is nearly always the last one.
    fn launch(&mut self, arrival: Arrival, mut packet: InFlight) {
        arrival.apply_to(&mut packet.packet[..packet.len]);
        packet.corrupt = arrival.flipped_bit.is_some();
        packet.at = arrival.at;
        if self.in_flight.back().is_none_or(|last| last.at <= packet.at) {
            return self.in_flight.push_back(packet);
        }
        let place = self.in_flight.partition_point(|other| other.at <= packet.at);
        self.in_flight.insert(place, packet);
    }

    fn buffer(&mut self) -> Box<[u8]> {
        self.pool.pop().unwrap_or_else(|| vec![0; self.buffer_len].into_boxed_slice())
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
        let bytes = next.len as u64;
        if state.outages.cover(next.departure) {
            if !next.duplicate {
                state.cut_bytes.fetch_add(bytes, Ordering::Release);
                state.cut.fetch_add(1, Ordering::Release);
            }
        } else if next.corrupt && !is_ip(&next.packet[..next.len]) {
            // A host would see nothing of it; the device would count it among the packets that it dropped.
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
            path: Mutex::new(Path { direction, mangler: None }),
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
        let mut counters = *self.path().direction.counters();
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

    /// Begins to mangle what the model delivers; what is in flight already arrives unharmed.
    pub(crate) fn mangle(&self, mangling: &Mangling, seed: u64) {
        self.path().mangler = (!mangling.is_nothing()).then(|| Mangler::new(mangling, seed));
    }

    /// What has been mangled since [`CarrierState::mangle`].
    pub(crate) fn mangled(&self) -> MangledCounters {
        self.path().mangler.as_ref().map(|mangler| *mangler.counters()).unwrap_or_default()
    }

    fn path(&self) -> std::sync::MutexGuard<'_, Path> {
        self.path.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Path {
    /// When the model delivers a packet of `bytes` that is offered `now`, and what arrives of it; nothing if it is lost.
    fn offer(&mut self, now: Time, bytes: usize) -> Option<(Time, Mangled)> {
        let Fate::Deliver { at } = self.direction.offer(now, bytes) else { return None };
        let mangled =
            self.mangler.as_mut().map_or(Mangled::unharmed(at), |mangler| mangler.mangle(at, bytes));
        Some((at, mangled))
    }
}

impl InFlight {
    fn new(departure: Time, packet: Box<[u8]>, len: usize, duplicate: bool) -> Self {
        Self { at: departure, departure, packet, len, duplicate, corrupt: false }
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

/// Whether the version is that of an IP packet.
fn is_ip(packet: &[u8]) -> bool {
    packet.first().is_some_and(|byte| matches!(byte >> 4, 4 | 6))
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
