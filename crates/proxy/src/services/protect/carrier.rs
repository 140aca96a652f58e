//! The thread of a protected leg: from the device and the socket to the leg, and back.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bentpipe_kernel::Weight;
use bentpipe_kernel::divert::Divert;
use bentpipe_kernel::tun::Tun;
use bentpipe_legs::{ProtectClass, Sender};
use bentpipe_link::explicit::Report;
use bentpipe_protect::frame::MAX_OVERHEAD;
use bentpipe_protect::leg::Handover;
use bentpipe_protect::queue::{Choice, Queue};
use bentpipe_protect::{Config, Leg, Secret, Sent};
use bentpipe_units::{ByteCount, Rate, Time};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::pacer::Pacer;
use super::packet::{Fit, clamp_mss, fit};
use super::progress::Progress;
use super::transport::Transport;
use super::waiting::WaitingFlows;
use crate::deferred_accept::is_between_hosts;
use crate::snapshot::{Section, SnapshotError};
use crate::stats::Counters;
use crate::types::mailbox::Mailbox;

/// Packets or frames that are read before the other side has its turn, and the clock.
const BATCH: usize = 64;
/// The longest frame, and the longest packet.
const LONGEST: usize = 1 << 16;
/// The rate controller is told at least so often, and its rate is taken.
const TICK: Duration = Duration::from_millis(20);
/// How often the interface and the way to the peer are looked for.
const LOOK: Duration = Duration::from_millis(500);
/// Packets are diverted for so long after this thread was last there.
const DIVERT_FOR: Duration = Duration::from_millis(500);
/// How long a successor leaves packets to its predecessor before the peer has answered, and how long packets wait
/// in the device while one takes over from the other.
pub(super) const STAND_BY: Duration = Duration::from_secs(3);

/// A sender that the rate controller gives a rate.
#[derive(Debug)]
pub(super) struct Rated(pub(super) Sender);

/// What the configuration asks for, as far as a reload can change it.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) interface: String,
    pub(super) rate: Option<Rate>,
    pub(super) rtt: Duration,
    pub(super) class: ProtectClass,
    pub(super) queue: Option<ByteCount>,
    /// Of each flow.
    pub(super) weight: Weight,
}

/// Where packets and frames come from and go to.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) tun: Tun,
    pub(super) divert: Divert,
    pub(super) transport: Transport,
    /// They come from another process.
    pub(super) is_inherited: bool,
}

/// All that a protected leg consists of.
#[derive(Debug)]
pub(super) struct Carrier {
    name: String,
    ends: Ends,
    rated: Option<Rated>,
    wanted: Wanted,
    leg: Leg,
    queue: Queue,
    pacer: Pacer,
    progress: Progress,
    waiting: WaitingFlows,
    counters: Arc<Counters>,
    buffer: Box<[u8]>,
    frame: Vec<u8>,
    /// The longest packet that fits into a frame.
    mtu: usize,
    was_alive: bool,
    /// Until then another process may divert packets for this leg, which this one takes over from.
    stands_by_until: Option<Time>,
    sessions: u64,
    min_rtt: Option<Duration>,
    /// What the controller last said; bytes per second.
    rate: Option<f64>,
    /// The highest rate since this sender was idle, and when it was last exceeded by more than a tenth.
    risen: (f64, Time),
    busy_until: Time,
    next_tick: Time,
    next_look: Time,
    /// What refused to be followed, which the log has said.
    refuses: bool,
    told: Told,
}

/// What the counters have heard of.
#[derive(Debug, Default)]
struct Told {
    stats: bentpipe_protect::LegStats,
    marked: u64,
    dropped: u64,
    passed: u64,
    silent_dropped: u64,
}

impl Carrier {
    pub(super) fn new(
        name: &str,
        ends: Ends,
        rated: Option<Rated>,
        wanted: Wanted,
        secret: Secret,
        entropy: [u8; 32],
        counters: Arc<Counters>,
    ) -> Self {
        let config = Config { initial_rtt: wanted.rtt, ..Config::default() };
        let seed = u64::from_le_bytes(std::array::from_fn(|place| entropy[place] ^ entropy[place + 8]));
        let mut carrier = Self {
            name: name.to_owned(),
            ends,
            rated,
            leg: Leg::new(config, secret, entropy),
            queue: Queue::new(seed, Queue::DEFAULT_LIMIT),
            pacer: Pacer::default(),
            progress: Progress::default(),
            waiting: WaitingFlows::default(),
            counters,
            buffer: vec![0; LONGEST].into(),
            frame: Vec::new(),
            mtu: 0,
            was_alive: false,
            stands_by_until: None,
            sessions: 0,
            min_rtt: None,
            rate: None,
            risen: (0.0, Time::ZERO),
            busy_until: Time::ZERO,
            next_tick: Time::ZERO,
            next_look: Time::ZERO,
            refuses: false,
            told: Told::default(),
            wanted,
        };
        carrier.counters.protect.legs.set(1);
        carrier.stands_by_until = Some(if carrier.ends.is_inherited { now() + STAND_BY } else { Time::ZERO });
        carrier.configure();
        carrier
    }

    /// Duplicates of the device's and the socket's descriptors, to hand them over.
    pub(super) fn descriptors(&self) -> io::Result<(OwnedFd, OwnedFd)> {
        Ok((self.ends.tun.descriptor()?, self.ends.transport.descriptor()?))
    }

    /// What a successor needs to go on with the session; `None` if none runs.
    pub(super) fn session(&self) -> Result<Option<Section>, SnapshotError> {
        #[derive(Serialize)]
        struct Written<'a, L> {
            leg: L,
            progress: &'a Progress,
            min_rtt: Option<Duration>,
        }
        let written = |leg| Written { leg, progress: &self.progress, min_rtt: self.min_rtt };
        self.leg.handover().map(|leg| Section::of(&written(leg))).transpose()
    }

    /// Goes on with a predecessor's session. Where that cannot be, a new one begins when the peer answers.
    pub(super) fn resume(&mut self, session: Section) {
        #[derive(Deserialize)]
        struct Read {
            leg: Handover,
            progress: Progress,
            min_rtt: Option<Duration>,
        }
        let Read { leg, progress, min_rtt } = match session.read() {
            Ok(read) => read,
            Err(error) => {
                tracing::info!(
                    "leg {}: a new session begins, as the old one cannot be read: {error}",
                    self.name
                );
                return;
            }
        };
        if let Err(error) = self.leg.resume(leg) {
            tracing::info!("leg {}: a new session begins, as the old one cannot go on: {error}", self.name);
            return;
        }
        (self.progress, self.min_rtt) = (progress, min_rtt);
        // Those of the predecessor have been counted.
        self.told.stats = self.leg.stats();
        self.sessions = self.told.stats.sessions;
    }

    /// Whether packets are protected now.
    pub(super) fn is_alive(&self) -> bool {
        self.leg.is_alive(now())
    }

    /// Runs until the flag is set.
    pub(super) fn run(&mut self, mailbox: &Mailbox<Wanted>, stop: &AtomicBool) {
        self.next_look = Time::ZERO;
        while !stop.load(Ordering::Acquire) {
            if self.wait(mailbox)
                && let Some(wanted) = mailbox.take().pop_back()
            {
                self.ends.divert.leave(&self.wanted.interface);
                self.wanted = wanted;
                self.configure();
                self.next_look = Time::ZERO;
            }
            if self.queue.is_empty() {
                self.pacer.rest(now());
            }
            self.look();
            self.receive();
            self.read_packets();
            self.leg.on_timer(now());
            self.deliver();
            self.send();
            self.tick();
        }
        self.flush();
        self.publish();
        if self.was_alive {
            // What comes now waits in the device for who goes on, which may take a while.
            self.ends.divert.divert_until(now() + STAND_BY);
        }
    }

    fn configure(&mut self) {
        let Wanted { rate, rtt, queue, .. } = self.wanted;
        self.queue.set_limit(queue.unwrap_or_else(|| Queue::usual_limit(rate, rtt)));
        self.queue.set_rtt(self.wanted.rtt);
    }

    /// Waits for a packet, a frame, a message (true) or the time for something to be sent.
    fn wait(&self, mailbox: &Mailbox<Wanted>) -> bool {
        let now = now();
        let mut due = self.leg.wake_at().min(self.next_tick).min(self.next_look);
        if !self.queue.is_empty() {
            due = due.min(self.pacer.free_at());
        }
        // What the leg wants to send has to wait for the pacer, too.
        if due <= now && !self.pacer.is_free(now) {
            due = self.pacer.free_at();
        }
        let due = Timespec::try_from(due.since(now).min(TICK)).ok();
        let mut fds = [
            PollFd::new(&self.ends.tun, PollFlags::IN),
            PollFd::from_borrowed_fd(self.ends.transport.socket(), PollFlags::IN),
            PollFd::new(mailbox, PollFlags::IN),
        ];
        // An interrupted wait is like one that has ended.
        poll(&mut fds, due.as_ref()).is_ok() && !fds[2].revents().is_empty()
    }

    /// Looks for the interface and the way to the peer.
    fn look(&mut self) {
        let now = now();
        if now < self.next_look {
            return;
        }
        self.next_look = now + LOOK;
        self.ends.transport.follow();
        let followed = self.ends.divert.follow(&self.wanted.interface);
        if let Err(error) = &followed
            && !self.refuses
        {
            tracing::warn!("{error}; packets cross leg {} unprotected", self.name);
        }
        self.refuses = followed.is_err();
        self.mtu = self.ends.transport.mtu().saturating_sub(self.ends.transport.headers() + MAX_OVERHEAD);
    }

    /// Frames of the peer.
    fn receive(&mut self) {
        for _ in 0..BATCH {
            let Some(length) = self.ends.transport.receive(&mut self.buffer) else { break };
            if let Err(error) = self.leg.on_frame(&mut self.buffer[..length], now()) {
                tracing::trace!(%error, leg = self.name, "a frame was refused");
            }
            self.deliver();
        }
    }

    /// Packets that have come or were repaired.
    fn deliver(&mut self) {
        let counters = &self.counters.protect;
        while let Some((_, packet)) = self.leg.next_packet() {
            counters.packets_received.add(1);
            counters.bytes_received.add(packet.len() as u64);
            if let Err(error) = self.ends.tun.write(packet) {
                tracing::debug!(%error, "a packet of the peer was not taken");
            }
        }
    }

    /// Packets for the peer.
    fn read_packets(&mut self) {
        for _ in 0..BATCH {
            let Ok(length) = self.ends.tun.read(&mut self.buffer) else { break };
            let packet = &mut self.buffer[..length];
            // Packets that the kernel itself sends on a device are ignored.
            if !is_between_hosts(packet) {
                continue;
            }
            match fit(packet, self.mtu) {
                Fit::Fits => {
                    clamp_mss(packet, self.mtu);
                    let choice = match self.wanted.class {
                        ProtectClass::Auto => Choice::Auto,
                        ProtectClass::Latency => Choice::Latency,
                        ProtectClass::Bulk => Choice::Bulk,
                    };
                    self.queue.push(packet.to_vec(), choice, now());
                }
                Fit::TooBig(error) => {
                    self.counters.protect.too_big.add(1);
                    // It arrives as if from beyond the leg, and is translated back if its cause was.
                    let _ = self.ends.tun.write(&error);
                }
                Fit::Silent => self.counters.protect.dropped.add(1),
            }
        }
    }

    /// Frames that may leave now.
    fn send(&mut self) {
        let headers = self.ends.transport.headers();
        for _ in 0..BATCH {
            let now = now();
            if !self.pacer.is_free(now) {
                return;
            }
            let (queue, counters) = (&mut self.queue, &self.counters.protect);
            let sent = self.leg.poll(now, &mut self.frame, || {
                let (class, packet) = queue.pop(now)?;
                counters.packets_sent.add(1);
                counters.bytes_sent.add(packet.len() as u64);
                Some((class, packet))
            });
            let Some(sent) = sent else { return };
            self.ends.transport.send(&self.frame);
            let bytes = self.frame.len() + headers;
            self.counters.protect.wire_bytes.add(bytes as u64);
            self.pacer.on_sent(now, bytes, self.rate);
            let is_data = matches!(sent, Sent::Source | Sent::Retransmission | Sent::Repair);
            if sent != Sent::Hello {
                self.progress.on_sent(bytes, is_data);
            }
            if is_data {
                self.busy_until = now + Queue::IDLE;
            }
        }
    }

    /// Sends what waits at once: nobody goes on with the queue.
    fn flush(&mut self) {
        // Without a rate nothing is held back; the next tick, if there is one, sets it anew.
        (self.pacer, self.rate) = (Pacer::default(), None);
        while self.leg.is_alive(now()) && !self.queue.is_empty() {
            let before = self.queue.len();
            self.send();
            if self.queue.len() == before {
                break;
            }
        }
    }

    /// What has to be done now and then.
    fn tick(&mut self) {
        let now = now();
        if now < self.next_tick {
            return;
        }
        self.next_tick = now + TICK;
        self.follow_session();
        self.keep_alive(now);
        self.share_rate(now);
        self.publish();
    }

    fn follow_session(&mut self) {
        let sessions = self.leg.stats().sessions;
        if sessions != self.sessions {
            self.sessions = sessions;
            self.progress.restart();
        }
        if let Some((counts, rtt, _)) = self.leg.reported() {
            self.progress.on_report(counts);
            self.min_rtt = [self.min_rtt, rtt].into_iter().flatten().min();
        }
    }

    /// Packets are diverted as long as the peer is alive.
    fn keep_alive(&mut self, now: Time) {
        let is_alive = self.leg.is_alive(now);
        if is_alive {
            self.ends.divert.divert_until(now + DIVERT_FOR);
            self.stands_by_until = None;
        } else if self.stands_by_until.is_some_and(|until| until <= now) {
            self.ends.divert.divert_until(Time::ZERO);
            self.stands_by_until = None;
        }
        if is_alive == self.was_alive {
            return;
        }
        self.was_alive = is_alive;
        self.counters.protect.alive.set(u64::from(is_alive));
        if is_alive {
            tracing::info!("leg {}: the peer answers: packets are protected", self.name);
            return;
        }
        self.ends.divert.divert_until(Time::ZERO);
        // They are seconds old.
        let dropped = self.queue.drain().count();
        self.counters.protect.dropped.add(dropped as u64);
        tracing::warn!(
            "leg {}: the peer is silent: packets are not protected; look at it, at the key and at firewalls for its \
             UDP port",
            self.name
        );
    }

    /// Tells the rate controller, and obeys.
    fn share_rate(&mut self, now: Time) {
        let is_backlogged = !self.queue.is_empty();
        let rtt = self.leg.rtt().unwrap_or(self.wanted.rtt);
        self.waiting.observe(self.queue.flows(), now, rtt);
        let is_active = is_backlogged || self.progress.in_flight() || now < self.busy_until;
        let told = self.rated.as_ref().and_then(|Rated(sender)| {
            sender.report(is_active.then(|| self.report(is_backlogged)).flatten());
            sender.rate()
        });
        let configured = self.wanted.rate.map(|rate| rate.bps() as f64 / 8.0);
        self.rate = told.or(configured);
        let rate = self.rate.unwrap_or_default();
        if !is_active {
            self.risen = (0.0, now);
        } else if rate > 1.1 * self.risen.0 {
            self.risen = (rate, now);
        }
        self.queue.set_rate(rate);
        self.queue.set_rtt(rtt);
        self.queue.set_settling(now - self.risen.1 < Queue::SETTLES_IN * rtt);
    }

    /// `None` before the first report of the session.
    fn report(&self, backlogged: bool) -> Option<Report> {
        let (_, rtt, at) = self.leg.reported()?;
        let Progress { sent, delivered, lost, .. } = self.progress;
        let longer = rtt.zip(self.min_rtt).map(|(rtt, least)| rtt.saturating_sub(least));
        Some(Report {
            id: 0,
            weight: self.waiting.weight(self.wanted.weight),
            at,
            sent,
            delivered,
            lost,
            in_flight: self.progress.in_flight(),
            rtt,
            min_rtt: self.min_rtt,
            // The rest is the other box's queue, which it sees to.
            forward: longer.map(|longer| longer.saturating_sub(self.leg.return_queue())),
            window_limited: false,
            backlogged,
        })
    }

    /// Adds what has happened to the counters.
    fn publish(&mut self) {
        let (counters, stats, queue) = (&self.counters.protect, self.leg.stats(), self.queue.stats());
        let told = &mut self.told;
        counters.sessions.add(stats.sessions - told.stats.sessions);
        counters.refused.add(stats.refused - told.stats.refused);
        // Those of a session begin at zero.
        let since = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        let (sender, receiver) = (&told.stats.sender, &told.stats.receiver);
        counters.frames_repair.add(since(stats.sender.repairs, sender.repairs));
        counters.retransmitted.add(since(stats.sender.retransmissions, sender.retransmissions));
        counters.repaired.add(since(stats.receiver.repaired, receiver.repaired));
        counters.skipped.add(since(stats.receiver.skipped, receiver.skipped));
        told.stats = stats;
        counters.marked.add(queue.marked - told.marked);
        let dropped = queue.dropped_codel + queue.dropped_full;
        counters.dropped.add(dropped - told.dropped);
        (told.marked, told.dropped) = (queue.marked, dropped);
        let diverted = self.ends.divert.counters();
        counters.silent_passed.add(diverted.passed - told.passed);
        counters.silent_dropped.add(diverted.dropped - told.silent_dropped);
        (told.passed, told.silent_dropped) = (diverted.passed, diverted.dropped);
        counters.queued_bytes.set(self.queue.len_bytes() as u64);
        counters.held_bytes.set(self.leg.held_bytes() as u64);
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        self.counters.protect.legs.set(0);
        self.counters.protect.alive.set(0);
    }
}

/// `CLOCK_MONOTONIC`, which eBPF programs read, too.
pub(super) fn now() -> Time {
    let now = clock_gettime(ClockId::Monotonic);
    Time::from_nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}
