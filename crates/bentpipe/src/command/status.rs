use std::process::ExitCode;

use bentpipe_admin::{Flows, Status as Document};
use bentpipe_proxy::telemetry::{EndReport, FlowPhase, FlowReport, LegReport};
use bentpipe_table::Align::{Left, Right};
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
        None => "gain    nothing to tell it by now".to_owned(),
    }
}

/// The legs, a line for each.
pub(super) fn legs(legs: &[LegReport]) -> Vec<String> {
    let rows: Vec<[String; 12]> = legs
        .iter()
        .map(|leg| {
            [
                plain(&leg.name),
                leg.flows.to_string(),
                leg.active.to_string(),
                rate(leg.sent_bps),
                rate(leg.received_bps),
                known(leg.explicit.map(|e| e.capacity_bps).or(leg.rate_bps.map(|rate| rate as f64)), rate),
                known(leg.srtt_s, seconds),
                known(leg.explicit.map(|e| e.queue_s), seconds),
                known(leg.loss, share),
                leg.retransmissions.to_string(),
                leg.timeouts.to_string(),
                known(leg.congestion.as_deref(), plain),
            ]
        })
        .collect();
    let heads = [
        ("leg", Left),
        ("flows", Right),
        ("active", Right),
        ("sent", Right),
        ("received", Right),
        ("capacity", Right),
        ("RTT", Right),
        ("queue", Right),
        ("loss", Right),
        ("retrans", Right),
        ("timeouts", Right),
        ("control", Left),
    ];
    aligned(&heads, &rows)
}

/// The flows, a line for each; the TCP is that of the end which faces the satellite.
pub(super) fn flow_table(flows: &[FlowReport]) -> Vec<String> {
    let rows: Vec<[String; 10]> = flows
        .iter()
        .map(|flow| {
            let end = satellite_end(flow);
            let backoff = if end.backoff > 0 { format!("/{}", end.backoff) } else { String::new() };
            let (rtt, rto) = match flow.phase {
                FlowPhase::Connecting => ("connecting".to_owned(), "-".to_owned()),
                _ => (seconds(end.srtt_s), format!("{}{backoff}", seconds(end.rto_s))),
            };
            [
                plain(&flow.client),
                plain(&flow.server),
                plain(&end.leg),
                rate(flow.up_bps),
                rate(flow.down_bps),
                rtt,
                end.cwnd.to_string(),
                rto,
                end.retransmissions.to_string(),
                bytes(flow.buffered_bytes),
            ]
        })
        .collect();
    let heads = [
        ("client", Left),
        ("server", Left),
        ("leg", Left),
        ("up", Right),
        ("down", Right),
        ("RTT", Right),
        ("cwnd", Right),
        ("RTO/backoff", Right),
        ("retrans", Right),
        ("buffered", Right),
    ];
    aligned(&heads, &rows)
}

/// The half that faces a satellite; of two such, the client's.
pub(super) fn satellite_end(flow: &FlowReport) -> &EndReport {
    if flow.client_end.leg == TERRESTRIAL { &flow.server_end } else { &flow.client_end }
}

/// A document for tests: one leg in an outage, two flows.
#[cfg(test)]
pub(super) fn sample() -> Document {
    let end = |leg: &str| {
        serde_json::json!({"leg": leg, "srtt_s": 0.61, "min_rtt_s": 0.6, "rto_s": 1.0, "backoff": 3, "cwnd": 512,
            "ssthresh": null, "mss": 1448, "unacked": 1, "unsent_bytes": 0, "retransmissions": 17, "segments": 900,
            "timeouts": 2, "pacing_bps": null, "delivery_bps": 9_000_000})
    };
    let flow = |id: u64, down: f64| {
        serde_json::json!({"id": id, "client": format!("10.0.0.{id}:4000{id}"), "server": "192.0.2.1:443", "weight": 1,
            "phase": "relaying", "age_s": 5.0, "idle_s": 0.0, "up_bytes": 1, "down_bytes": 2, "up_bps": 1e3,
            "down_bps": down, "buffered_bytes": 65536 / id, "client_end": end("satellite"), "server_end": end(TERRESTRIAL)})
    };
    let document = serde_json::json!({
        "version": "0.1.0", "pid": 4711, "config": "/etc/bentpipe/bentpipe.toml", "program": "x", "uptime_s": 8040.0,
        "upgrades": 0, "ready": true, "draining": null, "totals": bentpipe_proxy::Stats { flows_open: 12, ..Default::default() },
        "gain": {"ratio": 12.54, "actual_bps": 9e6, "end_to_end_bps": 7.2e5},
        "legs": [LegReport { name: "satellite".into(), outage_s: Some(65.0), sent_bps: 4.67e6, ..LegReport::default() },
            LegReport { name: TERRESTRIAL.into(), ..LegReport::default() }],
        "flows": [flow(1, 5e6), flow(2, 4e6)],
    });
    serde_json::from_value(document).expect("a document of this version")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_screen_shows_the_essentials() {
        let text = text(&sample());
        for part in [
            "bentpipe 0.1.0  ready  up 2 h 14 min  process 4711\n",
            "gain    x12.5: 9.00 Mbit/s instead of 720 kbit/s end to end",
            "outage  satellite: nothing heard for 1 min 5 s",
            "4.67 Mbit/s",
            "10.0.0.1:40001  192.0.2.1:443  satellite  1.00 kbit/s  5.00 Mbit/s  610 ms   512     1.00 s/3       17",
            "and 10 more",
        ] {
            assert!(text.contains(part), "\"{part}\" is not in:\n{text}");
        }
        assert!(text.lines().count() < 24 && text.lines().all(|line| line.chars().count() <= 120), "{text}");
    }

    #[test]
    fn obstacles_to_splitting_are_in_the_first_line() {
        let mut status = sample();
        status.ready = false;
        assert!(summary(&status)[0].contains("NOT READY"));
        status.draining = Some(bentpipe_proxy::telemetry::Drain { left_s: Some(90.0) });
        assert!(summary(&status)[0].contains("draining, 1 min 30 s left"));
    }
}
