//! What captures at the ends of links see.

use bentpipe_link::Fate;

use super::World;
use crate::observer::{CaptureEvent, CapturedContent, CapturedPacket};
use crate::packet::{Packet, Payload};
use crate::protect::Frame;

impl World<'_> {
    /// A packet is offered to a pipe.
    #[inline(never)]
    pub(super) fn capture_sent(&mut self, pipe: u32, packet: &Packet, fate: Fate) {
        if self.captures_packets {
            self.capture(sending_end(pipe), CaptureEvent::Sent(fate), self.content(packet));
        }
    }

    /// A packet comes out of a pipe.
    #[inline(never)]
    pub(super) fn capture_received(&mut self, pipe: u32, packet: Packet) {
        let event = CaptureEvent::Received { is_corrupted: packet.corrupted };
        self.capture(receiving_end(pipe), event, self.content(&packet));
    }

    /// A frame is offered to a pipe.
    pub(super) fn capture_sent_frame(&mut self, pipe: u32, frame: &Frame, fate: Fate) {
        match frame {
            Frame::Coded(bytes) => {
                self.capture(sending_end(pipe), CaptureEvent::Sent(fate), CapturedContent::Frame(bytes));
            }
            Frame::Plain(frame) => {
                frame.packet().into_iter().for_each(|packet| self.capture_sent(pipe, packet, fate));
            }
        }
    }

    /// A frame comes out of a pipe.
    pub(super) fn capture_received_frame(&mut self, pipe: u32, frame: &Frame) {
        match frame {
            Frame::Coded(bytes) => {
                // Its wrong bit, if it has one, is in the bytes.
                let event = CaptureEvent::Received { is_corrupted: false };
                self.capture(receiving_end(pipe), event, CapturedContent::Frame(bytes));
            }
            Frame::Plain(frame) => {
                frame.packet().into_iter().for_each(|&packet| self.capture_received(pipe, packet));
            }
        }
    }

    fn content<'p>(&self, packet: &'p Packet) -> CapturedContent<'p> {
        match &packet.payload {
            Payload::Tcp(segment) => CapturedContent::Segment { endpoint: packet.from as usize, segment },
            Payload::Udp(datagram) => CapturedContent::Datagram {
                stream: self.attachments[packet.from as usize].flow as usize,
                number: datagram.number,
                ip_bytes: datagram.ip_bytes,
            },
        }
    }

    fn capture(&mut self, (link, end): (usize, usize), event: CaptureEvent, content: CapturedContent<'_>) {
        self.observer.captured(&CapturedPacket { now: self.now, link, end, event, content });
    }
}

/// The link of a pipe, and the end in front of it: the forward pipe leads away from the first node.
fn sending_end(pipe: u32) -> (usize, usize) {
    (pipe as usize / 2, pipe as usize % 2)
}

fn receiving_end(pipe: u32) -> (usize, usize) {
    (pipe as usize / 2, 1 - pipe as usize % 2)
}
