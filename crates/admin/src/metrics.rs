//! The status as metrics for Prometheus.
//!
//! What the daemon counts is declared in `bentpipe_proxy::Stats`, the rest here. Units are base units:
//! seconds, bytes, bytes per second, ratios. A metric whose value is unknown, as a round-trip time before the
//! first measurement, has no sample.

use std::fs;

use bentpipe_kernel::limits::descriptor_limit;
use bentpipe_metrics::{Exposition, Metric};
use bentpipe_proxy::telemetry::{ForwardedBytes, LegReport, RuleReport, Use, VerdictReport};

use crate::Status;

/// The beginning of each metric's name.
const PREFIX: &str = "bentpipe";
/// The status has bit/s.
const BITS: f64 = 8.0;

const BUILD: &[Metric<Status>] =
    &[Metric::gauge("build_info", "none", "The program; always 1.", |_| Some(1.0))];

const DAEMON: &[Metric<Status>] = &[
    Metric::gauge("uptime_seconds", "seconds", "Time since the daemon started, upgrades included.", |s| {
        Some(s.uptime_s)
    }),
    Metric::counter("upgrades_total", "upgrades", "Times that a new process took over.", |s| {
        Some(s.upgrades as f64)
    }),
    Metric::gauge("ready", "0 or 1", "Whether every thread is alive and new connections are split.", |s| {
        Some(f64::from(u8::from(s.ready)))
    }),
    Metric::gauge("draining", "0 or 1", "Whether new connections pass because the daemon is to end.", |s| {
        Some(f64::from(u8::from(s.draining.is_some())))
    }),
    Metric::gauge("bypass", "0 or 1", "Whether new connections pass because the bypass is on.", |s| {
        Some(f64::from(u8::from(s.bypass)))
    }),
    Metric::gauge("drain_left_seconds", "seconds", "Time until the remaining flows are reset.", |s| {
        s.draining?.left_s
    }),
    Metric::gauge(
        "gain_ratio",
        "ratio",
        "Estimated time end to end of what was sent into satellite legs in 30 s, over the time that it took.",
        |s| s.gain.ratio,
    ),
    Metric::gauge(
        "gain_actual_bytes_per_second",
        "bytes per second",
        "Payload rate into satellite legs in the estimate of the gain.",
        |s| Some(s.gain.actual_bps / BITS),
    ),
    Metric::gauge(
        "gain_end_to_end_bytes_per_second",
        "bytes per second",
        "The same end to end, estimated (RFC 6928, RFC 9438 5.1).",
        |s| Some(s.gain.end_to_end_bps / BITS),
    ),
    Metric::gauge(
        "gain_start_up_ratio",
        "ratio",
        "Share of the estimated time end to end that would be slow start.",
        |s| s.gain.start_up,
    ),
    Metric::gauge(
        "connection_rate_per_client_limit",
        "connections per second",
        "Configured limit of new connections per second and client.",
        |s| Some(s.limits.connection_rate_per_client? as f64),
    ),
];

const VERDICTS: &[Metric<VerdictReport>] = &[Metric::counter(
    "connections_total",
    "connections",
    "New connections over satellite legs by verdict, as SYNs; rejected ones are datagrams.",
    |v| Some(v.count as f64),
)];

const RULES: &[Metric<RuleReport>] = &[
    Metric::gauge("rule_info", "none", "A rule; its value is its place in the configuration.", |r| {
        Some(r.place as f64)
    }),
    Metric::counter(
        "rule_matched_total",
        "connections",
        "What a rule has matched; datagrams if it rejects.",
        |r| Some(r.matched as f64),
    ),
];

/// Of connections.
const LIMITS: &[Metric<Use>] = &[
    Metric::gauge("limit_used", "connections", "What is used of a limit, now or in the last second.", |l| {
        Some(l.used as f64)
    }),
    Metric::gauge("limit", "connections", "A configured limit.", |l| Some(l.most? as f64)),
];

const MEMORY_LIMIT: &[Metric<Use>] = &[
    Metric::gauge("limit_used_bytes", "bytes", "Memory in buffers, of the limit.", |l| Some(l.used as f64)),
    Metric::gauge("limit_bytes", "bytes", "Limit of memory in buffers.", |l| Some(l.most? as f64)),
];

const FORWARDED: &[Metric<[u64; 2]>] = &[
    Metric::counter(
        "leg_forwarded_sent_bytes_total",
        "bytes",
        "IP bytes forwarded unsplit into the leg.",
        |[into, _]| Some(*into as f64),
    ),
    Metric::counter(
        "leg_forwarded_received_bytes_total",
        "bytes",
        "IP bytes forwarded unsplit from the leg.",
        |[_, from]| Some(*from as f64),
    ),
];

const LEG_INFO: &[Metric<LegReport>] =
    &[Metric::gauge("leg_info", "none", "A leg as configured; always 1.", |_| Some(1.0))];

const LEGS: &[Metric<LegReport>] = &[
    Metric::gauge("leg_rate_bytes_per_second", "bytes per second", "Configured rate of the leg.", |l| {
        Some(l.rate_bps? as f64 / BITS)
    }),
    Metric::gauge("leg_flows", "flows", "Connections with an end on the leg.", |l| Some(l.flows as f64)),
    Metric::gauge("leg_flows_active", "flows", "Connections that moved data in the last second.", |l| {
        Some(l.active as f64)
    }),
    Metric::gauge(
        "leg_sent_bytes_per_second",
        "bytes per second",
        "Rate of payload acknowledged by the far ends, over the last second.",
        |l| Some(l.sent_bps / BITS),
    ),
    Metric::gauge(
        "leg_received_bytes_per_second",
        "bytes per second",
        "Rate of received payload, over the last second.",
        |l| Some(l.received_bps / BITS),
    ),
    Metric::counter("leg_sent_bytes_total", "bytes", "Payload acknowledged by the far ends.", |l| {
        Some(l.sent_bytes as f64)
    }),
    Metric::counter("leg_received_bytes_total", "bytes", "Received payload.", |l| {
        Some(l.received_bytes as f64)
    }),
    Metric::counter("leg_segments_total", "segments", "Sent data segments, retransmissions included.", |l| {
        Some(l.segments as f64)
    }),
    Metric::counter("leg_retransmissions_total", "segments", "Retransmitted segments.", |l| {
        Some(l.retransmissions as f64)
    }),
    Metric::counter("leg_timeouts_total", "expiries", "Expiries of retransmission timers.", |l| {
        Some(l.timeouts as f64)
    }),
    Metric::gauge(
        "leg_loss_ratio",
        "ratio",
        "Share of retransmitted segments in the last ten seconds.",
        |l| l.loss,
    ),
    Metric::gauge("leg_rtt_seconds", "seconds", "Mean smoothed RTT of the active connections.", |l| l.srtt_s),
    Metric::gauge("leg_min_rtt_seconds", "seconds", "Minimum RTT.", |l| l.min_rtt_s),
    Metric::gauge(
        "leg_return_queue_seconds",
        "seconds",
        "Part of the RTT that neither the minimum nor the queue of this direction explains.",
        |l| l.return_queue_s,
    ),
    Metric::gauge(
        "leg_forwarded_sent_bytes_per_second",
        "bytes per second",
        "Rate of IP bytes forwarded unsplit into the leg, over the last second.",
        |l| Some(l.forwarded?.sent_bps / BITS),
    ),
    Metric::gauge(
        "leg_forwarded_received_bytes_per_second",
        "bytes per second",
        "Rate of IP bytes forwarded unsplit from the leg, over the last second.",
        |l| Some(l.forwarded?.received_bps / BITS),
    ),
    Metric::gauge("leg_interface_missing", "0 or 1", "Whether the leg waits for its interface.", |l| {
        Some(f64::from(u8::from(l.waiting.is_some())))
    }),
    Metric::gauge("leg_outage", "0 or 1", "Whether nothing is received although an answer is due.", |l| {
        Some(f64::from(u8::from(l.outage_s.is_some())))
    }),
    Metric::gauge(
        "leg_outage_seconds",
        "seconds",
        "Time since the outage began; 0 without an outage.",
        |l| Some(l.outage_s.unwrap_or_default()),
    ),
    Metric::gauge(
        "leg_explicit_capacity_bytes_per_second",
        "bytes per second",
        "Estimated capacity of the link on the wire.",
        |l| Some(l.explicit?.capacity_bps / BITS),
    ),
    Metric::gauge("leg_explicit_queue_seconds", "seconds", "Estimated queueing delay of the link.", |l| {
        Some(l.explicit?.queue_s)
    }),
    Metric::gauge(
        "leg_explicit_cross_traffic_bytes_per_second",
        "bytes per second",
        "IP bytes that leave over the leg beside the data of its connections.",
        |l| Some(l.explicit?.cross_traffic_bps / BITS),
    ),
    Metric::counter(
        "leg_explicit_cross_traffic_marked_total",
        "packets",
        "Packets beside the leg's connections that were marked CE, because more left than may.",
        |l| Some(l.explicit?.cross_traffic_marked as f64),
    ),
    Metric::counter(
        "leg_explicit_cross_traffic_dropped_total",
        "packets",
        "Packets beside the leg's connections that were dropped, because more left than may.",
        |l| Some(l.explicit?.cross_traffic_dropped as f64),
    ),
    Metric::gauge("leg_explicit_flows_active", "flows", "Connections with data in flight.", |l| {
        Some(l.explicit?.active as f64)
    }),
];

const PROCESS: &[Metric<Process>] = &[
    Metric::gauge("descriptors_open", "descriptors", "Open descriptors of the process.", |p| {
        p.descriptors.map(|count| count as f64)
    }),
    Metric::gauge("descriptors_limit", "descriptors", "Limit of open descriptors.", |p| {
        p.descriptor_limit.map(|limit| limit as f64)
    }),
    Metric::gauge("resident_memory_bytes", "bytes", "Resident memory of the process.", |p| {
        p.resident_bytes.map(|bytes| bytes as f64)
    }),
    Metric::counter("cpu_seconds_total", "seconds", "Processor time of the process.", |p| p.cpu_s),
];

/// What the process takes of the host.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Process {
    /// Open descriptors.
    pub(crate) descriptors: Option<u64>,
    /// Limit of open descriptors.
    pub(crate) descriptor_limit: Option<u64>,
    /// Resident memory, bytes.
    pub(crate) resident_bytes: Option<u64>,
    /// Processor time, s.
    pub(crate) cpu_s: Option<f64>,
}

impl Process {
    /// This process now. Values that `/proc` does not give are left out.
    pub(crate) fn now() -> Self {
        let pages =
            || fs::read_to_string("/proc/self/statm").ok()?.split_whitespace().nth(1)?.parse::<u64>().ok();
        Self {
            // One descriptor reads the folder.
            descriptors: fs::read_dir("/proc/self/fd")
                .ok()
                .map(|entries| (entries.count() as u64).saturating_sub(1)),
            descriptor_limit: Some(descriptor_limit().soft).filter(|&limit| limit != u64::MAX),
            resident_bytes: pages().map(|pages| pages * rustix::param::page_size() as u64),
            cpu_s: cpu_seconds(),
        }
    }
}

/// All metrics at one moment.
pub(crate) fn text(status: &Status, process: &Process) -> String {
    let mut exposition = Exposition::default();
    exposition.add_each(BUILD, &[(vec![("version", status.version.clone())], status)]);
    exposition.add(DAEMON, status);
    let totals = &status.totals;
    exposition.add(bentpipe_proxy::Stats::METRICS, totals);
    exposition.add(bentpipe_proxy::SnoopStats::METRICS, &totals.snoop);
    exposition.add(bentpipe_proxy::RouterStats::METRICS, &totals.router);
    exposition.add(bentpipe_proxy::ProtectStats::METRICS, &totals.protect);
    add_policy(&mut exposition, status);
    let name = |leg: &LegReport| ("leg", leg.name.clone());
    let info = |leg: &LegReport| {
        let [interface, congestion] =
            [&leg.interface, &leg.congestion].map(|text| text.clone().unwrap_or_default());
        vec![name(leg), ("interface", interface), ("congestion", congestion)]
    };
    exposition.add_each(LEG_INFO, &status.legs.iter().map(|leg| (info(leg), leg)).collect::<Vec<_>>());
    exposition.add_each(LEGS, &status.legs.iter().map(|leg| (vec![name(leg)], leg)).collect::<Vec<_>>());
    let forwarded = status.legs.iter().filter_map(|leg| Some((leg, leg.forwarded?)));
    let classes = forwarded.flat_map(|(leg, forwarded)| {
        let [into, from] = [forwarded.sent_bytes, forwarded.received_bytes].map(classes);
        let samples = into.into_iter().zip(from);
        samples.map(|((class, into), (_, from))| (vec![name(leg), ("class", class.to_owned())], [into, from]))
    });
    let classes: Vec<_> = classes.collect();
    let classes: Vec<_> = classes.iter().map(|(labels, bytes)| (labels.clone(), bytes)).collect();
    exposition.add_each(FORWARDED, &classes);
    exposition.add(PROCESS, process);
    exposition.encode(PREFIX)
}

/// Connections by verdict and rule, and the limits.
fn add_policy(exposition: &mut Exposition, status: &Status) {
    let verdict = |report: &VerdictReport| vec![("verdict", report.verdict.clone())];
    let verdicts = status.policy.verdicts.iter();
    exposition.add_each(VERDICTS, &verdicts.map(|report| (verdict(report), report)).collect::<Vec<_>>());
    let rule = |report: &RuleReport| {
        let comment = report.comment.clone().unwrap_or_default();
        let [place, action, conditions] =
            [report.place.to_string(), report.action.clone(), report.conditions.clone()];
        vec![("rule", place), ("action", action), ("conditions", conditions), ("comment", comment)]
    };
    let rules = status.policy.rules.iter();
    exposition.add_each(RULES, &rules.map(|report| (rule(report), report)).collect::<Vec<_>>());
    let limits = &status.limits;
    let of_connections = [
        ("connections", &limits.connections),
        ("connections_per_client", &limits.connections_per_client),
        ("connecting", &limits.connecting),
        ("connection_rate", &limits.connection_rate),
    ];
    exposition.add_each(LIMITS, &of_connections.map(|(name, used)| (vec![("limit", name.to_owned())], used)));
    exposition.add_each(MEMORY_LIMIT, &[(vec![("limit", "buffered".to_owned())], &limits.buffered_bytes)]);
}

fn classes(bytes: ForwardedBytes) -> [(&'static str, u64); 4] {
    let ForwardedBytes { tcp, udp, other, snooped } = bytes;
    [("tcp", tcp), ("udp", udp), ("other", other), ("snooped", snooped)]
}

/// User and system time (proc_pid_stat(5), fields 14 and 15). They follow the name in parentheses, which may
/// contain anything.
fn cpu_seconds() -> Option<f64> {
    let text = fs::read_to_string("/proc/self/stat").ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some((ticks()? + ticks()?) as f64 / rustix::param::clock_ticks_per_second() as f64)
}

#[cfg(test)]
mod tests;
