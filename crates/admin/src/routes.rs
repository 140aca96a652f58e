//! The requests: status over both sockets, commands over the Unix socket.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bentpipe_proxy::ReloadReport;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::bundle_node::BundleNode;
use crate::command::{Answer, Command, Commands, DrainTimes};
use crate::names::Names;
use crate::view::{Identity, View};
use crate::{Status, metrics, view};
use bentpipe_http::Failure;

/// The default number of flows in the status.
const FLOWS: usize = 100;
/// Timeout of a status: it takes less than a second, but others may be queued before it.
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);
/// The most concurrent commands.
const MAX_COMMANDS: usize = 4;
/// The most bytes of a command's body, and the timeout for receiving it.
const MAX_BODY: usize = 4096;
const BODY_TIMEOUT: Duration = Duration::from_secs(5);
/// The most addresses in a question for names.
const MAX_NAMES: usize = 100;
/// What a question for names must carry: no page of another origin can send it unasked, and so let this host
/// look up what it likes.
const WANTS_NAMES: &str = "bentpipe-names";
/// The longest deadline, s: thirty years.
const MAX_DEADLINE_S: f64 = 1e9;

/// The state that the handlers share.
pub(crate) struct AppState {
    view: Arc<dyn View>,
    identity: Identity,
    commands: Commands,
    /// One status at a time: the workers answer one request after the other.
    observing: Mutex<()>,
    commanding: Semaphore,
    names: Names,
    bundle_node: BundleNode,
}

/// The sender of a request over the Unix socket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer {
    pub(crate) uid: u32,
    pub(crate) pid: Option<i32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StatusQuery {
    flows: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NamesQuery {
    addresses: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DrainBody {
    deadline_s: Option<f64>,
    #[serde(default)]
    stay_s: f64,
}

/// The reply to a reload: that of every command, and the report.
#[derive(Debug, Serialize)]
struct ReloadReply {
    #[serde(skip_serializing_if = "Option::is_none")]
    done: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(flatten)]
    report: ReloadReport,
}

impl AppState {
    pub(crate) fn new(
        view: Arc<dyn View>,
        identity: Identity,
        commands: Commands,
        bundle_node: BundleNode,
    ) -> Self {
        let (observing, commanding) = (Mutex::new(()), Semaphore::new(MAX_COMMANDS));
        Self { view, identity, commands, observing, commanding, names: Names::default(), bundle_node }
    }

    /// Makes a reply from the daemon's status, on a thread that may block.
    async fn look<T: Send + 'static>(
        &self,
        most: usize,
        make: impl FnOnce(Status) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let look = async {
            let _guard = self.observing.lock().await;
            let (view, identity) = (Arc::clone(&self.view), self.identity.clone());
            spawn_blocking(move || make(view::status(&*view, &identity, most))).await
        };
        match timeout(STATUS_TIMEOUT, look).await {
            Ok(Ok(made)) => Ok(made),
            Ok(Err(error)) => {
                tracing::error!("cannot get the status: {error}");
                Err(Failure::new(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "cannot get the status; see the daemon's log",
                ))
            }
            Err(_) => Err(Failure::unavailable("too many status requests; try again later")),
        }
    }

    /// Passes a command to the daemon's main thread and waits for the outcome.
    async fn command(
        &self,
        peer: Peer,
        what: &str,
        make: impl FnOnce(Answer) -> Command,
    ) -> Result<Json<Value>, Failure> {
        match self.order(peer, what, make).await? {
            Ok(()) => Ok(Json(json!({ "done": what }))),
            Err(reason) => Err(Failure::new(StatusCode::CONFLICT, reason)),
        }
    }

    /// Passes a command to the daemon's main thread and waits for its answer.
    async fn order<T: Send + 'static>(
        &self,
        peer: Peer,
        what: &str,
        make: impl FnOnce(SyncSender<T>) -> Command,
    ) -> Result<T, Failure> {
        let Ok(_permit) = self.commanding.try_acquire() else {
            return Err(Failure::unavailable("other commands are running; try again later"));
        };
        let pid = peer.pid.map(|pid| format!(", process {pid}")).unwrap_or_default();
        tracing::info!("{what}: requested by user {}{pid}", peer.uid);
        let (answer, outcome) = mpsc::sync_channel(1);
        let ending = || Failure::unavailable("the daemon is ending and accepts no commands");
        self.commands.send(make(answer)).map_err(|_| ending())?;
        let outcome = spawn_blocking(move || outcome.recv_timeout(COMMAND_TIMEOUT)).await;
        match outcome {
            Ok(Ok(outcome)) => Ok(outcome),
            Ok(Err(RecvTimeoutError::Timeout)) => Err(Failure::new(
                StatusCode::GATEWAY_TIMEOUT,
                "no answer from the daemon within 30 s; the command stays queued, see the daemon's log for \
                 its outcome",
            )),
            Ok(Err(RecvTimeoutError::Disconnected)) | Err(_) => Err(ending()),
        }
    }
}

pub(crate) fn read_routes(state: Arc<AppState>) -> Router {
    Router::new()
        .route("/status", get(status))
        .route("/metrics", get(show_metrics))
        .route("/names", get(names))
        .route("/health/live", get(|| async { "live\n" }))
        .route("/health/ready", get(ready))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .with_state(state)
}

/// The routes of commands, for the Unix socket only.
pub(crate) fn command_routes(state: Arc<AppState>) -> Router {
    Router::new()
        .route("/reload", post(reload))
        .route("/drain", post(drain).delete(stop_draining))
        .route("/bypass", post(start_bypass).delete(stop_bypass))
        .method_not_allowed_fallback(wrong_method)
        .with_state(state)
}

async fn status(
    State(state): State<Arc<AppState>>,
    query: Result<Query<StatusQuery>, QueryRejection>,
) -> Result<Response, Failure> {
    let invalid = || Failure::bad_request("the only parameter is flows=N or flows=all");
    let Query(query) = query.map_err(|_| invalid())?;
    let most = match query.flows.as_deref() {
        None => FLOWS,
        Some("all") => usize::MAX,
        Some(number) => number.parse().map_err(|_| invalid())?,
    };
    // Serialising thousands of flows takes a while, so it happens off the server's thread.
    let bundle_node = state.bundle_node.report().await;
    state.look(most, |status| Json(Status { bundle_node, ..status }).into_response()).await
}

async fn show_metrics(State(state): State<Arc<AppState>>) -> Result<impl IntoResponse, Failure> {
    let text = state.look(0, |status| metrics::text(&status, &metrics::Process::now())).await?;
    Ok(([(header::CONTENT_TYPE, bentpipe_metrics::CONTENT_TYPE)], text))
}

/// The names of some hosts, for a person who asks for them.
async fn names(
    State(state): State<Arc<AppState>>,
    headers: HeaderMap,
    query: Result<Query<NamesQuery>, QueryRejection>,
) -> Result<Json<Value>, Failure> {
    if !headers.contains_key(WANTS_NAMES) {
        return Err(Failure::bad_request("a question for names carries the header Bentpipe-Names: 1"));
    }
    let invalid = || {
        Failure::bad_request(format!("write addresses=A,B,C with 1 to {MAX_NAMES} addresses, without ports"))
    };
    let Query(NamesQuery { addresses }) = query.map_err(|_| invalid())?;
    let addresses: Vec<IpAddr> =
        addresses.split(',').map(str::parse).collect::<Result<_, _>>().map_err(|_| invalid())?;
    if addresses.len() > MAX_NAMES {
        return Err(invalid());
    }
    // An address without a name has an empty one; what is not known yet is left out.
    let found = state.names.of(&addresses).await.into_iter();
    let known =
        found.filter_map(|(address, name)| Some((address.to_string(), json!(name?.unwrap_or_default()))));
    Ok(Json(Value::Object(known.collect())))
}

async fn ready(State(state): State<Arc<AppState>>) -> (StatusCode, String) {
    match view::readiness(&*state.view) {
        Ok(()) => (StatusCode::OK, "ready\n".to_owned()),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

async fn reload(
    State(state): State<Arc<AppState>>,
    Extension(peer): Extension<Peer>,
    body: Body,
) -> Result<Response, Failure> {
    if !read(body).await?.is_empty() {
        return Err(Failure::bad_request("reload takes no body: the daemon reads its own configuration"));
    }
    let report = state.order(peer, "reload", Command::Reload).await?;
    Ok(match report.refused() {
        None => Json(ReloadReply { done: Some("reload"), error: None, report }).into_response(),
        error => (StatusCode::CONFLICT, Json(ReloadReply { done: None, error, report })).into_response(),
    })
}

async fn drain(
    State(state): State<Arc<AppState>>,
    Extension(peer): Extension<Peer>,
    body: Body,
) -> Result<Json<Value>, Failure> {
    let bytes = read(body).await?;
    let invalid = |why: String| {
        Failure::bad_request(format!(
            "{why}; the body is {{\"deadline_s\": SECONDS, \"stay_s\": SECONDS}}, or null for no deadline"
        ))
    };
    let document: DrainBody = serde_json::from_slice(&bytes).map_err(|error| invalid(error.to_string()))?;
    let time = |seconds: f64| match (0.0..=MAX_DEADLINE_S).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(invalid(format!("{seconds} s is no time"))),
    };
    let times =
        DrainTimes { deadline: document.deadline_s.map(time).transpose()?, stay: time(document.stay_s)? };
    state.command(peer, "drain", |answer| Command::Drain(times, answer)).await
}

async fn stop_draining(
    State(state): State<Arc<AppState>>,
    Extension(peer): Extension<Peer>,
) -> Result<Json<Value>, Failure> {
    state.command(peer, "stop draining", Command::StopDraining).await
}

async fn start_bypass(
    State(state): State<Arc<AppState>>,
    Extension(peer): Extension<Peer>,
    body: Body,
) -> Result<Json<Value>, Failure> {
    if !read(body).await?.is_empty() {
        return Err(Failure::bad_request("bypass takes no body: POST switches it on, DELETE off"));
    }
    state.command(peer, "bypass on", |answer| Command::SetBypass(true, answer)).await
}

async fn stop_bypass(
    State(state): State<Arc<AppState>>,
    Extension(peer): Extension<Peer>,
) -> Result<Json<Value>, Failure> {
    state.command(peer, "bypass off", |answer| Command::SetBypass(false, answer)).await
}

async fn unknown() -> Failure {
    Failure::new(StatusCode::NOT_FOUND, "there is nothing here")
}

async fn wrong_method() -> Failure {
    Failure::new(StatusCode::METHOD_NOT_ALLOWED, "not by this method; the header Allow says by which")
}

/// A body that is neither long nor slow.
async fn read(body: Body) -> Result<Bytes, Failure> {
    match timeout(BODY_TIMEOUT, axum::body::to_bytes(body, MAX_BODY)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(_)) => Err(Failure::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body is broken, or longer than {MAX_BODY} bytes"),
        )),
        Err(_) => Err(Failure::new(StatusCode::REQUEST_TIMEOUT, "the body did not come within 5 s")),
    }
}
