//! The legs of daemons: their tables in a configuration.

use std::fmt::Write as _;
use std::time::Duration;

use bentpipe_kernel::congestion;
use bentpipe_link::agent::xcp::control::IDLE_OFFER;
use bentpipe_link::agent::xcp::{Variant, XcpConfig};
use bentpipe_link::explicit::{CrossTrafficAqm, RateAllocatorConfig};
use bentpipe_sim::Scenario;
use bentpipe_sim::scenario::LegSpec;
use bentpipe_tcp::Config;
use bentpipe_tcp::congestion::{Algorithm, Components, XcpSender};
use bentpipe_units::{Rate, Span};

use super::protected::ProtectPlan;
use super::{last_hop, refused, round_trip};
use crate::Error;

/// A leg of a daemon.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct LegPlan {
    /// Flows are sent on it; others only arrive.
    pub(super) sends: bool,
    pub(super) congestion: Option<String>,
    pub(super) rate: Option<Rate>,
    pub(super) rtt: Duration,
    pub(super) cross_traffic: Option<f64>,
    pub(super) cross_traffic_aqm: Option<&'static str>,
    pub(super) send_buffer: Option<u64>,
    pub(super) receive_buffer: Option<u64>,
    /// It carries frames.
    pub(super) protect: Option<ProtectPlan>,
}

impl LegPlan {
    /// What the daemon sends on a leg.
    pub(super) fn of_sender(scenario: &Scenario, leg: &LegSpec) -> Result<Self, Error> {
        let hop = leg.path[0];
        let link = &scenario.links[hop.link];
        let direction = if hop.forward { &link.config.forward } else { &link.config.reverse };
        let congestion = leg.sender.congestion;
        let mut plan = Self {
            sends: true,
            congestion: Some(kernel_name(congestion)),
            rate: direction.rate,
            rtt: round_trip(scenario, leg),
            send_buffer: fixed(leg.sender.send_autotuning, leg.sender.send_buffer),
            ..Self::default()
        };
        if let Algorithm::Explicit { weight } = congestion {
            if weight.get() != 1 {
                return Err(refused("a flow with explicit rates has a weight other than 1".into()));
            }
            let shared = link.shared[usize::from(!hop.forward)];
            let RateAllocatorConfig { capacity, rtt, cross_traffic, aqm } = shared
                .ok_or_else(|| refused(format!("nothing allocates the rates of link {}", link.name)))?;
            (plan.rate, plan.rtt, plan.cross_traffic) = (capacity, rtt, Some(cross_traffic.get()));
            plan.cross_traffic_aqm = Some(match aqm {
                CrossTrafficAqm::Mark => "mark",
                CrossTrafficAqm::Drop => "drop",
                CrossTrafficAqm::Off => "off",
            });
        }
        Ok(plan)
    }

    /// What the daemon needs where a leg arrives. XCP's receiver returns the feedback, so it must speak XCP,
    /// too.
    pub(super) fn of_receiver(scenario: &Scenario, leg: &LegSpec) -> Self {
        let plan = Self {
            rtt: round_trip(scenario, leg),
            receive_buffer: fixed(leg.receiver.receive_autotuning, memory_of_window(&leg.receiver)),
            ..Self::default()
        };
        if !leg.sender.congestion.wants_feedback() {
            return plan;
        }
        let hop = last_hop(leg);
        let config = &scenario.links[hop.link].config;
        let back = if hop.forward { &config.reverse } else { &config.forward };
        Self { congestion: Some(kernel_name(leg.sender.congestion)), rate: back.rate, ..plan }
    }

    /// The router that the daemon has in front of the link, if any.
    pub(super) fn xcp_router(&self) -> Option<XcpConfig> {
        let variant = match self.congestion.as_deref()? {
            "xcp" => Variant::Xcp,
            "p-xcp" => Variant::PXcp,
            _ => return None,
        };
        Some(XcpConfig { variant, idle_offer: IDLE_OFFER, ..XcpConfig::with_capacity(self.rate?) })
    }

    /// Both as one; `None` if they contradict each other.
    pub(super) fn merged(&self, other: Self) -> Option<Self> {
        fn one<T: PartialEq + Clone>(mine: &Option<T>, other: &Option<T>) -> Option<Option<T>> {
            match (mine, other) {
                (Some(mine), Some(other)) if mine != other => None,
                (mine, other) => Some(mine.clone().or_else(|| other.clone())),
            }
        }
        Some(Self {
            sends: self.sends || other.sends,
            congestion: one(&self.congestion, &other.congestion)?,
            rate: one(&self.rate, &other.rate)?,
            rtt: self.rtt.max(other.rtt),
            cross_traffic: one(&self.cross_traffic, &other.cross_traffic)?,
            cross_traffic_aqm: one(&self.cross_traffic_aqm, &other.cross_traffic_aqm)?,
            send_buffer: self.send_buffer.max(other.send_buffer),
            receive_buffer: self.receive_buffer.max(other.receive_buffer),
            protect: one(&self.protect, &other.protect)?,
        })
    }

    pub(super) fn text(&self, interface: &str) -> String {
        // A leg that only receives has no need of rates; one that carries frames is given its rate.
        let otherwise = if self.protect.is_some() { congestion::EXPLICIT } else { "cubic" };
        let congestion = self.congestion.as_deref().unwrap_or(otherwise);
        let mut text = format!(
            "[legs.{interface}]\ninterface = \"{interface}\"\ncongestion = \"{congestion}\"\nrtt = \"{}\"\n",
            Span(self.rtt.max(Duration::from_millis(1)))
        );
        let keys = [
            ("rate", self.rate.map(|rate| rate.to_string())),
            ("cross_traffic", self.cross_traffic.map(|share| share.to_string())),
            ("cross_traffic_aqm", self.cross_traffic_aqm.map(str::to_owned)),
            ("send_buffer", self.send_buffer.map(|bytes| format!("{bytes}B"))),
            ("receive_buffer", self.receive_buffer.map(|bytes| format!("{bytes}B"))),
        ];
        for (key, value) in keys {
            if let Some(value) = value {
                // Writing to a string does not fail.
                let _ = writeln!(text, "{key} = \"{value}\"");
            }
        }
        text
    }
}

/// The memory that a segment of up to this length takes in a receive buffer, bytes (measured: with 64,000 and
/// 140,000 bytes of memory 14 and 32 segments of 1000 bytes were taken).
const SEGMENT_MEMORY: u64 = 4352;
/// Bytes of the timestamps option.
const TIMESTAMPS: u64 = 12;

/// The `receive_buffer` of a daemon's leg with which its window is that of an endpoint. The kernel gives a
/// buffer twice as much memory as it is told, and a window the part of it that is payload in a full segment.
/// With less the window would be smaller, and a sender that fills the first one, while the daemon connects to
/// the other side and reads nothing, would have its last segments dropped.
fn memory_of_window(receiver: &Config) -> u64 {
    let taken = if receiver.timestamps { TIMESTAMPS } else { 0 };
    let payload = u64::from(receiver.mss).saturating_sub(taken).max(1);
    let window = receiver.receive_buffer;
    window.max(window.saturating_mul(SEGMENT_MEMORY) / (2 * payload))
}

/// The size of a buffer that does not grow by itself.
fn fixed(autotuning: Option<u64>, bytes: u64) -> Option<u64> {
    autotuning.is_none().then_some(bytes)
}

/// The name of a congestion control in the configuration of a leg and, but for those by eBPF, in the kernel.
pub(super) fn kernel_name(algorithm: Algorithm) -> String {
    match algorithm {
        Algorithm::NewReno => "reno",
        Algorithm::Cubic => "cubic",
        Algorithm::Bbr => "bbr",
        Algorithm::Bbr3 => "bbr3",
        Algorithm::Hybla(Components::PUBLISHED) => congestion::HYBLA_PUBLISHED,
        Algorithm::Hybla(_) => "hybla",
        Algorithm::Xcp(XcpSender::Xcp) => "xcp",
        Algorithm::Xcp(XcpSender::PXcp) => "p-xcp",
        Algorithm::Explicit { .. } => "explicit",
        Algorithm::Custom(_) => "custom",
    }
    .to_owned()
}
