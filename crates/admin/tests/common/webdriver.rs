//! A browser, driven by the WebDriver protocol (W3C Recommendation "WebDriver") through chromedriver.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use axum::http::{Method, Request, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, MutexGuard};

/// A headless Chromium with a profile of its own, which ends with this value.
pub(crate) struct Browser {
    driver: Child,
    port: u16,
    session: String,
    profile: tempfile::TempDir,
    /// Browsers are heavy: tests take turns.
    _turn: MutexGuard<'static, ()>,
}

static TURN: Mutex<()> = Mutex::const_new(());

impl Browser {
    /// None, and a line that says so, where there is no Chromium.
    pub(crate) async fn start() -> Option<Self> {
        let turn = TURN.lock().await;
        let spawned = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // Its own group: it and the browser's processes are ended together.
            .process_group(0)
            .spawn();
        let Ok(mut driver) = spawned else {
            println!("skipped: needs Chromium and chromedriver: scripts/setup-peers chromium");
            return None;
        };
        let port = port_of(&mut driver);
        let profile = tempfile::tempdir().unwrap();
        let mut browser = Self { driver, port, session: String::new(), profile, _turn: turn };
        browser.open_session().await;
        // The browser's own first page is not what tests ask about.
        browser.go("about:blank").await;
        browser.log("performance").await;
        browser.log("browser").await;
        Some(browser)
    }

    pub(crate) async fn go(&self, url: &str) {
        self.command("url", json!({ "url": url })).await;
    }

    /// What a script returns; it is a function's body.
    pub(crate) async fn run(&self, script: &str) -> Value {
        self.command("execute/sync", json!({ "script": script, "args": [] })).await
    }

    pub(crate) async fn text(&self, id: &str) -> String {
        let script = format!("return document.getElementById({id:?}).textContent");
        self.run(&script).await.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until a script returns true.
    pub(crate) async fn until(&self, what: &str, script: &str) {
        let end = Instant::now() + Duration::from_secs(40);
        while self.run(script).await != Value::Bool(true) {
            let text = self.run("return document.body.innerText").await;
            assert!(
                Instant::now() < end,
                "{what}: not so within 40 s\n{}",
                text.as_str().unwrap_or_default()
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// How large the page is, CSS pixels, and whether it is light or dark.
    pub(crate) async fn look(&self, width: u32, height: u32, scheme: &str) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.cdp("Emulation.setDeviceMetricsOverride", size).await;
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.cdp("Emulation.setEmulatedMedia", json!({ "features": features })).await;
    }

    /// A command of the Chrome DevTools Protocol.
    pub(crate) async fn cdp(&self, name: &str, parameters: Value) -> Value {
        self.command("goog/cdp/execute", json!({ "cmd": name, "params": parameters })).await
    }

    /// What has come into a log since it was last read: `browser` (the console) or `performance` (the
    /// network).
    pub(crate) async fn log(&self, kind: &str) -> Vec<Value> {
        let entries = self.command("se/log", json!({ "type": kind })).await;
        entries.as_array().cloned().unwrap_or_default()
    }

    /// What is in the window, as a PNG file.
    pub(crate) async fn picture(&self, file: &Path) {
        let picture = self.cdp("Page.captureScreenshot", json!({ "format": "png" })).await;
        decode(picture["data"].as_str().unwrap(), File::create(file).unwrap());
    }

    /// Nothing was asked of anybody but `own`, and nothing was complained about, as far as the logs have not
    /// been read yet.
    pub(crate) async fn assert_quiet(&self, own: &str) {
        let mut requests = 0;
        for entry in self.log("performance").await {
            let message: Value = serde_json::from_str(entry["message"].as_str().unwrap()).unwrap();
            let Some(url) = message["message"]["params"]["request"]["url"].as_str() else { continue };
            requests += usize::from(url.starts_with(own));
            assert!(url.starts_with(own) || url.starts_with("data:"), "{url}");
        }
        assert!(requests > 0, "no request is in the log: it says nothing");
        let complaints = self.log("browser").await;
        assert!(complaints.is_empty(), "{complaints:?}");
    }

    async fn open_session(&mut self) {
        let mut arguments = vec![
            "--headless=new".to_owned(),
            "--disable-gpu".into(),
            "--disable-quic".into(),
            "--no-first-run".into(),
            "--disable-background-networking".into(),
            "--disable-component-update".into(),
            "--disable-sync".into(),
            "--disable-dev-shm-usage".into(),
            // Letters look alike wherever they stand, and pictures of them are smaller.
            "--disable-font-subpixel-positioning".into(),
            "--disable-lcd-text".into(),
            format!("--user-data-dir={}", self.profile.path().display()),
        ];
        if rustix::process::geteuid().is_root() {
            // Chromium refuses to confine itself as root; all that it shows here is our own page.
            arguments.push("--no-sandbox".into());
        }
        let capabilities = json!({ "capabilities": { "alwaysMatch": {
            "goog:chromeOptions": { "args": arguments },
            "goog:loggingPrefs": { "browser": "ALL", "performance": "ALL" },
        } } });
        let answer = self.request(Method::POST, "/session", capabilities).await;
        self.session = answer["sessionId"].as_str().expect("a session").to_owned();
    }

    async fn command(&self, name: &str, parameters: Value) -> Value {
        self.request(Method::POST, &format!("/session/{}/{name}", self.session), parameters).await
    }

    async fn request(&self, method: Method, path: &str, body: Value) -> Value {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await.expect("chromedriver listens");
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "localhost")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::<Bytes>::from(body.to_string()))
            .unwrap();
        let response = sender.send_request(request).await.expect("chromedriver answers");
        let status = response.status();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let answer: Value = serde_json::from_slice(&bytes).expect("JSON");
        assert!(status.is_success(), "{path}: {}", answer["value"]["message"]);
        answer["value"].clone()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_child(&self.driver);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.driver.wait();
    }
}

/// chromedriver chooses a free port and says which.
fn port_of(driver: &mut Child) -> u16 {
    let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
    let said = lines.by_ref().find_map(|line| {
        let line = line.ok()?;
        line.split("successfully on port ").nth(1)?.trim_end_matches('.').parse().ok()
    });
    // What it says later must find somebody who reads it.
    std::thread::spawn(move || lines.for_each(drop));
    said.expect("chromedriver says on which port it listens")
}

/// Base64 (RFC 4648 §4) to a file, by the tool that every Debian has.
fn decode(base64: &str, file: File) {
    let mut tool = Command::new("base64").arg("-d").stdin(Stdio::piped()).stdout(file).spawn().unwrap();
    tool.stdin.take().unwrap().write_all(base64.as_bytes()).unwrap();
    assert!(tool.wait().unwrap().success());
}
