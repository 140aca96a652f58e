use std::path::{Path, PathBuf};
use std::process::ExitCode;
#[cfg(feature = "dtn")]
use std::time::UNIX_EPOCH;

use bentpipe_config::{Document, Error, Fault};
#[cfg(feature = "dtn")]
use bentpipe_dtn::{DtnTime, config::NodeConfig};
use bentpipe_proxy::Config;
#[cfg(feature = "laboratory")]
use bentpipe_sim::file::Source;
use clap::{Args, ValueEnum};

/// Check a configuration and report everything that is wrong with it at once, each with its line and its
/// remedy.
///
/// It reads the file, and a contact plan that it names: it needs no root, no daemon and not the host that the file is for. `bentpipe
/// doctor -c FILE` also checks the host. The exit code is 0 when there is no error.
#[derive(Debug, Args)]
pub(crate) struct Check {
    /// A configuration of the proxy (bentpipe.toml), of the bundle node (node.toml), or a scenario.
    #[arg(default_value = "/etc/bentpipe/bentpipe.toml")]
    file: PathBuf,
    /// What the file is; by default what its tables say.
    #[arg(long)]
    kind: Option<Kind>,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// bentpipe.toml
    Proxy,
    /// node.toml
    #[cfg(feature = "dtn")]
    Node,
    /// A scenario of the simulator
    #[cfg(feature = "laboratory")]
    Scenario,
}

/// What was found in a file.
struct Findings {
    kind: Kind,
    errors: Vec<Fault>,
    warnings: Vec<Fault>,
}

impl Check {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let document = Document::load(&self.file)?;
        let kind = self.kind.unwrap_or_else(|| Kind::of(&document));
        let findings = Findings::of(kind, document)?;
        match self.json {
            true => super::print_json(&findings.as_json(&self.file))?,
            false => super::print(&findings.as_text(&self.file))?,
        }
        Ok(if findings.errors.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

impl Kind {
    /// That of the tables. Both daemons have legs, so the node's own come first.
    fn of(document: &Document) -> Self {
        match () {
            #[cfg(feature = "dtn")]
            () if NodeConfig::is_meant_by(document) => Self::Node,
            () if Config::is_meant_by(document) => Self::Proxy,
            #[cfg(feature = "laboratory")]
            () if Source::is_meant_by(document) => Self::Scenario,
            () => Self::Proxy,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Proxy => "a configuration of the proxy",
            #[cfg(feature = "dtn")]
            Self::Node => "a configuration of the bundle node",
            #[cfg(feature = "laboratory")]
            Self::Scenario => "a scenario",
        }
    }
}

impl Findings {
    /// # Errors
    /// The file, or one that it names, cannot be read.
    fn of(kind: Kind, document: Document) -> Result<Self, Error> {
        let outcome = match kind {
            Kind::Proxy => Config::of(&document).map(|read| read.warnings),
            #[cfg(feature = "dtn")]
            Kind::Node => {
                let now = DtnTime::from_unix(UNIX_EPOCH.elapsed().unwrap_or_default());
                NodeConfig::with_contact_plan(&document, now).map(|read| read.warnings)
            }
            #[cfg(feature = "laboratory")]
            Kind::Scenario => Source::of(document).and_then(|source| source.with(&[])).map(|_| Vec::new()),
        };
        match outcome {
            Ok(warnings) => Ok(Self { kind, errors: Vec::new(), warnings }),
            Err(Error::Faults(errors)) => Ok(Self { kind, errors, warnings: Vec::new() }),
            Err(other) => Err(other),
        }
    }

    fn as_text(&self, file: &Path) -> String {
        let errors = self.errors.iter().map(|fault| ("ERROR", fault));
        let all = errors.chain(self.warnings.iter().map(|fault| ("WARN ", fault)));
        let mut text: String = all.map(|(mark, fault)| lines_of(mark, fault)).collect();
        let number = |count: usize, what: &str| match count {
            0 => format!("no {what}s"),
            1 => format!("1 {what}"),
            _ => format!("{count} {what}s"),
        };
        let counts = [number(self.errors.len(), "error"), number(self.warnings.len(), "warning")];
        text += &format!("{}, {}: {}\n", file.display(), self.kind.name(), counts.join(", "));
        text
    }

    fn as_json(&self, file: &Path) -> serde_json::Value {
        let all = |faults: &[Fault]| faults.iter().map(as_json).collect::<Vec<_>>();
        let kind = self.kind.to_possible_value().map(|kind| kind.get_name().to_owned());
        serde_json::json!({
            "file": file.display().to_string(),
            "kind": kind,
            "errors": all(&self.errors),
            "warnings": all(&self.warnings),
        })
    }
}

/// What is wrong, the line of the file, and what to do.
fn lines_of(mark: &str, fault: &Fault) -> String {
    let (reason, remedy) = fault.parts();
    let written = fault.written.as_ref().map_or_else(String::new, |line| format!("       | {line}\n"));
    format!("{mark}  {}: {reason}\n{written}       → {remedy}\n", fault.location())
}

fn as_json(fault: &Fault) -> serde_json::Value {
    let (reason, remedy) = fault.parts();
    serde_json::json!({
        "file": fault.file,
        "line": fault.line(),
        "key": fault.key,
        "written": fault.written,
        "reason": reason,
        "remedy": remedy,
    })
}
