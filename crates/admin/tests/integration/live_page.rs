//! The live page in a headless Chromium: its data are written by the test.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::daemon::{Outside, flow, past, satellite, working};
use crate::common::webdriver::Browser;
use bentpipe_admin::history::History;
use bentpipe_admin::{BundleNodeReport, Status};
use bentpipe_proxy::Stats;
use bentpipe_proxy::telemetry::{Drain, ForwardedReport, Gain, GainState, LegReport};
use serde_json::{Value, json};

const READY: &str = "return document.getElementById('state').textContent === 'ready'";

/// Everything that markup in a name could do: run, load, or break out of an attribute.
const HOSTILE: &str = "\"><img src=http://192.0.2.1/x onerror='window.hit=1'><script>window.hit=1</script>&lt;\
                       aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

/// That an element's text contains something, as a script.
fn says(id: &str, text: &str) -> String {
    format!("return document.getElementById({id:?}).textContent.includes({text:?})")
}

async fn assert_quiet(browser: &Browser, outside: &Outside) {
    browser.assert_quiet(&outside.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn figures_follow_the_daemon() {
    let Some(browser) = Browser::start().await else { return };
    let outside = Outside::start(working(148), &past(900));
    browser.go(&outside.url()).await;
    browser.until("ready", READY).await;
    assert_eq!(browser.text("sent").await, "8.10\u{a0}Mbit/s");
    assert_eq!(browser.text("gain").await, "×12");
    assert_eq!(browser.text("flow-count").await, "148");
    assert_eq!(browser.text("outage").await, "none");
    assert_eq!(browser.text("host").await, "gw1.example");
    assert!(browser.text("zone").await.starts_with("Times of "), "{}", browser.text("zone").await);
    browser
        .until("the charts have lines", "return document.querySelectorAll('.sent-line[d^=M]').length === 2")
        .await;
    let line = "return document.querySelector('.sent-line').getAttribute('d')";
    let before = browser.run(line).await;
    outside.change(|status| {
        status.legs[0].sent_bps = 3.21e6;
        (status.gain.ratio, status.gain.state) = (None, GainState::NothingSent);
        status.totals.flows_open = 1234;
    });
    browser.until("another rate", &says("sent", "3.21")).await;
    browser.until("no gain", &says("gain", "–")).await;
    browser
        .until("and why", &says("gain-detail", "not measurable: nothing is being sent to the satellite"))
        .await;
    browser.until("another count", &says("flow-count", "1,234")).await;
    assert_ne!(browser.run(line).await, before);
    browser.run("document.getElementById('step-60').click()").await;
    browser.until("a day", "return document.querySelectorAll('.chart text').length > 3").await;
    assert_quiet(&browser, &outside).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_split_is_seen_with_its_reason_and_limits_with_their_use() {
    let Some(browser) = Browser::start().await else { return };
    let outside = Outside::start(working(148), &History::default());
    browser.go(&outside.url()).await;
    browser.until("ready", READY).await;
    assert_eq!(browser.text("unsplit-rate").await, "841\u{a0}kbit/s");
    assert!(
        browser
            .text("unsplit-detail")
            .await
            .starts_with("9\u{a0}% of all, 10.5\u{a0}GB and 20,126 connections")
    );
    for (id, text) in [
        ("verdicts", "passed by rules20,114"),
        ("verdicts", "passed while draining, bypassed or not ready12"),
        ("rules", "1. pass port 22, client 10.20.0.0/16 (ssh of the staff)20,114"),
        ("limits", "connections148 of 10,000"),
        ("limits", "memory in buffers31.0\u{a0}MB of 512\u{a0}MB"),
        ("limits", "new connections per second7 of 300"),
    ] {
        browser.until(text, &says(id, text)).await;
    }
    assert_eq!(browser.run("return document.querySelectorAll('#limits .full').length").await, 0);
    outside.change(|status| status.limits.connections.used = 10_000);
    browser.until("a full limit", "return document.querySelectorAll('#limits .full').length === 1").await;
    outside.change(|status| status.policy.rules.clear());
    browser.until("no rule", "return !document.getElementById('no-rules').hidden").await;
    assert_quiet(&browser, &outside).await;
}

/// A node that has much to do.
fn bundle_node() -> BundleNodeReport {
    BundleNodeReport {
        node: "dtn://gw/".into(),
        bundles: 1234,
        queued: 1200,
        deliverable: 34,
        payload_bytes: 2_500_000_000,
        quota_bytes: 10_000_000_000,
        peers: 3,
        peers_connected: 2,
        last_error: Some(
            "dtn://ship/: cannot connect: [2001:db8::2]:4556: No route to host (os error 113); 192.0.2.2:4556: no \
             answer within 30s"
                .into(),
        ),
        ..BundleNodeReport::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_node_on_the_host_has_a_row_and_its_absence_has_none() {
    let Some(browser) = Browser::start().await else { return };
    let outside = Outside::start(working(3), &History::default());
    browser.go(&outside.url()).await;
    browser.until("ready", READY).await;
    let hidden = "return getComputedStyle(document.getElementById('node')).display === 'none'";
    assert_eq!(browser.run(hidden).await, json!(true));
    let report = BundleNodeReport { last_error: Some(HOSTILE.into()), ..bundle_node() };
    outside.change(|status| status.bundle_node = Some(report.clone()));
    browser.until("its name", &says("node-id", "dtn://gw/")).await;
    assert_eq!(browser.run(hidden).await, json!(false));
    assert_eq!(browser.text("node-bundles").await, "1,234: 1,200 for a session, 34 to be delivered here");
    assert_eq!(browser.text("node-store").await, "2.50\u{a0}GB of 10.0\u{a0}GB (25\u{a0}%)");
    assert_eq!(browser.text("node-peers").await, "2 of 3");
    assert_eq!(browser.text("node-error").await, HOSTILE);
    outside.change(|status| status.bundle_node = Some(BundleNodeReport { last_error: None, ..report }));
    browser.until("no error", "return document.getElementById('node-error-row').hidden").await;
    outside.change(|status| status.bundle_node = None);
    browser.until("no node", hidden).await;
    assert_quiet(&browser, &outside).await;
}

/// The bar's width, and the number under it, in percent.
const BAR: &str = "const card = document.querySelector('.leg'), bar = card.querySelector('.meter'); \
     const widths = [...bar.children].map((part) => parseFloat(part.style.width) || 0); \
     return [widths[0], widths[0] + widths[1], parseInt(bar.nextElementSibling.textContent), \
     Number(bar.getAttribute('aria-valuenow'))]";

#[tokio::test(flavor = "multi_thread")]
async fn the_bar_of_a_leg_is_as_long_as_its_number_says() {
    let Some(browser) = Browser::start().await else { return };
    let outside = Outside::start(working(20), &History::default());
    browser.go(&outside.url()).await;
    browser.until("ready", READY).await;
    // 8.1 Mbit/s split and 0.81 unsplit of 9.87.
    assert_eq!(browser.run(BAR).await, json!([82, 90, 90, 90]));
    assert!(
        browser
            .text("legs")
            .await
            .contains("estimated capacity 9.87\u{a0}Mbit/s, configured 10.0\u{a0}Mbit/s")
    );
    outside.change(|status| status.legs[0].sent_bps = 12e6);
    browser.until("more than there is", &says("legs", "130\u{a0}% of 9.87\u{a0}Mbit/s in use")).await;
    assert_eq!(browser.run(BAR).await, json!([100, 100, 130, 100]));
    outside.change(|status| status.legs[0].sent_bps = 0.0);
    browser
        .until(
            "what is unsplit alone",
            &says("legs", "8\u{a0}% of 9.87\u{a0}Mbit/s in use, 8\u{a0}% unsplit"),
        )
        .await;
    assert_eq!(browser.run(BAR).await, json!([0, 8, 8, 8]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_trip_that_the_other_directions_queue_makes_long_is_explained() {
    let Some(browser) = Browser::start().await else { return };
    let outside = Outside::start(working(20), &History::default());
    browser.go(&outside.url()).await;
    browser.until("ready", READY).await;
    assert_eq!(browser.run("return document.querySelector('.why').hidden").await, Value::Bool(true));
    outside.change(|status| {
        let LegReport { srtt_s, return_queue_s, .. } = &mut status.legs[0];
        (*srtt_s, *return_queue_s) = (Some(0.9), Some(0.2965));
    });
    browser
        .until(
            "why",
            &says("legs", "600\u{a0}ms path, 3.1\u{a0}ms queue, and 297\u{a0}ms in which acknowledgements"),
        )
        .await;
    assert_fits_everywhere(&browser).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_looked_up_only_for_those_who_ask() {
    let Some(browser) = Browser::start().await else { return };
    let outside = Outside::start(working(3), &History::default());
    browser.go(&outside.url()).await;
    browser.until("flows", &says("rows", "10.20.0.1:40000")).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(outside.asked_for_names(), 0, "nobody has asked");
    browser.run("document.getElementById('names').click()").await;
    browser.until("a name", &says("rows", "host-10.20.0.1.example:40000")).await;
    let title = "return document.querySelector('#rows td').title";
    assert_eq!(browser.run(title).await, "10.20.0.1:40000");
    assert!(browser.text("rows").await.contains("[2001:db8:85a3::8a2e:370:7334]:443"), "one without a name");
    let asked = outside.asked_for_names();
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(outside.asked_for_names(), asked, "what is known is not asked for again");
    browser.run("document.getElementById('names').click()").await;
    browser.until("addresses", &says("rows", "10.20.0.1:40000")).await;
    assert_quiet(&browser, &outside).await;
}

async fn assert_fits_everywhere(browser: &Browser) {
    for (width, height) in [(360, 740), (1440, 900)] {
        browser.look(width, height, "light").await;
        assert_fits(browser, width).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_appears_on_the_time_line_and_ends() {
    let Some(browser) = Browser::start().await else { return };
    let outside = Outside::start(working(20), &History::default());
    browser.go(&outside.url()).await;
    browser.until("ready", READY).await;
    browser.until("no outage", &says("outage-count", "none so far")).await;
    outside.change(|status| status.legs[0].outage_s = Some(14.0));
    browser.until("an outage", &says("outage", "14\u{a0}s")).await;
    let bar = "const bar = document.querySelector('.bar-of-time'); return ";
    browser.until("a bar", &format!("{bar} bar !== null && bar.getBoundingClientRect().width >= 5")).await;
    browser.until("it goes on", &format!("{bar} /goes on/.test(bar.getAttribute('aria-label'))")).await;
    browser.run("document.querySelector('.bar-of-time').focus()").await;
    assert!(browser.text("readout").await.starts_with("geo: nothing heard for 1"));
    let hatched = "return document.querySelectorAll('.chart rect[fill^=\"url\"]').length > 0";
    browser.until("hatched", hatched).await;
    outside.change(|status| status.legs[0].outage_s = None);
    browser.until("it is over", &says("outage", "none")).await;
    browser.until("its end", &format!("{bar} /until/.test(bar.getAttribute('aria-label'))")).await;
    let focused = "return document.activeElement.className === 'bar-of-time'";
    assert_eq!(browser.run(focused).await, Value::Bool(true), "an update took the focus away");
    assert_quiet(&browser, &outside).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn five_thousand_flows_are_one_page_of_rows() {
    let Some(browser) = Browser::start().await else { return };
    let outside = Outside::start(working(5000), &past(900));
    browser.look(1440, 900, "light").await;
    browser.go(&outside.url()).await;
    browser.until("ready", READY).await;
    browser.run(LONGEST_TASK).await;
    let rows = "return document.getElementById('rows').children.length";
    let first = |column: usize| {
        format!("return document.querySelector('#rows tr td:nth-child({column})').textContent")
    };
    assert_eq!(browser.run(rows).await, 100);
    assert_eq!(browser.text("page-number").await, "1 of 50");
    // Sorted by what the fastest hundred do not know: the oldest flow is the slowest.
    browser.run("document.querySelector('#columns th:nth-child(11) button').click()").await;
    let oldest = format!("return document.querySelector('#rows td').textContent === {:?}", flow(4999).client);
    browser.until("the oldest flow first", &oldest).await;
    assert_eq!(browser.run("return document.querySelector('th[aria-sort]').ariaSort").await, "descending");
    browser.run("document.querySelector('#columns th:nth-child(11) button').click()").await;
    browser.until("the youngest first", &says("rows", &flow(0).client)).await;
    assert_eq!(browser.run(&first(11)).await, "3\u{a0}s");
    browser.run("document.getElementById('next').click()").await;
    browser.until("another page", &says("page-number", "2 of 50")).await;
    assert_eq!(browser.run(&first(1)).await, flow(100).client.as_str());
    browser.run(&filter("10.20.7.9:")).await;
    browser.until("one flow", "return document.getElementById('rows').children.length === 1").await;
    assert_eq!(browser.run(&first(1)).await, flow(1758).client.as_str());
    assert!(
        browser.text("shown").await.starts_with("1 matching of 5,000"),
        "{}",
        browser.text("shown").await
    );
    browser.run(&filter("")).await;
    assert_eq!(browser.run(rows).await, 100);
    let elements = browser.run("return document.getElementsByTagName('*').length").await.as_u64().unwrap();
    assert!(elements < 2500, "{elements} elements");
    tokio::time::sleep(Duration::from_secs(3)).await;
    println!("longest task, and bytes and ms of all flows: {}", browser.run(COST).await);
    assert_quiet(&browser, &outside).await;
}

/// Types into the filter.
fn filter(text: &str) -> String {
    format!(
        "const f = document.getElementById('filter'); f.value = {text:?}; f.dispatchEvent(new Event('input'))"
    )
}

const COST: &str = "const all = performance.getEntriesByType('resource').filter((one) => one.name.endsWith('=all')); \
     const last = all.pop(); return [window.longest, last.encodedBodySize, Math.round(last.duration)]";

/// Tasks of more than 50 ms hold a page up, says the browser.
const LONGEST_TASK: &str = "window.longest = 0; new PerformanceObserver((list) => { \
     for (const task of list.getEntries()) window.longest = Math.max(window.longest, task.duration); \
     }).observe({ type: 'longtask' })";

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_peer_is_reported_as_gone() {
    let Some(browser) = Browser::start().await else { return };
    let mut outside = Outside::start(working(20), &past(60));
    browser.go(&outside.url()).await;
    browser.until("ready", READY).await;
    outside.vanish();
    browser.until("it is gone", &says("state", "connection lost")).await;
    browser.run(SECONDS_SAID).await;
    // Questions are seconds apart by then: it counts without them.
    let counts = "return [...window.said].some((ago) => ago >= 4 && window.said.has(ago + 1))";
    browser.until("for how long", counts).await;
    assert!(browser.run("return document.title").await.as_str().unwrap().starts_with("✕"));
    outside.go_on();
    browser.until("it is back", READY).await;
    assert_eq!(browser.run("return document.getElementById('notice').hidden").await, Value::Bool(true));
    // An upgrade to another program brings another page.
    browser.run("window.mark = 1").await;
    outside.change(|status| (status.pid, status.program) = (4712, "another".into()));
    browser.until("another page", "return window.mark === undefined").await;
    browser.until("it is ready", READY).await;
    let reason = "IPv4 forwarding: off";
    outside.change(|status| (status.ready, status.not_ready) = (false, Some(reason.into())));
    browser.until("not ready", &says("state", "not ready")).await;
    browser.until("the reason", &says("notice", reason)).await;
    outside.change(|status| status.bypass = true);
    browser.until("bypass", &says("notice", "pass unsplit. To end it: bentpipe bypass off")).await;
    outside.change(|status| status.draining = Some(Drain { left_s: Some(90.0) }));
    browser.until("draining", &says("notice", "are reset in 1\u{a0}min 30\u{a0}s")).await;
    browser.run("document.getElementById('pause').click()").await;
    browser.until("paused", &says("state", "paused")).await;
}

/// Collects what the page says about when it last heard something.
const SECONDS_SAID: &str = "window.said = new Set(); const notice = document.getElementById('notice'); \
     new MutationObserver(() => window.said.add(parseInt(notice.textContent.split('last heard ')[1]))) \
     .observe(notice, { childList: true, characterData: true, subtree: true })";

#[tokio::test(flavor = "multi_thread")]
async fn names_are_texts_and_never_markup() {
    let Some(browser) = Browser::start().await else { return };
    let mut status = working(3);
    status.version = HOSTILE.into();
    status.legs.push(satellite(1.0, 1.0));
    let leg = &mut status.legs[2];
    (leg.name, leg.interface, leg.congestion) = (HOSTILE.into(), Some(HOSTILE.into()), Some(HOSTILE.into()));
    leg.outage_s = Some(9.0);
    status.flows[0].client = HOSTILE.into();
    status.flows[0].server = HOSTILE.into();
    status.flows[0].client_end.leg = HOSTILE.into();
    let outside = Outside::start(status, &History::default());
    browser.go(&outside.url()).await;
    for id in ["charts", "lanes", "legs", "rows", "outage-list", "outage-detail", "version"] {
        browser.until(id, &says(id, "window.hit")).await;
    }
    for (width, height) in [(360, 740), (1440, 900)] {
        browser.look(width, height, "light").await;
        assert_fits(&browser, width).await;
    }
    assert_eq!(browser.run("return window.hit ?? null").await, Value::Null);
    let elements = "return document.querySelectorAll('img, script').length";
    assert_eq!(browser.run(elements).await, 2, "the icon and the page's own script");
    assert_quiet(&browser, &outside).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_can_be_read_on_a_phone_and_on_a_screen_by_day_and_by_night() {
    let Some(browser) = Browser::start().await else { return };
    let mut status = working(148);
    status.legs[0].outage_s = Some(14.0);
    status.flows[0].phase = bentpipe_proxy::telemetry::FlowPhase::Draining;
    status.bundle_node = Some(bundle_node());
    let outside = Outside::start(status, &past(900));
    browser.go(&outside.url()).await;
    browser.until("ready", READY).await;
    browser.until("bars", "return document.querySelector('.bar-of-time') !== null").await;
    for (width, height) in [(360, 740), (768, 1024), (1440, 900)] {
        for scheme in ["light", "dark"] {
            browser.look(width, height, scheme).await;
            assert_fits(&browser, width).await;
            let faint = browser.run(FAINT).await;
            assert_eq!(faint, json!([]), "{width} pixels, {scheme}");
        }
    }
    // Letters of twice the size, as people set them who need it.
    browser.look(360, 740, "light").await;
    browser.run("document.documentElement.style.fontSize = '32px'").await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_fits(&browser, 360).await;
    assert_quiet(&browser, &outside).await;
}

/// Nothing reaches beyond the window's width.
async fn assert_fits(browser: &Browser, width: u32) {
    let end = std::time::Instant::now() + Duration::from_secs(10);
    loop {
        let seen = browser.run("return [innerWidth, document.documentElement.scrollWidth]").await;
        if seen[0] == width && seen[1].as_u64() <= Some(width.into()) {
            return;
        }
        let wide = browser.run(&WIDE.replace("WIDTH", &width.to_string())).await;
        assert!(std::time::Instant::now() < end, "{width} pixels, but {seen}: {wide}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

const WIDE: &str = "return [...document.querySelectorAll('*')] \
     .filter((element) => element.getBoundingClientRect().right > WIDTH + 1) \
     .map((element) => element.tagName + '#' + element.id + '.' + element.className).slice(-5)";

/// Texts whose contrast to their ground is below 4.5 (WCAG 2.2, success criterion 1.4.3), disabled buttons
/// too.
const FAINT: &str = "
    const channels = (text) => text.match(/[\\d.]+/g).map(Number);
    const linear = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    const ground = (element) => {
        for (; element; element = element.parentElement) {
            const color = channels(getComputedStyle(element).backgroundColor);
            if (color.length === 3 || color[3] === 1) return color;
        }
        return [255, 255, 255];
    };
    const own = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    return [...document.body.querySelectorAll('*')].filter((element) => own(element) && element.checkVisibility())
        .map((element) => {
            const style = getComputedStyle(element), svg = element instanceof SVGElement;
            const [a, b] = [channels(svg ? style.fill : style.color), ground(element)].map(luminance);
            return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), element.outerHTML.slice(0, 80)];
        }).filter(([ratio]) => ratio < 4.5)";

/// For eyes: `PAGE_PICTURES=/tmp/pictures cargo test -p bentpipe-admin --test integration
/// live_page::pictures`.
#[tokio::test(flavor = "multi_thread")]
async fn pictures() {
    let Some(folder) = std::env::var_os("PAGE_PICTURES") else {
        println!("skipped: PAGE_PICTURES names no folder");
        return;
    };
    let Some(browser) = Browser::start().await else { return };
    for (state, status, history) in states() {
        let mut outside = Outside::start(status, &history);
        let began = Instant::now();
        browser.look(1440, 900, "light").await;
        browser.go(&outside.url()).await;
        browser
            .until(
                "the page has its data",
                "return !document.getElementById('uptime').textContent.includes('–')",
            )
            .await;
        if state == "lost" {
            outside.vanish();
            browser.until("it is gone", &says("state", "connection lost")).await;
        }
        for (name, width, height) in [("360", 360, 740), ("1440", 1440, 900)] {
            for scheme in ["light", "dark"] {
                browser.look(width, height, scheme).await;
                let since = began.elapsed().as_secs_f64();
                outside.change(|status| {
                    let outage = &mut status.legs[0].outage_s;
                    *outage = outage.map(|_| 14.0 + since);
                });
                tokio::time::sleep(Duration::from_millis(1500)).await;
                shoot(&browser, Path::new(&folder), &format!("{state}-{name}-{scheme}")).await;
            }
        }
    }
}

/// The states that a page is looked at in, each with its past.
fn states() -> [(&'static str, Status, History); 6] {
    let (mut start, mut outage, mut drain, mut bypass) = (working(0), working(148), working(37), working(9));
    start.uptime_s = 3.0;
    start.upgrades = 0;
    drain.bundle_node = Some(bundle_node());
    start.totals = Stats::default();
    start.gain = Gain::default();
    start.policy.verdicts.iter_mut().for_each(|report| report.count = 0);
    start.policy.rules.clear();
    for limit in [
        &mut start.limits.buffered_bytes,
        &mut start.limits.connections_per_client,
        &mut start.limits.connecting,
        &mut start.limits.connection_rate,
    ] {
        limit.used = 0;
    }
    for leg in &mut start.legs {
        let forwarded = leg.forwarded.map(|_| ForwardedReport::default());
        *leg = LegReport {
            name: leg.name.clone(),
            interface: leg.interface.clone(),
            congestion: leg.congestion.clone(),
            rate_bps: leg.rate_bps,
            forwarded,
            ..LegReport::default()
        };
    }
    outage.legs[0] = LegReport { outage_s: Some(14.0), ..satellite(0.0, 0.0) };
    outage.gain = Gain { state: GainState::Outage, ..Gain::default() };
    drain.draining = Some(Drain { left_s: Some(512.0) });
    drain.ready = false;
    bypass.bypass = true;
    bypass.ready = false;
    let mut load = working(148);
    (load.legs[0].srtt_s, load.legs[0].return_queue_s) = (Some(0.9), Some(0.2965));
    [
        ("start", start, History::default()),
        ("load", load, past(14 * 3600)),
        ("outage", outage, past(900)),
        ("drain", drain, past(900)),
        ("bypass", bypass, past(900)),
        ("lost", working(20), past(900)),
    ]
}

/// What is seen at first, and what comes by scrolling.
async fn shoot(browser: &Browser, folder: &Path, name: &str) {
    for page in 0..3 {
        browser.run(&format!("scrollTo(0, {page} * innerHeight)")).await;
        browser.picture(&folder.join(format!("{name}-{page}.png"))).await;
    }
    browser.run("scrollTo(0, 0)").await;
}
