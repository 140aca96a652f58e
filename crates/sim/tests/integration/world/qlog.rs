//! The qlog of senders: whether it is what its schema says, and what the rest of the trace says.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use bentpipe_sim::TraceContent;
use serde_json::Value;

use super::capture::traced;

/// The events, with the keys of their data that draft-ietf-quic-qlog-quic-events-02 has for them.
const EVENTS: [(&str, &[&str]); 5] = [
    (
        "recovery:metrics_updated",
        &[
            "min_rtt",
            "smoothed_rtt",
            "rtt_variance",
            "pto_count",
            "congestion_window",
            "bytes_in_flight",
            "ssthresh",
        ],
    ),
    ("recovery:congestion_state_updated", &["old", "new", "trigger"]),
    ("recovery:packet_lost", &["header"]),
    ("transport:packet_sent", &["header", "raw"]),
    ("transport:packet_received", &["header", "raw", "frames"]),
];

/// The records of a file (RFC 7464).
fn records(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.starts_with('\u{1e}') && text.ends_with('\n'));
    text.split('\u{1e}').skip(1).map(|record| serde_json::from_str(record).unwrap()).collect()
}

/// The download over a lossy GEO link, split at the gateway: its trace, and the records of each leg.
fn logs(folder: &Path) -> Vec<Vec<Value>> {
    let settings = &["flow.split.bytes=2MB", "link.satellite.per=3%"];
    let content = TraceContent { qlog: true, ..TraceContent::default() };
    let (scenario, result) = traced(folder, "geo-download.toml", settings, content);
    assert!(result.flows[0].finished && result.flows[0].retransmissions > 10, "{result:?}");
    let name = &scenario.flows[0].name;
    let legs = 1..=scenario.flows[0].legs.len();
    legs.map(|leg| records(&folder.join(format!("{name}-{leg}.sqlog")))).collect()
}

#[test]
fn each_record_is_one_of_the_schema_and_they_are_in_the_order_of_time() {
    let folder = tempfile::tempdir().unwrap();
    for records in logs(folder.path()) {
        let [header, events @ ..] = &records[..] else { panic!() };
        assert_eq!((&header["qlog_version"], &header["qlog_format"]), (&"0.3".into(), &"JSON-SEQ".into()));
        let common = &header["trace"]["common_fields"];
        assert_eq!((&common["time_format"], &common["reference_time"]), (&"relative".into(), &0.into()));
        assert_eq!(header["trace"]["vantage_point"]["type"], "server");
        assert!(events.is_sorted_by_key(|event| (event["time"].as_f64().unwrap() * 1e6) as u64));
        let mut names = BTreeSet::new();
        for event in events {
            let name = event["name"].as_str().unwrap();
            let (_, keys) = EVENTS.iter().find(|(known, _)| *known == name).expect(name);
            let data = event["data"].as_object().unwrap();
            assert!(!data.is_empty() && data.keys().all(|key| keys.contains(&&**key)), "{event}");
            check(name, &event["data"]);
            names.insert(name);
        }
        assert!(names.contains("transport:packet_received"), "{names:?}");
    }
}

/// Types and required fields.
fn check(name: &str, data: &Value) {
    match name {
        "recovery:metrics_updated" => {
            for (key, value) in data.as_object().unwrap() {
                let is_time = key.contains("rtt");
                assert!(
                    if is_time { value.as_f64().is_some_and(|ms| ms > 0.0) } else { value.is_u64() },
                    "{data}"
                );
            }
        }
        "recovery:congestion_state_updated" => assert!(data["new"].is_string(), "{data}"),
        _ => {
            assert_eq!(data["header"]["packet_type"], "1RTT");
            assert!(data["header"]["packet_number"].is_u64(), "{data}");
            assert!(name == "recovery:packet_lost" || data["raw"]["length"].as_u64() >= Some(40), "{data}");
            for frame in data["frames"].as_array().into_iter().flatten() {
                let ranges = frame["acked_ranges"].as_array().unwrap();
                assert!(frame["frame_type"] == "ack" && !ranges.is_empty(), "{data}");
                assert!(ranges.iter().all(|range| range[0].as_u64() <= range[1].as_u64()), "{data}");
            }
        }
    }
}

#[test]
fn the_variables_are_those_of_legs_csv() {
    let folder = tempfile::tempdir().unwrap();
    let logs = logs(folder.path());
    let mut rows = csv::Reader::from_path(folder.path().join("legs.csv")).unwrap();
    let columns = rows.headers().unwrap().clone();
    let (mut compared, mut next, mut known) = (0, vec![1; logs.len()], vec![BTreeMap::new(); logs.len()]);
    for row in rows.records() {
        let row = row.unwrap();
        let field = |name: &str| row.get(columns.iter().position(|column| column == name).unwrap()).unwrap();
        if field("flow") != "split" {
            continue;
        }
        let number = |name: &str| field(name).parse::<f64>().unwrap_or(0.0);
        let (now, leg) = (number("time_s"), number("leg") as usize - 1);
        let mut at_the_instant = false;
        while let Some(event) = logs[leg].get(next[leg]) {
            let time = event["time"].as_f64().unwrap() / 1e3;
            if time > now {
                break;
            }
            at_the_instant |= time == now;
            if event["name"] == "recovery:metrics_updated" {
                let data = event["data"].as_object().unwrap();
                known[leg].extend(data.iter().map(|(key, value)| (key.clone(), value.as_f64().unwrap())));
            }
            next[leg] += 1;
        }
        // The sample is taken before or after what happens at the same instant; before the handshake there
        // is no event.
        if at_the_instant || known[leg].is_empty() {
            continue;
        }
        let is_same = |key: &str, expected: f64| {
            let found = known[leg].get(key).copied().unwrap_or(0.0);
            assert!((found - expected).abs() < 1e-6, "{key} at {now} s: {found}, {row:?}");
        };
        is_same("congestion_window", number("cwnd_bytes"));
        is_same("ssthresh", number("ssthresh_bytes"));
        is_same("smoothed_rtt", number("srtt_s") * 1e3);
        is_same("pto_count", number("backoff"));
        is_same("bytes_in_flight", number("in_flight_bytes"));
        compared += 1;
    }
    assert!(compared > 30, "{compared}");
}

#[test]
fn packets_are_numbered_acknowledged_once_and_those_sent_again_are_lost_before() {
    let folder = tempfile::tempdir().unwrap();
    let content = TraceContent { qlog: true, ..TraceContent::default() };
    let settings = ["flow.split.bytes=2MB", "link.satellite.per=3%"];
    let (_, result) = traced(folder.path(), "geo-download.toml", &settings, content);
    let mut lost_in_all = 0;
    for (index, leg) in result.flows[0].legs.iter().enumerate() {
        let records = records(&folder.path().join(format!("split-{}.sqlog", index + 1)));
        let of = |name: &'static str| records.iter().filter(move |event| event["name"] == name);
        let number = |event: &Value| event["data"]["header"]["packet_number"].as_u64().unwrap();
        let sent: Vec<u64> = of("transport:packet_sent").map(number).collect();
        assert!(sent.iter().copied().eq(0..sent.len() as u64), "{sent:?}");
        // The first one is the SYN, or the answer to it.
        assert_eq!(sent.len() as u64, leg.segments + 1);
        let lost: BTreeSet<u64> = of("recovery:packet_lost").map(number).collect();
        assert_eq!(Some(lost.len() as u64), Some(leg.retransmissions));
        let mut acknowledged = BTreeSet::new();
        for range in of("transport:packet_received").flat_map(|event| {
            event["data"]["frames"][0]["acked_ranges"].as_array().cloned().unwrap_or_default()
        }) {
            let [first, last] = [0, 1].map(|end| range[end].as_u64().unwrap());
            (first..=last).for_each(|number| assert!(acknowledged.insert(number), "{number} twice"));
        }
        // All has arrived, so each number is acknowledged, or was sent again; never both.
        assert!(acknowledged.is_disjoint(&lost));
        assert_eq!(acknowledged.len() + lost.len(), sent.len());
        lost_in_all += lost.len();
    }
    assert!(lost_in_all > 10);
}
