use super::*;
use bentpipe_proxy::telemetry::{ForwardedReport, LimitsReport};

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
        "host": "gw1",
        "gain": {"ratio": 12.54, "state": "measured", "actual_bps": 9e6, "end_to_end_bps": 7.2e5, "start_up": 0.31},
        "policy": {
            "verdicts": [{"verdict": "split", "count": 12}, {"verdict": "pass", "count": 88}, {"verdict": "limit", "count": 0},
                {"verdict": "not_ready", "count": 3}],
            "rules": [{"place": 1, "action": "pass", "conditions": "port 22", "comment": "ssh", "matched": 88}]},
        "limits": LimitsReport {
            connections: Use { used: 12, most: Some(10_000) }, buffered_bytes: Use { used: 0, most: Some(512_000_000) },
            connection_rate: Use { used: 7, most: Some(300) }, ..LimitsReport::default() },
        "legs": [LegReport { name: "satellite".into(), outage_s: Some(65.0), sent_bps: 4.67e6, srtt_s: Some(0.9),
            min_rtt_s: Some(0.6), return_queue_s: Some(0.29),
            forwarded: Some(ForwardedReport { sent_bps: 14.01e6, ..ForwardedReport::default() }), ..LegReport::default() },
            LegReport { name: TERRESTRIAL.into(), ..LegReport::default() }],
        "flows": [flow(1, 5e6), flow(2, 4e6)],
    });
    serde_json::from_value(document).expect("a document of this version")
}

#[test]
fn one_screen_shows_the_essentials() {
    let text = text(&sample());
    for part in [
        "bentpipe 0.1.0  on gw1  ready  up 2 h 14 min  process 4711\n",
        "flows   12 open of 10000, 0 of them",
        "in buffers of 512 MB\n",
        "gain    x12.5: 9.00 Mbit/s instead of 720 kbit/s end to end in 30 s, an estimate, 31% of that time slow start\n",
        "unsplit 14.0 Mbit/s into the satellite (75% of it), 0 bit/s from it\n        88 passed by rules; 3 while not ready\n",
        "limits  new per second 7 of 300\n",
        "RTT     satellite: 290 ms of 900 ms are the queue of the other direction",
        "\n   1  pass    port 22          88  ssh",
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
fn a_gain_that_cannot_be_told_says_why() {
    use bentpipe_proxy::telemetry::{Gain, GainState};
    let mut status = sample();
    for (state, reason) in [
        (GainState::NothingSent, "gain    not measurable: nothing is being sent to the satellite"),
        (
            GainState::Outage,
            "gain    not measurable: the satellite leg is out, or was until a few seconds ago",
        ),
        (GainState::TooLittle, "gain    not measurable yet: too little has been sent to the satellite"),
    ] {
        status.gain = Gain { state, ..Gain::default() };
        assert!(summary(&status).contains(&reason.to_owned()), "{:?}", summary(&status));
    }
}

#[test]
fn obstacles_to_splitting_are_in_the_first_line() {
    let mut status = sample();
    status.ready = false;
    assert!(summary(&status)[0].contains("NOT READY"));
    assert_eq!(summary(&status)[1], "problem new connections pass unsplit; the log says why");
    status.not_ready = Some("IPv4 forwarding: off".to_owned());
    assert_eq!(summary(&status)[1], "problem IPv4 forwarding: off");
    status.bypass = true;
    assert!(summary(&status)[0].contains("  bypass: new connections pass unsplit  up "));
    status.draining = Some(bentpipe_proxy::telemetry::Drain { left_s: Some(90.0) });
    assert!(summary(&status)[0].contains("draining, 1 min 30 s left"));
}
