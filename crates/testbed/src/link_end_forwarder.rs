use std::collections::VecDeque;
use std::sync::Arc;

use bentpipe_link::agent::{Frame, Packet};
use bentpipe_link::{Arrival, Cause, IpPacket};
use rustix::io::Errno;

use crate::end::End;
use crate::in_flight::{Flying, InFlight};
use crate::line::Line;
use crate::waker::Waker;

/// Carries frames in one direction of a link between two stations, on a thread of its own.
///
/// The walk of a packet: read from the TUN device at the near end, given to the station there; what that gives for the link is
/// judged by the [`Direction`](bentpipe_link::Direction), kept until its time, given to the station at the far end; what
/// that gives for its host is written to the TUN device there.
#[derive(Debug)]
pub(crate) struct LinkEndForwarder {
    line: Line,
    /// From which it sends.
    near: Arc<End>,
    /// At which it delivers.
    far: Arc<End>,
    /// Rung when there is something to do at one of the two.
    bell: Arc<Waker>,
    in_flight: InFlight<Frame<IpPacket>>,
    buffer: Box<[u8]>,
    /// Empty between turns, as is the next one; kept for their memory.
    to_link: VecDeque<Frame<IpPacket>>,
    to_host: VecDeque<IpPacket>,
}

impl LinkEndForwarder {
    pub(crate) fn new(line: Line, near: &Arc<End>, far: &Arc<End>, bell: Arc<Waker>) -> Self {
        Self {
            near: Arc::clone(near),
            far: Arc::clone(far),
            bell,
            in_flight: InFlight::new(),
            buffer: vec![0; line.mtu].into_boxed_slice(),
            to_link: VecDeque::new(),
            to_host: VecDeque::new(),
            line,
        }
    }

    /// Carries frames until it is asked to stop, or a device fails.
    pub(crate) fn run(mut self) {
        self.line.clone().carry(|| self.turn());
    }

    fn turn(&mut self) -> rustix::io::Result<()> {
        self.deliver_due();
        self.far.collect(&mut self.to_host);
        self.write_all();
        let timer = self.near.attend(&mut self.to_link);
        self.send_all();
        match self.receive() {
            Err(Errno::AGAIN) => {
                let arrival = self.in_flight.next_at().unwrap_or(bentpipe_units::Time::MAX);
                self.line.sleep(Some(arrival.min(timer)), Some(&self.bell))
            }
            outcome => outcome,
        }
    }

    /// Reads one packet at the near end for the station there; `EAGAIN` if none is there.
    fn receive(&mut self) -> rustix::io::Result<()> {
        let length = self.line.from.read(&mut self.buffer)?;
        let packet = IpPacket::new(&self.buffer[..length]);
        self.near.outbound(packet, &mut self.to_link);
        self.send_all();
        Ok(())
    }

    /// Lets the model decide the fate of what is for the link.
    fn send_all(&mut self) {
        while let Some(frame) = self.to_link.pop_front() {
            let packet = frame.packet().map_or(0, Packet::ip_length);
            let sent = match self.line.offer(frame.length(), packet) {
                Ok(sent) => sent,
                Err(Cause::QueueFull) => {
                    if let Some(serial) = frame.serial() {
                        self.near.refuse(serial);
                    }
                    continue;
                }
                Err(_) => continue,
            };
            if let Some(arrival) = sent.mangled.duplicate {
                self.in_flight.launch(sent.duplicate(arrival.at, spoil(frame.clone(), arrival)));
            }
            self.in_flight.launch(sent.packet(spoil(frame, sent.mangled.packet)));
        }
    }

    /// Gives every frame whose time has come to the far station. The clock is asked again for each: writing what that gives
    /// for its host takes as long as its way through the far kernel.
    fn deliver_due(&mut self) {
        while let Some(next) = self.in_flight.next_due(self.line.clock.now()) {
            if !self.line.state.is_cut(&next) {
                let Flying { at, load, .. } = next;
                self.far.inbound(load, &mut self.to_host);
                self.write_all();
                self.line.state.record_lateness(at, self.line.clock.now());
            }
        }
    }

    fn write_all(&mut self) {
        while let Some(packet) = self.to_host.pop_front() {
            self.line.write(packet.bytes());
        }
    }
}

/// Does to the packet in a frame what happened to it. The header of a link layer is not touched.
fn spoil(frame: Frame<IpPacket>, arrival: Arrival) -> Frame<IpPacket> {
    if arrival.flipped_bit.is_none() {
        return frame;
    }
    frame.map_packet(|packet| {
        let mut bytes = packet.bytes().to_vec();
        arrival.apply_to(&mut bytes);
        IpPacket::new(bytes)
    })
}
