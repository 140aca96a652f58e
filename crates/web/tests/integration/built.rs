//! The page, built once, and a browser that has it open.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use serde_json::Value;

use crate::webdriver::Browser;

/// The workspace's root.
pub(crate) const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// What `scripts/web` exits with where there is no toolchain for WebAssembly.
const CANNOT: i32 = 3;

/// That the page's run is over, as a script.
pub(crate) const READY: &str = "return document.getElementById('state').dataset.state === 'ready'";

/// Where the page is, if it can be built here.
static PAGE: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("a folder in cargo's own");
    let mut script = Command::new(Path::new(ROOT).join("scripts/web"));
    // What cargo tells tests is not meant for another cargo.
    for (name, _) in std::env::vars_os() {
        let is_ours = |name: &str| name.starts_with("CARGO_PKG") || name.starts_with("CARGO_MANIFEST");
        if name.to_str().is_some_and(is_ours) {
            script.env_remove(name);
        }
    }
    let output = script.env_remove("LD_LIBRARY_PATH").env("CARGO_TARGET_DIR", target).output();
    let output = output.expect("scripts/web can be started");
    let errors = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => Some(target.join("web/bentpipe.html")),
        Some(CANNOT) => {
            println!("skipped: {errors}");
            None
        }
        _ => panic!("scripts/web: {errors}"),
    }
});

/// A browser with the page, or None and a line that says why there is none.
pub(crate) async fn open() -> Option<Browser> {
    let page = tokio::task::spawn_blocking(|| PAGE.as_deref()).await.unwrap()?;
    let browser = Browser::start().await?;
    browser.go(&url(page)).await;
    // It begins with a run of its own, and each run stops the one before.
    browser.until("the first run", READY).await;
    Some(browser)
}

fn url(page: &Path) -> String {
    format!("file://{}", page.canonicalize().unwrap().display())
}

/// Where the page was opened.
pub(crate) fn opened() -> String {
    url(PAGE.as_deref().expect("it was built"))
}

/// What the page's simulator answers: a document, or `Err` and its error.
pub(crate) async fn run(browser: &Browser, text: &str, seed: u64) -> Result<String, String> {
    let text = serde_json::to_string(text).unwrap();
    // A script must return within half a minute, so it does not wait.
    browser
        .run(&format!(
            "window.answer = null; window.bentpipe.run({text}, {seed}).then((answer) => window.answer = \
             [true, answer], (error) => window.answer = [false, error.message])"
        ))
        .await;
    loop {
        if let Value::Array(answer) = browser.run("return window.answer").await {
            let text = answer[1].as_str().unwrap().to_owned();
            return if answer[0] == Value::Bool(true) { Ok(text) } else { Err(text) };
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
