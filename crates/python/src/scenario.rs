//! A scenario's file.

use bentpipe_sim::file::{self, Setting};
use bentpipe_sim::manifest;
use pyo3::prelude::*;

use crate::errors;

/// A scenario's file, parsed but not yet checked.
#[pyclass(frozen, module = "bentpipe._core")]
pub(crate) struct Source {
    pub(crate) source: file::Source,
}

#[pymethods]
impl Source {
    /// `name` is what errors call the text; files that it names are looked for beside it.
    #[new]
    fn new(name: &str, text: &str) -> PyResult<Self> {
        let source = file::Source::parse(name, text).map_err(|error| errors::of_file(&error))?;
        Ok(Self { source })
    }

    #[staticmethod]
    fn load(path: std::path::PathBuf) -> PyResult<Self> {
        let source = file::Source::load(path).map_err(|error| errors::of_file(&error))?;
        Ok(Self { source })
    }

    #[getter]
    fn name(&self) -> &str {
        self.source.name()
    }

    #[getter]
    fn text(&self) -> &str {
        self.source.text()
    }

    #[getter]
    fn sha256(&self) -> String {
        manifest::sha256(self.source.text())
    }

    /// The title, and the names of nodes, links and flows, of the scenario with these settings.
    fn check(&self, settings: Vec<(String, String)>) -> PyResult<(String, [Vec<String>; 3])> {
        let scenario = self.source.with(&settings_of(settings)).map_err(|error| errors::of_file(&error))?;
        let links = scenario.links.iter().map(|link| link.name.clone()).collect();
        let flows = scenario.flows.iter().map(|flow| flow.name.clone()).collect();
        Ok((scenario.title, [scenario.nodes, links, flows]))
    }
}

pub(crate) fn settings_of(pairs: Vec<(String, String)>) -> Vec<Setting> {
    pairs.into_iter().map(|(key, value)| Setting { key, value }).collect()
}
