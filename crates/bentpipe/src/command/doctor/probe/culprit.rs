//! What swallows a connection: the chain that a trace of its packets ends in, or what it comes through
//! without.

use std::fmt;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use bentpipe_proxy::Config;
use bentpipe_testbed::{Child, find_tool};

use super::daemon::Daemon;
use super::ours;
use super::scratch;
use super::topology::{Family, words};
use super::trial::{Outcome, PORT, Trial};

/// Suspects that are tried at most; each takes as long as a connection that hangs.
const MOST_SUSPECTS: usize = 40;
/// What a trace takes to be written.
const TRACE_DELAY: Duration = Duration::from_millis(200);
/// The table that asks for a trace.
const TRACE_TABLE: &str = "bentpipe_probe";

/// Settings that are known to swallow connections, and the value that does not. `{}` is an interface.
const SETTINGS: [(&str, &str); 10] = [
    ("ipv4/ip_forward", "1"),
    ("ipv4/conf/{}/forwarding", "1"),
    ("ipv6/conf/all/forwarding", "1"),
    ("ipv4/tcp_fwmark_accept", "0"),
    ("ipv4/fwmark_reflect", "0"),
    ("ipv6/fwmark_reflect", "0"),
    ("ipv4/conf/{}/src_valid_mark", "0"),
    ("ipv4/conf/{}/rp_filter", "0"),
    ("bridge/bridge-nf-call-iptables", "0"),
    ("bridge/bridge-nf-call-ip6tables", "0"),
];

/// Why a connection does not come through, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) cause: String,
    pub(super) remedy: String,
}

/// Something of the gateway that may be taken away from the copy.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Suspect {
    Setting { key: String, harmless: &'static str },
    Rule { family: Family, line: String },
    Table { name: String },
}

/// For a connection that the gateway itself does not forward.
pub(super) fn of_unsplit(trial: &Trial) -> Finding {
    let traced = trace(trial, || drop(trial.attempt(None)));
    traced.or_else(|| without_a_suspect(trial, || trial.attempt(None).is_through())).unwrap_or_else(unknown)
}

/// For a connection that is not split.
pub(super) fn of_split(trial: &Trial, config: &Config, outcome: &Outcome) -> Finding {
    let split = || match Daemon::start(trial, config) {
        Ok(daemon) => trial.attempt(Some(&daemon)),
        Err(error) => Outcome::NoDaemon(format!("{error:#}")),
    };
    let hangs = !outcome.is_through() && !matches!(outcome, Outcome::NoDaemon(_));
    let traced = if hangs { trace(trial, || drop(split())) } else { None };
    traced.or_else(|| without_a_suspect(trial, || split() == Outcome::Split)).unwrap_or_else(unknown)
}

fn unknown() -> Finding {
    Finding {
        cause: "no chain drops it, and taking away any one setting, routing rule or table does not help"
            .to_owned(),
        remedy:
            "bentpipe passes connections that it cannot split; docs/neighbours.md tells how to look further"
                .to_owned(),
    }
}

/// The chain that drops a packet of the connection that `attempt` makes.
fn trace(trial: &Trial, attempt: impl FnOnce()) -> Option<Finding> {
    let gateway = &trial.copy.gateway;
    gateway.nft(&trace_rules(trial)).ok()?;
    let mut command = gateway.command(find_tool("nft"));
    command.args(["monitor", "trace"]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut monitor = Child::spawn(command).ok()?;
    let mut stdout = monitor.stdout()?;
    // Long rule sets make more text than a pipe holds.
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).map(|_| text)
    });
    std::thread::sleep(TRACE_DELAY);
    attempt();
    std::thread::sleep(TRACE_DELAY);
    let ended = monitor.kill();
    let _ = gateway.nft(&format!("delete table inet {TRACE_TABLE}"));
    ended.ok()?;
    reader.join().ok()?.ok()?.lines().find_map(dropped)
}

/// Asks for a trace of everything between the client and the server.
fn trace_rules(trial: &Trial) -> String {
    let (path, word) = (trial.path, ["ip", "ip6"][trial.path.family as usize]);
    let chain = |hook: &str| {
        format!(
            "chain {hook} {{\n type filter hook {hook} priority -400;\n \
             {word} daddr {} tcp dport {PORT} meta nftrace set 1\n \
             {word} saddr {} tcp sport {PORT} meta nftrace set 1\n}}\n",
            path.server, path.server
        )
    };
    format!("table inet {TRACE_TABLE} {{\n{}{}}}\n", chain("prerouting"), chain("output"))
}

/// A line of a trace that ends a packet:
/// `trace id 1 inet filter forward rule tcp dport 443 drop (verdict drop)` or
/// `trace id 1 inet filter forward policy drop`.
fn dropped(line: &str) -> Option<Finding> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let ["trace", "id", _, family, table, chain, kind, rest @ ..] = words.as_slice() else { return None };
    let name = format!("{family} {table}");
    let what = match (*kind, rest) {
        ("rule", [rule @ .., "(verdict", "drop)"]) => format!("by the rule `{}`", rule.join(" ")),
        // A mark of the packet follows.
        ("policy", ["drop", ..]) => "by its policy".to_owned(),
        _ => return None,
    };
    (!ours::is_table(&name)).then(|| Finding {
        cause: format!("dropped in the chain {chain} of the table {name} {what}"),
        remedy: format!("allow the connection there: nft -a list chain {name} {chain}"),
    })
}

/// Takes the suspects away, one at a time, until the connection works.
fn without_a_suspect(trial: &Trial, mut works: impl FnMut() -> bool) -> Option<Finding> {
    suspects(trial).into_iter().take(MOST_SUSPECTS).find_map(|suspect| {
        suspect.take_away(trial).ok()?;
        let works = works();
        let put_back = suspect.put_back(trial);
        if let Err(error) = put_back {
            tracing::debug!("{suspect}: {error:#}");
        }
        works.then(|| suspect.finding())
    })
}

fn suspects(trial: &Trial) -> Vec<Suspect> {
    let interfaces = ["all", &trial.path.lan, &trial.path.leg, "lo"];
    let setting = |(pattern, harmless): (&str, &'static str)| {
        let keys = match pattern.contains("{}") {
            true => interfaces.map(|name| pattern.replace("{}", name)).to_vec(),
            false => vec![pattern.to_owned()],
        };
        let harmful = |key: &String| trial.plan.settings.get(key).is_some_and(|value| value != harmless);
        keys.into_iter().filter(harmful).map(|key| Suspect::Setting { key, harmless }).collect::<Vec<_>>()
    };
    let family = trial.path.family;
    let rules = trial.plan.rules[family as usize].lines().filter_map(scratch::rule);
    let rules = rules.filter(|line| !line.starts_with("pref 3276"));
    let mut tables: Vec<String> = trial.plan.firewall.tables.keys().cloned().collect();
    let word = ["ip", "ip6"][family as usize];
    let of_iptables =
        trial.plan.firewall.iptables[family as usize].lines().filter_map(|line| line.strip_prefix('*'));
    tables.extend(of_iptables.map(|table| format!("{word} {table}")));
    SETTINGS
        .into_iter()
        .flat_map(setting)
        .chain(rules.map(|line| Suspect::Rule { family, line }))
        .chain(tables.into_iter().map(|name| Suspect::Table { name }))
        .collect()
}

impl Suspect {
    fn take_away(&self, trial: &Trial) -> anyhow::Result<()> {
        match self {
            Self::Setting { key, harmless } => trial.copy.write_setting(key, harmless),
            Self::Rule { family, line } => ip_rule(trial, *family, "del", line),
            Self::Table { name } => Ok(trial.copy.gateway.nft(&format!("delete table {name}"))?),
        }
    }

    fn put_back(&self, trial: &Trial) -> anyhow::Result<()> {
        match self {
            Self::Setting { key, .. } => {
                let value = trial.plan.settings.get(key).context("it had a value")?;
                trial.copy.write_setting(key, value)
            }
            Self::Rule { family, line } => ip_rule(trial, *family, "add", line),
            Self::Table { name } => match trial.plan.firewall.tables.get(name) {
                Some(text) => trial.copy.load_table(name, text),
                None => trial.copy.load_iptables(trial.plan),
            },
        }
    }

    fn finding(&self) -> Finding {
        let remedy = match self {
            Self::Setting { key, harmless } => format!("sysctl -w {}={harmless}", dotted(key)),
            Self::Rule { family, line } => format!("ip {} rule del {line}", family.flag()),
            Self::Table { name } => format!("allow the connection there: nft -a list table {name}"),
        };
        Finding { cause: format!("without {self} it works"), remedy }
    }
}

impl fmt::Display for Suspect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting { key, .. } => write!(f, "the present value of {}", dotted(key)),
            Self::Rule { line, .. } => write!(f, "the routing rule `{line}`"),
            Self::Table { name } => write!(f, "the table {name}"),
        }
    }
}

/// A setting's name as sysctl(8) takes it; an interface's name may have a dot, and then slashes are needed.
fn dotted(key: &str) -> String {
    if key.contains('.') { format!("net/{key}") } else { format!("net.{}", key.replace('/', ".")) }
}

fn ip_rule(trial: &Trial, family: Family, verb: &str, line: &str) -> anyhow::Result<()> {
    let mut command: Command = trial.copy.gateway.command(find_tool("ip"));
    let status =
        command.args([family.flag(), "rule", verb]).args(words(line)).stderr(Stdio::null()).status()?;
    anyhow::ensure!(status.success(), "ip rule {verb} {line}: {status}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_that_drops_is_read_from_a_trace() {
        let rule = "trace id 61f1e8a5 inet firewall forward rule tcp dport 443 counter drop (verdict drop)";
        let cause = dropped(rule).unwrap().cause;
        assert_eq!(
            cause,
            "dropped in the chain forward of the table inet firewall by the rule `tcp dport 443 counter drop`"
        );
        let policy = "trace id 61f1e8a5 ip filter FORWARD policy drop meta mark 0x20000000 ";
        assert_eq!(
            dropped(policy).unwrap().cause,
            "dropped in the chain FORWARD of the table ip filter by its policy"
        );
        for line in [
            "trace id 61f1e8a5 inet firewall forward verdict continue",
            "trace id 61f1e8a5 inet firewall forward policy accept",
            "trace id 61f1e8a5 inet bentpipe_held forward rule meta mark & 0x70000000 == 0x40000000 drop (verdict drop)",
            "trace id 61f1e8a5 inet firewall forward packet: iif \"lan0\" oif \"sat0\"",
        ] {
            assert_eq!(dropped(line), None, "{line}");
        }
    }

    #[test]
    fn a_remedy_is_a_line_for_the_shell() {
        let suspect = Suspect::Setting { key: "ipv4/conf/all/src_valid_mark".into(), harmless: "0" };
        assert_eq!(suspect.finding().remedy, "sysctl -w net.ipv4.conf.all.src_valid_mark=0");
        assert_eq!(dotted("ipv4/conf/sat0.7/rp_filter"), "net/ipv4/conf/sat0.7/rp_filter");
    }
}
