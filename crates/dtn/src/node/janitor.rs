//! The task that gives up what is too old, looks for new ways, and tidies the index.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::bundle::report::ReasonCode;
use crate::store::Change;

use super::{Node, clock};
use crate::DtnTime;

/// The longest time that it sleeps.
const ROUND: Duration = Duration::from_secs(1);
/// How long it lets work gather: bundles that leave the index in one transaction cost one flush of the disk.
const GATHER: Duration = Duration::from_millis(20);
/// Bundles whose ways are looked at while others wait for the agenda.
const AT_ONCE: usize = 256;
/// How often names of bundles that are over are forgotten.
const FORGET_EVERY: Duration = Duration::from_secs(600);

impl Node {
    /// Keeps house until it is cancelled.
    pub(crate) async fn run_janitor(self) {
        let mut looked = clock();
        let mut forgot = clock();
        loop {
            let change = self.queue().next_change(looked);
            // A contact may be shorter than a round.
            let round = change.map_or(ROUND, |change| change.since(clock()).min(ROUND));
            let _ = tokio::time::timeout(round, self.0.janitor.notified()).await;
            let now = clock();
            let changed = change.is_some_and(|change| change <= now);
            if !changed {
                tokio::time::sleep(GATHER).await;
            }
            looked = now;
            if changed {
                self.0.peers.values().for_each(|peer| peer.dial.notify_one());
            }
            let node = self.clone();
            let _ = tokio::task::spawn_blocking(move || node.look_for_ways(now, changed)).await;
            let forget = now.since(forgot) >= FORGET_EVERY;
            if forget {
                forgot = now;
            }
            let node = self.clone();
            // A panic there is a fault of this program that the next round meets again; the log has it.
            let _ = tokio::task::spawn_blocking(move || node.tidy(forget)).await;
        }
    }

    /// Looks for ways for what waits for one; for all that waits if contacts have changed.
    fn look_for_ways(&self, now: DtnTime, changed: bool) {
        let due = self.queue().due(now, changed);
        for keys in due.chunks(AT_ONCE) {
            let peers = self.queue().reroute(keys, now);
            self.wake(&peers);
        }
    }

    /// Writes down what has gone and what is over. Blocks on the disk.
    pub(crate) fn tidy(&self, forget: bool) {
        let now = clock();
        let done =
            std::mem::take(&mut *self.0.pending_removals.lock().unwrap_or_else(PoisonError::into_inner));
        let mut changes: Vec<Change> = done.iter().map(|key| Change::Remove(*key)).collect();
        if forget {
            changes.push(Change::Forget(now));
        }
        if !changes.is_empty()
            && let Err(error) = self.store().commit(changes)
        {
            tracing::error!("cannot take {} bundles out of the index, trying again: {error}", done.len());
            self.0.pending_removals.lock().unwrap_or_else(PoisonError::into_inner).extend(done);
        }
        if self.0.reassembly_pending.swap(false, Ordering::Relaxed) {
            self.finish_reassembly();
        }
        let expired = self.queue().expired(now);
        if !expired.is_empty()
            && let Err(error) = self.give_up(&expired, ReasonCode::LifetimeExpired)
        {
            tracing::error!("cannot give up {} bundles whose time is over: {error}", expired.len());
        }
    }
}
