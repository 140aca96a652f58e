mod agents;

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use bentpipe_link::{DirectionConfig, Impairments, LinkConfig, OutageTrace, Profile};
use bentpipe_testbed::{BehindLink, Error};
use bentpipe_units::{ByteCount, Probability, Rate, Span};
use clap::Args;

use agents::Agents;

/// Run a command behind an emulated satellite link.
///
/// The command gets a network of its own whose only way out is the link. On the other side is another one, in
/// which a second command can run, a server for example: `bentpipe link --profile geo --far 'python3 -m
/// http.server 8080' -- sh -c 'sleep 1; curl http://$BENTPIPE_FAR:8080/'`. The address of the far end is in
/// BENTPIPE_FAR, that of the near end in BENTPIPE_NEAR.
#[derive(Debug, Args)]
pub(crate) struct Link {
    /// Begin with a profile: geo, meo, leo or train.
    #[arg(long)]
    profile: Option<Profile>,
    /// Rate of each direction.
    #[arg(long)]
    rate: Option<Rate>,
    /// One-way propagation delay of each direction.
    #[arg(long)]
    delay: Option<Span>,
    /// Packet error rate of each direction.
    #[arg(long)]
    per: Option<Probability>,
    /// Bytes that wait in front of each transmitter before more are dropped; one bandwidth-delay product by
    /// default.
    #[arg(long)]
    queue: Option<ByteCount>,
    /// Outages from a CSV file: `start_s,duration_s`, or `start_km,length_km` with a speed behind an @:
    /// tunnels.csv@120.
    #[arg(long, value_name = "FILE[@KM/H]")]
    outages: Option<String>,
    /// Share of packets that are held back, so that later ones overtake them.
    #[arg(long)]
    reorder: Option<Probability>,
    /// How long they are held back; 10 ms by default.
    #[arg(long, requires = "reorder")]
    reorder_by: Option<Span>,
    /// Share of packets that arrive twice.
    #[arg(long)]
    duplicate: Option<Probability>,
    /// Share of packets in which one bit is flipped.
    #[arg(long)]
    corrupt: Option<Probability>,
    #[command(flatten)]
    agents: Agents,
    /// The seed of the losses and of the impairments.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A shell command line that runs on the far side for as long as COMMAND does.
    #[arg(long, value_name = "COMMAND LINE")]
    far: Option<String>,
    /// The command.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Link {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let (config, impairments) = (self.config()?, self.impairments());
        let link_ends = self.agents.link_ends(&config)?;
        let (seed, far, command) = (self.seed, self.far, self.command);
        let behind = BehindLink { config, link_ends, impairments, seed, far, command };
        let code = match behind.run() {
            Err(Error::Spawn { program, source }) => {
                super::print_note(format_args!("bentpipe: cannot run {program}: {source}"));
                i32::from(as_a_shell_would(source.kind()))
            }
            outcome => outcome?,
        };
        Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
    }

    fn config(&self) -> anyhow::Result<LinkConfig> {
        let mut config = self.profile.map(Profile::config).unwrap_or_default();
        let outages = self.outages.as_deref().map(read_outages).transpose()?;
        for direction in [&mut config.forward, &mut config.reverse] {
            self.adapt(direction);
            if let Some(outages) = &outages {
                direction.outages = outages.clone();
            }
        }
        Ok(config)
    }

    fn impairments(&self) -> Impairments {
        Impairments {
            reorder: self.reorder.unwrap_or_default(),
            reorder_by: self.reorder_by.map_or(Impairments::DEFAULT_REORDER_BY, Span::get),
            duplicate: self.duplicate.unwrap_or_default(),
            corrupt: self.corrupt.unwrap_or_default(),
        }
    }

    fn adapt(&self, direction: &mut DirectionConfig) {
        direction.rate = self.rate.or(direction.rate);
        direction.delay = self.delay.map_or(direction.delay, Span::get);
        direction.per = self.per.unwrap_or(direction.per);
        direction.queue = self.queue.or(direction.queue);
    }
}

/// The exit code of a shell for a command that does not exist or may not be run (sh(1)).
fn as_a_shell_would(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::NotFound => 127,
        ErrorKind::PermissionDenied => 126,
        _ => 1,
    }
}

/// Reads `FILE` or `FILE@SPEED`.
fn read_outages(argument: &str) -> anyhow::Result<OutageTrace> {
    let (path, speed) = match argument.rsplit_once('@') {
        Some((path, speed)) => {
            let speed: f64 = speed.parse().with_context(|| format!("\"{speed}\" is not a speed in km/h"))?;
            (PathBuf::from(path), Some(speed))
        }
        None => (PathBuf::from(argument), None),
    };
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read the outages {}", path.display()))?;
    let trace = match speed {
        Some(speed) => OutageTrace::from_railway_csv(&text, speed),
        None => OutageTrace::from_csv(&text),
    };
    trace.with_context(|| format!("cannot use the outages {}", path.display()))
}
