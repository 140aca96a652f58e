//! Connections of a client that serve one request after another.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::SendRequest;

/// Why a body could not be sent.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// The body of a request.
pub(crate) type Payload = UnsyncBoxBody<Bytes, BoxError>;
/// A connection.
pub(crate) type Connection = SendRequest<Payload>;

/// The most connections that wait for a request. A server has room for 64, of all its clients.
const MOST: usize = 16;
/// How long one may wait: servers close it after 10 s, and a request must not meet that.
const KEPT_FOR: Duration = Duration::from_secs(5);

/// Connections whose last reply has been read to its end, the one that has waited for longest first.
#[derive(Debug, Clone, Default)]
pub(crate) struct Connections(Arc<Mutex<Vec<(Connection, Instant)>>>);

impl Connections {
    /// One that takes a request now, if there is any.
    pub(crate) async fn take(&self) -> Option<Connection> {
        loop {
            let (mut connection, since) = self.waiting().pop()?;
            if since.elapsed() < KEPT_FOR && connection.ready().await.is_ok() {
                return Some(connection);
            }
        }
    }

    fn give_back(&self, connection: Connection) {
        let mut waiting = self.waiting();
        waiting.retain(|(connection, since)| since.elapsed() < KEPT_FOR && !connection.is_closed());
        if waiting.len() < MOST && !connection.is_closed() {
            waiting.push((connection, Instant::now()));
        }
    }

    /// How many there are.
    #[cfg(test)]
    fn count(&self) -> usize {
        self.waiting().len()
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, Vec<(Connection, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The body of a reply. The connection serves other requests once it has been read to its end; where it is
/// dropped before, the connection ends.
#[derive(Debug)]
pub struct ReplyBody {
    body: Incoming,
    connection: Option<(Connection, Connections)>,
}

impl ReplyBody {
    pub(crate) fn new(body: Incoming, connection: Connection, connections: &Connections) -> Self {
        let mut reply = Self { body, connection: Some((connection, connections.clone())) };
        reply.note_end(false);
        reply
    }

    fn note_end(&mut self, is_over: bool) {
        if (is_over || self.body.is_end_stream())
            && let Some((connection, connections)) = self.connection.take()
        {
            connections.give_back(connection);
        }
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        self.note_end(frame.is_none());
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::Router;
    use axum::routing::{get, post};
    use http_body_util::{BodyExt, Empty, Full};
    use hyper::Method;
    use tokio::net::UnixListener;
    use tokio::sync::watch;
    use tokio::task::JoinHandle;

    use super::*;
    use crate::{Client, Server, server};

    const SERVER: Server = Server { name: "the server", hint: "start it" };
    const LONG: usize = 1 << 20;

    /// A server, how many connections it has accepted, and what stops it.
    struct Counting {
        accepted: Arc<AtomicUsize>,
        stop: watch::Sender<bool>,
        task: JoinHandle<()>,
    }

    impl Counting {
        fn start(socket: &Path) -> Self {
            let listener = UnixListener::bind(socket).unwrap();
            let accepted = Arc::new(AtomicUsize::new(0));
            let (stop, stopped) = watch::channel(false);
            let router = Router::new()
                .route("/echo", post(|body: Bytes| async { body }))
                .route("/long", get(|| async { vec![7; LONG] }));
            let count = Arc::clone(&accepted);
            let task = tokio::spawn(async move {
                let next = || async { listener.accept().await.map(|(stream, _)| stream) };
                server::accept(stopped, next, |stream| {
                    count.fetch_add(1, Ordering::Relaxed);
                    (stream, router.clone())
                })
                .await;
            });
            Self { accepted, stop, task }
        }

        fn accepted(&self) -> usize {
            self.accepted.load(Ordering::Relaxed)
        }

        async fn stop(self) {
            self.stop.send(true).unwrap();
            self.task.await.unwrap();
        }
    }

    async fn echo(client: &Client, text: &'static str) {
        let body = Full::new(Bytes::from(text));
        let response = client.send(Method::POST, "/echo", &[], body).await.unwrap();
        assert_eq!(client.read(response).await.unwrap(), text);
    }

    #[tokio::test]
    async fn requests_one_after_another_share_a_connection() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let server = Counting::start(&socket);
        let client = Client::new(SERVER, &socket);
        for _ in 0..20 {
            echo(&client, "hello").await;
            // An error is a reply like any other.
            client.send(Method::GET, "/nowhere", &[], Empty::new()).await.unwrap_err();
        }
        assert_eq!(server.accepted(), 1);
        tokio::join!(echo(&client, "one"), echo(&client, "two"), echo(&client, ""));
        assert!(server.accepted() <= 3);
    }

    #[tokio::test]
    async fn a_connection_whose_reply_is_not_read_serves_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let server = Counting::start(&socket);
        let client = Client::new(SERVER, &socket);
        let mut long = client.send(Method::GET, "/long", &[], Empty::new()).await.unwrap();
        let first = long.body_mut().frame().await.unwrap().unwrap().into_data().unwrap();
        echo(&client, "meanwhile").await;
        assert_eq!(server.accepted(), 2);
        let rest = client.read(long).await.unwrap();
        assert_eq!(first.len() + rest.len(), LONG);
        drop(client.send(Method::GET, "/long", &[], Empty::new()).await.unwrap());
        echo(&client, "again").await;
        assert_eq!(server.accepted(), 2, "the one that was dropped is gone, the other one is left");
    }

    #[tokio::test]
    async fn a_server_that_has_started_anew_is_connected_to_anew() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let client = Client::new(SERVER, &socket);
        for _ in 0..3 {
            let server = Counting::start(&socket);
            echo(&client, "hello").await;
            echo(&client, "hello").await;
            assert_eq!(server.accepted(), 1);
            server.stop().await;
            std::fs::remove_file(&socket).unwrap();
        }
        let gone = client.send(Method::GET, "/long", &[], Empty::new()).await.unwrap_err();
        assert!(matches!(gone, crate::ClientError::NotRunning { .. }), "{gone}");
    }

    #[tokio::test]
    async fn no_more_connections_wait_than_a_server_has_room_for() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let server = Counting::start(&socket);
        let client = Client::new(SERVER, &socket);
        for _ in 0..3 {
            let tasks: Vec<_> = (0..60)
                .map(|_| {
                    let client = client.clone();
                    tokio::spawn(async move { echo(&client, "hello").await })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            assert!(client.connections.count() <= MOST);
        }
        assert!(server.accepted() > 0);
    }
}
