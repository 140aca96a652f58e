use std::cmp::Ordering;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use bentpipe_admin::{Client, Flows, Status};
use bentpipe_proxy::telemetry::FlowReport;
use clap::{Args, ValueEnum};

use super::daemon::Folder;
use super::status::{flow_table, legs, satellite_end, summary};

mod names;
mod terminal;

use names::Names;
use terminal::{Key, Terminal};

/// Between two pictures.
const INTERVAL: Duration = Duration::from_secs(1);
/// Except by throughput, this many of the fastest flows are sorted.
const LOOKED_AT: usize = 2000;
/// The number of flows without a screen.
const PRINTED: usize = 20;

/// The running daemon's legs and flows, live: q ends it, s sorts by something else, n shows names instead of
/// addresses.
///
/// Where standard input and output are no terminal it prints once.
#[derive(Debug, Args)]
pub(crate) struct Top {
    #[command(flatten)]
    folder: Folder,
    /// The first flow is the one with the most of this.
    #[arg(long, value_enum, default_value_t)]
    sort: Sort,
}

/// The order of the flows, the largest value first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Sort {
    /// Bit/s both ways.
    #[default]
    Throughput,
    /// Bit/s to the server.
    Up,
    /// Bit/s to the client.
    Down,
    /// The round-trip time.
    Rtt,
    /// The retransmission timeout.
    Rto,
    /// Segments sent again.
    Retransmissions,
    /// Bytes in buffers.
    Buffered,
}

impl Top {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let client = self.folder.client()?;
        match Terminal::enter().context("cannot draw on this terminal")? {
            Some(terminal) => watch(&client, terminal, self.sort)?,
            None => {
                let status = client.status(self.sort.needs(PRINTED))?;
                super::print(&(picture(status, self.sort, PRINTED, None).join("\n") + "\n"))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A picture each second, and at once when a key or the window's size asks for it.
fn watch(client: &Client, mut terminal: Terminal, mut sort: Sort) -> anyhow::Result<()> {
    // The first failure is the command's, later ones are shown until the daemon is back.
    let mut latest = client.status(sort.needs(terminal.size().1))?;
    let mut looked = Instant::now();
    let mut trouble = None;
    let mut names = Names::default();
    loop {
        let (width, height) = terminal.size();
        let rows = height.saturating_sub(1);
        let mut status = latest.clone();
        names.put_into(&mut status);
        let mut lines = picture(status, sort, rows, trouble.as_deref());
        lines.truncate(rows);
        let other = if names.are_wanted() { "addresses" } else { "names" };
        lines.push(format!(
            "sorted by {}   s: sort by {}   n: {other}   q: quit",
            sort.name(),
            sort.next().name()
        ));
        terminal.draw(&lines, width)?;
        match terminal.key(INTERVAL.saturating_sub(looked.elapsed()))? {
            Some(Key::Quit) => return Ok(()),
            Some(Key::Sort) => sort = sort.next(),
            Some(Key::Names) => {
                names.toggle();
                continue;
            }
            Some(Key::Other) => continue,
            None if looked.elapsed() < INTERVAL => continue,
            None => {}
        }
        match client.status(sort.needs(rows)) {
            Ok(status) => (latest, trouble) = (status, None),
            Err(error) => trouble = Some(error.to_string()),
        }
        looked = Instant::now();
    }
}

/// The daemon, its legs, and as many flows as fit into this many lines.
fn picture(mut status: Status, sort: Sort, rows: usize, trouble: Option<&str>) -> Vec<String> {
    let mut lines: Vec<String> =
        trouble.map(|text| format!("NOT CONNECTED: {}", super::human::plain(text))).into_iter().collect();
    lines.extend(summary(&status));
    lines.push(String::new());
    lines.extend(legs(&status.legs));
    lines.push(String::new());
    status.flows.sort_by(|a, b| sort.compare(a, b));
    // One line is the table's head.
    status.flows.truncate(rows.saturating_sub(lines.len() + 1));
    lines.extend(flow_table(&status.flows));
    lines
}

impl Sort {
    /// The number of flows to request for this many rows.
    fn needs(self, rows: usize) -> Flows {
        match self {
            Self::Throughput => Flows::Most(rows),
            _ => Flows::Most(LOOKED_AT.max(rows)),
        }
    }

    fn key(self, flow: &FlowReport) -> f64 {
        match self {
            Self::Throughput => flow.up_bps + flow.down_bps,
            Self::Up => flow.up_bps,
            Self::Down => flow.down_bps,
            Self::Rtt => satellite_end(flow).srtt_s,
            Self::Rto => satellite_end(flow).rto_s,
            Self::Retransmissions => satellite_end(flow).retransmissions.into(),
            Self::Buffered => flow.buffered_bytes as f64,
        }
    }

    /// The largest first; equal ones keep their places from one picture to the next.
    fn compare(self, a: &FlowReport, b: &FlowReport) -> Ordering {
        self.key(b).total_cmp(&self.key(a)).then(a.id.cmp(&b.id))
    }

    fn next(self) -> Self {
        let all = Self::value_variants();
        let place = all.iter().position(|&sort| sort == self).unwrap_or(0);
        all[(place + 1) % all.len()]
    }

    fn name(self) -> &'static str {
        match self {
            Self::Throughput => "throughput",
            Self::Up => "up",
            Self::Down => "down",
            Self::Rtt => "RTT",
            Self::Rto => "RTO",
            Self::Retransmissions => "retransmissions",
            Self::Buffered => "buffered bytes",
        }
    }
}

/// Writes and flushes: half a picture is none.
fn write_all(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::status::tests::sample;

    #[test]
    fn the_largest_comes_first_by_whatever_is_asked_for() {
        let first = |sort: Sort| {
            picture(sample(), sort, 24, None).iter().find(|line| line.starts_with("10.")).cloned().unwrap()
        };
        assert!(first(Sort::Throughput).contains("10.0.0.1:"));
        let mut status = sample();
        status.flows[1].client_end.retransmissions = 18;
        let lines = picture(status, Sort::Retransmissions, 24, None);
        let first = lines.iter().find(|line| line.starts_with("10.")).unwrap();
        assert!(first.contains("10.0.0.2:"), "{lines:?}");
    }

    #[test]
    fn a_small_window_has_fewer_flows_and_no_half_ones() {
        let whole = picture(sample(), Sort::Throughput, 24, None).len();
        assert_eq!(picture(sample(), Sort::Throughput, whole - 1, None).len(), whole - 1);
        assert!(picture(sample(), Sort::Throughput, 3, None).iter().all(|line| !line.starts_with("10.")));
        let lost = picture(sample(), Sort::Throughput, 24, Some("no daemon answers"));
        assert!(lost[0].starts_with("NOT CONNECTED: no daemon"), "{lost:?}");
    }

    #[test]
    fn each_key_goes_on_to_another_order_until_all_have_been_seen() {
        let mut seen = vec![Sort::default()];
        while seen.last().map(|sort| sort.next()) != Some(Sort::default()) {
            seen.extend(seen.last().map(|sort| sort.next()));
        }
        assert_eq!(seen, Sort::value_variants());
    }
}
