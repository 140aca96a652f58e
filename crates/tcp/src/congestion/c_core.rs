//! The arithmetic in C that the kernel's congestion controls and virtual time share (`crates/tcp/core`).
//!
//! The headers there say what each field is, with units and sources; the build script declares their structs
//! and enumerations here. The kernel's eBPF programs include the same headers, and a test of
//! `bentpipe-kernel` compares both builds bit by bit.
#![allow(missing_docs, reason = "the headers have the documentation of the fields")]
#![allow(unsafe_code, reason = "functions in C")]

include!(concat!(env!("OUT_DIR"), "/c_core.rs"));

/// `TCP_INFINITE_SSTHRESH`: the threshold of a connection that has none yet.
pub const INFINITE_SSTHRESH: u32 = 0x7fff_ffff;
/// `EXPLICIT_UNKNOWN`: the delay of the way to the receiver is unknown.
pub const UNKNOWN: u32 = u32::MAX;

impl HyblaState {
    /// The event that `socket` names happens.
    pub fn step(&mut self, socket: &mut HyblaSocket, parameters: &HyblaParameters) {
        // SAFETY: the structs have the layout of C's, and the function keeps no pointer.
        unsafe { bentpipe_hybla_step(self, socket, parameters) }
    }
}

impl ExplicitPath {
    /// The event that `socket` names happens.
    pub fn step(&mut self, socket: &mut ExplicitSocket) {
        // SAFETY: the structs have the layout of C's, and the function keeps no pointer.
        unsafe { bentpipe_explicit_step(self, socket) }
    }
}

impl AqmState {
    /// A packet leaves: `packet` gets its verdict, [`AQM_PASS`] and so on.
    pub fn step(&mut self, packet: &mut AqmPacket) {
        // SAFETY: the structs have the layout of C's, and the function keeps no pointer.
        unsafe { bentpipe_aqm_step(self, packet) }
    }
}

impl XcpState {
    /// The event that `socket` names happens.
    pub fn step(&mut self, socket: &mut XcpSocket) {
        // SAFETY: the structs have the layout of C's, and the function keeps no pointer.
        unsafe { bentpipe_xcp_step(self, socket) }
    }
}

// `core/core.c`.
unsafe extern "C" {
    fn bentpipe_hybla_step(state: &mut HyblaState, socket: &mut HyblaSocket, parameters: &HyblaParameters);
    fn bentpipe_explicit_step(state: &mut ExplicitPath, socket: &mut ExplicitSocket);
    fn bentpipe_aqm_step(state: &mut AqmState, packet: &mut AqmPacket);
    fn bentpipe_xcp_step(state: &mut XcpState, socket: &mut XcpSocket);
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u64 = 1_000_000;
    const INTERVAL_US: u64 = 600_000;

    /// Packets of 1000 bytes leave evenly at so many times the rate; when which verdict was given.
    fn verdicts(
        state: &mut AqmState,
        from_us: u64,
        lasts_us: u64,
        load: f64,
        kind: &AqmPacket,
    ) -> Vec<(u64, u32)> {
        let packets = (lasts_us as f64 / 1000.0 * load) as u64;
        let times = (0..packets).map(|packet| from_us + (packet as f64 * 1000.0 / load) as u64);
        let judge = |now_us| {
            let mut packet = AqmPacket { now_us, ..*kind };
            state.step(&mut packet);
            (packet.verdict != AQM_PASS).then_some((now_us, packet.verdict))
        };
        times.filter_map(judge).collect()
    }

    fn packet(ecn: bool, may_drop: bool) -> AqmPacket {
        AqmPacket {
            rate: RATE,
            bytes: 1000,
            target_us: INTERVAL_US as u32 / 20,
            interval_us: INTERVAL_US as u32,
            judged: 1,
            ecn: ecn.into(),
            may_drop: may_drop.into(),
            ..AqmPacket::default()
        }
    }

    #[test]
    fn what_leaves_at_the_rate_passes_with_its_bursts() {
        let mut state = AqmState::default();
        assert_eq!(verdicts(&mut state, 0, 60_000_000, 1.0, &packet(true, true)), []);
        // In each round trip four fifths of the time are a quarter too fast, as QUIC paces its window.
        for round in 0..20 {
            let from = 60_000_000 + round * INTERVAL_US;
            assert_eq!(verdicts(&mut state, from, INTERVAL_US * 4 / 5, 1.25, &packet(true, true)), []);
        }
    }

    #[test]
    fn a_little_too_much_is_marked_once_after_an_interval_and_then_ever_more_often() {
        let mut state = AqmState::default();
        // A hundredth too much: the wait reaches 30 ms after 3 s, and the limit of 150 ms after 15 s.
        let marks = verdicts(&mut state, 0, 12_000_000, 1.01, &packet(true, false));
        assert!(marks.iter().all(|mark| mark.1 == AQM_MARK));
        let times: Vec<f64> = marks.iter().map(|mark| mark.0 as f64 / 1e6).collect();
        assert!((times[0] - 3.6).abs() < 0.2, "{times:?}");
        for (number, pair) in times.windows(2).enumerate() {
            let expected = 0.6 / ((number + 1) as f64).sqrt();
            assert!((pair[1] - pair[0] - expected).abs() < 0.01, "{number}: {times:?}");
        }
        // It ends with the excess.
        let from = 12_000_000;
        let after = verdicts(&mut state, from, 12_000_000, 0.9, &packet(true, false));
        assert!(after.last().is_none_or(|mark| mark.0 < from + 1_300_000), "{after:?}");
    }

    #[test]
    fn a_stream_that_does_not_slow_down_loses_what_is_too_much() {
        for (ecn, may_drop, dropped) in
            [(false, true, 0.5), (true, true, 0.5), (true, false, 0.0), (false, false, 0.0)]
        {
            let mut state = AqmState::default();
            let verdicts = verdicts(&mut state, 0, 60_000_000, 2.0, &packet(ecn, may_drop));
            let count = |verdict| verdicts.iter().filter(|each| each.1 == verdict).count();
            let part = count(AQM_DROP) as f64 / 120_000.0;
            assert!((part - dropped).abs() < 0.01, "{ecn} {may_drop}: {part}");
            assert!(ecn == (count(AQM_MARK) > 0), "{ecn} {may_drop}");
        }
    }

    #[test]
    fn flows_that_are_not_judged_pass_and_are_soon_forgotten() {
        let mut state = AqmState::default();
        let others = AqmPacket { judged: 0, ..packet(false, true) };
        assert_eq!(verdicts(&mut state, 0, 10_000_000, 3.0, &others), []);
        assert!(state.backlog / RATE <= 330_000, "{} us", state.backlog / RATE);
    }

    #[test]
    fn no_values_overflow() {
        for value in [0, 1, u32::MAX] {
            let mut state = AqmState::default();
            for now_us in [0, u64::MAX / 2, 5, u64::MAX / 2 + 7] {
                let mut packet = AqmPacket {
                    now_us,
                    rate: u64::from(value) << 32,
                    bytes: value,
                    target_us: value,
                    interval_us: value,
                    judged: 1,
                    ..AqmPacket::default()
                };
                state.step(&mut packet);
                assert!(state.backlog < 1 << 62, "{state:?}");
            }
        }
    }
}
