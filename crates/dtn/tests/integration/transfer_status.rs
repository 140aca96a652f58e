//! The status URL that a client gets with each 202.

use std::net::SocketAddr;

use serde_json::Value;

use crate::transfer_common::*;

const WITH_REPORTS: &str =
    "[[inlets]]\nkind = \"http\"\naddress = \"127.0.0.1:0\"\nto = \"dtn://b/out\"\nreports = true\n";
const PATH: &str = "/.well-known/bentpipe/transfers/";

/// A PUT; returns the path of its status.
async fn put(to: SocketAddr, target: &str, body: &str) -> String {
    let len = body.len();
    let request = format!(
        "PUT {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: {len}\r\n\r\n{body}"
    );
    let answer = talk(to, request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
    let location = answer.lines().find_map(|line| line.strip_prefix("location: ")).expect("a location");
    assert!(location.starts_with(PATH), "{location}");
    location.to_owned()
}

async fn get(to: SocketAddr, path: &str) -> String {
    talk(to, format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").as_bytes()).await
}

/// The status document.
async fn status(to: SocketAddr, path: &str) -> Value {
    let answer = get(to, path).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("application/json"), "{answer}");
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

/// The status document when it has this state.
async fn until_state(to: SocketAddr, path: &str, state: &str) -> Value {
    let start = std::time::Instant::now();
    loop {
        let status = status(to, path).await;
        if status["state"] == state {
            return status;
        }
        assert!(start.elapsed() < PATIENCE, "not {state}: {status}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

fn event<'a>(status: &'a Value, name: &str) -> &'a Value {
    let events = status["events"].as_array().unwrap();
    events.iter().find(|event| event["event"] == name).unwrap_or_else(|| panic!("no {name}: {status}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_can_follow_its_put_until_the_server_has_it() {
    let server = Server::start(&[]).await;
    let mut pair = Pair::start(WITH_REPORTS, &server.outlet()).await;
    pair.kill_b().await;
    let path = put(pair.inlet(), "/a", "body").await;
    let waiting = status(pair.inlet(), &path).await;
    assert!(["waiting", "sending"].contains(&waiting["state"].as_str().unwrap()), "{waiting}");
    assert_eq!(
        (&waiting["destination"], &waiting["here"][0]["peer"]),
        (&"dtn://b/out".into(), &"dtn://b/".into())
    );
    // The envelope counts, too.
    assert!(waiting["here"][0]["payload_bytes"].as_u64().unwrap() > 4, "{waiting}");
    assert!(waiting["expires"].as_str().unwrap() > waiting["created"].as_str().unwrap(), "{waiting}");
    pair.start_b().await;
    let delivered = until_state(pair.inlet(), &path, "delivered").await;
    assert_eq!(server.told().len(), 1);
    assert_eq!(event(&delivered, "delivered")["node"], "dtn://b/");
    assert!(event(&delivered, "delivered")["time"].as_str().unwrap().ends_with('Z'), "{delivered}");
    assert_eq!(event(&delivered, "forwarded")["to"], "dtn://b/");
    assert_eq!(delivered["here"], Value::Array(Vec::new()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_reports_it_ends_with_forwarded() {
    let server = Server::start(&[]).await;
    let pair = Pair::start(HTTP_INLET, &server.outlet()).await;
    let path = put(pair.inlet(), "/a", "body").await;
    server.hears(1).await;
    pair.settle().await;
    let status = until_state(pair.inlet(), &path, "forwarded").await;
    assert_eq!(status["events"].as_array().unwrap().len(), 1, "{status}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_refuses_for_good_is_said() {
    let server = Server::start(&[404]).await;
    let pair = Pair::start(WITH_REPORTS, &server.outlet()).await;
    let path = put(pair.inlet(), "/a", "body").await;
    let status = until_state(pair.inlet(), &path, "deleted").await;
    let deleted = event(&status, "deleted");
    assert_eq!(
        (&deleted["node"], &deleted["reason"]),
        (&"dtn://b/".into(), &"destination endpoint unavailable".into())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_too_long_has_expired() {
    let inlet = format!("{HTTP_INLET}lifetime = \"300ms\"\n");
    let mut pair = Pair::start(&inlet, "").await;
    pair.kill_b().await;
    let path = put(pair.inlet(), "/a", "body").await;
    let status = until_state(pair.inlet(), &path, "expired").await;
    assert_eq!(event(&status, "deleted")["node"], "dtn://a/");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_status_url_survives_a_restart() {
    let server = Server::start(&[]).await;
    let mut pair = Pair::start(WITH_REPORTS, &server.outlet()).await;
    let gone = put(pair.inlet(), "/gone", "body").await;
    until_state(pair.inlet(), &gone, "delivered").await;
    pair.settle().await;
    pair.kill_b().await;
    let waits = put(pair.inlet(), "/waits", "body").await;
    pair.kill_a().await;
    pair.start_a().await;
    // What left before the restart is forgotten; what is in the store is not.
    assert_eq!(status(pair.inlet(), &gone).await["state"], "unknown");
    until_state(pair.inlet(), &waits, "waiting").await;
    pair.start_b().await;
    until_state(pair.inlet(), &waits, "delivered").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fragmented_bundle_is_followed_in_its_parts() {
    let server = Server::start(&[]).await;
    let mut pair = Pair::start(WITH_REPORTS, &server.outlet()).await;
    pair.kill_a().await;
    pair.fragments_above("8kB");
    pair.start_a().await;
    let path = put(pair.inlet(), "/long", &"x".repeat(50_000)).await;
    let status = until_state(pair.inlet(), &path, "delivered").await;
    let forwarded =
        status["events"].as_array().unwrap().iter().filter(|event| event["event"] == "forwarded").count();
    assert!(forwarded > 5, "{status}");
    assert_eq!(server.told()[0].body.len(), 50_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_finds_another_transfer_by_guessing() {
    let pair = Pair::start(HTTP_INLET, "").await;
    let path = put(pair.inlet(), "/a", "body").await;
    let last = if path.ends_with('0') { '1' } else { '0' };
    let other = format!("{}{last}", &path[..path.len() - 1]);
    for guess in [PATH, &format!("{PATH}1"), &other, &path[..path.len() - 2], &format!("{path}/")] {
        assert!(get(pair.inlet(), guess).await.starts_with("HTTP/1.1 404 "), "{guess}");
    }
    let head = format!("HEAD {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    let answer = talk(pair.inlet(), head.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\n"), "{answer}");
    // A PUT there is a PUT as any other, and other methods are no answers.
    put(pair.inlet(), &path, "body").await;
    let post = format!("POST {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    assert!(talk(pair.inlet(), post.as_bytes()).await.starts_with("HTTP/1.1 405 "));
}
