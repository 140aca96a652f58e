//! Timelines in the manner of packetdrill: what goes in at which moment, and what must come out.
//!
//! The endpoint under test sends; its other side is the test. Segments of data are counted from 1.

use std::time::Duration;

use bentpipe_tcp::congestion::Algorithm;
use bentpipe_tcp::{
    Config, Endpoint, Flags, Recovery, RtoLimits, SackBlocks, Segment, State, SynOptions, Timestamps,
};
use bentpipe_units::Time;

/// Payload of a full segment.
pub(crate) const MSS: u32 = 1000;
/// The usual round trip, milliseconds.
pub(crate) const RTT: u64 = 100;
const PEER: u32 = 7_000;

pub(crate) struct Timeline {
    pub(crate) endpoint: Endpoint,
    pub(crate) now: Time,
    initial: u32,
    window: u16,
    /// The timestamp that acknowledgements echo.
    echo: Option<u32>,
    outbox: Vec<u32>,
}

/// NewReno, no timestamps, a large window, and an initial window of ten segments.
pub(crate) fn config(recovery: Recovery) -> Config {
    Config {
        mss: MSS as u16,
        timestamps: false,
        recovery,
        congestion: Algorithm::NewReno,
        byte_counting_limit: Some(1),
        ..Config::default()
    }
}

/// RACK without its other parts.
pub(crate) fn rack() -> Config {
    Config { rto: RtoLimits::LINUX, ..config(Recovery::Rack) }
}

/// Ten segments are out; of these the test loses some.
pub(crate) fn ten_sent(config: Config) -> Timeline {
    let mut timeline = Timeline::established(config, Duration::from_millis(RTT));
    timeline.write(100).sends(1..=10);
    timeline
}

/// The window in segments.
pub(crate) fn cwnd(timeline: &Timeline) -> u64 {
    timeline.endpoint.variables().cwnd / u64::from(MSS)
}

impl Timeline {
    /// An endpoint that has connected at time zero, in a handshake of `rtt`.
    pub(crate) fn established(config: Config, rtt: Duration) -> Self {
        Self::established_from(config, rtt, u32::MAX - 2_500)
    }

    /// The same with a given initial sequence number.
    pub(crate) fn established_from(config: Config, rtt: Duration, initial: u32) -> Self {
        let endpoint = Endpoint::connect(config, initial, Time::ZERO);
        let mut timeline =
            Self { endpoint, now: Time::ZERO, initial, window: 65_535, echo: None, outbox: Vec::new() };
        let syn = timeline.endpoint.poll_transmit(Time::ZERO).expect("a SYN");
        assert_eq!((syn.flags, syn.seq), (Flags::SYN, initial));
        timeline.now += rtt;
        timeline.endpoint.on_segment(
            timeline.now,
            &Segment {
                seq: PEER,
                ack: initial.wrapping_add(1),
                window: 65_535,
                flags: Flags::SYN | Flags::ACK,
                syn: Some(SynOptions { mss: Some(config.mss), window_scale: Some(7), sack_permitted: true }),
                timestamps: syn.timestamps.map(|own| Timestamps { value: 1, echo: own.value }),
                ..Segment::default()
            },
        );
        assert_eq!(timeline.endpoint.state(), State::Established);
        let third =
            timeline.endpoint.poll_transmit(timeline.now).expect("the third segment of the handshake");
        assert_eq!((third.flags, third.len), (Flags::ACK, 0));
        // The window of a SYN is not scaled: this one announces the whole.
        timeline.ack(0);
        timeline
    }

    /// The clock moves on by `millis`; nothing may want to happen in between.
    pub(crate) fn after(&mut self, millis: u64) -> &mut Self {
        let then = self.now + Duration::from_millis(millis);
        assert!(
            self.endpoint.wake_at() >= then,
            "the endpoint wants to be woken at {:?}",
            self.endpoint.wake_at()
        );
        self.now = then;
        self
    }

    /// The clock moves on to the next timer, which expires; it must be `millis` from now.
    pub(crate) fn timer_after(&mut self, millis: u64) -> &mut Self {
        let then = self.now + Duration::from_millis(millis);
        assert_eq!(self.endpoint.wake_at(), then, "the timer");
        self.now = then;
        self.endpoint.on_timer(self.now);
        self
    }

    pub(crate) fn write(&mut self, segments: u64) -> &mut Self {
        self.endpoint.write(segments * u64::from(MSS));
        self
    }

    /// The window that the other side announces from now on, in units of 128 bytes.
    pub(crate) fn window(&mut self, window: u16) -> &mut Self {
        self.window = window;
        self
    }

    /// From now on acknowledgements answer segments that left `millis` after the beginning.
    pub(crate) fn answering(&mut self, millis: u32) -> &mut Self {
        self.echo = Some(millis + 1);
        self
    }

    /// The segment that acknowledges those up to number `n`.
    pub(crate) fn acknowledgement(&self, n: u32) -> Segment {
        Segment {
            seq: PEER + 1,
            ack: self.initial.wrapping_add(1).wrapping_add(n * MSS),
            window: self.window,
            flags: Flags::ACK,
            timestamps: self.echo.map(|echo| Timestamps { value: 1, echo }),
            ..Segment::default()
        }
    }

    /// Segments up to number `n` are acknowledged.
    pub(crate) fn ack(&mut self, n: u32) -> &mut Self {
        self.sack(n, &[])
    }

    /// The same `times` over.
    pub(crate) fn acks(&mut self, n: u32, times: usize) -> &mut Self {
        (0..times).for_each(|_| {
            self.ack(n);
        });
        self
    }

    /// Segments up to number `n` are acknowledged, and those of the blocks, first to last.
    pub(crate) fn sack(&mut self, n: u32, blocks: &[(u32, u32)]) -> &mut Self {
        let seq_behind = |n: u32| self.initial.wrapping_add(1).wrapping_add(n * MSS);
        let mut sack = SackBlocks::default();
        blocks.iter().for_each(|&(first, last)| sack.push(seq_behind(first - 1), seq_behind(last)));
        let segment = Segment { sack, ..self.acknowledgement(n) };
        self.endpoint.on_segment(self.now, &segment);
        self.collect();
        self
    }

    /// What goes out now are the data segments of these numbers, in this order, and nothing else.
    #[track_caller]
    pub(crate) fn sends(&mut self, numbers: impl IntoIterator<Item = u32>) -> &mut Self {
        let expected: Vec<u32> = numbers.into_iter().collect();
        assert_eq!(self.sent(), expected, "at {:?}", self.now);
        self
    }

    #[track_caller]
    pub(crate) fn sends_nothing(&mut self) -> &mut Self {
        self.sends([])
    }

    /// The numbers of the data segments that have gone out since the last question.
    pub(crate) fn sent(&mut self) -> Vec<u32> {
        self.collect();
        std::mem::take(&mut self.outbox)
    }

    fn collect(&mut self) {
        while let Some(segment) = self.endpoint.poll_transmit(self.now) {
            if segment.len > 0 {
                self.outbox.push(segment.seq.wrapping_sub(self.initial).wrapping_sub(1) / MSS + 1);
            }
        }
    }
}
