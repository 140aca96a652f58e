//! A congestion control that is written in Python.

use std::time::Duration;

use bentpipe_tcp::congestion::{Acked, CongestionControl, NO_SSTHRESH, Parameters};
use bentpipe_units::{Rate, Time};
use pyo3::IntoPyObjectExt;
use pyo3::call::PyCallArgs;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::outside::Failure;

/// An acknowledgement of new data. Times are in seconds.
#[pyclass(frozen, get_all, module = "bentpipe._core")]
pub(crate) struct Ack {
    now: f64,
    bytes: u64,
    rtt: Option<f64>,
    srtt: f64,
    min_rtt: f64,
    in_flight: u64,
    cwnd_limited: bool,
    in_recovery: bool,
}

impl From<&Acked> for Ack {
    fn from(ack: &Acked) -> Self {
        Self {
            now: ack.now.as_secs_f64(),
            bytes: ack.bytes,
            rtt: ack.rtt.map(|rtt| rtt.as_secs_f64()),
            srtt: ack.srtt.as_secs_f64(),
            min_rtt: ack.min_rtt.as_secs_f64(),
            in_flight: ack.in_flight,
            cwnd_limited: ack.cwnd_limited,
            in_recovery: ack.in_recovery,
        }
    }
}

/// The object of a connection, with what it said last: the sender asks for its window far more often than
/// anything happens to it.
#[derive(Debug)]
pub(crate) struct PythonControl {
    /// `None` where it could not be made.
    object: Option<Py<PyAny>>,
    failure: Failure,
    mss: u64,
    cwnd: u64,
    ssthresh: u64,
    pacing: Option<Rate>,
}

impl PythonControl {
    /// Calls `class` for a new connection. If that fails, the run ends.
    pub(crate) fn new(class: &Py<PyAny>, parameters: Parameters, failure: Failure) -> Self {
        let Parameters { mss, initial_window, .. } = parameters;
        let (cwnd, ssthresh) = (initial_window, NO_SSTHRESH);
        let mut control = Self { object: None, failure, mss, cwnd, ssthresh, pacing: None };
        let made = Python::attach(|py| {
            control.object = Some(class.call1(py, (mss, initial_window))?);
            control.read(py)
        });
        control.note(made);
        control
    }

    fn note(&self, outcome: PyResult<()>) {
        if let Err(error) = outcome {
            self.failure.note(error);
        }
    }

    /// Tells it something, and reads what it makes of that.
    fn tell(&mut self, method: &str, arguments: impl for<'py> PyCallArgs<'py>) {
        if self.failure.is_set() {
            return;
        }
        let outcome = Python::attach(|py| {
            let Some(object) = &self.object else { return Ok(()) };
            object.call_method1(py, method, arguments)?;
            self.read(py)
        });
        self.note(outcome);
    }

    fn read(&mut self, py: Python<'_>) -> PyResult<()> {
        let Some(object) = &self.object else { return Ok(()) };
        let number = |name: &str| -> PyResult<Option<f64>> {
            let value: Option<f64> = object.getattr(py, name)?.extract(py)?;
            match value {
                Some(value) if value.is_nan() || value < 0.0 => {
                    Err(PyValueError::new_err(format!("{name} is {value}: it must be zero or more")))
                }
                value => Ok(value),
            }
        };
        let cwnd = number("cwnd")?;
        let cwnd = cwnd.ok_or_else(|| PyValueError::new_err("cwnd is None: it must be a number of bytes"))?;
        // Less than a segment would never be sent. A conversion of a float saturates.
        self.cwnd = (cwnd as u64).max(self.mss);
        self.ssthresh = number("ssthresh")?.map_or(NO_SSTHRESH, |bytes| bytes as u64);
        self.pacing = number("pacing_rate_bps")?.and_then(|rate| Rate::from_bps(rate as u64));
        Ok(())
    }
}

fn seconds(time: Option<Duration>) -> Option<f64> {
    time.map(|time| time.as_secs_f64())
}

impl CongestionControl for PythonControl {
    fn cwnd(&self) -> u64 {
        self.cwnd
    }

    fn ssthresh(&self) -> u64 {
        self.ssthresh
    }

    fn pacing_rate(&self, _srtt: Duration) -> Option<Rate> {
        self.pacing
    }

    fn on_established(&mut self, now: Time, rtt: Option<Duration>) {
        self.tell("on_established", (now.as_secs_f64(), seconds(rtt)));
    }

    fn on_ack(&mut self, ack: &Acked) {
        self.tell("on_ack", (Ack::from(ack),));
    }

    fn on_loss(&mut self, now: Time, in_flight: u64) {
        self.tell("on_loss", (now.as_secs_f64(), in_flight));
    }

    fn on_recovery_end(&mut self, now: Time) {
        self.tell("on_recovery_end", (now.as_secs_f64(),));
    }

    fn on_timeout(&mut self, now: Time, in_flight: u64, first: bool) {
        self.tell("on_timeout", (now.as_secs_f64(), in_flight, first));
    }

    fn on_idle(&mut self, now: Time) {
        self.tell("on_idle", (now.as_secs_f64(),));
    }

    fn set_window(&mut self, cwnd: u64, ssthresh: u64) {
        let ssthresh = (ssthresh != NO_SSTHRESH).then_some(ssthresh);
        self.tell("set_window", (cwnd, ssthresh));
    }
}

/// An exception if this is no class that can be called with the parameters of a connection.
pub(crate) fn check(py: Python<'_>, name: &str, class: &Py<PyAny>) -> PyResult<()> {
    match class.bind(py).is_callable() {
        true => Ok(()),
        false => {
            let class = class.into_py_any(py)?;
            Err(PyValueError::new_err(format!(
                "congestion[{name:?}] is {class}: give a class, which is called with mss and initial_window"
            )))
        }
    }
}
