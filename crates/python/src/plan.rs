//! A sweep: its runs, and how a piece of it is run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use bentpipe_sim::manifest::Manifest;
use bentpipe_sim::sweep::{self, Sweep};
use bentpipe_sim::tables::ResultTable;
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;

use crate::errors;
use crate::piece::{Piece, rows_of};
use crate::running::Running;
use crate::scenario::{Source, settings_of};
use crate::table::Table;

/// The runs of a sweep: a scenario at each combination of values, with each seed.
#[pyclass(frozen, module = "bentpipe._core")]
pub(crate) struct Plan {
    plan: Arc<sweep::Plan>,
}

/// What a step of a sweep sets, and its name if it is a case.
type Step = (Option<String>, Vec<(String, String)>);

#[pymethods]
impl Plan {
    /// `sweeps` are lists of steps. Those of one sweep set the same keys, or have names.
    #[new]
    fn new(
        py: Python<'_>,
        source: &Source,
        settings: Vec<(String, String)>,
        sweeps: Vec<Vec<Step>>,
        seeds: Vec<u64>,
    ) -> PyResult<Self> {
        let sweeps = sweeps.into_iter().map(sweep_of).collect::<PyResult<Vec<_>>>()?;
        let fixed = settings_of(settings);
        let source = source.source.clone();
        let plan = py.detach(|| sweep::Plan::new(&source, &fixed, &sweeps, &seeds));
        Ok(Self { plan: Arc::new(plan.map_err(|error| errors::of_sweep(&error))?) })
    }

    fn __len__(&self) -> usize {
        self.plan.len()
    }

    /// The manifest, of which nothing has been run, as JSON.
    fn manifest(&self) -> PyResult<String> {
        serde_json::to_string(&Manifest::new(&self.plan)).map_err(|error| errors::of_value(&error))
    }

    /// Whether a manifest is one of these runs.
    fn is_of_the_same_runs(&self, manifest: &str) -> PyResult<bool> {
        let manifest: Manifest = serde_json::from_str(manifest)
            .map_err(|error| PyValueError::new_err(format!("this is no manifest: {error}")))?;
        Ok(Manifest::new(&self.plan).is_of_the_same_runs(&manifest))
    }

    /// The table without rows.
    fn empty(&self, table: &str) -> PyResult<Table> {
        Ok(rows_of(&self.plan, table_of(table)?).finish())
    }

    /// Runs these, one after the other, and returns their states and their rows.
    fn run(&self, py: Python<'_>, numbers: Vec<usize>, table: &str) -> PyResult<(Vec<&'static str>, Table)> {
        self.check(&numbers)?;
        let (table, never) = (table_of(table)?, AtomicBool::new(false));
        let piece = py.detach(|| Piece::run(&self.plan, numbers, table, &never, &AtomicUsize::new(0)));
        Ok((piece.states, piece.table?))
    }

    /// Runs these lists of runs on as many threads, and returns at once.
    fn start(&self, pieces: Vec<Vec<usize>>, table: &str, threads: usize) -> PyResult<Running> {
        pieces.iter().try_for_each(|numbers| self.check(numbers))?;
        Ok(Running::start(self.plan.clone(), pieces, table_of(table)?, threads))
    }
}

impl Plan {
    fn check(&self, numbers: &[usize]) -> PyResult<()> {
        match numbers.iter().find(|&&number| number >= self.plan.len()) {
            Some(number) => {
                let most = self.plan.len();
                Err(PyValueError::new_err(format!("there is no run {number}: the sweep has {most}")))
            }
            None => Ok(()),
        }
    }
}

fn sweep_of(steps: Vec<Step>) -> PyResult<Sweep> {
    let is_cases = steps.iter().any(|(name, _)| name.is_some());
    let sweep = if is_cases {
        Sweep::cases(steps.into_iter().map(|(name, set)| (name.unwrap_or_default(), settings_of(set))))
    } else {
        let keys = steps.first().map(|(_, set)| set.iter().map(|(key, _)| key.clone()).collect());
        let values = |(_, set): Step| set.into_iter().map(|(_, value)| value).collect();
        Sweep::together(keys.unwrap_or_default(), steps.into_iter().map(values))
    };
    sweep.map_err(|error| PyValueError::new_err(format!("the grid cannot be swept: {error}")))
}

fn table_of(name: &str) -> PyResult<ResultTable> {
    ResultTable::of_name(name).ok_or_else(|| {
        let names = ResultTable::ALL.map(|table| table.schema().name);
        PyKeyError::new_err(format!("there is no table {name}; there is {}", names.join(", ")))
    })
}
