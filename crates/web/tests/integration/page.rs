//! What the page does with a run, with a mistake, and with what it must not do.

use std::path::Path;

use serde_json::{Value, json};

use crate::built::{READY, open, opened, run};
use crate::webdriver::Browser;

/// Puts a text in the place of the sliders' scenario, and runs it.
async fn type_in(browser: &Browser, text: &str) {
    let text = serde_json::to_string(text).unwrap();
    browser
        .run(&format!(
            "document.getElementById('advanced').open = true; \
             const area = document.getElementById('scenario'); area.value = {text}; \
             area.dispatchEvent(new Event('input')); document.getElementById('run').click()"
        ))
        .await;
}

/// Only its own file, and what is in it, was asked for, and nothing complained.
async fn assert_alone(browser: &Browser) {
    let mut requests = 0;
    for entry in browser.log("performance").await {
        let message: Value = serde_json::from_str(entry["message"].as_str().unwrap()).unwrap();
        let Some(url) = message["message"]["params"]["request"]["url"].as_str() else { continue };
        requests += usize::from(url == opened());
        let is_own = url == opened() || url.starts_with("data:") || url.starts_with("blob:");
        assert!(is_own, "{url}");
    }
    assert_eq!(requests, 1, "the page is loaded once");
    let complaints = browser.log("browser").await;
    assert!(complaints.is_empty(), "{complaints:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_played_and_its_figures_are_those_of_the_results() {
    let Some(browser) = open().await else { return };
    browser.until("the time passes", "return Number(document.getElementById('time').value) > 0").await;
    browser.run("document.getElementById('play').click()").await;
    assert_eq!(browser.text("play").await, "Play");
    browser
        .run(
            "const time = document.getElementById('time'); time.value = 1000; \
             time.dispatchEvent(new Event('input'))",
        )
        .await;
    let text = browser.run("return document.getElementById('scenario').value").await;
    let document = bentpipe_web::run(text.as_str().unwrap(), 1, &mut |_| ()).unwrap();
    let document: Value = serde_json::from_str(&document).unwrap();
    // Its own word for what is finished, and what the page makes of it.
    let [split, other] = [0, 1].map(|flow| &document["results"]["flows"][flow]);
    assert_eq!([&split["finished"], &other["finished"]], [&json!(true), &json!(true)]);
    let seconds = |flow: &Value| {
        let seconds = flow["seconds"].as_f64().unwrap();
        format!("{seconds:.0$}\u{a0}s", usize::from(seconds < 100.0))
    };
    let state = browser.text("state").await;
    let expected = [format!("split {}", seconds(split)), format!("end-to-end {}", seconds(other))];
    assert!(expected.iter().all(|part| state.contains(part)) && !state.contains(" of "), "{state}");
    let goodput = document["results"]["flows"][0]["goodput_bps"].as_f64().unwrap();
    let figures = browser.text("figures").await;
    assert!(figures.contains(&format!("{:.2}\u{a0}Mbit/s", goodput / 1e6)), "{figures}: {goodput}");
    browser
        .run(
            "document.getElementById('charts')\
             .dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowLeft' }))",
        )
        .await;
    assert_eq!(browser.run("return document.getElementById('time').value").await, "995", "an arrow key");
    let curves = "return document.querySelectorAll('#charts .chart:first-of-type path.s1').length";
    assert_eq!(browser.run(curves).await, 2, "what has been, and what comes");
    browser
        .run(
            "const per = document.getElementById('set-per'); per.value = 0; \
             per.dispatchEvent(new Event('input'))",
        )
        .await;
    browser
        .until(
            "the scenario follows",
            "return document.getElementById('scenario').value.includes('per = \"0%\"')",
        )
        .await;
    browser.until("another run", READY).await;
    assert_alone(&browser).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_moves_where_motion_is_to_be_reduced() {
    let Some(browser) = open().await else { return };
    let features = json!([{ "name": "prefers-reduced-motion", "value": "reduce" }]);
    browser.cdp("Emulation.setEmulatedMedia", json!({ "features": features })).await;
    browser.go(&opened()).await;
    browser.until("a run", READY).await;
    assert_eq!(browser.run("return document.getElementById('time').value").await, "1000", "the whole run");
    assert_eq!(browser.text("play").await, "Play");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mistake_is_shown_with_its_line_and_key() {
    let Some(browser) = open().await else { return };
    let text = browser.run("return document.getElementById('scenario').value").await;
    let text = text.as_str().unwrap().replacen("rate = \"10000kbit/s\"", "rate = \"very much\"", 1);
    type_in(&browser, &text).await;
    browser.until("an error", "return document.getElementById('state').dataset.state === 'failed'").await;
    let native = bentpipe_web::run(&text, 1, &mut |_| ()).unwrap_err().to_string();
    assert!(native.starts_with("scenario.toml:14: link.satellite.rate"), "{native}");
    assert_eq!(browser.text("notice").await, native);
    let selected = "const area = document.getElementById('scenario'); \
                    return area.value.slice(area.selectionStart, area.selectionEnd)";
    assert_eq!(browser.run(selected).await, "rate = \"very much\"");
    let disabled = "return document.getElementById('set-rate').disabled";
    assert_eq!(browser.run(disabled).await, true, "a slider would overwrite the text");
    browser.run("document.getElementById('discard').click()").await;
    browser.until("the sliders' scenario again", READY).await;
    assert_eq!(browser.run(disabled).await, false);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_refused_and_the_next_scenario_runs() {
    let Some(browser) = open().await else { return };
    let scenario = |outages: &str| {
        format!(
            "duration = '10s'\n[[link]]\nname = 'l'\nbetween = ['a', 'b']\ndelay = '1ms'\n{outages}\n\
             [[flow]]\nname = 'f'\nfrom = 'a'\nto = 'b'\nbytes = '1kB'\n"
        )
    };
    let error = run(&browser, &scenario("outages = { file = \"rain.csv\" }"), 1).await.unwrap_err();
    assert!(error.starts_with("scenario.toml:6: link.l.outages") && error.contains("rain.csv"), "{error}");
    run(&browser, &scenario(""), 1).await.unwrap();
}

/// `WEB_PICTURES=FOLDER`: the page as PNG files, on a wide screen and on a narrow one, light and dark.
#[tokio::test(flavor = "multi_thread")]
async fn pictures() {
    let Some(folder) = std::env::var_os("WEB_PICTURES") else { return };
    let Some(browser) = open().await else { return };
    browser
        .run(
            "const length = document.getElementById('set-length'); length.value = 6; \
             length.dispatchEvent(new Event('input'))",
        )
        .await;
    let outage = "return document.getElementById('charts').textContent.includes('outage')";
    browser.until("a run with an outage", outage).await;
    for (width, height) in [(1440, 1000), (360, 1900)] {
        for scheme in ["light", "dark"] {
            browser.look(width, height, scheme).await;
            let time = "const time = document.getElementById('time'); time.value = 450; \
                        time.dispatchEvent(new Event('input'))";
            browser.run(time).await;
            browser.picture(&Path::new(&folder).join(format!("browser-{width}-{scheme}.png"))).await;
        }
    }
}
