//! The bundles that have been passed on, so that none goes in a circle. Pure: no clock, no disk.

use std::collections::{HashMap, VecDeque};

use crate::bundle::BundleId;
use crate::store::Record;
use crate::{DtnTime, Eid};

/// The most bundles that are remembered; the oldest are forgotten.
const MAX_BUNDLES: usize = 100_000;

/// Where bundles went that have left.
///
/// A bundle may come again for two reasons. Its previous node has not seen the acknowledgement and repeats it:
/// that is a duplicate, and the previous node is the same. Or the next nodes have sent it back, perhaps in a
/// circle: then somebody has to keep it, and it stays here until there is a way that it has not gone yet.
#[derive(Debug, Default)]
pub(crate) struct PassedOn {
    bundles: HashMap<BundleId, Passed>,
    order: VecDeque<BundleId>,
}

#[derive(Debug)]
struct Passed {
    from: Option<Eid>,
    to: Vec<Eid>,
    expires: DtnTime,
}

impl PassedOn {
    /// `peer` has acknowledged the bundle.
    pub(crate) fn note(&mut self, record: &Record, peer: &Eid) {
        let id = &record.bundle.id;
        if !id.is_unique() {
            return;
        }
        if !self.bundles.contains_key(id) {
            if self.order.len() == MAX_BUNDLES
                && let Some(oldest) = self.order.pop_front()
            {
                self.bundles.remove(&oldest);
            }
            self.order.push_back(id.clone());
            let passed = Passed { from: record.from.clone(), to: Vec::new(), expires: record.expires };
            self.bundles.insert(id.clone(), passed);
        }
        if let Some(passed) = self.bundles.get_mut(id)
            && !passed.to.contains(peer)
        {
            passed.to.push(peer.clone());
        }
    }

    /// Whether `peer` repeats a bundle that it has sent before.
    pub(crate) fn is_repeated_by(&self, id: &BundleId, peer: &Eid) -> bool {
        self.bundles.get(id).is_some_and(|passed| passed.from.as_ref() == Some(peer))
    }

    /// The peers that have had the bundle from here.
    pub(crate) fn went_to(&self, id: &BundleId) -> Vec<Eid> {
        self.bundles.get(id).map(|passed| passed.to.clone()).unwrap_or_default()
    }

    /// Forgets bundles that are of no more use.
    pub(crate) fn forget_expired(&mut self, now: DtnTime) {
        self.bundles.retain(|_, passed| passed.expires > now);
        self.order.retain(|id| self.bundles.contains_key(id));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::bundle::Bundle;
    use crate::store::{Key, Payload, Purpose};

    fn eid(text: &str) -> Eid {
        text.parse().unwrap()
    }

    fn record(source: &str, sequence: u64, from: Option<&str>) -> Record {
        let (created, lifetime) = (DtnTime::from_millis(1), Duration::from_millis(9));
        let bundle = Bundle::new(eid(source), created, sequence, eid("dtn://z/"), lifetime);
        Record {
            key: Key(sequence),
            expires: bundle.expires(created),
            bundle: Arc::new(bundle),
            payload: Payload::default(),
            received: created,
            from: from.map(eid),
            purpose: Purpose::Forward,
        }
    }

    #[test]
    fn a_repeated_bundle_is_told_from_one_that_comes_back() {
        let mut passed_on = PassedOn::default();
        let (a, b, c) = (eid("dtn://a/"), eid("dtn://b/"), eid("dtn://c/"));
        let record = record("dtn://s/x", 1, Some("dtn://a/"));
        let id = &record.bundle.id;
        assert!(!passed_on.is_repeated_by(id, &a) && passed_on.went_to(id).is_empty());
        passed_on.note(&record, &b);
        passed_on.note(&record, &c);
        passed_on.note(&record, &b);
        assert!(passed_on.is_repeated_by(id, &a) && !passed_on.is_repeated_by(id, &b));
        assert_eq!(passed_on.went_to(id), [b, c]);
        passed_on.forget_expired(DtnTime::from_millis(9));
        assert!(passed_on.is_repeated_by(id, &a));
        passed_on.forget_expired(DtnTime::from_millis(10));
        assert!(passed_on.bundles.is_empty() && passed_on.order.is_empty());
    }

    #[test]
    fn memory_is_bounded_and_nobodys_bundles_are_all_new() {
        let mut passed_on = PassedOn::default();
        for sequence in 0..MAX_BUNDLES as u64 + 2 {
            passed_on.note(&record("dtn://s/x", sequence, None), &eid("dtn://b/"));
        }
        assert_eq!((passed_on.bundles.len(), passed_on.order.len()), (MAX_BUNDLES, MAX_BUNDLES));
        assert!(passed_on.went_to(&record("dtn://s/x", 1, None).bundle.id).is_empty());
        let anonymous = record("dtn:none", 1, Some("dtn://a/"));
        passed_on.note(&anonymous, &eid("dtn://b/"));
        assert!(!passed_on.is_repeated_by(&anonymous.bundle.id, &eid("dtn://a/")));
    }
}
