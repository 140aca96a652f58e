//! The protocol radius.

use std::time::Duration;

use bentpipe_radius::document::Document;
use bentpipe_radius::{Catalogue, Path};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors;

/// The document of `bentpipe radius --json`; times in seconds.
#[pyfunction]
#[pyo3(signature = (delay_s, outage_s))]
pub(crate) fn radius(delay_s: Option<f64>, outage_s: f64) -> PyResult<String> {
    let seconds = |name: &str, value: f64| {
        Duration::try_from_secs_f64(value)
            .map_err(|_| PyValueError::new_err(format!("{name} is {value} s; it must be 0 s or more")))
    };
    let outage = seconds("outage", outage_s)?;
    let path = delay_s.map(|delay| Ok::<_, PyErr>(Path { delay: seconds("delay", delay)?, outage }));
    let document = Document::new(&Catalogue::embedded(), path.transpose()?);
    serde_json::to_string(&document).map_err(|error| errors::of_value(&error))
}
