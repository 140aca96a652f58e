//! The published sender of XCP and of P-XCP, whose window the routers of its path set.
//!
//! The kernel has another one (`core/xcp_core.h`), in whole segments, which requests the capacity of its link
//! instead of a constant. Tests hold the rules that both share to each other.
//!
//! Sources: Katabi, Handley and Rohrs (SIGCOMM 2002), §3.2 and §3.4; draft-falk-xcp-spec-03; for P-XCP Lopez
//! Pacheco and Lochin (IWSSC 2009), §II.B.

use std::time::Duration;

use bentpipe_units::{Rate, Time};

use super::new_reno::{NewReno, as_window, flight_size, half_of, initial_window};
use super::slow_start::MAX_WINDOW;
use super::{Acked, CongestionControl, Feedback, NO_SSTHRESH, Parameters, Request};

/// The request of a sender that wants more, for a segment, bytes per second: 134 Mbit/s, more than a router
/// has for one segment. A power of two, so that the sum of any number of requests that have met no router is
/// known as such, also where it wraps.
const ASKS_FOR_MORE: i32 = 1 << 24;
/// Round trips without feedback, though data is acknowledged, after which the sender concludes that no router
/// sets its window.
const PATIENCE: u32 = 4;
/// A sample of the round trip counts as so many times the minimum at most. After an outage, samples by
/// timestamps contain the outage, and feedback × seconds of it would be a window of many links.
const LONGEST_SAMPLE: u32 = 2;

/// Which of the two senders it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XcpSender {
    /// It halves its window at a loss as TCP does, and always requests more.
    Xcp,
    /// It does not take a loss for congestion, which routers report; and it requests more only if its window
    /// limits it.
    PXcp,
}

/// A window that feedback sets. Before the first feedback, and where there is none any more, it is NewReno's.
#[derive(Debug)]
pub struct Xcp {
    sender: XcpSender,
    parameters: Parameters,
    window: Window,
    /// The smoothed round-trip time (RFC 6298) of bounded samples; zero before the first.
    rtt: Duration,
}

#[derive(Debug)]
enum Window {
    /// No router has set it.
    Standard(NewReno),
    Explicit(Explicit),
}

#[derive(Debug)]
struct Explicit {
    cwnd: f64,
    /// When the last feedback came.
    fed_at: Time,
    /// When the round trip under way began, and the most that could have been in flight in it, bytes.
    round: (Time, u64),
}

impl Xcp {
    /// A controller for a new connection.
    pub fn new(parameters: Parameters, sender: XcpSender) -> Self {
        Self {
            sender,
            parameters: Parameters { mss: parameters.mss.clamp(1, MAX_WINDOW as u64), ..parameters },
            window: Window::Standard(NewReno::new(parameters)),
            rtt: Duration::ZERO,
        }
    }

    /// The smoothed round trip, with the connection's own before the first sample.
    fn round_trip(&self, srtt: Duration) -> Duration {
        if self.rtt.is_zero() { srtt } else { self.rtt }
    }

    fn sample(&mut self, ack: &Acked) {
        let Some(sample) = ack.rtt else { return };
        let bounded = sample.min(ack.min_rtt.saturating_mul(LONGEST_SAMPLE));
        self.rtt = if self.rtt.is_zero() { bounded } else { self.rtt - self.rtt / 8 + bounded / 8 };
    }

    /// The routers have fallen silent: the window stays as it is, and grows as a standard one.
    fn fall_back(&mut self, cwnd: f64) {
        let parameters = Parameters { initial_window: cwnd as u64, ..self.parameters };
        self.window = Window::Standard(NewReno::beyond_slow_start(parameters));
    }
}

impl CongestionControl for Xcp {
    fn cwnd(&self) -> u64 {
        match &self.window {
            Window::Standard(standard) => standard.cwnd(),
            Window::Explicit(explicit) => explicit.cwnd as u64,
        }
    }

    /// Whole segments: a window of 3.4 of them is 3.4 in a round trip by the pacing, as it tells the routers,
    /// and not 3.
    fn flight_limit(&self) -> u64 {
        match &self.window {
            Window::Standard(standard) => standard.cwnd(),
            Window::Explicit(explicit) => (explicit.cwnd as u64).next_multiple_of(self.parameters.mss),
        }
    }

    fn ssthresh(&self) -> u64 {
        match &self.window {
            Window::Standard(standard) => standard.ssthresh(),
            Window::Explicit(_) => NO_SSTHRESH,
        }
    }

    /// A window in a round trip, for routers that see a queue must not see bursts only.
    fn pacing_rate(&self, srtt: Duration) -> Option<Rate> {
        let Window::Explicit(explicit) = &self.window else { return None };
        let rtt = self.round_trip(srtt);
        let bps = explicit.cwnd * 8.0 / rtt.as_secs_f64();
        Rate::from_bps(bps as u64).filter(|_| !rtt.is_zero())
    }

    fn request(&self, segment: u64, srtt: Duration, demand: u64) -> Option<Request> {
        let (cwnd, rtt) = (self.cwnd().max(1), self.round_trip(srtt));
        let wants = self.sender == XcpSender::Xcp || demand > cwnd;
        Some(Request {
            rtt,
            spacing: Duration::try_from_secs_f64(rtt.as_secs_f64() * segment as f64 / cwnd as f64)
                .unwrap_or(Duration::MAX),
            feedback: if wants { ASKS_FOR_MORE } else { 0 },
        })
    }

    fn on_feedback(&mut self, feedback: &Feedback) {
        let Feedback { now, change, srtt, demand } = *feedback;
        let rtt = self.round_trip(srtt);
        let unsaid = change == 0 && matches!(self.window, Window::Standard(_));
        if unsaid || change != 0 && change % ASKS_FOR_MORE == 0 {
            return;
        }
        let cwnd = self.cwnd() as f64;
        let floor = self.parameters.mss as f64;
        let explicit = match &mut self.window {
            Window::Explicit(explicit) => explicit,
            standard => {
                *standard = Window::Explicit(Explicit { cwnd, fed_at: now, round: (now, demand) });
                return self.on_feedback(feedback);
            }
        };
        explicit.fed_at = now;
        explicit.validate(now, rtt, demand, floor);
        // A window that is not used is not made larger (RFC 7661 §4.4).
        if change < 0 || demand >= explicit.cwnd as u64 {
            let cwnd = explicit.cwnd + f64::from(change) * rtt.as_secs_f64();
            explicit.cwnd = cwnd.clamp(floor, MAX_WINDOW);
        }
    }

    fn on_ack(&mut self, ack: &Acked) {
        self.sample(ack);
        let rtt = self.round_trip(ack.srtt);
        match &mut self.window {
            Window::Standard(standard) => standard.on_ack(ack),
            Window::Explicit(explicit) => {
                let silence = ack.now.since(explicit.fed_at);
                if silence > rtt.saturating_mul(PATIENCE) {
                    let cwnd = explicit.cwnd;
                    self.fall_back(cwnd);
                }
            }
        }
    }

    fn on_loss(&mut self, now: Time, in_flight: u64) {
        match &mut self.window {
            Window::Standard(standard) => standard.on_loss(now, in_flight),
            Window::Explicit(explicit) if self.sender == XcpSender::Xcp => {
                explicit.cwnd =
                    as_window(half_of(flight_size(in_flight, explicit.cwnd), self.parameters.mss));
            }
            Window::Explicit(_) => {}
        }
    }

    /// The routers change the window in a repair as before it.
    fn is_reduced_proportionally(&self) -> bool {
        matches!(self.window, Window::Standard(_))
    }

    /// One segment, as TCP; the first feedback tells what there is.
    fn on_timeout(&mut self, now: Time, in_flight: u64, first: bool) {
        match &mut self.window {
            Window::Standard(standard) => standard.on_timeout(now, in_flight, first),
            Window::Explicit(explicit) => explicit.cwnd = self.parameters.mss as f64,
        }
    }

    /// Feedback changes the window; it does not say what it is. So one that was lowered in vain comes back.
    fn set_window(&mut self, cwnd: u64, ssthresh: u64) {
        match &mut self.window {
            Window::Standard(standard) => standard.set_window(cwnd, ssthresh),
            Window::Explicit(explicit) => {
                explicit.cwnd = (cwnd as f64).clamp(self.parameters.mss as f64, MAX_WINDOW);
            }
        }
    }

    fn on_idle(&mut self, now: Time) {
        match &mut self.window {
            Window::Standard(standard) => standard.on_idle(now),
            Window::Explicit(explicit) => explicit.cwnd = explicit.cwnd.min(initial_window(&self.parameters)),
        }
    }
}

impl Explicit {
    /// RFC 2861 §3.1: in each round trip that did not use up the window it gives back half of the rest, so
    /// that the X that it makes remains true of the segments that are sent.
    fn validate(&mut self, now: Time, rtt: Duration, demand: u64, floor: f64) {
        let (began, most) = self.round;
        self.round.1 = most.max(demand);
        if now.since(began) < rtt {
            return;
        }
        let used = self.round.1 as f64;
        if used < self.cwnd.floor() {
            self.cwnd = ((self.cwnd + used) / 2.0).max(floor);
        }
        self.round = (now, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1000;
    const RTT: Duration = Duration::from_millis(500);

    /// A window of ten segments.
    fn sender(sender: XcpSender) -> Xcp {
        Xcp::new(
            Parameters {
                mss: MSS,
                initial_window: 10 * MSS,
                byte_counting_limit: None,
                hystart: false,
                linux_cubic: false,
            },
            sender,
        )
    }

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    fn feed(xcp: &mut Xcp, ms: u64, change: i32, demand: u64) {
        xcp.on_feedback(&Feedback { now: at(ms), change, srtt: RTT, demand });
    }

    fn acked(ms: u64) -> Acked {
        Acked {
            now: at(ms),
            bytes: MSS,
            rtt: Some(RTT),
            srtt: RTT,
            min_rtt: RTT,
            in_flight: 10 * MSS,
            cwnd_limited: true,
            in_recovery: false,
        }
    }

    fn acknowledge(xcp: &mut Xcp, ms: u64) {
        xcp.on_ack(&acked(ms));
    }

    #[test]
    fn feedback_changes_the_window_by_itself_times_the_round_trip_and_never_below_a_segment() {
        let mut xcp = sender(XcpSender::Xcp);
        feed(&mut xcp, 0, 20_000, u64::MAX);
        assert_eq!(xcp.cwnd(), 10 * MSS + 10_000);
        feed(&mut xcp, 1, -10_000, u64::MAX);
        assert_eq!((xcp.cwnd(), xcp.flight_limit()), (15 * MSS, 15 * MSS));
        assert_eq!(xcp.pacing_rate(RTT), Rate::from_bps(15 * MSS * 8 * 2));
        acknowledge(&mut xcp, 2);
        assert_eq!(xcp.cwnd(), 15 * MSS, "an acknowledgement alone changes nothing");
        feed(&mut xcp, 3, 2, u64::MAX);
        assert_eq!((xcp.cwnd(), xcp.flight_limit()), (15 * MSS + 1, 16 * MSS));
        feed(&mut xcp, 4, -1_000_000, u64::MAX);
        assert_eq!(xcp.cwnd(), MSS);
    }

    #[test]
    fn a_request_says_the_spacing_and_only_p_xcp_says_that_it_has_enough() {
        for (kind, limited) in [(XcpSender::Xcp, ASKS_FOR_MORE), (XcpSender::PXcp, 0)] {
            let xcp = sender(kind);
            let request = |demand| xcp.request(MSS, RTT, demand).unwrap();
            let spacing = Duration::from_millis(50);
            assert_eq!(request(11 * MSS), Request { rtt: RTT, spacing, feedback: ASKS_FOR_MORE });
            assert_eq!(request(10 * MSS).feedback, limited);
        }
    }

    #[test]
    fn xcp_halves_its_window_at_a_loss_and_p_xcp_does_not_and_a_timeout_takes_both_to_a_segment() {
        for (kind, after) in [(XcpSender::Xcp, 10 * MSS), (XcpSender::PXcp, 20 * MSS)] {
            let mut xcp = sender(kind);
            feed(&mut xcp, 0, 20_000, u64::MAX);
            xcp.on_loss(at(1), 20 * MSS);
            assert_eq!(xcp.cwnd(), after, "{kind:?}");
            xcp.on_timeout(at(2), 20 * MSS, true);
            assert_eq!(xcp.cwnd(), MSS);
        }
    }

    #[test]
    fn a_window_that_a_timeout_lowered_in_vain_comes_back() {
        let mut xcp = sender(XcpSender::PXcp);
        feed(&mut xcp, 0, 20_000, u64::MAX);
        xcp.on_timeout(at(1), 20 * MSS, true);
        xcp.set_window(20 * MSS, NO_SSTHRESH);
        assert_eq!((xcp.cwnd(), xcp.ssthresh()), (20 * MSS, NO_SSTHRESH));
        let mut standard = sender(XcpSender::PXcp);
        standard.set_window(4 * MSS, 8 * MSS);
        assert_eq!((standard.cwnd(), standard.ssthresh()), (4 * MSS, 8 * MSS));
    }

    #[test]
    fn a_sample_that_contains_an_outage_counts_as_two_round_trips() {
        let mut xcp = sender(XcpSender::PXcp);
        acknowledge(&mut xcp, 0);
        xcp.on_ack(&Acked { rtt: Some(40 * RTT), srtt: 5 * RTT, ..acked(20_000) });
        // 7/8 of one, and an eighth of two.
        let rtt = RTT * 9 / 8;
        assert_eq!(xcp.request(MSS, 5 * RTT, u64::MAX).unwrap().rtt, rtt);
        let before = xcp.cwnd();
        xcp.on_feedback(&Feedback { now: at(20_001), change: 16_000, srtt: 5 * RTT, demand: u64::MAX });
        assert_eq!(xcp.cwnd(), before + 9_000);
        assert_eq!(
            xcp.pacing_rate(5 * RTT),
            Rate::from_bps((xcp.cwnd() as f64 * 8.0 / rtt.as_secs_f64()) as u64)
        );
    }

    #[test]
    fn without_feedback_it_is_newreno() {
        let mut xcp = sender(XcpSender::PXcp);
        acknowledge(&mut xcp, 500);
        assert_eq!((xcp.cwnd(), xcp.pacing_rate(RTT)), (11 * MSS, None));
        assert!(xcp.is_reduced_proportionally());
        xcp.on_loss(at(600), 10 * MSS);
        assert_eq!((xcp.cwnd(), xcp.ssthresh()), (5 * MSS, 5 * MSS));
    }

    #[test]
    fn a_request_that_comes_back_as_it_was_has_met_no_router() {
        let mut xcp = sender(XcpSender::Xcp);
        for change in [ASKS_FOR_MORE, 2 * ASKS_FOR_MORE, i32::MIN, -5 * ASKS_FOR_MORE, 0] {
            feed(&mut xcp, 500, change, u64::MAX);
            assert_eq!((xcp.cwnd(), xcp.pacing_rate(RTT)), (10 * MSS, None));
        }
    }

    #[test]
    fn after_four_silent_round_trips_it_goes_on_as_newreno_and_learns_again() {
        let mut xcp = sender(XcpSender::PXcp);
        feed(&mut xcp, 0, 20_000, u64::MAX);
        acknowledge(&mut xcp, 2000);
        assert_eq!(xcp.ssthresh(), NO_SSTHRESH);
        acknowledge(&mut xcp, 2001);
        assert_eq!((xcp.cwnd(), xcp.ssthresh()), (20 * MSS, 20 * MSS));
        xcp.on_loss(at(2100), 20 * MSS);
        assert_eq!(xcp.cwnd(), 10 * MSS, "nobody tells of congestion, so losses do");
        feed(&mut xcp, 2500, 20_000, u64::MAX);
        assert_eq!((xcp.cwnd(), xcp.ssthresh()), (20 * MSS, NO_SSTHRESH));
    }

    #[test]
    fn unused_share_is_returned_by_halves_and_not_refilled() {
        let mut xcp = sender(XcpSender::Xcp);
        feed(&mut xcp, 0, 20_000, u64::MAX);
        feed(&mut xcp, 500, 0, 4 * MSS);
        assert_eq!(xcp.cwnd(), 20 * MSS, "the first round trip was used");
        feed(&mut xcp, 900, 50_000, 4 * MSS);
        feed(&mut xcp, 1000, 0, 4 * MSS);
        assert_eq!(xcp.cwnd(), 12 * MSS);
        feed(&mut xcp, 1500, 0, 4 * MSS);
        assert_eq!(xcp.cwnd(), 8 * MSS);
    }
}
