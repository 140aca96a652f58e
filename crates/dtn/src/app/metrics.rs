//! The node's figures in the text format of Prometheus.

use std::fmt::Write;

use crate::node::NodeStatus;

pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A figure of a peer.
type OfPeer = fn(&crate::node::PeerStatus) -> f64;

/// All figures of a moment.
pub(crate) fn text(status: &NodeStatus) -> String {
    let mut text = String::new();
    for (name, help, value) in status.totals.each() {
        // Bytes are a unit, the rest are things.
        let name = match name.strip_suffix("_bytes") {
            Some(name) => format!("{name}_payload_bytes"),
            None => name.to_owned(),
        };
        family(&mut text, &format!("bentpipe_dtn_{name}_total"), "counter", help, &[("", value as f64)]);
    }
    let store = &status.store;
    let waiting = &status.waiting;
    let gauges = [
        ("uptime_seconds", "Time since the node started.", status.uptime_s),
        ("store_bundles", "Bundles in the store.", store.bundles as f64),
        ("store_payload_bytes", "Payload bytes in the store.", store.payload_bytes as f64),
        ("store_quota_bytes", "Payload bytes that the store takes at the most.", store.quota_bytes as f64),
        ("waiting_queued", "Bundles that wait for a session with the next node.", waiting.queued as f64),
        ("waiting_parked", "Bundles that wait for a contact or a route.", waiting.parked as f64),
        ("waiting_in_hand", "Bundles that wait for an acknowledgement.", waiting.in_hand as f64),
        ("waiting_deliverable", "Bundles that wait for an application.", waiting.deliverable as f64),
        ("waiting_fragments", "Fragments that wait for others of their bundle.", waiting.fragments as f64),
    ];
    for (name, help, value) in gauges {
        family(&mut text, &format!("bentpipe_dtn_{name}"), "gauge", help, &[("", value)]);
    }
    let by_peer = |value: OfPeer| -> Vec<(String, f64)> {
        let label = |peer: &crate::node::PeerStatus| format!("{{peer=\"{}\"}}", escape(&peer.peer));
        status.peers.iter().map(|peer| (label(peer), value(peer))).collect()
    };
    let of_peers: [(&str, &str, OfPeer); 2] = [
        ("peer_sessions", "Established sessions with a peer.", |peer| peer.sessions as f64),
        ("peer_queued", "Bundles that wait to go to a peer.", |peer| peer.queued as f64),
    ];
    for (name, help, value) in of_peers {
        let samples = by_peer(value);
        let samples: Vec<(&str, f64)> =
            samples.iter().map(|(label, value)| (label.as_str(), *value)).collect();
        family(&mut text, &format!("bentpipe_dtn_{name}"), "gauge", help, &samples);
    }
    text
}

fn family(text: &mut String, name: &str, kind: &str, help: &str, samples: &[(&str, f64)]) {
    // Writing to a String does not fail.
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for (labels, value) in samples {
        let _ = writeln!(text, "{name}{labels} {value}");
    }
}

fn escape(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"")
}
