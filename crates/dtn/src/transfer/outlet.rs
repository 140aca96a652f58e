//! Bundles become transfers again: tried until the other side has taken them, or their time is over.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::{JoinSet, block_in_place};

use crate::bundle::report::ReasonCode;
use crate::node::{Node, clock};
use crate::store::Record;
use crate::{Eid, EidPattern};

/// Transfers that one outlet tries at a time.
const AT_A_TIME: usize = 16;
/// The first wait after a failure; it doubles.
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// The longest wait.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// Why a transfer did not come out.
#[derive(Debug)]
pub(super) enum Failure {
    /// It may work later.
    ForNow(String),
    /// It never will.
    ForGood(String),
}

/// What takes transfers.
pub(super) trait Outlet: Send + Sync + 'static {
    /// Delivers a bundle's transfer, as a whole or not at all as far as can be seen.
    fn deliver(&self, node: &Node, record: &Record) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// Delivers what comes for an endpoint, for ever.
pub(super) async fn serve<O: Outlet>(node: Node, endpoint: Eid, from: EidPattern, outlet: O) {
    let outlet = Arc::new(outlet);
    let places = Arc::new(Semaphore::new(AT_A_TIME));
    let mut deliveries = JoinSet::new();
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let record = loop {
            let arrival = node.arrival();
            if let Some(record) = node.next_delivery(&endpoint) {
                break record;
            }
            arrival.await;
        };
        while deliveries.try_join_next().is_some() {}
        let (node, from, outlet) = (node.clone(), from.clone(), outlet.clone());
        deliveries.spawn(async move {
            deliver(&node, &record, &from, &*outlet).await;
            drop(place);
        });
    }
}

/// Tries until there is an end to it.
async fn deliver<O: Outlet>(node: &Node, record: &Record, from: &EidPattern, outlet: &O) {
    let id = &record.bundle.id;
    if !from.matches(&id.source) {
        return give_up(
            node,
            record,
            &format!("this outlet takes nothing from {}", id.source),
            ReasonCode::NoInformation,
        );
    }
    let mut wait = FIRST_WAIT;
    loop {
        match outlet.deliver(node, record).await {
            Ok(()) => match block_in_place(|| node.acknowledge(record.key)) {
                Ok(_) => return tracing::info!("{id} has come out"),
                // It will come out twice, which does no harm.
                Err(error) => {
                    tracing::error!("{id} has come out, but the store cannot write that down: {error}")
                }
            },
            Err(Failure::ForGood(why)) => {
                return give_up(node, record, &why, ReasonCode::DestinationUnavailable);
            }
            Err(Failure::ForNow(why)) => {
                tracing::warn!("{id} does not come out yet, trying again in {wait:?}: {why}")
            }
        }
        if record.expires <= clock().after(wait) {
            return give_up(node, record, "its time is over", ReasonCode::LifetimeExpired);
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

fn give_up(node: &Node, record: &Record, why: &str, reason: ReasonCode) {
    tracing::error!("{} never comes out: {why}", record.bundle.id);
    if let Err(error) = block_in_place(|| node.give_up(&[record.key], reason)) {
        tracing::error!("and the store cannot write that down: {error}");
    }
}
