//! The server: one thread, two listeners, and a bound for every resource that clients can use.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use axum::Router;
use axum::extract::{Extension, Request};
use axum::http::{HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use bentpipe_http::auth::{self, Auth};
use bentpipe_http::server::accept;
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use crate::command::Commands;
use crate::history::{self, Recorder};
use crate::names::MOST_LOOKUPS;
use crate::page::{self, CONTENT_SECURITY_POLICY};
use crate::routes::{self, AppState, Peer};
use crate::sockets::{AdminError, Sockets};
use crate::view::{Identity, View};

/// The reply to commands over TCP.
const READ_ONLY: &str = "TCP is read only; use bentpipe reload or bentpipe drain, which use the Unix socket";
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
    let state = Arc::new(AppState::new(view.clone(), identity, commands, sockets.bundle_node()));
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
            (listener, router.layer(axum::middleware::from_fn(add_security_headers)))
        });
        let tcp = match sockets.tcp() {
            Some((socket, address)) => {
                let auth = Arc::new(Auth::new(address, sockets.token().cloned(), READ_ONLY));
                let router = read_routes(state, recorder)
                    .layer(axum::middleware::from_fn_with_state(auth, auth::require))
                    .layer(axum::middleware::from_fn(add_security_headers));
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

/// Completes on a stop, or when the sender is gone.
async fn stop_requested(stopped: &mut watch::Receiver<bool>) {
    let _ = stopped.wait_for(|&stop| stop).await;
}

/// Adds the headers that keep browsers from doing more with a reply than showing it.
async fn add_security_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers: [(HeaderName, &str); 5] = [
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
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
