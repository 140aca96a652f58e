use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use bentpipe_dtn::Eid;
use bentpipe_dtn::app::{Accepted, Client, Sent};
use bentpipe_dtn::node::{ReportedEvent, default_echo_service};
use bentpipe_units::Span;
use clap::Args;

use super::Socket;

/// Ask a node's echo service whether it can be reached, and how long that takes.
///
/// Each bundle is stored wherever it waits, so that an answer may take as long as the outage that it meets.
/// Without an answer within --wait the exit code is 1.
#[derive(Debug, Args)]
pub(super) struct Ping {
    /// The node, dtn://node/ or ipn:5.0, or the endpoint of its echo service.
    node: Eid,
    #[command(flatten)]
    socket: Socket,
    /// Bundles to send.
    #[arg(short, long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// The time between two of them.
    #[arg(short, long, value_name = "TIME", default_value = "1s")]
    interval: Span,
    /// Bytes of payload, from 8 to 65,536.
    #[arg(short, long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(8..=65536))]
    size: u32,
    /// How long to wait for answers after the last bundle; bundles live as long.
    #[arg(short, long, value_name = "TIME", default_value = "10s")]
    wait: Span,
    /// Show which nodes report that they have received, forwarded or delivered each bundle.
    #[arg(long)]
    trace: bool,
}

/// A bundle under way.
struct Asked {
    number: u64,
    sent: Sent,
    at: Instant,
    /// How many reports on it have been shown.
    shown: usize,
    /// Whether one of them said that it was delivered, after which none comes.
    delivered: bool,
}

/// How long reports are waited for, at the least, once the answer is there.
const LEAST_FOR_REPORTS: Duration = Duration::from_secs(1);

impl Asked {
    fn new(number: u64, sent: Sent) -> Self {
        Self { number, sent, at: Instant::now(), shown: 0, delivered: false }
    }
}

impl Ping {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let client = Client::new(&self.socket.socket);
        let round_trips = super::runtime()?.block_on(self.ask(&client))?;
        let received = round_trips.len() as u64;
        let lost = 100.0 * (self.count - received.min(self.count)) as f64 / self.count as f64;
        let mut text = format!("{} bundles sent, {received} answers, {lost:.0}% without\n", self.count);
        if let (Some(least), Some(most)) = (round_trips.iter().min(), round_trips.iter().max()) {
            let mean = round_trips.iter().sum::<Duration>() / round_trips.len() as u32;
            let [least, mean, most] = [*least, mean, *most].map(|time| time.as_secs_f64() * 1e3);
            text +=
                &format!("round trip: at least {least:.1}, in the mean {mean:.1}, at most {most:.1} ms\n");
        }
        crate::command::print(&text)?;
        Ok(if received > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Sends all, and shows what comes.
    async fn ask(&self, client: &Client) -> anyhow::Result<Vec<Duration>> {
        let (me, echo) = self.endpoints(client).await?;
        let mut waiting: BTreeMap<u64, Asked> = BTreeMap::new();
        // Reports travel as bundles of their own, and the answer may overtake them. A node may also report
        // nothing, so they are waited for as long again as the answer took.
        let mut answered: Vec<(Asked, Instant)> = Vec::new();
        let (mut round_trips, mut next, mut end) = (Vec::new(), 0, None);
        let begun = Instant::now();
        loop {
            let due = begun + self.interval.get() * u32::try_from(next).unwrap_or(u32::MAX);
            if next < self.count && Instant::now() >= due {
                let sent = self.send(client, &me, &echo, next).await?;
                waiting.insert(next, Asked::new(next, sent));
                next += 1;
                end = (next == self.count).then(|| Instant::now() + self.wait.get());
                continue;
            }
            let until = end.unwrap_or(due);
            let left = until.saturating_duration_since(Instant::now());
            let most = if self.trace { Duration::from_millis(200) } else { Duration::from_secs(30) };
            for bundle in client.next_all(&me, left.min(most), 100).await? {
                client.acknowledge_all(&[bundle.line.key]).await?;
                let number = bundle.payload.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
                let Some(mut asked) = number.and_then(|number| waiting.remove(&number)) else { continue };
                let time = asked.at.elapsed();
                round_trips.push(time);
                self.show_reports(client, &mut asked).await?;
                crate::command::print(&format!(
                    "{} bytes from {}: bundle {} after {:.1} ms\n",
                    bundle.payload.len(),
                    bundle.line.source,
                    asked.number,
                    time.as_secs_f64() * 1e3
                ))?;
                answered.push((asked, Instant::now() + time.max(LEAST_FOR_REPORTS)));
            }
            for (asked, _) in &mut answered {
                self.show_reports(client, asked).await?;
            }
            answered.retain(|(asked, until)| self.trace && !asked.delivered && Instant::now() < *until);
            for asked in waiting.values_mut() {
                self.show_reports(client, asked).await?;
            }
            let is_over = end.is_some_and(|end| Instant::now() >= end);
            if is_over || (next == self.count && waiting.is_empty() && answered.is_empty()) {
                return Ok(round_trips);
            }
        }
    }

    /// The service of the own node for the answers, which nobody else has, and the endpoint to ask.
    async fn endpoints(&self, client: &Client) -> anyhow::Result<(String, Eid)> {
        let status: serde_json::Value = client.get("/status", &[]).await?;
        let own: Eid = status["node"].as_str().unwrap_or_default().parse().context("the node has no name")?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Of ipn nodes services are numbers; low ones have other uses.
        let number = (1 << 32) + u64::from(std::process::id()) * 1_000_000 + u64::from(since.subsec_micros());
        let me = if matches!(own, Eid::Ipn { .. }) { number.to_string() } else { format!("ping/{number}") };
        if !self.node.is_node() {
            return Ok((me, self.node.clone()));
        }
        let service = default_echo_service(&self.node);
        let Ok(echo) = self.node.with_service(service) else { bail!("{} is no node", self.node) };
        Ok((me, echo))
    }

    async fn send(&self, client: &Client, me: &str, echo: &Eid, number: u64) -> anyhow::Result<Sent> {
        let left = self.interval.get() * u32::try_from(self.count - number).unwrap_or(u32::MAX);
        let lifetime = left.saturating_add(self.wait.get());
        let mut query = vec![
            ("destination", echo.to_string()),
            ("service", me.to_owned()),
            ("lifetime", format!("{}ms", lifetime.as_millis().max(1))),
        ];
        if self.trace {
            query.push(("report", "reception,forwarding,delivery,deletion".into()));
        }
        let mut payload = number.to_be_bytes().to_vec();
        payload.resize(self.size as usize, 0);
        match client.send_all(&query, &[&payload]).await?.pop() {
            Some(Accepted::Sent(sent)) => Ok(sent),
            Some(Accepted::Refused { error }) => bail!("the node does not take the bundle: {error}"),
            None => bail!("the node says nothing of the bundle"),
        }
    }

    async fn show_reports(&self, client: &Client, asked: &mut Asked) -> anyhow::Result<()> {
        if !self.trace {
            return Ok(());
        }
        let events: Vec<ReportedEvent> = client.get("/reports", &[("id", asked.sent.id.clone())]).await?;
        for event in events.iter().skip(asked.shown) {
            asked.delivered |= event.status == "delivered";
            let why = match event.reason.as_str() {
                "no additional information" => String::new(),
                reason => format!(": {reason}"),
            };
            crate::command::print(&format!(
                "  bundle {} {} by {}{why}\n",
                asked.number, event.status, event.node
            ))?;
        }
        asked.shown = events.len();
        Ok(())
    }
}
