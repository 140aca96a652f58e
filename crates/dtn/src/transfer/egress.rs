//! Bundles become transfers again. Each is tried until the receiver accepts it or the bundle expires.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::{JoinSet, block_in_place};

use crate::bundle::report::ReasonCode;
use crate::node::{Node, clock};
use crate::store::{PayloadReader, Record};
use crate::{Eid, EidPattern};

use super::delivery_order::{DeliveryOrder, OrderSlot};
use super::envelope::{Envelope, EnvelopeError};
use super::undelivered::Undelivered;

/// The most concurrent attempts of one outlet.
const MAX_ATTEMPTS: usize = 16;
/// The most transfers that one outlet tries or will retry. More wait in the store.
const MAX_PENDING: usize = 4096;
/// The first wait after a failure; it doubles.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest wait.
const MAX_WAIT: Duration = Duration::from_secs(300);

/// Why a delivery failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// A retry may succeed.
    Temporary(String),
    /// A retry cannot succeed.
    Permanent(String),
}

/// A transfer whose head has been read.
#[derive(Debug)]
pub(super) struct Transfer {
    /// The bundle's number in the store.
    pub(super) key: u64,
    pub(super) envelope: Envelope,
    /// At the first byte of the body.
    pub(super) body: PayloadReader,
    /// Bytes of body.
    pub(super) len: u64,
}

/// A receiver of transfers.
pub(super) trait Egress: Send + Sync + 'static {
    /// The target of a transfer: of two transfers to one target, the later one must prevail.
    fn target(&self, envelope: &Envelope) -> Result<String, Failure>;

    /// Delivers a transfer completely, or fails.
    fn deliver(&self, transfer: Transfer) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// How a transfer ended.
enum Outcome {
    Delivered,
    /// A later transfer to the same target was delivered first.
    Superseded,
}

/// Where bundles leave the network.
pub(super) struct Outlet {
    pub(super) node: Node,
    /// Whose bundles it delivers.
    pub(super) endpoint: Eid,
    /// The sources that it accepts.
    pub(super) from: EidPattern,
    pub(super) undelivered: Undelivered,
}

/// What all deliveries of an outlet share.
struct DeliveryContext<O> {
    outlet: Outlet,
    attempts: Semaphore,
    order: DeliveryOrder,
    egress: O,
}

impl Outlet {
    /// Delivers all bundles for the endpoint until it is cancelled.
    pub(super) async fn serve<O: Egress>(self, egress: O) {
        let (attempts, order) = (Semaphore::new(MAX_ATTEMPTS), DeliveryOrder::default());
        let context = Arc::new(DeliveryContext { outlet: self, attempts, order, egress });
        let pending = Arc::new(Semaphore::new(MAX_PENDING));
        let mut deliveries = JoinSet::new();
        loop {
            let Ok(permit) = pending.clone().acquire_owned().await else { return };
            let record = context.outlet.next().await;
            while deliveries.try_join_next().is_some() {}
            let context = context.clone();
            deliveries.spawn(async move {
                context.run(&record).await;
                drop(permit);
            });
        }
    }

    async fn next(&self) -> Record {
        loop {
            let arrival = self.node.arrival();
            if let Some(record) = self.node.next_delivery(&self.endpoint) {
                return record;
            }
            arrival.await;
        }
    }
}

impl<O: Egress> DeliveryContext<O> {
    /// Tries until the transfer is delivered, superseded, expired or impossible.
    async fn run(&self, record: &Record) {
        let id = &record.bundle.id;
        if !self.outlet.from.matches(&id.source) {
            let why = format!(
                "this outlet accepts nothing from {}; its key from says from whom it does",
                id.source
            );
            return self.discard(record, &why, ReasonCode::NO_INFORMATION);
        }
        // While it is held, the payload stays readable after the bundle has expired.
        let _held = self.outlet.node.store().read(&record.payload);
        let (mut wait, mut slot, mut said) = (FIRST_WAIT, None, String::new());
        loop {
            let error = match self.attempt(record, &mut slot).await {
                Ok(end) => return self.acknowledge(record, &end).await,
                Err(Failure::Permanent(why)) => match self.keep_undelivered(record, &why) {
                    Ok(()) => return self.discard(record, &why, ReasonCode::DESTINATION_UNAVAILABLE),
                    Err(error) => format!("{why}; it stays in the store: {error}"),
                },
                Err(Failure::Temporary(why)) => why,
            };
            let left = record.expires.since(clock());
            if left.is_zero() {
                return self.expire(record, &error);
            }
            // Once per error: a server may be down for long.
            if error != said {
                tracing::warn!("cannot deliver {id}, retrying until it expires: {error}");
                said = error;
            }
            pause(wait.min(left), slot.as_deref()).await;
            wait = (wait * 2).min(MAX_WAIT);
        }
    }

    /// Acknowledges the bundle, with retries: a bundle that stays in the store is delivered again after a
    /// restart.
    async fn acknowledge(&self, record: &Record, end: &Outcome) {
        let mut wait = FIRST_WAIT;
        while let Err(error) = block_in_place(|| self.outlet.node.acknowledge(record.key)) {
            let id = &record.bundle.id;
            tracing::error!("delivered {id}, but the store cannot record it, retrying: {error}");
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(MAX_WAIT);
        }
        log_outcome(record, end);
    }

    async fn attempt(&self, record: &Record, slot: &mut Option<Arc<OrderSlot>>) -> Result<Outcome, Failure> {
        let Ok(_attempt) = self.attempts.acquire().await else {
            return Err(Failure::Temporary("the node is stopping".into()));
        };
        let mut body = self.outlet.node.store().read(&record.payload);
        let (envelope, head) = block_in_place(|| Envelope::read(&mut body)).map_err(|error| match error {
            EnvelopeError::Read(_) => Failure::Temporary(error.to_string()),
            EnvelopeError::NotAPut(_) => Failure::Permanent(error.to_string()),
        })?;
        let id = &record.bundle.id;
        let slot = slot.insert(self.order.slot(&id.source, &self.egress.target(&envelope)?));
        let mut newest = slot.newest.lock().await;
        let age = (id.created, id.sequence);
        // Sources that do not say who they are have no common clock.
        if id.is_unique() && newest.is_some_and(|newest| newest > age) {
            return Ok(Outcome::Superseded);
        }
        let len = record.bundle.payload_len.saturating_sub(head as u64);
        self.egress.deliver(Transfer { key: record.key.0, envelope, body, len }).await?;
        *newest = Some(age);
        slot.delivered.notify_waiters();
        Ok(Outcome::Delivered)
    }

    fn keep_undelivered(&self, record: &Record, why: &str) -> Result<(), String> {
        let mut payload = self.outlet.node.store().read(&record.payload);
        let path = block_in_place(|| self.outlet.undelivered.keep(record, &mut payload))?;
        tracing::error!("cannot deliver {}: {why}; kept it as {}", record.bundle.id, path.display());
        Ok(())
    }

    fn expire(&self, record: &Record, error: &str) {
        let why = format!("it has expired, and {error}");
        if let Err(error) = self.keep_undelivered(record, &why) {
            tracing::error!("{} is lost: {why}; {error}", record.bundle.id);
        }
        self.discard(record, &why, ReasonCode::LIFETIME_EXPIRED);
    }

    fn discard(&self, record: &Record, why: &str, reason: ReasonCode) {
        tracing::warn!("deleting {}: {why}", record.bundle.id);
        if let Err(error) = block_in_place(|| self.outlet.node.discard(&[record.key], reason)) {
            tracing::error!("the store cannot record the deletion: {error}");
        }
    }
}

/// Waits until the time is over, or until another transfer to the same target is delivered.
async fn pause(wait: Duration, slot: Option<&OrderSlot>) {
    let other = async {
        match slot {
            Some(slot) => slot.delivered.notified().await,
            None => std::future::pending().await,
        }
    };
    let _ = tokio::time::timeout(wait, other).await;
}

fn log_outcome(record: &Record, end: &Outcome) {
    let id = &record.bundle.id;
    match end {
        Outcome::Delivered => tracing::info!("delivered {id}"),
        Outcome::Superseded => {
            tracing::info!("dropped {id}: a later transfer to the same target has been delivered")
        }
    }
}
