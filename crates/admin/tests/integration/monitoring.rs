//! The alert rules and the dashboard's queries in a real Prometheus, which scrapes the real server.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bentpipe_admin::history::Recorder;
use bentpipe_admin::{Identity, Sockets, Status, View, serve};
use bentpipe_proxy::Stats;
use bentpipe_proxy::config::{AdminSettings, Listen};
use bentpipe_proxy::telemetry::{Drain, FlowReport, Gain, LegReport, LimitsReport, PolicyReport};
use serde_json::Value;

use crate::common::daemon::working;
use crate::served::speak;

const DASHBOARD: &str = include_str!("../../../../dist/grafana/bentpipe.json");
const RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/prometheus/bentpipe.rules.yml");
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether the program is there; says so if not.
fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if found.is_err() {
        println!("skipped: needs {program}: scripts/setup-peers prometheus");
    }
    found.is_ok()
}

fn promtool(arguments: &[&str]) {
    let output = Command::new("promtool").args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "promtool {arguments:?}: {said}");
}

#[test]
fn promtool_takes_the_alert_rules() {
    if has("promtool") {
        promtool(&["check", "rules", RULES]);
    }
}

/// Series, when to look, and the alert that must fire then, alone.
const CASES: &[(&str, &str, &str)] = &[
    ("bentpipe_ready 0x9|bentpipe_draining 0x9|bentpipe_bypass 0x9", "3m", "BentpipeNotReady"),
    ("bentpipe_bypass 1x900", "13h", "BentpipeBypassed"),
    ("bentpipe_leg_outage_seconds{leg=\"geo\"} 61x9", "1m", "BentpipeLegOutage"),
    ("bentpipe_leg_interface_missing{leg=\"geo\"} 1x9", "6m", "BentpipeLegInterfaceMissing"),
    ("bentpipe_leg_loss_ratio{leg=\"geo\"} 0.06x20", "12m", "BentpipeLegLoss"),
    ("bentpipe_flows_refused_total 0+5x20", "11m", "BentpipeLimitReached"),
    (
        "bentpipe_limit_used{limit=\"connections\"} 95x20|bentpipe_limit{limit=\"connections\"} 100x20",
        "15m",
        "BentpipeLimitNear",
    ),
    (
        "bentpipe_leg_forwarded_sent_bytes_total{leg=\"geo\",class=\"tcp\"} 0+6000000x100|\
         bentpipe_leg_sent_bytes_total{leg=\"geo\"} 0+60000x100",
        "90m",
        "BentpipeMostTrafficUnsplit",
    ),
];

#[test]
fn alerts_fire_when_they_should_and_not_on_a_healthy_gateway() {
    if !has("promtool") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut text = format!("rule_files: ['{RULES}']\nevaluation_interval: 1m\ntests:\n");
    for (series, at, alert) in CASES {
        text += "  - interval: 1m\n    input_series:\n";
        for one in series.split('|').chain(["bentpipe_build_info 1x900"]) {
            let (name, values) = one.rsplit_once(' ').unwrap();
            text += &format!("      - series: '{name}'\n        values: '{values}'\n");
        }
        text += &format!(
            "    promql_expr_test:\n      - expr: count(ALERTS{{alertname=\"{alert}\", alertstate=\"firing\"}})\n        \
             eval_time: {at}\n        exp_samples: [{{value: 1}}]\n      - expr: count by (alertname) (ALERTS{{alertname!=\"{alert}\"}})\n        \
             eval_time: {at}\n        exp_samples: []\n"
        );
    }
    text += "  - interval: 1m\n    input_series:\n";
    let healthy = [
        "bentpipe_build_info 1x900",
        "bentpipe_ready 1x900",
        "bentpipe_draining 0x900",
        "bentpipe_bypass 0x900",
        "bentpipe_leg_interface_missing{leg=\"geo\"} 0x900",
        "bentpipe_leg_outage_seconds{leg=\"geo\"} 0x900",
        "bentpipe_leg_loss_ratio{leg=\"geo\"} 0.01x900",
        "bentpipe_limit_used{limit=\"connections\"} 5x900",
        "bentpipe_limit{limit=\"connections\"} 100x900",
        "bentpipe_leg_forwarded_sent_bytes_total{leg=\"geo\",class=\"tcp\"} 0+60000x900",
        "bentpipe_leg_sent_bytes_total{leg=\"geo\"} 0+6000000x900",
    ];
    for one in healthy {
        let (name, values) = one.rsplit_once(' ').unwrap();
        text += &format!("      - series: '{name}'\n        values: '{values}'\n");
    }
    text += "    promql_expr_test:\n      - expr: ALERTS\n        eval_time: 14h\n        exp_samples: []\n";
    let file = folder.path().join("alerts.yml");
    fs::write(&file, text).unwrap();
    promtool(&["test", "rules", file.to_str().unwrap()]);
}

/// What a gateway at work says.
struct Working(Status);

impl View for Working {
    fn stats(&self) -> Stats {
        self.0.totals
    }

    fn legs(&self) -> Vec<LegReport> {
        self.0.legs.clone()
    }

    fn gain(&self) -> Gain {
        self.0.gain
    }

    fn policy(&self) -> PolicyReport {
        self.0.policy.clone()
    }

    fn limits(&self) -> LimitsReport {
        self.0.limits.clone()
    }

    fn flows(&self, _most: usize) -> Vec<FlowReport> {
        Vec::new()
    }

    fn is_ready(&self) -> bool {
        true
    }

    fn draining(&self) -> Option<Drain> {
        None
    }

    fn bypass(&self) -> bool {
        false
    }

    fn uptime(&self) -> Duration {
        Duration::from_secs(61)
    }

    fn upgrades(&self) -> u64 {
        0
    }
}

/// A Prometheus that ends with this value.
struct Prometheus {
    child: Child,
    address: SocketAddr,
}

impl Prometheus {
    /// It scrapes this target every second.
    fn start(folder: &Path, target: SocketAddr) -> Self {
        let config = folder.join("prometheus.yml");
        let text = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{RULES}']\n\
             scrape_configs: [{{job_name: bentpipe, static_configs: [{{targets: ['{target}']}}]}}]\n"
        );
        fs::write(&config, text).unwrap();
        promtool(&["check", "config", config.to_str().unwrap()]);
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, address }
    }

    /// What it says to a question, once it listens.
    fn ask(&self, path: &str) -> Option<Value> {
        let stream = TcpStream::connect(self.address).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let answer = speak(stream, &format!("GET /api/v1/{path}"), &["Host: prometheus"], "").ok()?;
        serde_json::from_str(&answer.body).ok()
    }

    fn until(&self, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let answer = self.ask(path);
            match answer {
                Some(answer) if is_so(&answer) => return answer,
                answer => assert!(start.elapsed() < PATIENCE, "{path}: {answer:#?}"),
            }
            std::thread::sleep(Duration::from_millis(300));
        }
    }

    /// The answer to an expression.
    fn query(&self, expression: &str) -> Value {
        let encoded: String = expression.bytes().map(|byte| format!("%{byte:02x}")).collect();
        self.ask(&format!("query?query={encoded}")).unwrap()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| expressions(item, found)),
        Value::Object(fields) => {
            found.extend(fields.get("expr").and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|field| expressions(field, found));
        }
        _ => {}
    }
}

#[test]
fn prometheus_scrapes_the_daemon_and_answers_every_question_of_the_dashboard() {
    if !has("prometheus") || !has("promtool") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let settings = AdminSettings {
        folder: folder.path().join("run"),
        listen: Listen::At(SocketAddr::from(([127, 0, 0, 1], 0))),
        ..AdminSettings::default()
    };
    let sockets = Sockets::open(&settings, None, &[]).unwrap();
    let identity = Identity { config: "/etc/bentpipe.toml".into(), program: "8:1:2".into() };
    let (sender, _orders) = mpsc::channel();
    let _admin = serve(&sockets, Working(working(20)), identity, Recorder::default(), sender).unwrap();
    let prometheus = Prometheus::start(folder.path(), sockets.tcp_address().unwrap());
    prometheus.until("targets?state=active", |answer| answer["data"]["activeTargets"][0]["health"] == "up");
    // Rates need two scrapes.
    prometheus.until("query?query=count_over_time(bentpipe_ready%5B1m%5D)", |answer| {
        let value = answer["data"]["result"][0]["value"][1].as_str();
        value.and_then(|text| text.parse::<f64>().ok()).is_some_and(|count| count >= 3.0)
    });
    let mut all = Vec::new();
    expressions(&serde_json::from_str(DASHBOARD).unwrap(), &mut all);
    assert!(all.len() > 30, "{}", all.len());
    for expression in all {
        let filled =
            expression.replace("$instance", ".*").replace("$leg", ".*").replace("$__rate_interval", "1m");
        let answer = prometheus.query(&filled);
        assert_eq!(answer["status"], "success", "{filled}: {answer:#}");
        assert_ne!(answer["data"]["result"], serde_json::json!([]), "{filled} finds nothing");
    }
    let rules = prometheus.until("rules", |answer| {
        let rules = answer["data"]["groups"][0]["rules"].as_array();
        rules.is_some_and(|rules| rules.iter().all(|rule| rule["health"] == "ok"))
    });
    let rules = rules["data"]["groups"][0]["rules"].as_array().unwrap().clone();
    assert!(rules.len() >= 11, "{}", rules.len());
    for rule in rules {
        assert_eq!(rule["state"], "inactive", "a gateway at work is no alarm: {rule:#}");
    }
}
