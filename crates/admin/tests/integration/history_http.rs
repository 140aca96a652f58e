//! `GET /history` and the page's files, over HTTP.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::common::daemon::{Outside, past, unix_s, working};
use bentpipe_admin::history::{HistoryAnswer, SECONDS};

/// The head and the body of the answer to a GET.
fn get(outside: &Outside, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(outside.address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_ascii_lowercase(), body.to_owned())
}

fn history(outside: &Outside, query: &str) -> HistoryAnswer {
    let (head, body) = get(outside, &format!("/history{query}"));
    assert!(head.starts_with("http/1.1 200"), "{head}");
    serde_json::from_str(&body).unwrap()
}

#[test]
fn it_goes_on_from_where_another_process_ended() {
    let outside = Outside::start(working(3), &past(SECONDS as u64));
    let all = history(&outside, "");
    assert!(all.samples.at.len() > SECONDS - 10 && all.now <= unix_s(), "{}", all.samples.at.len());
    assert_eq!(all.outages.len(), 3);
    let last = *all.samples.at.last().unwrap();
    let news = history(&outside, &format!("?since={}&step=1", last - 5));
    assert!(news.samples.at.starts_with(&[last - 4, last - 3]), "{:?}", news.samples.at);
    let minutes = history(&outside, "?step=60");
    assert!(minutes.step == 60 && minutes.samples.at.len() >= 14, "{:?}", minutes.samples.at);
}

#[test]
fn unanswerable_requests_are_refused_with_the_reason() {
    let outside = Outside::start(working(3), &past(10));
    for (query, reason) in [("step=5", "of 1 and of 60"), ("since=yesterday", "since"), ("until=3", "until")]
    {
        let (head, body) = get(&outside, &format!("/history?{query}"));
        assert!(head.starts_with("http/1.1 400"), "{query}: {head}");
        let error: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert!(error["error"].as_str().unwrap().contains(reason), "{query}: {body}");
    }
}

#[test]
fn the_page_s_files_have_their_types_and_a_policy_without_exceptions() {
    let outside = Outside::start(working(3), &past(10));
    let page = get(&outside, "/").1;
    for (path, kind) in [("/", "text/html"), ("/page.css", "text/css"), ("/icon.svg", "image/svg+xml")] {
        assert_file(&outside, path, kind);
    }
    let mut scripts = vec!["/page.js".to_owned()];
    let mut next = 0;
    while let Some(path) = scripts.get(next).cloned() {
        let text = assert_file(&outside, &path, "text/javascript");
        let imports = text.lines().filter_map(|line| line.split_once("from \"./")?.1.split_once('"'));
        let new: Vec<_> =
            imports.map(|(name, _)| format!("/{name}")).filter(|name| !scripts.contains(name)).collect();
        scripts.extend(new);
        next += 1;
    }
    assert_eq!(scripts.len(), 9, "{scripts:?}");
    assert!(!page.contains("http:") && !page.contains("https:"), "the page refers to somebody else");
}

/// The text of a file of the page.
fn assert_file(outside: &Outside, path: &str, kind: &str) -> String {
    let (head, body) = get(outside, path);
    assert!(
        head.starts_with("http/1.1 200") && head.contains(&format!("content-type: {kind}")),
        "{path}: {head}"
    );
    assert!(
        head.contains("content-security-policy: default-src 'none'") && !head.contains("unsafe"),
        "{head}"
    );
    body
}
