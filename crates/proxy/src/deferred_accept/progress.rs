//! Whether connections come of the SYNs that go to listeners.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::pending_table::FourTuple;

/// A client repeats its SYN after 1 and 3 s (RFC 6298 §2), Linux since 6.5 after 1, 2 and 3 s. What is
/// repeated after so long was not answered, or the answer did not arrive.
const PATIENCE: Duration = Duration::from_millis(2500);
/// So many copies of a SYN must have come, each not much later than its client sends it. After an outage of
/// the client's own link a second copy comes late, and says nothing of this host: the answer to the first was
/// lost there, and so were the copies in between.
const COPIES: u32 = 3;
/// The longest gap behind the first copy: 3 s on old hosts (RFC 1122 §4.2.3.1), and what the path adds to it.
const LONGEST_GAP: Duration = Duration::from_millis(3500);
/// Each later gap is as long as the one before, or twice as long, and what the path adds to it.
const GROWTH: f64 = 2.2;
/// A SYN that was repeated later than this was given up in the meantime.
const FORGOTTEN: Duration = Duration::from_secs(90);
/// How many SYNs are remembered.
const CAPACITY: usize = 16_384;
/// How long connections pass unsplit then: at first, and at the most. Each time it is twice as long.
const FIRST: Duration = Duration::from_secs(30);
const LONGEST: Duration = Duration::from_secs(480);

/// The SYNs that went to listeners of late, with the number of connections that had been accepted at the
/// time.
#[derive(Debug)]
pub(super) struct Progress {
    given: HashMap<(FourTuple, u32), Given>,
    /// The same, the oldest first.
    order: VecDeque<(FourTuple, u32)>,
    next: Duration,
}

#[derive(Debug)]
struct Given {
    first: Instant,
    last: Instant,
    copies: u32,
    /// The longest gap that can come next.
    longest_gap: Duration,
    /// Connections that had been accepted at the first copy.
    accepted: u64,
}

impl Default for Progress {
    fn default() -> Self {
        Self { given: HashMap::new(), order: VecDeque::new(), next: FIRST }
    }
}

impl Progress {
    /// Notes a SYN that goes to a listener. If the client has repeated it for some time and nothing of its
    /// family has been accepted since, returns for how long connections had better pass.
    pub(super) fn note(
        &mut self,
        pair: FourTuple,
        isn: u32,
        accepted: u64,
        now: Instant,
    ) -> Option<Duration> {
        self.forget(now);
        let Some(known) = self.given.get_mut(&(pair, isn)) else {
            self.given.insert((pair, isn), Given::new(accepted, now));
            self.order.push_back((pair, isn));
            return None;
        };
        if accepted != known.accepted {
            self.next = FIRST;
            return None;
        }
        if !known.is_repeated_for_seconds(now) {
            return None;
        }
        (self.given, self.order) = Default::default();
        let time = self.next;
        self.next = (2 * time).min(LONGEST);
        Some(time)
    }

    /// Makes room for one more.
    fn forget(&mut self, now: Instant) {
        while let Some(oldest) = self.order.front() {
            let is_old = |given: &Given| now.saturating_duration_since(given.first) > FORGOTTEN;
            if self.order.len() < CAPACITY && !self.given.get(oldest).is_some_and(is_old) {
                return;
            }
            self.given.remove(oldest);
            self.order.pop_front();
        }
    }
}

impl Given {
    fn new(accepted: u64, now: Instant) -> Self {
        Self { first: now, last: now, copies: 1, longest_gap: LONGEST_GAP, accepted }
    }

    /// Notes one more copy. False if copies before it were lost on their way.
    fn is_repeated_for_seconds(&mut self, now: Instant) -> bool {
        let gap = now.saturating_duration_since(self.last);
        if gap > self.longest_gap {
            *self = Self::new(self.accepted, now);
            return false;
        }
        self.longest_gap = gap.mul_f64(GROWTH);
        self.last = now;
        self.copies += 1;
        self.copies >= COPIES && now.saturating_duration_since(self.first) >= PATIENCE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(port: u16) -> FourTuple {
        FourTuple::new(([10, 0, 0, 1], port).into(), ([192, 0, 2, 1], 80).into())
    }

    #[test]
    fn a_syn_repeated_for_seconds_while_nothing_is_accepted_is_no_progress() {
        let (mut progress, start) = (Progress::default(), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        for second in [0, 1] {
            assert_eq!(progress.note(pair(1), 7, 5, at(second)), None);
        }
        assert_eq!(progress.note(pair(1), 7, 5, at(3)), Some(FIRST));
        assert_eq!(progress.note(pair(1), 7, 5, at(7)), None, "it is looked at anew");
        assert_eq!(
            [8, 9, 10].map(|second| progress.note(pair(1), 7, 5, at(second))),
            [None, None, Some(2 * FIRST)]
        );
    }

    #[test]
    fn a_syn_whose_copies_were_lost_in_an_outage_is_looked_at_anew() {
        let start = Instant::now();
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        for copies in [
            // One comes before the outage, and one after it.
            &[0.0, 3.1][..],
            &[0.0, 5.0],
            &[0.0, 1.0, 5.0],
            // Its answer is lost as well.
            &[0.0, 5.0, 6.0, 7.0],
        ] {
            let mut progress = Progress::default();
            let outcomes = copies.iter().map(|&copy| progress.note(pair(1), 7, 5, at(copy)));
            assert!(outcomes.eq(copies.iter().map(|_| None)), "{copies:?}");
        }
        // Those that nothing has kept: Linux since 6.5, RFC 6298, old hosts; and one by a path whose delay
        // varies.
        for copies in [&[0.0, 1.0, 2.0, 3.0][..], &[0.0, 1.0, 3.0], &[0.0, 3.0, 9.0], &[0.0, 0.8, 2.2, 3.1]] {
            let mut progress = Progress::default();
            let outcomes = copies.iter().map(|&copy| progress.note(pair(1), 7, 5, at(copy)));
            assert_eq!(outcomes.flatten().next(), Some(FIRST), "{copies:?}");
        }
    }

    #[test]
    fn other_connections_that_are_accepted_are_progress_and_so_is_another_connection() {
        let (mut progress, start) = (Progress::default(), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        assert_eq!(progress.note(pair(1), 7, 5, start), None);
        assert_eq!(progress.note(pair(1), 7, 6, at(3)), None);
        assert_eq!(progress.note(pair(1), 8, 6, at(9)), None, "another initial sequence number");
        assert_eq!(progress.note(pair(2), 7, 6, at(9)), None);
    }

    #[test]
    fn a_flood_of_syns_that_nobody_repeats_changes_nothing() {
        let (mut progress, start) = (Progress::default(), Instant::now());
        for number in 0..2 * CAPACITY as u32 {
            let now = start + Duration::from_micros(number.into());
            assert_eq!(progress.note(pair(number as u16), number, 0, now), None);
        }
        assert!(progress.given.len() <= CAPACITY && progress.order.len() == progress.given.len());
    }
}
