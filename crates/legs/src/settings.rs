//! `[legs.NAME]` and `[terrestrial]`: the settings of a leg.

use std::time::Duration;

use bentpipe_kernel::congestion::EXPLICIT;
use bentpipe_kernel::leg::LegSettings;
use bentpipe_link::explicit::RateAllocatorConfig;
use bentpipe_units::{ByteCount, Rate, Span};
use serde::Deserialize;

use crate::protect::ProtectSettings;
use crate::values::{Aqm, Congestion, Interface, Keepalive, Share};

/// The round-trip time from which the timers of the terrestrial leg are derived.
const TERRESTRIAL_RTT: Duration = Duration::from_millis(200);

/// `[legs.NAME]`: an interface that leads to a satellite.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SatelliteLeg {
    /// The network interface.
    pub interface: Interface,
    /// The congestion control of the sockets that face it; see [`congestion`](Self::congestion) for the
    /// default.
    pub congestion: Option<Congestion>,
    /// The most that is sent over the link, with the headers of IP and TCP, and where the estimate of its
    /// capacity begins. Without it the capacity is found.
    pub rate: Option<Rate>,
    /// The round-trip time of the empty link.
    #[serde(default = "geostationary")]
    pub rtt: Span,
    /// The part of the link that traffic without explicit rates may take under load: UDP, QUIC, and what is
    /// not split.
    #[serde(default)]
    pub cross_traffic: Share,
    /// What becomes of packets of such traffic when it sends more.
    #[serde(default)]
    pub cross_traffic_aqm: Aqm,
    /// The highest rate of each connection, without headers.
    pub pacing_cap: Option<Rate>,
    /// Whether SYNs may carry data (RFC 7413).
    #[serde(default)]
    pub fast_open: bool,
    /// Whether another bentpipe is at the leg's other end, with the same settings of the leg.
    #[serde(default)]
    pub far_box: bool,
    /// Data is retransmitted within this time after an outage.
    pub restart_within: Option<Span>,
    /// Connections survive an outage of this length.
    pub survive_outage: Option<Span>,
    /// When idle connections are probed; by default after five minutes, or after `survive_outage` if that is
    /// less.
    pub keepalive: Option<Keepalive>,
    /// Send buffer; the kernel's autotuning by default.
    pub send_buffer: Option<ByteCount>,
    /// Receive buffer; the kernel's autotuning by default.
    pub receive_buffer: Option<ByteCount>,
    /// The box at the leg's other end to which packets go that cannot be split, in frames.
    pub protect: Option<ProtectSettings>,
}

/// `[terrestrial]`: the sockets that face every other interface.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TerrestrialLeg {
    /// The congestion control; the kernel's default by default.
    pub congestion: Option<Congestion>,
    /// The highest rate of each connection, without headers.
    pub pacing_cap: Option<Rate>,
    /// Data is retransmitted within this time after an outage.
    pub restart_within: Option<Span>,
    /// Connections survive an outage of this length.
    pub survive_outage: Option<Span>,
    /// When idle connections are probed; by default as for a satellite leg.
    pub keepalive: Option<Keepalive>,
    /// Send buffer; the kernel's autotuning by default.
    pub send_buffer: Option<ByteCount>,
    /// Receive buffer; the kernel's autotuning by default.
    pub receive_buffer: Option<ByteCount>,
}

impl SatelliteLeg {
    /// The congestion control of the sockets that face this leg; `explicit` by default.
    pub fn congestion(&self) -> &str {
        self.congestion.as_ref().map_or(EXPLICIT, Congestion::as_str)
    }

    /// The settings for the kernel crate.
    pub fn settings(&self) -> LegSettings {
        LegSettings {
            congestion: Some(self.congestion().to_owned()),
            rate: self.rate,
            rtt: self.rtt.get(),
            pacing_cap: self.pacing_cap,
            fast_open: self.fast_open,
            far_box: self.far_box,
            restart_within: self.restart_within.map(Span::get),
            survive_outage: self.survive_outage.map(Span::get),
            keepalive: Keepalive::of(self.keepalive),
            send_buffer: self.send_buffer,
            receive_buffer: self.receive_buffer,
        }
    }

    /// The initial configuration of the leg's rate allocator.
    pub fn allocator_config(&self) -> RateAllocatorConfig {
        RateAllocatorConfig {
            capacity: self.rate,
            rtt: self.rtt.get(),
            cross_traffic: self.cross_traffic.get(),
            aqm: self.cross_traffic_aqm.get(),
        }
    }
}

impl TerrestrialLeg {
    /// The settings for the kernel crate.
    pub fn settings(&self) -> LegSettings {
        LegSettings {
            congestion: self.congestion.as_ref().map(|congestion| congestion.as_str().to_owned()),
            rate: None,
            rtt: TERRESTRIAL_RTT,
            pacing_cap: self.pacing_cap,
            fast_open: false,
            far_box: false,
            restart_within: self.restart_within.map(Span::get),
            survive_outage: self.survive_outage.map(Span::get),
            keepalive: Keepalive::of(self.keepalive),
            send_buffer: self.send_buffer,
            receive_buffer: self.receive_buffer,
        }
    }
}

fn geostationary() -> Span {
    Span(Duration::from_millis(600))
}

#[cfg(test)]
mod tests {
    use bentpipe_kernel::timers;
    use bentpipe_link::explicit::CrossTrafficAqm;

    use super::*;

    fn leg(text: &str) -> Result<SatelliteLeg, String> {
        toml::from_str(&format!("interface = \"sat0\"\n{text}")).map_err(|error| error.to_string())
    }

    #[test]
    fn the_default_is_explicit_rates_whether_the_rate_is_known_or_not() {
        for (text, congestion) in [
            ("", "explicit"),
            ("rate = \"10Mbit/s\"", "explicit"),
            ("rate = \"10Mbit/s\"\ncongestion = \"bbr\"", "bbr"),
            ("congestion = \"hybla\"", "hybla"),
        ] {
            assert_eq!(leg(text).unwrap().congestion(), congestion, "{text}");
        }
    }

    #[test]
    fn the_rate_allocator_gets_the_rate_and_the_round_trip_of_the_leg() {
        let known = leg("rate = \"2Mbit/s\"\nrtt = \"40ms\"").unwrap().allocator_config();
        assert_eq!((known.capacity, known.rtt), (Some(Rate::mbps(2)), Duration::from_millis(40)));
        let unknown = leg("").unwrap().allocator_config();
        assert_eq!((unknown.capacity, unknown.rtt), (None, Duration::from_millis(600)));
    }

    #[test]
    fn what_is_not_split_has_half_of_the_leg_unless_another_part_is_configured() {
        let share = |text: &str| leg(text).map(|leg| leg.allocator_config().cross_traffic.get());
        for (text, part) in [("", 0.5), ("cross_traffic = \"20%\"", 0.2), ("cross_traffic = \"1\"", 1.0)] {
            assert_eq!(share(text), Ok(part), "{text}");
        }
        for text in ["101%", "-1%", "half", "2"] {
            let error = share(&format!("cross_traffic = \"{text}\"")).unwrap_err();
            assert!(error.contains("such as \"50%\""), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_not_split_is_marked_unless_another_verdict_is_configured() {
        let aqm = |text: &str| leg(text).map(|leg| leg.allocator_config().aqm);
        for (text, verdict) in [
            ("", CrossTrafficAqm::Mark),
            ("cross_traffic_aqm = \"mark\"", CrossTrafficAqm::Mark),
            ("cross_traffic_aqm = \"drop\"", CrossTrafficAqm::Drop),
            ("cross_traffic_aqm = \"off\"", CrossTrafficAqm::Off),
        ] {
            assert_eq!(aqm(text), Ok(verdict), "{text}");
        }
        let error = aqm("cross_traffic_aqm = \"codel\"").unwrap_err();
        assert!(error.contains("\"mark\", \"drop\" or \"off\""), "{error}");
    }

    #[test]
    fn idle_connections_are_probed_unless_that_is_switched_off() {
        let keepalive = |text: &str| leg(text).map(|leg| leg.settings().keepalive);
        assert_eq!(keepalive(""), Ok(timers::Keepalive::Derived));
        assert_eq!(keepalive("keepalive = \"off\""), Ok(timers::Keepalive::Off));
        let four_minutes = timers::Keepalive::After(Duration::from_secs(240));
        assert_eq!(keepalive("keepalive = \"4m\""), Ok(four_minutes));
        assert_eq!(TerrestrialLeg::default().settings().keepalive, timers::Keepalive::Derived);
        for text in ["5", "0s", "10h", "on", "999ms"] {
            let error = keepalive(&format!("keepalive = \"{text}\"")).unwrap_err();
            assert!(error.contains("\"5m\"") && error.contains("\"off\""), "{text}: {error}");
        }
    }

    #[test]
    fn a_name_with_characters_that_a_rule_cannot_hold_is_refused() {
        for name in ["", ".", "..", "a b", "\\\" accept", "0123456789abcdef"] {
            let text = format!("congestion = \"{name}\"");
            assert!(leg(&text).unwrap_err().contains("is not the name of a congestion control"), "{name}");
            let text = format!("interface = \"{name}\"");
            let error = toml::from_str::<SatelliteLeg>(&text).unwrap_err().to_string();
            assert!(error.contains("is not an interface name"), "{name}: {error}");
        }
        assert!(leg("speed = 3").unwrap_err().contains("unknown field `speed`"));
    }
}
