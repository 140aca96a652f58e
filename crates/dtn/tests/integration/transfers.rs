//! What comes in at one node comes out at the other: HTTP PUTs and files.

use std::fs;
use std::time::Duration;

use crate::transfer_common::*;
use bentpipe_dtn::node::SendOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const FOLDER_INLET: &str =
    "[[inlets]]\nkind = \"folder\"\nfolder = \"FOLDER/in\"\nto = \"dtn://b/out\"\nsettle = \"10ms\"\n";
const FOLDER_OUTLET: &str =
    "[[outlets]]\nkind = \"folder\"\nservice = \"out\"\nfrom = \"dtn://a/*\"\nfolder = \"FOLDER/out\"\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_comes_out_as_it_went_in() {
    let server = Server::start(&[]).await;
    let pair = Pair::start(HTTP_INLET, &server.outlet()).await;
    let fields = "X-Thing: one\r\nX-Hop: 1\r\nConnection: X-Hop\r\nContent-Type: text/plain\r\n\
                  bundle-server: 192.0.2.1:22\r\n";
    put(pair.inlet(), "/a%20b/c?d=1&e", fields, b"body").await;
    let told = server.hears(1).await.remove(0);
    assert_eq!((told.method.as_str(), told.target.as_str()), ("PUT", "/a%20b/c?d=1&e"));
    assert_eq!(told.body, b"body"[..]);
    let field = |name: &str| told.fields.get(name).map(|value| value.to_str().unwrap().to_owned());
    assert_eq!(field("host").as_deref(), Some("files.example"));
    assert_eq!(field("x-thing").as_deref(), Some("one"));
    assert_eq!(field("content-type").as_deref(), Some("text/plain"));
    assert_eq!(field("content-length").as_deref(), Some("4"));
    assert_eq!((field("x-hop"), field("bundle-server")), (None, None));
    pair.settle().await;
    assert_eq!(server.told().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_of_any_form_come_out_whole() {
    let server = Server::start(&[]).await;
    let pair = Pair::start(HTTP_INLET, &server.outlet()).await;
    let long = pattern(20_000_000);
    put(pair.inlet(), "/long", "", &long).await;
    assert!(server.hears(1).await[0].body == long);
    put(pair.inlet(), "/empty", "", b"").await;
    assert!(server.hears(2).await[1].body.is_empty());
    let chunked = b"PUT /chunked HTTP/1.1\r\nHost: h\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\
                    \r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\nTrailer: t\r\n\r\n";
    assert!(talk(pair.inlet(), chunked).await.starts_with("HTTP/1.1 202 "));
    let told = server.hears(3).await.remove(2);
    assert_eq!(told.body, b"abcdefg"[..]);
    assert!(!told.fields.contains_key("transfer-encoding"), "{:?}", told.fields);
    pair.settle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expect_100_continue_is_answered() {
    let server = Server::start(&[]).await;
    let pair = Pair::start(HTTP_INLET, &server.outlet()).await;
    let head =
        "/ HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nConnection: close\r\nContent-Length: 4\r\n\r\n";
    let mut stream = TcpStream::connect(pair.inlet()).await.unwrap();
    stream.write_all(format!("PUT {head}").as_bytes()).await.unwrap();
    let mut leave = [0; 25];
    stream.read_exact(&mut leave).await.unwrap();
    assert_eq!(&leave, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"body").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
    let told = server.hears(1).await.remove(0);
    assert!(told.body == b"body"[..] && !told.fields.contains_key("expect"));
    // And who is refused is not asked for it.
    let answer = talk(pair.inlet(), format!("POST {head}").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_other_than_put_are_answered_and_not_forwarded() {
    let server = Server::start(&[]).await;
    let pair = Pair::start(HTTP_INLET, &server.outlet()).await;
    for (request, status, says) in [
        ("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "405", "only PUT"),
        (
            "POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbody",
            "405",
            "allow: PUT",
        ),
        (
            "PUT / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Range: bytes 0-1/9\r\nContent-Length: 2\r\n\r\nab",
            "400",
            "Content-Range",
        ),
        ("\u{16}\u{3}\u{1} a TLS hello\r\n\r\n", "400", ""),
    ] {
        let answer = talk(pair.inlet(), request.as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(says), "{answer}");
    }
    let head = format!(
        "PUT / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nX: {}\r\nContent-Length: 0\r\n\r\n",
        "x".repeat(80_000)
    );
    assert!(talk(pair.inlet(), head.as_bytes()).await.starts_with("HTTP/1.1 431 "));
    // A body that breaks off.
    let mut stream = TcpStream::connect(pair.inlet()).await.unwrap();
    stream.write_all(b"PUT /broken HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nbody").await.unwrap();
    stream.shutdown().await.unwrap();
    stream.read_to_end(&mut Vec::new()).await.unwrap();
    // The node goes on.
    put(pair.inlet(), "/good", "", b"body").await;
    pair.settle().await;
    let told = server.told();
    assert_eq!((told.len(), told[0].target.as_str()), (1, "/good"));
    assert_eq!(pair.node_a().status().totals.originated, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_down_gets_it_when_it_is_there_again() {
    let address = Server::start(&[]).await.address;
    let pair = Pair::start(HTTP_INLET, &outlet(address)).await;
    put(pair.inlet(), "/patience", "", b"body").await;
    until("it has come to the other node", || pair.node_b().status().store.bundles == 1).await;
    let server = Server::at(address, &[500, 503, 200]).await;
    let told = server.hears(3).await;
    assert!(told.iter().all(|told| told.target == "/patience" && told.body == b"body"[..]));
    pair.settle().await;
    assert!(server.told().len() == 3 && pair.undelivered().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permanently_refused_transfers_are_kept_and_delay_nothing() {
    let server = Server::start(&[404]).await;
    let pair = Pair::start(HTTP_INLET, &server.outlet()).await;
    put(pair.inlet(), "/nowhere", "", b"kept").await;
    server.hears(1).await;
    put(pair.inlet(), "/good", "", b"body").await;
    assert_eq!(server.hears(2).await[1].target, "/good");
    pair.settle().await;
    let kept = pair.undelivered();
    assert_eq!(kept.len(), 1);
    assert!(kept[0].starts_with(b"PUT /nowhere HTTP/1.1\r\n") && kept[0].ends_with(b"\r\n\r\nkept"));
    assert_eq!((server.told().len(), pair.node_b().status().totals.given_up), (2, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_no_more_can_be_kept_it_stays_in_the_store() {
    let server = Server::start(&[404]).await;
    // A file is in the way of the folder.
    let text = format!("{}undelivered = \"FOLDER/b.sock/x\"\n", server.outlet());
    let pair = Pair::start(HTTP_INLET, &text).await;
    put(pair.inlet(), "/kept", "", b"body").await;
    // The next attempt is answered 201.
    assert_eq!(server.hears(2).await[1].status, 201);
    pair.settle().await;
    assert_eq!(pair.node_b().status().totals.given_up, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_bundles_are_not_delivered() {
    let server = Server::start(&[]).await;
    let text = server.outlet().replace("dtn://a/*", "dtn://c/*");
    let pair = Pair::start(HTTP_INLET, &text).await;
    put(pair.inlet(), "/", "", b"body").await;
    until("it is given up", || pair.node_b().status().totals.given_up == 1).await;
    pair.settle().await;
    assert!(server.told().is_empty() && pair.undelivered().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_goes_to_the_server_that_it_names_if_that_is_in_an_allowed_network() {
    let server = Server::start(&[]).await;
    let outlet = "[[outlets]]\nkind = \"http\"\nservice = \"out\"\nfrom = \"dtn://a/*\"\nto = [\"127.0.0.0/8\"]\n\
                  [[outlets]]\nkind = \"http\"\nservice = \"wide\"\nfrom = \"dtn://a/*\"\nto = [\"0.0.0.0/0\", \"::/0\"]\n";
    let pair = Pair::start("", outlet).await;
    let named = format!("PUT /x HTTP/1.1\r\nbundle-server: {}\r\nhost: h\r\n\r\nbody", server.address);
    send(&pair, "dtn://b/out", &named);
    assert_eq!(server.hears(1).await[0].body, b"body"[..]);
    pair.settle().await;
    // The same to an outlet that may go anywhere, but was not told of this host; one without a server; and
    // what is no PUT.
    send(&pair, "dtn://b/wide", &named);
    send(&pair, "dtn://b/out", "PUT /x HTTP/1.1\r\n\r\nbody");
    send(&pair, "dtn://b/out", "no PUT at all");
    until("all are given up", || pair.node_b().status().totals.given_up == 3).await;
    pair.settle().await;
    assert_eq!((server.told().len(), pair.undelivered().len()), (1, 3));
}

fn send(pair: &Pair, to: &str, payload: &str) {
    let options = SendOptions::to(to.parse().unwrap());
    let node = pair.node_a();
    let mut receiver = node.begin(node.bundle(&options).unwrap(), None).unwrap();
    receiver.write(payload.as_bytes()).unwrap();
    receiver.finish().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_puts_to_one_target_the_later_one_remains() {
    let server = Server::start(&[500]).await;
    let pair = Pair::start(HTTP_INLET, &server.outlet()).await;
    put(pair.inlet(), "/same", "", b"first").await;
    server.hears(1).await;
    // While the first one waits for its next try.
    put(pair.inlet(), "/same", "", b"second").await;
    pair.settle().await;
    let bodies: Vec<_> = server.told().into_iter().map(|told| (told.status, told.body)).collect();
    assert_eq!(bodies.last().unwrap().1, b"second"[..], "{bodies:?}");
    assert!(pair.undelivered().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_come_out_under_their_names() {
    let pair = Pair::start(FOLDER_INLET, FOLDER_OUTLET).await;
    fs::create_dir_all(pair.path("in/deep er")).unwrap();
    let names = ["plain", "deep er/100% ä?#.txt", "empty"];
    for name in names {
        let text = if name == "empty" { "" } else { name };
        // Under its name only when it is complete.
        fs::write(pair.path("in/.part"), text).unwrap();
        fs::rename(pair.path("in/.part"), pair.path("in").join(name)).unwrap();
    }
    fs::write(pair.path("in/.hidden"), "hidden").unwrap();
    for name in names {
        until(name, || pair.path("out").join(name).exists()).await;
        let text = if name == "empty" { "" } else { name };
        assert_eq!(fs::read_to_string(pair.path("out").join(name)).unwrap(), text);
        until("it is gone", || !pair.path("in").join(name).exists()).await;
    }
    pair.settle().await;
    fs::write(pair.path("in/.part"), "new").unwrap();
    fs::rename(pair.path("in/.part"), pair.path("in/plain")).unwrap();
    until("it is replaced", || fs::read_to_string(pair.path("out/plain")).unwrap() == "new").await;
    pair.settle().await;
    let out = fs::read_dir(pair.path("out")).unwrap().count();
    assert!(out == 3 && pair.path("in/.hidden").exists(), "{out}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_becomes_a_file_and_an_unusable_name_is_kept() {
    let pair = Pair::start(HTTP_INLET, FOLDER_OUTLET).await;
    put(pair.inlet(), "/reports/today%201.txt?version=2", "", b"body").await;
    until("it is there", || pair.path("out/reports/today 1.txt").exists()).await;
    for target in ["/../../escape", "/%2e%2e/escape", "/.profile", &format!("/{}", "x".repeat(300))] {
        put(pair.inlet(), target, "", b"kept").await;
    }
    until("they are given up", || pair.node_b().status().totals.given_up == 4).await;
    pair.settle().await;
    assert_eq!(pair.undelivered().len(), 4);
    assert!(!pair.path("escape").exists() && fs::read_dir(pair.path("out")).unwrap().count() == 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_in_the_outlet_leads_nowhere() {
    let pair = Pair::start(HTTP_INLET, FOLDER_OUTLET).await;
    fs::create_dir(pair.path("elsewhere")).unwrap();
    std::os::unix::fs::symlink(pair.path("elsewhere"), pair.path("out/link")).unwrap();
    put(pair.inlet(), "/link/file", "", b"body").await;
    until("it has come", || pair.node_b().status().store.bundles == 1).await;
    // It waits until nothing is in the way.
    fs::remove_file(pair.path("out/link")).unwrap();
    until("it is there", || pair.path("out/link/file").exists()).await;
    assert_eq!(fs::read_dir(pair.path("elsewhere")).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_becomes_a_put_to_the_outlets_server() {
    let server = Server::start(&[]).await;
    let pair = Pair::start(FOLDER_INLET, &server.outlet()).await;
    fs::write(pair.path("in/.part"), "text").unwrap();
    fs::rename(pair.path("in/.part"), pair.path("in/a b")).unwrap();
    let told = server.hears(1).await.remove(0);
    assert_eq!((told.target.as_str(), told.body.as_ref()), ("/a%20b", &b"text"[..]));
    assert_eq!(told.fields["host"].to_str().unwrap(), server.address.to_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_is_full_says_so_and_keeps_the_file_where_it_is() {
    let quota = "quota = \"100kB\"\n";
    // Nobody takes it at b, so that it stays.
    let pair = Pair::start(&format!("{quota}{HTTP_INLET}{FOLDER_INLET}"), quota).await;
    let head = "PUT / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 200000\r\n\r\n";
    let mut request = head.as_bytes().to_vec();
    request.extend(pattern(200_000));
    let answer = talk(pair.inlet(), &request).await;
    assert!(answer.starts_with("HTTP/1.1 507 "), "{answer}");
    fs::write(pair.path("in/.part"), pattern(200_000)).unwrap();
    fs::rename(pair.path("in/.part"), pair.path("in/large")).unwrap();
    fs::write(pair.path("in/small"), "small").unwrap();
    until("the small one goes all the same", || pair.node_b().status().store.bundles == 1).await;
    assert_eq!(fs::read(pair.path("in/large")).unwrap().len(), 200_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_when_nodes_are_killed_in_between() {
    const FILES: usize = 60;
    let mut pair = Pair::start(FOLDER_INLET, FOLDER_OUTLET).await;
    let content = |number: usize| pattern(50_000 + number);
    for round in 0..6 {
        for number in round * 10..round * 10 + 10 {
            fs::write(pair.path("in/.part"), content(number)).unwrap();
            fs::rename(pair.path("in/.part"), pair.path(&format!("in/{number}"))).unwrap();
        }
        let arrived = || fs::read_dir(pair.path("out")).unwrap().count();
        until("some arrive", || arrived() > round * 9).await;
        if round % 2 == 0 {
            pair.kill_a().await;
            pair.start_a().await;
        } else {
            pair.kill_b().await;
            pair.start_b().await;
        }
    }
    for number in 0..FILES {
        until("it arrives", || pair.path(&format!("out/{number}")).exists()).await;
        assert!(fs::read(pair.path(&format!("out/{number}"))).unwrap() == content(number), "{number}");
    }
    until("nothing is left", || fs::read_dir(pair.path("in")).unwrap().count() == 0).await;
    pair.settle().await;
    assert_eq!(fs::read_dir(pair.path("out")).unwrap().count(), FILES);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_inlet_with_too_many_connections_closes_and_opens_again() {
    let server = Server::start(&[]).await;
    // A port that is chosen, as an operator's is: one that bind(2) chose is lost when the listener closes.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let inlet = HTTP_INLET.replace("127.0.0.1:0", &free.to_string());
    let pair = Pair::start(&inlet, &server.outlet()).await;
    let mut idle = Vec::new();
    while let Ok(stream) = TcpStream::connect(pair.inlet()).await {
        idle.push(stream);
        assert!(idle.len() < 3000, "it never closes");
        // So that the backlog does not count.
        if idle.len() >= 1000 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    assert!((1024..1100).contains(&idle.len()), "{}", idle.len());
    idle.truncate(100);
    let start = std::time::Instant::now();
    while TcpStream::connect(pair.inlet()).await.is_err() {
        assert!(start.elapsed() < PATIENCE, "it does not open again");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    put(pair.inlet(), "/", "", b"body").await;
    server.hears(1).await;
}
