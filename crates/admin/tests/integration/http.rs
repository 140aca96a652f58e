//! What the server answers, to those who behave and to those who do not.

use std::io::{ErrorKind, Read, Write};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use crate::served::{Served, hear, speak};
use bentpipe_admin::{ClientError, Command, DrainTimes, Flows, Status};
use bentpipe_proxy::ReloadReport;
use bentpipe_proxy::telemetry::Drain;

const TOKEN: &str = "dG9rZW4+dG9rZW4/dG9rZW4=";

#[test]
fn both_ways_report_the_same() {
    let served = Served::start();
    served.figures.0.flows.store(3, Ordering::SeqCst);
    for path in ["/status", "/metrics", "/health/live", "/health/ready"] {
        let (tcp, unix) = (served.get(path), served.over_unix(&format!("GET {path}"), ""));
        assert_eq!((tcp.status, unix.status), (200, 200), "{path}");
    }
    let status: Status = serde_json::from_str(&served.get("/status").body).unwrap();
    assert_eq!((status.flows.len(), status.upgrades, status.uptime_s), (3, 2, 61.0));
    assert_eq!(
        (status.ready, status.config.as_str(), status.program.as_str()),
        (true, "/etc/bentpipe.toml", "8:1:2")
    );
    assert_eq!(status.pid, std::process::id());
    let metrics = served.get("/metrics");
    assert_eq!(
        metrics.field("content-type"),
        Some("application/openmetrics-text; version=1.0.0; charset=utf-8")
    );
    assert!(
        metrics.body.contains("\nbentpipe_leg_sent_bytes_total{leg=\"satellite\"} 1000\n"),
        "{}",
        metrics.body
    );
    let head = served.over_tcp("HEAD /status", &["Host: localhost"]);
    assert_eq!((head.status, head.body.as_str()), (200, ""));
}

#[test]
fn as_many_flows_come_as_are_asked_for() {
    let served = Served::start();
    served.figures.0.flows.store(5000, Ordering::SeqCst);
    let count = |query: &str| {
        let status: Status = serde_json::from_str(&served.get(&format!("/status{query}")).body).unwrap();
        status.flows.len()
    };
    assert_eq!((count(""), count("?flows=7"), count("?flows=all")), (100, 7, 5000));
    let asked = served.figures.0.asked.load(Ordering::SeqCst);
    assert_eq!(count("?flows=0"), 0);
    served.get("/metrics");
    assert_eq!(
        served.figures.0.asked.load(Ordering::SeqCst),
        asked,
        "nobody asks workers for flows that nobody sees"
    );
    for query in
        ["?flows=-1", "?flows=", "?flows=many", "?flow=1", "?flows=1&flows=2", "?flows=99999999999999999999"]
    {
        let answer = served.get(&format!("/status{query}"));
        assert_eq!(answer.status, 400, "{query}");
        assert!(answer.error().contains("flows=all"), "{query}");
    }
}

#[test]
fn readiness_says_why_new_connections_are_not_split() {
    let served = Served::start();
    served.figures.0.is_stuck.store(true, Ordering::SeqCst);
    let answer = served.get("/health/ready");
    assert_eq!(answer.status, 503);
    assert!(answer.body.contains("not responding"), "{answer:?}");
    assert_eq!(served.get("/health/live").status, 200);
    served.figures.0.is_stuck.store(false, Ordering::SeqCst);
    *served.figures.0.draining.lock().unwrap() = Some(Drain { left_s: Some(3.0) });
    let answer = served.get("/health/ready");
    assert_eq!(answer.status, 503);
    assert!(answer.body.contains("draining"), "{answer:?}");
    let metrics = served.get("/metrics").body;
    assert!(
        metrics.contains("\nbentpipe_ready 0\n") && metrics.contains("\nbentpipe_drain_left_seconds 3\n"),
        "{metrics}"
    );
    *served.figures.0.draining.lock().unwrap() = None;
    served.figures.0.bypass.store(true, Ordering::SeqCst);
    let answer = served.get("/health/ready");
    assert_eq!(answer.status, 503);
    assert!(answer.body.contains("bentpipe bypass off"), "{answer:?}");
    let metrics = served.get("/metrics").body;
    assert!(
        metrics.contains("\nbentpipe_ready 0\n") && metrics.contains("\nbentpipe_bypass 1\n"),
        "{metrics}"
    );
}

#[test]
fn every_answer_keeps_browsers_from_doing_more_with_it() {
    let served = Served::start_with(Some(TOKEN));
    let bearer = format!("Authorization: Bearer {TOKEN}");
    let answers = [
        served.get("/status"),
        served.over_tcp("GET /status", &["Host: localhost", &bearer]),
        served.over_tcp("GET /nothing", &["Host: localhost", &bearer]),
        served.over_unix("PUT /status", ""),
    ];
    assert_eq!(answers.each_ref().map(|answer| answer.status), [401, 200, 404, 405]);
    for answer in answers {
        assert!(
            answer.field("content-security-policy").unwrap().starts_with("default-src 'none'; "),
            "{answer:?}"
        );
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("cache-control", "no-store"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-resource-policy", "same-origin"),
        ] {
            assert_eq!(answer.field(name), Some(value), "{answer:?}");
        }
        assert_eq!(answer.field("access-control-allow-origin"), None);
    }
}

#[test]
fn orders_over_tcp_are_refused() {
    let served = Served::start();
    for request in [
        "POST /reload",
        "POST /drain",
        "DELETE /drain",
        "POST /bypass",
        "DELETE /bypass",
        "PUT /status",
        "OPTIONS /status",
    ] {
        let answer = served.over_tcp(request, &["Host: localhost"]);
        assert_eq!(answer.status, 403, "{request}");
        assert!(answer.error().contains("Unix socket"), "{answer:?}");
    }
    assert_eq!(served.get("/reload").status, 404);
    assert!(served.orders.try_recv().is_err());
}

#[test]
fn missing_and_unfinished_steps_are_reported_in_json() {
    let served = Served::start();
    for (request, status) in
        [("GET /nothing", 404), ("GET /reload", 405), ("POST /status", 405), ("PUT /drain", 405)]
    {
        let answer = served.over_unix(request, "");
        assert_eq!(answer.status, status, "{request}");
        assert!(!answer.error().is_empty());
        assert_eq!(answer.field("allow").is_some(), status == 405, "{answer:?}");
    }
}

#[test]
fn a_foreign_host_is_not_answered_on_loopback() {
    let served = Served::start();
    for fields in [
        &["Host: evil.example"][..],
        &["Host: evil.example:7500"],
        &[],
        &["Host: localhost", "Host: evil.example"],
    ] {
        let answer = served.over_tcp("GET /status", fields);
        assert!(matches!(answer.status, 400 | 421), "{fields:?}: {answer:?}");
        assert!(!answer.body.contains("flows_total"));
    }
    assert_eq!(served.over_tcp("GET http://evil.example/status", &["Host: localhost"]).status, 421);
    assert_eq!(served.over_tcp("GET /status", &["Host: 127.0.0.1:7500"]).status, 200);
    assert_eq!(served.over_tcp("GET /status", &["Host: [::1]"]).status, 200);
}

#[test]
fn without_the_token_nothing_is_shown() {
    let served = Served::start_with(Some(TOKEN));
    for path in ["/status", "/metrics", "/health/live", "/nothing", "/?token=wrong", "/status?token="] {
        let answer = served.get(path);
        assert_eq!((answer.status, answer.field("connection")), (401, Some("close")), "{path}");
        assert!(answer.error().contains("Bearer"), "{answer:?}");
        assert!(!answer.head.contains("cookie"), "{answer:?}");
    }
    for field in [
        "Authorization: Basic dG9rZW4=".to_owned(),
        format!("Authorization: Bearer {}", &TOKEN[1..]),
        format!("Authorization: Bearer {TOKEN}x"),
        format!("Cookie: bentpipe-1={TOKEN}"),
    ] {
        assert_eq!(served.over_tcp("GET /status", &["Host: localhost", &field]).status, 401, "{field}");
    }
    let right = format!("Authorization: bearer {TOKEN}");
    assert_eq!(served.over_tcp("GET /status", &["Host: localhost", &right]).status, 200);
    assert_eq!(served.over_tcp("GET /status", &["Host: evil.example", &right]).status, 421);
    assert_eq!(served.over_unix("GET /status", "").status, 200, "the Unix socket has its own lock");
}

#[test]
fn a_browser_shows_the_token_once() {
    let served = Served::start_with(Some(TOKEN));
    let answer = served.get(&format!("/status?flows=1&token={}", TOKEN.replace('+', "%2B")));
    assert_eq!((answer.status, answer.field("location")), (303, Some("/status?flows=1")));
    let cookie = answer.field("set-cookie").unwrap();
    assert!(cookie.contains("; HttpOnly; SameSite=Strict") && cookie.contains("Path=/"), "{cookie}");
    let pair = format!("Cookie: other=1; {}", cookie.split(';').next().unwrap());
    assert_eq!(served.over_tcp("GET /status", &["Host: localhost", &pair]).status, 200);
    let elsewhere = served.get(&format!("//evil.example/?token={TOKEN}"));
    assert_eq!((elsewhere.status, elsewhere.field("location")), (303, Some("/evil.example/")));
    let foreign = served.over_tcp(&format!("GET /?token={TOKEN}"), &["Host: evil.example"]);
    assert_eq!(foreign.status, 421, "a foreign page gets no cookie either");
}

#[test]
fn an_order_is_answered_when_it_has_been_carried_out() {
    let served = Served::start();
    let client = served.client();
    thread::scope(|scope| {
        let calls = scope.spawn(|| {
            assert!(client.reload().unwrap().applied);
            let deadline = Some(Duration::from_millis(1500));
            client.drain(DrainTimes { deadline, ..DrainTimes::default() }).unwrap();
            client.drain(DrainTimes { deadline: None, stay: Duration::from_secs(20) }).unwrap();
            client.stop_draining().unwrap();
            client.set_bypass(true).unwrap();
            client.set_bypass(false).unwrap();
        });
        let mut heard = Vec::new();
        for _ in 0..6 {
            let (what, answer) = match served.orders.recv_timeout(Duration::from_secs(20)).unwrap() {
                Command::Reload(answer) => {
                    heard.push("reload".to_owned());
                    answer.send(ReloadReport { applied: true, ..ReloadReport::default() }).unwrap();
                    continue;
                }
                Command::Drain(DrainTimes { deadline, stay }, answer) => {
                    (format!("drain {deadline:?}, stay {stay:?}"), answer)
                }
                Command::StopDraining(answer) => ("stop".to_owned(), answer),
                Command::SetBypass(on, answer) => (format!("bypass {on}"), answer),
            };
            assert!(!calls.is_finished(), "nobody has answered yet");
            heard.push(what);
            answer.send(Ok(())).unwrap();
        }
        let drains = ["drain Some(1.5s), stay 0ns", "drain None, stay 20s"];
        assert_eq!(heard, ["reload", drains[0], drains[1], "stop", "bypass true", "bypass false"]);
    });
}

#[test]
fn an_order_that_is_refused_says_why() {
    let served = Served::start();
    let client = served.client();
    thread::scope(|scope| {
        let call = scope.spawn(|| client.reload());
        let Command::Reload(answer) = served.orders.recv_timeout(Duration::from_secs(20)).unwrap() else {
            panic!()
        };
        let refused = ReloadReport::unreadable("key legs.satellite.rate: write 10Mbit/s");
        answer.send(refused.clone()).unwrap();
        assert_eq!(call.join().unwrap().unwrap(), refused);
        // One who throws the order away, or is not there any more, is a daemon that ends.
        let call = scope.spawn(|| client.reload());
        drop(served.orders.recv_timeout(Duration::from_secs(20)).unwrap());
        let outcome = call.join().unwrap();
        assert!(matches!(&outcome, Err(ClientError::Refused { status: 503, .. })), "{outcome:?}");
    });
    let Served { orders, .. } = served;
    drop(orders);
    let outcome = client.drain(DrainTimes::default());
    assert!(
        matches!(&outcome, Err(ClientError::Refused { status: 503, reason, .. }) if reason.contains("ending")),
        "{outcome:?}"
    );
}

#[test]
fn an_order_that_cannot_be_meant_is_not_passed_on() {
    let served = Served::start();
    for body in [
        "",
        "{",
        "[]",
        "{\"deadline_s\": -1}",
        "{\"deadline_s\": 1e300}",
        "{\"deadline\": 5}",
        "{\"deadline_s\": \"5m\"}",
        "{\"deadline_s\": 5, \"stay_s\": -1}",
        "{\"deadline_s\": 5, \"stay_s\": null}",
    ] {
        let answer = served.over_unix("POST /drain", body);
        assert_eq!(answer.status, 400, "{body}: {answer:?}");
        assert!(answer.error().contains("deadline_s"), "{answer:?}");
    }
    assert_eq!(served.over_unix("POST /reload", "{}").status, 400);
    assert_eq!(served.over_unix("POST /bypass", "on").status, 400);
    assert_eq!(served.over_unix("POST /drain", &" ".repeat(5000)).status, 413);
    assert!(served.orders.try_recv().is_err());
}

#[test]
fn a_head_that_is_too_long_is_not_kept() {
    let served = Served::start();
    let long = format!("X: {}", "x".repeat(64 * 1024));
    let answer = speak(served.tcp(), "GET /status", &["Host: localhost", &long], "").unwrap();
    assert_eq!(answer.status, 431, "{answer:?}");
    let many: Vec<&str> =
        std::iter::once("Host: localhost").chain(std::iter::repeat_n("X: y", 100)).collect();
    assert_eq!(served.over_tcp("GET /status", &many).status, 431);
    let far = format!("GET /{}", "x".repeat(64 * 1024));
    assert!(matches!(served.over_tcp(&far, &["Host: localhost"]).status, 414 | 431));
}

#[test]
fn slow_clients_delay_no_others() {
    let served = Served::start();
    // A head that never ends, and a body that never comes.
    let mut head = served.tcp();
    head.write_all(b"GET /status HTTP/1.1\r\nHost: localhost\r\nX: ").unwrap();
    let mut body = served.unix();
    body.write_all(b"POST /drain HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{").unwrap();
    assert_eq!(hear(body).unwrap().status, 408);
    let answer = hear(head).unwrap();
    assert!(matches!(answer.status, 0 | 408), "{answer:?}");
    assert!(served.orders.try_recv().is_err());
}

#[test]
fn a_client_that_reads_nothing_of_the_answer_is_dropped() {
    let served = Served::start();
    served.figures.0.flows.store(20_000, Ordering::SeqCst);
    let mut lazy = served.tcp();
    lazy.write_all(b"GET /status?flows=all HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut first = [0; 1];
    lazy.read_exact(&mut first).unwrap();
    // Some ten megabytes are more than the sockets hold: what is read after a while ends before the document
    // does.
    thread::sleep(Duration::from_secs(15));
    let mut rest = Vec::new();
    let outcome = lazy.read_to_end(&mut rest);
    let whole = rest.windows(12).any(|part| part == b"content-leng");
    let length: usize = String::from_utf8_lossy(&rest[..4096.min(rest.len())])
        .lines()
        .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok())
        .unwrap();
    assert!(whole && rest.len() < length, "{} of {length} bytes came: {outcome:?}", rest.len());
}

#[test]
fn more_connections_than_there_is_room_for_wait() {
    let served = Served::start();
    let mut held = Vec::new();
    for _ in 0..64 {
        let mut stream = served.tcp();
        stream.write_all(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        // It has been accepted when it is answered, and stays open.
        stream.read_exact(&mut [0; 16]).unwrap();
        held.push(stream);
    }
    let mut late = served.tcp();
    late.write_all(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    late.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let error = late.read_exact(&mut [0; 16]).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
    assert_eq!(served.over_unix("GET /health/live", "").status, 200, "the Unix socket has room of its own");
    drop(held.pop());
    late.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert_eq!(hear(late).unwrap().status, 200);
}

#[test]
fn a_stopped_server_has_given_its_last_answers() {
    let mut served = Served::start();
    let mut idle = served.tcp();
    idle.write_all(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    idle.read_exact(&mut [0; 16]).unwrap();
    let client = served.client();
    thread::scope(|scope| {
        let call = scope.spawn(|| client.drain(DrainTimes::default()));
        let Command::Drain(_, answer) = served.orders.recv_timeout(Duration::from_secs(20)).unwrap() else {
            panic!()
        };
        answer.send(Ok(())).unwrap();
        served.admin = None;
        call.join().unwrap().unwrap();
    });
    // The connection without a request has been closed too.
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).unwrap();
    let folder = served.run_folder();
    served.sockets.close();
    let error = bentpipe_admin::Client::new(&folder).unwrap().status(Flows::All).unwrap_err();
    assert!(
        matches!(error, ClientError::NotRunning { .. }) && error.to_string().contains("bentpipe run"),
        "{error}"
    );
}

#[test]
fn names_are_for_those_who_ask_by_the_header_and_for_few_addresses_at_a_time() {
    let served = Served::start();
    let ask = |query: &str, fields: &[&str]| {
        let fields = [&["Host: localhost"], fields].concat();
        served.over_tcp(&format!("GET /names{query}"), &fields)
    };
    // A page of another origin cannot send the header unasked (CORS).
    let refused = ask("?addresses=127.0.0.1", &[]);
    assert_eq!(refused.status, 400);
    assert!(refused.error().contains("Bentpipe-Names"), "{refused:?}");
    let many = vec!["192.0.2.1"; 101].join(",");
    for query in
        ["", "?addresses=", "?addresses=10.0.0.1:80", "?address=10.0.0.1", &format!("?addresses={many}")]
    {
        let answer = ask(query, &["Bentpipe-Names: 1"]);
        assert_eq!(answer.status, 400, "{query}: {answer:?}");
        assert!(answer.error().contains("addresses=A,B,C"), "{answer:?}");
    }
    let answer = ask("?addresses=127.0.0.1", &["Bentpipe-Names: 1"]);
    assert_eq!(answer.status, 200, "{answer:?}");
    let names: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
    // Not there where the resolver takes longer than the answer.
    assert!(names["127.0.0.1"].is_string() || names == serde_json::json!({}), "{names}");
}
