use std::process::ExitCode;

use anyhow::bail;
use bentpipe_admin::Flows;
use bentpipe_proxy::ReloadReport;
use bentpipe_proxy::config::Change;
use bentpipe_table::Align::Left;
use bentpipe_table::aligned;
use clap::Args;

use super::daemon::Folder;
use super::human::plain;
use super::{program, upgrade};

/// Tell the running daemon to read its configuration again, and show what has changed and when each change
/// takes effect. No connection is affected.
///
/// If the new configuration cannot be used, the daemon keeps the old one and this command says why.
#[derive(Debug, Args)]
pub(crate) struct Reload {
    #[command(flatten)]
    folder: Folder,
    /// Where a reload is not enough, let this program take the daemon's place instead, as `bentpipe upgrade`
    /// does: where it is another program than the daemon's, or where a change takes effect at an upgrade.
    #[arg(long)]
    upgrade: bool,
    /// Print the report as JSON.
    #[arg(long)]
    json: bool,
}

impl Reload {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let client = self.folder.client()?;
        if self.upgrade && client.status(Flows::Most(0))?.program != program::identity() {
            return self.take_over();
        }
        let report = client.reload()?;
        self.print(&report)?;
        if self.upgrade && report.wants_upgrade() {
            return self.take_over();
        }
        match report.refused() {
            Some(reasons) => bail!("the daemon refused: {reasons}"),
            None => Ok(ExitCode::SUCCESS),
        }
    }

    fn take_over(&self) -> anyhow::Result<ExitCode> {
        let status = self.folder.client()?.status(Flows::Most(0))?;
        upgrade::refuse_outside_the_service(status.pid)?;
        let pid = upgrade::take_over(self.folder.path(), status.config.as_ref())?;
        let line = format!("process {pid} has taken over with the new configuration");
        match self.json {
            // Standard output is the report's.
            true => super::print_note(line),
            false => super::print(&format!("{line}\n"))?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn print(&self, report: &ReloadReport) -> anyhow::Result<()> {
        match self.json {
            true => super::print_json(report),
            false => super::print(&text(report)),
        }
    }
}

/// The report as a table, with a line on the whole if the daemon uses the new configuration.
fn text(report: &ReloadReport) -> String {
    let mut lines = if report.changes.is_empty() { Vec::new() } else { table(report) };
    lines.extend(report.notes.iter().map(|note| format!("note: {}", plain(note))));
    if report.applied {
        let mut line = format!("the daemon uses the new configuration: {}", report.count());
        if report.wants_upgrade() {
            line += "; what waits for an upgrade takes effect with `bentpipe upgrade`, or under systemd with \
                `systemctl reload`";
        }
        lines.push(line);
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

fn table(report: &ReloadReport) -> Vec<String> {
    let heads = ["key", "before", "after", "takes effect"].map(|head| (head, Left));
    let value = |value: &Option<String>| value.as_deref().map_or("-".to_owned(), plain);
    let row = |change: &Change| {
        vec![plain(&change.key), value(&change.before), value(&change.after), fate(report, change)]
    };
    aligned(&heads, &report.changes.iter().map(row).collect::<Vec<_>>())
}

/// When a change takes effect, or that it does not.
fn fate(report: &ReloadReport, change: &Change) -> String {
    match report.refusal_of(change) {
        _ if report.applied => change.effect.text().to_owned(),
        Some(refusal) => match refusal.possible {
            Some(effect) => format!("refused: {}", effect.text()),
            None => "refused".to_owned(),
        },
        None => "not applied".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use bentpipe_proxy::Refusal;
    use bentpipe_proxy::config::Effect;

    use super::*;

    fn report(applied: bool) -> ReloadReport {
        let change = |key: &str, before: Option<&str>, after: Option<&str>, effect| Change {
            key: key.to_owned(),
            before: before.map(str::to_owned),
            after: after.map(str::to_owned),
            effect,
        };
        ReloadReport {
            applied,
            changes: vec![
                change("legs.geo.rate", Some("10Mbit/s"), Some("20Mbit/s"), Effect::Now),
                change("proxy.workers", Some("2"), Some("4"), Effect::Upgrade),
                change("rules[1]", None, Some("pass, port 22"), Effect::NewConnections),
            ],
            notes: vec!["leg geo: waiting for interface sat0; this host has lo".to_owned()],
            ..ReloadReport::default()
        }
    }

    #[test]
    fn what_was_applied_is_a_table_with_the_time_of_each_change() {
        let lines = text(&report(true));
        let expected = "\
key            before    after          takes effect
legs.geo.rate  10Mbit/s  20Mbit/s       now
proxy.workers  2         4              at the next upgrade or restart
rules[1]       -         pass, port 22  now, for new connections
note: leg geo: waiting for interface sat0; this host has lo
the daemon uses the new configuration: 3 changes; what waits for an upgrade takes effect with `bentpipe upgrade`, or \
under systemd with `systemctl reload`
";
        assert_eq!(lines, expected);
        let nothing = ReloadReport { applied: true, ..ReloadReport::default() };
        assert_eq!(text(&nothing), "the daemon uses the new configuration: nothing has changed\n");
    }

    #[test]
    fn what_was_refused_stands_beside_what_was_not_applied_for_that() {
        let refusal = |key: &str, possible| Refusal { key: Some(key.into()), reason: "no".into(), possible };
        let report = ReloadReport {
            refusals: vec![refusal("rules[1]", Some(Effect::Upgrade)), refusal("proxy.workers", None)],
            notes: Vec::new(),
            ..report(false)
        };
        let expected = "\
key            before    after          takes effect
legs.geo.rate  10Mbit/s  20Mbit/s       not applied
proxy.workers  2         4              refused
rules[1]       -         pass, port 22  refused: at the next upgrade or restart
";
        assert_eq!(text(&report), expected);
    }
}
