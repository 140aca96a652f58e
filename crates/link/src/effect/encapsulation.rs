//! How many bytes a packet takes on the wire.

use std::num::NonZeroU32;

use bentpipe_units::ByteCount;

use super::{Effect, Transit};

/// The bytes that the link layer adds to each packet: a fixed number, then padding to whole frames.
///
/// Frames are not shared: each packet begins a new one. Section packing, which lets the next packet start in
/// the padding of the last, is not modelled; it needs less of the link, most of all for small packets. The
/// default adds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Encapsulation {
    /// Bytes added to each packet.
    pub overhead: ByteCount,
    /// The frames that carry it; `None` sends it as it is, unpadded.
    pub frame: Option<Frame>,
}

/// A link-layer frame of fixed size, for example the 188 bytes of an MPEG-2 transport stream packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Bytes of the encapsulated packet that one frame carries.
    pub payload: NonZeroU32,
    /// Bytes that the frame adds to its payload.
    pub header: u32,
}

impl Frame {
    /// A frame without a header of its own: packets are padded to a multiple of `size` bytes.
    pub const fn padding_to(size: NonZeroU32) -> Self {
        Self { payload: size, header: 0 }
    }
}

impl Encapsulation {
    /// DVB Multi-Protocol Encapsulation in an MPEG-2 transport stream: the forward link of DVB-S.
    ///
    /// The datagram section adds 12 bytes of header and 4 of CRC (ETSI EN 301 192 §7.1); LLC/SNAP is not
    /// used. Each section begins in a new transport stream packet, whose payload then starts with the
    /// one-byte pointer field (ISO/IEC 13818-1 §2.4.4). A transport stream packet is 188 bytes, 4 of which
    /// are its header. A 1500-byte packet takes 9 of them: 1692 bytes.
    pub const fn dvb_mpe() -> Self {
        const SECTION_HEADER: u64 = 12;
        const CRC: u64 = 4;
        const POINTER_FIELD: u64 = 1;
        Self {
            overhead: ByteCount::new(SECTION_HEADER + CRC + POINTER_FIELD),
            frame: Some(Frame { payload: NonZeroU32::new(184).unwrap(), header: 4 }),
        }
    }

    /// AAL5 in ATM cells: the return link of DVB-RCS (ETSI EN 301 790).
    ///
    /// The AAL5 trailer has 8 bytes and packets are multiplexed by virtual circuit, so no LLC header is added
    /// (RFC 2684 §4, §6); a cell is 53 bytes, 5 of which are its header. A 1500-byte packet takes 32 cells:
    /// 1696 bytes.
    pub const fn aal5_atm() -> Self {
        Self {
            overhead: ByteCount::new(8),
            frame: Some(Frame { payload: NonZeroU32::new(48).unwrap(), header: 5 }),
        }
    }

    /// Bytes on the wire for a packet of `bytes` (IP length).
    pub fn wire_bytes(&self, bytes: u64) -> u64 {
        let encapsulated = bytes.saturating_add(self.overhead.get());
        let Some(frame) = self.frame else { return encapsulated };
        let payload = u64::from(frame.payload.get());
        encapsulated.div_ceil(payload).saturating_mul(payload + u64::from(frame.header))
    }
}

impl Effect for Encapsulation {
    #[inline]
    fn apply(&mut self, packet: &mut Transit) {
        packet.wire_bytes = self.wire_bytes(packet.wire_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_is_added_by_default() {
        assert_eq!(Encapsulation::default().wire_bytes(1500), 1500);
        assert_eq!(Encapsulation::default().wire_bytes(0), 0);
    }

    #[test]
    fn overhead_is_added_before_padding() {
        let frame = Some(Frame::padding_to(NonZeroU32::new(64).unwrap()));
        let encapsulation = Encapsulation { overhead: ByteCount::new(4), frame };
        assert_eq!(encapsulation.wire_bytes(60), 64);
        assert_eq!(encapsulation.wire_bytes(61), 128);
    }

    #[test]
    fn mpe_takes_whole_transport_stream_packets() {
        let mpe = Encapsulation::dvb_mpe();
        assert_eq!(mpe.wire_bytes(40), 188, "a bare TCP acknowledgement fits one");
        assert_eq!(mpe.wire_bytes(167), 188, "167 + 12 + 4 + 1 = 184: exactly one");
        assert_eq!(mpe.wire_bytes(168), 2 * 188, "one byte more needs a second");
        assert_eq!(mpe.wire_bytes(1500), 9 * 188);
    }

    #[test]
    fn atm_takes_whole_cells() {
        let atm = Encapsulation::aal5_atm();
        assert_eq!(atm.wire_bytes(40), 53, "40 + 8 = 48: a bare TCP acknowledgement fills one cell");
        assert_eq!(atm.wire_bytes(41), 2 * 53);
        assert_eq!(atm.wire_bytes(1500), 32 * 53);
    }

    proptest! {
        #[test]
        fn the_wire_never_carries_less_than_the_packet(
            bytes: u64,
            overhead: u64,
            payload in 1u32..,
            header: u32,
        ) {
            let frame = Some(Frame { payload: NonZeroU32::new(payload).unwrap(), header });
            let encapsulation = Encapsulation { overhead: ByteCount::new(overhead), frame };
            prop_assert!(encapsulation.wire_bytes(bytes) >= bytes);
        }
    }
}
