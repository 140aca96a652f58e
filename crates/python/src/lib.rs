//! The compiled half of the Python package `bentpipe`. The other half, in `python/bentpipe`, has what users
//! see.
//!
//! Everything here takes checked, simple arguments: texts, numbers, lists of pairs. The interpreter's lock is
//! released while a scenario runs.

mod column;
mod control;
mod effect;
mod errors;
mod outside;
mod piece;
mod plan;
mod radius;
mod running;
mod scenario;
mod simulate;
mod table;

use pyo3::prelude::*;

/// The functions and classes of `bentpipe._core`.
#[pymodule(name = "_core")]
mod core {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::column::Column;
    #[pymodule_export]
    use crate::plan::Plan;
    #[pymodule_export]
    use crate::radius::radius;
    #[pymodule_export]
    use crate::running::Running;
    #[pymodule_export]
    use crate::scenario::Source;
    #[pymodule_export]
    use crate::simulate::{Output, simulate};
    #[pymodule_export]
    use crate::table::Table;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
