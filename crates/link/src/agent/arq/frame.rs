//! The frames between two ARQs.

use std::ops::Range;
use std::time::Duration;

use super::Packet;

/// Bytes that a data frame adds to its packet: five fields of four bytes, the first with the kind of the
/// frame in its two upper bits.
///
/// Numbers and serials are counted in 64 bits here. Four bytes of them are enough on the wire: no two that
/// are outstanding at the same time are 2³¹ apart ([`MAX_SPAN`]), so that the upper bits follow from the
/// neighbours (RFC 1982).
pub const DATA_HEADER: usize = 20;
/// Bytes of a floor frame: incarnation and kind, and the floor.
pub const FLOOR_FRAME: usize = 8;
/// Bytes of a report without its ranges: incarnation and kind, first and last serial that it covers, the
/// delay in microseconds.
pub const REPORT_HEADER: usize = 16;
/// Bytes of a range of missing serials: its two ends.
pub const RANGE: usize = 8;
/// Limit of the ranges in a report. Further ranges are in the next one.
pub const MAX_RANGES: usize = 32;
/// Limit of the outstanding numbers and serials, whatever the buffer.
pub const MAX_SPAN: usize = 1 << 30;

/// A frame of the link layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArqFrame<P> {
    /// A packet.
    Data(DataFrame<P>),
    /// The floor, where there is no packet to carry it. If this frame is lost, the next packet carries the
    /// floor.
    Floor {
        /// See [`DataFrame::incarnation`].
        incarnation: u32,
        /// See [`DataFrame::floor`].
        floor: u64,
    },
    /// Which frames have arrived and which have not.
    Report(Report),
}

/// A packet, sent for the first time or again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataFrame<P> {
    /// Distinguishes this sender from its predecessors and successors at the same end: 30 bits of the time of
    /// its first packet.
    pub incarnation: u32,
    /// The number of the transmission. Each has a new one, so that of two that arrive it is known which was
    /// sent first.
    pub serial: u64,
    /// The number of the packet, the same for each of its transmissions.
    pub number: u64,
    /// All packets below this number, except this one, have arrived or are abandoned.
    pub floor: u64,
    /// The sender knows the fate of all serials below this one, or does not need it.
    pub settled: u64,
    /// The packet.
    pub packet: P,
}

/// The link layer's acknowledgement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The incarnation of the sender whose frames it reports.
    pub incarnation: u32,
    /// The serials that it covers.
    pub covers: Range<u64>,
    /// Those of them that have not arrived, in order; all others have.
    pub missing: Vec<Range<u64>>,
    /// The time between the arrival of the last serial and this report. `None` if that serial is not the
    /// highest one that has arrived.
    pub delay: Option<Duration>,
}

impl<P: Packet> ArqFrame<P> {
    /// Bytes that it offers to the link.
    pub fn length(&self) -> usize {
        match self {
            ArqFrame::Data(data) => DATA_HEADER + data.packet.ip_length(),
            ArqFrame::Floor { .. } => FLOOR_FRAME,
            ArqFrame::Report(report) => report.length(),
        }
    }

    /// The packet in it; none in a report or a floor frame.
    pub fn packet(&self) -> Option<&P> {
        match self {
            ArqFrame::Data(data) => Some(&data.packet),
            ArqFrame::Floor { .. } | ArqFrame::Report(_) => None,
        }
    }

    /// The packet in it; none in a report or a floor frame.
    pub fn into_packet(self) -> Option<P> {
        match self {
            ArqFrame::Data(data) => Some(data.packet),
            ArqFrame::Floor { .. } | ArqFrame::Report(_) => None,
        }
    }

    /// The serial of a frame that carries a packet.
    pub fn serial(&self) -> Option<u64> {
        match self {
            ArqFrame::Data(frame) => Some(frame.serial),
            _ => None,
        }
    }

    /// The same frame with another packet in it; a frame without one stays as it is.
    #[must_use]
    pub fn map_packet(self, change: impl FnOnce(P) -> P) -> Self {
        match self {
            ArqFrame::Data(frame) => ArqFrame::Data(DataFrame { packet: change(frame.packet), ..frame }),
            other => other,
        }
    }
}

impl Report {
    /// Bytes that it offers to the link.
    pub fn length(&self) -> usize {
        REPORT_HEADER + RANGE * self.missing.len()
    }
}
