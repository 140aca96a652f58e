use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;
use std::process::ExitCode;

use bentpipe_units::Span;
use bentpipe_verify::{InputError, Report, Scenario};
use clap::Args;

/// More than the rows that a disk reads at once.
const BUFFER: usize = 1 << 20;

/// Check a run packet by packet against its scenario.
///
/// LOG is the packet log of the run, from bentpipe sim --log or bentpipe link --log. What must become of each
/// packet is worked out anew from the scenario's links, by code that shares nothing with them. The exit code
/// is 0 if all is as the scenario says, 1 if something is not, and 2 if the log or the scenario cannot be
/// used.
#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// The packet log; - for standard input.
    log: PathBuf,
    /// The scenario, of which only the sections [[link]] and [[flow]] matter. The link of bentpipe link is
    /// called link; forward is down.
    scenario: PathBuf,
    /// Set a parameter, as the run did: link.satellite.per=1%.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// How much later than due a packet may arrive. In virtual time never; on the testbed the machine needs
    /// time for it, usually less than 5ms.
    #[arg(long, value_name = "TIME", default_value = "0")]
    late: Span,
}

impl Verify {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.check() {
            Ok(report) => {
                super::print(&text(&report))?;
                Ok(ExitCode::from(u8::from(!report.findings.is_empty())))
            }
            Err(error) => {
                super::print_note(format_args!("bentpipe: {error}"));
                Ok(ExitCode::from(2))
            }
        }
    }

    fn check(&self) -> Result<Report, InputError> {
        let scenario = Scenario::load(&self.scenario, &self.settings)?;
        let log: Box<dyn BufRead> = if self.log.as_os_str() == "-" {
            Box::new(BufReader::with_capacity(BUFFER, io::stdin().lock()))
        } else {
            let fail =
                |error| InputError::new(format!("cannot read the log {}: {error}", self.log.display()));
            Box::new(BufReader::with_capacity(BUFFER, File::open(&self.log).map_err(fail)?))
        };
        bentpipe_verify::verify(log, &scenario, self.late.get())
    }
}

fn text(report: &Report) -> String {
    let Report { findings, packets, directions, end } = report;
    let lines: String = findings.iter().map(|finding| format!("{finding}\n")).collect();
    let seconds = *end as f64 / 1e9;
    let what = format!("{packets} packets in {directions} directions, {seconds} s");
    if findings.is_empty() {
        format!("{what}: all as the scenario says\n")
    } else {
        format!("{lines}{what}: not as the scenario says\n")
    }
}
