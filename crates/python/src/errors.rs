//! Errors of this crate as exceptions of Python.

use bentpipe_config::{Error as FileError, Fault, Place};
use bentpipe_sim::sweep;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

pyo3::import_exception!(bentpipe._errors, ScenarioError);

/// A fault as Python's class takes it: file, line, setting, key, what.
type Parts = (String, Option<usize>, Option<String>, String, String);

pub(crate) fn of_file(error: &FileError) -> PyErr {
    let parts = |fault: &Fault| -> Parts {
        let setting = match &fault.place {
            Place::Setting(setting) => Some(setting.clone()),
            Place::Line(_) => None,
        };
        (fault.file.clone(), fault.line(), setting, fault.key.clone(), fault.what.clone())
    };
    match error {
        FileError::Read { file, source } => match source.raw_os_error() {
            // With the number, so that Python finds the class: FileNotFoundError, PermissionError.
            Some(number) => PyOSError::new_err((number, source.to_string(), file.clone())),
            None => PyOSError::new_err(error.to_string()),
        },
        _ => {
            let faults: Vec<Parts> = error.faults().iter().map(parts).collect();
            ScenarioError::new_err((error.to_string(), faults))
        }
    }
}

pub(crate) fn of_sweep(error: &sweep::Error) -> PyErr {
    match error {
        sweep::Error::Scenario(error) => of_file(error),
        other => ScenarioError::new_err((other.to_string(), Vec::<Parts>::new())),
    }
}

/// A value that a caller gave.
pub(crate) fn of_value(error: &impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}
