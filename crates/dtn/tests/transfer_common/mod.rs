//! Two nodes in this process, a server that remembers what it was told, and a client that says anything.
#![allow(dead_code, missing_docs, unreachable_pub)]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bentpipe_dtn::config::NodeConfig;
use bentpipe_dtn::daemon::{Prepared, Running};
use bentpipe_dtn::node::Node;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::TokioIo;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Long enough for anything that works, on a machine that does other things as well.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub const HTTP_INLET: &str = "[[inlets]]\nkind = \"http\"\naddress = \"127.0.0.1:0\"\nto = \"dtn://b/out\"\n";

/// Node `a`, where transfers come in, and `b`, where they come out.
pub struct Pair {
    pub a: Option<Running>,
    pub b: Option<Running>,
    /// What the configurations say besides.
    pub texts: [String; 2],
    /// Where `b` listens, always.
    port: u16,
    /// What `a` says of its peer besides.
    of_peer: String,
    pub folder: TempDir,
}

impl Pair {
    pub async fn start(a: &str, b: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["in", "out"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        let mut pair =
            Self { a: None, b: None, texts: [a.into(), b.into()], port: 0, of_peer: String::new(), folder };
        pair.start_b().await;
        pair.start_a().await;
        pair
    }

    pub async fn start_a(&mut self) {
        let Self { port, of_peer, .. } = self;
        let peer = format!("[[peers]]\nid = \"dtn://b/\"\naddress = \"127.0.0.1:{port}\"\n{of_peer}");
        self.a = Some(start(self.folder.path(), "a", &format!("{}{peer}", self.texts[0])).await);
    }

    pub async fn start_b(&mut self) {
        let own =
            format!("[[listen]]\naddress = \"127.0.0.1:{}\"\n[[peers]]\nid = \"dtn://a/\"\n", self.port);
        let b = start(self.folder.path(), "b", &format!("{}{own}", self.texts[1])).await;
        self.port = b.addresses()[0].port();
        self.b = Some(b);
    }

    /// Longer payloads go from `a` to `b` in fragments, from its next start on.
    pub fn fragments_above(&mut self, size: &str) {
        self.of_peer = format!("fragment_above = \"{size}\"\n");
    }

    /// As a power cut does.
    pub async fn kill_a(&mut self) {
        kill(self.a.take().unwrap()).await;
    }

    pub async fn kill_b(&mut self) {
        kill(self.b.take().unwrap()).await;
    }

    pub fn node_a(&self) -> &Node {
        self.a.as_ref().unwrap().node()
    }

    pub fn node_b(&self) -> &Node {
        self.b.as_ref().unwrap().node()
    }

    pub fn inlet(&self) -> SocketAddr {
        self.a.as_ref().unwrap().http_addresses()[0]
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Until no node has anything any more.
    pub async fn settle(&self) {
        until("the stores are empty", || {
            [self.node_a(), self.node_b()].iter().all(|node| node.status().store.bundles == 0)
        })
        .await;
    }

    /// What is kept at `b` because it cannot come out.
    pub fn undelivered(&self) -> Vec<Vec<u8>> {
        let Ok(folder) = std::fs::read_dir(self.path("b/undelivered")) else { return Vec::new() };
        folder.map(|entry| std::fs::read(entry.unwrap().path()).unwrap()).collect()
    }
}

async fn start(folder: &Path, name: &str, rest: &str) -> Running {
    let folder = folder.display();
    // Without a key of [node] in `rest` it begins with a table of its own.
    let text = format!(
        "[node]\nid = \"dtn://{name}/\"\nstore = \"{folder}/{name}\"\nsocket = \"{folder}/{name}.sock\"\n\
         keep_free = \"0B\"\n{}",
        rest.replace("FOLDER", &folder.to_string())
    );
    let config = NodeConfig::parse("node.toml", &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let start = Instant::now();
    loop {
        // Its socket and its store are free when the last task of a killed node is gone.
        let started = match Prepared::new(config.clone(), None) {
            Ok(prepared) => prepared.start().await,
            Err(error) => Err(error),
        };
        match started {
            Ok(running) => return running,
            Err(error) => assert!(start.elapsed() < PATIENCE, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn kill(node: Running) {
    drop(node);
    tokio::task::yield_now().await;
}

/// Until something is so.
pub async fn until(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < PATIENCE, "not so: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Says something on a connection of its own and returns all that is answered.
pub async fn talk(to: SocketAddr, say: &[u8]) -> String {
    let mut stream = TcpStream::connect(to).await.unwrap();
    stream.write_all(say).await.unwrap();
    let mut answer = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
    read.expect("the connection ends").unwrap();
    String::from_utf8(answer).unwrap()
}

/// A PUT, and that it was accepted.
pub async fn put(to: SocketAddr, target: &str, fields: &str, body: &[u8]) {
    let len = body.len();
    let mut request = format!(
        "PUT {target} HTTP/1.1\r\nHost: files.example\r\nConnection: close\r\n{fields}Content-Length: {len}\r\n\r\n"
    )
    .into_bytes();
    request.extend(body);
    let answer = talk(to, &request).await;
    assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
}

/// What a server was told.
#[derive(Debug, Clone)]
pub struct Told {
    pub method: String,
    pub target: String,
    pub fields: HeaderMap,
    pub body: Bytes,
    /// What it answered.
    pub status: u16,
}

/// A server that answers what it is to answer, and 201 after that.
pub struct Server {
    pub address: SocketAddr,
    told: Arc<Mutex<Vec<Told>>>,
    _tasks: JoinSet<()>,
}

impl Server {
    pub async fn start(answers: &[u16]) -> Self {
        Self::at("127.0.0.1:0".parse().unwrap(), answers).await
    }

    pub async fn at(address: SocketAddr, answers: &[u16]) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let told = Arc::new(Mutex::new(Vec::new()));
        let answers = Arc::new(Mutex::new(answers.iter().copied().collect::<VecDeque<u16>>()));
        let mut tasks = JoinSet::new();
        let remember = told.clone();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (told, answers) = (remember.clone(), answers.clone());
                let answer = move |request| answer(told.clone(), answers.clone(), request);
                let server = hyper::server::conn::http1::Builder::new();
                let served = server.serve_connection(TokioIo::new(stream), service_fn(answer));
                connections.spawn(async move { drop(served.await) });
            }
        });
        Self { address, told, _tasks: tasks }
    }

    pub fn told(&self) -> Vec<Told> {
        self.told.lock().unwrap().clone()
    }

    /// What it was told, when it is so much.
    pub async fn hears(&self, count: usize) -> Vec<Told> {
        until("the server has been told all", || self.told.lock().unwrap().len() >= count).await;
        self.told()
    }

    pub fn outlet(&self) -> String {
        outlet(self.address)
    }
}

/// An outlet to a server.
pub fn outlet(server: SocketAddr) -> String {
    format!("[[outlets]]\nkind = \"http\"\nservice = \"out\"\nfrom = \"dtn://a/*\"\nserver = \"{server}\"\n")
}

async fn answer(
    told: Arc<Mutex<Vec<Told>>>,
    answers: Arc<Mutex<VecDeque<u16>>>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map(http_body_util::Collected::to_bytes);
    let status = answers.lock().unwrap().pop_front().unwrap_or(201);
    // What broke off was not told.
    if let Ok(body) = body {
        let (method, target) = (parts.method.to_string(), parts.uri.to_string());
        told.lock().unwrap().push(Told { method, target, fields: parts.headers, body, status });
    }
    Ok(Response::builder().status(status).body(Full::new(Bytes::from_static(b"said"))).unwrap())
}

/// Bytes that differ from place to place.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}
