//! The inner variables of a TCP socket (tcp(7), `TCP_INFO`).

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use serde::Serialize;

use crate::sockopt::get_bytes;

/// The inner variables of a TCP connection at one moment. Zero where the kernel is too old to report one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TcpInfo {
    /// The state of the connection (RFC 9293 §3.3.2).
    pub state: State,
    /// The state of loss recovery.
    pub recovery: Recovery,
    /// Segments in a row that the retransmission timer has had sent again, none of which was acknowledged.
    pub consecutive_retransmits: u32,
    /// Probes of a closed window or of an idle connection (keepalives) that have not been answered.
    pub unanswered_probes: u32,
    /// Consecutive expiries of the retransmission timer without an acknowledgement in between.
    pub backoff: u32,
    /// The retransmission timeout (RFC 6298).
    pub rto: Duration,
    /// Smoothed round-trip time (RFC 6298 §2).
    pub srtt: Duration,
    /// Round-trip time variation (RFC 6298 §2).
    pub rttvar: Duration,
    /// The smallest round-trip time of the last minutes; [`TcpInfo::NO_MIN_RTT`] until there is one.
    pub min_rtt: Duration,
    /// Sender's maximum segment size, bytes.
    pub mss: u32,
    /// Congestion window, segments.
    pub cwnd: u32,
    /// Slow-start threshold, segments; [`TcpInfo::NO_SSTHRESH`] until there is one.
    pub ssthresh: u32,
    /// Segments sent and not acknowledged.
    pub unacked: u32,
    /// Segments that have arrived behind one that has not (RFC 2018).
    pub sacked: u32,
    /// Segments that are taken for lost, sent again or not.
    pub lost: u32,
    /// Of these, those that were sent again and not acknowledged.
    pub retransmitted: u32,
    /// Since a segment with data was last sent, retransmissions included, to a tick of the kernel's clock (1
    /// to 10 ms).
    pub since_data_sent: Duration,
    /// Since a segment with data last arrived; of no meaning before the connection is established.
    pub since_data_received: Duration,
    /// Since an acknowledgement last arrived, duplicates and answers to probes included; of no meaning before
    /// the connection is established.
    pub since_ack_received: Duration,
    /// Segments retransmitted since the connection began.
    pub retransmissions: u32,
    /// Segments received since the connection began: with data, acknowledgements, and probes of a peer that
    /// keeps an idle connection alive (RFC 9293 §3.8.4).
    pub segments_in: u32,
    /// Segments with data sent since the connection began, retransmissions included.
    pub data_segments_out: u32,
    /// Segments that arrived at the receiver, acknowledged or selectively acknowledged.
    pub delivered: u32,
    /// Bytes acknowledged.
    pub bytes_acked: u64,
    /// Bytes received in order.
    pub bytes_received: u64,
    /// Bytes in the send buffer that have not been sent once.
    pub unsent: u32,
    /// Payload bytes sent, retransmissions included. Linux 4.19 and later.
    pub bytes_sent: u64,
    /// Payload bytes retransmitted. Linux 4.19 and later.
    pub bytes_retransmitted: u64,
    /// Segments that the receiver has reported to have arrived more than once (RFC 2883). Linux 4.19 and
    /// later.
    pub duplicates: u32,
    /// Bytes that the receiver has room for behind those that it has acknowledged; `u32::MAX` before Linux
    /// 5.4, which does not tell.
    pub send_window: u32,
    /// Segments carry timestamps (RFC 7323).
    pub timestamps: bool,
    /// Pacing rate, bytes per second; `u64::MAX` without pacing.
    pub pacing_rate: u64,
    /// The ceiling of the pacing rate, bytes per second; `u64::MAX` without one.
    pub max_pacing_rate: u64,
    /// The most recent delivery rate, bytes per second.
    pub delivery_rate: u64,
    /// Time in which the receiver's window held the sender back.
    pub receive_window_limited: Duration,
    /// Time in which the send buffer held the sender back.
    pub send_buffer_limited: Duration,
    /// Retransmission timeouts since the connection began. Linux 6.7 and later.
    pub timeouts: u32,
    /// Total time spent in timeout recovery. Linux 6.7 and later.
    pub timeout_time: Duration,
}

/// The state of a connection, as the kernel numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub enum State {
    Established,
    SynSent,
    SynReceived,
    FinWait1,
    FinWait2,
    TimeWait,
    Close,
    CloseWait,
    LastAck,
    Listen,
    Closing,
    Unknown,
}

/// The kernel's loss recovery state (`tcpi_ca_state`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[allow(missing_docs)]
pub enum Recovery {
    Open,
    Disorder,
    ReducedWindow,
    FastRecovery,
    Loss,
    Unknown,
}

impl TcpInfo {
    /// The kernel's "no slow-start threshold yet".
    pub const NO_SSTHRESH: u32 = 0x7fff_ffff;
    /// The kernel's "no round trip measured yet".
    pub const NO_MIN_RTT: Duration = Duration::from_micros(u32::MAX as u64);

    /// Segments in flight: sent, not acknowledged, not known to have arrived or to be lost (RFC 6675's pipe).
    pub fn in_flight(&self) -> u32 {
        (self.unacked + self.retransmitted).saturating_sub(self.sacked + self.lost)
    }

    /// Payload bytes that were sent and are not acknowledged; the SYN counts among acknowledged bytes.
    pub fn outstanding(&self) -> u64 {
        self.bytes_sent.saturating_sub(self.bytes_retransmitted + self.bytes_acked.saturating_sub(1))
    }
}

/// Reads `TCP_INFO` of a socket.
pub fn tcp_info(fd: impl AsFd) -> io::Result<TcpInfo> {
    let mut raw = [0u8; 512];
    let len = get_bytes(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut raw)?;
    Ok(parse(&raw[..len]))
}

/// The factor by which BBR's pacing rate exceeds the bandwidth that it has measured (linux/inet_diag.h,
/// `struct tcp_bbr_info`); `None` with another congestion control.
pub fn bbr_pacing_gain(fd: impl AsFd) -> io::Result<Option<f64>> {
    const GAIN: std::ops::Range<usize> = 12..16;
    let mut raw = [0u8; 64];
    let len = get_bytes(fd, libc::IPPROTO_TCP, libc::TCP_CC_INFO, &mut raw)?;
    let gain = raw[..len].get(GAIN).and_then(|bytes| bytes.first_chunk());
    Ok(gain.map(|bytes| f64::from(u32::from_ne_bytes(*bytes)) / 256.0))
}

/// `TCPI_OPT_TIMESTAMPS` of linux/tcp.h.
const OPTION_TIMESTAMPS: u8 = 1;

/// The offsets are those of `struct tcp_info` in linux/tcp.h, which only ever grows at its end.
pub(crate) fn parse(raw: &[u8]) -> TcpInfo {
    let byte = |at: usize| raw.get(at).copied().unwrap_or(0);
    let word = |at: usize| raw.get(at..at + 4).map_or(0, |b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
    let long =
        |at: usize| raw.get(at..at + 8).map_or(0, |b| u64::from_ne_bytes(b.try_into().expect("eight bytes")));
    let micros = |at: usize| Duration::from_micros(u64::from(word(at)));
    let millis = |at: usize| Duration::from_millis(u64::from(word(at)));
    TcpInfo {
        state: state(byte(0)),
        recovery: recovery(byte(1)),
        consecutive_retransmits: u32::from(byte(2)),
        unanswered_probes: u32::from(byte(3)),
        backoff: u32::from(byte(4)),
        rto: micros(8),
        mss: word(16),
        unacked: word(24),
        sacked: word(28),
        lost: word(32),
        retransmitted: word(36),
        timestamps: byte(5) & OPTION_TIMESTAMPS != 0,
        since_data_sent: millis(44),
        since_data_received: millis(52),
        since_ack_received: millis(56),
        srtt: micros(68),
        rttvar: micros(72),
        ssthresh: word(76),
        cwnd: word(80),
        retransmissions: word(100),
        pacing_rate: long(104),
        max_pacing_rate: long(112),
        bytes_acked: long(120),
        bytes_received: long(128),
        segments_in: word(140),
        unsent: word(144),
        min_rtt: micros(148),
        data_segments_out: word(156),
        delivery_rate: long(160),
        receive_window_limited: Duration::from_micros(long(176)),
        send_buffer_limited: Duration::from_micros(long(184)),
        delivered: word(192),
        bytes_sent: long(200),
        bytes_retransmitted: long(208),
        duplicates: word(216),
        send_window: if raw.len() < 232 { u32::MAX } else { word(228) },
        timeouts: u32::from(u16::from_ne_bytes([byte(240), byte(241)])),
        timeout_time: millis(244),
    }
}

fn state(number: u8) -> State {
    match number {
        1 => State::Established,
        2 => State::SynSent,
        3 | 12 => State::SynReceived,
        4 => State::FinWait1,
        5 => State::FinWait2,
        6 => State::TimeWait,
        7 => State::Close,
        8 => State::CloseWait,
        9 => State::LastAck,
        10 => State::Listen,
        11 => State::Closing,
        _ => State::Unknown,
    }
}

fn recovery(number: u8) -> Recovery {
    match number {
        0 => Recovery::Open,
        1 => Recovery::Disorder,
        2 => Recovery::ReducedWindow,
        3 => Recovery::FastRecovery,
        4 => Recovery::Loss,
        _ => Recovery::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_short_answer_of_an_old_kernel_reads_as_zeros() {
        let info = parse(&[1, 0, 0, 0, 3]);
        assert_eq!((info.state, info.backoff, info.cwnd, info.timeouts), (State::Established, 3, 0, 0));
    }

    #[test]
    fn the_figures_of_a_real_transfer_are_where_they_should_be() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(&[7; 10_000]).unwrap();
        server.read_exact(&mut [0; 10_000]).unwrap();
        server.write_all(b"thanks").unwrap();
        client.read_exact(&mut [0; 6]).unwrap();
        let (sent, received) = (tcp_info(&client).unwrap(), tcp_info(&server).unwrap());
        assert_eq!(sent.state, State::Established);
        assert_eq!(sent.recovery, Recovery::Open);
        // One more than the data on each side: the SYN counts among acknowledged bytes.
        assert_eq!(sent.bytes_acked, 10_001);
        assert_eq!(sent.bytes_received, 6);
        assert_eq!(received.bytes_received, 10_000);
        // The SYN was the listener's; the acknowledgement of the handshake came before the data.
        assert!((2..100).contains(&received.segments_in), "{received:?}");
        assert!(sent.cwnd >= 10 && sent.mss > 500 && sent.data_segments_out >= 1, "{sent:?}");
        assert_eq!(sent.ssthresh, TcpInfo::NO_SSTHRESH);
        assert!(sent.rto >= Duration::from_millis(200) && sent.min_rtt < Duration::from_secs(1), "{sent:?}");
        assert_eq!((sent.retransmissions, sent.timeouts), (0, 0));
        assert_eq!((sent.bytes_sent, sent.bytes_retransmitted, sent.outstanding()), (10_000, 0, 0));
        assert!(sent.timestamps && sent.send_window >= 10_000, "{sent:?}");
        assert_eq!((sent.consecutive_retransmits, sent.unanswered_probes), (0, 0));
    }

    #[test]
    fn it_says_since_when_each_way_has_been_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let start = std::time::Instant::now();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        std::thread::sleep(Duration::from_millis(100));
        client.write_all(b"hello").unwrap();
        server.read_exact(&mut [0; 5]).unwrap();
        while tcp_info(&client).unwrap().unacked > 0 {
            std::thread::yield_now();
        }
        let (sent, received) = (tcp_info(&client).unwrap(), tcp_info(&server).unwrap());
        let since_start = start.elapsed() + Duration::from_millis(50);
        // What has happened since the pause is younger than the connection; what has not, as old.
        let pause = Duration::from_millis(90);
        for young in [sent.since_data_sent, sent.since_ack_received, received.since_data_received] {
            assert!(young + pause <= since_start, "{sent:?} {received:?}");
        }
        assert!((pause..since_start).contains(&sent.since_data_received), "{sent:?}");
    }
}
