//! The requests that applications and operators can make.

use std::collections::HashSet;
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::body::Body;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use bentpipe_http::{Failure, encode_path};
use bentpipe_units::Span;
use http_body_util::BodyExt;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::task::block_in_place;

use crate::Eid;
use crate::bundle::{FileName, Priority, ReportRequests};
use crate::node::{Node, Refused, SendOptions};
use crate::store::{Key, MAX_ROW, Record, StoreError};

use super::batch::{self, Accepted, DeliveryBody};
use super::body::{Lease, PayloadBody};
use super::metrics;

/// The longest wait for a bundle.
const MAX_WAIT: Duration = Duration::from_secs(3600);
/// The most bundles in a list.
const MAX_LISTED: usize = 1000;

/// The reply to a sent bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// The bundle's ID.
    pub id: String,
    /// Bytes of payload.
    pub payload_bytes: u64,
}

/// The reply to a list of acknowledgements.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acknowledged {
    /// The bundles that have left the store.
    pub acknowledged: Vec<u64>,
    /// The keys of no bundle for an application.
    pub unknown: Vec<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SendQuery {
    destination: Eid,
    service: Option<String>,
    lifetime: Option<Span>,
    #[serde(default)]
    priority: Priority,
    hop_limit: Option<u8>,
    #[serde(default)]
    whole: bool,
    #[serde(default)]
    report: String,
    name: Option<FileName>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NextQuery {
    service: String,
    wait: Option<Span>,
    max: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReportsQuery {
    id: String,
}

/// All requests.
pub fn router(node: Node) -> Router {
    Router::new()
        .route("/bundles", post(send).get(list))
        .route("/bundles/batch", post(send_batch))
        .route("/bundles/next", get(next))
        .route("/bundles/acknowledge", post(acknowledge_all))
        .route("/bundles/{key}", delete(remove))
        .route("/bundles/{key}/acknowledge", post(acknowledge))
        .route("/bundles/{key}/release", post(release))
        .route("/reports", get(reports))
        .route("/status", get(status))
        .route("/metrics", get(show_metrics))
        .with_state(node)
}

/// What readers on other hosts may ask: the metrics, and nothing else.
pub(crate) fn metrics_router(node: Node) -> Router {
    let unknown = || async { Failure::new(StatusCode::NOT_FOUND, "there is nothing here but /metrics") };
    Router::new().route("/metrics", get(show_metrics)).fallback(unknown).with_state(node)
}

/// Sends the body as a bundle. The reply comes when the bundle is in the store.
async fn send(
    State(node): State<Node>,
    query: Result<Query<SendQuery>, QueryRejection>,
    headers: axum::http::HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<Sent>), Failure> {
    let Query(query) = query?;
    let options = options(query)?;
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let sent = take(&node, &options, length, body).await?;
    Ok((StatusCode::CREATED, Json(sent)))
}

/// Sends each bundle of the body. The reply comes when all are in the store.
async fn send_batch(
    State(node): State<Node>,
    query: Result<Query<SendQuery>, QueryRejection>,
    body: Body,
) -> Result<Json<Vec<Accepted>>, Failure> {
    let Query(query) = query?;
    Ok(Json(batch::send(&node, &options(query)?, body).await?))
}

fn options(query: SendQuery) -> Result<SendOptions, Failure> {
    Ok(SendOptions {
        destination: query.destination,
        service: query.service,
        lifetime: query.lifetime.map(Span::get),
        priority: query.priority,
        hop_limit: query.hop_limit,
        must_not_fragment: query.whole,
        reports: report_requests(&query.report)?,
        file_name: query.name,
    })
}

/// Stores a body as a bundle.
async fn take(
    node: &Node,
    options: &SendOptions,
    length: Option<u64>,
    mut body: Body,
) -> Result<Sent, Failure> {
    let bundle = node.bundle(options)?;
    let id = bundle.id.to_string();
    // A small payload is in memory until it is committed, and nothing waits for a disk.
    let is_small = length.is_some_and(|len| len <= MAX_ROW as u64);
    let mut receiver = in_place(is_small, || node.begin(bundle, length))?;
    let mut payload_bytes = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            Failure::bad_request(format!("the payload ended before it was complete: {error}"))
        })?;
        if let Some(part) = frame.data_ref() {
            payload_bytes += part.len() as u64;
            in_place(is_small, || receiver.write(part))?;
        }
    }
    let (done, outcome) = oneshot::channel();
    in_place(is_small, || receiver.submit(|result| drop(done.send(result))));
    outcome.await.map_err(|_| Failure::unavailable("the node is stopping; send it again when it runs"))??;
    Ok(Sent { id, payload_bytes })
}

/// Runs what may wait for a disk where other tasks do not wait for it. To make room for them takes longer
/// than `is_small` work itself.
fn in_place<T>(is_small: bool, work: impl FnOnce() -> T) -> T {
    if is_small { work() } else { block_in_place(work) }
}

fn report_requests(list: &str) -> Result<ReportRequests, Failure> {
    let mut requests = ReportRequests::default();
    for word in list.split(',').filter(|word| !word.is_empty()) {
        match word {
            "reception" => requests.reception = true,
            "forwarding" => requests.forwarding = true,
            "delivery" => requests.delivery = true,
            "deletion" => requests.deletion = true,
            _ => {
                let text = format!(
                    "report={word}: unknown event; give reception, forwarding, delivery or deletion, \
                     separated by commas"
                );
                return Err(Failure::bad_request(text));
            }
        }
    }
    Ok(requests)
}

/// The most urgent bundle for a service; waits for one if requested.
async fn next(
    State(node): State<Node>,
    query: Result<Query<NextQuery>, QueryRejection>,
) -> Result<Response, Failure> {
    let Query(query) = query?;
    let endpoint =
        node.id().with_service(&query.service).map_err(|error| Failure::bad_request(error.to_string()))?;
    let wait = query.wait.map_or(Duration::ZERO, Span::get).min(MAX_WAIT);
    let until = tokio::time::Instant::now() + wait;
    if query.max == Some(0) {
        return Err(Failure::bad_request("max=0: there is nothing to wait for; give 1 or more"));
    }
    loop {
        let arrival = node.arrival();
        if let Some(record) = node.next_delivery(&endpoint) {
            return Ok(match query.max {
                None => delivery(&node, &record),
                Some(most) => {
                    several(block_in_place(|| DeliveryBody::collect(&node, &endpoint, record, most)))
                }
            });
        }
        if tokio::time::timeout_at(until, arrival).await.is_err() {
            return Ok(StatusCode::NO_CONTENT.into_response());
        }
    }
}

fn several(body: DeliveryBody) -> Response {
    ([(header::CONTENT_TYPE, batch::MEDIA_TYPE)], Body::new(body)).into_response()
}

fn delivery(node: &Node, record: &Record) -> Response {
    let bundle = &record.bundle;
    let payload = node.store().read(&record.payload);
    let lease = Lease::new(node.clone(), record.key);
    let body = PayloadBody::new(lease, payload, bundle.payload_len);
    let mut response = Response::new(Body::new(body));
    let mut header = |name: &'static str, value: String| {
        // Endpoints and numbers are visible ASCII.
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(name, value);
        }
    };
    header("content-type", "application/octet-stream".into());
    header("content-length", bundle.payload_len.to_string());
    header("bundle-key", record.key.0.to_string());
    header("bundle-id", bundle.id.to_string());
    header("bundle-source", bundle.id.source.to_string());
    header("bundle-destination", bundle.destination.to_string());
    header("bundle-created", bundle.id.created.millis().to_string());
    if let Some(name) = &bundle.file_name {
        header("bundle-name", encode_path(name.as_str().as_bytes()));
    }
    response
}

async fn acknowledge(State(node): State<Node>, Path(key): Path<u64>) -> Result<StatusCode, Failure> {
    match acknowledge_keys(node, vec![Key(key)]).await?.is_empty() {
        false => Ok(StatusCode::NO_CONTENT),
        true => Err(no_bundle(key)),
    }
}

/// Acknowledges bundles, and returns those that there were. No thread waits for the disk meanwhile.
async fn acknowledge_keys(node: Node, keys: Vec<Key>) -> Result<Vec<Key>, Failure> {
    let (done, outcome) = oneshot::channel();
    node.submit_acknowledgements(&keys, |result| drop(done.send(result)));
    // A task of its own: what has left the store must leave the queue, even if the application has gone.
    let acknowledged = tokio::spawn(async move {
        let there = outcome.await.map_err(|_| stopping())??;
        Ok(in_place(!node.reports_delivery(&there), || node.delivered(&there)))
    });
    acknowledged.await.map_err(|_| stopping())?
}

fn stopping() -> Failure {
    Failure::unavailable("the node is stopping; acknowledge the bundle when it runs, if it comes again")
}

/// Acknowledges a list of bundles in one transaction.
async fn acknowledge_all(
    State(node): State<Node>,
    keys: Result<Json<Vec<u64>>, JsonRejection>,
) -> Result<Json<Acknowledged>, Failure> {
    let Json(keys) = keys.map_err(|error| {
        Failure::bad_request(format!("the body is a list of keys, as [7,8,9]: {}", error.body_text()))
    })?;
    let keys: Vec<Key> = keys.into_iter().map(Key).collect();
    let gone: HashSet<Key> = acknowledge_keys(node, keys.clone()).await?.into_iter().collect();
    let (acknowledged, unknown): (Vec<Key>, Vec<Key>) = keys.into_iter().partition(|key| gone.contains(key));
    let numbers = |keys: Vec<Key>| keys.into_iter().map(|key| key.0).collect();
    Ok(Json(Acknowledged { acknowledged: numbers(acknowledged), unknown: numbers(unknown) }))
}

async fn release(State(node): State<Node>, Path(key): Path<u64>) -> StatusCode {
    node.release(Key(key));
    StatusCode::NO_CONTENT
}

async fn remove(State(node): State<Node>, Path(key): Path<u64>) -> Result<StatusCode, Failure> {
    match block_in_place(|| node.delete(Key(key)))? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(no_bundle(key)),
    }
}

fn no_bundle(key: u64) -> Failure {
    let text =
        format!("there is no bundle {key}, or a session or application holds it; GET /bundles lists them");
    Failure::new(StatusCode::NOT_FOUND, text)
}

async fn list(State(node): State<Node>) -> Response {
    Json(node.bundles(MAX_LISTED)).into_response()
}

async fn reports(
    State(node): State<Node>,
    query: Result<Query<ReportsQuery>, QueryRejection>,
) -> Result<Response, Failure> {
    let Query(query) = query?;
    let id = query.id.parse().map_err(|error| Failure::bad_request(format!("{error}")))?;
    Ok(Json(node.reports_of(&id)).into_response())
}

async fn status(State(node): State<Node>) -> Response {
    Json(node.status()).into_response()
}

async fn show_metrics(State(node): State<Node>) -> Response {
    ([(header::CONTENT_TYPE, bentpipe_metrics::CONTENT_TYPE)], metrics::text(&node.status())).into_response()
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Store(error) => error.into(),
            other => Self::bad_request(other.to_string()),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let code = if error.is_full() {
            StatusCode::INSUFFICIENT_STORAGE
        } else {
            StatusCode::INTERNAL_SERVER_ERROR
        };
        Self::new(code, error.to_string())
    }
}
