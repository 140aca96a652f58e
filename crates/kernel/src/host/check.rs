//! The result of one check, and its remedy.

use std::fmt;

use serde::Serialize;

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The subject of the check.
    pub name: String,
    /// Whether bentpipe can use it as it is.
    pub ok: bool,
    /// Whether it can, but something is worth a look: then there is advice.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub warning: bool,
    /// The finding.
    pub found: String,
    /// The line that fixes it, or other advice.
    pub fix: Option<String>,
    /// The steps of the remedy that a program can take, in this order; none where only the operator can.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
}

/// One step of a remedy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Give a kernel parameter a value (sysctl(8)).
    Sysctl {
        /// Its name, with dots.
        key: String,
        /// Its value.
        value: String,
    },
    /// Load a kernel module (modprobe(8)).
    Module(String),
    /// Run a program: its name and its arguments, which no shell sees.
    Run(Vec<String>),
}

impl Check {
    /// A check that passed.
    pub fn pass(name: impl Into<String>, found: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ok: true,
            warning: false,
            found: found.into(),
            fix: None,
            steps: Vec::new(),
        }
    }

    /// A check that passed, with something to look at and what the operator can do.
    pub fn warn(name: impl Into<String>, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { warning: true, fix: Some(fix.into()), ..Self::pass(name, found) }
    }

    /// A check that failed, and what the operator can do.
    pub fn fail(name: impl Into<String>, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { ok: false, fix: Some(fix.into()), ..Self::pass(name, found) }
    }

    /// A check that failed, and that these steps fix.
    pub fn mendable(name: impl Into<String>, found: impl Into<String>, steps: Vec<Step>) -> Self {
        let lines: Vec<String> = steps.iter().map(Step::to_string).collect();
        Self { steps, ..Self::fail(name, found, lines.join("; ")) }
    }
}

/// On one line, as a log has it.
impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.found)?;
        self.fix.as_ref().map_or(Ok(()), |fix| write!(f, "; {fix}"))
    }
}

impl Step {
    /// A kernel parameter, as `net.ipv4.ip_forward`, and its value.
    pub fn sysctl(key: impl Into<String>, value: impl fmt::Display) -> Self {
        Self::Sysctl { key: key.into(), value: value.to_string() }
    }

    /// A program and its arguments, separated by single spaces.
    pub fn run(line: &str) -> Self {
        Self::Run(line.split(' ').map(str::to_owned).collect())
    }
}

/// As typed in a shell.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sysctl { key, value } if value.contains(' ') => write!(f, "sysctl -w {key}=\"{value}\""),
            Self::Sysctl { key, value } => write!(f, "sysctl -w {key}={value}"),
            Self::Module(name) => write!(f, "modprobe {name}"),
            Self::Run(words) => f.write_str(&words.join(" ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remedy_is_printed_as_typed_commands() {
        let steps =
            vec![Step::sysctl("a.b", "1 2 3"), Step::Module("tcp_bbr".into()), Step::run("mkdir -p /x")];
        let check = Check::mendable("name", "found", steps);
        assert_eq!(check.fix.unwrap(), "sysctl -w a.b=\"1 2 3\"; modprobe tcp_bbr; mkdir -p /x");
        assert_eq!(Step::sysctl("a.b", 1).to_string(), "sysctl -w a.b=1");
    }
}
