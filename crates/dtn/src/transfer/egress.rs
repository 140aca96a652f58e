//! Bundles become transfers again: tried until the other side has taken them, or their time is over.

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

/// Transfers that one outlet tries at a time.
const MAX_ATTEMPTS: usize = 16;
/// Transfers that one outlet has in hand: those that it tries, and those that wait for another try. More stay in the store.
const MAX_PENDING: usize = 4096;
/// The first wait after a failure; it doubles.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest wait.
const MAX_WAIT: Duration = Duration::from_secs(300);

/// Why a transfer did not come out.
#[derive(Debug)]
pub(super) enum Failure {
    /// It may work later.
    Temporary(String),
    /// It never will.
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

/// What takes transfers.
pub(super) trait Egress: Send + Sync + 'static {
    /// Where a transfer goes, so that of two to the same place the later one remains.
    fn place(&self, envelope: &Envelope) -> Result<String, Failure>;

    /// Delivers a transfer, as a whole or not at all as far as can be seen.
    fn deliver(&self, transfer: Transfer) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// What becomes of a transfer that is over.
enum Outcome {
    Delivered,
    /// A later one to the same place has come out before it.
    Superseded,
}

/// What all deliveries of an outlet share.
struct DeliveryContext<O> {
    node: Node,
    from: EidPattern,
    undelivered: Undelivered,
    attempts: Semaphore,
    order: DeliveryOrder,
    egress: O,
}

/// Delivers what comes for an endpoint, for ever.
pub(super) async fn serve<O: Egress>(
    node: Node,
    endpoint: Eid,
    from: EidPattern,
    undelivered: Undelivered,
    egress: O,
) {
    let (attempts, order) = (Semaphore::new(MAX_ATTEMPTS), DeliveryOrder::default());
    let context =
        Arc::new(DeliveryContext { node: node.clone(), from, undelivered, attempts, order, egress });
    let pending = Arc::new(Semaphore::new(MAX_PENDING));
    let mut deliveries = JoinSet::new();
    loop {
        let Ok(permit) = pending.clone().acquire_owned().await else { return };
        let record = loop {
            let arrival = node.arrival();
            if let Some(record) = node.next_delivery(&endpoint) {
                break record;
            }
            arrival.await;
        };
        while deliveries.try_join_next().is_some() {}
        let context = context.clone();
        deliveries.spawn(async move {
            context.run(&record).await;
            drop(permit);
        });
    }
}

impl<O: Egress> DeliveryContext<O> {
    /// Tries until there is an end to it.
    async fn run(&self, record: &Record) {
        let id = &record.bundle.id;
        if !self.from.matches(&id.source) {
            let why = format!("this outlet takes nothing from {}; its key from says from whom", id.source);
            return self.give_up(record, &why, ReasonCode::NoInformation);
        }
        // Held, the payload can be read even when the bundle's time is over.
        let _held = self.node.store().read(&record.payload);
        let (mut wait, mut slot, mut said) = (FIRST_WAIT, None, String::new());
        loop {
            let error = match self.attempt(record, &mut slot).await {
                Ok(end) => return self.acknowledge(record, &end).await,
                Err(Failure::Permanent(why)) => match self.keep_undelivered(record, &why) {
                    Ok(()) => return self.give_up(record, &why, ReasonCode::DestinationUnavailable),
                    Err(error) => format!("{why}; it stays in the store: {error}"),
                },
                Err(Failure::Temporary(why)) => why,
            };
            let left = record.expires.since(clock());
            if left.is_zero() {
                return self.expire(record, &error);
            }
            // Once is enough: an outage of a server may be long.
            if error != said {
                tracing::warn!("{id} does not come out yet, trying again and again: {error}");
                said = error;
            }
            pause(wait.min(left), slot.as_deref()).await;
            wait = (wait * 2).min(MAX_WAIT);
        }
    }

    /// Writes down that it is over, however long the disk takes: until then it is in the store, and comes out twice if the node ends.
    async fn acknowledge(&self, record: &Record, end: &Outcome) {
        let mut wait = FIRST_WAIT;
        while let Err(error) = block_in_place(|| self.node.acknowledge(record.key)) {
            let id = &record.bundle.id;
            tracing::error!("{id} has come out, but the store cannot write that down, trying again: {error}");
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(MAX_WAIT);
        }
        log_outcome(record, end);
    }

    async fn attempt(&self, record: &Record, slot: &mut Option<Arc<OrderSlot>>) -> Result<Outcome, Failure> {
        let Ok(_attempt) = self.attempts.acquire().await else {
            return Err(Failure::Temporary("the node ends".into()));
        };
        let mut body = self.node.store().read(&record.payload);
        let (envelope, head) = block_in_place(|| Envelope::read(&mut body)).map_err(|error| match error {
            EnvelopeError::Read(_) => Failure::Temporary(error.to_string()),
            EnvelopeError::NotAPut(_) => Failure::Permanent(error.to_string()),
        })?;
        let id = &record.bundle.id;
        let slot = slot.insert(self.order.at(&id.source, &self.egress.place(&envelope)?));
        let mut newest = slot.newest.lock().await;
        let age = (id.created, id.sequence);
        if newest.is_some_and(|newest| newest > age) {
            return Ok(Outcome::Superseded);
        }
        let len = record.bundle.payload_len.saturating_sub(head as u64);
        self.egress.deliver(Transfer { key: record.key.0, envelope, body, len }).await?;
        *newest = Some(age);
        slot.delivered.notify_waiters();
        Ok(Outcome::Delivered)
    }

    fn keep_undelivered(&self, record: &Record, why: &str) -> Result<(), String> {
        let mut payload = self.node.store().read(&record.payload);
        let path = block_in_place(|| self.undelivered.keep(record, &mut payload))?;
        tracing::error!("{} cannot come out: {why}; it is kept as {}", record.bundle.id, path.display());
        Ok(())
    }

    fn expire(&self, record: &Record, error: &str) {
        let why = format!("its time is over, and {error}");
        if let Err(error) = self.keep_undelivered(record, &why) {
            tracing::error!("{} is lost: {why}; {error}", record.bundle.id);
        }
        self.give_up(record, &why, ReasonCode::LifetimeExpired);
    }

    fn give_up(&self, record: &Record, why: &str, reason: ReasonCode) {
        tracing::warn!("{} is given up: {why}", record.bundle.id);
        if let Err(error) = block_in_place(|| self.node.give_up(&[record.key], reason)) {
            tracing::error!("and the store cannot write that down: {error}");
        }
    }
}

/// Waits, but no longer than until another transfer has come out at the same place.
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
        Outcome::Delivered => tracing::info!("{id} has come out"),
        Outcome::Superseded => tracing::info!("{id} is not needed any more: a later one has come out there"),
    }
}
