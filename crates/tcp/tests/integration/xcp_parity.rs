//! The published sender of XCP and the kernel's obey the same rules, though one counts bytes and the other
//! segments.
//!
//! Both get the same feedback, losses and timeouts. Guards of the kernel's are out of the way: it has
//! requested more than it gets, there is no queue, and the capacity is unknown.

use std::time::Duration;

use bentpipe_tcp::congestion::c_core::*;
use bentpipe_tcp::congestion::{Acked, CongestionControl, Feedback, Parameters, Xcp, XcpSender};
use bentpipe_units::Time;
use proptest::prelude::*;

const MSS: u64 = 1448;
/// Acknowledgements in a case; the default number of cases makes more than a million of them.
const ACKS: usize = 5_000;
/// By how much the windows may differ, segments: one is in whole segments, and each halving rounds once more.
const TOLERANCE: f64 = 3.0;

/// Both senders of one connection.
struct Pair {
    published: Xcp,
    state: XcpState,
    socket: XcpSocket,
    rtt: Duration,
    now: Time,
}

impl Pair {
    fn new(sender: XcpSender, rtt: Duration) -> Self {
        let parameters = Parameters {
            mss: MSS,
            initial_window: 10 * MSS,
            byte_counting_limit: None,
            hystart: false,
            linux_cubic: false,
        };
        let rtt_us = rtt.as_micros() as u32;
        let socket = XcpSocket {
            max_pacing_rate: u64::MAX,
            cwnd: 10,
            cwnd_clamp: u32::MAX,
            mss: MSS as u32,
            snd_wnd: u32::MAX,
            srtt_us: rtt_us,
            min_rtt_us: rtt_us,
            ignores_loss: (sender == XcpSender::PXcp).into(),
            ..XcpSocket::default()
        };
        let published = Xcp::new(parameters, sender);
        let mut pair = Self { published, state: XcpState::default(), socket, rtt, now: Time::ZERO };
        pair.step(CORE_INIT, 0);
        pair
    }

    fn step(&mut self, event: u32, argument: u32) {
        (self.socket.event, self.socket.argument) = (event, argument);
        self.state.step(&mut self.socket);
    }

    fn acknowledge(&mut self, change: i32) {
        self.now += self.rtt / 100;
        let (now, srtt) = (self.now, self.rtt);
        self.published.on_feedback(&Feedback { now, change, srtt, demand: u64::MAX });
        self.published.on_ack(&Acked {
            now,
            bytes: MSS,
            rtt: Some(srtt),
            srtt,
            min_rtt: srtt,
            in_flight: MSS,
            cwnd_limited: true,
            in_recovery: false,
        });
        self.socket.delivered += 1;
        self.socket.asked += 1 << 33;
        self.socket.heard += 1;
        self.socket.heard_total = self.socket.heard_total.wrapping_add_signed(change);
        self.step(CORE_ACK, 0);
    }

    fn lose(&mut self) {
        self.published.on_loss(self.now, u64::MAX);
        self.step(CORE_SSTHRESH, 0);
        self.step(CORE_SET_STATE, TCP_CA_RECOVERY);
        self.step(CORE_SET_STATE, TCP_CA_OPEN);
    }

    fn time_out(&mut self) {
        self.published.on_timeout(self.now, MSS, true);
        self.step(CORE_SET_STATE, TCP_CA_LOSS);
        self.socket.cwnd = 1;
    }

    /// Segments.
    fn windows(&self) -> [f64; 2] {
        [self.published.cwnd() as f64 / MSS as f64, f64::from(self.state.window)]
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// How far the window is to go of its way to a goal, per thousand, of so many segments.
    Towards(u32, u32),
    Loss,
    Timeout,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        200 => (1u32..500, 20u32..20_000).prop_map(|(part, goal)| Step::Towards(part, goal)),
        1 => Just(Step::Loss),
        1 => Just(Step::Timeout),
    ]
}

proptest! {
    #[test]
    fn the_published_sender_and_the_kernels_have_the_same_window(
        sender in prop_oneof![Just(XcpSender::Xcp), Just(XcpSender::PXcp)],
        rtt_ms in 10u64..1_200,
        steps in proptest::collection::vec(step(), ACKS),
    ) {
        let mut pair = Pair::new(sender, Duration::from_millis(rtt_ms));
        for (n, &step) in steps.iter().enumerate() {
            let [window, _] = pair.windows();
            match step {
                Step::Loss if n > 0 => pair.lose(),
                Step::Timeout if n > 0 => pair.time_out(),
                Step::Loss | Step::Timeout => {}
                Step::Towards(part, goal) => {
                    let segments = (f64::from(goal) - window) * f64::from(part) / 1000.0;
                    let change = (segments * MSS as f64 / pair.rtt.as_secs_f64()) as i32;
                    // The published sender takes multiples of its request for answers of no router.
                    pair.acknowledge(change | 1);
                    let [published, kernel] = pair.windows();
                    prop_assert!(
                        (published - kernel).abs() <= TOLERANCE,
                        "at {}: {} and {} segments after {:?}", n, published, kernel, step
                    );
                    let spacing = pair.published.request(MSS, pair.rtt, u64::MAX).unwrap().spacing;
                    let implied = pair.rtt.as_secs_f64() / spacing.as_secs_f64();
                    let kernels = pair.rtt.as_secs_f64() * 1e9 / f64::from(pair.socket.spacing_ns);
                    prop_assert!((implied - kernels).abs() <= TOLERANCE + 0.01 * implied, "{implied} {kernels}");
                }
            }
        }
    }
}

/// 10 Mbit/s and 25 ms are 20.8 packets of 1500 bytes. Waiting for acknowledgements makes them 22 and more,
/// which is no reason to ask for nothing; a queue is.
#[test]
fn the_kernels_sender_compares_its_rate_with_the_link_by_the_round_trip_without_its_queue() {
    let request = |window: u32, srtt_us: u32| {
        let mut socket = XcpSocket {
            event: CORE_INIT,
            capacity: 1_250_000,
            max_pacing_rate: u64::MAX,
            cwnd: window,
            cwnd_clamp: u32::MAX,
            mss: MSS as u32,
            header: 52,
            snd_wnd: u32::MAX,
            srtt_us,
            min_rtt_us: 25_000,
            ..XcpSocket::default()
        };
        XcpState::default().step(&mut socket);
        socket.request
    };
    assert!(request(23, 27_000) > 0, "10.2 Mbit/s");
    assert!(request(25, 27_000) < 0, "11.1 Mbit/s");
    assert!(request(30, 36_000) < 0, "10 Mbit/s arrive, and 12.4 would without the queue of 7 ms");
}
