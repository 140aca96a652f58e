//! One endpoint and a peer that is the test: it sends any segment that it likes.

use std::time::Duration;

use bentpipe_tcp::{Config, Endpoint, Flags, SackBlocks, Segment, State, SynOptions, Timestamps};
use bentpipe_units::Time;

pub(crate) const MSS: u64 = 1000;
/// The endpoint's initial sequence number and the peer's.
pub(crate) const OURS: u32 = u32::MAX - 4_000;
pub(crate) const THEIRS: u32 = 7_000;
/// The whole path, there and back.
pub(crate) const RTT: Duration = Duration::from_millis(100);

/// No timestamps, no delayed acknowledgements.
pub(crate) fn config() -> Config {
    Config { mss: MSS as u16, timestamps: false, delayed_ack: None, ..Config::default() }
}

/// The endpoint under test and its peer. Offsets count from 1, the first byte of each stream.
pub(crate) struct Peer {
    pub(crate) endpoint: Endpoint,
    pub(crate) now: Time,
    /// What the peer announces, bytes: its windows are not scaled.
    pub(crate) window: u16,
    timestamps: bool,
    /// The endpoint's clock when it last sent something.
    echo: u32,
}

impl Peer {
    /// The endpoint has called at time zero and been answered after [`RTT`].
    pub(crate) fn called(config: Config) -> Self {
        let mut peer = Self::before(Endpoint::connect(config, OURS, Time::ZERO), config);
        assert_eq!(peer.sent().len(), 1);
        peer.pass(RTT);
        peer.answer(Flags::SYN | Flags::ACK);
        assert_eq!(peer.endpoint.state(), State::Established);
        peer.sent();
        peer
    }

    /// Nothing has happened yet.
    pub(crate) fn before(endpoint: Endpoint, config: Config) -> Self {
        Self { endpoint, now: Time::ZERO, window: u16::MAX, timestamps: config.timestamps, echo: 0 }
    }

    /// The peer's SYN, or its answer to the endpoint's.
    pub(crate) fn opening(&self, flags: Flags) -> Segment {
        let syn = SynOptions { mss: Some(MSS as u16), window_scale: Some(0), sack_permitted: true };
        Segment { seq: THEIRS, flags, syn: Some(syn), ..self.segment(0, 1, 0) }
    }

    /// It arrives.
    pub(crate) fn answer(&mut self, flags: Flags) {
        self.arrives(self.opening(flags));
    }

    /// Time goes on, and nothing happens meanwhile.
    pub(crate) fn pass(&mut self, span: Duration) -> &mut Self {
        let then = self.now + span;
        let wake_at = self.endpoint.wake_at();
        assert!(wake_at > then, "it wants to be woken at {wake_at:?}");
        self.now = then;
        self
    }

    /// Time goes on to the next timer, which expires; returns how long it took.
    pub(crate) fn expire(&mut self) -> Duration {
        let (before, wake_at) = (self.now, self.endpoint.wake_at());
        assert!(before < wake_at && wake_at < Time::MAX, "a timer runs");
        self.now = wake_at;
        self.endpoint.on_timer(self.now);
        self.now - before
    }

    /// A segment of the peer from its offset `start`, that acknowledges the endpoint's bytes before `ack`.
    pub(crate) fn segment(&self, start: u64, ack: u64, len: u32) -> Segment {
        Segment {
            seq: THEIRS.wrapping_add(start as u32),
            ack: OURS.wrapping_add(ack as u32),
            len,
            window: self.window,
            flags: Flags::ACK,
            timestamps: self.timestamps.then_some(Timestamps { value: 1, echo: self.echo }),
            ..Segment::default()
        }
    }

    pub(crate) fn arrives(&mut self, segment: Segment) -> &mut Self {
        self.endpoint.on_segment(self.now, &segment);
        self
    }

    /// An acknowledgement of the bytes before `ack`, and of the ranges in `blocks`.
    pub(crate) fn acks(&mut self, ack: u64, blocks: &[(u64, u64)]) -> &mut Self {
        let mut sack = SackBlocks::default();
        let seq = |offset: u64| OURS.wrapping_add(offset as u32);
        blocks.iter().for_each(|&(from, to)| sack.push(seq(from), seq(to)));
        self.arrives(Segment { sack, ..self.segment(1, ack, 0) })
    }

    /// Everything that the endpoint sends now.
    pub(crate) fn sent(&mut self) -> Vec<Segment> {
        let sent: Vec<_> = std::iter::from_fn(|| self.endpoint.poll_transmit(self.now)).collect();
        if let Some(timestamps) = sent.first().and_then(|segment| segment.timestamps) {
            self.echo = timestamps.value;
        }
        sent
    }

    /// The first offsets and the lengths of the data that it sends now.
    pub(crate) fn data(&mut self) -> Vec<(u64, u32)> {
        let data = self.sent().into_iter().filter(|segment| segment.len > 0);
        data.map(|segment| (u64::from(segment.seq.wrapping_sub(OURS)), segment.len)).collect()
    }
}

/// The offset behind segment number `n` of full size, counted from 1.
pub(crate) fn behind(n: u64) -> u64 {
    1 + n * MSS
}
