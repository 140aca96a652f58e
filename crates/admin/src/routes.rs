//! The requests: looking by either way, orders by the Unix socket.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::order::{Answer, Order, Orders};
use crate::reply::Failure;
use crate::view::{Identity, View};
use crate::{Status, metrics, view};

/// Flows in the status where the caller does not say how many.
const FLOWS: usize = 100;
/// A look takes less than a second; others may wait for theirs before it.
const PATIENCE_FOR_A_LOOK: Duration = Duration::from_secs(10);
/// An order is carried out within this time.
const PATIENCE_FOR_AN_ORDER: Duration = Duration::from_secs(30);
/// Orders that are waited for at a time.
const MOST_ORDERS: usize = 4;
/// An order's body, bytes; and how long it may take to come.
const MOST_BODY: usize = 4096;
const PATIENCE_FOR_A_BODY: Duration = Duration::from_secs(5);
/// The longest deadline, s: thirty years.
const LONGEST_DEADLINE_S: f64 = 1e9;

/// What the requests work with.
pub(crate) struct Desk {
    view: Arc<dyn View>,
    identity: Identity,
    orders: Orders,
    /// One look at a time: however many ask, the workers answer one after the other.
    looking: Mutex<()>,
    ordering: Semaphore,
}

/// Who sent a request over the Unix socket.
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
struct DrainBody {
    deadline_s: Option<f64>,
}

impl Desk {
    pub(crate) fn new(view: Arc<dyn View>, identity: Identity, orders: Orders) -> Self {
        let (looking, ordering) = (Mutex::new(()), Semaphore::new(MOST_ORDERS));
        Self { view, identity, orders, looking, ordering }
    }

    /// Looks at the daemon and makes something of it, on a thread that may block.
    async fn look<T: Send + 'static>(
        &self,
        most: usize,
        make: impl FnOnce(Status) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let look = async {
            let _turn = self.looking.lock().await;
            let (view, identity) = (Arc::clone(&self.view), self.identity.clone());
            spawn_blocking(move || make(view::status(&*view, &identity, most))).await
        };
        match timeout(PATIENCE_FOR_A_LOOK, look).await {
            Ok(Ok(made)) => Ok(made),
            Ok(Err(error)) => {
                tracing::error!("cannot look at the daemon: {error}");
                Err(Failure::new(
                    StatusCode::INTERNAL_SERVER_ERROR,
                    "the look at the daemon failed; its log says more",
                ))
            }
            Err(_) => {
                Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, "too many look at once; ask again later"))
            }
        }
    }

    /// Passes an order on to the daemon's main thread and waits for what becomes of it.
    async fn order(
        &self,
        peer: Peer,
        what: &str,
        make: impl FnOnce(Answer) -> Order,
    ) -> Result<Json<Value>, Failure> {
        let Ok(_permit) = self.ordering.try_acquire() else {
            return Err(Failure::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "other orders are being carried out; try again later",
            ));
        };
        let pid = peer.pid.map(|pid| format!(", process {pid}")).unwrap_or_default();
        tracing::info!("{what}: ordered by user {}{pid}", peer.uid);
        let (answer, outcome): (SyncSender<Result<(), String>>, _) = mpsc::sync_channel(1);
        let ending = || {
            Failure::new(StatusCode::SERVICE_UNAVAILABLE, "the daemon is ending and takes no orders any more")
        };
        self.orders.send(make(answer)).map_err(|_| ending())?;
        let outcome = spawn_blocking(move || outcome.recv_timeout(PATIENCE_FOR_AN_ORDER)).await;
        match outcome {
            Ok(Ok(Ok(()))) => Ok(Json(json!({ "done": what }))),
            Ok(Ok(Err(reason))) => Err(Failure::new(StatusCode::CONFLICT, reason)),
            Ok(Err(RecvTimeoutError::Timeout)) => Err(Failure::new(
                StatusCode::GATEWAY_TIMEOUT,
                "the daemon has not answered in 30 s; the order stands, its log says what becomes of it",
            )),
            Ok(Err(RecvTimeoutError::Disconnected)) | Err(_) => Err(ending()),
        }
    }
}

/// What anybody may do who gets here: look.
pub(crate) fn looking(desk: Arc<Desk>) -> Router {
    Router::new()
        .route("/status", get(status))
        .route("/metrics", get(show_metrics))
        .route("/health/live", get(|| async { "live\n" }))
        .route("/health/ready", get(ready))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .with_state(desk)
}

/// What those may do whom the Unix socket lets in.
pub(crate) fn ordering(desk: Arc<Desk>) -> Router {
    Router::new()
        .route("/reload", post(reload))
        .route("/drain", post(drain).delete(stop_draining))
        .method_not_allowed_fallback(wrong_method)
        .with_state(desk)
}

async fn status(
    State(desk): State<Arc<Desk>>,
    query: Result<Query<StatusQuery>, QueryRejection>,
) -> Result<Response, Failure> {
    let unfit = || Failure::new(StatusCode::BAD_REQUEST, "the only parameter is flows=N or flows=all");
    let Query(query) = query.map_err(|_| unfit())?;
    let most = match query.flows.as_deref() {
        None => FLOWS,
        Some("all") => usize::MAX,
        Some(number) => number.parse().map_err(|_| unfit())?,
    };
    // Thousands of flows take a while to be written, in which others are answered.
    desk.look(most, |status| Json(status).into_response()).await
}

async fn show_metrics(State(desk): State<Arc<Desk>>) -> Result<impl IntoResponse, Failure> {
    let text = desk.look(0, |status| metrics::text(&status, &metrics::Process::now())).await?;
    Ok(([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text))
}

async fn ready(State(desk): State<Arc<Desk>>) -> (StatusCode, String) {
    match view::readiness(&*desk.view) {
        Ok(()) => (StatusCode::OK, "ready\n".to_owned()),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

async fn reload(
    State(desk): State<Arc<Desk>>,
    Extension(peer): Extension<Peer>,
    body: Body,
) -> Result<Json<Value>, Failure> {
    if !read(body).await?.is_empty() {
        return Err(Failure::new(
            StatusCode::BAD_REQUEST,
            "reload takes no body: the daemon reads its own configuration",
        ));
    }
    desk.order(peer, "reload", Order::Reload).await
}

async fn drain(
    State(desk): State<Arc<Desk>>,
    Extension(peer): Extension<Peer>,
    body: Body,
) -> Result<Json<Value>, Failure> {
    let bytes = read(body).await?;
    let unfit = |why: String| {
        Failure::new(
            StatusCode::BAD_REQUEST,
            format!("{why}; the body is {{\"deadline_s\": SECONDS}}, or null for no deadline"),
        )
    };
    let document: DrainBody = serde_json::from_slice(&bytes).map_err(|error| unfit(error.to_string()))?;
    let deadline = match document.deadline_s {
        None => None,
        Some(seconds) if (0.0..=LONGEST_DEADLINE_S).contains(&seconds) => {
            Some(Duration::from_secs_f64(seconds))
        }
        Some(seconds) => return Err(unfit(format!("{seconds} s is no deadline"))),
    };
    desk.order(peer, "drain", |answer| Order::Drain(deadline, answer)).await
}

async fn stop_draining(
    State(desk): State<Arc<Desk>>,
    Extension(peer): Extension<Peer>,
) -> Result<Json<Value>, Failure> {
    desk.order(peer, "stop draining", Order::StopDraining).await
}

async fn unknown() -> Failure {
    Failure::new(StatusCode::NOT_FOUND, "there is nothing here")
}

async fn wrong_method() -> Failure {
    Failure::new(StatusCode::METHOD_NOT_ALLOWED, "not by this method; the header Allow says by which")
}

/// A body that is neither long nor slow.
async fn read(body: Body) -> Result<Bytes, Failure> {
    match timeout(PATIENCE_FOR_A_BODY, axum::body::to_bytes(body, MOST_BODY)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(_)) => Err(Failure::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the body is broken, or longer than {MOST_BODY} bytes"),
        )),
        Err(_) => Err(Failure::new(StatusCode::REQUEST_TIMEOUT, "the body did not come within 5 s")),
    }
}
