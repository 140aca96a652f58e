//! The Snoop thread: from the devices to the agent and back.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bentpipe_kernel::tun::Tun;
use bentpipe_link::IpPacket;
use bentpipe_link::agent::snoop::SnoopConfig;
use bentpipe_link::ip::restore_hop;
use bentpipe_units::Time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::deferred_accept::is_between_hosts;
use crate::intercept::tun::{MTU, QUEUE};
use crate::stats::Counters;
use crate::types::mailbox::Mailbox;

use super::supervisor::{AgentSupervisor, Direction};

/// Packets of one direction that are read before the other has its turn, and the clock.
const BATCH: usize = 64;
/// The thread wakes at least so often, so that it recognises that it was stopped.
const WAKE_INTERVAL: Duration = Duration::from_millis(500);
/// After such a stop the agent's state is stale: its timers would all expire at once, and the rules may have
/// let packets pass that it has not seen.
const STALL: Duration = Duration::from_secs(1);
/// The agent's timers are no finer.
const TICK: Duration = Duration::from_millis(1);

pub(super) struct Forwarder {
    devices: Arc<[Tun; 2]>,
    agent: AgentSupervisor,
    mailbox: Arc<Mailbox<SnoopConfig>>,
    counters: Arc<Counters>,
    buffer: Box<[u8]>,
    /// The zero of the agent's clock.
    epoch: Instant,
}

impl Forwarder {
    pub(super) fn new(
        devices: Arc<[Tun; 2]>,
        config: SnoopConfig,
        mailbox: Arc<Mailbox<SnoopConfig>>,
        counters: Arc<Counters>,
    ) -> Self {
        let (agent, buffer) = (AgentSupervisor::new(config), vec![0; MTU].into());
        Self { devices, agent, mailbox, counters, buffer, epoch: Instant::now() }
    }

    /// Runs until the flag is set. If the devices fail they are closed, so that packets take their usual
    /// route; connections are still split.
    pub(super) fn run(mut self, stop: &AtomicBool) {
        let mailbox = self.mailbox.clone();
        if let Err(error) = self.serve(stop) {
            tracing::error!(%error, "Snoop failed: snooped flows pass without it until restart");
            self.flush();
        }
        drop(self);
        while !stop.load(Ordering::Acquire) {
            mailbox.take();
            let _ = poll(
                &mut [PollFd::new(&*mailbox, PollFlags::IN)],
                Timespec::try_from(WAKE_INTERVAL).ok().as_ref(),
            );
        }
    }

    fn serve(&mut self, stop: &AtomicBool) -> io::Result<()> {
        let mut last_round = Instant::now();
        while !stop.load(Ordering::Acquire) {
            let has_mail = self.wait()?;
            let before = std::mem::replace(&mut last_round, Instant::now());
            if last_round - before > STALL {
                self.restart()?;
            }
            if has_mail {
                self.read_mail();
            }
            for direction in [Direction::FromLink, Direction::ToLink] {
                self.receive(direction)?;
            }
            self.agent.on_timer(self.now());
            self.send();
            self.publish();
        }
        self.flush();
        self.pass_what_waits()
    }

    /// Waits for a packet, a message (true), or a timer of the agent.
    fn wait(&self) -> io::Result<bool> {
        let due = self.agent.wake_at().since(self.now()).clamp(TICK, WAKE_INTERVAL);
        let [to_link, from_link] = &*self.devices;
        let mut fds = [
            PollFd::new(to_link, PollFlags::IN),
            PollFd::new(from_link, PollFlags::IN),
            PollFd::new(&*self.mailbox, PollFlags::IN),
        ];
        match poll(&mut fds, Timespec::try_from(due).ok().as_ref()) {
            Ok(_) => Ok(!fds[2].revents().is_empty()),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn read_mail(&mut self) {
        if let Some(config) = self.mailbox.take().pop_back()
            && self.agent.configure(config)
        {
            self.counters.snoop.restarts.add(1);
            self.send();
        }
    }

    /// Passes some packets of this direction to the agent, and leaves the rest for the next round.
    fn receive(&mut self, direction: Direction) -> io::Result<()> {
        let now = self.now();
        for _ in 0..BATCH {
            let Some(packet) = self.read(direction)? else { break };
            self.agent.take(now, direction, packet);
            self.send();
        }
        Ok(())
    }

    /// The next packet from a device, with its hop limit restored.
    fn read(&mut self, direction: Direction) -> io::Result<Option<IpPacket>> {
        loop {
            match self.devices[direction as usize].read(&mut self.buffer) {
                Ok(length) => {
                    let packet = &mut self.buffer[..length];
                    // Packets that the kernel itself sends on a device are ignored.
                    if is_between_hosts(packet) {
                        self.counters.snoop.packets.add(1);
                        restore_hop(packet);
                        return Ok(Some(IpPacket::new(&*packet)));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                // Without its device there is no route into it either.
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes the agent's output to the devices; the kernel forwards it.
    fn send(&mut self) {
        while let Some((direction, packet)) = self.agent.poll() {
            self.write(direction, &packet);
        }
    }

    fn write(&self, direction: Direction, packet: &IpPacket) {
        if let Err(error) = self.devices[direction as usize].write(packet.bytes()) {
            tracing::debug!(%error, ?direction, "cannot write a packet");
            self.counters.snoop.dropped.add(1);
        }
    }

    /// Sends the packets in the agent before those that have come after them.
    fn flush(&mut self) {
        self.agent.flush();
        self.send();
        self.publish();
    }

    /// Starts over after a stop.
    fn restart(&mut self) -> io::Result<()> {
        tracing::debug!("the daemon was stopped for a while: the agent starts without state");
        self.agent.restart();
        self.send();
        self.counters.snoop.restarts.add(1);
        self.pass_what_waits()
    }

    /// Forwards the packets in the devices unchanged.
    fn pass_what_waits(&mut self) -> io::Result<()> {
        for direction in [Direction::FromLink, Direction::ToLink] {
            for _ in 0..QUEUE {
                let Some(packet) = self.read(direction)? else { break };
                self.write(direction, &packet);
            }
        }
        Ok(())
    }

    /// Shows what the agent has counted.
    fn publish(&self) {
        let (counters, agent) = (&self.counters.snoop, self.agent.counters());
        counters.cached.set(agent.cached);
        counters.not_cached.set(agent.not_cached);
        counters.retransmitted.set(agent.retransmitted);
        counters.timed_out.set(agent.timed_out);
        counters.suppressed.set(agent.suppressed);
        counters.sack_hidden.set(agent.sack_hidden);
        counters.yielded.set(agent.yielded);
        counters.flows.set(agent.flows);
        counters.flows_passed.set(agent.flows_passed);
        counters.queue_dropped.set(agent.queue_dropped);
        counters.queued_bytes.set(agent.queued_bytes);
        counters.most_queued_bytes.set(agent.most_queued_bytes);
        counters.held_bytes.set(agent.held_bytes);
        counters.most_held_bytes.set(agent.most_held_bytes);
    }

    fn now(&self) -> Time {
        Time::ZERO + self.epoch.elapsed()
    }
}
