//! The path of a packet over a link with something at its ends.

use bentpipe_link::{Cause, Fate};

use super::World;
use crate::events::Event;
use crate::network::Pipe;
use crate::packet::Packet;
use crate::protect::Frame;

impl World<'_> {
    /// Forwards the packets that link ends have passed to their nodes.
    #[inline(never)]
    pub(super) fn forward_delivered(&mut self) {
        while let Some(id) = self.delivered.pop_front() {
            self.pass_on(id);
        }
    }

    /// A packet is to enter a link: the link end in front of it is the first to see it.
    #[inline(never)]
    pub(super) fn pass_link_end(&mut self, pipe: u32, packet: Packet) {
        let now = self.now;
        if let Some(near) = &mut self.pipes[pipe as usize].near {
            near.outbound(now, packet);
            self.serve(pipe);
        }
    }

    /// Hands the first frame of a pipe to the link end behind it.
    pub(super) fn arrive_framed(&mut self, pipe: u32) {
        let (now, back) = (self.now, Pipe::back(pipe));
        let Some((frame, next)) = self.pipes[pipe as usize].deliver_frame(now) else {
            return self.events.remove_first();
        };
        self.report_steps(pipe);
        match next {
            Some(at) => self.events.reschedule_first(at),
            None => self.events.remove_first(),
        }
        if self.captures_packets {
            self.capture_received_frame(pipe, &frame);
        }
        if let Some(near) = &mut self.pipes[back as usize].near {
            near.inbound(now, frame);
            self.serve(back);
        }
    }

    /// The link end in front of a pipe is to be woken.
    pub(super) fn wake_link_end(&mut self, pipe: u32) {
        let Some(near) = &mut self.pipes[pipe as usize].near else {
            return self.events.remove_first();
        };
        if near.wake(self.now, &mut self.events) {
            self.serve(pipe);
            if let Some(near) = &mut self.pipes[pipe as usize].near {
                near.awoken(&mut self.events);
            }
        }
    }

    /// Protected legs report to each other from the beginning.
    pub(super) fn start_protected_legs(&mut self) {
        for (index, pipe) in (0..).zip(&mut self.pipes) {
            if let Some(near) = pipe.near.as_mut().filter(|near| near.is_protected()) {
                near.settle(self.now, &mut self.events, Event::Alarm(index));
            }
        }
    }

    /// After an event at a link end: offers its frames to the link. The packets for its node wait until the
    /// event has been handled, because an endpoint may be sending right now.
    fn serve(&mut self, pipe: u32) {
        while let Some(near) = &mut self.pipes[pipe as usize].near
            && let Some(frame) = near.poll_to_link(self.now)
        {
            self.send_frame(pipe, frame);
        }
        let Some(near) = &mut self.pipes[pipe as usize].near else { return };
        while let Some(mut packet) = near.poll_to_host() {
            let path = &self.attachments[packet.from as usize].path;
            if near.is_protected()
                && let Some(hop) = path.iter().position(|&link| link == Pipe::back(pipe))
            {
                packet.hop = hop as u16;
            }
            debug_assert_eq!(
                path[packet.hop as usize],
                Pipe::back(pipe),
                "a packet of another link: {packet:?}"
            );
            packet.hop += 1;
            self.delivered.push_back(self.packets.insert(packet));
        }
        near.settle(self.now, &mut self.events, Event::Alarm(pipe));
    }

    fn send_frame(&mut self, pipe: u32, frame: Frame) {
        let packet = if self.watches_packets { frame.packet().copied() } else { None };
        let captured = if self.captures_packets { Some(frame.clone()) } else { None };
        let serial = frame.serial();
        let (fate, next) = self.pipes[pipe as usize].offer_frame(self.now, frame);
        if fate == Fate::Drop(Cause::QueueFull)
            && let Some((near, serial)) = self.pipes[pipe as usize].near.as_mut().zip(serial)
        {
            near.on_refused(serial);
        }
        if let Some(next) = next {
            self.events.schedule(next, Event::Frame(pipe));
        }
        self.report_steps(pipe);
        if let Some(packet) = packet {
            self.report(pipe, &packet, fate);
        }
        if let Some(frame) = captured {
            self.capture_sent_frame(pipe, &frame, fate);
        }
    }
}
