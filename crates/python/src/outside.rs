//! What a run has to do with Python: the first exception of its parts from outside, and signals.

use std::sync::{Arc, Mutex, PoisonError};

use bentpipe_sim::Observer;
use bentpipe_units::Time;
use pyo3::prelude::*;

/// The first exception of a run. It ends the run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Failure(Arc<Mutex<Option<PyErr>>>);

impl Failure {
    pub(crate) fn note(&self, error: PyErr) {
        self.slot().get_or_insert(error);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.slot().is_some()
    }

    pub(crate) fn take(&self) -> Option<PyErr> {
        self.slot().take()
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<PyErr>> {
        // The slot is whole, whatever happened to the thread that held it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a run when a part of it has failed, or when Python has a signal to handle, as that of Ctrl-C.
pub(crate) struct Watch(pub(crate) Failure);

impl Observer for Watch {
    fn progress(&mut self, _: Time) -> bool {
        if let Err(error) = Python::attach(|py| py.check_signals()) {
            self.0.note(error);
        }
        !self.0.is_set()
    }
}
