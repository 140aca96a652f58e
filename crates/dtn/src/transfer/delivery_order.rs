//! Of transfers to one place the latest remains, whatever way each of them takes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use crate::{DtnTime, Eid};

/// Places of which it is known what came out last.
const MAX_PLACES: usize = 10_000;

/// When a bundle was made, by its source's clock.
type Age = (DtnTime, u64);

/// What came out last, by source and place: clocks of different sources are not compared. It is forgotten when the node ends.
#[derive(Debug, Default)]
pub(super) struct DeliveryOrder(Mutex<HashMap<(Eid, String), Arc<OrderSlot>>>);

/// A place. Who delivers there holds `newest`.
#[derive(Debug, Default)]
pub(super) struct OrderSlot {
    /// The latest that came out.
    pub(super) newest: tokio::sync::Mutex<Option<Age>>,
    /// Rings when one has.
    pub(super) delivered: Notify,
}

impl DeliveryOrder {
    /// The turn at a place.
    pub(super) fn at(&self, source: &Eid, place: &str) -> Arc<OrderSlot> {
        let mut order = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if order.len() >= MAX_PLACES {
            // Where somebody waits or delivers it is still needed.
            order.retain(|_, slot| Arc::strong_count(slot) > 1);
        }
        order.entry((source.clone(), place.to_owned())).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_forgotten_only_where_nobody_waits() {
        let (order, source) = (DeliveryOrder::default(), "dtn://a/".parse().unwrap());
        let held = order.at(&source, "held");
        for place in 0..2 * MAX_PLACES {
            order.at(&source, &place.to_string());
        }
        assert!(order.0.lock().unwrap().len() <= MAX_PLACES);
        assert!(Arc::ptr_eq(&held, &order.at(&source, "held")));
    }
}
