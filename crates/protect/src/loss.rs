//! What a receiver counts of losses, and what a sender makes of it.

use serde::{Deserialize, Serialize};

use crate::frame::Report;

/// Frames that may be overtaken before they count as lost.
const REORDERING: u64 = 16;

/// Counts the frames that came and those that did not, by their numbers.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct LossMeter {
    /// The number behind the highest one that came.
    end: u64,
    /// The number before which all are counted.
    judged: u64,
    /// Which of those from `judged` on have come, lowest bit first.
    came: u64,
    in_burst: bool,
    received: u64,
    lost: u64,
    bursts: u64,
}

impl LossMeter {
    /// An authentic frame came; each number comes once.
    pub fn on_frame(&mut self, number: u64) {
        if number < self.judged {
            // Later than expected, but not lost.
            self.received += 1;
            self.lost = self.lost.saturating_sub(1);
            self.bursts = self.bursts.min(self.lost);
            return;
        }
        self.end = self.end.max(number + 1);
        let until = self.end.saturating_sub(REORDERING);
        for _ in self.judged..until.min(self.judged + 64) {
            self.judge(self.came & 1 == 1, 1);
            self.came >>= 1;
        }
        if until > self.judged {
            self.judge(false, until - self.judged);
        }
        self.came |= 1 << (number - self.judged);
    }

    fn judge(&mut self, came: bool, frames: u64) {
        self.judged += frames;
        if came {
            self.received += frames;
        } else {
            self.lost += frames;
            self.bursts += u64::from(!self.in_burst);
        }
        self.in_burst = !came;
    }

    /// Writes the counts into a report.
    pub(crate) fn tell(&self, report: &mut Report) {
        (report.received, report.lost, report.bursts) = (self.received, self.lost, self.bursts);
    }
}

/// What the sender believes of its direction: the share of frames lost and the length of bursts, from the
/// peer's reports, each weighted by e^(−frames since then / [`MEMORY`](Self::MEMORY)).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LossEstimate {
    frames: f64,
    lost: f64,
    /// Of these bursts, which are rarer than losses and are remembered for longer, so many frames.
    lost_in_bursts: f64,
    bursts: f64,
    last: [u64; 3],
}

impl Default for LossEstimate {
    /// Before any report: 1%, which 200 frames outweigh.
    fn default() -> Self {
        Self { frames: 200.0, lost: 2.0, lost_in_bursts: 2.0, bursts: 2.0, last: [0; 3] }
    }
}

impl LossEstimate {
    /// Frames after which an observation of the rate counts e times less: two hundred losses at 5%, forty at
    /// 1%.
    pub const MEMORY: f64 = 4000.0;
    /// The same for the length of bursts: ten of 20 frames at 1%.
    pub const MEMORY_OF_BURSTS: f64 = 20_000.0;
    /// Where fewer are lost, the code is not worth a frame (one packet in 2000), and retransmission does it
    /// alone.
    pub const NEGLIGIBLE: f64 = 5e-4;
    /// A peer that says more is not believed.
    const MOST: f64 = 0.5;
    /// Nor longer bursts.
    const LONGEST_BURST: f64 = 200.0;

    /// The same belief in a new session, where the peer counts from 0.
    pub(crate) fn in_new_session(&self) -> Self {
        Self { last: [0; 3], ..self.clone() }
    }

    /// Takes the sums of a report. One that is older than the last one says nothing.
    pub(crate) fn on_report(&mut self, report: &Report) {
        let now = [report.received, report.lost, report.bursts];
        let total = |counts: [u64; 3]| counts[0].saturating_add(counts[1]);
        if total(now) <= total(self.last) {
            return;
        }
        let [received, lost, bursts] = std::array::from_fn(|i| now[i].saturating_sub(self.last[i]) as f64);
        self.last = now;
        let frames = received + lost;
        let keep = libm::exp(-frames / Self::MEMORY);
        self.frames = self.frames * keep + frames;
        self.lost = self.lost * keep + lost;
        let keep = libm::exp(-frames / Self::MEMORY_OF_BURSTS);
        self.lost_in_bursts = self.lost_in_bursts * keep + lost;
        self.bursts = self.bursts * keep + bursts;
    }

    /// Share of frames lost, 0 to 0.5.
    pub fn rate(&self) -> f64 {
        (self.lost / self.frames).clamp(0.0, Self::MOST)
    }

    /// Mean number of frames lost in a row, 1 or more.
    pub fn burst(&self) -> f64 {
        if self.bursts < 1e-3 {
            1.0
        } else {
            (self.lost_in_bursts / self.bursts).clamp(1.0, Self::LONGEST_BURST)
        }
    }

    /// Repair symbols for each packet: the ratio that costs least, if each symbol costs the time of one
    /// packet and each burst of losses that is not repaired within `horizon` packets that of `failure`
    /// packets. 0 if the code is no use.
    ///
    /// Bursts of geometric length of the mean b arrive at the rate p/b for each packet; repair symbols serve
    /// one lost packet after the other, r of them for each packet sent. The time T in this queue (M/D/1 with
    /// batches) has an exponential tail P(T > t) ≈ e^(−θt), where with s = θ/r and the moment-generating
    /// function M of the length of a burst r·s = (p/b)·(M(s) − 1) (Cramér and Lundberg; for instance
    /// Asmussen, Applied Probability and Queues, 2003, XIII.5). So s gives both r and θ, and the cost is r +
    /// (p/b)·failure·e^(−r·s·horizon).
    pub fn redundancy(&self, horizon: f64, failure: f64) -> f64 {
        const STEPS: u32 = 48;
        /// More would be more certain than anything that the estimate says.
        const LARGEST_S: f64 = 5.0;
        let (p, b) = (self.rate(), self.burst());
        if p < Self::NEGLIGIBLE {
            return 0.0;
        }
        let bursts = p / b;
        // M(s) = eˢ / (b − (b − 1)·eˢ) is finite below this.
        let end = if b > 1.0 { (-libm::log(1.0 - 1.0 / b)).min(LARGEST_S) } else { LARGEST_S };
        let candidate = |step: u32| {
            let s = end * f64::from(step) / f64::from(STEPS + 1);
            let e = libm::exp(s);
            let ratio = bursts * (e / (b - (b - 1.0) * e) - 1.0) / s;
            (ratio + bursts * failure * libm::exp(-ratio * s * horizon), ratio)
        };
        let nothing = (bursts * failure, 0.0);
        let best = (1..=STEPS).map(candidate).fold(nothing, |a, b| if b.0 < a.0 { b } else { a });
        best.1 / (1.0 - p)
    }

    /// Repair symbols to be sent with so many frames, so that those that arrive make up for the losses among
    /// them up to `deviations` standard deviations above the mean.
    ///
    /// Of N frames N·p are lost in the mean. With independent losses the variance is about N·p; with bursts
    /// of geometric length of the mean b it is 2b − 1 times as much (the second moment of their length,
    /// divided by their mean).
    pub fn repairs_for(&self, frames: f64, deviations: f64) -> f64 {
        let lost = frames * self.rate();
        let spread = libm::sqrt(lost * (2.0 * self.burst() - 1.0));
        (lost + deviations * spread) / (1.0 - self.rate())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn count(came: impl IntoIterator<Item = u64>) -> [u64; 3] {
        let (mut meter, mut report) = (LossMeter::default(), Report::default());
        came.into_iter().for_each(|number| meter.on_frame(number));
        meter.tell(&mut report);
        [report.received, report.lost, report.bursts]
    }

    #[test]
    fn losses_and_bursts_are_counted_and_reordering_is_not() {
        let lost = [3, 10, 11, 12, 50];
        assert_eq!(count((0..116).filter(|n| !lost.contains(n))), [95, 5, 3]);
        let swapped = (0..116).map(|n| if n % 8 < 2 { n ^ 1 } else { n });
        assert_eq!(count(swapped), [100, 0, 0]);
    }

    #[test]
    fn one_that_comes_very_late_was_not_lost() {
        assert_eq!(count((0..30).filter(|n| *n != 2).chain([2])), [14, 0, 0]);
    }

    #[test]
    fn a_silence_of_any_length_is_one_burst() {
        let far = 1 << 40;
        let came = (0..10).chain(far..far + REORDERING);
        assert_eq!(count(came), [10, far - 10, 1]);
    }

    proptest! {
        #[test]
        fn every_frame_is_counted_once(steps in proptest::collection::vec(1u64..120, 1..200)) {
            let numbers: Vec<u64> =
                steps.iter().scan(0, |n, step| { *n += step; Some(*n) }).collect();
            let [received, lost, bursts] = count(numbers.iter().copied());
            let judged = (numbers[numbers.len() - 1] + 1).saturating_sub(REORDERING);
            prop_assert_eq!(received, numbers.iter().filter(|n| **n < judged).count() as u64);
            prop_assert_eq!(lost, judged - received);
            prop_assert!(bursts <= received + 1);
        }
    }

    /// After ten reports for each burst.
    fn estimate(frames: u64, lost: u64, bursts: u64) -> LossEstimate {
        let mut estimate = LossEstimate::default();
        let parts = 10 * bursts.max(1);
        for part in 1..=parts {
            let [received, lost, bursts] = [frames - lost, lost, bursts].map(|count| count * part / parts);
            estimate.on_report(&Report { received, lost, bursts, ..Report::default() });
        }
        estimate
    }

    #[test]
    fn it_learns_rate_and_bursts_and_asks_for_little_where_nothing_is_lost() {
        let clean = estimate(50_000, 0, 0);
        assert!(clean.rate() < LossEstimate::NEGLIGIBLE && clean.repairs_for(256.0, 3.0) < 1.0);
        let lossy = estimate(100_000, 5000, 4750);
        assert!((lossy.rate() - 0.05).abs() < 0.002 && lossy.burst() < 1.1, "{lossy:?}");
        assert!((15.0..40.0).contains(&lossy.repairs_for(256.0, 3.0)));
        let bursty = estimate(100_000, 1000, 50);
        assert!((bursty.rate() - 0.01).abs() < 0.002 && (17.0..23.0).contains(&bursty.burst()), "{bursty:?}");
        assert!(bursty.repairs_for(256.0, 2.0) > 3.0 * estimate(100_000, 1000, 990).repairs_for(256.0, 2.0));
    }

    #[test]
    fn redundancy_is_what_pays() {
        let ratio = |lost, bursts| estimate(100_000, lost, bursts).redundancy(129.0, 220.0);
        assert_eq!(ratio(0, 0), 0.0);
        // Calculated by hand: about 2.8% at 1%, 10% at 5%.
        assert!((0.024..0.034).contains(&ratio(1000, 990)), "{}", ratio(1000, 990));
        assert!((0.08..0.13).contains(&ratio(5000, 4750)), "{}", ratio(5000, 4750));
        // Bursts of 20 would take a fifth of the link; sending them again takes a round trip now and then.
        assert_eq!(ratio(1000, 50), 0.0);
        assert!(estimate(100_000, 1000, 50).redundancy(129.0, 20_000.0) > 0.15);
    }

    #[test]
    fn a_peer_that_lies_is_believed_within_limits() {
        let mut liar = LossEstimate::default();
        let report = Report { received: 0, lost: u64::MAX, bursts: 1, ..Report::default() };
        liar.on_report(&report);
        assert!(liar.rate() <= 0.5 && liar.burst() <= 200.0 && liar.redundancy(100.0, 1e4).is_finite());
        liar.on_report(&Report { received: u64::MAX, lost: u64::MAX, bursts: u64::MAX, ..Report::default() });
        liar.on_report(&Report::default());
        assert!(liar.rate() <= 0.5 && liar.redundancy(100.0, 1e4).is_finite());
    }
}
