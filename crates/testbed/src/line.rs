use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use bentpipe_link::{Cause, Mangled};
use bentpipe_units::Time;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::clock::{Clock, timespec};
use crate::forwarder_state::ForwarderState;
use crate::in_flight::Flying;
use crate::signals;
use crate::tun::Tun;
use crate::waker::{Stop, Waker};

/// One direction of the link as a carrier works on it: the devices at its ends, and what decides over packets.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) from: Arc<Tun>,
    pub(crate) to: Arc<Tun>,
    pub(crate) clock: Clock,
    /// Propagation delay.
    pub(crate) delay: Duration,
    /// The longest packet, bytes.
    pub(crate) mtu: usize,
    pub(crate) state: Arc<ForwarderState>,
    pub(crate) stop: Arc<Stop>,
}

impl Line {
    /// Takes one turn after the other until the end is asked for, or a turn fails.
    pub(crate) fn carry(&self, mut turn: impl FnMut() -> rustix::io::Result<()>) {
        become_prompt();
        while !self.stop.is_asked() {
            if let Err(errno) = turn().or_else(ignore_interruption) {
                return self.state.fail(errno);
            }
        }
    }

    /// Offers to the model what has `length` bytes on the link, of which `packet` are the IP packet in it. When it arrives,
    /// and what arrives of it; why not, if it is lost.
    pub(crate) fn offer(&self, length: usize, packet: usize) -> Result<Sent, Cause> {
        let (arrives, mangled) = self.state.offer(self.clock.now(), length, packet)?;
        let departure = Time::from_nanos(arrives.as_nanos().saturating_sub(self.delay.as_nanos() as u64));
        Ok(Sent { departure, length, mangled })
    }

    /// Writes a packet to the far end; whether it has arrived there.
    pub(crate) fn write(&self, packet: &[u8]) -> bool {
        // Corruption has made it a packet of no IP, of which a host would see nothing. The device would count it among what
        // it dropped.
        if !packet.first().is_some_and(|byte| matches!(byte >> 4, 4 | 6)) {
            return false;
        }
        let taken = self.to.write(packet).is_ok();
        self.state.count_written(packet.len(), taken);
        taken
    }

    /// Sleeps until a packet is there at the near end, the bell rings, it is `until` or the end is asked for. The bell is silent
    /// then.
    pub(crate) fn sleep(&self, until: Option<Time>, bell: Option<&Waker>) -> rustix::io::Result<()> {
        let timeout = until.map(|until| timespec(until - self.clock.now()));
        let [near, stop] = [self.from.as_fd(), self.stop.as_fd()];
        let mut events = [near, stop, bell.map_or(stop, AsFd::as_fd)]
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let count = if bell.is_some() { 3 } else { 2 };
        let outcome = poll(&mut events[..count], timeout.as_ref()).map(drop);
        if let Some(bell) = bell.filter(|_| events[2].revents().contains(PollFlags::IN)) {
            bell.silence();
        }
        outcome
    }
}

/// What the model lets arrive.
pub(crate) struct Sent {
    departure: Time,
    length: usize,
    pub(crate) mangled: Mangled,
}

impl Sent {
    /// The packet itself.
    pub(crate) fn packet<T>(&self, load: T) -> Flying<T> {
        self.flying(self.mangled.packet.at, false, load)
    }

    pub(crate) fn duplicate<T>(&self, at: Time, load: T) -> Flying<T> {
        self.flying(at, true, load)
    }

    fn flying<T>(&self, at: Time, duplicate: bool, load: T) -> Flying<T> {
        Flying { at, departure: self.departure, length: self.length, duplicate, load }
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
