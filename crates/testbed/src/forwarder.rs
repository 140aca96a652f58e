use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::sync::Arc;

use bentpipe_link::agent::{Frame, Packet};
use bentpipe_link::packet_log::{Crossing, Step};
use bentpipe_link::{Arrival, Cause, InFlight, IpPacket};
use bentpipe_units::Time;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::clock::{Clock, timespec};
use crate::end::End;
use crate::forwarder_state::ForwarderState;
use crate::recorder::Recorder;
use crate::signals;
use crate::tun::Tun;
use crate::waker::{Stop, Waker};

/// Forwards packets in one direction of a link, on a thread of its own.
///
/// A packet is read from the TUN device at the near end and passes the agents there; the
/// [`Direction`](bentpipe_link::Direction) decides the fate of the frame that they send; it is kept until its
/// time, passes the agents at the far end, and is written to the TUN device there.
#[derive(Debug)]
pub(crate) struct Forwarder {
    pub(crate) from: Arc<Tun>,
    pub(crate) to: Arc<Tun>,
    /// The end from which it sends.
    pub(crate) near: Arc<End>,
    /// The end at which it delivers.
    pub(crate) far: Arc<End>,
    /// Wakes it when there is something to do at one of the two.
    pub(crate) waker: Arc<Waker>,
    pub(crate) clock: Clock,
    pub(crate) state: Arc<ForwarderState>,
    pub(crate) stop: Arc<Stop>,
    pub(crate) buffers: Buffers,
    /// Where there is one, it learns of every packet.
    pub(crate) recorder: Option<Recorder>,
    /// Frames offered to the link so far.
    pub(crate) offered: u64,
}

/// The memory of a forwarder.
#[derive(Debug)]
pub(crate) struct Buffers {
    in_flight: InFlight<Transmission>,
    /// As long as the longest packet.
    packet: Box<[u8]>,
    /// Empty between two steps, as is the next one; kept for their memory.
    to_link: VecDeque<Frame<IpPacket>>,
    to_host: VecDeque<IpPacket>,
}

/// One copy of a frame on the link.
#[derive(Debug)]
struct Transmission {
    frame: Frame<IpPacket>,
    /// Which of the frames that were offered to the link it is, from 1 on.
    number: u64,
    crossing: Crossing,
}

impl Buffers {
    /// For packets of at most `mtu` bytes.
    pub(crate) fn new(mtu: usize) -> Self {
        Self {
            in_flight: InFlight::default(),
            packet: vec![0; mtu].into_boxed_slice(),
            to_link: VecDeque::new(),
            to_host: VecDeque::new(),
        }
    }
}

impl Forwarder {
    /// Forwards packets until it is asked to stop, or a device fails.
    pub(crate) fn run(mut self) {
        become_prompt();
        while !self.stop.is_asked() {
            if let Err(errno) = self.step().or_else(ignore_interruption) {
                let _ = self.state.failure.set(errno);
                break;
            }
        }
        if let Some(recorder) = &self.recorder {
            let impairments = *self.state.direction().impairment_counters();
            recorder.end(self.clock.now(), self.state.counters(), impairments);
        }
    }

    fn step(&mut self) -> rustix::io::Result<()> {
        self.deliver_due();
        self.far.take_for_host(&mut self.buffers.to_host);
        self.write_all();
        let timer = self.near.run_timer(&mut self.buffers.to_link);
        self.send_all();
        match self.receive() {
            Err(Errno::AGAIN) => {
                let arrival = self.buffers.in_flight.next_at().unwrap_or(Time::MAX);
                self.sleep_until(arrival.min(timer))
            }
            outcome => outcome,
        }
    }

    /// Reads one packet at the near end for the agents there; `EAGAIN` if there is none.
    fn receive(&mut self) -> rustix::io::Result<()> {
        let length = self.from.read(&mut self.buffers.packet)?;
        if let Some(recorder) = &self.recorder {
            recorder.sent_by_host(&self.buffers.packet[..length]);
        }
        let packet = IpPacket::new(&self.buffers.packet[..length]);
        self.near.outbound(packet, &mut self.buffers.to_link);
        self.send_all();
        Ok(())
    }

    /// Offers to the model every frame that the near end sends, and puts the copies that will arrive among
    /// those in flight.
    fn send_all(&mut self) {
        while let Some(frame) = self.buffers.to_link.pop_front() {
            let ip_bytes = frame.packet().map_or(0, Packet::ip_length);
            let entered = self.clock.now();
            self.offered += 1;
            let number = self.offered;
            self.record_entry(entered, &frame);
            let fate = self.state.direction().transmit(entered, frame.length(), ip_bytes);
            let arrivals = match fate {
                Ok(arrivals) => arrivals,
                Err(cause) => {
                    self.record(entered, number, frame.length(), Step::Lost(cause));
                    if let Some(serial) = frame.serial().filter(|_| cause == Cause::QueueFull) {
                        self.near.refuse(serial);
                    }
                    continue;
                }
            };
            let mut launch = |frame, copy: Arrival, is_duplicate| {
                let crossing = Crossing {
                    entered,
                    departure: arrivals.departure,
                    due: copy.at,
                    is_corrupted: copy.flipped_bit.is_some(),
                    is_duplicate,
                };
                let transmission = Transmission { frame: corrupt(frame, copy), number, crossing };
                self.buffers.in_flight.launch(copy.at, transmission);
            };
            if let Some(copy) = arrivals.duplicate {
                launch(frame.clone(), copy, true);
            }
            launch(frame, arrivals.packet, false);
        }
    }

    /// Gives every frame whose time has come to the far end. The clock is asked again for each, because
    /// writing the packets that it delivers takes as long as their way through the far kernel.
    fn deliver_due(&mut self) {
        while let Some((due, transmission)) = self.buffers.in_flight.pop_due(self.clock.now()) {
            let Transmission { frame, number, crossing } = transmission;
            let Crossing { departure, is_duplicate, .. } = crossing;
            let (now, bytes) = (self.clock.now(), frame.length());
            if self.state.outages.cover(departure) {
                if !is_duplicate {
                    self.state.count_cut(bytes);
                    self.record(now, number, bytes, Step::Lost(Cause::Outage));
                }
                continue;
            }
            if !is_duplicate {
                self.state.count_arrived(bytes);
            }
            self.record(now, number, bytes, Step::Arrived(crossing));
            self.far.inbound(frame, &mut self.buffers.to_host);
            self.write_all();
            self.state.lateness.record(self.clock.now() - due);
        }
    }

    fn record_entry(&self, now: Time, frame: &Frame<IpPacket>) {
        if self.recorder.is_some() {
            let queue = self.state.direction().backlog(now);
            self.record(now, self.offered, frame.length(), Step::Entered { queue });
        }
    }

    fn record(&self, at: Time, number: u64, bytes: usize, step: Step) {
        if let Some(recorder) = &self.recorder {
            recorder.frame(at, number, bytes, step);
        }
    }

    fn write_all(&mut self) {
        while let Some(packet) = self.buffers.to_host.pop_front() {
            self.write(packet.bytes());
        }
    }

    /// Writes a packet to the far host.
    fn write(&self, packet: &[u8]) {
        // Corruption may have made it a packet of no IP version, which a host ignores. The device would count
        // it as dropped.
        if packet.first().is_some_and(|byte| matches!(byte >> 4, 4 | 6)) {
            if let Some(recorder) = &self.recorder {
                recorder.received_by_host(packet);
            }
            self.state.count_written(packet.len(), self.to.write(packet).is_ok());
        }
    }

    /// Sleeps until there is a packet at the near end, the waker is notified, `until` has come, or the
    /// forwarder is asked to stop. The waker is cleared then.
    fn sleep_until(&self, until: Time) -> rustix::io::Result<()> {
        let timeout = timespec(until - self.clock.now());
        let fds = [self.from.as_fd(), self.stop.as_fd(), self.waker.as_fd()];
        let mut events = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        poll(&mut events, Some(&timeout))?;
        if events[2].revents().contains(PollFlags::IN) {
            self.waker.clear();
        }
        Ok(())
    }
}

/// Corrupts the packet in a frame as the model says. The header of the link layer is not touched.
fn corrupt(frame: Frame<IpPacket>, arrival: Arrival) -> Frame<IpPacket> {
    if arrival.flipped_bit.is_none() {
        return frame;
    }
    frame.map_packet(|packet| {
        let mut bytes = packet.bytes().to_vec();
        arrival.apply_to(&mut bytes);
        IpPacket::new(bytes)
    })
}

fn ignore_interruption(errno: Errno) -> rustix::io::Result<()> {
    if errno == Errno::INTR { Ok(()) } else { Err(errno) }
}

/// Makes the calling thread wake up on time: no timer slack (the default rounds by 50 µs), and real-time
/// priority where that is permitted. Where it is not, the link works too, but its lateness grows.
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
