use std::process::ExitCode;

use bentpipe_admin::{Flows, Status as Document};
use bentpipe_proxy::telemetry::{EndReport, FlowPhase, FlowReport, LegReport};
use bentpipe_table::Align::{self, Left, Right};
use bentpipe_table::aligned;
use clap::Args;

use super::daemon::{Folder, flows};
use super::human::{bytes, known, plain, rate, seconds, share, span};

/// Flows on the screen, and in the document.
const SHOWN: Flows = Flows::Most(10);
const LISTED: Flows = Flows::Most(100);
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
    let totals = &status.totals;
    let mut lines = vec![
        format!(
            "bentpipe {}  {}  up {}  process {}{}",
            plain(&status.version),
            state(status),
            span(status.uptime_s),
            status.pid,
            match status.upgrades {
                0 => String::new(),
                1 => "  upgraded once".to_owned(),
                times => format!("  upgraded {times} times"),
            }
        ),
        format!(
            "flows   {} open, {} of them connecting; {} so far: {} finished, {} reset, {} not connected",
            totals.flows_open,
            totals.connecting,
            totals.flows_total,
            totals.flows_finished,
            totals.flows_reset,
            totals.connects_failed
        ),
        format!(
            "moved   {} up, {} down; {} in buffers",
            bytes(totals.bytes_up),
            bytes(totals.bytes_down),
            bytes(totals.buffered)
        ),
        gain(status),
    ];
    if totals.flows_refused + totals.accept_pauses > 0 {
        lines.push(format!(
            "limits  {} connections refused; {} times out of descriptors",
            totals.flows_refused, totals.accept_pauses
        ));
    }
    for leg in &status.legs {
        if let Some(outage) = leg.outage_s {
            lines.push(format!("outage  {}: nothing heard for {}", plain(&leg.name), span(outage)));
        }
    }
    lines
}

/// `ready`, or the state that prevents it.
fn state(status: &Document) -> String {
    match status.draining.map(|drain| drain.left_s) {
        Some(Some(left)) => format!("draining, {} left", span(left)),
        Some(None) => "draining".to_owned(),
        None if status.bypass => "bypass: new connections pass unsplit".to_owned(),
        None if status.ready => "ready".to_owned(),
        None => "NOT READY: new connections pass unsplit".to_owned(),
    }
}

fn gain(status: &Document) -> String {
    let gain = &status.gain;
    match gain.ratio {
        Some(ratio) => format!(
            "gain    x{ratio:.1}: {} instead of {} end to end, an estimate",
            rate(gain.actual_bps),
            rate(gain.end_to_end_bps)
        ),
        None => "gain    not known: no connection is active".to_owned(),
    }
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
