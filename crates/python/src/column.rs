//! A column of a table, which NumPy takes without a copy.

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type, UInt64Type};
use arrow_array::{Array, ArrayRef, Float64Array};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyAttributeError, PyIndexError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// A column. `numpy.asarray` takes one of numbers without a copy; where values are missing, as floats with
/// NaN.
#[pyclass(frozen, sequence, module = "bentpipe._core")]
pub(crate) struct Column {
    values: ArrayRef,
    /// What NumPy takes: the values, or where some are missing, floats.
    dense: ArrayRef,
}

impl Column {
    pub(crate) fn new(values: ArrayRef) -> Self {
        let dense = if values.null_count() == 0 { values.clone() } else { with_nan(&values) };
        Self { values, dense }
    }
}

/// Numbers with NaN for those that are missing; other columns as they are.
fn with_nan(values: &ArrayRef) -> ArrayRef {
    let float = |value: Option<f64>| value.unwrap_or(f64::NAN);
    if let Some(numbers) = values.as_primitive_opt::<Float64Type>() {
        return std::sync::Arc::new(numbers.iter().map(float).collect::<Float64Array>());
    }
    if let Some(counts) = values.as_primitive_opt::<Int64Type>() {
        let floats = counts.iter().map(|count| float(count.map(|count| count as f64)));
        return std::sync::Arc::new(floats.collect::<Float64Array>());
    }
    values.clone()
}

#[pymethods]
impl Column {
    fn __len__(&self) -> usize {
        self.values.len()
    }

    fn __getitem__(&self, py: Python<'_>, index: isize) -> PyResult<Py<PyAny>> {
        let length = self.values.len() as isize;
        let at = if index < 0 { index + length } else { index };
        if !(0..length).contains(&at) {
            return Err(PyIndexError::new_err(format!("there are {length} values, and none at {index}")));
        }
        let at = at as usize;
        let values = &self.values;
        if values.is_null(at) {
            return Ok(py.None());
        }
        if let Some(texts) = values.as_string_opt::<i32>() {
            return texts.value(at).into_py_any(py);
        }
        if let Some(counts) = values.as_primitive_opt::<Int64Type>() {
            return counts.value(at).into_py_any(py);
        }
        if let Some(seeds) = values.as_primitive_opt::<UInt64Type>() {
            return seeds.value(at).into_py_any(py);
        }
        if let Some(numbers) = values.as_primitive_opt::<Float64Type>() {
            return numbers.value(at).into_py_any(py);
        }
        values.as_boolean().value(at).into_py_any(py)
    }

    /// NumPy's array interface, version 3: the address of the values, which this object keeps.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dense = &self.dense;
        let (address, kind) = if let Some(numbers) = dense.as_primitive_opt::<Float64Type>() {
            (numbers.values().as_ptr() as usize, "<f8")
        } else if let Some(counts) = dense.as_primitive_opt::<Int64Type>() {
            (counts.values().as_ptr() as usize, "<i8")
        } else if let Some(seeds) = dense.as_primitive_opt::<UInt64Type>() {
            (seeds.values().as_ptr() as usize, "<u8")
        } else {
            return Err(PyAttributeError::new_err("only columns of numbers are arrays; take list(column)"));
        };
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", (dense.len(),))?;
        interface.set_item("typestr", kind)?;
        interface.set_item("data", (address, true))?;
        Ok(interface)
    }
}
