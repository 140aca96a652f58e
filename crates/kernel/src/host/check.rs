//! What came of looking at one thing, and what mends it.

use std::fmt;

use serde::Serialize;

/// One thing looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: String,
    /// Whether bentpipe can use it as it is.
    pub ok: bool,
    /// What was found.
    pub found: String,
    /// The line that mends it, or what else to do.
    pub fix: Option<String>,
    /// The same as far as a program can do it for the operator, in this order; none where only the operator can.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
}

/// One thing that can be done to a host.
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
    /// One that is passed.
    pub fn pass(name: impl Into<String>, found: impl Into<String>) -> Self {
        Self { name: name.into(), ok: true, found: found.into(), fix: None, steps: Vec::new() }
    }

    /// One that is not, and what the operator can do.
    pub fn fail(name: impl Into<String>, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { ok: false, fix: Some(fix.into()), ..Self::pass(name, found) }
    }

    /// One that is not, and that these steps mend.
    pub fn mendable(name: impl Into<String>, found: impl Into<String>, steps: Vec<Step>) -> Self {
        let lines: Vec<String> = steps.iter().map(Step::to_string).collect();
        Self { steps, ..Self::fail(name, found, lines.join("; ")) }
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

/// As one would type it.
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
    fn what_mends_a_finding_is_said_as_it_would_be_typed() {
        let steps =
            vec![Step::sysctl("a.b", "1 2 3"), Step::Module("tcp_bbr".into()), Step::run("mkdir -p /x")];
        let check = Check::mendable("name", "found", steps);
        assert_eq!(check.fix.unwrap(), "sysctl -w a.b=\"1 2 3\"; modprobe tcp_bbr; mkdir -p /x");
        assert_eq!(Step::sysctl("a.b", 1).to_string(), "sysctl -w a.b=1");
    }
}
