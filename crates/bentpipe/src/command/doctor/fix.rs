//! The plan that `--fix` shows and follows: the steps of all findings, each once, and two files that make
//! them permanent.

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use bentpipe_kernel::host::{Check, Step};
use serde::Serialize;

use super::persistent::PersistentFile;

/// The steps that fix the failed checks.
pub(super) struct Plan {
    items: Vec<Item>,
    files: [PersistentFile; 2],
}

/// One step, and the checks that ask for it.
struct Item {
    step: Step,
    checks: Vec<String>,
}

/// The result of a step.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    /// The step as it was shown.
    step: String,
    /// Why it failed.
    error: Option<String>,
}

impl Plan {
    /// The steps of the failed checks. `etc` is the folder of the files that make them permanent.
    pub(super) fn of(checks: &[Check], etc: &Path) -> Self {
        let mut items: Vec<Item> = Vec::new();
        for check in checks.iter().filter(|check| !check.ok) {
            for step in &check.steps {
                join(&mut items, step, &check.name);
            }
        }
        Self { items, files: [PersistentFile::sysctls(etc), PersistentFile::modules(etc)] }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Does it all. A step that fails does not keep the next from being tried, and is not made to last.
    pub(super) fn apply(mut self) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for Item { step, .. } in &self.items {
            let done = apply(step);
            if done.is_ok() {
                self.files.iter_mut().for_each(|file| file.add(step));
            }
            outcomes.push(Outcome::of(step.to_string(), done));
        }
        for file in self.files.iter().filter(|file| !file.is_empty()) {
            outcomes.push(Outcome::of(format!("write {}", file.path().display()), file.write()));
        }
        outcomes
    }
}

/// Two legs may ask for different sizes of the same buffer. Each number of the value becomes the largest that
/// is asked for.
fn join(items: &mut Vec<Item>, step: &Step, check: &str) {
    let same = items.iter_mut().find(|item| match (&item.step, step) {
        (Step::Sysctl { key, .. }, Step::Sysctl { key: other, .. }) => key == other,
        (one, other) => one == other,
    });
    let Some(item) = same else {
        return items.push(Item { step: step.clone(), checks: vec![check.to_owned()] });
    };
    if let (Step::Sysctl { value, .. }, Step::Sysctl { value: other, .. }) = (&mut item.step, step) {
        *value = largest(value, other);
    }
    if !item.checks.iter().any(|name| name == check) {
        item.checks.push(check.to_owned());
    }
}

fn largest(one: &str, other: &str) -> String {
    let numbers =
        one.split(' ').zip(other.split(' ')).map(|(a, b)| match (a.parse::<u64>(), b.parse::<u64>()) {
            (Ok(x), Ok(y)) if x < y => b,
            _ => a,
        });
    numbers.collect::<Vec<_>>().join(" ")
}

fn apply(step: &Step) -> anyhow::Result<()> {
    match step {
        Step::Sysctl { key, value } => {
            let path = format!("/proc/sys/{}", key.replace('.', "/"));
            fs::write(&path, value).with_context(|| format!("cannot write to {path}"))
        }
        Step::Module(name) => run("modprobe", &[name.as_str()]),
        Step::Run(words) => {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let (program, arguments) = words.split_first().context("a step without a program")?;
            run(program, arguments)
        }
    }
}

/// Runs a program. The error contains its last line of output.
fn run(program: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {program}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said =
        String::from_utf8_lossy(&output.stderr).trim().lines().next_back().unwrap_or_default().to_owned();
    bail!("{}: {said}", output.status)
}

/// The steps in order, with the checks that ask for them, and the files that will contain them.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return writeln!(f, "There is nothing for --fix to do.\n");
        }
        writeln!(f, "These steps fix the findings:")?;
        for Item { step, checks } in &self.items {
            writeln!(f, "    {step}    ({})", checks.join("; "))?;
        }
        for file in &self.files {
            let lines: Vec<_> = self.items.iter().filter_map(|item| file.line(&item.step)).collect();
            if !lines.is_empty() {
                writeln!(f, "and so that it lasts, into {}:", file.path().display())?;
                lines.iter().try_for_each(|line| writeln!(f, "    {line}"))?;
            }
        }
        Ok(())
    }
}

impl Outcome {
    fn of(step: String, done: anyhow::Result<()>) -> Self {
        Self { step, error: done.err().map(|error| format!("{error:#}")) }
    }

    pub(super) fn is_done(&self) -> bool {
        self.error.is_none()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.error {
            None => writeln!(f, "done    {}", self.step),
            Some(error) => writeln!(f, "FAILED  {}: {error}", self.step),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(checks: &[Check]) -> Plan {
        Plan::of(checks, Path::new("/nonexistent"))
    }

    #[test]
    fn requests_of_two_legs_are_served_once_for_the_larger() {
        let buffer = |leg: &str, most: u32| {
            let step = Step::sysctl("net.ipv4.tcp_wmem", format!("4096 16384 {most}"));
            Check::mendable(format!("send buffer, leg {leg}"), "", vec![step])
        };
        for order in [[9, 30], [30, 9]] {
            let text = plan(&[buffer("a", order[0]), buffer("b", order[1])]).to_string();
            assert_eq!(text.matches("sysctl -w").count(), 1, "{text}");
            assert!(text.contains("=\"4096 16384 30\""), "{text}");
            assert!(text.contains("(send buffer, leg a; send buffer, leg b)"), "{text}");
        }
    }

    #[test]
    fn passed_checks_and_manual_steps_are_not_applied() {
        let advice = Check { ok: true, ..Check::mendable("a", "", vec![Step::sysctl("x.y", 1)]) };
        let plan = plan(&[Check::pass("b", ""), Check::fail("c", "", "use Linux 7"), advice]);
        assert!(plan.is_empty() && plan.to_string().contains("nothing for --fix to do"));
    }

    #[test]
    fn shown_steps_are_applied_and_one_failure_stops_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let proof = folder.path().join("proof");
        let touch = format!("touch {}", proof.display());
        let steps = ["false", "no-such-program-here x", touch.as_str()].map(Step::run);
        let plan = plan(&[Check::mendable("a", "", steps.into())]);
        let shown = plan.to_string();
        assert!(!proof.exists(), "showing is not doing");
        let outcomes = plan.apply();
        assert_eq!(outcomes.iter().map(Outcome::is_done).collect::<Vec<_>>(), [false, false, true]);
        assert!(proof.exists());
        assert!(outcomes.iter().all(|outcome| shown.contains(&outcome.step)), "{shown} {outcomes:?}");
        assert!(outcomes[1].to_string().contains("cannot run no-such-program-here: No such file"));
    }
}
