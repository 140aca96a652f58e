//! The packets of a run that are on plain links.

use std::ops::{Index, IndexMut};

use crate::packet::Packet;

/// The number of a packet among those of a run, from its insertion until its removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PacketId(u32);

/// The packets on their way. Each is written once, where it is sent; the queues of links hold its number.
#[derive(Debug, Default)]
pub(crate) struct Packets {
    slots: Vec<Packet>,
    /// Slots without a packet. The last one to become free is the next to be used: it is in the cache.
    free: Vec<PacketId>,
}

impl Packets {
    /// Adds a packet.
    #[inline]
    pub(crate) fn insert(&mut self, packet: Packet) -> PacketId {
        if let Some(id) = self.free.pop() {
            self[id] = packet;
            return id;
        }
        self.slots.push(packet);
        // 2³² packets would need 400 GB.
        PacketId(self.slots.len() as u32 - 1)
    }

    /// Removes a packet that has arrived or is lost: its number may be given to another one.
    #[inline]
    pub(crate) fn remove(&mut self, id: PacketId) -> Packet {
        self.free.push(id);
        self[id]
    }
}

impl Index<PacketId> for Packets {
    type Output = Packet;

    #[inline]
    fn index(&self, id: PacketId) -> &Packet {
        &self.slots[id.0 as usize]
    }
}

impl IndexMut<PacketId> for Packets {
    #[inline]
    fn index_mut(&mut self, id: PacketId) -> &mut Packet {
        &mut self.slots[id.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use crate::packet::{Datagram, Payload};

    use super::*;

    fn packet(number: u32) -> Packet {
        let payload = Payload::Udp(Datagram { number, ip_bytes: 100 });
        Packet { payload, from: 0, hop: 0, corrupted: false }
    }

    #[test]
    fn a_number_is_given_anew_only_when_its_packet_has_left() {
        let mut packets = Packets::default();
        let [first, second] = [1, 2].map(|number| packets.insert(packet(number)));
        assert_eq!(packets.remove(first), packet(1));
        let third = packets.insert(packet(3));
        assert_eq!((third, packets[third], packets[second]), (first, packet(3), packet(2)));
        assert_ne!(packets.insert(packet(4)), second);
    }
}
