//! The status in the text format of Prometheus, version 0.0.4.
//!
//! Base units only: seconds, bytes, bytes per second, ratios; each HELP names the unit. What only grows ends in
//! `_total`. A family that nothing is known of, as a round trip before there was any, has no sample rather than a
//! zero.

use std::fmt::Write;
use std::fs;

use bentpipe_kernel::limits::descriptor_limit;
use bentpipe_proxy::Stats;
use bentpipe_proxy::telemetry::LegReport;

use crate::Status;

/// What the answer is.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";
/// The status has bit/s.
const BITS: f64 = 8.0;

/// A figure of the totals: name, type, unit, what it is, and where it stands.
type OfTotals = (&'static str, &'static str, &'static str, &'static str, fn(&Stats) -> u64);
/// A figure of a leg; none where nothing is known.
type OfLeg = (&'static str, &'static str, &'static str, &'static str, fn(&LegReport) -> Option<f64>);

/// What the process takes of the host.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Process {
    /// Descriptors that are open.
    pub(crate) descriptors: Option<u64>,
    /// Descriptors that it may have.
    pub(crate) descriptor_limit: Option<u64>,
    /// Resident memory, bytes.
    pub(crate) resident_bytes: Option<u64>,
    /// Time of processors, s.
    pub(crate) cpu_s: Option<f64>,
}

impl Process {
    /// This process at this moment. What `/proc` does not tell is left out.
    pub(crate) fn now() -> Self {
        let pages =
            || fs::read_to_string("/proc/self/statm").ok()?.split_whitespace().nth(1)?.parse::<u64>().ok();
        Self {
            // One of them reads the folder.
            descriptors: fs::read_dir("/proc/self/fd")
                .ok()
                .map(|entries| (entries.count() as u64).saturating_sub(1)),
            descriptor_limit: Some(descriptor_limit().soft).filter(|&limit| limit != u64::MAX),
            resident_bytes: pages().map(|pages| pages * rustix::param::page_size() as u64),
            cpu_s: cpu_seconds(),
        }
    }
}

/// All figures of a moment.
pub(crate) fn text(status: &Status, process: &Process) -> String {
    let mut text = Text(String::new());
    daemon(&mut text, status);
    for (name, kind, unit, help, value) in TOTALS {
        text.family(name, kind, unit, help, [(String::new(), Some(value(&status.totals) as f64))]);
    }
    let gain = &status.gain;
    text.gauge(
        "gain_ratio",
        "ratio",
        "How many times faster the active connections are than end to end, estimated.",
        gain.ratio,
    );
    let bytes = "bytes per second";
    let help = "Payload that the connections carry which the estimate of the gain is made of.";
    text.gauge("gain_actual_bytes_per_second", bytes, help, Some(gain.actual_bps / BITS));
    let help = "Payload that they would carry end to end, estimated (RFC 9438 5.1).";
    text.gauge("gain_end_to_end_bytes_per_second", bytes, help, Some(gain.end_to_end_bps / BITS));
    legs(&mut text, &status.legs);
    of_process(&mut text, process);
    text.0
}

fn daemon(text: &mut Text, status: &Status) {
    let version = label("version", &status.version);
    text.family("build_info", GAUGE, "none", "The program; always 1.", [(version, Some(1.0))]);
    text.gauge(
        "uptime_seconds",
        "seconds",
        "Since the daemon was started, takeovers included.",
        Some(status.uptime_s),
    );
    let upgrades = [(String::new(), Some(status.upgrades as f64))];
    text.family("upgrades_total", COUNTER, "takeovers", "Times that a new process took over.", upgrades);
    let help = "Whether every thread lives and new connections are split.";
    text.gauge("ready", "0 or 1", help, Some(f64::from(u8::from(status.ready))));
    let help = "Whether new connections pass because the daemon is to end.";
    text.gauge("draining", "0 or 1", help, Some(f64::from(u8::from(status.draining.is_some()))));
    let left = status.draining.and_then(|drain| drain.left_s);
    text.gauge("drain_left_seconds", "seconds", "Until the flows that are left are reset.", left);
}

fn legs(text: &mut Text, legs: &[LegReport]) {
    let info = legs.iter().map(|leg| {
        let interface = label("interface", leg.interface.as_deref().unwrap_or_default());
        let congestion = label("congestion", leg.congestion.as_deref().unwrap_or_default());
        (format!("{},{interface},{congestion}", label("leg", &leg.name)), Some(1.0))
    });
    text.family("leg_info", GAUGE, "none", "A leg as configured; always 1.", info);
    for (name, kind, unit, help, value) in LEGS {
        text.family(name, kind, unit, help, legs.iter().map(|leg| (label("leg", &leg.name), value(leg))));
    }
}

fn of_process(text: &mut Text, process: &Process) {
    let whole = |value: Option<u64>| value.map(|value| value as f64);
    text.gauge(
        "descriptors_open",
        "descriptors",
        "Descriptors that the process has open.",
        whole(process.descriptors),
    );
    text.gauge(
        "descriptors_limit",
        "descriptors",
        "Descriptors that it may have open.",
        whole(process.descriptor_limit),
    );
    text.gauge("resident_memory_bytes", "bytes", "Memory of the process.", whole(process.resident_bytes));
    let cpu = [(String::new(), process.cpu_s)];
    text.family("cpu_seconds_total", COUNTER, "seconds", "Processor time of the process.", cpu);
}

const TOTALS: [OfTotals; 42] = [
    ("flows_open", GAUGE, "flows", "Flows that live now, draining ones included.", |s| s.flows_open),
    ("flows_connecting", GAUGE, "flows", "Flows that wait for their server.", |s| s.connecting),
    ("flows_total", COUNTER, "flows", "Flows that were accepted.", |s| s.flows_total),
    ("flows_finished_total", COUNTER, "flows", "Flows that ended in order at both ends.", |s| {
        s.flows_finished
    }),
    ("flows_reset_total", COUNTER, "flows", "Flows that were reset, timed out or became unreachable.", |s| {
        s.flows_reset
    }),
    (
        "flows_expired_total",
        COUNTER,
        "flows",
        "Flows among the reset ones on which nothing moved for too long.",
        |s| s.flows_expired,
    ),
    ("flows_refused_total", COUNTER, "connections", "Connections beyond a limit that were reset.", |s| {
        s.flows_refused
    }),
    ("connects_failed_total", COUNTER, "flows", "Flows whose server refused or could not be reached.", |s| {
        s.connects_failed
    }),
    ("other_port_total", COUNTER, "flows", "Flows whose upstream port is not the client's.", |s| {
        s.other_port
    }),
    ("own_port_total", COUNTER, "connections", "Connections to the proxy's own port, reset.", |s| s.own_port),
    (
        "held_open",
        GAUGE,
        "connections",
        "Connections that wait for their server's answer before their own.",
        |s| s.held_open,
    ),
    ("held_total", COUNTER, "connections", "Connections whose server was asked first.", |s| s.held_total),
    (
        "held_refused_total",
        COUNTER,
        "connections",
        "Held connections whose server could not be reached.",
        |s| s.held_refused,
    ),
    ("held_forgotten_total", COUNTER, "connections", "Held connections that ended without a word.", |s| {
        s.held_forgotten
    }),
    ("syns_passed_total", COUNTER, "segments", "SYNs that were held and went on unsplit.", |s| s.syns_passed),
    ("accept_pauses_total", COUNTER, "pauses", "Times that descriptors had run out.", |s| s.accept_pauses),
    ("up_bytes_total", COUNTER, "bytes", "Payload written towards servers.", |s| s.bytes_up),
    ("down_bytes_total", COUNTER, "bytes", "Payload written towards clients.", |s| s.bytes_down),
    (
        "relay_buffers_in_use",
        GAUGE,
        "buffers and pipes",
        "Buffers and pipes that hold data in flight.",
        |s| s.relay_buffers_in_use,
    ),
    ("buffered_bytes", GAUGE, "bytes", "Memory of all flows in buffers, the kernel's included.", |s| {
        s.buffered
    }),
    ("snoop_packets_total", COUNTER, "packets", "Packets of snooped flows.", |s| s.snoop.packets),
    ("snoop_cached_total", COUNTER, "segments", "Segments that were kept.", |s| s.snoop.cached),
    ("snoop_not_cached_total", COUNTER, "segments", "Segments that found no room and passed.", |s| {
        s.snoop.not_cached
    }),
    ("snoop_retransmitted_total", COUNTER, "segments", "Segments sent again in place of the sender.", |s| {
        s.snoop.retransmitted
    }),
    ("snoop_timeouts_total", COUNTER, "expiries", "Expiries of the local timer.", |s| s.snoop.timed_out),
    ("snoop_suppressed_total", COUNTER, "segments", "Duplicate ACKs that were not passed on.", |s| {
        s.snoop.suppressed
    }),
    ("snoop_sack_hidden_total", COUNTER, "segments", "ACKs whose SACK blocks were taken out.", |s| {
        s.snoop.sack_hidden
    }),
    ("snoop_yielded_total", COUNTER, "losses", "Losses that were left to the sender as congestion.", |s| {
        s.snoop.yielded
    }),
    ("snoop_flows_open", GAUGE, "flows", "Flows that are snooped now.", |s| s.snoop.flows),
    (
        "snoop_flows_passed_total",
        COUNTER,
        "segments",
        "Segments of flows that found no room; they passed.",
        |s| s.snoop.flows_passed,
    ),
    (
        "snoop_queue_dropped_total",
        COUNTER,
        "segments",
        "Segments that found no room in the queue of those that wait for their turn.",
        |s| s.snoop.queue_dropped,
    ),
    ("snoop_queued_bytes", GAUGE, "bytes", "IP bytes of segments that wait for their turn.", |s| {
        s.snoop.queued_bytes
    }),
    ("snoop_most_queued_bytes", GAUGE, "bytes", "The most that waited at any time.", |s| {
        s.snoop.most_queued_bytes
    }),
    ("snoop_held_bytes", GAUGE, "bytes", "IP bytes of segments that are kept.", |s| s.snoop.held_bytes),
    ("snoop_most_held_bytes", GAUGE, "bytes", "The most that were kept at any time.", |s| {
        s.snoop.most_held_bytes
    }),
    ("snoop_dropped_total", COUNTER, "packets", "Packets that could not be given back to the kernel.", |s| {
        s.snoop.dropped
    }),
    ("snoop_restarts_total", COUNTER, "restarts", "Times that the agent began anew.", |s| s.snoop.restarts),
    ("xcp_packets_total", COUNTER, "packets", "Packets that left by the XCP routers.", |s| {
        s.router.xcp_packets
    }),
    ("xcp_headers_total", COUNTER, "packets", "Those of them with a congestion header.", |s| {
        s.router.xcp_headers
    }),
    ("xcp_lowered_total", COUNTER, "packets", "Those whose sender got less than it asked for.", |s| {
        s.router.xcp_lowered
    }),
    ("xcp_malformed_total", COUNTER, "packets", "Segments with unreadable TCP options; they passed.", |s| {
        s.router.xcp_malformed
    }),
    ("xcp_intervals_total", COUNTER, "intervals", "Control intervals that have ended.", |s| {
        s.router.xcp_intervals
    }),
];

const LEGS: [OfLeg; 18] = [
    ("leg_rate_bytes_per_second", GAUGE, "bytes per second", "Configured rate of the leg.", |l| {
        Some(l.rate_bps? as f64 / BITS)
    }),
    ("leg_flows", GAUGE, "flows", "Connections with an end on the leg.", |l| Some(l.flows as f64)),
    ("leg_flows_active", GAUGE, "flows", "Those on which something moved in the last second.", |l| {
        Some(l.active as f64)
    }),
    (
        "leg_sent_bytes_per_second",
        GAUGE,
        "bytes per second",
        "Payload acknowledged by the far ends in the last second.",
        |l| Some(l.sent_bps / BITS),
    ),
    (
        "leg_received_bytes_per_second",
        GAUGE,
        "bytes per second",
        "Payload that came in the last second.",
        |l| Some(l.received_bps / BITS),
    ),
    ("leg_sent_bytes_total", COUNTER, "bytes", "Payload acknowledged by the far ends.", |l| {
        Some(l.sent_bytes as f64)
    }),
    ("leg_received_bytes_total", COUNTER, "bytes", "Payload that came.", |l| Some(l.received_bytes as f64)),
    ("leg_segments_total", COUNTER, "segments", "Segments with data sent, retransmissions included.", |l| {
        Some(l.segments as f64)
    }),
    ("leg_retransmissions_total", COUNTER, "segments", "Segments sent again.", |l| {
        Some(l.retransmissions as f64)
    }),
    ("leg_timeouts_total", COUNTER, "expiries", "Expiries of retransmission timers.", |l| {
        Some(l.timeouts as f64)
    }),
    (
        "leg_loss_ratio",
        GAUGE,
        "ratio",
        "Share of segments that were sent again in the last ten seconds.",
        |l| l.loss,
    ),
    ("leg_rtt_seconds", GAUGE, "seconds", "Smoothed round-trip time, mean of the active connections.", |l| {
        l.srtt_s
    }),
    ("leg_min_rtt_seconds", GAUGE, "seconds", "Shortest round-trip time.", |l| l.min_rtt_s),
    ("leg_outage", GAUGE, "0 or 1", "Whether nothing is heard although something is waited for.", |l| {
        Some(f64::from(u8::from(l.outage_s.is_some())))
    }),
    (
        "leg_outage_seconds",
        GAUGE,
        "seconds",
        "For how long nothing has been heard; 0 without an outage.",
        |l| Some(l.outage_s.unwrap_or_default()),
    ),
    (
        "leg_explicit_capacity_bytes_per_second",
        GAUGE,
        "bytes per second",
        "What the link is thought to carry on the wire.",
        |l| Some(l.explicit?.capacity_bps / BITS),
    ),
    ("leg_explicit_queue_seconds", GAUGE, "seconds", "How long a packet waits in the link's queue.", |l| {
        Some(l.explicit?.queue_s)
    }),
    ("leg_explicit_flows_active", GAUGE, "flows", "Connections with something on its way.", |l| {
        Some(l.explicit?.active as f64)
    }),
];

struct Text(String);

impl Text {
    fn gauge(&mut self, name: &str, unit: &str, help: &str, value: Option<f64>) {
        self.family(name, GAUGE, unit, help, [(String::new(), value)]);
    }

    /// A family with its samples, each with its labels.
    fn family(
        &mut self,
        name: &str,
        kind: &str,
        unit: &str,
        help: &str,
        samples: impl IntoIterator<Item = (String, Option<f64>)>,
    ) {
        // Writing to a String does not fail.
        let _ =
            writeln!(self.0, "# HELP bentpipe_{name} {help} Unit: {unit}.\n# TYPE bentpipe_{name} {kind}");
        for (labels, value) in samples {
            let Some(value) = value else { continue };
            let _ = match labels.as_str() {
                "" => writeln!(self.0, "bentpipe_{name} {}", number(value)),
                labels => writeln!(self.0, "bentpipe_{name}{{{labels}}} {}", number(value)),
            };
        }
    }
}

/// The format has its own words for what is no number.
fn number(value: f64) -> String {
    match value {
        value if value.is_nan() => "NaN".to_owned(),
        value if value.is_infinite() => if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned(),
        value => value.to_string(),
    }
}

fn label(name: &str, value: &str) -> String {
    format!("{name}=\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

/// User and system time (proc_pid_stat(5), fields 14 and 15), behind the name in brackets, which may hold anything.
fn cpu_seconds() -> Option<f64> {
    let text = fs::read_to_string("/proc/self/stat").ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some((ticks()? + ticks()?) as f64 / rustix::param::clock_ticks_per_second() as f64)
}

#[cfg(test)]
mod tests;
