//! A server with nothing behind it but figures, and callers that do as they like.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bentpipe_admin::history::Recorder;
use bentpipe_admin::{Admin, Client, Command, Identity, Sockets, View, serve};
use bentpipe_proxy::Stats;
use bentpipe_proxy::config::{AdminSettings, Listen};
use bentpipe_proxy::telemetry::{
    Drain, EndReport, FlowPhase, FlowReport, Gain, LegReport, LimitsReport, PolicyReport,
};
use serde_json::Value;
use tempfile::TempDir;

/// Longer than the server waits for anything but an order.
const PATIENCE: Duration = Duration::from_secs(25);

/// What the server sees.
#[derive(Debug, Clone, Default)]
pub(crate) struct Figures(pub(crate) Arc<Scene>);

#[derive(Debug, Default)]
pub(crate) struct Scene {
    pub(crate) flows: AtomicUsize,
    pub(crate) is_stuck: AtomicBool,
    pub(crate) draining: Mutex<Option<Drain>>,
    pub(crate) bypass: AtomicBool,
    /// How often the workers were asked for flows.
    pub(crate) asked: AtomicUsize,
}

/// A server in a folder of its own.
pub(crate) struct Served {
    pub(crate) figures: Figures,
    pub(crate) orders: Receiver<Command>,
    pub(crate) sockets: Sockets,
    pub(crate) admin: Option<Admin>,
    pub(crate) folder: TempDir,
}

/// An answer, as it came.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Served {
    pub(crate) fn start() -> Self {
        Self::start_with(None)
    }

    /// With a token that callers over TCP must know.
    pub(crate) fn start_with(token: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let token_file = token.map(|token| write_secret(&folder, token));
        let settings = AdminSettings {
            folder: folder.path().join("run"),
            listen: Listen::At(SocketAddr::from(([127, 0, 0, 1], 0))),
            token_file,
            ..AdminSettings::default()
        };
        let sockets = Sockets::open(&settings, None, &[]).unwrap();
        let figures = Figures::default();
        let identity = Identity { config: "/etc/bentpipe.toml".into(), program: "8:1:2".into() };
        let (sender, orders) = mpsc::channel();
        let admin = Some(serve(&sockets, figures.clone(), identity, Recorder::default(), sender).unwrap());
        Self { figures, orders, sockets, admin, folder }
    }

    pub(crate) fn run_folder(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(&self.run_folder()).unwrap()
    }

    pub(crate) fn tcp(&self) -> TcpStream {
        let stream = TcpStream::connect(self.sockets.tcp_address().unwrap()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    pub(crate) fn unix(&self) -> UnixStream {
        let stream = UnixStream::connect(self.run_folder().join("admin.sock")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// A request over TCP with these lines besides the first.
    pub(crate) fn over_tcp(&self, request: &str, fields: &[&str]) -> Answer {
        speak(self.tcp(), request, fields, "").unwrap()
    }

    /// A request over TCP that names the host as it should.
    pub(crate) fn get(&self, path: &str) -> Answer {
        self.over_tcp(&format!("GET {path}"), &["Host: localhost"])
    }

    /// A request over the Unix socket.
    pub(crate) fn over_unix(&self, request: &str, body: &str) -> Answer {
        speak(self.unix(), request, &["Host: x"], body).unwrap()
    }
}

impl Answer {
    /// The error that a refusal gives.
    pub(crate) fn error(&self) -> String {
        let document: Value = serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{self:?}"));
        document["error"].as_str().unwrap_or_else(|| panic!("{self:?}")).to_owned()
    }

    /// A field of the head.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

/// One request and its answer, on a connection that ends with it.
pub(crate) fn speak(
    mut stream: impl Read + Write,
    request: &str,
    fields: &[&str],
    body: &str,
) -> io::Result<Answer> {
    let mut text = format!("{request} HTTP/1.1\r\nConnection: close\r\n");
    for field in fields {
        text += &format!("{field}\r\n");
    }
    if !body.is_empty() {
        text += &format!("Content-Length: {}\r\n", body.len());
    }
    // A server that has heard enough may close before everything is written.
    match stream.write_all(format!("{text}\r\n{body}").as_bytes()) {
        Err(error) if !matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
            return Err(error);
        }
        _ => {}
    }
    hear(stream)
}

/// What comes until the connection ends.
pub(crate) fn hear(mut stream: impl Read) -> io::Result<Answer> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        // What was not read of the request resets the connection; the answer has come before.
        Err(error) if error.kind() != ErrorKind::ConnectionReset || bytes.is_empty() => return Err(error),
        _ => {}
    }
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or(0);
    let body = if head.to_lowercase().contains("transfer-encoding: chunked") {
        dechunked(body)
    } else {
        body.to_owned()
    };
    Ok(Answer { status, head: head.to_owned(), body })
}

/// RFC 9112 §7.1.
fn dechunked(mut text: &str) -> String {
    let mut body = String::new();
    while let Some((size, rest)) = text.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        body += &rest[..size];
        text = rest[size..].trim_start_matches("\r\n");
    }
    body
}

fn write_secret(folder: &TempDir, token: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.path().join("token");
    std::fs::write(&path, token).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

impl View for Figures {
    fn stats(&self) -> Stats {
        Stats { flows_total: 7, ..Stats::default() }
    }

    fn legs(&self) -> Vec<LegReport> {
        vec![LegReport { name: "satellite".into(), sent_bytes: 1000, ..LegReport::default() }]
    }

    fn gain(&self) -> Gain {
        Gain { ratio: Some(12.5), actual_bps: 9e6, end_to_end_bps: 7.2e5, ..Gain::default() }
    }

    fn policy(&self) -> PolicyReport {
        PolicyReport::default()
    }

    fn limits(&self) -> LimitsReport {
        LimitsReport::default()
    }

    fn flows(&self, most: usize) -> Vec<FlowReport> {
        self.0.asked.fetch_add(1, Ordering::SeqCst);
        (0..self.0.flows.load(Ordering::SeqCst).min(most)).map(flow).collect()
    }

    fn is_ready(&self) -> bool {
        !self.0.is_stuck.load(Ordering::SeqCst)
    }

    fn draining(&self) -> Option<Drain> {
        *self.0.draining.lock().unwrap()
    }

    fn bypass(&self) -> bool {
        self.0.bypass.load(Ordering::SeqCst)
    }

    fn uptime(&self) -> Duration {
        Duration::from_secs(61)
    }

    fn upgrades(&self) -> u64 {
        2
    }
}

fn flow(number: usize) -> FlowReport {
    FlowReport {
        id: number as u64,
        client: format!("10.0.{}.{}:40000", number / 250, number % 250),
        server: "192.0.2.1:80".into(),
        weight: 1,
        phase: FlowPhase::Relaying,
        age_s: 1.0,
        idle_s: 0.0,
        up_bytes: 1,
        down_bytes: 2,
        up_bps: 1e3,
        down_bps: 1e6,
        buffered_bytes: 4096,
        client_end: end("terrestrial"),
        server_end: end("satellite"),
    }
}

fn end(leg: &str) -> EndReport {
    EndReport {
        leg: leg.into(),
        srtt_s: 0.6,
        min_rtt_s: 0.6,
        rto_s: 1.0,
        backoff: 0,
        cwnd: 500,
        ssthresh: None,
        mss: 1448,
        unacked: 10,
        unsent_bytes: 0,
        retransmissions: 1,
        segments: 1000,
        timeouts: 0,
        pacing_bps: Some(10_000_000),
        delivery_bps: 9_000_000,
    }
}
