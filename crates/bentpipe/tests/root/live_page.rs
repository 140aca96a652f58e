//! The live page, the metrics and the status of the real daemon, with a satellite link behind it.

#[allow(dead_code)]
#[path = "../../../admin/tests/common/exposition.rs"]
mod exposition;
#[allow(dead_code)]
#[path = "../../../admin/tests/common/webdriver.rs"]
mod webdriver;

use std::future::Future;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use crate::operated::{PATIENCE, Topology};
use bentpipe_kernel::limits::raise_descriptor_limit;
use bentpipe_link::{LinkConfig, Profile};
use bentpipe_units::Probability;
use webdriver::Browser;

const LEG: &str = "rate = \"10Mbit/s\"\nrtt = \"600ms\"\n";
const URL: &str = "http://127.0.0.1:7500/";
const READY: &str = "return document.getElementById('state').textContent === 'ready'";

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_bentpipe"))
}

fn succeed(output: &Output) -> String {
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{complaint}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Looks at the topology from inside the gateway's namespace, where the daemon's loopback address is.
/// Everything happens on a thread that is in there, so sockets and programs are, too.
fn look<T: Send, F: Future<Output = T>>(
    topology: &Topology,
    with: impl FnOnce(Browser) -> F + Send,
) -> Option<T> {
    let inside = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { Some(with(Browser::start().await?).await) })
    };
    topology.gateway.run(inside).unwrap()
}

/// That an element's text contains something, as a script.
fn says(id: &str, text: &str) -> String {
    format!("return document.getElementById({id:?}).textContent.includes({text:?})")
}

/// That a figure is a number above zero, as a script.
fn moves(id: &str) -> String {
    format!("return parseFloat(document.getElementById({id:?}).textContent) > 0")
}

#[test]
fn the_page_follows_a_geo_link_through_an_outage_an_upgrade_and_draining() {
    let Some(mut topology) = Topology::new(program(), Some(&Profile::Geo.config())) else { return };
    topology.configure(LEG, "");
    topology.start();
    let uploads = topology.uploads(3, 20_000, Duration::from_millis(100));
    let link = topology.link.as_ref().unwrap();
    let seen = look(&topology, async |browser| {
        browser.go(URL).await;
        browser.run("window.mark = 1").await;
        browser.until("ready", READY).await;
        assert_eq!(browser.text("flow-count").await, "3");
        browser.until("bytes go into the satellite", &moves("sent")).await;
        figures_change(&browser).await;

        link.set_outage(true);
        browser.until("an outage", "return document.querySelector('#outage-figure.gone') !== null").await;
        browser.until("on the time line", &bar("goes on")).await;
        browser.until("of the leg", &says("legs", "✕ nothing heard for")).await;
        browser
            .until("of six seconds", "return parseFloat(document.getElementById('outage').textContent) >= 6")
            .await;
        link.set_outage(false);
        browser.until("its end", &bar("until")).await;
        browser.until("no outage any more", &says("outage", "none")).await;
        browser.until("bytes go on", &moves("sent")).await;

        let before = browser.run(HISTORY).await;
        let process = topology.status()["pid"].clone();
        succeed(&topology.command(&["upgrade"]));
        browser.until("the new process", &says("uptime", "1 upgrade")).await;
        assert_ne!(topology.status()["pid"], process);
        browser.until("ready after it", READY).await;
        browser.until("bytes go on after it", &moves("sent")).await;
        browser.until("the outage after it", &bar("until")).await;
        let more = format!("{HISTORY}.then((history) => history[2] > {})", before[2]);
        browser.until("samples after it", &more).await;
        let after = browser.run(HISTORY).await;
        assert_eq!((&after[0], &after[1]), (&before[0], &before[1]), "another beginning or other outages");
        assert_eq!(browser.run("return window.mark").await, 1, "the page was loaded anew");
        assert_eq!(browser.text("flow-count").await, "3");

        succeed(&topology.command(&["drain", "--no-deadline", "--no-wait"]));
        browser.until("draining", &says("state", "draining")).await;
        browser.until("what that means", &says("notice", "The 3 flows that are left")).await;
        browser.assert_quiet(URL).await;
    });
    // The daemon ends with the last of them, or is told to where no browser was.
    if seen.is_none() {
        topology.stop();
        return;
    }
    assert!(uploads.finish().iter().all(|seen| seen.bytes > 0));
}

/// That there is exactly one outage, and that something is said of it, as a script.
fn bar(said: &str) -> String {
    format!(
        "const bars = document.querySelectorAll('.bar-of-time'); \
         return bars.length === 1 && bars[0].getAttribute('aria-label').includes({said:?})"
    )
}

/// The first sample, the outages, and how many samples there are.
const HISTORY: &str = "return fetch('history?since=0').then((answer) => answer.json()) \
     .then((history) => [history.at[0], history.outages, history.at.length])";

/// The figures of a transfer are others from second to second.
async fn figures_change(browser: &Browser) {
    for id in ["sent-total", "rows", "uptime"] {
        let before = browser.text(id).await;
        let changed = format!("return document.getElementById({id:?}).textContent !== {before:?}");
        browser.until(id, &changed).await;
    }
    let line = "return document.querySelectorAll('.sent-line[d^=M]').length >= 1";
    browser.until("a line in the chart", line).await;
}

#[test]
fn five_thousand_connections_are_one_page_of_rows() {
    let Some(mut topology) = Topology::new(program(), None) else { return };
    raise_descriptor_limit().unwrap();
    topology.configure(LEG, "");
    topology.start();
    let connections = topology.connections(5000);
    let client = |number: usize| connections[number].0.local_addr().unwrap().to_string();
    look(&topology, async |browser| {
        browser.look(1440, 900, "light").await;
        browser.go(URL).await;
        browser.until("all of them", &says("flow-count", "5,000")).await;
        let rows = "return document.getElementById('rows').children.length";
        assert_eq!(browser.run(rows).await, 100);
        assert_eq!(browser.text("page-number").await, "1 of 50");
        // By age, which the daemon does not sort by: the first that came, and then the last.
        let age = "document.querySelector('#columns th:nth-child(11) button').click()";
        let first =
            |client: &str| format!("return document.querySelector('#rows td').textContent === {client:?}");
        browser.run(age).await;
        browser.until("the oldest first", &first(&client(0))).await;
        browser.run(age).await;
        browser.until("the youngest first", &first(&client(4999))).await;
        browser.run("document.getElementById('next').click()").await;
        browser.until("another page", &says("page-number", "2 of 50")).await;
        assert_eq!(browser.run(rows).await, 100);
        let filter = format!(
            "const f = document.getElementById('filter'); f.value = {:?}; f.dispatchEvent(new Event('input'))",
            client(1234)
        );
        browser.run(&filter).await;
        browser.until("one that is looked for", &first(&client(1234))).await;
        assert_eq!(browser.run(rows).await, 1);
        let elements =
            browser.run("return document.getElementsByTagName('*').length").await.as_u64().unwrap();
        assert!(elements < 2500, "{elements} elements");
        browser.assert_quiet(URL).await;
    });
    assert_eq!(topology.status()["flows"].as_array().unwrap().len(), 5000);
    drop(connections);
    topology.stop();
}

#[test]
fn metrics_status_and_top_agree_with_the_documentation() {
    let Some(mut topology) = Topology::new(program(), Some(&Profile::Geo.config())) else { return };
    topology.configure(LEG, "");
    topology.start();
    let uploads = topology.uploads(2, 20_000, Duration::from_millis(100));
    let sent = || topology.status()["legs"][0]["sent_bytes"].as_u64().unwrap();
    let start = std::time::Instant::now();
    while sent() == 0 {
        assert!(start.elapsed() < PATIENCE, "nothing goes into the satellite");
        std::thread::sleep(Duration::from_millis(100));
    }
    let least = sent();
    let (head, body) = get(&topology, "/metrics");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(
        head.to_lowercase().contains("\r\ncontent-type: application/openmetrics-text; version=1.0.0"),
        "{head}"
    );
    let families = exposition::read(&body);
    exposition::assert_well_described(&families);
    assert!(families.len() > 60, "{} families", families.len());
    let of = |name: &str| {
        let samples = &families[&format!("bentpipe_{name}")].samples;
        let satellite = |(labels, _): &&_| {
            let labels: &std::collections::BTreeMap<String, String> = labels;
            labels.get("leg").is_none_or(|leg| leg == "satellite")
        };
        samples.iter().find(satellite).unwrap_or_else(|| panic!("{name} has no sample")).1
    };
    assert_eq!((of("ready"), of("draining"), of("flows_open"), of("leg_flows")), (1.0, 0.0, 2.0, 2.0));
    assert_eq!((of("leg_rate_bytes_per_second"), of("leg_outage")), (1.25e6, 0.0));
    assert!(of("leg_sent_bytes_total") >= least as f64 && of("up_bytes_total") >= least as f64);
    assert!((0.6..6.0).contains(&of("leg_min_rtt_seconds")), "{}", of("leg_min_rtt_seconds"));

    // Every key of the documented types, and no other.
    let status = topology.status();
    let document: bentpipe_admin::Status = serde_json::from_value(status.clone()).unwrap();
    assert_eq!(serde_json::to_value(&document).unwrap(), status);
    assert_eq!((document.legs.len(), document.flows.len(), document.totals.flows_total), (2, 2, 2));
    assert_eq!(document.config, topology.config().to_string_lossy());

    let top = succeed(&topology.command(&["top"]));
    assert!(top.starts_with("bentpipe ") && top.contains("satellite"), "{top}");
    assert!(!top.contains('\x1b') && top.matches("bentpipe ").count() == 1, "{top}");
    assert_eq!(top.lines().filter(|line| line.starts_with("10.")).count(), 2, "{top}");
    assert!(uploads.finish().iter().all(|seen| seen.bytes > 0));
    topology.stop();
}

/// Head and body of an answer, asked for over TCP.
fn get(topology: &Topology, path: &str) -> (String, String) {
    let mut stream = topology.gateway.run(|| TcpStream::connect("127.0.0.1:7500").unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:7500\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// For eyes, and for the documentation: `make page-pictures`.
#[test]
fn pictures() {
    let Some(folder) = std::env::var_os("PAGE_PICTURES") else {
        println!("skipped: PAGE_PICTURES names no folder");
        return;
    };
    let mut config: LinkConfig = Profile::Geo.config();
    for direction in [&mut config.forward, &mut config.reverse] {
        direction.per = Probability::new(0.003).unwrap();
    }
    let Some(mut topology) = Topology::new(program(), Some(&config)) else { return };
    topology.configure(LEG, "");
    topology.start();
    let link = topology.link.as_ref().unwrap();
    let pace = Duration::from_millis(100);
    let mut flows = vec![topology.uploads(2, 4_000, pace), topology.downloads(2, 3_000, pace)];
    std::thread::sleep(Duration::from_secs(20));
    flows.push(topology.uploads(1, 120_000, pace));
    std::thread::sleep(Duration::from_secs(50));
    link.set_outage(true);
    std::thread::sleep(Duration::from_secs(9));
    link.set_outage(false);
    std::thread::sleep(Duration::from_secs(40));
    look(&topology, async |browser| {
        browser.go(URL).await;
        for (width, height) in [(1440, 730), (360, 1100)] {
            browser.look(width, height, "light").await;
            browser.until("ready", READY).await;
            tokio::time::sleep(Duration::from_secs(3)).await;
            browser.picture(&Path::new(&folder).join(format!("page-{width}.png"))).await;
        }
    });
    topology.stop();
    drop(flows);
}
