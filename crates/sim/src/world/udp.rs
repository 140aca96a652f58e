//! UDP streams: datagrams leave at their times, and are copied where paths part.

use super::{Attachment, World};
use crate::events::{Alarm, Event};
use crate::network::Pipe;
use crate::packet::{Datagram, Packet, Payload};

impl World<'_> {
    /// Adds the streams of the scenario behind all its flows.
    pub(super) fn add_udp(&mut self) {
        for (stream, spec) in (0..).zip(&self.scenario.udp) {
            self.udp.add(spec);
            self.events.schedule(spec.start, Event::Datagram(stream));
        }
        let attachment = |(number, branch): (u32, &crate::udp::Branch)| Attachment {
            flow: branch.stream,
            peer: number,
            path: branch.path.iter().map(|&hop| Pipe::index(hop)).collect(),
            alarm: Alarm::default(),
            slot: None,
        };
        self.attachments.extend((0..).zip(&self.udp.branches).map(attachment));
    }

    /// The next datagram of a stream is due.
    #[inline(never)]
    pub(super) fn send_datagram(&mut self, stream: usize) {
        let spec = &self.scenario.udp[stream];
        let sent = &mut self.udp.streams[stream].sent;
        let number = sent.len() as u32;
        sent.push(self.now);
        match spec.sent_at(u64::from(number) + 1) {
            next if next < spec.end => self.events.reschedule_first(next),
            _ => self.events.remove_first(),
        }
        let payload = Payload::Udp(Datagram { number, ip_bytes: spec.packet });
        let packet = Packet { payload, from: 0, hop: 0, corrupted: false };
        for root in 0..self.udp.streams[stream].roots.len() {
            self.enter_branch(self.udp.streams[stream].roots[root], packet);
        }
    }

    /// A datagram has come to the end of a branch.
    #[inline(never)]
    pub(super) fn end_branch(&mut self, branch: usize, packet: Packet) {
        let at = &self.udp.branches[branch];
        // The receiver's host discards a packet whose checksum is wrong; routers take no notice.
        if let (Payload::Udp(datagram), Some(receiver), false) =
            (packet.payload, at.receiver, packet.corrupted)
        {
            let arrivals = &mut self.udp.streams[at.stream as usize].arrivals[receiver as usize];
            arrivals.arrive(datagram.number, self.now);
        }
        for next in 0..self.udp.branches[branch].next.len() {
            self.enter_branch(self.udp.branches[branch].next[next], packet);
        }
    }

    fn enter_branch(&mut self, branch: u32, packet: Packet) {
        let from = self.endpoints.len() as u32 + branch;
        self.send(Packet { from, hop: 0, ..packet });
    }
}
