//! Statistics of one flow.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bentpipe_kernel::tcp_info::{State, TcpInfo};

use super::gain::{Progress, SpeedUp};
use super::leg_stats::{Finding, GainSums, LegStats, Moved, Share, Totals};
use super::outage_detector::Observation;
use crate::types::Side;

/// The least time between two samples of a flow: a worker with few flows inspects them more often than once
/// a second, and rates need a while.
const LEAST: Duration = Duration::from_millis(700);

/// A flow's contribution to the statistics of its two legs. While it exists the legs count the flow.
#[derive(Debug)]
pub(crate) struct FlowStats {
    /// Unique in this daemon.
    pub(crate) number: u64,
    client: EndStats,
    server: EndStats,
    /// When it was last sampled, or opened.
    looked: Instant,
    /// What had passed through the relay then, towards the server and towards the client, and when that was
    /// last seen to have grown.
    bytes: (u64, u64),
    pub(crate) moved: Instant,
}

#[derive(Debug)]
struct EndStats {
    leg: Arc<LegStats>,
    seen: Seen,
    /// `None` while the flow is idle, as most flows are most of the time.
    share: Option<Box<Share>>,
    /// How much longer what it has sent of late would have taken end to end.
    speed_up: SpeedUp,
}

/// A socket's own numbers when they were last added to the leg's.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    acked: u64,
    received: u64,
    segments: u32,
    retransmissions: u32,
    timeouts: u32,
    segments_in: u32,
}

/// A sample of a socket.
struct Sighting {
    info: TcpInfo,
    /// The progress since the last sample.
    news: Totals,
    look: Observation,
}

impl FlowStats {
    /// For a flow between these legs, the client's and the server's, neither of whose sockets has sent
    /// anything but the upstream one its SYN.
    pub(super) fn open(number: u64, [client, server]: [Arc<LegStats>; 2], now: Instant) -> Self {
        // The SYN counts as an acknowledged byte.
        let syn = Seen { acked: 1, ..Seen::default() };
        Self {
            number,
            client: EndStats::open(client, Seen::default()),
            server: EndStats::open(server, syn),
            looked: now,
            bytes: (0, 0),
            moved: now,
        }
    }

    /// For a flow of another process, which has counted everything up to these numbers.
    pub(crate) fn continue_from(mut self, infos: [Option<TcpInfo>; 2], bytes: (u64, u64)) -> Self {
        for (end, info) in [&mut self.client, &mut self.server].into_iter().zip(infos) {
            end.seen = info.map_or(end.seen, |info| Seen::of(&info));
        }
        self.bytes = bytes;
        self
    }

    /// The rates at which the server and the client acknowledged in the last second or so, bit/s. The relay
    /// itself moves bytes in large steps where sockets have large buffers.
    pub(crate) fn rates(&self) -> (f64, f64) {
        (self.server.share().sent_bps as f64, self.client.share().sent_bps as f64)
    }

    pub(crate) fn leg(&self, side: Side) -> &str {
        match side {
            Side::Client => self.client.leg.name(),
            Side::Server => self.server.leg.name(),
        }
    }

    /// Whether the leg of an end is out.
    pub(crate) fn is_out(&self, side: Side, now: Instant) -> bool {
        let end = match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        };
        end.leg.is_out(now)
    }

    /// Whether the flow is due to be sampled.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.looked) >= LEAST
    }

    /// Notes the bytes that the relay has moved so far. True if there were new ones, or the flow was active
    /// at the last sample: then the sockets are worth sampling.
    pub(crate) fn note_bytes(&mut self, now: Instant, bytes: (u64, u64)) -> bool {
        let has_moved = bytes != self.bytes;
        if has_moved {
            (self.bytes, self.moved) = (bytes, now);
        }
        has_moved || self.client.share.is_some() || self.server.share.is_some()
    }

    /// Skips a sample, since the sockets are idle.
    pub(crate) fn skip(&mut self, now: Instant) {
        self.looked = now;
    }

    /// Samples the client's and the server's socket, and adds their progress to the legs.
    pub(crate) fn look(&mut self, now: Instant, infos: [Option<TcpInfo>; 2]) {
        self.note(now, infos, false);
    }

    /// The last sample, before the sockets are closed.
    pub(crate) fn close(&mut self, now: Instant, infos: [Option<TcpInfo>; 2]) {
        self.note(now, infos, true);
    }

    fn note(&mut self, now: Instant, infos: [Option<TcpInfo>; 2], is_last: bool) {
        let rtt = infos.iter().flatten().map(shortest_rtt).sum();
        let since = std::mem::replace(&mut self.looked, now);
        let [client, server] = infos;
        let seen = [
            client.map(|info| self.client.take_in(info, now, since)),
            server.map(|info| self.server.take_in(info, now, since)),
        ];
        // Where bytes wait in large buffers one end may rest for a while; the flow does not.
        let is_active = !is_last && seen.iter().flatten().any(Sighting::is_active);
        for (end, seen) in [&mut self.client, &mut self.server].into_iter().zip(seen) {
            let Some(seen) = seen else { continue };
            let share = is_active.then(|| end.share_of(&seen, now - since));
            let before = end.share();
            end.share = share.map(Box::new);
            let counts = end.leg.is_satellite() && (is_active || seen.news.moved.sent > 0);
            let gain = counts.then(|| end.gain_of(&seen, now, now - since, rtt)).flatten();
            let min_rtt = seen.info.min_rtt;
            let finding = Finding {
                news: seen.news,
                before,
                after: end.share(),
                look: seen.look,
                min_rtt: Some(min_rtt).filter(|&rtt| rtt < TcpInfo::NO_MIN_RTT && !rtt.is_zero()),
                gain,
                is_last,
            };
            end.leg.note(now, &finding);
        }
    }
}

impl EndStats {
    fn open(leg: Arc<LegStats>, seen: Seen) -> Self {
        leg.join();
        Self { leg, seen, share: None, speed_up: SpeedUp::default() }
    }

    fn share(&self) -> Share {
        self.share.as_deref().copied().unwrap_or_default()
    }

    fn take_in(&mut self, info: TcpInfo, now: Instant, since: Instant) -> Sighting {
        let segments_in = self.seen.segments_in;
        let news = self.seen.take_in(&info);
        let look = look(&info, now, since, info.segments_in != segments_in);
        Sighting { info, news, look }
    }

    /// What the connection does, from what it has done in the time since the last look.
    fn share_of(&self, seen: &Sighting, elapsed: Duration) -> Share {
        let Sighting { info, news: Totals { moved, .. }, .. } = seen;
        let seconds = elapsed.max(LEAST).as_secs_f64();
        let rate = |bytes: u64| bytes as f64 * 8.0 / seconds;
        Share {
            active: 1,
            timed: u64::from(!info.srtt.is_zero()),
            srtt_us: u64::try_from(info.srtt.as_micros()).unwrap_or(0),
            sent_bps: rate(moved.sent) as u64,
            received_bps: rate(moved.received) as u64,
        }
    }

    /// What it adds to the leg's gain. Nothing where its timer has expired: it has met an outage of its own,
    /// however short, which says nothing about the link's losses.
    fn gain_of(&mut self, seen: &Sighting, now: Instant, took: Duration, rtt: Duration) -> Option<GainSums> {
        let Totals { moved, segments, retransmissions, timeouts } = seen.news;
        if timeouts > 0 || took.is_zero() {
            return None;
        }
        let progress = Progress {
            before: self.seen.acked.saturating_sub(moved.sent),
            bytes: moved.sent,
            took,
            rtt,
            loss: self.leg.steady_loss(now).unwrap_or(0.0),
            mss: seen.info.mss,
        };
        let end_to_end = progress.end_to_end();
        let ratio = self.speed_up.add(took, end_to_end);
        let bytes = moved.sent as f64;
        Some(GainSums { bytes, bytes_end_to_end: bytes / ratio, end_to_end, segments, retransmissions })
    }
}

/// The shortest round trip that the socket knows, or the present one.
fn shortest_rtt(info: &TcpInfo) -> Duration {
    let is_known = info.min_rtt < TcpInfo::NO_MIN_RTT && !info.min_rtt.is_zero();
    if is_known { info.min_rtt } else { info.srtt }
}

impl Sighting {
    fn is_active(&self) -> bool {
        self.news.moved != Moved::default() || self.look.waits
    }
}

/// Removes it from its leg.
impl Drop for EndStats {
    fn drop(&mut self) {
        self.leg.leave(self.share());
    }
}

impl Seen {
    fn of(info: &TcpInfo) -> Self {
        Self {
            // What has arrived behind a hole has arrived: counted when the hole is filled, a lossy link would
            // seem to stand still and then to carry more than it can.
            acked: info.bytes_acked + u64::from(info.sacked) * u64::from(info.mss),
            received: info.bytes_received,
            segments: info.data_segments_out,
            retransmissions: info.retransmissions,
            timeouts: info.timeouts,
            segments_in: info.segments_in,
        }
    }

    /// The progress since the last sample; the kernel's 32-bit counters wrap.
    fn take_in(&mut self, info: &TcpInfo) -> Totals {
        let now = Self::of(info);
        // A SYN that is counted before it is acknowledged makes the first look find less than nothing.
        let before = std::mem::replace(self, Self { acked: now.acked.max(self.acked), ..now });
        let moved = Moved {
            sent: now.acked.saturating_sub(before.acked),
            received: now.received.saturating_sub(before.received),
        };
        Totals {
            moved,
            segments: now.segments.wrapping_sub(before.segments).into(),
            retransmissions: now.retransmissions.wrapping_sub(before.retransmissions).into(),
            // The kernel has 16 bits for it.
            timeouts: u64::from(now.timeouts.wrapping_sub(before.timeouts) as u16),
        }
    }
}

/// What a socket has received and waits for. Unanswered SYNs say nothing about the leg: many servers do not
/// answer.
fn look(info: &TcpInfo, now: Instant, since: Instant, has_received: bool) -> Observation {
    if matches!(info.state, State::SynSent | State::SynReceived | State::Unknown) {
        return Observation::default();
    }
    // A peer's keepalive is neither data nor acknowledges anything. It came after the last look; when is not
    // known.
    let heard = now.checked_sub(info.since_ack_received.min(info.since_data_received));
    let heard = heard.max(has_received.then_some(since));
    let is_open = info.state != State::Close;
    let probes = info.unsent > 0 && info.unanswered_probes > 0;
    Observation {
        heard,
        waits: is_open && (info.unacked > 0 || probes),
        is_overdue: is_open
            && (info.unacked > 0 && (info.consecutive_retransmits > 0 || info.since_data_sent > info.srtt)
                || probes && info.unanswered_probes > 1),
    }
}

#[cfg(test)]
mod tests;
