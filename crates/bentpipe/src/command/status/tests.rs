use super::*;

/// A document for tests: one leg in an outage, two flows.
pub(in crate::command) fn sample() -> Document {
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
    status.bypass = true;
    assert!(summary(&status)[0].contains("  bypass: new connections pass unsplit  up "));
    status.draining = Some(bentpipe_proxy::telemetry::Drain { left_s: Some(90.0) });
    assert!(summary(&status)[0].contains("draining, 1 min 30 s left"));
}
