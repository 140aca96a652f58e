//! Sweeps: parameters and the values that they take, in a file's section `[sweep]` or as a text from a
//! command line.

mod section;
#[cfg(test)]
mod tests;
mod text;

use std::collections::HashSet;

use bentpipe_config::{MAX_NAME, Setting};

pub(super) use section::read;
pub use text::NotASweep;

/// The longest value, bytes: it stands in each result that it led to.
pub(crate) const MAX_VALUE: usize = 200;
/// What stands in the place of a key where a sweep is one of named cases.
pub const CASE: &str = "case";

/// Parameters and the values that they take, one step after the other.
///
/// | form | as a text | one step sets |
/// |---|---|---|
/// | one parameter | `link.sat.per=0,1e-3,1%` | that parameter |
/// | parameters set together | `link.a.delay+link.b.delay=10ms+20ms,30ms+40ms` | all of them |
/// | named cases | `case=clean,lossy:link.a.per=1%+link.b.per=2%` | what the case says |
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sweep {
    /// What the results call it: the keys, or [`CASE`].
    columns: Vec<String>,
    steps: Vec<Step>,
}

/// One step of a sweep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    /// The name, of a case.
    pub(crate) name: Option<String>,
    /// What it sets.
    pub(crate) settings: Vec<Setting>,
}

/// Why something is not a sweep.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SweepError {
    /// Nothing is swept.
    #[error("it has no values")]
    Empty,
    /// A value that no result can show.
    #[error("\"{0}\" is not a value: it has 1 to {MAX_VALUE} bytes")]
    Value(String),
    /// A key that is no path to a parameter.
    #[error("\"{0}\" is not a key: write the path to a parameter, as in link.satellite.per")]
    Key(String),
    /// The same key twice in what is set together.
    #[error("{0} is set twice in one step")]
    TwiceInAStep(String),
    /// A step sets another number of parameters than there are.
    #[error("{found} values where {expected} parameters are set together: {values}")]
    Unpaired {
        /// How many keys there are.
        expected: usize,
        /// How many values there are.
        found: usize,
        /// The values.
        values: String,
    },
    /// A name that no case can have.
    #[error("\"{0}\" is not a name of a case: it consists of 1 to {MAX_NAME} letters, digits, - and _")]
    Name(String),
    /// Two cases of one name.
    #[error("two cases are called {0}: give each its own name")]
    SameName(String),
}

impl Sweep {
    /// One parameter takes each of these values.
    ///
    /// # Errors
    /// No values, an empty key, or a value that is empty or longer than 200 bytes.
    pub fn of(key: &str, values: impl IntoIterator<Item = String>) -> Result<Self, SweepError> {
        Self::together(vec![key.to_owned()], values.into_iter().map(|value| vec![value]))
    }

    /// Several parameters are set together; each row has a value for each of them.
    ///
    /// # Errors
    /// As [`of`](Self::of); a row of another length than `keys`; a key that comes twice.
    pub fn together(
        keys: Vec<String>,
        rows: impl IntoIterator<Item = Vec<String>>,
    ) -> Result<Self, SweepError> {
        let step = |values: Vec<String>| {
            if values.len() != keys.len() {
                let (expected, found) = (keys.len(), values.len());
                return Err(SweepError::Unpaired { expected, found, values: values.join("+") });
            }
            let settings = keys.iter().cloned().zip(values);
            let settings = settings.map(|(key, value)| Setting { key, value }).collect();
            Ok(Step { name: None, settings })
        };
        let steps = rows.into_iter().map(step).collect::<Result<_, _>>()?;
        Self { columns: keys, steps }.checked()
    }

    /// Named cases, each with its settings; one without settings is the scenario as it is.
    ///
    /// # Errors
    /// No cases; a name that comes twice or is no name; a setting as in [`of`](Self::of).
    pub fn cases(cases: impl IntoIterator<Item = (String, Vec<Setting>)>) -> Result<Self, SweepError> {
        let steps: Vec<Step> =
            cases.into_iter().map(|(name, settings)| Step { name: Some(name), settings }).collect();
        let mut names = HashSet::new();
        for name in steps.iter().filter_map(|step| step.name.as_ref()) {
            if !is_name(name) {
                return Err(SweepError::Name(name.clone()));
            }
            if !names.insert(name) {
                return Err(SweepError::SameName(name.clone()));
            }
        }
        Self { columns: vec![CASE.to_owned()], steps }.checked()
    }

    fn checked(self) -> Result<Self, SweepError> {
        if self.steps.is_empty() || self.columns.is_empty() {
            return Err(SweepError::Empty);
        }
        for step in &self.steps {
            let mut keys = HashSet::new();
            for Setting { key, value } in &step.settings {
                if key.is_empty() || key == CASE || key.contains(['+', '=', ',']) {
                    return Err(SweepError::Key(key.clone()));
                }
                if value.is_empty() || value.len() > MAX_VALUE {
                    return Err(SweepError::Value(value.clone()));
                }
                if !keys.insert(key) {
                    return Err(SweepError::TwiceInAStep(key.clone()));
                }
            }
        }
        Ok(self)
    }

    /// What results call it: the keys of its parameters, or [`CASE`].
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// How many steps it has; at least one.
    #[allow(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether it is one of named cases.
    pub fn is_cases(&self) -> bool {
        self.columns == [CASE]
    }

    pub(crate) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The keys that its steps set.
    pub(crate) fn keys(&self) -> HashSet<&str> {
        self.steps.iter().flat_map(|step| &step.settings).map(|setting| setting.key.as_str()).collect()
    }

    /// The same without these parameters, which have their values from elsewhere; `None` if nothing is left.
    pub(crate) fn without(&self, is_set: impl Fn(&str) -> bool) -> Option<Self> {
        let mut left = self.clone();
        if !self.is_cases() {
            left.columns.retain(|key| !is_set(key));
        }
        for step in &mut left.steps {
            step.settings.retain(|setting| !is_set(&setting.key));
        }
        (!left.columns.is_empty()).then_some(left)
    }
}

impl Step {
    /// What the columns of its sweep say of it.
    pub(crate) fn labels(&self) -> Vec<Setting> {
        match &self.name {
            Some(name) => vec![Setting { key: CASE.to_owned(), value: name.clone() }],
            None => self.settings.clone(),
        }
    }
}

fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    (1..=MAX_NAME).contains(&name.len()) && name.chars().all(allowed)
}
