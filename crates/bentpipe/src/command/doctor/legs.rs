//! Checks whether a leg can work as configured: over its delay, through its outages, and at its rate.

use std::fs;
use std::time::Duration;

use bentpipe_kernel::host::{self, Check, Step};
use bentpipe_kernel::leg::{Leg, LegSettings};
use bentpipe_kernel::sockopt::RTO_MAX_RANGE;
use bentpipe_kernel::timers::{Timers, give_up_after, syn_retries};
use bentpipe_proxy::Config;
use bentpipe_radius::{Catalogue, Path, handshake};
use bentpipe_units::Span;
use bentpipe_units::human::span;

/// RFC 6298 §2.1.
const INITIAL_RTO: Duration = Duration::from_secs(1);
/// The shortest timeout of an established connection, `TCP_RTO_MIN`.
const LEAST_RTO: Duration = Duration::from_millis(200);
/// The most retries that `net.ipv4.tcp_syn_retries` takes.
const MOST_RETRIES: u32 = 127;
/// The longest `TCP_USER_TIMEOUT`, a signed number of milliseconds.
const LONGEST_USER_TIMEOUT: Duration = Duration::from_millis(i32::MAX as u64);

/// Checks every leg.
pub(super) fn checks(config: &Config) -> Vec<Check> {
    let kernel = KernelTcp::read();
    let catalogue = Catalogue::embedded();
    let satellites = config.legs.iter().flat_map(|(name, leg)| {
        let settings = leg.settings();
        let timers = Leg::prepare(name, &settings).timers();
        let mut checks = vec![
            set_up(name, &settings, timers, kernel),
            outages(name, &settings, timers, kernel),
            radius(name, &settings, &catalogue),
        ];
        checks.extend(resumption(name, &settings, host::has_f_rto()));
        checks.extend(pacing_cap(name, &settings));
        checks
    });
    let ground = config.terrestrial.settings();
    let timers = Leg::prepare("terrestrial", &ground).timers();
    satellites.chain([outages("terrestrial", &ground, timers, kernel)]).collect()
}

/// The timers of this host's TCP where no socket option changes them.
#[derive(Debug, Clone, Copy)]
struct KernelTcp {
    syn_retries: u32,
    syn_linear_timeouts: u32,
    synack_retries: u32,
    retries2: u32,
}

impl KernelTcp {
    /// The settings of this network namespace, or the defaults where they cannot be read.
    fn read() -> Self {
        let value = |key: &str, default| {
            let text = fs::read_to_string(format!("/proc/sys/net/ipv4/{key}")).unwrap_or_default();
            text.trim().parse().unwrap_or(default)
        };
        Self {
            syn_retries: value("tcp_syn_retries", 6),
            // Absent before Linux 6.5, where the doubling begins at once.
            syn_linear_timeouts: value("tcp_syn_linear_timeouts", 0),
            synack_retries: value("tcp_synack_retries", 5),
            retries2: value("tcp_retries2", 15),
        }
    }

    /// How long it tries established connections.
    fn gives_up_after(self, least_rto: Duration, ceiling: Duration) -> Duration {
        give_up_after(least_rto, ceiling, self.retries2)
    }

    /// How far its handshake reaches, one way, to a host with the same settings, if a leg lowers the ceiling
    /// of the timeout.
    fn handshake(self, rto_max: Option<Duration>) -> handshake::HandshakeReach {
        let retries = rto_max.map_or(self.syn_retries, syn_retries);
        let linear = std::iter::repeat_n(INITIAL_RTO, self.syn_linear_timeouts as usize);
        let syn: Vec<Duration> = linear.chain(waits(retries, rto_max)).collect();
        // A listener's ceiling does not hold for its SYN-ACKs (measured, Linux 6.18).
        let syn_ack: Vec<Duration> = waits(self.synack_retries, None).collect();
        handshake::reach(&syn, &syn_ack)
    }

    /// The same kernel with as many retries of both as the handshake needs to reach that far.
    fn with_retries_for(self, delay: Duration) -> Option<Self> {
        let with = |retries| Self { syn_retries: retries, synack_retries: retries, ..self };
        (1..=MOST_RETRIES).map(with).find(|tcp| tcp.handshake(None).sure >= delay)
    }
}

/// The waits of a message that is repeated `retries` times, doubled up to the ceiling.
fn waits(retries: u32, ceiling: Option<Duration>) -> impl Iterator<Item = Duration> {
    let ceiling = ceiling.unwrap_or(*RTO_MAX_RANGE.end());
    let doubled = move |wait: &Duration| Some(wait.saturating_mul(2).min(ceiling));
    std::iter::successors(Some(INITIAL_RTO.min(ceiling)), doubled).take(retries as usize + 1)
}

/// Whether a connection can be opened over the leg at all.
fn set_up(name: &str, settings: &LegSettings, timers: Timers, kernel: KernelTcp) -> Check {
    let delay = settings.rtt / 2;
    let reach = kernel.handshake(timers.rto_max);
    let luck = if reach.perhaps > reach.sure {
        format!(" ({} with luck)", Span(reach.perhaps))
    } else {
        String::new()
    };
    let found = format!(
        "TCP's handshake reaches {}{luck} one way; the leg's delay is {}",
        Span(reach.sure),
        Span(delay)
    );
    let name = format!("connecting, leg {name}");
    if delay <= reach.sure {
        return Check::pass(name, found);
    }
    let retries = kernel.with_retries_for(delay).map(|tcp| tcp.syn_retries);
    let sysctl = retries.map(|retries| {
        format!(
            "sysctl -w net.ipv4.tcp_syn_retries={retries} net.ipv4.tcp_synack_retries={retries}, at both ends"
        )
    });
    let fix = sysctl.unwrap_or_else(|| "no setting of TCP reaches that far: store and forward does".into());
    // The leg sets the number of its SYNs by itself where it has restart_within, and that is for the operator
    // to change.
    let (first, retries) = match timers.rto_max {
        Some(_) => ("leave restart_within out, and ", None),
        None => ("", retries),
    };
    let step = |key: &str, retries| Step::sysctl(format!("net.ipv4.{key}"), retries);
    let steps =
        retries.map(|retries| ["tcp_syn_retries", "tcp_synack_retries"].map(|key| step(key, retries)));
    Check {
        steps: steps.into_iter().flatten().collect(),
        ..Check::fail(name, found, format!("{first}{fix}"))
    }
}

/// Checks whether the leg's own timers implement `restart_within` and `survive_outage`.
fn outages(name: &str, settings: &LegSettings, timers: Timers, kernel: KernelTcp) -> Check {
    let name = format!("outages, leg {name}");
    if let (Some(wanted), Some(ceiling)) = (settings.restart_within, timers.rto_max)
        && ceiling > wanted
    {
        let found = format!("restart_within = \"{}\" is below what its round trip allows", Span(wanted));
        return Check::fail(
            name,
            found,
            format!("restart_within = \"{}\", or congestion = \"hybla\"", Span(ceiling)),
        );
    }
    let ceiling = timers.rto_max.unwrap_or(*RTO_MAX_RANGE.end());
    let alone = kernel.gives_up_after(LEAST_RTO, ceiling);
    let default = kernel.gives_up_after(LEAST_RTO, *RTO_MAX_RANGE.end());
    match (settings.survive_outage, timers.user_timeout) {
        (Some(outage), Some(limit)) if limit > LONGEST_USER_TIMEOUT => Check::fail(
            name,
            format!("survive_outage = \"{}\" is longer than TCP can wait", Span(outage)),
            format!("survive_outage = \"{}h\"", (LONGEST_USER_TIMEOUT - ceiling * 2).as_secs() / 3600),
        ),
        (Some(outage), Some(limit)) => Check::pass(
            name,
            format!(
                "split connections survive {} of outage (they give up after {}), unsplit ones {}",
                about(outage),
                about(limit),
                about(default)
            ),
        ),
        _ if alone < default => Check::fail(
            name,
            format!("gives up after {}: restart_within alone makes TCP less patient", about(alone)),
            "survive_outage = \"25m\", or as long as your outages are",
        ),
        _ => Check::pass(name, format!("gives up after {}, as this kernel does by itself", about(default))),
    }
}

/// How soon data flow again that an outage has destroyed. F-RTO is a setting of the whole host, and so for its
/// operator to change.
fn resumption(name: &str, settings: &LegSettings, has_f_rto: bool) -> Option<Check> {
    settings.restart_within?;
    let name = format!("after outages, leg {name}");
    Some(match has_f_rto {
        true => Check::warn(
            name,
            "net.ipv4.tcp_frto is on: TCP fills holes two round trips after the link's return",
            "sysctl -w net.ipv4.tcp_frto=0, for one round trip",
        ),
        false => Check::pass(name, "TCP fills holes one round trip after the link's return"),
    })
}

fn about(time: Duration) -> String {
    span(time.as_secs_f64())
}

/// Lists the protocols with timers of their own that expire at the leg's delay or in its outages. This is
/// advice only: this host neither knows which protocols use the leg nor sets their timers.
fn radius(name: &str, settings: &LegSettings, catalogue: &Catalogue) -> Check {
    let outage = settings.survive_outage.unwrap_or_default();
    let path = Path { delay: settings.rtt / 2, outage };
    let beyond: Vec<&str> = catalogue
        .protocols()
        .iter()
        .filter(|protocol| !protocol.store_and_forward)
        .filter(|protocol| {
            catalogue.verdict(protocol, path).needs.iter().any(|need| need.protocol == protocol.name)
        })
        .map(|protocol| protocol.name.as_str())
        .collect();
    let name = format!("protocol radius, leg {name}");
    let (mut what, mut arguments) =
        (format!("{} one way", Span(path.delay)), format!("--delay {}", Span(path.delay)));
    if !outage.is_zero() {
        what += &format!(", outages of {}", Span(outage));
        arguments += &format!(" --outage {}", Span(outage));
    }
    if beyond.is_empty() {
        return Check::pass(name, format!("{what}: all known protocols reach that far"));
    }
    Check {
        fix: cfg!(feature = "laboratory")
            .then(|| format!("bentpipe radius {arguments} lists what their ends would have to set")),
        ..Check::pass(name, format!("{what}: end to end these give up: {}", beyond.join("; ")))
    }
}

/// A cap above the rate has no effect, so one of the two numbers must be wrong.
fn pacing_cap(name: &str, settings: &LegSettings) -> Option<Check> {
    let (cap, rate) = (settings.pacing_cap?, settings.rate?);
    let name = format!("pacing cap, leg {name}");
    let found = format!("{cap} for each connection, of {rate}");
    Some(if cap <= rate {
        Check::pass(name, found)
    } else {
        Check::fail(name, found, format!("pacing_cap = \"{rate}\" at the most, or leave it out"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULTS: KernelTcp =
        KernelTcp { syn_retries: 6, syn_linear_timeouts: 4, synack_retries: 5, retries2: 15 };

    fn leg(rtt_s: u64) -> LegSettings {
        LegSettings { rtt: Duration::from_secs(rtt_s), ..LegSettings::default() }
    }

    #[test]
    fn the_handshake_of_a_default_kernel_reaches_as_far_as_the_catalogue_says() {
        let catalogue = Catalogue::embedded();
        let linux = catalogue.reach(catalogue.protocol("TCP, Linux").unwrap());
        let reach = DEFAULTS.handshake(None);
        assert_eq!((Some(reach.sure), Some(reach.perhaps)), (linux.limit, linux.perhaps));
    }

    #[test]
    fn the_advised_retries_reach_as_far_as_the_leg() {
        let check = set_up("mars", &leg(960), Timers::default(), DEFAULTS);
        assert!(!check.ok);
        let fix = check.fix.unwrap();
        let retries = DEFAULTS.with_retries_for(Duration::from_secs(480)).unwrap();
        assert!(fix.contains(&format!("tcp_syn_retries={} ", retries.syn_retries)), "{fix}");
        assert!(set_up("mars", &leg(960), Timers::default(), retries).ok);
    }

    #[test]
    fn only_a_leg_that_restarts_soon_is_told_of_f_rto() {
        let patient = LegSettings { restart_within: Some(Duration::from_secs(1)), ..leg(1) };
        assert_eq!(resumption("geo", &leg(1), true), None);
        let [with, without] = [true, false].map(|has| resumption("geo", &patient, has).unwrap());
        assert!(with.ok && with.warning && with.fix.unwrap().contains("tcp_frto=0"));
        assert!(without.ok && !without.warning);
    }

    #[test]
    fn a_lower_ceiling_leaves_the_handshake_a_reach_beyond_any_satellite() {
        let timers = Timers { rto_max: Some(Duration::from_secs(1)), ..Timers::default() };
        assert!(set_up("geo", &leg(3), timers, DEFAULTS).ok);
    }
}
