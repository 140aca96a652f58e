//! Checks whether acknowledgements can fill what a leg sends: a box at a terminal sends over the thin way
//! back.

use std::fs;
use std::time::Duration;

use bentpipe_kernel::host::Check;
use bentpipe_kernel::leg::LegSettings;
use bentpipe_proxy::Config;
use bentpipe_units::{Rate, Span};

/// A leg that sends no faster than this may be a thin way back. Wider ones carry an acknowledgement of 84
/// bytes for each segment of more than 35 Mbit/s the other way.
const THIN: Rate = Rate::mbps(2);
/// How long the kernel should gather duplicate ACKs, which it does for a twentieth of a round trip at most:
/// the sender learns of a loss so much later.
const GATHERED: Duration = Duration::from_millis(20);
/// The most that `net.ipv4.tcp_comp_sack_nr` takes: duplicate ACKs that one stands for.
const MOST_GATHERED: u64 = 255;

/// Checks the legs that are thin.
pub(super) fn checks(config: &Config) -> Vec<Check> {
    let kernel = Gathering::read();
    config.legs.iter().filter_map(|(name, leg)| check(name, &leg.settings(), kernel)).collect()
}

/// How this host's TCP gathers duplicate ACKs.
#[derive(Debug, Clone, Copy)]
struct Gathering {
    delay: Duration,
    count: u64,
}

impl Gathering {
    /// The settings of this network namespace; zero where the kernel has none (before Linux 4.18).
    fn read() -> Self {
        let value = |key: &str| {
            let text = fs::read_to_string(format!("/proc/sys/net/ipv4/{key}")).unwrap_or_default();
            text.trim().parse().unwrap_or(0)
        };
        Self {
            delay: Duration::from_nanos(value("tcp_comp_sack_delay_ns")),
            count: value("tcp_comp_sack_nr"),
        }
    }
}

fn check(name: &str, leg: &LegSettings, kernel: Gathering) -> Option<Check> {
    let rate = leg.rate.filter(|rate| *rate <= THIN)?;
    let name = format!("acknowledgements, leg {name}");
    let wanted = GATHERED.min(leg.rtt / 20);
    let mut fixes = Vec::new();
    if kernel.delay < wanted || kernel.count < MOST_GATHERED {
        fixes.push(format!(
            "sysctl -w net.ipv4.tcp_comp_sack_delay_ns={} net.ipv4.tcp_comp_sack_nr={MOST_GATHERED}",
            wanted.as_nanos()
        ));
    }
    if leg.receive_buffer.is_none() {
        fixes.push(
            "receive_buffer in this leg: eight bandwidth-delay products of what it receives, \
             for example \"6MB\" for 10 Mbit/s at 600 ms"
                .to_owned(),
        );
    }
    if fixes.is_empty() {
        let found =
            format!("thinned: one for the duplicates of {}, none because a buffer grows", Span(wanted));
        return Some(Check::pass(name, found));
    }
    let found = format!(
        "{rate} is thin for them: TCP sends one for each segment while there is a hole, or while a \
                         receive buffer grows"
    );
    Some(Check::warn(name, found, fixes.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: Gathering = Gathering { delay: Duration::from_millis(1), count: 44 };
    const THINNED: Gathering = Gathering { delay: GATHERED, count: MOST_GATHERED };

    fn leg(rate: Option<&str>, rtt_ms: u64) -> LegSettings {
        let rate = rate.map(|rate| rate.parse().unwrap());
        LegSettings { rate, rtt: Duration::from_millis(rtt_ms), ..LegSettings::default() }
    }

    #[test]
    fn only_a_leg_that_sends_slowly_is_checked() {
        assert_eq!(check("sat", &leg(None, 600), DEFAULT), None);
        assert_eq!(check("sat", &leg(Some("10Mbit/s"), 600), DEFAULT), None);
        assert!(check("sat", &leg(Some("2Mbit/s"), 600), DEFAULT).unwrap().warning);
    }

    #[test]
    fn each_setting_is_advised_that_is_missing() {
        let fix = |leg: &LegSettings, kernel| check("sat", leg, kernel).unwrap().fix.unwrap_or_default();
        let thin = leg(Some("200kbit/s"), 600);
        let both = fix(&thin, DEFAULT);
        assert!(
            both.contains("tcp_comp_sack_delay_ns=20000000 ") && both.contains("receive_buffer"),
            "{both}"
        );
        let near = fix(&leg(Some("200kbit/s"), 100), DEFAULT);
        assert!(near.contains("tcp_comp_sack_delay_ns=5000000 "), "a twentieth of a round trip: {near}");
        let buffer = fix(&thin, THINNED);
        assert!(buffer.starts_with("receive_buffer"), "{buffer}");
        let fixed = LegSettings { receive_buffer: Some("6MB".parse().unwrap()), ..thin };
        assert_eq!(fix(&fixed, THINNED), "");
        assert!(fix(&fixed, DEFAULT).starts_with("sysctl"));
    }
}
