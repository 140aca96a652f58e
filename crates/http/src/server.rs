//! A server with a bound for every resource that clients can use.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::write_timeout::WriteTimeout;

/// The most connections of each listener; more wait in its backlog.
const MAX_CONNECTIONS: usize = 64;
/// Timeout of a request's head, and of an idle connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes of a request's head; hyper needs 8 KiB or more.
const MAX_HEAD: usize = 16 * 1024;
/// The most fields of a request's head.
const MAX_FIELDS: usize = 64;
/// How long a stopping server waits for replies that it is writing.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause after accept(2) fails, for instance because descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections until it is stopped, then waits briefly for replies in progress.
///
/// `next` accepts a connection, and `prepare` makes of it a stream and what answers its requests.
pub async fn accept<A, F, S>(
    mut stopped: watch::Receiver<bool>,
    next: impl Fn() -> F,
    prepare: impl Fn(A) -> (S, Router),
) where
    F: Future<Output = io::Result<A>>,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let accepted = async {
            let permit = Arc::clone(&room).acquire_owned().await;
            (permit, next().await)
        };
        tokio::select! {
            // Reaps finished connections.
            Some(_) = connections.join_next() => {}
            () = stop_requested(&mut stopped) => break,
            (permit, outcome) = accepted => match outcome {
                Ok(accepted) => {
                    let (stream, router) = prepare(accepted);
                    let stopped = stopped.clone();
                    connections.spawn(async move {
                        serve_connection(stream, router, stopped).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    tracing::debug!("cannot accept a connection: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
    let _ =
        tokio::time::timeout(STOP_TIMEOUT, async { while connections.join_next().await.is_some() {} }).await;
}

async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    router: Router,
    mut stopped: watch::Receiver<bool>,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_FIELDS);
    let connection =
        http.serve_connection(TokioIo::new(WriteTimeout::new(stream)), TowerToHyperService::new(router));
    tokio::pin!(connection);
    let outcome = tokio::select! {
        outcome = connection.as_mut() => outcome,
        () = stop_requested(&mut stopped) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = outcome {
        tracing::debug!("a connection failed: {error}");
    }
}

/// Completes on a stop, or when the sender is gone.
async fn stop_requested(stopped: &mut watch::Receiver<bool>) {
    let _ = stopped.wait_for(|&stop| stop).await;
}
