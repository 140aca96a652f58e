use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bentpipe_lab::reach::{Measurement, Probe, measure};
use bentpipe_radius::document::Document;
use bentpipe_radius::{Catalogue, Path, Reach, figure, text};
use bentpipe_table::Align::{Left, Right};
use bentpipe_table::aligned;
use bentpipe_testbed::{Need, require};
use bentpipe_units::Span;
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};

/// The measurement makes network namespaces in several threads, so that a user namespace is not enough.
const NEEDS: &[Need] = &[Need::Privileges, Need::Namespaces, Need::Tun, Need::Program("ip")];
/// The entry that predicts the behaviour of this machine's kernel.
const KERNEL: &str = "TCP, Linux";
/// Delays around both bounds of that prediction, 33.5 and 49.5 s, and around half the SYN schedule, 65.5 s.
const DELAYS: &str = "1s,16s,31s,33s,37s,41s,45s,49s,57s,64s";
/// How late Linux' timers are at most, as a share of their length: the wheel has 63 slots before its grain
/// grows eightfold.
const LATENESS: f64 = 0.125;
/// Far beyond the reach of the kernel's defaults. The bound prevents a measurement of days by mistake.
const FARTHEST: Duration = Duration::from_secs(3 * 3600);
const MOST_PROBES: usize = 50;
const BAR: &str = "{bar:20} {pos} of {len} probes  {elapsed} of about {prefix}  {wide_msg}";

/// List how far the timers of today's protocols let them reach, or which of them work over a given path.
///
/// Distances are one way, in seconds of light. With --delay, and --outage, the question is turned round:
/// which protocols work over such a path, with which settings the others would, and where only store and
/// forward does.
#[derive(Debug, Args)]
pub(crate) struct Radius {
    /// Ask for a path: its one-way delay, such as 300ms or 8min.
    #[arg(long, conflicts_with = "on", allow_hyphen_values = true)]
    delay: Option<Span>,
    /// The longest interruption of that path.
    #[arg(long, requires = "delay", allow_hyphen_values = true)]
    outage: Option<Span>,
    /// Measure this machine's own TCP over links of many seconds, which takes minutes, and compare.
    #[arg(long, value_name = "WORLD")]
    on: Option<World>,
    /// The one-way delays that are measured, all at once.
    #[arg(long, value_delimiter = ',', requires = "on", default_value = DELAYS, allow_hyphen_values = true)]
    delays: Vec<Span>,
    /// Draw the radii into an SVG file.
    #[arg(long, value_name = "FILE.svg")]
    figure: Option<PathBuf>,
    /// Print one JSON document instead of the table.
    #[arg(long)]
    json: bool,
}

/// Where the radii come from if not from the timers alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum World {
    /// This machine's kernel.
    Kernel,
}

impl Radius {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        super::log::to_stderr("warn");
        let catalogue = Catalogue::embedded();
        if let Some(file) = &self.figure {
            draw(&catalogue, file)?;
        }
        if self.on == Some(World::Kernel) {
            return self.measure(&catalogue);
        }
        let path = self
            .delay
            .map(|delay| Path { delay: delay.get(), outage: self.outage.map(Span::get).unwrap_or_default() });
        match (self.json, path) {
            (true, path) => super::print_json(&Document::new(&catalogue, path))?,
            (false, Some(path)) => super::print(&text::path_table(&catalogue, path))?,
            (false, None) => super::print(&text::table(&catalogue))?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn measure(&self, catalogue: &Catalogue) -> anyhow::Result<ExitCode> {
        let delays = checked(&self.delays)?;
        require(NEEDS).context("the kernel's TCP cannot be measured here")?;
        let linux = catalogue.protocol(KERNEL).context("the data file has no entry for Linux")?;
        let reach = catalogue.reach(linux);
        let found = probe(&delays)?;
        if self.json {
            super::print_json(&as_json(catalogue, &reach, &found)?)?;
        } else {
            super::print(&as_text(&reach, &found))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn draw(catalogue: &Catalogue, file: &std::path::Path) -> anyhow::Result<()> {
    let svg = figure::svg(catalogue).map_err(anyhow::Error::msg).context("cannot draw the figure")?;
    let folder = file.parent().map_or(Ok(()), std::fs::create_dir_all);
    folder
        .and_then(|()| std::fs::write(file, svg))
        .with_context(|| format!("cannot write {}: choose another file with --figure", file.display()))?;
    super::print_note(format_args!("The radii: {}", file.display()));
    Ok(())
}

/// The delays without repetitions, the nearest first.
fn checked(delays: &[Span]) -> anyhow::Result<Vec<Duration>> {
    let mut delays: Vec<Duration> = delays.iter().map(|delay| delay.get()).collect();
    delays.sort();
    delays.dedup();
    ensure!(delays.len() <= MOST_PROBES, "{} delays are too many: give at most {MOST_PROBES}", delays.len());
    match delays.last() {
        Some(&longest) if longest > FARTHEST => {
            bail!(
                "a delay of {} is too long to be waited for: give at most {}",
                Span(longest),
                Span(FARTHEST)
            )
        }
        Some(_) => Ok(delays),
        None => bail!("there is no delay to measure: give some, as in --delays {DELAYS}"),
    }
}

/// Probes all delays, with a bar that shows how long it takes at most: four trips, or until the kernel gives
/// connecting up.
fn probe(delays: &[Duration]) -> anyhow::Result<Measurement> {
    let longest = *delays.last().context("there is no delay to measure")?;
    let style = ProgressStyle::with_template(BAR).context("the progress bar cannot be drawn")?;
    let bar = ProgressBar::new(delays.len() as u64).with_style(style);
    bar.set_prefix(format!("{:.0}s", (longest * 4).as_secs_f64().ceil()));
    bar.enable_steady_tick(Duration::from_millis(200));
    let found = measure(delays, |probe| {
        bar.set_message(outcome(probe));
        bar.inc(1);
    });
    bar.finish_and_clear();
    Ok(found?)
}

fn outcome(probe: &Probe) -> String {
    match (&probe.error, probe.connected_s) {
        (None, _) => format!("{} s: works", probe.delay_s),
        (Some(error), Some(connected)) => {
            format!("{} s: connected after {connected:.1} s, then: {error}", probe.delay_s)
        }
        (Some(error), None) => format!("{} s: {error}", probe.delay_s),
    }
}

/// The two bounds of the prediction, one way in seconds; infinite where nothing gives up.
fn bounds(reach: &Reach) -> (f64, f64) {
    let seconds = |delay: Option<Duration>| delay.map_or(f64::INFINITY, |delay| delay.as_secs_f64());
    (seconds(reach.limit), seconds(reach.perhaps))
}

fn contradictions(reach: &Reach, found: &Measurement) -> Vec<f64> {
    let (sure, perhaps) = bounds(reach);
    found.contradictions(sure, perhaps, LATENESS)
}

fn as_text(reach: &Reach, found: &Measurement) -> String {
    let after = |time: Option<f64>| time.map_or("-".into(), |time| format!("{time:.1} s"));
    let row = |probe: &Probe| {
        let outcome = probe.error.clone().unwrap_or_else(|| "works".into());
        [format!("{} s", probe.delay_s), after(probe.connected_s), after(probe.answered_s), outcome]
    };
    let headings = [("one way", Right), ("connected", Right), ("answered", Right), ("outcome", Left)];
    let rows: Vec<_> = found.probes.iter().map(row).collect();
    let (sure, perhaps) = bounds(reach);
    let bound = |delay: Option<f64>| delay.map_or("none".into(), |delay| format!("{delay} s"));
    format!(
        "TCP of Linux {}, between network namespaces\n\n{}\n\n\
         The farthest that worked: {}. The nearest that failed: {}.\n\
         Predicted: up to {sure} s it works, up to {perhaps} s it may, beyond that it fails.\n{}\n",
        found.kernel,
        aligned(&headings, &rows).join("\n"),
        bound(found.largest_working_s()),
        bound(found.smallest_failing_s()),
        judgement(reach, found)
    )
}

fn judgement(reach: &Reach, found: &Measurement) -> String {
    match contradictions(reach, found).as_slice() {
        [] => "The measurement does not contradict the prediction.".into(),
        delays => format!("The measurement contradicts the prediction at one-way delays of {delays:?} s."),
    }
}

fn as_json(catalogue: &Catalogue, reach: &Reach, found: &Measurement) -> anyhow::Result<serde_json::Value> {
    let mut json = serde_json::to_value(Document::new(catalogue, None))?;
    let (sure, perhaps) = bounds(reach);
    json["measured"] = serde_json::json!({
        "name": KERNEL,
        "kernel": found.kernel,
        "largest_working_s": found.largest_working_s(),
        "smallest_failing_s": found.smallest_failing_s(),
        "predicted_limit_s": sure,
        "predicted_perhaps_s": perhaps,
        "agrees": contradictions(reach, found).is_empty(),
        "probes": found.probes,
    });
    Ok(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(texts: &[&str]) -> Vec<Span> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn delays_are_sorted_and_each_is_measured_once() {
        let delays = checked(&spans(&["4s", "1s", "4s"])).unwrap();
        assert_eq!(delays, [Duration::from_secs(1), Duration::from_secs(4)]);
    }

    #[test]
    fn an_absurdly_long_delay_is_refused() {
        let text = checked(&spans(&["1s", "4h"])).unwrap_err().to_string();
        assert!(text.contains("14400s") && text.contains("10800s"), "{text}");
        assert!(checked(&vec![Span::default(); 200]).is_ok(), "they are all the same");
        let many: Vec<Span> = (0..51).map(|number| Span(Duration::from_secs(number))).collect();
        assert!(checked(&many).is_err());
    }

    #[test]
    fn the_default_delays_are_valid_and_lie_on_both_sides_of_the_prediction() {
        let delays: Vec<Span> = DELAYS.split(',').map(|delay| delay.parse().unwrap()).collect();
        let delays = checked(&delays).unwrap();
        let catalogue = Catalogue::embedded();
        let reach = catalogue.reach(catalogue.protocol(KERNEL).unwrap());
        assert!(delays.iter().any(|&delay| Some(delay) < reach.limit));
        assert!(delays.iter().any(|delay| delay.as_secs_f64() > bounds(&reach).1 * (1.0 + LATENESS)));
    }
}
