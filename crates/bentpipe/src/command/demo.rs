use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use bentpipe_lab::demo::{Comparison, Scheme, Settings, compare, virtual_time};
use bentpipe_lab::download::Progress;
use bentpipe_testbed::require;
use bentpipe_units::{ByteCount, Probability, Rate, Span};
use clap::{Args, ValueEnum};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// Fits into 80 columns.
const BAR: &str = "{prefix:16} {bar:24} {decimal_bytes:>10} {msg:>14}  {elapsed}";
/// Each received chunk is a point of the figure; and in virtual time, a larger file takes longer without
/// showing more.
const LARGEST: u64 = 1_000_000_000;
const TICK: Duration = Duration::from_millis(200);

/// Download a file over an emulated GEO satellite, with and without bentpipe, side by side.
///
/// Client, gateway and server are network namespaces of this host, with real kernel TCP between them; nothing
/// of the host's own network is touched. Where that is not allowed, the same comparison runs in virtual time.
#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// The link's rate, each way.
    #[arg(long, default_value = "10M", allow_hyphen_values = true)]
    rate: Rate,
    /// The round-trip time of the empty link.
    #[arg(long, default_value = "600ms", allow_hyphen_values = true)]
    rtt: Span,
    /// Packet error rate, each way.
    #[arg(long, default_value = "1%", allow_hyphen_values = true)]
    per: Probability,
    /// The length of the file, up to 1 GB.
    #[arg(long, default_value = "4MB", allow_hyphen_values = true)]
    size: ByteCount,
    /// The seed of losses and contents.
    #[arg(long, value_name = "N", default_value_t = 1, allow_hyphen_values = true)]
    seed: u64,
    /// Where the figure goes.
    #[arg(long, value_name = "DIR", default_value = "out")]
    out: PathBuf,
    /// Where it runs: on this machine's kernel, or in virtual time. Without it, on the kernel if that is
    /// allowed.
    #[arg(long, value_name = "WORLD")]
    on: Option<On>,
    /// Let slow downloads run to their end. Without it they are stopped when they have taken six times as
    /// long as the slowest through bentpipe, and at least 30 s.
    #[arg(long)]
    whole: bool,
    /// Print one JSON document instead of the table.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum On {
    /// Kernel TCP in network namespaces.
    Kernel,
    /// TCP as a state machine, in virtual time.
    Sim,
}

impl Demo {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        super::log::to_stderr("warn");
        self.check()?;
        let on = self.world()?;
        super::laboratory::prepare_folder(&self.out)?;
        let settings = self.settings();
        super::print_note(format_args!(
            "{} over {} at {} round trip, {}% of packets lost",
            self.size,
            self.rate,
            self.rtt,
            // In single precision, because the digits of the product end sooner there.
            (self.per.get() * 100.0) as f32
        ));
        let comparison = match on {
            On::Kernel => compare(&settings, |progress| follow(&settings, progress))?,
            On::Sim => in_virtual_time(&settings),
        };
        let figure = self.out.join("demo.svg");
        comparison.figure().write(&figure)?;
        self.print(&comparison)?;
        super::print_note(format_args!("Bytes over time: {}", figure.display()));
        Ok(if comparison.runs.iter().all(|run| run.identical) {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    /// Refuses settings with which no download can work.
    fn check(&self) -> anyhow::Result<()> {
        let (size, largest) = (self.size, ByteCount::new(LARGEST));
        ensure!(size.get() > 0, "a file of {size} shows nothing: give --size 1B to {largest}");
        ensure!(
            size <= largest,
            "a file of {size} is too long for a demonstration: use --size {largest} or less"
        );
        ensure!(self.per.get() < 1.0, "with --per {} nothing ever arrives: give less than 100%", self.per);
        Ok(())
    }

    fn world(&self) -> anyhow::Result<On> {
        match (self.on, require(super::laboratory::TOPOLOGY_NEEDS)) {
            (Some(On::Sim), _) => Ok(On::Sim),
            (_, Ok(())) => Ok(On::Kernel),
            (Some(On::Kernel), Err(missing)) => Err(missing)
                .context("the demonstration cannot run on the kernel here; --on sim runs it in virtual time"),
            (None, Err(missing)) => {
                super::print_note(format_args!(
                    "{missing}\nTherefore this runs in virtual time, with bentpipe's own TCP instead of the \
                     kernel's."
                ));
                Ok(On::Sim)
            }
        }
    }

    fn settings(&self) -> Settings {
        Settings {
            rate: self.rate,
            rtt: self.rtt.get(),
            per: self.per,
            bytes: self.size.get(),
            seed: self.seed,
            whole: self.whole,
            ..Settings::default()
        }
    }

    fn print(&self, comparison: &Comparison) -> anyhow::Result<()> {
        if self.json {
            super::print_json(comparison)
        } else {
            super::print(&format!("\n{}", comparison.to_text()))
        }
    }
}

fn in_virtual_time(settings: &Settings) -> Comparison {
    let (comparison, left_out) = virtual_time::compare(settings);
    if !left_out.is_empty() {
        super::print_note(format_args!("Left out, for only the kernel has it: {}", left_out.join(", ")));
    }
    comparison
}

/// A live line for each download, until all have ended.
fn follow(settings: &Settings, progress: &[Progress]) {
    let lines = MultiProgress::new();
    let style = ProgressStyle::with_template(BAR).expect("the template is valid");
    let bars: Vec<ProgressBar> = settings
        .schemes
        .iter()
        .map(|scheme| {
            let bar = lines.add(ProgressBar::new(settings.bytes).with_style(style.clone()));
            bar.set_prefix(label(scheme));
            bar
        })
        .collect();
    while !progress.iter().all(Progress::is_finished) {
        std::thread::sleep(TICK);
        for (bar, progress) in bars.iter().zip(progress) {
            update(bar, progress);
        }
    }
}

fn update(bar: &ProgressBar, progress: &Progress) {
    if bar.is_finished() {
        return;
    }
    bar.set_position(progress.received());
    let seconds = bar.elapsed().as_secs_f64();
    bar.set_message(format!("{:.2} Mbit/s", progress.received() as f64 * 8.0 / 1e6 / seconds));
    if progress.is_finished() {
        bar.abandon();
    }
}

fn label(scheme: &Scheme) -> String {
    match scheme {
        Scheme::EndToEnd(congestion) => congestion.clone(),
        Scheme::Split(congestion) => format!("bentpipe ({congestion})"),
    }
}
