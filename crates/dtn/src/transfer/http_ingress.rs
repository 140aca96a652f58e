//! HTTP PUTs become bundles.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_RANGE, CONTENT_TYPE, EXPECT, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::task::{JoinSet, block_in_place};

use crate::bundle::BundleId;
use crate::node::{Node, Refused, SendOptions};

use super::envelope::{Envelope, MAX_HEAD};
use super::pausable_listener::PausableListener;

/// Where the status of a transfer is; its ID follows (RFC 8615).
const STATUS_PATH: &str = "/.well-known/bentpipe/transfers/";
/// The most connections of one address. At this number the listener closes, so that diverted connections pass
/// unsplit.
const MAX_CONNECTIONS: usize = 1024;
/// At this number it opens again.
const REOPEN_AT: usize = MAX_CONNECTIONS / 4 * 3;
/// Timeout of a request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout without progress of a body.
const STALL_TIMEOUT: Duration = Duration::from_secs(120);
/// How long the listener waits when the process has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Bytes of a refused request's body that are read: otherwise the client would get a reset instead of the
/// reply.
const MAX_DISCARDED: usize = 1024 * 1024;
/// How long they are read.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(2);

/// An address where PUTs are taken.
#[derive(Debug)]
pub(super) struct Ingress {
    listener: PausableListener,
    context: ConnectionContext,
}

/// What each connection needs.
#[derive(Debug, Clone)]
struct ConnectionContext {
    node: Node,
    options: SendOptions,
    /// The listener's address.
    address: SocketAddr,
}

impl Ingress {
    pub(super) fn new(node: Node, listener: StdListener, options: SendOptions) -> io::Result<Self> {
        let address = listener.local_addr()?;
        Ok(Self {
            listener: PausableListener::new(listener)?,
            context: ConnectionContext { node, options, address },
        })
    }

    /// Accepts PUTs until it is cancelled.
    pub(super) async fn listen(self) {
        let Self { mut listener, context } = self;
        let mut connections = JoinSet::new();
        loop {
            let count = connections.len();
            let turned = match listener.is_open() {
                true if count >= MAX_CONNECTIONS => {
                    tracing::warn!("{count} HTTP connections at {}: accepting no more", context.address);
                    listener.close().map(|(closed, last)| {
                        for (stream, client) in last {
                            connections.spawn(context.clone().serve(stream, client));
                        }
                        closed
                    })
                }
                false if count <= REOPEN_AT => {
                    tracing::info!("accepting HTTP connections at {} again", context.address);
                    listener.open()
                }
                _ => Ok(listener),
            };
            listener = match turned {
                Ok(listener) => listener,
                Err(error) => {
                    return tracing::error!(
                        "cannot reopen the HTTP listener at {}: {error}",
                        context.address
                    );
                }
            };
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, client)) => {
                        connections.spawn(context.clone().serve(stream, client));
                    }
                    Err(error) => {
                        tracing::warn!("cannot accept an HTTP connection: {error}");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
            }
        }
    }
}

impl ConnectionContext {
    async fn serve(self, stream: TcpStream, client: SocketAddr) {
        let Ok(local) = stream.local_addr() else { return };
        let server = self.server(local);
        let answer = |request| self.answer(server, request);
        let served = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(MAX_HEAD * 4)
            .serve_connection(TokioIo::new(stream), service_fn(answer))
            .await;
        if let Err(error) = served {
            tracing::debug!("the HTTP connection of {client} failed: {error}");
        }
    }

    /// The original server of a diverted connection: its local address. A connection to this node itself has
    /// none.
    fn server(&self, local: SocketAddr) -> Option<SocketAddr> {
        let is_any = self.address.ip().is_unspecified() && local.port() == self.address.port();
        (local != self.address && !is_any).then_some(local)
    }

    async fn answer(
        &self,
        server: Option<SocketAddr>,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let (parts, mut body) = request.into_parts();
        if let Some(id) = status_asked(&parts) {
            return Ok(self.status(id));
        }
        Ok(match self.put(server, &parts, &mut body).await {
            Ok(id) => self.accepted(&id),
            Err((status, text)) => {
                // A client that waits for 100 Continue must not get it.
                if !parts.headers.contains_key(EXPECT) {
                    discard(&mut body).await;
                }
                respond(status, format!("{text}\n"))
            }
        })
    }

    /// The reply to a PUT that is in the store.
    fn accepted(&self, id: &BundleId) -> Response<Full<Bytes>> {
        let text = format!("{id} has been accepted for {}\n", self.options.destination);
        let mut response = respond(StatusCode::ACCEPTED, text);
        let mut header = |name: &'static str, value: String| {
            if let Ok(value) = value.parse() {
                response.headers_mut().insert(name, value);
            }
        };
        header("bundle-id", id.to_string());
        // A monitor of the request's status (RFC 9110 §15.3.3), on the same server as the client sees it.
        if let Some(id) = self.node.transfer_id(id) {
            header("location", format!("{STATUS_PATH}{id}"));
        }
        response
    }

    /// What is known of a transfer.
    fn status(&self, id: &str) -> Response<Full<Bytes>> {
        let Some(status) = self.node.transfer(id) else {
            return respond(StatusCode::NOT_FOUND, "this node has given out no such status URL\n".into());
        };
        let text = serde_json::to_string(&status).unwrap_or_else(|error| error.to_string());
        let mut response = respond(StatusCode::OK, format!("{text}\n"));
        for (name, value) in [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")] {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }

    /// Sends a request as a bundle; returns the bundle's ID.
    async fn put(
        &self,
        server: Option<SocketAddr>,
        parts: &Parts,
        body: &mut Incoming,
    ) -> Result<BundleId, (StatusCode, String)> {
        if let Some(refusal) = unsupported(parts) {
            return Err(refusal);
        }
        let field = |(name, value): (&HeaderName, &HeaderValue)| {
            (name.as_str().to_owned(), value.as_bytes().to_vec())
        };
        let target = parts.uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
        let head = Envelope { target, server, fields: parts.headers.iter().map(field).collect() }.encode();
        if head.len() > MAX_HEAD {
            let text = format!("the request's head has more than {MAX_HEAD} bytes");
            return Err((StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, text));
        }
        let bundle = self.node.bundle(&self.options).map_err(refused)?;
        let id = bundle.id.clone();
        let announced = body.size_hint().exact().map(|len| len.saturating_add(head.len() as u64));
        let mut receiver = block_in_place(|| self.node.begin(bundle, announced)).map_err(refused)?;
        block_in_place(|| receiver.write(&head)).map_err(refused)?;
        while let Some(part) = part(body).await? {
            block_in_place(|| receiver.write(&part)).map_err(refused)?;
        }
        block_in_place(|| receiver.finish()).map_err(refused)?;
        Ok(id)
    }
}

/// The ID of the transfer whose status a request asks for. A PUT there is a PUT as any other.
fn status_asked(parts: &Parts) -> Option<&str> {
    let is_question = matches!(parts.method, Method::GET | Method::HEAD);
    parts.uri.path().strip_prefix(STATUS_PATH).filter(|_| is_question)
}

/// Why a request cannot be sent as a bundle.
fn unsupported(parts: &Parts) -> Option<(StatusCode, String)> {
    if parts.method != Method::PUT {
        let text = format!(
            "{} cannot be sent as a bundle: this server is reached by store and forward, and only PUT can \
             be answered \
             before the server has",
            parts.method
        );
        return Some((StatusCode::METHOD_NOT_ALLOWED, text));
    }
    // RFC 9110 §14.5. Of several parts only the last would remain.
    let text = "a part of a file (Content-Range) cannot be sent as a bundle; send the whole file";
    parts.headers.contains_key(CONTENT_RANGE).then(|| (StatusCode::BAD_REQUEST, text.to_owned()))
}

/// The next part of a body.
async fn part(body: &mut Incoming) -> Result<Option<Bytes>, (StatusCode, String)> {
    loop {
        let frame = tokio::time::timeout(STALL_TIMEOUT, body.frame()).await.map_err(|_| {
            (StatusCode::REQUEST_TIMEOUT, format!("the body made no progress for {STALL_TIMEOUT:?}"))
        })?;
        match frame {
            None => return Ok(None),
            Some(Err(error)) => {
                return Err((StatusCode::BAD_REQUEST, format!("the body ended early: {error}")));
            }
            Some(Ok(frame)) => {
                // Trailers are dropped.
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

/// Reads and drops the rest of a body, within bounds.
async fn discard(body: &mut Incoming) {
    let mut bytes = 0;
    let read = async {
        while let Ok(Some(part)) = part(body).await {
            bytes += part.len();
            if bytes > MAX_DISCARDED {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(DISCARD_TIMEOUT, read).await;
}

fn refused(error: Refused) -> (StatusCode, String) {
    let status = match &error {
        Refused::Store(error) if error.is_full() => StatusCode::INSUFFICIENT_STORAGE,
        Refused::Store(_) => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::BAD_REQUEST,
    };
    (status, error.to_string())
}

fn respond(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("PUT"));
    }
    response
}
