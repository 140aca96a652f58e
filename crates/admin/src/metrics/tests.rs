//! What is written is read again, strictly, and compared with the status; the dashboard and the alerts ask
//! for nothing else.

use std::collections::{BTreeMap, BTreeSet};

use bentpipe_metrics::table;
use bentpipe_proxy::telemetry::{
    Drain, ExplicitReport, ForwardedReport, Gain, LimitsReport, PolicyReport, Use,
};
use bentpipe_proxy::{RouterStats, SnoopStats, Stats};
use proptest::prelude::*;
use serde_json::Value;

use super::*;

#[path = "../../tests/common/exposition.rs"]
mod exposition;
use exposition::{Family, assert_well_described, read};

const DASHBOARD: &str = include_str!("../../../../dist/grafana/bentpipe.json");
const ALERTS: &str = include_str!("../../../../dist/prometheus/bentpipe.rules.yml");

/// A status in which every figure there is has a number that no other has.
fn numbered() -> Status {
    let leg = |name: &str| LegReport {
        name: name.to_owned(),
        interface: Some("sat0".into()),
        congestion: Some("explicit".into()),
        rate_bps: Some(0),
        loss: Some(0.0),
        srtt_s: Some(0.0),
        min_rtt_s: Some(0.0),
        outage_s: Some(0.0),
        explicit: Some(ExplicitReport::default()),
        return_queue_s: Some(0.0),
        forwarded: Some(ForwardedReport::default()),
        ..LegReport::default()
    };
    let limit = Use { used: 0, most: Some(0) };
    let status = Status {
        version: "0.1.0".into(),
        pid: 1,
        host: String::new(),
        time_zone: None,
        config: String::new(),
        program: String::new(),
        uptime_s: 0.0,
        upgrades: 0,
        ready: true,
        not_ready: None,
        draining: Some(Drain { left_s: Some(0.0) }),
        bypass: false,
        totals: Stats::default(),
        gain: Gain { ratio: Some(0.0), start_up: Some(0.0), ..Gain::default() },
        policy: PolicyReport {
            verdicts: vec![VerdictReport { verdict: "pass".into(), count: 0 }],
            rules: vec![RuleReport {
                action: "pass".into(),
                conditions: "port 22".into(),
                ..RuleReport::default()
            }],
        },
        limits: LimitsReport {
            connections: limit,
            connections_per_client: limit,
            connecting: limit,
            buffered_bytes: limit,
            connection_rate: limit,
            connection_rate_per_client: Some(0),
            at_limit: "pass".into(),
        },
        bundle_node: None,
        legs: vec![leg("satellite"), leg("terrestrial")],
        flows: Vec::new(),
    };
    let mut document = serde_json::to_value(status).unwrap();
    let mut next = 1000;
    number_all(&mut document, &mut next);
    serde_json::from_value(document).unwrap()
}

/// Eight apart, so that an eighth of one is not another by chance, nor lost in rounding.
fn number_all(value: &mut Value, next: &mut u64) {
    match value {
        Value::Number(_) => {
            *next += 8;
            *value = (*next).into();
        }
        Value::Array(items) => items.iter_mut().for_each(|item| number_all(item, next)),
        Value::Object(fields) => fields.values_mut().for_each(|field| number_all(field, next)),
        _ => {}
    }
}

fn leaves(path: &str, value: &Value, found: &mut Vec<(String, f64)>) {
    match value {
        Value::Number(number) => found.push((path.to_owned(), number.as_f64().unwrap())),
        Value::Array(items) => items.iter().for_each(|item| leaves(path, item, found)),
        Value::Object(fields) => {
            fields.iter().for_each(|(name, field)| leaves(&format!("{path}.{name}"), field, found));
        }
        _ => {}
    }
}

fn written() -> BTreeMap<String, Family> {
    let process = Process {
        descriptors: Some(1),
        descriptor_limit: Some(2),
        resident_bytes: Some(3),
        cpu_s: Some(4.5),
    };
    read(&text(&numbered(), &process))
}

#[test]
fn every_figure_of_the_status_is_among_the_metrics() {
    let (families, document) = (written(), serde_json::to_value(numbered()).unwrap());
    let values: Vec<f64> =
        families.values().flat_map(|family| &family.samples).map(|(_, value)| *value).collect();
    let mut figures = Vec::new();
    leaves("", &document, &mut figures);
    assert!(figures.len() > 60, "{figures:?}");
    for (path, figure) in figures {
        let expected = if path.ends_with("_bps") { figure / 8.0 } else { figure };
        // A number that processes have anyway, and no figure of this one.
        assert!(values.contains(&expected) || path == ".pid", "{path} = {figure} is nowhere");
    }
}

#[test]
fn every_family_has_a_help_a_type_and_a_unit_that_its_name_says() {
    let families = written();
    assert_well_described(&families);
    for (name, family) in families {
        assert!(!family.samples.is_empty(), "{name}");
    }
}

#[test]
fn unknown_values_are_left_out_and_not_zero() {
    let mut status = numbered();
    status.legs = vec![LegReport { name: "a".into(), ..LegReport::default() }];
    (status.gain.ratio, status.draining) = (None, None);
    let families = read(&text(&status, &Process::default()));
    for name in [
        "leg_rtt_seconds",
        "leg_loss_ratio",
        "leg_explicit_queue_seconds",
        "gain_ratio",
        "drain_left_seconds",
        "descriptors_open",
    ] {
        assert!(families[&format!("bentpipe_{name}")].samples.is_empty(), "{name}");
    }
    assert_eq!(families["bentpipe_leg_outage_seconds"].samples[0].1, 0.0);
    assert_eq!(families["bentpipe_leg_outage"].samples[0].1, 0.0);
}

#[test]
fn this_process_has_descriptors_memory_and_time() {
    let process = Process::now();
    assert!(process.descriptors.is_some_and(|open| open >= 3), "{process:?}");
    assert!(process.resident_bytes.is_some_and(|bytes| bytes > 1 << 20), "{process:?}");
    let before = process.cpu_s.unwrap();
    // The kernel counts in ticks of 10 ms.
    while cpu_seconds().unwrap() <= before {
        std::hint::spin_loop();
    }
}

#[test]
fn the_documentation_has_every_metric_as_it_is_declared() {
    let mut rows = String::new();
    table(&mut rows, PREFIX, BUILD);
    table(&mut rows, PREFIX, DAEMON);
    table(&mut rows, PREFIX, Stats::METRICS);
    table(&mut rows, PREFIX, SnoopStats::METRICS);
    table(&mut rows, PREFIX, RouterStats::METRICS);
    table(&mut rows, PREFIX, bentpipe_proxy::ProtectStats::METRICS);
    table(&mut rows, PREFIX, VERDICTS);
    table(&mut rows, PREFIX, RULES);
    table(&mut rows, PREFIX, LIMITS);
    table(&mut rows, PREFIX, MEMORY_LIMIT);
    table(&mut rows, PREFIX, LEG_INFO);
    table(&mut rows, PREFIX, LEGS);
    table(&mut rows, PREFIX, FORWARDED);
    table(&mut rows, PREFIX, PROCESS);
    let page = include_str!("../../../../docs/metrics.md");
    assert!(page.contains(&rows), "the rows of docs/metrics.md should be:\n{rows}");
}

proptest! {
    #[test]
    fn any_name_of_a_leg_is_read_as_it_is(names in proptest::collection::btree_set("\\PC*|[\\\\\"\n{},= ]{0,8}", 1..5)) {
        let legs = names.iter().map(|name| LegReport {
            name: name.clone(),
            interface: Some(name.clone()),
            ..LegReport::default()
        });
        let families = read(&text(&Status { legs: legs.collect(), ..numbered() }, &Process::default()));
        let of = |family: &str| -> BTreeSet<String> {
            families[family].samples.iter().map(|(labels, _)| labels["leg"].clone()).collect()
        };
        prop_assert_eq!(&of("bentpipe_leg_flows"), &names);
        prop_assert_eq!(&of("bentpipe_leg_info"), &names);
    }
}

/// The names of metrics in an expression, each with the labels that its braces ask for.
fn asked_for(expression: &str) -> Vec<(String, Vec<String>)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    expression
        .match_indices("bentpipe_")
        .map(|(place, _)| {
            let rest = &expression[place..];
            let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
            let braces = rest[end..]
                .strip_prefix('{')
                .and_then(|inside| inside.split_once('}'))
                .map_or("", |(inside, _)| inside);
            let labels = braces
                .split(',')
                .filter_map(|pair| pair.split_once(['=', '!']))
                .map(|(label, _)| label.trim().to_owned());
            (rest[..end].to_owned(), labels.collect())
        })
        .collect()
}

/// Labels by which an expression groups: `by (leg, instance)`.
fn groups(expression: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (place, word) in
        [" by (", " on (", "ignoring ("].iter().flat_map(|word| expression.match_indices(word))
    {
        let inside = expression[place + word.len()..].split(')').next().unwrap_or_default();
        names.extend(inside.split(',').map(|name| name.trim().to_owned()));
    }
    names
}

/// Panics unless all that the expression asks for is written.
fn assert_written(families: &BTreeMap<String, Family>, expression: &str) {
    let asked = asked_for(expression);
    assert!(!asked.is_empty(), "asks for nothing: {expression}");
    // What Prometheus adds to every series.
    let added = ["job", "instance"].map(str::to_owned);
    let mut known: BTreeSet<String> = added.clone().into();
    for (name, labels) in asked {
        let family = families.get(&name).unwrap_or_else(|| panic!("nobody writes {name}: {expression}"));
        let written: BTreeSet<&String> =
            family.samples.iter().flat_map(|(labels, _)| labels.keys()).chain(&added).collect();
        for label in labels {
            assert!(written.contains(&label), "{name} has no label {label}: {expression}");
        }
        known.extend(written.into_iter().cloned());
        let is_ranged =
            expression.contains(&format!("rate({name}")) || expression.contains(&format!("increase({name}"));
        assert_eq!(
            is_ranged,
            family.kind == "counter",
            "counters, and only they, are looked at as they grow: {expression}"
        );
    }
    for group in groups(expression) {
        assert!(known.contains(&group), "there is no label {group}: {expression}");
    }
    let balance = expression.chars().fold(0, |depth, c| depth + i32::from(c == '(') - i32::from(c == ')'));
    assert_eq!(balance, 0, "{expression}");
}

fn each<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a Value>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| each(item, key, found)),
        Value::Object(fields) => {
            for (name, field) in fields {
                if name == key {
                    found.push(field);
                }
                each(field, key, found);
            }
        }
        _ => {}
    }
}

#[test]
fn the_dashboard_uses_exported_metrics() {
    let (families, dashboard) = (written(), serde_json::from_str::<Value>(DASHBOARD).unwrap());
    assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 39);
    assert_eq!(dashboard["id"], Value::Null, "Grafana gives it one");
    let mut expressions = Vec::new();
    each(&dashboard["panels"], "expr", &mut expressions);
    assert!(expressions.len() >= 20, "{}", expressions.len());
    for expression in expressions {
        assert_written(&families, expression.as_str().unwrap());
    }
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    for variable in variables.iter().filter(|variable| variable["type"] == "query") {
        let (name, label) = variable["query"]["query"]
            .as_str()
            .unwrap()
            .strip_prefix("label_values(")
            .unwrap()
            .split_once(", ")
            .unwrap();
        assert!(families.contains_key(name.split('{').next().unwrap()), "{variable}");
        assert!(["leg)", "instance)"].contains(&label), "{variable}");
    }
}

#[test]
fn the_dashboards_panels_fit_together() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        let of = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        for (x, y) in (0..of("w")).flat_map(|x| (0..of("h")).map(move |y| (x, y))) {
            let place = (of("x") + x, of("y") + y);
            assert!(place.0 < 24 && taken.insert(place), "{} is on another's place", panel["title"]);
        }
        if panel["type"] != "row" {
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{}", panel["title"]);
            assert!(panel["description"].as_str().is_some_and(|text| text.len() > 10), "{}", panel["title"]);
            assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{}", panel["title"]);
        }
        let mut letters = BTreeSet::new();
        for target in panel["targets"].as_array().into_iter().flatten() {
            assert!(letters.insert(target["refId"].as_str().unwrap()), "{}", panel["title"]);
        }
    }
}

#[test]
fn the_alerts_use_exported_metrics() {
    let families = written();
    let expressions: Vec<&str> =
        ALERTS.lines().filter_map(|line| line.trim().strip_prefix("expr: ")).collect();
    let count = |key: &str| {
        ALERTS.lines().filter(|line| line.trim().trim_start_matches("- ").starts_with(key)).count()
    };
    assert!(expressions.len() >= 6);
    for key in ["alert: ", "expr: ", "summary: ", "description: ", "severity: "] {
        assert_eq!(count(key), expressions.len(), "{key}");
    }
    for expression in expressions {
        assert_written(&families, expression);
    }
}
