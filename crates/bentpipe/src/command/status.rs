use std::process::ExitCode;

use bentpipe_admin::{Flows, Status as Document};
use bentpipe_proxy::telemetry::{EndReport, FlowPhase, FlowReport, LegReport, RuleReport, Use};
use bentpipe_table::Align::{self, Left, Right};
use bentpipe_table::aligned;
use clap::Args;

use super::daemon::{Folder, flows};
use super::human::{bytes, known, plain, rate, seconds, share, span};

/// Flows on the screen, and in the document.
const SHOWN: Flows = Flows::Most(10);
const LISTED: Flows = Flows::Most(100);
/// The longest text in a column, letters.
const LONGEST: usize = 36;
/// The leg of every interface that is not a satellite's.
const TERRESTRIAL: &str = "terrestrial";

/// Show what the running daemon does: its legs, the gain from splitting, and its fastest flows.
#[derive(Debug, Args)]
pub(crate) struct Status {
    #[command(flatten)]
    folder: Folder,
    /// How many flows, the fastest first; "all" for all of them [default: 10, with --json 100].
    #[arg(long, value_name = "N", value_parser = flows)]
    flows: Option<Flows>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

impl Status {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let client = self.folder.client()?;
        if self.json {
            let text = client.status_text(self.flows.unwrap_or(LISTED))?;
            super::print(&format!("{}\n", text.trim_end()))?;
        } else {
            let status = client.status(self.flows.unwrap_or(SHOWN))?;
            super::print(&text(&status))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The document on one screen.
fn text(status: &Document) -> String {
    let mut lines = summary(status);
    lines.push(String::new());
    lines.extend(legs(&status.legs));
    if !status.policy.rules.is_empty() {
        lines.push(String::new());
        lines.extend(table(RULE_COLUMNS, &status.policy.rules));
    }
    if !status.flows.is_empty() {
        lines.push(String::new());
        lines.extend(flow_table(&status.flows));
        let open = status.totals.flows_open;
        let more = open.saturating_sub(status.flows.len() as u64);
        if more > 0 {
            lines.push(format!("and {more} more (--flows all)"));
        }
    }
    lines.join("\n") + "\n"
}

/// The lines on the daemon as a whole.
pub(super) fn summary(status: &Document) -> Vec<String> {
    let (totals, limits) = (&status.totals, &status.limits);
    let host = if status.host.is_empty() { String::new() } else { format!("  on {}", plain(&status.host)) };
    let mut lines = vec![format!(
        "bentpipe {}{host}  {}  up {}  process {}{}",
        plain(&status.version),
        state(status),
        span(status.uptime_s),
        status.pid,
        match status.upgrades {
            0 => String::new(),
            1 => "  upgraded once".to_owned(),
            times => format!("  upgraded {times} times"),
        }
    )];
    if !status.ready && status.draining.is_none() && !status.bypass {
        let why = status.not_ready.as_deref().unwrap_or("new connections pass unsplit; the log says why");
        lines.push(format!("problem {}", plain(why)));
    }
    lines.extend([
        format!(
            "flows   {} open{}, {} of them connecting; {} so far: {} finished, {} reset, {} not connected",
            totals.flows_open,
            of(limits.connections),
            totals.connecting,
            totals.flows_total,
            totals.flows_finished,
            totals.flows_reset,
            totals.connects_failed
        ),
        format!(
            "moved   {} up, {} down; {} in buffers{}",
            bytes(totals.bytes_up),
            bytes(totals.bytes_down),
            bytes(totals.buffered),
            limits.buffered_bytes.most.map(|most| format!(" of {}", bytes(most))).unwrap_or_default()
        ),
        gain(status),
    ]);
    lines.extend(unsplit(status));
    lines.extend(at_limits(status));
    for leg in &status.legs {
        if let Some(waiting) = &leg.waiting {
            lines.push(format!("leg     {}: {}", plain(&leg.name), plain(waiting)));
        }
        if let Some(outage) = leg.outage_s {
            lines.push(format!("outage  {}: nothing heard for {}", plain(&leg.name), span(outage)));
        }
        if let Some(queue) = leg.return_queue_s.filter(|&queue| is_notable(leg, queue)) {
            lines.push(format!(
                "RTT     {}: {} of {} are the queue of the other direction, in which acknowledgements wait",
                plain(&leg.name),
                seconds(queue),
                known(leg.srtt_s, seconds)
            ));
        }
    }
    lines
}

/// ` of 10000`, or nothing without a limit.
fn of(limit: Use) -> String {
    limit.most.map(|most| format!(" of {most}")).unwrap_or_default()
}

/// Whether the queue of the other direction is what an operator should know of: a tenth of the path's delay.
fn is_notable(leg: &LegReport, queue: f64) -> bool {
    leg.min_rtt_s.is_some_and(|shortest| queue > 0.02 && queue > shortest / 10.0)
}

/// What crosses the satellite legs unsplit: traffic, then connections by verdict.
fn unsplit(status: &Document) -> Vec<String> {
    let mut lines = Vec::new();
    let forwarded: Vec<_> =
        status.legs.iter().filter_map(|leg| leg.forwarded.map(|all| (leg, all))).collect();
    if !forwarded.is_empty() {
        let sum = |rate: fn(&(&LegReport, _)) -> f64| forwarded.iter().map(rate).sum::<f64>();
        let (into, from) = (sum(|(_, all)| all.sent_bps), sum(|(_, all)| all.received_bps));
        let (split_into, split_from) = (sum(|(leg, _)| leg.sent_bps), sum(|(leg, _)| leg.received_bps));
        lines.push(format!(
            "unsplit {} into the satellite{}, {} from it{}",
            rate(into),
            part(into, split_into),
            rate(from),
            part(from, split_from)
        ));
    }
    let verdicts =
        status.policy.verdicts.iter().filter(|report| report.count > 0 && report.verdict != "split");
    let all: Vec<String> =
        verdicts.map(|report| format!("{} {}", report.count, verdict(&report.verdict))).collect();
    // As many as fit on a line.
    lines.extend(all.chunks(4).map(|chunk| format!("        {}", chunk.join("; "))));
    lines
}

/// The share of all that moves, if something does.
fn part(unsplit: f64, split: f64) -> String {
    if unsplit + split > 0.0 {
        format!(" ({:.0}% of it)", 100.0 * unsplit / (unsplit + split))
    } else {
        String::new()
    }
}

/// A verdict for people.
pub(super) fn verdict(name: &str) -> String {
    match name {
        "split" => "split",
        "pass" => "passed by rules",
        "snoop" => "snooped",
        "bundle" => "for the bundle node",
        "reject" => "datagrams rejected",
        "limit" => "over a limit",
        "client_limit" => "over a client's limit",
        "rate" => "over the connection rate",
        "client_rate" => "over a client's rate",
        "not_ready" => "while not ready",
        "declined" => "given back",
        "translated" => "translated here",
        "unreadable" => "unreadable",
        "link_local" => "link-local",
        "bridged" => "bridged",
        "node_absent" => "without the node",
        other => return plain(other),
    }
    .to_owned()
}

/// Limits other than that of connections and memory, where there are some or something came of one.
fn at_limits(status: &Document) -> Option<String> {
    let (totals, limits) = (&status.totals, &status.limits);
    let used = |what: &str, limit: Use| limit.most.map(|most| format!("{what} {} of {most}", limit.used));
    let parts = [
        used("most of one client", limits.connections_per_client),
        used("new per second", limits.connection_rate),
        limits.connection_rate_per_client.map(|most| format!("{most} new per second and client")),
        used("connecting", limits.connecting).filter(|_| limits.connecting.used > 0),
        (totals.flows_refused > 0).then(|| format!("{} refused", totals.flows_refused)),
        (totals.accept_pauses > 0).then(|| format!("{} times out of descriptors", totals.accept_pauses)),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| format!("limits  {}", parts.join("; ")))
}

/// `ready`, or the state that prevents it.
fn state(status: &Document) -> String {
    match status.draining.map(|drain| drain.left_s) {
        Some(Some(left)) => format!("draining, {} left", span(left)),
        Some(None) => "draining".to_owned(),
        None if status.bypass => "bypass: new connections pass unsplit".to_owned(),
        None if status.ready => "ready".to_owned(),
        None => "NOT READY".to_owned(),
    }
}

fn gain(status: &Document) -> String {
    let gain = &status.gain;
    let Some(ratio) = gain.ratio else {
        return format!("gain    {}", gain.state.reason().unwrap_or("not measurable"));
    };
    // Connections that have just begun gain by their start.
    let start_up = gain.start_up.filter(|&share| share >= 0.05);
    let start_up = start_up.map(|part| format!(", {:.0}% of that time slow start", 100.0 * part));
    format!(
        "gain    x{ratio:.1}: {} instead of {} end to end in 30 s, an estimate{}",
        rate(gain.actual_bps),
        rate(gain.end_to_end_bps),
        start_up.unwrap_or_default()
    )
}

/// A column of a table: its head, its alignment, and what it shows of a row's item.
type Column<T> = (&'static str, Align, fn(&T) -> String);

const LEG_COLUMNS: &[Column<LegReport>] = &[
    ("leg", Left, |leg| plain(&leg.name)),
    ("flows", Right, |leg| leg.flows.to_string()),
    ("active", Right, |leg| leg.active.to_string()),
    ("sent", Right, |leg| rate(leg.sent_bps)),
    ("received", Right, |leg| rate(leg.received_bps)),
    ("capacity", Right, |leg| known(capacity(leg), rate)),
    ("RTT", Right, |leg| known(leg.srtt_s, seconds)),
    ("queue", Right, |leg| known(leg.explicit.map(|explicit| explicit.queue_s), seconds)),
    ("loss", Right, |leg| known(leg.loss, share)),
    ("retrans", Right, |leg| leg.retransmissions.to_string()),
    ("timeouts", Right, |leg| leg.timeouts.to_string()),
    ("control", Left, |leg| known(leg.congestion.as_deref(), plain)),
];

const RULE_COLUMNS: &[Column<RuleReport>] = &[
    ("rule", Right, |rule| rule.place.to_string()),
    ("action", Left, |rule| plain(&rule.action)),
    ("conditions", Left, |rule| shortened(&plain(&rule.conditions))),
    ("matched", Right, |rule| rule.matched.to_string()),
    ("comment", Left, |rule| known(rule.comment.as_deref(), |text| shortened(&plain(text)))),
];

/// As much as a column shows.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// TCP's state is that of the end that faces the satellite.
const FLOW_COLUMNS: &[Column<FlowReport>] = &[
    ("client", Left, |flow| plain(&flow.client)),
    ("server", Left, |flow| plain(&flow.server)),
    ("leg", Left, |flow| plain(&satellite_end(flow).leg)),
    ("up", Right, |flow| rate(flow.up_bps)),
    ("down", Right, |flow| rate(flow.down_bps)),
    ("RTT", Right, |flow| match flow.phase {
        FlowPhase::Connecting => "connecting".to_owned(),
        _ => seconds(satellite_end(flow).srtt_s),
    }),
    ("cwnd", Right, |flow| satellite_end(flow).cwnd.to_string()),
    ("RTO/backoff", Right, timeout),
    ("retrans", Right, |flow| satellite_end(flow).retransmissions.to_string()),
    ("buffered", Right, |flow| bytes(flow.buffered_bytes)),
];

/// The legs, a line for each.
pub(super) fn legs(legs: &[LegReport]) -> Vec<String> {
    table(LEG_COLUMNS, legs)
}

/// The flows, a line for each.
pub(super) fn flow_table(flows: &[FlowReport]) -> Vec<String> {
    table(FLOW_COLUMNS, flows)
}

fn table<T>(columns: &[Column<T>], items: &[T]) -> Vec<String> {
    let heads: Vec<(&str, Align)> = columns.iter().map(|(head, align, _)| (*head, *align)).collect();
    let row = |item: &T| columns.iter().map(|(_, _, show)| show(item)).collect::<Vec<_>>();
    aligned(&heads, &items.iter().map(row).collect::<Vec<_>>())
}

fn capacity(leg: &LegReport) -> Option<f64> {
    leg.explicit.map(|explicit| explicit.capacity_bps).or(leg.rate_bps.map(|rate| rate as f64))
}

fn timeout(flow: &FlowReport) -> String {
    let end = satellite_end(flow);
    match (flow.phase, end.backoff) {
        (FlowPhase::Connecting, _) => "-".to_owned(),
        (_, 0) => seconds(end.rto_s),
        (_, backoff) => format!("{}/{backoff}", seconds(end.rto_s)),
    }
}

/// The half that faces a satellite; of two such, the client's.
pub(super) fn satellite_end(flow: &FlowReport) -> &EndReport {
    if flow.client_end.leg == TERRESTRIAL { &flow.server_end } else { &flow.client_end }
}

#[cfg(test)]
pub(super) mod tests;
