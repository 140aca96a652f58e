//! Draining: new connections pass unsplit, and the daemon ends with the last one that is split.

use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use super::Daemon;
use crate::types::Draining;

impl Daemon {
    /// Lets new connections pass unsplit. Those that are split go on; `time` is how long, if they are to be
    /// reset then, which the caller does by ending the daemon.
    pub fn drain(&self, time: Option<Duration>) {
        let until = time.and_then(|time| Instant::now().checked_add(time));
        *self.draining() = Some(Draining { until });
        self.context.shared.admission.wake();
        tracing::info!(?time, "draining: new connections pass unsplit");
    }

    /// Splits new connections again.
    pub fn stop_draining(&self) {
        if self.draining().take().is_some() {
            tracing::info!("draining has been cancelled: new connections are split");
        }
    }

    /// Whether draining has come to its end: no flow is left, or the time is up.
    pub fn has_drained(&self) -> bool {
        let Some(Draining { until }) = *self.draining() else { return false };
        // Admission counts flows of another process as soon as this one has taken them over.
        until.is_some_and(|until| until <= Instant::now()) || self.context.shared.admission.open() == 0
    }

    pub(super) fn draining(&self) -> MutexGuard<'_, Option<Draining>> {
        self.context.shared.draining()
    }
}
