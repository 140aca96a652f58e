//! A sweep as a text: `KEY=VALUE,…`, `KEY+KEY=VALUE+VALUE,…` or `case=NAME:KEY=VALUE+…,…`.

use std::fmt;
use std::str::FromStr;

use bentpipe_config::Setting;

use super::{CASE, Sweep, SweepError};

/// Why a text is not a sweep.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{text}\" is not a sweep: {why}; write KEY=VALUE,VALUE,…, for example link.satellite.per=0,1e-3,1%, or \
     KEY+KEY=VALUE+VALUE,… for parameters that are set together, or case=NAME:KEY=VALUE+KEY=VALUE,… for \
     named cases; a value with + or , in it stands in quotation marks"
)]
pub struct NotASweep {
    text: String,
    why: String,
}

impl FromStr for Sweep {
    type Err = NotASweep;

    fn from_str(text: &str) -> Result<Self, NotASweep> {
        let fail = |why: String| NotASweep { text: text.to_owned(), why };
        let Setting { key, value } = text.parse().map_err(|_| fail("there is no = behind a key".into()))?;
        let parts = split_outside(&value, ',');
        let sweep = match key.as_str() {
            CASE => cases(&parts).map_err(fail)?,
            key if key.contains('+') => {
                let keys = key.split('+').map(|key| key.trim().to_owned()).collect();
                Sweep::together(keys, parts.iter().map(|part| split_outside(part, '+')))
            }
            key => Sweep::of(key, parts),
        };
        sweep.map_err(|error| fail(error.to_string()))
    }
}

/// Cases are `NAME` or `NAME:KEY=VALUE+KEY=VALUE`.
fn cases(parts: &[String]) -> Result<Result<Sweep, SweepError>, String> {
    let setting = |text: &String| text.parse::<Setting>().map_err(|error| error.to_string());
    let case = |part: &String| match part.split_once(':') {
        None => Ok((part.clone(), Vec::new())),
        Some((name, settings)) => {
            let settings = split_outside(settings, '+').iter().map(setting).collect::<Result<_, _>>()?;
            Ok((name.trim().to_owned(), settings))
        }
    };
    Ok(Sweep::cases(parts.iter().map(case).collect::<Result<Vec<_>, String>>()?))
}

impl fmt::Display for Sweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = |step: &super::Step| match &step.name {
            Some(name) if step.settings.is_empty() => name.clone(),
            Some(name) => format!("{name}:{}", joined(step.settings.iter().map(Setting::to_string))),
            None => joined(step.settings.iter().map(|setting| setting.value.clone())),
        };
        let steps: Vec<String> = self.steps.iter().map(step).collect();
        write!(f, "{}={}", self.columns.join("+"), steps.join(","))
    }
}

fn joined(texts: impl Iterator<Item = String>) -> String {
    texts.collect::<Vec<_>>().join("+")
}

/// The parts between separators, but for those within brackets, braces or quotation marks.
fn split_outside(text: &str, separator: char) -> Vec<String> {
    let (mut parts, mut depth, mut quote) = (vec![String::new()], 0usize, None);
    for c in text.chars() {
        match (quote, c) {
            (Some(open), _) if open == c => quote = None,
            (None, '"' | '\'') => quote = Some(c),
            (None, '[' | '{') => depth += 1,
            (None, ']' | '}') => depth = depth.saturating_sub(1),
            (None, c) if c == separator && depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        parts.last_mut().expect("there is always a part").push(c);
    }
    parts.into_iter().map(|part| part.trim().to_owned()).collect()
}
