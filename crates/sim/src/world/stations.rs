//! The path of a packet over a link with stations.

use bentpipe_link::agent::Frame;
use bentpipe_link::{Cause, Fate};

use super::World;
use crate::events::Event;
use crate::network::Pipe;
use crate::packet::Packet;

impl World<'_> {
    /// Forwards the packets that stations have passed to their nodes.
    #[inline(never)]
    pub(super) fn forward_delivered(&mut self) {
        while let Some(packet) = self.delivered.pop_front() {
            self.pass_on(packet);
        }
    }

    /// A packet is to enter a link: the station in front of it is the first to see it.
    #[inline(never)]
    pub(super) fn pass_station(&mut self, pipe: u32, packet: Packet) {
        let now = self.now;
        if let Some(station) = self.pipes[pipe as usize].station_mut() {
            station.outbound(now, packet);
            self.serve(pipe);
        }
    }

    /// Hands the first frame of a pipe to the station at its far end.
    pub(super) fn arrive_framed(&mut self, pipe: u32) {
        let (now, back) = (self.now, Pipe::back(pipe));
        let Some((frame, next)) = self.pipes[pipe as usize].deliver_frame(now) else {
            return self.events.remove_first();
        };
        match next {
            Some(at) => self.events.reschedule_first(at),
            None => self.events.remove_first(),
        }
        if let Some(station) = self.pipes[back as usize].station_mut() {
            station.inbound(now, frame);
            self.serve(back);
        }
    }

    /// The station in front of a pipe is to be woken.
    pub(super) fn wake_station(&mut self, pipe: u32) {
        let Some(station) = self.pipes[pipe as usize].station_mut() else {
            return self.events.remove_first();
        };
        if station.wake(self.now, &mut self.events) {
            self.serve(pipe);
        }
    }

    /// After an event at a station: offers its frames to the link. The packets for its node wait until the
    /// event has been handled, because an endpoint may be sending right now.
    fn serve(&mut self, pipe: u32) {
        while let Some(frame) = self.pipes[pipe as usize].station_mut().and_then(|post| post.next_frame()) {
            self.send_frame(pipe, frame);
        }
        let Some(station) = self.pipes[pipe as usize].station_mut() else { return };
        while let Some(packet) = station.next_packet() {
            let path = &self.attachments[packet.from as usize].path;
            debug_assert_eq!(
                path[packet.hop as usize],
                Pipe::back(pipe),
                "a packet of another link: {packet:?}"
            );
            self.delivered.push_back(Packet { hop: packet.hop + 1, ..packet });
        }
        station.settle(self.now, &mut self.events, Event::Alarm(pipe));
    }

    fn send_frame(&mut self, pipe: u32, frame: Frame<Packet>) {
        let packet = if self.watches_packets { frame.packet().copied() } else { None };
        let serial = frame.serial();
        let (fate, next) = self.pipes[pipe as usize].offer_frame(self.now, frame);
        if fate == Fate::Drop(Cause::QueueFull)
            && let Some((station, serial)) = self.pipes[pipe as usize].station_mut().zip(serial)
        {
            station.on_refused(serial);
        }
        if let Some(next) = next {
            self.events.schedule(next, Event::Frame(pipe));
        }
        if let Some(packet) = packet {
            self.report(pipe, &packet.segment, packet.from, fate);
        }
    }
}
