//! What two ARQs say to each other.

use std::ops::Range;
use std::time::Duration;

use super::Packet;

/// Bytes that a data frame adds to its packet: five fields of four bytes, the first with the kind of the frame in its
/// two upper bits.
///
/// Numbers and serials are counted in 64 bits here; four bytes of them are enough on the wire, because of those under
/// way at a time no two are 2³¹ apart ([`MAX_SPAN`]), so that the rest follows from the neighbours (RFC 1982).
pub const DATA_HEADER: usize = 20;
/// Bytes of a frame that tells the floor: incarnation and kind, and the floor.
pub const FLOOR_FRAME: usize = 8;
/// Bytes of a report without its ranges: incarnation and kind, first and last serial that it covers, the delay in
/// microseconds.
pub const REPORT_HEADER: usize = 16;
/// Bytes of a range of missing serials: its two ends.
pub const RANGE: usize = 8;
/// Ranges in a report at the most. What has no room is in the next one.
pub const MAX_RANGES: usize = 32;
/// Numbers and serials that may be under way at a time, whatever the buffer.
pub const MAX_SPAN: usize = 1 << 30;

/// A frame of the link layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArqFrame<P> {
    /// A packet.
    Data(DataFrame<P>),
    /// What is not worth waiting for any more, where no packet is there to say it. If it is lost, the next packet
    /// says so.
    Floor {
        /// See [`DataFrame::incarnation`].
        incarnation: u32,
        /// See [`DataFrame::floor`].
        floor: u64,
    },
    /// What has come and what has not.
    Report(Report),
}

/// A packet, sent for the first time or again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataFrame<P> {
    /// Tells this sender from one at the same place that has no memory of it: 30 bits of the time of its first packet.
    pub incarnation: u32,
    /// Counts transmissions: each has a new one, so that of two that arrive it is known which left first.
    pub serial: u64,
    /// Counts packets: the same for each transmission of one.
    pub number: u64,
    /// All packets below this number have arrived or are given up, but for this one.
    pub floor: u64,
    /// What became of all serials below this one the sender knows, or does not care.
    pub settled: u64,
    /// The packet.
    pub packet: P,
}

/// The link layer's acknowledgement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Of the sender whose frames it is about.
    pub incarnation: u32,
    /// The serials that it is about.
    pub covers: Range<u64>,
    /// Those of them that have not come, in order; all others have.
    pub missing: Vec<Range<u64>>,
    /// How long before this report the last serial came. `None` where it is not the highest one that has come.
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

    /// The packet in it; none in a report.
    pub fn packet(&self) -> Option<&P> {
        match self {
            ArqFrame::Data(data) => Some(&data.packet),
            ArqFrame::Floor { .. } | ArqFrame::Report(_) => None,
        }
    }

    /// The packet in it; none in a report.
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
