//! The task that deletes expired bundles, routes waiting ones again, and cleans the index.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::bundle::report::ReasonCode;
use crate::store::{Change, Key};

use super::{Node, clock};
use crate::DtnTime;

/// The longest sleep.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long work is batched: one transaction that removes several bundles costs one flush of the disk.
const BATCH_TIME: Duration = Duration::from_millis(20);
/// Bundles that are routed per lock of the queue.
const BATCH: usize = 256;
/// How often the IDs of expired bundles are forgotten.
const FORGET_INTERVAL: Duration = Duration::from_secs(600);

impl Node {
    /// Runs until it is cancelled.
    pub(crate) async fn run_janitor(self) {
        let mut looked = clock();
        let mut forgot = clock();
        loop {
            let change = self.queue().next_change(looked);
            // A contact may be shorter than the interval.
            let round = change.map_or(INTERVAL, |change| change.since(clock()).min(INTERVAL));
            let _ = tokio::time::timeout(round, self.0.janitor.notified()).await;
            let now = clock();
            let changed = change.is_some_and(|change| change <= now);
            if !changed {
                tokio::time::sleep(BATCH_TIME).await;
            }
            looked = now;
            if changed {
                self.0.peers.values().for_each(|peer| peer.dial.notify_one());
            }
            let node = self.clone();
            let _ = tokio::task::spawn_blocking(move || node.reroute_waiting(now, changed)).await;
            let forget = now.since(forgot) >= FORGET_INTERVAL;
            if forget {
                forgot = now;
            }
            let node = self.clone();
            // A panic there is logged, and the next round tries again.
            let _ = tokio::task::spawn_blocking(move || node.tidy(forget)).await;
        }
    }

    /// Routes bundles that are due; all waiting ones if contacts have changed.
    fn reroute_waiting(&self, now: DtnTime, changed: bool) {
        let due = self.queue().due(now, changed);
        self.reroute(&due, now);
    }

    /// Routes waiting bundles, and wakes the sessions that can send them.
    pub(super) fn reroute(&self, due: &[Key], now: DtnTime) {
        for keys in due.chunks(BATCH) {
            let peers = self.queue().reroute(keys, now);
            self.wake(&peers);
        }
    }

    /// Removes acknowledged and expired bundles. Blocks on the disk.
    pub(crate) fn tidy(&self, forget: bool) {
        let now = clock();
        if forget {
            self.passed_on().forget_expired(now);
            self.queue().forget_contacts(now);
            self.transfers().forget(now);
        }
        self.remove_acknowledged(forget.then_some(Change::Forget(now)));
        self.end_leases(now);
        if self.0.reassembly_pending.swap(false, Ordering::Relaxed) {
            self.finish_reassembly();
        }
        let expired = self.queue().expired(now);
        if !expired.is_empty()
            && let Err(error) = self.discard(&expired, ReasonCode::LIFETIME_EXPIRED)
        {
            tracing::error!("cannot delete {} expired bundles: {error}", expired.len());
        }
    }

    /// Removes acknowledged bundles from the index, and makes this change. Blocks on the disk.
    pub(super) fn remove_acknowledged(&self, more: Option<Change>) {
        let acknowledged =
            std::mem::take(&mut *self.0.pending_removals.lock().unwrap_or_else(PoisonError::into_inner));
        let removals = acknowledged.iter().map(|key| Change::Remove(*key));
        let changes: Vec<Change> = removals.chain(more).collect();
        if !changes.is_empty()
            && let Err(error) = self.store().commit(changes)
        {
            tracing::error!("cannot remove {} bundles from the index, retrying: {error}", acknowledged.len());
            self.0.pending_removals.lock().unwrap_or_else(PoisonError::into_inner).extend(acknowledged);
        }
    }
}
