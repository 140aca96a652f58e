//! A path for tests of congestion controls that go by the delivery rate.

use std::collections::VecDeque;
use std::time::Duration;

use bentpipe_units::Time;

use super::{CongestionControl, Delivery, Parameters, Phase};
use crate::RateSample;

pub(super) const MSS: u64 = 1448;
pub(super) const RTT: Duration = Duration::from_millis(100);
/// Bytes per second.
pub(super) const LINK: f64 = 1e6;

/// A departure: when, what had been delivered and lost by then, what was in flight with it, and whether it
/// arrives.
#[derive(Debug, Clone, Copy)]
struct Departure {
    at: Time,
    delivered: u64,
    lost: u64,
    in_flight: u64,
    arrives: bool,
}

/// A path of a fixed rate and round trip, and a queue: one acknowledgement for each segment that arrives,
/// which reveals the losses before it, and a flight that is the window, or what the pace makes of it.
pub(super) struct Path<C> {
    pub(super) control: C,
    pub(super) now: Time,
    pub(super) delivered: u64,
    pub(super) lost: u64,
    pub(super) longest_rtt: Duration,
    /// Bytes per second, and the bytes that may wait for it.
    pub(super) link: f64,
    pub(super) queue: u64,
    /// Of each so many segments one is lost.
    pub(super) loses_one_in: Option<u64>,
    sent: u64,
    flight: VecDeque<Departure>,
    /// Those of the flight that arrive.
    arriving: u64,
    free_at: Time,
    next_at: Time,
}

impl<C: CongestionControl> Path<C> {
    pub(super) fn new(control: impl FnOnce(Parameters) -> C) -> Self {
        let mut control = control(Parameters {
            mss: MSS,
            initial_window: 10 * MSS,
            byte_counting_limit: None,
            hystart: false,
            linux_cubic: false,
        });
        control.on_established(Time::ZERO, Some(RTT));
        Self {
            control,
            now: Time::ZERO,
            delivered: 0,
            lost: 0,
            longest_rtt: RTT,
            link: LINK,
            queue: u64::MAX,
            loses_one_in: None,
            sent: 0,
            flight: VecDeque::new(),
            arriving: 0,
            free_at: Time::ZERO,
            next_at: Time::ZERO,
        }
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.flight.len() as u64 * MSS
    }

    fn takes(&self) -> Duration {
        Duration::from_secs_f64(MSS as f64 / self.link)
    }

    /// The next acknowledgement or departure.
    pub(super) fn step(&mut self) {
        let room = self.in_flight() + MSS <= self.control.cwnd().max(MSS);
        let arrives = self.flight.front().map(|first| (first.at + RTT).max(self.free_at + self.takes()));
        if room && arrives.is_none_or(|arrives| self.next_at.max(self.now) <= arrives) {
            self.depart();
        } else {
            self.acknowledge();
        }
    }

    fn depart(&mut self) {
        self.now = self.now.max(self.next_at);
        self.sent += 1;
        let unlucky = self.loses_one_in.is_some_and(|one_in| self.sent.is_multiple_of(one_in));
        let held = (self.link * RTT.as_secs_f64()) as u64;
        let overflows = self.arriving * MSS > held.saturating_add(self.queue);
        let arrives = !unlucky && !overflows;
        self.arriving += u64::from(arrives);
        self.flight.push_back(Departure {
            at: self.now,
            delivered: self.delivered,
            lost: self.lost,
            in_flight: self.in_flight() + MSS,
            arrives,
        });
        let rate = self.control.pacing_rate(RTT).unwrap();
        self.next_at = self.now + rate.time_for(MSS);
    }

    fn acknowledge(&mut self) {
        let prior_in_flight = self.in_flight();
        let before = self.lost;
        let sent = loop {
            let Some(first) = self.flight.pop_front() else { return };
            if first.arrives {
                break first;
            }
            self.lost += MSS;
        };
        self.now = (sent.at + RTT).max(self.free_at + self.takes()).max(self.now);
        self.free_at = self.now;
        self.arriving -= 1;
        self.delivered += MSS;
        let rtt = self.now - sent.at;
        self.longest_rtt = self.longest_rtt.max(rtt);
        let lost = self.lost - before;
        if lost > 0 {
            self.control.on_loss(self.now, prior_in_flight);
        }
        self.control.on_delivery(&Delivery {
            now: self.now,
            bytes: MSS,
            delivered: self.delivered,
            lost,
            in_flight: self.in_flight(),
            prior_in_flight,
            rtt: Some(rtt),
            srtt: rtt,
            phase: if self.lost > sent.lost { Phase::Recovery } else { Phase::Open },
            sample: Some(RateSample {
                bytes: self.delivered - sent.delivered,
                interval: rtt,
                prior_delivered: sent.delivered,
                is_app_limited: false,
                in_flight: sent.in_flight,
                lost: self.lost - sent.lost,
            }),
        });
    }

    pub(super) fn run_to(&mut self, millis: u64) {
        self.run_until(millis, |_| false);
    }

    /// Until that time, or until something is so; whether it is.
    pub(super) fn run_until(&mut self, millis: u64, is_so: impl Fn(&C) -> bool) -> bool {
        while self.now < Time::ZERO + Duration::from_millis(millis) {
            self.step();
            if is_so(&self.control) {
                return true;
            }
        }
        false
    }

    /// The part of the link that is used from `from` to `to`.
    pub(super) fn used(&mut self, from: u64, to: u64) -> f64 {
        self.run_to(from);
        let (before, since) = (self.delivered, self.now);
        self.run_to(to);
        (self.delivered - before) as f64 / self.link / (self.now - since).as_secs_f64()
    }
}
