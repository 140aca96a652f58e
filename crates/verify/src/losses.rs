//! The losses that the scenario leaves to chance.

use std::collections::BTreeMap;

use crate::chance::{Channel, FALSE_ALARM, Trials};
use crate::findings::{Check, Findings};
use crate::scenario::Direction;

/// Packets above are large ones.
const LARGE: u64 = 600;

/// Trials of errors: all of them, and those of packets that should not matter to them.
#[derive(Debug, Default)]
struct Errors {
    all: Trials,
    /// Of small and of large packets.
    by_size: [Trials; 2],
    /// Of packets behind one that was not lost, and behind one that was.
    by_last: [Trials; 2],
    was_lost: bool,
}

/// The losses of a direction.
#[derive(Debug)]
pub(crate) struct Losses {
    channel: Option<Channel>,
    bursts: Errors,
    single: Errors,
}

impl Errors {
    fn add(&mut self, probability: f64, bytes: u64, lost: bool) {
        self.all.add(probability, lost);
        self.by_size[usize::from(bytes > LARGE)].add(probability, lost);
        self.by_last[usize::from(self.was_lost)].add(probability, lost);
        self.was_lost = lost;
    }

    fn check(&mut self, what: &str, findings: &mut Findings) {
        let [small, large] = &mut self.by_size;
        let [behind_arrived, behind_lost] = &mut self.by_last;
        let all = (&mut self.all, Check::Losses, String::new());
        let parts = [
            (small, format!(" of at most {LARGE} bytes")),
            (large, format!(" of more than {LARGE} bytes")),
            (behind_arrived, " behind one that such an error has not hit".to_owned()),
            (behind_lost, " behind one that it has hit".to_owned()),
        ];
        let parts = parts.map(|(trials, which)| (trials, Check::Independence, which));
        for (trials, check, which) in [all].into_iter().chain(parts) {
            if !trials.agree() {
                let Trials { trials, hits, expected, .. } = *trials;
                findings.add(check, || {
                    format!(
                        "of {trials} packets{which}, {hits} were lost to {what}; expected {expected:.1}, and by \
                         chance so far from it with a probability below {FALSE_ALARM:e}"
                    )
                });
            }
        }
    }
}

impl Losses {
    pub(crate) fn new(direction: &Direction) -> Self {
        Self {
            channel: direction.bursts.map(Channel::new),
            bursts: Errors::default(),
            single: Errors::default(),
        }
    }

    /// A packet leaves: by which probability the channel of bursts loses it; `None` without one. To be called
    /// for each packet that is sent.
    pub(crate) fn in_bursts(&mut self, departure: u64) -> Option<f64> {
        self.channel.as_mut().map(|channel| channel.loss_of(departure))
    }

    /// Whether the channel of bursts has lost the packet.
    pub(crate) fn burst(&mut self, probability: f64, bytes: u64, lost: bool) {
        self.bursts.add(probability, bytes, lost);
        if let Some(channel) = &mut self.channel {
            channel.observe(lost);
        }
    }

    /// Whether a single error has lost it.
    pub(crate) fn single(&mut self, probability: f64, bytes: u64, lost: bool) {
        self.single.add(probability, bytes, lost);
    }

    pub(crate) fn check(&mut self, findings: &mut Findings) {
        self.bursts.check("bursts of errors", findings);
        self.single.check("single packet errors", findings);
    }
}

/// Packets that were duplicated, held back or corrupted.
pub(crate) fn check_impairments(
    direction: &Direction,
    delivered: u64,
    sums: &BTreeMap<String, (u64, u64)>,
    findings: &mut Findings,
) {
    let count = |name: &str| sums.get(name).map_or(0, |sum| sum.0);
    let copies = delivered + count("duplicated");
    for (name, what, probability, of) in [
        ("duplicated", "packets were duplicated", direction.duplicate, delivered),
        ("held_back", "copies were held back", direction.reorder, copies),
        ("corrupted", "copies were corrupted", direction.corrupt, copies),
    ] {
        let hits = count(name);
        let mut trials = Trials::default();
        trials.add_many(probability, of, hits.min(of));
        let too_few = hits as f64 <= probability * of as f64;
        // Reports are no packets, and are never corrupted.
        let may_be_too_few = name == "corrupted" && direction.has_reports && too_few;
        if hits > of || (!trials.agree() && !may_be_too_few) || (probability == 0.0 && hits > 0) {
            let expected = probability * of as f64;
            findings.add(Check::Copies, || {
                format!("{hits} of {of} {what}; expected {expected:.1}, a false alarm has a probability below {FALSE_ALARM:e}")
            });
        }
    }
}
