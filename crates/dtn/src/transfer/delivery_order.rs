//! The order of deliveries: of several transfers to one target the latest prevails, whatever route each
//! takes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use crate::{DtnTime, Eid};

/// The most targets whose latest transfer is remembered.
const MAX_TARGETS: usize = 10_000;

/// The creation timestamp of a bundle, by its source's clock.
type Age = (DtnTime, u64);

/// The latest delivered transfer by source and target. Clocks of different sources are not compared. A
/// restart forgets it.
#[derive(Debug, Default)]
pub(super) struct DeliveryOrder(Mutex<HashMap<(Eid, String), Arc<OrderSlot>>>);

/// A target. A delivery to it holds `newest`.
#[derive(Debug, Default)]
pub(super) struct OrderSlot {
    /// The latest delivered transfer.
    pub(super) newest: tokio::sync::Mutex<Option<Age>>,
    /// Notified after each delivery.
    pub(super) delivered: Notify,
}

impl DeliveryOrder {
    pub(super) fn slot(&self, source: &Eid, target: &str) -> Arc<OrderSlot> {
        let mut order = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if order.len() >= MAX_TARGETS {
            // Slots in use are still needed.
            order.retain(|_, slot| Arc::strong_count(slot) > 1);
        }
        order.entry((source.clone(), target.to_owned())).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_in_use_are_not_forgotten() {
        let (order, source) = (DeliveryOrder::default(), "dtn://a/".parse().unwrap());
        let held = order.slot(&source, "held");
        for target in 0..2 * MAX_TARGETS {
            order.slot(&source, &target.to_string());
        }
        assert!(order.0.lock().unwrap().len() <= MAX_TARGETS);
        assert!(Arc::ptr_eq(&held, &order.slot(&source, "held")));
    }
}
