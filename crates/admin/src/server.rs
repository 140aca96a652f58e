//! The server: one thread, two listeners, and a bound for every resource that clients can use.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use axum::Router;
use axum::extract::Extension;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::auth::{self, Auth};
use crate::command::Commands;
use crate::history::{self, Recorder};
use crate::names::MOST_LOOKUPS;
use crate::page;
use crate::routes::{self, AppState, Peer};
use crate::sockets::{AdminError, Sockets};
use crate::view::{Identity, View};
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
/// The most threads that wait: for the daemon's status and a few commands, and for names of hosts.
const MAX_BLOCKING: usize = 8 + MOST_LOOKUPS;

/// A running server. Dropping it stops it; replies in progress get a second.
#[derive(Debug)]
pub struct Admin {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

/// Serves at these sockets, which stay the caller's. `view` and `identity` make the status, `recorder`
/// records the history, and commands go to `commands`.
///
/// # Errors
/// [`AdminError::Start`].
pub fn serve(
    sockets: &Sockets,
    view: impl View,
    identity: Identity,
    recorder: Recorder,
    commands: Commands,
) -> Result<Admin, AdminError> {
    let failed = |source| AdminError::Start { action: "status and commands", source };
    let runtime = Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(MAX_BLOCKING)
        .build()
        .map_err(failed)?;
    let view: Arc<dyn View> = Arc::new(view);
    let state = Arc::new(AppState::new(view.clone(), identity, commands));
    let listeners = Listeners::open(&runtime, sockets, &state, &recorder).map_err(failed)?;
    let (stop, stopped) = watch::channel(false);
    let thread = thread::Builder::new().name("admin".into()).spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                () = listeners.answer(stopped) => {}
                () = recorder.run(view) => {}
            }
        });
        // A request that still waits for a command's outcome must not keep the daemon from ending.
        runtime.shutdown_background();
    });
    Ok(Admin { stop, thread: Some(thread.map_err(failed)?) })
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that serves status and commands has panicked");
        }
    }
}

/// The two listeners, each with its routes.
struct Listeners {
    unix: Option<(UnixListener, Router)>,
    tcp: Option<(TcpListener, Router)>,
}

impl Listeners {
    fn open(
        runtime: &Runtime,
        sockets: &Sockets,
        state: &Arc<AppState>,
        recorder: &Recorder,
    ) -> io::Result<Self> {
        let _inside = runtime.enter();
        let unix = sockets.unix().map(unix_listener).transpose()?.map(|listener| {
            let router = read_routes(state, recorder).merge(routes::command_routes(Arc::clone(state)));
            (listener, router.layer(axum::middleware::from_fn(auth::add_security_headers)))
        });
        let tcp = match sockets.tcp() {
            Some((socket, address)) => {
                let auth = Arc::new(Auth::new(address, sockets.token().cloned()));
                let router = read_routes(state, recorder)
                    .layer(axum::middleware::from_fn_with_state(auth, auth::require))
                    .layer(axum::middleware::from_fn(auth::add_security_headers));
                Some((tcp_listener(socket)?, router))
            }
            None => None,
        };
        Ok(Self { unix, tcp })
    }

    async fn answer(self, stopped: watch::Receiver<bool>) {
        let unix = async {
            if let Some((listener, router)) = self.unix {
                accept(
                    stopped.clone(),
                    || listener.accept(),
                    |(stream, _)| {
                        let peer = peer(&stream);
                        (stream, router.clone().layer(Extension(peer)))
                    },
                )
                .await;
            }
        };
        let tcp = async {
            if let Some((listener, router)) = self.tcp {
                accept(stopped.clone(), || listener.accept(), |(stream, _)| (stream, router.clone())).await;
            }
        };
        let mut stopped = stopped.clone();
        // Both listeners may be missing.
        tokio::join!(unix, tcp, stop_requested(&mut stopped));
    }
}

fn read_routes(state: &Arc<AppState>, recorder: &Recorder) -> Router {
    routes::read_routes(Arc::clone(state)).merge(page::routes()).merge(history::routes(recorder.clone()))
}

/// Accepts connections until it is stopped, then waits briefly for replies in progress.
async fn accept<A, F, S>(
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

fn peer(stream: &UnixStream) -> Peer {
    match stream.peer_cred() {
        Ok(credentials) => Peer { uid: credentials.uid(), pid: credentials.pid() },
        // Unknown: the overflow user (/proc/sys/kernel/overflowuid).
        Err(_) => Peer { uid: 65534, pid: None },
    }
}

fn unix_listener(socket: OwnedFd) -> io::Result<UnixListener> {
    let listener = std::os::unix::net::UnixListener::from(socket);
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

fn tcp_listener(socket: OwnedFd) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::from(socket);
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}
