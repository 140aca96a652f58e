//! The outside of a daemon that is not there: the page, a history, and a status that a test writes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::routing::get;
use axum::{Json, Router};
use bentpipe_admin::Status;
use bentpipe_admin::history::{self, History, Observation, Recorder};
use bentpipe_admin::page;
use bentpipe_proxy::Stats;
use bentpipe_proxy::telemetry::{
    EndReport, ExplicitReport, FlowPhase, FlowReport, ForwardedBytes, ForwardedReport, Gain, GainState,
    LegReport, LimitsReport, PolicyReport, RuleReport, Use, VerdictReport,
};
use serde::Deserialize;
use tokio::runtime::Runtime;

/// Serves what [`Outside::change`] says, on a port of its own.
pub(crate) struct Outside {
    pub(crate) address: SocketAddr,
    status: Arc<Mutex<Status>>,
    recorder: Recorder,
    server: Option<Runtime>,
    /// Questions for names.
    names: Arc<AtomicUsize>,
}

impl Outside {
    pub(crate) fn start(status: Status, history: &History) -> Self {
        let recorder = Recorder::restore(&history.save());
        let status = Arc::new(Mutex::new(status));
        let address = ([127, 0, 0, 1], 0).into();
        let mut outside = Self { address, status, recorder, server: None, names: Arc::default() };
        outside.go_on();
        outside
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Status)) {
        change(&mut self.status.lock().unwrap());
    }

    /// How often somebody has asked for names.
    pub(crate) fn asked_for_names(&self) -> usize {
        self.names.load(Ordering::SeqCst)
    }

    /// The daemon is gone, with all its connections.
    pub(crate) fn vanish(&mut self) {
        if let Some(server) = self.server.take() {
            server.shutdown_background();
        }
    }

    /// The daemon is there, at the same address if it had one.
    pub(crate) fn go_on(&mut self) {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = std::net::TcpListener::bind(self.address).unwrap();
        listener.set_nonblocking(true).unwrap();
        self.address = listener.local_addr().unwrap();
        let app = Router::new()
            .route("/status", get(status))
            .with_state(Arc::clone(&self.status))
            .merge(Router::new().route("/names", get(names)).with_state(Arc::clone(&self.names)))
            .merge(history::routes(self.recorder.clone()))
            .merge(page::routes());
        runtime.spawn(record(Arc::clone(&self.status), self.recorder.clone()));
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, app).await.unwrap();
        });
        self.server = Some(runtime);
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        self.vanish();
    }
}

#[derive(Deserialize)]
struct StatusQuery {
    flows: String,
}

async fn status(State(status): State<Arc<Mutex<Status>>>, Query(query): Query<StatusQuery>) -> Json<Status> {
    let mut status = status.lock().unwrap().clone();
    status.flows.truncate(query.flows.parse().unwrap_or(usize::MAX));
    Json(status)
}

#[derive(Deserialize)]
struct NamesQuery {
    addresses: String,
}

/// Hosts of IPv4 have names, those of IPv6 have none.
async fn names(
    State(asked): State<Arc<AtomicUsize>>,
    headers: HeaderMap,
    Query(query): Query<NamesQuery>,
) -> Json<BTreeMap<String, String>> {
    assert!(headers.contains_key("bentpipe-names"), "{headers:?}");
    asked.fetch_add(1, Ordering::SeqCst);
    let name = |address: &str| match address.contains(':') {
        true => String::new(),
        false => format!("host-{address}.example"),
    };
    Json(query.addresses.split(',').map(|address| (address.to_owned(), name(address))).collect())
}

async fn record(status: Arc<Mutex<Status>>, recorder: Recorder) {
    loop {
        let now = status.lock().unwrap().clone();
        recorder.record(&Observation { legs: &now.legs, gain: &now.gain, flows: now.totals.flows_open });
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

pub(crate) fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// A daemon with a GEO satellite, one to the terrestrial side, and this many flows.
pub(crate) fn working(flows: usize) -> Status {
    let legs = vec![satellite(8.1e6, 0.31e6), terrestrial(0.31e6, 8.1e6)];
    Status {
        version: "0.1.0".into(),
        pid: 4711,
        host: "gw1.example".into(),
        time_zone: Some("UTC".into()),
        config: "/etc/bentpipe/bentpipe.toml".into(),
        program: "test".into(),
        uptime_s: 273_914.0,
        upgrades: 2,
        ready: true,
        not_ready: None,
        draining: None,
        bypass: false,
        totals: Stats { flows_open: flows as u64, flows_total: 918_273, connecting: 3, ..Stats::default() },
        gain: Gain {
            ratio: Some(12.3),
            state: GainState::Measured,
            actual_bps: 8.1e6,
            end_to_end_bps: 0.66e6,
            start_up: Some(0.12),
        },
        policy: policy(),
        limits: limits(flows as u64),
        bundle_node: None,
        legs,
        flows: (0..flows).map(flow).collect(),
    }
}

fn policy() -> PolicyReport {
    let verdict = |(verdict, count): (&str, u64)| VerdictReport { verdict: verdict.into(), count };
    let rule = |(place, (action, conditions, comment, matched)): (u64, (&str, &str, Option<&str>, u64))| {
        RuleReport {
            place,
            action: action.into(),
            conditions: conditions.into(),
            comment: comment.map(str::to_owned),
            matched,
        }
    };
    let verdicts = [("split", 918_273), ("pass", 20_114), ("reject", 7_331), ("limit", 0), ("not_ready", 12)];
    let rules = [
        ("pass", "port 22, client 10.20.0.0/16", Some("ssh of the staff"), 20_114),
        ("reject", "port 443", None, 7_331),
    ];
    PolicyReport { verdicts: verdicts.map(verdict).into(), rules: (1..).zip(rules).map(rule).collect() }
}

fn limits(flows: u64) -> LimitsReport {
    let of = |used, most| Use { used, most: Some(most) };
    LimitsReport {
        connections: of(flows, 10_000),
        connections_per_client: of(12, 50),
        connecting: of(3, 4096),
        buffered_bytes: of(31_000_000, 512_000_000),
        connection_rate: of(7, 300),
        connection_rate_per_client: Some(20),
        at_limit: "pass".into(),
    }
}

pub(crate) fn satellite(sent_bps: f64, received_bps: f64) -> LegReport {
    LegReport {
        name: "geo".into(),
        interface: Some("sat0".into()),
        waiting: None,
        congestion: Some("explicit".into()),
        rate_bps: Some(10_000_000),
        flows: 148,
        active: 31,
        sent_bps,
        received_bps,
        sent_bytes: 184_467_440_737,
        received_bytes: 9_467_440_737,
        segments: 127_000_000,
        retransmissions: 1_274_411,
        timeouts: 412,
        loss: Some(0.0103),
        srtt_s: Some(0.6123),
        min_rtt_s: Some(0.6004),
        outage_s: None,
        explicit: Some(ExplicitReport {
            capacity_bps: 9.87e6,
            queue_s: 0.0031,
            cross_traffic_bps: 0.4e6,
            cross_traffic_marked: 1_302,
            cross_traffic_dropped: 17,
            active: 31,
        }),
        return_queue_s: Some(0.0088),
        forwarded: Some(ForwardedReport {
            sent_bps: sent_bps / 10.0,
            received_bps: received_bps / 10.0,
            sent_bytes: ForwardedBytes {
                tcp: 9_000_000_000,
                udp: 1_000_000_000,
                ..ForwardedBytes::default()
            },
            received_bytes: ForwardedBytes { tcp: 400_000_000, udp: 90_000_000, ..ForwardedBytes::default() },
        }),
    }
}

fn terrestrial(sent_bps: f64, received_bps: f64) -> LegReport {
    LegReport {
        name: "terrestrial".into(),
        congestion: Some("cubic".into()),
        flows: 148,
        active: 29,
        sent_bps,
        received_bps,
        sent_bytes: 9_467_440_737,
        received_bytes: 184_467_440_737,
        retransmissions: 12,
        loss: Some(0.0),
        srtt_s: Some(0.0114),
        min_rtt_s: Some(0.0098),
        ..LegReport::default()
    }
}

/// The flow with this number: the higher, the slower and the older.
pub(crate) fn flow(number: usize) -> FlowReport {
    let down_bps = 2e6 / (1.0 + number as f64 / 3.0);
    FlowReport {
        id: number as u64,
        client: format!("10.20.{}.{}:{}", number / 250, number % 250 + 1, 40_000 + number),
        server: if number.is_multiple_of(7) {
            "[2001:db8:85a3::8a2e:370:7334]:443".into()
        } else {
            format!("198.51.100.{}:443", number % 200)
        },
        weight: 1,
        phase: if number % 40 == 39 { FlowPhase::Connecting } else { FlowPhase::Relaying },
        age_s: 3.0 + number as f64 * 2.7,
        idle_s: 0.0,
        up_bytes: 120_000,
        down_bytes: 40_000_000,
        up_bps: down_bps / 40.0,
        down_bps,
        buffered_bytes: 1_400_000 / (number as u64 + 1),
        client_end: end("geo", 0.6 + (number % 17) as f64 / 100.0, number),
        server_end: end("terrestrial", 0.012, 1),
    }
}

fn end(leg: &str, srtt_s: f64, number: usize) -> EndReport {
    EndReport {
        leg: leg.into(),
        srtt_s,
        min_rtt_s: srtt_s * 0.98,
        rto_s: srtt_s + 0.2,
        backoff: u32::from(number % 11 == 10) * 2,
        cwnd: 10 + (number * 37 % 600) as u32,
        ssthresh: None,
        mss: 1448,
        unacked: 4,
        unsent_bytes: 0,
        retransmissions: (number * 13 % 97) as u32,
        segments: 4000,
        timeouts: 0,
        pacing_bps: None,
        delivery_bps: 1_000_000,
    }
}

/// A quarter of an hour, or more, with outages in it; the last one ended a minute ago.
pub(crate) fn past(seconds: u64) -> History {
    let now = unix_s();
    let mut history = History::default();
    for at in now - seconds..now {
        let ago = now - at;
        let wave = 1.0 + 0.18 * (at as f64 / 37.0).sin() + 0.1 * (at as f64 / 5.3).sin();
        let gone = [(98, 60), (410, 398), (722, 620), (9_000, 7_700)]
            .into_iter()
            .find(|(from, to)| (*to..*from).contains(&ago));
        let mut legs =
            [satellite(6.7e6 * wave, 0.4e6 * wave * wave), terrestrial(0.4e6 * wave * wave, 6.7e6 * wave)];
        if let Some((from, _)) = gone {
            legs[0] = LegReport { outage_s: Some((from - ago) as f64 + 1.0), ..satellite(0.0, 0.0) };
            legs[1] = terrestrial(0.0, 0.0);
        }
        let gain = Gain { ratio: Some(12.0), ..Gain::default() };
        history.record(at, &Observation { legs: &legs, gain: &gain, flows: 100 });
    }
    history
}
