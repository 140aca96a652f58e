//! What a receiver counts of losses, and what a sender makes of it.

use crate::frame::Report;

/// Frames that may be overtaken before they count as lost.
const REORDERING: u64 = 16;

/// Counts the frames that came and those that did not, by their numbers.
#[derive(Debug, Default)]
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
#[derive(Debug, Clone)]
pub struct LossEstimate {
    frames: f64,
    lost: f64,
    bursts: f64,
    last: [u64; 3],
}

impl Default for LossEstimate {
    /// Before any report: 1%, which 200 frames outweigh.
    fn default() -> Self {
        Self { frames: 200.0, lost: 2.0, bursts: 2.0, last: [0; 3] }
    }
}

impl LossEstimate {
    /// Frames after which an observation counts e times less: a hundred losses at 5%, twenty at 1%.
    pub const MEMORY: f64 = 2000.0;
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
        let keep = libm::exp(-(received + lost) / Self::MEMORY);
        self.frames = self.frames * keep + received + lost;
        self.lost = self.lost * keep + lost;
        self.bursts = self.bursts * keep + bursts;
    }

    /// Share of frames lost, 0 to 0.5.
    pub fn rate(&self) -> f64 {
        (self.lost / self.frames).clamp(0.0, Self::MOST)
    }

    /// Mean number of frames lost in a row, 1 or more.
    pub fn burst(&self) -> f64 {
        if self.bursts < 1e-3 { 1.0 } else { (self.lost / self.bursts).clamp(1.0, Self::LONGEST_BURST) }
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

    fn estimate(frames: u64, lost: u64, bursts: u64) -> LossEstimate {
        let mut estimate = LossEstimate::default();
        for part in 1..=100 {
            let [received, lost, bursts] = [frames - lost, lost, bursts].map(|count| count * part / 100);
            estimate.on_report(&Report { received, lost, bursts, ..Report::default() });
        }
        estimate
    }

    #[test]
    fn it_learns_rate_and_bursts_and_asks_for_little_where_nothing_is_lost() {
        let clean = estimate(20_000, 0, 0);
        assert!(clean.rate() < LossEstimate::NEGLIGIBLE && clean.repairs_for(256.0, 4.0) < 1.0);
        let lossy = estimate(20_000, 1000, 950);
        assert!((lossy.rate() - 0.05).abs() < 0.002 && lossy.burst() < 1.1, "{lossy:?}");
        assert!((15.0..40.0).contains(&lossy.repairs_for(256.0, 3.0)));
        let bursty = estimate(20_000, 200, 10);
        assert!((bursty.rate() - 0.01).abs() < 0.001 && (18.0..21.0).contains(&bursty.burst()));
        assert!(bursty.repairs_for(256.0, 2.0) > 3.0 * estimate(20_000, 200, 198).repairs_for(256.0, 2.0));
    }

    #[test]
    fn a_peer_that_lies_is_believed_within_limits() {
        let mut liar = LossEstimate::default();
        let report = Report { received: 0, lost: u64::MAX, bursts: 1, ..Report::default() };
        liar.on_report(&report);
        assert!(liar.rate() <= 0.5 && liar.burst() <= 200.0 && liar.repairs_for(100.0, 3.0).is_finite());
        liar.on_report(&Report { received: u64::MAX, lost: u64::MAX, bursts: u64::MAX, ..Report::default() });
        liar.on_report(&Report::default());
        assert!(liar.rate() <= 0.5 && liar.repairs_for(100.0, 3.0).is_finite());
    }
}
