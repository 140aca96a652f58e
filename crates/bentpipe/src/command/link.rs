mod agents;
mod profiles;
mod queue;
mod traces;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use bentpipe_link::{DirectionConfig, Impairments, LinkConfig, OutageTrace, Profile};
use bentpipe_testbed::{BehindLink, Error, PacketFiles};
use bentpipe_units::{Probability, Rate, Span};
use clap::Args;

use agents::Agents;
use queue::Queue;
use traces::Towards;

/// Run a command, or a shell, behind an emulated satellite link.
///
/// The command gets a network of its own whose only way out is the link; without a command it is your shell
/// ($SHELL). On the other side is another network, in which a second command can run, a server for example:
/// `bentpipe link --profile geo --far 'python3 -m http.server 8080' -- sh -c 'sleep 1; curl
/// http://$BENTPIPE_FAR:8080/'`. The address of the far end is in BENTPIPE_FAR, that of the near end in
/// BENTPIPE_NEAR. With --internet the command also reaches what this machine reaches, and this machine itself
/// at BENTPIPE_BASE. Links can be nested: `bentpipe link --delay 300ms -- bentpipe link --per 1% --internet
/// -- …`. "Up" is from the command, "down" is to it.
#[derive(Debug, Args)]
pub(crate) struct Link {
    /// Begin with a profile: geo, meo, leo, leo-handovers, rain-front, aircraft, ship or train. Those that
    /// vary by chance are made of the seed.
    #[arg(long)]
    profile: Option<Profile>,
    /// How long a profile made of a seed goes on before it begins anew; 1h by default, a day at the most.
    #[arg(long, requires = "profile", value_name = "TIME")]
    profile_lasts: Option<Span>,
    /// List the profiles with their values, and end.
    #[arg(long)]
    list_profiles: bool,
    /// Rate of each direction.
    #[arg(long)]
    rate: Option<Rate>,
    /// Rate from the command.
    #[arg(long, value_name = "RATE")]
    up_rate: Option<Rate>,
    /// Rate to the command.
    #[arg(long, value_name = "RATE")]
    down_rate: Option<Rate>,
    /// One-way propagation delay of each direction.
    #[arg(long)]
    delay: Option<Span>,
    /// Propagation delay from the command.
    #[arg(long, value_name = "DELAY")]
    up_delay: Option<Span>,
    /// Propagation delay to the command.
    #[arg(long, value_name = "DELAY")]
    down_delay: Option<Span>,
    /// Packet error rate of each direction.
    #[arg(long)]
    per: Option<Probability>,
    /// Packet error rate from the command.
    #[arg(long, value_name = "PER")]
    up_per: Option<Probability>,
    /// Packet error rate to the command.
    #[arg(long, value_name = "PER")]
    down_per: Option<Probability>,
    /// What waits in front of each transmitter before more is dropped: bytes (100kB), or the bytes of
    /// full-size packets (100packets); one bandwidth-delay product by default.
    #[arg(long)]
    queue: Option<Queue>,
    /// The same for the direction from the command.
    #[arg(long, value_name = "QUEUE")]
    up_queue: Option<Queue>,
    /// The same for the direction to the command.
    #[arg(long, value_name = "QUEUE")]
    down_queue: Option<Queue>,
    /// Outages from a CSV file: `start_s,duration_s`, or `start_km,length_km` with a speed behind an @:
    /// tunnels.csv@120.
    #[arg(long, value_name = "FILE[@KM/H]")]
    outages: Option<String>,
    /// Rate, delay and errors that change with time, in both directions, from a file: a CSV file with the
    /// header `at_s,rate,delay,per`, or any other for a trace of mahimahi.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// The same for the direction from the command.
    #[arg(long, value_name = "FILE")]
    up_trace: Option<PathBuf>,
    /// The same for the direction to the command.
    #[arg(long, value_name = "FILE")]
    down_trace: Option<PathBuf>,
    /// One-way delays of both directions from a file of LeoReplayer: milliseconds, a line for each 10 ms. Its
    /// rates are what --up-trace and --down-trace read.
    #[arg(long, value_name = "FILE")]
    delay_trace: Option<PathBuf>,
    /// Print what changes in one direction as CSV, and end: --trace reads it.
    #[arg(long, value_name = "down|up")]
    print_trace: Option<Towards>,
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
    /// The seed of the losses, of the impairments and of the profile.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A shell command line that runs on the far side for as long as COMMAND does.
    #[arg(long, value_name = "COMMAND LINE")]
    far: Option<String>,
    /// What this machine reaches by IPv4 is behind the far end, the Internet for example. Needs root and IPv4
    /// forwarding; nothing that is set up for it outlives the command.
    #[arg(long)]
    internet: bool,
    /// Print the totals of each such interval on standard error; 1s by default.
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "1s",
          value_parser = read_interval)]
    interval: Option<Duration>,
    /// Log each step of each packet to a CSV file (columns: docs/results.md), which bentpipe
    /// verify checks.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Log the direction from the command in mahimahi's format.
    #[arg(long, value_name = "FILE")]
    up_log: Option<PathBuf>,
    /// Log the direction to the command in mahimahi's format.
    #[arg(long, value_name = "FILE")]
    down_log: Option<PathBuf>,
    /// Write the packets to a file for Wireshark and tcpdump, as they are at the command's end of the link.
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// The command; your shell if there is none.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Link {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if self.list_profiles {
            super::print(&profiles::list())?;
            return Ok(ExitCode::SUCCESS);
        }
        let config = self.config()?;
        if let Some(towards) = self.print_trace {
            super::print(&towards.of(&config).trace.to_csv())?;
            return Ok(ExitCode::SUCCESS);
        }
        let behind = BehindLink {
            impairments: self.impairments(),
            link_ends: self.agents.link_ends(&config)?,
            label: self.label(),
            config,
            seed: self.seed,
            outside: self.internet,
            interval: self.interval,
            files: PacketFiles {
                log: self.log,
                down_log: self.down_log,
                up_log: self.up_log,
                pcap: self.pcap,
            },
            far: self.far,
            command: self.command,
        };
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
        let lasts = self.profile_lasts.map_or(traces::PROFILE_LASTS, Span::get);
        let profile = self.profile.map(|profile| profile.generate(self.seed, lasts));
        let mut config = profile.unwrap_or_default();
        self.adapt(&mut config.forward, self.down());
        self.adapt(&mut config.reverse, self.up());
        if let Some(outages) = self.outages.as_deref().map(read_outages).transpose()? {
            config.reverse.outages = outages.clone();
            config.forward.outages = outages;
        }
        for (direction, own) in
            [(&mut config.forward, &self.down_trace), (&mut config.reverse, &self.up_trace)]
        {
            if let Some(path) = own.as_ref().or(self.trace.as_ref()) {
                direction.trace = traces::read(path)?;
            }
            if let Some(path) = &self.delay_trace {
                direction.trace = traces::with_delays(std::mem::take(&mut direction.trace), path)?;
            }
        }
        Ok(config)
    }

    /// A few words about the link, for a prompt: the options that were given.
    fn label(&self) -> String {
        let mut label = "link".to_owned();
        if let Some(profile) = self.profile {
            let _ = write!(label, " {profile}");
        }
        for (name, options) in [("", self.both()), (" down", self.down()), (" up", self.up())] {
            let Options { rate, delay, per, .. } = options;
            let rate = rate.map(|rate| format!(" {rate}"));
            let delay = delay.map(|delay| format!(" {delay}"));
            let per = per.map(|per| format!(" per {}%", per.get() * 100.0));
            let given: String = [rate, delay, per].into_iter().flatten().collect();
            if !given.is_empty() {
                label += name;
                label += &given;
            }
        }
        label
    }

    fn both(&self) -> Options {
        Options { rate: self.rate, delay: self.delay, per: self.per, queue: self.queue }
    }

    fn up(&self) -> Options {
        Options { rate: self.up_rate, delay: self.up_delay, per: self.up_per, queue: self.up_queue }
    }

    fn down(&self) -> Options {
        Options { rate: self.down_rate, delay: self.down_delay, per: self.down_per, queue: self.down_queue }
    }

    fn impairments(&self) -> Impairments {
        Impairments {
            reorder: self.reorder.unwrap_or_default(),
            reorder_by: self.reorder_by.map_or(Impairments::DEFAULT_REORDER_BY, Span::get),
            duplicate: self.duplicate.unwrap_or_default(),
            corrupt: self.corrupt.unwrap_or_default(),
        }
    }

    /// Options of the direction come before those of both, and these before the profile.
    fn adapt(&self, direction: &mut DirectionConfig, own: Options) {
        let both = self.both();
        if let Some(rate) = own.rate.or(both.rate) {
            direction.rate = Some(rate);
            direction.trace = std::mem::take(&mut direction.trace).without_rates();
        }
        if let Some(delay) = own.delay.or(both.delay) {
            direction.delay = delay.get();
            direction.trace = std::mem::take(&mut direction.trace).without_delays();
        }
        if let Some(per) = own.per.or(both.per) {
            direction.per = per;
            direction.trace = std::mem::take(&mut direction.trace).without_error_rates();
        }
        direction.queue = own.queue.or(both.queue).map(Queue::bytes).or(direction.queue);
    }
}

/// The options that there are for both directions and for each.
#[derive(Debug, Clone, Copy)]
struct Options {
    rate: Option<Rate>,
    delay: Option<Span>,
    per: Option<Probability>,
    queue: Option<Queue>,
}

/// The shortest interval of totals: a line for each packet is what the log is for.
const MIN_INTERVAL: Duration = Duration::from_millis(10);

fn read_interval(text: &str) -> Result<Duration, String> {
    let interval = text.parse::<Span>().map_err(|error| error.to_string())?.get();
    if interval < MIN_INTERVAL {
        return Err(format!("an interval is {} at least", Span::from(MIN_INTERVAL)));
    }
    Ok(interval)
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        link: Link,
    }

    fn link(arguments: &str) -> Link {
        Arguments::parse_from(["link"].into_iter().chain(arguments.split_whitespace())).link
    }

    #[test]
    fn a_direction_has_its_own_values_before_the_common_ones_and_these_before_the_profile() {
        let config =
            link("--profile geo --delay 250ms --up-rate 1M --down-queue 100packets").config().unwrap();
        let (down, up) = (config.forward, config.reverse);
        assert_eq!((down.rate, up.rate), (Some(Rate::mbps(10)), Some(Rate::mbps(1))));
        assert_eq!((down.delay, up.delay), (Duration::from_millis(250), Duration::from_millis(250)));
        assert_eq!((down.queue.map(|queue| queue.get()), up.queue), (Some(150_000), None));
        let config = link("--per 1% --up-per 0 --up-delay 20ms").config().unwrap();
        assert_eq!((config.forward.per.get(), config.reverse.per.get()), (0.01, 0.0));
        assert_eq!((config.forward.delay, config.reverse.delay), (Duration::ZERO, Duration::from_millis(20)));
    }

    #[test]
    fn a_profile_of_a_seed_varies_where_no_option_says_otherwise() {
        let config = link("--profile leo-handovers --seed 7 --up-rate 5M --per 0").config().unwrap();
        let made = Profile::LeoHandovers.generate(7, traces::PROFILE_LASTS);
        assert_eq!(config.forward.trace, made.forward.trace.without_error_rates());
        assert_eq!(config.reverse.trace, made.reverse.trace.without_error_rates().without_rates());
        assert_eq!(config.reverse.rate, Some(Rate::mbps(5)));
        let short = link("--profile leo-handovers --profile-lasts 10s").config().unwrap();
        assert!(short.forward.trace.to_csv().ends_with("15,repeat\n"), "a slot");
    }

    #[test]
    fn the_label_tells_what_was_asked_for() {
        assert_eq!(link("--delay 300ms").label(), "link 300ms");
        assert_eq!(link("--profile geo --per 1%").label(), "link geo per 1%");
        assert_eq!(link("--up-rate 1M --down-rate 20M").label(), "link down 20Mbit/s up 1Mbit/s");
        assert_eq!(link("").label(), "link");
    }

    #[test]
    fn an_interval_is_a_second_unless_it_is_given() {
        assert_eq!(link("--interval").interval, Some(Duration::from_secs(1)));
        assert_eq!(link("--interval=100ms").interval, Some(Duration::from_millis(100)));
        assert_eq!(link("").interval, None);
        assert!(read_interval("1ms").unwrap_err().contains("10ms"));
    }
}
