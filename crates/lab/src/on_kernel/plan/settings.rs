//! The kernel settings of hosts that their endpoints' TCP needs, and what Linux does otherwise.
//!
//! Most settings are of a host, so its endpoints have to agree.

use std::time::Duration;

use bentpipe_sim::Scenario;
use bentpipe_sim::scenario::{FlowSpec, LegSpec, Side};
use bentpipe_tcp::congestion::{Algorithm, Components};
use bentpipe_tcp::{Config, MetricsCache, Recovery, RtoLimits, SynSchedule};

use super::{Host, Plan, last_hop, node_before, node_behind, refused};
use crate::Error;

/// The kernel's bookkeeping is about as large as the data.
const BOOKKEEPING: u64 = 2;
/// And more where segments are smaller, each of which counts as about 2400 bytes: with half the memory the
/// window of 32 segments of 1000 bytes was one of 26.
const SMALL_SEGMENTS: u64 = 2;
/// The kinds of [`Host::schedules`]: SYNs, and the answers to SYNs.
const SYN: usize = 0;
const ANSWER: usize = 1;
/// The bounds of `tcp_rto_max_ms`, the larger of which is the default.
const RTO_MAX: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(120)];
/// The most SYNs that a host can be told to send (`MAX_TCP_SYNCNT`).
const MOST_SYNS: u32 = 127;

/// Whether an endpoint has an option of the handshake.
pub(super) type Has = fn(&Config) -> bool;

/// The options of the handshake with their kernel settings.
pub(super) const OPTIONS: [(&str, Has); 3] = [
    ("net.ipv4.tcp_sack", |config| config.sack),
    ("net.ipv4.tcp_timestamps", |config| config.timestamps),
    ("net.ipv4.tcp_window_scaling", |config| config.window_scaling),
];

impl Plan {
    /// The settings of the hosts at the ends of a leg.
    pub(super) fn add_leg(
        &mut self,
        scenario: &Scenario,
        leg: &LegSpec,
        opened_by: Side,
    ) -> Result<(), Error> {
        let (sends, receives) = (node_before(scenario, leg.path[0]), node_behind(scenario, *last_hop(leg)));
        let (sender, receiver) = (&leg.sender, &leg.receiver);
        for (node, config) in [(sends, sender), (receives, receiver)] {
            for (option, (_, has)) in self.hosts[node].options.iter_mut().zip(OPTIONS) {
                *option |= has(config);
            }
        }
        // A clamp bounds the window of a buffer that does not grow, so that its memory may be ample.
        let ample = if receiver.receive_autotuning.is_none() { SMALL_SEGMENTS } else { 1 };
        let sizes = [
            (receives, receiver.receive_autotuning, receiver.receive_buffer.saturating_mul(ample)),
            (sends, sender.send_autotuning, sender.send_buffer),
        ];
        for (end, (node, first, most)) in sizes.into_iter().enumerate() {
            let [known_first, known_most] = &mut self.hosts[node].buffers[end];
            *known_first = (*known_first).max(first.unwrap_or(most));
            *known_most = (*known_most).max(most);
        }
        let ends = [(sends, sender), (receives, receiver)];
        let [(opens, caller), (answers, callee)] = match opened_by {
            Side::Source => ends,
            Side::Destination => [ends[1], ends[0]],
        };
        for (node, kind, schedule) in [(opens, SYN, caller.syn), (answers, ANSWER, callee.syn_ack)] {
            let known = &mut self.hosts[node].schedules[kind];
            if !known.contains(&schedule) {
                known.push(schedule);
            }
        }
        let (host, name) = (&mut self.hosts[sends], &scenario.nodes[sends]);
        let rto_max = sender.rto.max.clamp(RTO_MAX[0], RTO_MAX[1]);
        host.rto_max = Some(rto_max);
        let mut values = vec![
            ("net.ipv4.tcp_slow_start_after_idle", u8::from(sender.restart_after_idle).to_string()),
            ("net.ipv4.tcp_rto_max_ms", rto_max.as_millis().to_string()),
            ("net.ipv4.tcp_no_metrics_save", u8::from(sender.metrics_cache == MetricsCache::Off).to_string()),
            (
                "net.ipv4.tcp_no_ssthresh_metrics_save",
                u8::from(sender.metrics_cache != MetricsCache::RoundTripAndSsthresh).to_string(),
            ),
        ];
        if sender.recovery == Recovery::Rack {
            let probe = if sender.tail_loss_probe { "3" } else { "0" };
            let forward_rto = if sender.forward_rto { "2" } else { "0" };
            values.push(("net.ipv4.tcp_early_retrans", probe.to_owned()));
            values.push(("net.ipv4.tcp_frto", forward_rto.to_owned()));
        }
        values.extend(sender.retries.map(|retries| ("net.ipv4.tcp_retries2", retries.min(255).to_string())));
        values.into_iter().try_for_each(|(key, value)| host.set(name, key, value))
    }

    /// A leg has the options of the handshake that both ends have, and hosts have each for all their sockets.
    pub(super) fn check_options(&self, scenario: &Scenario, flow: &FlowSpec) -> Result<(), Error> {
        for leg in &flow.legs {
            let ends = [node_before(scenario, leg.path[0]), node_behind(scenario, *last_hop(leg))];
            for (option, (key, has)) in OPTIONS.into_iter().enumerate() {
                let wanted = has(&leg.sender) && has(&leg.receiver);
                let offered = ends.iter().all(|&node| self.hosts[node].options[option]);
                if wanted != offered {
                    let [sends, receives] = ends.map(|node| &scenario.nodes[node]);
                    return Err(refused(format!(
                        "flow {} has no {key} from {sends} to {receives}, and other connections of both have it: \
                         Linux has it for all connections of a host",
                        flow.name
                    )));
                }
            }
        }
        Ok(())
    }

    /// The settings that follow from all endpoints of a host.
    pub(super) fn settle(&mut self) -> Result<(), Error> {
        for host in &mut self.hosts {
            for (option, (key, _)) in host.options.into_iter().zip(OPTIONS) {
                host.set("", key, u8::from(option).to_string())?;
            }
            for (sizes, key) in host.buffers.into_iter().zip(["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"]) {
                if sizes[1] > 0 {
                    let [first, most] =
                        sizes.map(|bytes| (BOOKKEEPING * bytes).clamp(1 << 14, i32::MAX as u64));
                    host.set("", key, format!("4096 {first} {most}"))?;
                }
            }
            if !host.settle_schedules()? {
                self.differences.insert("SYNs are repeated as Linux repeats them".to_owned());
            }
        }
        Ok(())
    }

    /// What Linux does otherwise than the endpoints of this leg.
    pub(super) fn note_differences(&mut self, leg: &LegSpec) {
        let sender = &leg.sender;
        let mut note = |differs: bool, what: &str| {
            if differs {
                self.differences.insert(what.to_owned());
            }
        };
        let sack = sender.sack && leg.receiver.sack;
        note(
            sender.recovery != Recovery::Rack || !sack,
            "loss recovery is Linux' own: RACK with its probes, undo and F-RTO, and without SACK NewReno",
        );
        note(
            sender.recovery == Recovery::Rack && !sender.undo,
            "a reduction of the window that was spurious is taken back",
        );
        note(!sender.proportional_rate_reduction, "the window is reduced proportionally (RFC 9937)");
        note(!sender.limited_transmit, "limited transmit (RFC 3042) cannot be switched off");
        note(
            sender.each_timeout_reduces,
            "the slow-start threshold is lowered at the first timeout of a segment alone (RFC 5681)",
        );
        note(sender.byte_counting_limit.is_some(), "slow start counts every acknowledged segment");
        note(
            sender.rto.initial != RtoLimits::LINUX.initial
                || sender.rto.granularity != RtoLimits::LINUX.granularity,
            "the first timeout is 1 s, and at least 200 ms are added to the round trip",
        );
        note(
            sender.ssthresh.is_some() || sender.srtt.is_some(),
            "a connection's first threshold and round trip are not set: only those of earlier ones are known",
        );
        note(sender.fq_pacing, "only congestion controls pace: the queueing discipline is not fq");
        let cubic = sender.congestion == Algorithm::Cubic;
        note(cubic && !(sender.hystart && sender.linux_cubic), "CUBIC is Linux' own, with HyStart");
        note(leg.receiver.ack_every != 2, "an acknowledgement is sent for two segments at the latest");
        if let Algorithm::Hybla(components) = sender.congestion {
            note(
                ![Components::ALL, Components::PUBLISHED].contains(&components),
                "Hybla has all of its components, or those of the published algorithm",
            );
        }
    }
}

impl Host {
    /// Sets a kernel setting for one of its senders.
    fn set(&mut self, name: &str, key: &'static str, value: String) -> Result<(), Error> {
        match self.settings.get(key) {
            Some((other, _)) if *other != value => Err(refused(format!(
                "the senders at {name} need {key} = {value} and {other}: Linux has it once for a host"
            ))),
            _ => {
                self.settings.insert(key, (value, name.to_owned()));
                Ok(())
            }
        }
    }

    /// Sets the schedules of SYNs and of their answers, where its endpoints agree and Linux can have them;
    /// false if a schedule remains Linux' own.
    fn settle_schedules(&mut self) -> Result<bool, Error> {
        let rto_max = self.rto_max.unwrap_or(RTO_MAX[1]);
        let mut all = true;
        for (kind, wanted) in std::mem::take(&mut self.schedules).into_iter().enumerate() {
            let known = match &wanted[..] {
                [] => continue,
                [one] => schedule_settings(one, kind, rto_max),
                _ => None,
            };
            all &= known.is_some();
            for (key, value) in known.into_iter().flatten() {
                self.set("", key, value.to_string())?;
            }
        }
        Ok(all)
    }
}

/// The settings with which Linux repeats SYNs, or their answers, by exactly this schedule, on a host with
/// this maximum RTO. `None`: it cannot. Its first wait is always a second, and none exceeds the maximum
/// RTO.
fn schedule_settings(
    schedule: &SynSchedule,
    kind: usize,
    rto_max: Duration,
) -> Option<Vec<(&'static str, u32)>> {
    // The last wait follows the last repetition.
    let repetitions = schedule.waits.filter(|waits| *waits <= MOST_SYNS)?.checked_sub(1)?;
    let linux = SynSchedule { first: SynSchedule::LINUX.first, max: rto_max, ..*schedule };
    if (0..=repetitions).any(|n| linux.wait(n) != schedule.wait(n)) {
        return None;
    }
    if kind == ANSWER {
        return (schedule.linear == 0).then(|| vec![("net.ipv4.tcp_synack_retries", repetitions)]);
    }
    let doubling = repetitions.checked_sub(schedule.linear).filter(|doubling| *doubling > 0)?;
    Some(vec![("net.ipv4.tcp_syn_retries", doubling), ("net.ipv4.tcp_syn_linear_timeouts", schedule.linear)])
}
