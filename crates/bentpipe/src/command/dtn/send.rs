use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use bentpipe_dtn::app::{Client, ReadBody, Sent};
use bentpipe_dtn::bundle::FileName;
use bentpipe_dtn::{Eid, node::ReportedEvent};
use bentpipe_units::Span;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::Socket;

/// Send a file as a bundle.
///
/// It ends when the node has the bundle in its store: from then on the node is responsible. With --wait it
/// ends when the bundle's application has it.
#[derive(Debug, Args)]
pub(super) struct Send {
    /// The file; `-` is standard input.
    file: PathBuf,
    /// The recipient: dtn://node/service or ipn:5.7.
    destination: Eid,
    #[command(flatten)]
    socket: Socket,
    /// The service of the own node that sends it; by default the node itself.
    #[arg(long, value_name = "SERVICE")]
    service: Option<String>,
    /// How long it is useful; by default the node's configured lifetime.
    #[arg(long, value_name = "TIME")]
    lifetime: Option<Span>,
    /// How urgent it is.
    #[arg(long, value_parser = ["bulk", "normal", "expedited"], default_value = "normal")]
    priority: String,
    /// How many nodes it may pass; by default 32.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    hop_limit: Option<u8>,
    /// The name that it has on arrival; by default that of the file.
    #[arg(long, value_name = "NAME")]
    name: Option<FileName>,
    /// It must travel in one piece.
    #[arg(long)]
    whole: bool,
    /// Wait until its application has it, at most this long.
    #[arg(long, value_name = "TIME")]
    wait: Option<Span>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

impl Send {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let (source, len) = self.open()?;
        let bar = bar(len);
        let progress = bar.clone();
        let client = Client::new(&self.socket.socket);
        let begun = Instant::now();
        super::runtime()?.block_on(async {
            let payload = ReadBody::new(source, len, move |bytes| progress.inc(bytes));
            let sent = client.send(&self.query(), payload).await?;
            bar.finish_and_clear();
            let accepted_s = begun.elapsed().as_secs_f64();
            let delivered_s = match self.wait {
                Some(Span(wait)) => Some(delivery(&client, &sent, begun, wait).await?),
                None => None,
            };
            if self.json {
                return crate::command::print_json(&json!({
                    "id": sent.id, "payload_bytes": sent.payload_bytes,
                    "accepted_s": accepted_s, "delivered_s": delivered_s,
                }));
            }
            let what = if delivered_s.is_some() { "delivered" } else { "accepted" };
            let seconds = delivered_s.unwrap_or(accepted_s);
            crate::command::print(&format!(
                "{} ({} bytes) {what} after {seconds:.2} \
                s\n",
                sent.id, sent.payload_bytes
            ))
        })?;
        Ok(ExitCode::SUCCESS)
    }

    fn open(&self) -> anyhow::Result<(Box<dyn Read + core::marker::Send + Unpin>, Option<u64>)> {
        if self.file.as_os_str() == "-" {
            return Ok((Box::new(io::stdin()), None));
        }
        let file = File::open(&self.file).with_context(|| format!("cannot open {}", self.file.display()))?;
        let about = file.metadata().with_context(|| format!("cannot look at {}", self.file.display()))?;
        if about.is_dir() {
            bail!("{} is a folder; a bundle has one payload: make an archive of it", self.file.display());
        }
        // A source that is not a regular file, such as a pipe, has no known length.
        Ok((Box::new(file), about.is_file().then_some(about.len())))
    }

    /// A name that would not be one at the other side, such as `.profile`, does not travel.
    fn name(&self) -> Option<FileName> {
        let of_file = || self.file.file_name()?.to_str()?.parse().ok();
        let is_file = self.file.as_os_str() != "-";
        self.name.clone().or_else(|| of_file().filter(|_| is_file))
    }

    fn query(&self) -> Vec<(&'static str, String)> {
        let mut query = vec![
            ("destination", self.destination.to_string()),
            ("priority", self.priority.clone()),
            ("whole", self.whole.to_string()),
        ];
        query.extend(self.service.iter().map(|service| ("service", service.clone())));
        query.extend(self.lifetime.iter().map(|span| ("lifetime", format!("{}ms", span.get().as_millis()))));
        query.extend(self.hop_limit.iter().map(|limit| ("hop_limit", limit.to_string())));
        query.extend(self.name().map(|name| ("name", name.to_string())));
        query.extend(self.wait.iter().map(|_| ("report", "delivery,deletion".to_owned())));
        query
    }
}

/// Seconds from the beginning until the bundle's application had it.
async fn delivery(client: &Client, sent: &Sent, begun: Instant, wait: Duration) -> anyhow::Result<f64> {
    let query = [("id", sent.id.clone())];
    loop {
        let events: Vec<ReportedEvent> = client.get("/reports", &query).await?;
        if events.iter().any(|event| event.status == "delivered") {
            return Ok(begun.elapsed().as_secs_f64());
        }
        if let Some(event) = events.iter().find(|event| event.status == "deleted") {
            bail!("{} was given up on the way: {}", sent.id, event.reason);
        }
        if begun.elapsed() > wait {
            bail!(
                "{} is accepted, but nobody has reported its delivery within {wait:?}; it is still on its \
                 way: \
                 bentpipe dtn status shows what it waits for",
                sent.id
            );
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn bar(len: Option<u64>) -> ProgressBar {
    let (bar, template) = match len {
        Some(len) => {
            (ProgressBar::new(len), "{bar:40} {percent:>3}%  {bytes} of {total_bytes}  {bytes_per_sec}")
        }
        None => (ProgressBar::new_spinner(), "{spinner} {bytes}  {bytes_per_sec}"),
    };
    bar.with_style(ProgressStyle::with_template(template).expect("the template is valid"))
}
