//! HTTP PUTs become bundles.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinSet, block_in_place};

use crate::node::{Node, Refused, SendOptions};

use super::envelope::{Envelope, LONGEST_HEAD};

/// Connections at a time; beyond them new ones wait.
const MOST_CONNECTIONS: usize = 1024;
/// How long a client may take for a request's head.
const HEAD_WITHIN: Duration = Duration::from_secs(30);
/// How long the listener waits when the process has no descriptor left.
const OUT_OF_DESCRIPTORS: Duration = Duration::from_millis(100);

/// Takes PUTs for ever.
pub(super) async fn listen(node: Node, listener: TcpListener, options: SendOptions) {
    let mut connections = JoinSet::new();
    loop {
        let has_room = connections.len() < MOST_CONNECTIONS;
        tokio::select! {
            accepted = listener.accept(), if has_room => match accepted {
                Ok((stream, client)) => {
                    connections.spawn(serve(node.clone(), stream, client, options.clone()));
                }
                Err(error) => {
                    tracing::warn!("cannot accept an HTTP connection: {error}");
                    tokio::time::sleep(OUT_OF_DESCRIPTORS).await;
                }
            },
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
        }
    }
}

async fn serve(node: Node, stream: TcpStream, client: SocketAddr, options: SendOptions) {
    // Of an intercepted connection it is the server that the client meant.
    let Ok(server) = stream.local_addr() else { return };
    let answer = |request| answer(node.clone(), options.clone(), server, request);
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_buf_size(LONGEST_HEAD * 4)
        .serve_connection(TokioIo::new(stream), service_fn(answer))
        .await;
    if let Err(error) = served {
        tracing::debug!("the HTTP connection of {client} broke off: {error}");
    }
}

async fn answer(
    node: Node,
    options: SendOptions,
    server: SocketAddr,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(match put(&node, &options, server, request).await {
        Ok(id) => {
            let text = format!("{id} is on its way to {}\n", options.destination);
            let mut response = respond(StatusCode::ACCEPTED, text);
            if let Ok(value) = id.parse() {
                response.headers_mut().insert("bundle-id", value);
            }
            response
        }
        Err((status, text)) => respond(status, format!("{text}\n")),
    })
}

/// Makes a bundle of a request; its name.
async fn put(
    node: &Node,
    options: &SendOptions,
    server: SocketAddr,
    request: Request<Incoming>,
) -> Result<String, (StatusCode, String)> {
    if request.method() != Method::PUT {
        let text = format!(
            "{} cannot travel as a bundle: the way to this server is store and forward, and only PUT can be answered \
             before the server has",
            request.method()
        );
        return Err((StatusCode::METHOD_NOT_ALLOWED, text));
    }
    let (parts, mut body) = request.into_parts();
    let field = |(name, value): (&hyper::header::HeaderName, &hyper::header::HeaderValue)| {
        (name.as_str().to_owned(), value.as_bytes().to_vec())
    };
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
    let head =
        Envelope { target, server: Some(server), fields: parts.headers.iter().map(field).collect() }.encode();
    if head.len() > LONGEST_HEAD {
        return Err((StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "the request's head is too long".into()));
    }
    let bundle = node.bundle(options).map_err(refused)?;
    let id = bundle.id.to_string();
    let announced = body.size_hint().exact().map(|len| len + head.len() as u64);
    let mut reception = block_in_place(|| node.begin(bundle, announced)).map_err(refused)?;
    block_in_place(|| reception.write(&head)).map_err(refused)?;
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| (StatusCode::BAD_REQUEST, format!("the body broke off: {error}")))?;
        if let Some(part) = frame.data_ref() {
            block_in_place(|| reception.write(part)).map_err(refused)?;
        }
    }
    block_in_place(|| reception.finish()).map_err(refused)?;
    Ok(id)
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
        response.headers_mut().insert("allow", hyper::header::HeaderValue::from_static("PUT"));
    }
    response
}
