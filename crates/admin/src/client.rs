//! The other side of the Unix socket: what commands, and tests, ask a daemon.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bentpipe_proxy::config::admin_socket;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::Status;

/// A look is answered within this time: the server itself gives up after ten seconds.
const PATIENCE_FOR_A_LOOK: Duration = Duration::from_secs(15);
/// An order likewise, after thirty.
const PATIENCE_FOR_AN_ORDER: Duration = Duration::from_secs(35);
/// An answer, bytes: a hundred thousand flows.
const MOST_ANSWER: usize = 128 << 20;

/// Who speaks with a daemon over its Unix socket. Its methods block; call them outside of asynchronous code.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
    runtime: Runtime,
}

/// How many flows a status is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flows {
    /// The fastest, so many.
    Most(usize),
    /// All of them.
    All,
}

/// Why a request came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody is there.
    #[error(
        "no daemon answers at {socket}: {source}; start one with `bentpipe run`, or say where it is with --folder \
         (its admin.folder)"
    )]
    NotRunning {
        /// The socket.
        socket: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The daemon is not for everybody.
    #[error(
        "no right to speak with the daemon at {socket}: run this as root, or join the socket's group: \
         usermod -aG $(stat -c %G {socket}) USER"
    )]
    NoRight {
        /// The socket.
        socket: PathBuf,
    },
    /// The daemon said no.
    #[error("the daemon refused: {reason}")]
    Refused {
        /// The status of HTTP.
        status: u16,
        /// What it said.
        reason: String,
    },
    /// The conversation broke off.
    #[error(
        "the conversation with the daemon at {socket} broke off: {reason}; if it goes on, look into the daemon's log"
    )]
    BrokenOff {
        /// The socket.
        socket: PathBuf,
        /// How.
        reason: String,
    },
    /// There is no way to wait for an answer.
    #[error("cannot wait for answers: {source}; look for a limit of descriptors (ulimit -n)")]
    Start {
        /// What the system said.
        source: io::Error,
    },
}

impl Client {
    /// Who will speak with the daemon of this folder. Nothing is asked yet.
    ///
    /// # Errors
    /// [`ClientError::Start`].
    pub fn new(folder: &Path) -> Result<Self, ClientError> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|source| ClientError::Start { source })?;
        Ok(Self { socket: admin_socket(folder), runtime })
    }

    /// The socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What the daemon is doing.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn status(&self, flows: Flows) -> Result<Status, ClientError> {
        serde_json::from_str(&self.status_text(flows)?)
            .map_err(|error| self.broken(format!("its status is unfit: {error}")))
    }

    /// The same as it came: the JSON document of a daemon that may be newer than this program.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn status_text(&self, flows: Flows) -> Result<String, ClientError> {
        let path = match flows {
            Flows::Most(most) => format!("/status?flows={most}"),
            Flows::All => "/status?flows=all".to_owned(),
        };
        let body = self.look(&path)?;
        String::from_utf8(body.to_vec()).map_err(|error| self.broken(error.to_string()))
    }

    /// Tells the daemon to read its configuration again, and waits till it has.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::Refused`] with the reason where the configuration stays as it was.
    pub fn reload(&self) -> Result<(), ClientError> {
        self.ask(Method::POST, "/reload", None, PATIENCE_FOR_AN_ORDER).map(drop)
    }

    /// Tells the daemon to take no new connection, and to end when the last has gone or, where there is one, after
    /// the deadline.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn drain(&self, deadline: Option<Duration>) -> Result<(), ClientError> {
        let body = json!({ "deadline_s": deadline.map(|deadline| deadline.as_secs_f64()) });
        self.ask(Method::POST, "/drain", Some(&body), PATIENCE_FOR_AN_ORDER).map(drop)
    }

    /// Tells the daemon to take connections again.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn stop_draining(&self) -> Result<(), ClientError> {
        self.ask(Method::DELETE, "/drain", None, PATIENCE_FOR_AN_ORDER).map(drop)
    }

    /// Asks once more if the conversation breaks off: at an upgrade the process that was asked may be gone before it answers, and
    /// its successor has its sockets.
    fn look(&self, path: &str) -> Result<Bytes, ClientError> {
        let asked = Instant::now();
        match self.ask(Method::GET, path, None, PATIENCE_FOR_A_LOOK) {
            Err(ClientError::BrokenOff { .. }) if asked.elapsed() < PATIENCE_FOR_A_LOOK => {
                self.ask(Method::GET, path, None, PATIENCE_FOR_A_LOOK)
            }
            outcome => outcome,
        }
    }

    fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        patience: Duration,
    ) -> Result<Bytes, ClientError> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "localhost")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| self.broken(error.to_string()))?;
        let answer = async { timeout(patience, self.exchange(request)).await };
        match self.runtime.block_on(answer) {
            Ok(outcome) => outcome,
            Err(_) => Err(self.broken(format!("no answer within {} s", patience.as_secs()))),
        }
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Bytes, ClientError> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| self.unreachable(error))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.broken(error.to_string()))?;
        let conversation = async {
            let response =
                sender.send_request(request).await.map_err(|error| self.broken(error.to_string()))?;
            self.read(response).await
        };
        tokio::pin!(connection, conversation);
        tokio::select! {
            outcome = conversation.as_mut() => outcome,
            // How it ended is seen in the answer.
            _ = connection => conversation.await,
        }
    }

    async fn read(&self, response: Response<Incoming>) -> Result<Bytes, ClientError> {
        let status = response.status();
        let body = Limited::new(response.into_body(), MOST_ANSWER).collect().await;
        let body = body.map_err(|error| self.broken(error.to_string()))?.to_bytes();
        if status == StatusCode::OK {
            return Ok(body);
        }
        let document: Value = serde_json::from_slice(&body).unwrap_or_default();
        let reason =
            document["error"].as_str().map_or_else(|| format!("it answered {status}"), str::to_owned);
        Err(ClientError::Refused { status: status.as_u16(), reason })
    }

    fn unreachable(&self, source: io::Error) -> ClientError {
        let socket = self.socket.clone();
        match source.kind() {
            io::ErrorKind::PermissionDenied => ClientError::NoRight { socket },
            _ => ClientError::NotRunning { socket, source },
        }
    }

    fn broken(&self, reason: String) -> ClientError {
        ClientError::BrokenOff { socket: self.socket.clone(), reason }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    use super::*;

    /// What somebody is told who asks for a status where the first so many conversations break off.
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
        // Whoever still waits for somebody is let go.
        let _ = std::os::unix::net::UnixStream::connect(&socket);
        daemon.join().unwrap();
        outcome
    }

    #[test]
    fn a_look_that_breaks_off_is_taken_once_more_and_not_for_ever() {
        assert_eq!(asked(0).unwrap(), "{}");
        assert_eq!(asked(1).unwrap(), "{}");
        assert!(matches!(asked(2), Err(ClientError::BrokenOff { .. })));
    }
}
