use std::fmt;
use std::hash::Hash;
use std::time::Duration;

/// The view that agents have of a packet. Cloning a packet is cheap.
pub trait Packet: Clone + fmt::Debug + Send + 'static {
    /// One end of a TCP connection: an address and a port, or an equivalent.
    type End: Copy + Eq + Hash + fmt::Debug + Send;

    /// Length of the IP packet, bytes.
    fn ip_length(&self) -> usize;

    /// The TCP header. `None` unless the packet is one whole and intact TCP segment.
    fn tcp(&self) -> Option<TcpHeader<'_, Self::End>>;

    /// Whether an option of its TCP header carries information of its own, so that the packet matters
    /// although it acknowledges nothing new and carries no data. Multipath TCP announces addresses and
    /// priorities in this way (RFC 8684), once.
    fn says_more(&self) -> bool {
        false
    }

    /// The same packet without its SACK blocks. RFC 2018 §8 allows this: they are advisory, and a receiver
    /// may renege.
    fn without_sack(&self) -> Self;

    /// The congestion header for the routers of its path, if it has one.
    fn congestion_header(&self) -> Option<CongestionHeader> {
        None
    }

    /// The same packet with another feedback in its congestion header; one without such a header stays as it
    /// is.
    fn with_feedback(self, feedback: i32) -> Self {
        let _ = feedback;
        self
    }
}

/// The congestion header of an XCP sender, which the routers of its path read in each segment (Katabi,
/// Handley and Rohrs 2002, §3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CongestionHeader {
    /// The sender's round-trip time; zero before the first measurement.
    pub rtt: Duration,
    /// X: the time between its packets, that is the round-trip time divided by the window in packets.
    pub spacing: Duration,
    /// The change of the sender's rate for this packet, bytes per second: the sender writes its demand, and
    /// routers lower it.
    pub feedback: i32,
}

/// The header of a TCP segment (RFC 9293 §3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpHeader<'a, E> {
    /// The sender.
    pub source: E,
    /// The receiver.
    pub destination: E,
    /// Sequence number of the first payload byte, or of the SYN.
    pub seq: u32,
    /// The next sequence number that the sender expects; meaningless without the ACK flag.
    pub ack: u32,
    /// Payload bytes.
    pub payload: u32,
    /// The receive window in the header, not scaled.
    pub window: u16,
    /// SYN, ACK, FIN, RST.
    pub flags: TcpFlags,
    /// The SACK blocks (RFC 2018): first sequence number, and the one after the last. A D-SACK block (RFC
    /// 2883) is the first one, if there is any.
    pub sack: &'a [(u32, u32)],
}

/// The control bits of the header's byte 13.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    const NAMES: [(u8, char); 5] = [(0x02, 'S'), (0x01, 'F'), (0x04, 'R'), (0x08, 'P'), (0x10, '.')];

    /// No more data from the sender.
    pub fn is_fin(self) -> bool {
        self.0 & 0x01 != 0
    }

    /// Synchronize sequence numbers.
    pub fn is_syn(self) -> bool {
        self.0 & 0x02 != 0
    }

    /// Reset the connection.
    pub fn is_rst(self) -> bool {
        self.0 & 0x04 != 0
    }

    /// The acknowledgement number counts.
    pub fn is_ack(self) -> bool {
        self.0 & 0x10 != 0
    }
}

impl fmt::Debug for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Self::NAMES.iter().filter(|(bit, _)| self.0 & bit != 0).try_for_each(|(_, name)| write!(f, "{name}"))
    }
}

impl<E> TcpHeader<'_, E> {
    /// Its length in sequence space: payload, and one each for SYN and FIN (RFC 9293 §3.4).
    pub fn sequence_length(&self) -> u32 {
        self.payload + u32::from(self.flags.is_syn()) + u32::from(self.flags.is_fin())
    }

    /// The sequence number after its last.
    pub fn end(&self) -> u32 {
        self.seq.wrapping_add(self.sequence_length())
    }
}

/// Whether sequence number `a` lies before `b`: numbers are modulo 2³², and a window is below 2³¹ (RFC 9293
/// §3.4).
pub(crate) fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_is_across_the_wrap_too() {
        assert!(is_before(1, 2) && !is_before(2, 1) && !is_before(7, 7));
        assert!(is_before(u32::MAX, 0) && is_before(u32::MAX - 9, 5) && !is_before(5, u32::MAX - 9));
    }

    #[test]
    fn syn_and_fin_each_take_a_sequence_number() {
        let header = TcpHeader {
            source: 1,
            destination: 2,
            seq: u32::MAX,
            ack: 0,
            payload: 5,
            window: 0,
            flags: TcpFlags(0x11),
            sack: &[],
        };
        assert_eq!((header.sequence_length(), header.end()), (6, 5));
        assert_eq!(format!("{:?}", header.flags), "F.");
    }
}
