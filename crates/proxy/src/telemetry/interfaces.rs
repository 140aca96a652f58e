//! Which interfaces of legs exist.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The index of each leg's interface, if there is one of this name; for all threads.
#[derive(Debug, Default)]
pub(crate) struct LegInterfaces(Mutex<BTreeMap<String, Option<u32>>>);

impl LegInterfaces {
    /// These are the interfaces from now on.
    pub(crate) fn set(&self, indices: BTreeMap<String, Option<u32>>) {
        *self.indices() = indices;
    }

    /// What the leg waits for, if its interface does not exist.
    pub(super) fn wait_of(&self, interface: &str) -> Option<String> {
        let is_missing = self.indices().get(interface).is_some_and(Option::is_none);
        is_missing.then(|| format!("waiting for interface {interface}"))
    }

    fn indices(&self) -> MutexGuard<'_, BTreeMap<String, Option<u32>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
