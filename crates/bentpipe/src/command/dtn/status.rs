use std::fmt::Write;
use std::process::ExitCode;

use bentpipe_dtn::app::Client;
use clap::Args;
use serde_json::Value;

use super::Socket;

/// Show what a node holds, its peers, and its counters.
#[derive(Debug, Args)]
pub(super) struct Status {
    #[command(flatten)]
    socket: Socket,
    /// List the bundles in the store, the first thousand.
    #[arg(long)]
    bundles: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

impl Status {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let client = Client::new(&self.socket.socket);
        let (status, bundles) = super::runtime()?.block_on(async {
            let status: Value = client.get("/status", &[]).await?;
            let bundles: Option<Value> =
                if self.bundles { Some(client.get("/bundles", &[]).await?) } else { None };
            anyhow::Ok((status, bundles))
        })?;
        if self.json {
            let mut document = status;
            if let Some(bundles) = bundles {
                document["bundles"] = bundles;
            }
            crate::command::print_json(&document)?;
        } else {
            crate::command::print(&text(&status, bundles.as_ref()))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn text(status: &Value, bundles: Option<&Value>) -> String {
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (store, waiting, totals) = (&status["store"], &status["waiting"], &status["totals"]);
    let mut text = String::new();
    // Writing to a String does not fail.
    let _ = writeln!(
        text,
        "{}  up {:.0} s",
        word(&status["node"]),
        status["uptime_s"].as_f64().unwrap_or_default()
    );
    let _ = writeln!(
        text,
        "store     {} bundles, {} of {} bytes",
        number(&store["bundles"]),
        number(&store["payload_bytes"]),
        number(&store["quota_bytes"])
    );
    let _ = writeln!(
        text,
        "waiting   {} for a session, {} for a contact or a route, {} for an application, {} fragments; {} \
         in hand",
        number(&waiting["queued"]),
        number(&waiting["parked"]),
        number(&waiting["deliverable"]),
        number(&waiting["fragments"]),
        number(&waiting["in_hand"])
    );
    let _ = writeln!(
        text,
        "so far    {} originated, {} received, {} sent, {} delivered, {} given up",
        number(&totals["originated"]),
        number(&totals["received"]),
        number(&totals["sent"]),
        number(&totals["delivered"]),
        number(&totals["given_up"])
    );
    let (strangers, overrun) = (number(&totals["strangers"]), number(&totals["overrun"]));
    if strangers + overrun > 0 {
        let _ = writeln!(
            text,
            "datagrams {strangers} of strangers ignored, {overrun} dropped because too many waited"
        );
    }
    for peer in status["peers"].as_array().into_iter().flatten() {
        let is_open = peer["open"].as_bool().unwrap_or(true);
        // A layer without connections is called by its name.
        let state = match (word(&peer["layer"]).as_ref(), number(&peer["sessions"]) > 0, is_open) {
            (_, _, false) => "no contact now",
            ("ltp", ..) if peer["ltp"]["silent"].as_bool() == Some(true) => "by LTP, does not answer",
            ("ltp", ..) => "by LTP",
            ("udp", ..) => "by UDP",
            (_, true, true) => "connected",
            (_, false, true) => "not connected",
        };
        let encrypted = if peer["encrypted"].as_bool() == Some(true) { ", encrypted" } else { "" };
        let address = peer["address"].as_str().map(|address| format!(" at {address}")).unwrap_or_default();
        let trouble = peer["trouble"].as_str().map(|trouble| format!("; {trouble}")).unwrap_or_default();
        let dropped = |key: &str, why: &str| match number(&peer["ltp"][key]) {
            0 => String::new(),
            segments => format!(", {segments} segments dropped {why}"),
        };
        let dropped =
            dropped("without_memory", "for want of memory") + &dropped("not_authentic", "as not authentic");
        let _ = writeln!(
            text,
            "peer      {}{address}  {state}{encrypted}, {} bundles wait for it{dropped}{trouble}",
            word(&peer["peer"]),
            number(&peer["queued"])
        );
    }
    for bundle in bundles.and_then(Value::as_array).into_iter().flatten() {
        let _ = writeln!(
            text,
            "bundle    {}  {} to {}, {} bytes, {}",
            number(&bundle["key"]),
            word(&bundle["id"]),
            word(&bundle["destination"]),
            number(&bundle["payload_bytes"]),
            word(&bundle["state"])
        );
    }
    text
}
