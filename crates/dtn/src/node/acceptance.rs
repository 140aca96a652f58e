//! How a node takes responsibility for bundles, many at a time.
//!
//! Nobody waits for the disk. Whoever has received a bundle hands it over and goes on; the store collects what
//! comes while it writes, and commits it at once. What follows a commit (routing, reassembly, reports) may wait
//! for the store itself, so that a thread of its own does it, in the order of the commits.
//!
//! ```text
//! session ── accept ──► claim ──► store: one transaction for all ──► this thread: queue, then the answer
//! ```

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use crate::Eid;
use crate::bundle::report::{ReasonCode, Status};
use crate::bundle::{Bundle, BundleId};
use crate::store::{Change, Payload, Purpose, Record, StoreError};

use super::security::Secured;
use super::{Node, NodeError, Refused, clock, seen};

/// The part of a node that accepts bundles.
#[derive(Debug)]
pub(super) struct Acceptance {
    committed: Sender<Committed>,
    claims: Arc<Claims>,
}

/// The bundles that are being committed, each with those who have brought it again meanwhile: it is not theirs
/// to forget before the commit has succeeded.
#[derive(Default)]
struct Claims(Mutex<HashMap<BundleId, Vec<Done>>>);

/// Learns the outcome.
type Done = Box<dyn FnOnce(Result<(), Refused>) + Send>;

/// The right to commit a bundle. While it exists nobody else commits the same one.
struct Claim {
    /// `None`: the bundle has no identity.
    id: Option<BundleId>,
    claims: Arc<Claims>,
    is_kept: bool,
}

/// A commit that has ended.
struct Committed {
    node: Node,
    outcome: Result<(), StoreError>,
    work: Work,
    claim: Claim,
    done: Done,
}

/// What was committed.
enum Work {
    /// A bundle in the store.
    Kept(Record),
    /// A bundle that has been deleted on its arrival.
    Deleted(Box<Bundle>, ReasonCode),
}

impl Acceptance {
    pub(super) fn start() -> Result<Self, NodeError> {
        let (committed, jobs) = channel();
        std::thread::Builder::new()
            .name("accept".into())
            .spawn(move || run(&jobs))
            .map_err(NodeError::system("start the thread that accepts bundles".into()))?;
        Ok(Self { committed, claims: Arc::default() })
    }
}

fn run(jobs: &Receiver<Committed>) {
    for committed in jobs {
        // A fault with one bundle must not end the thread: nothing would be accepted any more. The session that
        // has brought it asks for it again when `done` is dropped uncalled.
        let ended = catch_unwind(AssertUnwindSafe(|| committed.settle()));
        if ended.is_err() {
            tracing::error!(
                "this node has failed after it had stored a bundle, and goes on; the panic above says where"
            );
        }
    }
}

impl Committed {
    fn settle(self) {
        let Self { node, outcome, work, mut claim, done } = self;
        claim.is_kept = outcome.is_ok();
        if let Err(error) = outcome {
            drop(claim);
            return done(Err(error.into()));
        }
        match work {
            Work::Kept(record) => node.kept(record, claim, done),
            Work::Deleted(bundle, why) => {
                drop(claim);
                done(Ok(()));
                node.deleted(&bundle, why);
            }
        }
    }
}

impl Node {
    /// Takes responsibility for a bundle: when `done` says so, it is on the disk. `done` is called by another
    /// thread, or at once if the bundle is refused, or deleted because its security operations fail.
    pub(super) fn accept(
        &self,
        bundle: Bundle,
        payload: Payload,
        from: Option<Eid>,
        done: impl FnOnce(Result<(), Refused>) + Send + 'static,
    ) {
        let (bundle, payload) = match self.secure(bundle, payload, from.as_ref()) {
            Ok(Secured::Kept(bundle, payload)) => (bundle, payload),
            Ok(Secured::Deleted(bundle, why)) => {
                done(Ok(()));
                return self.delete_insecure(&bundle, why);
            }
            Err(refused) => return done(Err(refused)),
        };
        let Some((claim, done)) = self.claim(&bundle.id, Box::new(done)) else {
            return self.0.store.discard(payload);
        };
        let now = clock();
        let is_mine = self.is_mine(&bundle.destination);
        let purpose = match (is_mine, bundle.id.fragment) {
            (false, _) => Purpose::Forward,
            (true, None) => Purpose::Deliver,
            (true, Some(_)) => Purpose::Reassemble,
        };
        let expires = bundle.expires(now);
        let key = self.0.store.next_key();
        let bundle = Arc::new(bundle);
        let record = Record { key, bundle, payload, received: now, expires, from, purpose };
        let mut changes = vec![Change::Put(record.clone())];
        if is_mine {
            changes.extend(seen(&record.bundle.id, expires));
        }
        self.commit_then(changes, Work::Kept(record), claim, done);
    }

    /// Deletes a bundle that has just been received, and reports that: it is acknowledged, so that its sender
    /// does not offer it again.
    pub(super) fn delete_received(
        &self,
        bundle: Bundle,
        why: ReasonCode,
        done: impl FnOnce(Result<(), Refused>) + Send + 'static,
    ) {
        let Some((claim, done)) = self.claim(&bundle.id, Box::new(done)) else { return };
        let now = clock();
        let expires = bundle.expires(now);
        let changes = seen(&bundle.id, expires).filter(|_| expires > now).into_iter().collect();
        self.commit_then(changes, Work::Deleted(Box::new(bundle), why), claim, done);
    }

    fn commit_then(&self, changes: Vec<Change>, work: Work, claim: Claim, done: Done) {
        let node = self.clone();
        self.0.store.submit(changes, move |outcome| {
            let committed = node.0.acceptance.committed.clone();
            // The thread lives as long as a node does, and the job has one.
            let _ = committed.send(Committed { node, outcome, work, claim, done });
        });
    }

    /// The right to commit this bundle. If there is none, `done` learns why: the bundle is known, now or as
    /// soon as another has committed it.
    fn claim(&self, id: &BundleId, done: Done) -> Option<(Claim, Done)> {
        let claims = Arc::clone(&self.0.acceptance.claims);
        if !id.is_unique() {
            return Some((Claim { id: None, claims, is_kept: false }, done));
        }
        {
            let mut held = claims.0.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(others) = held.get_mut(id) {
                others.push(done);
                return None;
            }
            if !self.knows(id) {
                held.insert(id.clone(), Vec::new());
                drop(held);
                return Some((Claim { id: Some(id.clone()), claims, is_kept: false }, done));
            }
        }
        done(Err(Refused::Known));
        None
    }

    /// A bundle is on the disk.
    fn kept(&self, record: Record, claim: Claim, done: Done) {
        let (bundle, purpose) = (Arc::clone(&record.bundle), record.purpose);
        if purpose == Purpose::Deliver && bundle.is_admin {
            drop(claim);
            self.receive_report(&bundle, &record.payload);
            self.remove_later(record.key);
            return done(Ok(()));
        }
        self.insert(record, clock());
        drop(claim);
        done(Ok(()));
        let outcome = match purpose {
            Purpose::Reassemble => self.reassemble(&bundle.id),
            Purpose::Deliver => self.drop_parts(&bundle.id),
            Purpose::Forward => Ok(()),
        };
        // The bundle has been accepted all the same, so its sender gets no error.
        self.retry_reassembly(&bundle.id, outcome);
        self.report(&bundle, Status::Received, ReasonCode::NO_INFORMATION);
    }

    fn deleted(&self, bundle: &Bundle, why: ReasonCode) {
        tracing::info!("deleted {} to {} on its arrival: {why}", bundle.id, bundle.destination);
        self.0.counters.given_up.add(1);
        self.report(bundle, Status::Received, ReasonCode::NO_INFORMATION);
        self.report(bundle, Status::Deleted, why);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Some(id) = &self.id else { return };
        let others = self.claims.0.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
        for done in others.into_iter().flatten() {
            // Who brings it again may have it accepted then.
            done(Err(if self.is_kept { Refused::Known } else { Refused::Again }));
        }
    }
}

impl std::fmt::Debug for Claims {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Claims").finish_non_exhaustive()
    }
}
