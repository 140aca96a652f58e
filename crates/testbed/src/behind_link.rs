mod outside;
mod resolver;
mod shell;
mod summary;
mod totals;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use bentpipe_link::agent::LinkEndConfig;
use bentpipe_link::{Impairments, LinkConfig};
use rustix::process::{Signal, getegid};

use crate::clock::Clock;
use crate::packet_log::PacketWriter;
use crate::recorder::Recorder;
use crate::signals::{Arrival, HeldSignals};
use crate::{
    Child, Error, LINK_NEEDS, Namespace, Need, PacketFiles, Result, SatelliteLink, Subnet, default_route,
    drop_capabilities, enter_user_namespace, is_privileged, require,
};
use outside::Outside;
use totals::Totals;

/// How long a COMMAND that was asked to end may take before it is killed.
const GRACE: Duration = Duration::from_secs(5);
/// Ethernet's, as on the path to any server.
const MTU: u32 = 1500;
/// The needs of a link whose far end is connected to the caller's network: there a user namespace has no
/// rights.
const OUTSIDE_NEEDS: &[Need] = &[Need::Privileges, Need::Tun, Need::Program("ip")];

/// `bentpipe link -- COMMAND`: runs a command on a host whose only way out is a satellite link.
///
/// The command runs in a "terminal" namespace; the other end of the link is a "far" namespace, in which a
/// server may run for as long as the command does. Both have `lo` and the link, nothing else, unless
/// [`outside`](Self::outside) connects the far end to the network of the caller.
///
/// The command has these variables in its environment, the far server too:
///
/// | variable | meaning |
/// |---|---|
/// | `BENTPIPE_FAR`, `BENTPIPE_FAR6` | addresses of the far end |
/// | `BENTPIPE_NEAR`, `BENTPIPE_NEAR6` | addresses of the terminal |
/// | `BENTPIPE_BASE` | address of the outermost host that it reaches: with `outside` the caller's, or what the caller has in this variable; otherwise the far end's |
/// | `BENTPIPE_PROMPT` | the labels of the links around it, for the prompt of a shell |
#[derive(Debug, Clone, Default)]
pub struct BehindLink {
    /// The link; `forward` leads to the terminal, in which the command runs.
    pub config: LinkConfig,
    /// The agents at its ends: at the far end, and at the terminal.
    pub link_ends: [LinkEndConfig; 2],
    /// How it impairs the packets that it delivers.
    pub impairments: Impairments,
    /// The seed of its random losses, and of the impairments.
    pub seed: u64,
    /// A shell command line for the far end, for example a server. What it prints goes to standard error.
    pub far: Option<String>,
    /// The command and its arguments. Without a word it is the user's shell.
    pub command: Vec<OsString>,
    /// A few words about the link, for the prompt of a shell.
    pub label: String,
    /// Whether everything that the caller reaches by IPv4, the Internet for example, is behind the far end.
    /// Needs the privileges to configure the caller's network, and that it forwards.
    pub outside: bool,
    /// Totals are printed on standard error whenever so much time has passed; at least a millisecond.
    pub interval: Option<Duration>,
    /// Files about the packets.
    pub files: PacketFiles,
}

impl BehindLink {
    /// Runs the command and returns its exit code, or 128 plus the number of the signal that ended it. The
    /// packets by fate, and the counters of the agents at the link's ends are printed on standard error at
    /// the end.
    ///
    /// An ordinary user gets a user namespace, in which this process stays. Ctrl-C goes to the command, which
    /// shares the terminal; SIGTERM and SIGHUP ask the command to end, and after five seconds make it.
    ///
    /// Call it **before the process has a second thread**: only then can it enter a user namespace and hold
    /// back its signals.
    ///
    /// # Errors
    /// [`Error::Missing`] with everything that the machine lacks; [`Error::Spawn`] if the command does not
    /// exist; [`Error::PacketFile`] if a file cannot be written; any error of setting up namespaces and the
    /// link.
    pub fn run(self) -> Result<i32> {
        require(if self.outside { OUTSIDE_NEEDS } else { LINK_NEEDS })?;
        if !is_privileged() {
            enter_user_namespace()?;
        }
        let signals = HeldSignals::hold().map_err(|source| Error::Signals { source })?;
        let (writer, recorders) = PacketWriter::start(&self.files, &self.config)?;
        let topology = Topology::build(&self, recorders)?;
        topology.link.impair(&self.impairments, self.seed);
        let far = self.far.as_deref().map(|line| topology.start_far(line)).transpose()?;
        let mut command = Child::spawn_in_foreground(topology.terminal_command(&self)?)?;
        let mut totals = self.interval.map(|interval| Totals::new(interval, &topology.link));
        let status = wait_for(&mut command, &signals, &mut || match &mut totals {
            Some(totals) => totals.print_due(&topology.link),
            None => Duration::MAX,
        })?;
        report_far(far)?;
        eprint!("{}", topology.summary()?);
        drop(topology);
        match writer.finish()? {
            0 => {}
            missed => {
                eprintln!("link: {missed} events are missing in the files: they came faster than written")
            }
        }
        Ok(exit_code(status))
    }
}

/// The two hosts and the link between them.
struct Topology {
    far: Namespace,
    terminal: Namespace,
    link: SatelliteLink,
    /// Left is the far end, where a gateway would be.
    subnet: Subnet,
    outside: Option<Outside>,
}

impl Topology {
    fn build(behind: &BehindLink, recorders: [Option<Recorder>; 2]) -> Result<Self> {
        let BehindLink { config, link_ends, seed, .. } = behind;
        let far = Namespace::new("far")?;
        let terminal = Namespace::new("terminal")?;
        let outside = behind.outside.then(|| Outside::connect(&far)).transpose()?;
        let subnet = outside.as_ref().map_or(Subnet::new(0), Outside::link_subnet);
        let ends = ((&far, "sat0"), (&terminal, "sat0"));
        let link = SatelliteLink::start_recorded(
            ends.0,
            ends.1,
            config,
            link_ends,
            (*seed, Clock::start()),
            MTU,
            recorders,
        )?;
        subnet.assign(&far, "sat0", &terminal, "sat0")?;
        default_route(&far, subnet.right6())?;
        default_route(&terminal, subnet.left4())?;
        if outside.is_none() {
            default_route(&far, subnet.right4())?;
            // Only IPv4 leads outside: better no route than one into nowhere.
            default_route(&terminal, subnet.left6())?;
        }
        for namespace in [&far, &terminal] {
            // Another link in the terminal may have the network of the terminal behind it.
            namespace.sysctl("net.ipv4.ip_forward", "1")?;
            serve_ordinary_users(namespace)?;
        }
        Ok(Self { far, terminal, link, subnet, outside })
    }

    fn start_far(&self, line: &str) -> Result<Child> {
        let mut command = self.far.command("/bin/sh");
        command.args(["-c", line]).stdin(Stdio::null()).stdout(standard_error()?);
        Child::spawn(self.for_user(command))
    }

    fn terminal_command(&self, behind: &BehindLink) -> Result<Command> {
        let mut command = match behind.command.split_first() {
            Some((program, args)) => {
                let mut command = self.terminal.command(program);
                command.args(args);
                command
            }
            None => self.terminal.command(shell::program()),
        };
        shell::prompt(&mut command, &behind.label);
        Ok(self.for_user(command))
    }

    /// The user's own programs get the addresses, but not the capabilities.
    fn for_user(&self, mut command: Command) -> Command {
        if let Some(outside) = &self.outside {
            outside.resolve_names(&mut command);
        }
        drop_capabilities(&mut command);
        let base = self.outside.as_ref().map_or(self.subnet.left4(), Outside::base);
        command
            .env("BENTPIPE_FAR", self.subnet.left4().to_string())
            .env("BENTPIPE_FAR6", self.subnet.left6().to_string())
            .env("BENTPIPE_NEAR", self.subnet.right4().to_string())
            .env("BENTPIPE_NEAR6", self.subnet.right6().to_string())
            .env("BENTPIPE_BASE", base.to_string());
        command
    }

    fn summary(&self) -> Result<String> {
        // What has arrived first: it cannot be more than what was sent.
        let (forward_arrived, reverse_arrived) = self.link.arrived();
        let (forward, reverse) = self.link.counters();
        let (forward_impaired, reverse_impaired) = self.link.impairment_counters();
        let reports = self.link.link_end_reports();
        let unit = if reports[0].arq.is_some() { "frames" } else { "packets" };
        let mut text =
            summary::direction("to the command", unit, &forward, forward_arrived.0, &forward_impaired)
                + &summary::direction(
                    "from the command",
                    unit,
                    &reverse,
                    reverse_arrived.0,
                    &reverse_impaired,
                )
                + &summary::link_ends(&reports);
        let unintended = self.link.unintended_drops()?;
        if unintended > 0 {
            let _ =
                writeln!(text, "link: {unintended} packets were lost because this machine could not keep up");
        }
        Ok(text)
    }
}

/// In its own namespaces an ordinary user may listen on any port and ping.
fn serve_ordinary_users(namespace: &Namespace) -> Result<()> {
    let group = getegid().as_raw();
    namespace.sysctl("net.ipv4.ip_unprivileged_port_start", "0")?;
    namespace.sysctl("net.ipv4.ping_group_range", &format!("{group} {group}"))
}

fn standard_error() -> Result<Stdio> {
    let copy = std::io::stderr().as_fd().try_clone_to_owned();
    Ok(copy.map_err(|source| Error::Spawn { program: "/bin/sh".to_owned(), source })?.into())
}

/// Waits for the command, and hands on the signals that this process gets instead of it. `tick` is called
/// again after the time that it returns, or earlier.
fn wait_for(
    command: &mut Child,
    signals: &HeldSignals,
    tick: &mut dyn FnMut() -> Duration,
) -> Result<ExitStatus> {
    let mut deadline: Option<Instant> = None;
    loop {
        if let Some(status) = command.wait_timeout(Duration::ZERO)? {
            return Ok(status);
        }
        let left =
            deadline.map_or(Duration::from_secs(3600), |at| at.saturating_duration_since(Instant::now()));
        let patience = left.min(tick());
        match signals.next(patience).map_err(|source| Error::Signals { source })? {
            Some(arrival) => {
                if let Some(signal) = to_hand_on(arrival) {
                    command.signal(signal)?;
                }
                if matches!(arrival.signal, libc::SIGTERM | libc::SIGHUP) {
                    deadline.get_or_insert(Instant::now() + GRACE);
                }
            }
            None if deadline.is_some_and(|at| at <= Instant::now()) => return command.kill(),
            None => {}
        }
    }
}

/// A signal from the terminal reaches the command without us: it is in the same foreground group.
fn to_hand_on(arrival: Arrival) -> Option<Signal> {
    match arrival.signal {
        libc::SIGTERM => Some(Signal::TERM),
        libc::SIGHUP => Some(Signal::HUP),
        libc::SIGINT if !arrival.from_terminal => Some(Signal::INT),
        libc::SIGQUIT if !arrival.from_terminal => Some(Signal::QUIT),
        _ => None,
    }
}

/// Ends the far server; says so if it had ended by itself with an error, since then the command had no
/// server.
fn report_far(far: Option<Child>) -> Result<()> {
    let Some(mut far) = far else { return Ok(()) };
    match far.wait_timeout(Duration::ZERO)? {
        Some(status) if !status.success() => eprintln!("link: the far command ended early ({status})"),
        _ => drop(far),
    }
    Ok(())
}

fn exit_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_the_commands_or_tells_the_signal() {
        assert_eq!(exit_code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(exit_code(ExitStatus::from_raw(libc::SIGKILL)), 137);
    }

    #[test]
    fn ctrl_c_of_the_terminal_is_not_sent_a_second_time() {
        let arrival = |signal, from_terminal| to_hand_on(Arrival { signal, from_terminal });
        assert_eq!(arrival(libc::SIGINT, true), None);
        assert_eq!(arrival(libc::SIGINT, false), Some(Signal::INT));
        assert_eq!(arrival(libc::SIGTERM, false), Some(Signal::TERM));
        assert_eq!(arrival(libc::SIGCHLD, false), None);
    }
}
