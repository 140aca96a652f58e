//! The client of the daemon's Unix socket, for commands and tests.

use std::path::Path;
use std::time::{Duration, Instant};

pub use bentpipe_http::ClientError;
use bentpipe_http::{Client as HttpClient, Server};
use bentpipe_proxy::ReloadReport;
use bentpipe_proxy::config::admin_socket;
use http_body_util::Full;
use hyper::Method;
use hyper::body::Bytes;
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::{DrainTimes, Status};

/// Timeout of a status request: the server itself gives up after ten seconds.
const STATUS_TIMEOUT: Duration = Duration::from_secs(15);
/// Timeout of a command: the server gives up after thirty.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(35);

/// The HTTP status of a command that the daemon refuses.
const CONFLICT: u16 = 409;

/// The daemon, in error messages.
pub const DAEMON: Server = Server {
    name: "the daemon",
    hint: "start it with `systemctl start bentpipe` or `bentpipe run`, or say where it is with --folder (its admin.folder)",
};

/// A client of a daemon's Unix socket. Its methods block; call them outside of asynchronous code.
#[derive(Debug)]
pub struct Client {
    http: HttpClient,
    runtime: Runtime,
}

/// How many flows a status has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flows {
    /// The fastest, at most this many.
    Most(usize),
    /// All of them.
    All,
}

/// A daemon of an earlier version does not say what has changed.
fn of_older_daemon() -> ReloadReport {
    let notes = vec!["this daemon is of an earlier version, which does not say what has changed".to_owned()];
    ReloadReport { applied: true, notes, ..ReloadReport::default() }
}

impl Client {
    /// A client of the daemon of this folder. It does not connect yet.
    ///
    /// # Errors
    /// [`ClientError::Start`].
    pub fn new(folder: &Path) -> Result<Self, ClientError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|source| ClientError::Start { source })?;
        Ok(Self { http: HttpClient::new(DAEMON, admin_socket(folder)), runtime })
    }

    /// The socket.
    pub fn socket(&self) -> &Path {
        self.http.socket()
    }

    /// The daemon's status.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn status(&self, flows: Flows) -> Result<Status, ClientError> {
        serde_json::from_str(&self.status_text(flows)?)
            .map_err(|error| self.http.disconnected(format!("cannot read its status: {error}")))
    }

    /// The status as the daemon sent it: the JSON document of a daemon that may be newer than this program.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn status_text(&self, flows: Flows) -> Result<String, ClientError> {
        let flows = match flows {
            Flows::Most(most) => most.to_string(),
            Flows::All => "all".to_owned(),
        };
        let request =
            || self.request(Method::GET, "/status", &[("flows", flows.clone())], "", STATUS_TIMEOUT);
        let started = Instant::now();
        // During an upgrade the old process may exit before it replies. Its successor has the same socket.
        let body = match request() {
            Err(ClientError::Disconnected { .. }) if started.elapsed() < STATUS_TIMEOUT => request()?,
            outcome => outcome?,
        };
        String::from_utf8(body.to_vec()).map_err(|error| self.http.disconnected(error))
    }

    /// Tells the daemon to reload its configuration, and waits until it has.
    ///
    /// # Errors
    /// [`ClientError`]. A reload that the daemon refuses is no error here: the report says so.
    pub fn reload(&self) -> Result<ReloadReport, ClientError> {
        match self.request(Method::POST, "/reload", &[], "", COMMAND_TIMEOUT) {
            Ok(reply) => Ok(serde_json::from_slice(&reply).unwrap_or_else(|_| of_older_daemon())),
            Err(ClientError::Refused { status: CONFLICT, body, reason, .. }) => {
                Ok(serde_json::from_slice(&body).unwrap_or_else(|_| ReloadReport::unreadable(reason)))
            }
            Err(error) => Err(error),
        }
    }

    /// Tells the daemon to accept no new connections, and to end after the last one or at the deadline.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn drain(&self, times: DrainTimes) -> Result<(), ClientError> {
        let DrainTimes { deadline, stay } = times;
        let deadline = deadline.map(|deadline| deadline.as_secs_f64());
        let body = json!({ "deadline_s": deadline, "stay_s": stay.as_secs_f64() });
        self.command(Method::POST, "/drain", &body.to_string())
    }

    /// Tells the daemon to accept connections again.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn stop_draining(&self) -> Result<(), ClientError> {
        self.command(Method::DELETE, "/drain", "")
    }

    /// Tells the daemon to let new connections pass until the opposite is ordered, or to accept them again.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::Refused`] if the daemon has done so, but cannot keep it beyond its end.
    pub fn set_bypass(&self, on: bool) -> Result<(), ClientError> {
        self.command(if on { Method::POST } else { Method::DELETE }, "/bypass", "")
    }

    fn command(&self, method: Method, path: &str, body: &str) -> Result<(), ClientError> {
        self.request(method, path, &[], body, COMMAND_TIMEOUT).map(drop)
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, String)],
        body: &str,
        limit: Duration,
    ) -> Result<Bytes, ClientError> {
        let body = Full::new(Bytes::from(body.to_owned()));
        let exchange = async {
            let response = self.http.send(method, path, query, body).await?;
            self.http.read(response).await
        };
        self.runtime.block_on(async {
            let outcome = timeout(limit, exchange).await;
            // Lets the connection's task notice that it is over.
            tokio::task::yield_now().await;
            outcome.unwrap_or_else(|_| {
                Err(self.http.disconnected(format!("no reply within {} s", limit.as_secs())))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    use super::*;

    /// The outcome of a status request if the first `broken` connections end early.
    fn asked(broken: usize) -> Result<String, ClientError> {
        let folder = tempfile::tempdir().unwrap();
        let socket = admin_socket(folder.path());
        let listener = UnixListener::bind(&socket).unwrap();
        let daemon = std::thread::spawn(move || {
            for _ in 0..broken {
                let _ = listener.accept().unwrap().0.read(&mut [0; 16]);
            }
            let Ok((mut stream, _)) = listener.accept() else { return };
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}");
        });
        let outcome = Client::new(folder.path()).unwrap().status_text(Flows::All);
        // Releases a daemon that still waits for a connection.
        let _ = std::os::unix::net::UnixStream::connect(&socket);
        daemon.join().unwrap();
        outcome
    }

    #[test]
    fn a_look_that_breaks_off_is_taken_once_more_and_not_for_ever() {
        assert_eq!(asked(0).unwrap(), "{}");
        assert_eq!(asked(1).unwrap(), "{}");
        assert!(matches!(asked(2), Err(ClientError::Disconnected { .. })));
    }
}
