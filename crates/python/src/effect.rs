//! An effect of a link that is written in Python.

use std::time::Duration;

use bentpipe_link::{CustomEffect, PassingPacket};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::outside::Failure;

/// A packet that has left the transmitter. Times are in seconds.
#[pyclass(module = "bentpipe._core")]
pub(crate) struct Packet {
    #[pyo3(get)]
    departure: f64,
    #[pyo3(get)]
    bytes: u64,
    #[pyo3(get, set)]
    delay: f64,
    #[pyo3(get, set)]
    lost: bool,
}

/// The object of a direction.
#[derive(Debug)]
pub(crate) struct PythonEffect {
    pub(crate) object: Py<PyAny>,
    pub(crate) failure: Failure,
}

impl PythonEffect {
    fn call(&self, packet: &mut PassingPacket) -> PyResult<()> {
        Python::attach(|py| {
            let seen = Packet {
                departure: packet.departure.as_secs_f64(),
                bytes: packet.wire_bytes,
                delay: packet.delay.as_secs_f64(),
                lost: packet.is_lost,
            };
            let before = seen.delay;
            let seen = Py::new(py, seen)?;
            self.object.call_method1(py, "apply", (seen.clone_ref(py),))?;
            let seen = seen.borrow(py);
            packet.is_lost = seen.lost;
            // Seconds in floating point are not exact: an untouched delay stays what it is.
            if seen.delay != before {
                packet.delay = Duration::try_from_secs_f64(seen.delay).map_err(|_| {
                    PyValueError::new_err(format!("delay is {}: it must be 0 s or more", seen.delay))
                })?;
            }
            Ok(())
        })
    }
}

impl CustomEffect for PythonEffect {
    fn apply(&mut self, packet: &mut PassingPacket) {
        if self.failure.is_set() {
            return;
        }
        if let Err(error) = self.call(packet) {
            self.failure.note(error);
        }
    }
}
