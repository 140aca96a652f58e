//! One run, with all of its tables.

use bentpipe_sim::columns::Value;
use bentpipe_sim::extensions::{Extensions, LinkEffect};
use bentpipe_sim::manifest::State;
use bentpipe_sim::tables::ResultTable;
use bentpipe_sim::{Observer, RunResult, SampleSink, Samples, Scenario, run_with};
use bentpipe_tcp::congestion::ControlFactory;
use pyo3::exceptions::{PyKeyError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::control::{self, PythonControl};
use crate::effect::PythonEffect;
use crate::errors;
use crate::outside::{Failure, Watch};
use crate::scenario::{Source, settings_of};
use crate::table::{Rows, Table};

/// The results of a run.
#[pyclass(frozen, get_all, module = "bentpipe._core")]
pub(crate) struct Output {
    title: String,
    /// `finished` or `unfinished`, as in a manifest.
    state: String,
    /// The document of `bentpipe sim --json`, but for what that says of the run as such.
    json: String,
    /// The tables of the results, by name.
    tables: Py<PyDict>,
    /// The tables of the trace, by name.
    trace: Option<Py<PyDict>>,
}

/// A congestion control's name and class.
type Controls = Vec<(String, Py<PyAny>)>;
/// A link's name, its direction `forward` or `reverse`, and the object.
type Effects = Vec<(String, String, Py<PyAny>)>;

/// Runs a scenario. `trace`: with samples. `congestion`: what makes the congestion controls that the scenario
/// calls `custom:NAME`. `effects`: what else happens to the packets of a direction.
#[pyfunction]
#[pyo3(signature = (source, settings, seed, trace, congestion, effects))]
pub(crate) fn simulate(
    py: Python<'_>,
    source: &Source,
    settings: Vec<(String, String)>,
    seed: u64,
    trace: bool,
    congestion: Controls,
    effects: Effects,
) -> PyResult<Output> {
    let names: Vec<String> = congestion.iter().map(|(name, _)| name.clone()).collect();
    let scenario = source.source.clone().with_custom(names).with(&settings_of(settings));
    let scenario = scenario.map_err(|error| errors::of_file(&error))?;
    let failure = Failure::default();
    let extensions = extensions(py, &scenario, congestion, effects, &failure)?;
    let mut samples = trace.then(|| Samples::new(&scenario, Tables::new(&scenario)));
    let mut watch = Watch(failure.clone());
    let result = py.detach(|| {
        let mut observers: Vec<&mut dyn Observer> = vec![&mut watch];
        observers.extend(samples.as_mut().map(|samples| samples as &mut dyn Observer));
        run_with(&scenario, seed, &mut observers, extensions)
    });
    if let Some(error) = failure.take() {
        return Err(error);
    }
    let trace = samples.map(|samples| samples.sink.finish(py)).transpose()?;
    Ok(Output {
        state: name_of(State::of(&scenario, &result)).to_owned(),
        json: serde_json::to_string(&result).map_err(|error| errors::of_value(&error))?,
        tables: tables(py, &scenario, &result)?,
        trace,
        title: scenario.title,
    })
}

/// A state's name in a manifest.
pub(crate) fn name_of(state: State) -> &'static str {
    match state {
        State::Pending => "pending",
        State::Finished => "finished",
        State::Unfinished => "unfinished",
    }
}

fn extensions(
    py: Python<'_>,
    scenario: &Scenario,
    congestion: Controls,
    effects: Effects,
    failure: &Failure,
) -> PyResult<Extensions> {
    let mut extensions = Extensions::default();
    for (name, class) in congestion {
        control::check(py, &name, &class)?;
        let failure = failure.clone();
        let factory = ControlFactory::new(move |parameters| {
            Box::new(PythonControl::new(&class, parameters, failure.clone()))
        });
        extensions.congestion.insert(name, factory);
    }
    for (name, direction, object) in effects {
        let link = scenario.links.iter().position(|link| link.name == name).ok_or_else(|| {
            let links: Vec<&str> = scenario.links.iter().map(|link| link.name.as_str()).collect();
            PyKeyError::new_err(format!("there is no link {name}; there is {}", links.join(", ")))
        })?;
        if !object.bind(py).hasattr("apply")? {
            return Err(PyTypeError::new_err(format!("the effect of {name} has no method apply(packet)")));
        }
        let effect = Box::new(PythonEffect { object, failure: failure.clone() });
        extensions.effects.push(LinkEffect { link, forward: direction == "forward", effect });
    }
    Ok(extensions)
}

fn tables(py: Python<'_>, scenario: &Scenario, result: &RunResult) -> PyResult<Py<PyDict>> {
    let tables = PyDict::new(py);
    for table in ResultTable::ALL {
        let mut rows = Rows::new(table.schema());
        table.rows(scenario, result, |row| rows.push(row.iter().copied()));
        tables.set_item(table.schema().name, Py::new(py, rows.finish())?)?;
    }
    Ok(tables.unbind())
}

/// The tables of a trace.
struct Tables(Vec<(&'static str, Rows)>);

impl Tables {
    fn new(scenario: &Scenario) -> Self {
        Self(Samples::tables(scenario).into_iter().map(|table| (table.name, Rows::new(table))).collect())
    }

    fn finish(self, py: Python<'_>) -> PyResult<Py<PyDict>> {
        let tables = PyDict::new(py);
        for (name, rows) in self.0 {
            let table: Table = rows.finish();
            tables.set_item(name, Py::new(py, table)?)?;
        }
        Ok(tables.unbind())
    }
}

impl SampleSink for Tables {
    fn row(&mut self, table: usize, row: &[Value<'_>]) {
        self.0[table].1.push(row.iter().copied());
    }
}
