//! The other side of the door: what the command line, and tests, ask a node.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::SendRequest;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use super::Sent;

/// Bytes that are read at once.
const PART: usize = 256 * 1024;

/// Who speaks with a node over its socket.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
}

/// Why a request came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("cannot reach the node at {socket}: {source}; is `bentpipe dtn run` running there?")]
    Unreachable {
        /// The socket.
        socket: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The node said no.
    #[error("{message}")]
    Refused {
        /// The status of HTTP.
        status: u16,
        /// What it said.
        message: String,
    },
    /// The conversation broke off.
    #[error("the conversation with the node at {socket} broke off: {reason}")]
    BrokenOff {
        /// The socket.
        socket: PathBuf,
        /// How.
        reason: String,
    },
}

/// What is read while it is sent, such as a file: as a payload it is never in memory as a whole.
pub struct Reading<R, P> {
    source: R,
    left: Option<u64>,
    progress: P,
}

/// A bundle that a node delivers.
#[derive(Debug)]
pub struct Delivery {
    /// Its number in the node's store, by which it is acknowledged.
    pub key: u64,
    /// Its name.
    pub id: String,
    /// Who sent it.
    pub source: String,
    /// Bytes of payload.
    pub len: u64,
    socket: PathBuf,
    body: Incoming,
}

impl Client {
    /// Who will speak with the node at this socket.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into() }
    }

    /// The socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Sends a payload; `query` are the parameters of `POST /bundles`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn send<B>(&self, query: &[(&str, String)], payload: B) -> Result<Sent, ClientError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let response = self.request(Method::POST, "/bundles", query, payload).await?;
        self.json(response).await
    }

    /// The next bundle for a service, after waiting for it so long.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn next(&self, service: &str, wait: Duration) -> Result<Option<Delivery>, ClientError> {
        let query = [("service", service.to_owned()), ("wait", format!("{}ms", wait.as_millis()))];
        let response = self.request(Method::GET, "/bundles/next", &query, Empty::new()).await?;
        if response.status() == StatusCode::NO_CONTENT {
            return Ok(None);
        }
        let response = self.good(response).await?;
        let header = |name: &str| {
            let value = response.headers().get(name).and_then(|value| value.to_str().ok());
            value.map(str::to_owned).ok_or_else(|| self.broken(format!("its answer has no {name}")))
        };
        let number =
            |name: &str| header(name)?.parse().map_err(|_| self.broken(format!("its {name} is no number")));
        Ok(Some(Delivery {
            key: number("bundle-key")?,
            id: header("bundle-id")?,
            source: header("bundle-source")?,
            len: number("content-length")?,
            socket: self.socket.clone(),
            body: response.into_body(),
        }))
    }

    /// Says that a bundle has arrived at its application.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn acknowledge(&self, key: u64) -> Result<(), ClientError> {
        let path = format!("/bundles/{key}/acknowledge");
        let response = self.request(Method::POST, &path, &[], Empty::new()).await?;
        self.good(response).await.map(drop)
    }

    /// A JSON document of the node, as `/status`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, String)],
    ) -> Result<T, ClientError> {
        let response = self.request(Method::GET, path, query, Empty::new()).await?;
        self.json(response).await
    }

    async fn request<B>(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, String)],
        body: B,
    ) -> Result<Response<Incoming>, ClientError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut sender = self.connect().await?;
        let request =
            Request::builder().method(method).uri(target(path, query)).header("host", "localhost").body(body);
        let request = request.map_err(|error| self.broken(error.to_string()))?;
        sender.send_request(request).await.map_err(|error| self.broken(error.to_string()))
    }

    async fn connect<B>(&self) -> Result<SendRequest<B>, ClientError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let unreachable = |source| ClientError::Unreachable { socket: self.socket.clone(), source };
        let stream = UnixStream::connect(&self.socket).await.map_err(unreachable)?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.broken(error.to_string()))?;
        // How it ends is seen in the answer.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    async fn json<T: DeserializeOwned>(&self, response: Response<Incoming>) -> Result<T, ClientError> {
        let response = self.good(response).await?;
        let body = response.into_body().collect().await.map_err(|error| self.broken(error.to_string()))?;
        serde_json::from_slice(&body.to_bytes()).map_err(|error| self.broken(error.to_string()))
    }

    async fn good(&self, response: Response<Incoming>) -> Result<Response<Incoming>, ClientError> {
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status().as_u16();
        let body =
            response.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let document: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        let message =
            document["error"].as_str().map_or_else(|| format!("the node answered {status}"), str::to_owned);
        Err(ClientError::Refused { status, message })
    }

    fn broken(&self, reason: String) -> ClientError {
        ClientError::BrokenOff { socket: self.socket.clone(), reason }
    }
}

impl<R: io::Read, P: FnMut(u64)> Reading<R, P> {
    /// A payload of so many bytes, or of as many as there are. Each part that goes is told to `progress`, in bytes.
    pub fn new(source: R, len: Option<u64>, progress: P) -> Self {
        Self { source, left: len, progress }
    }
}

impl<R: io::Read + Unpin, P: FnMut(u64) + Unpin> Body for Reading<R, P> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let most = self.left.map_or(PART, |left| left.min(PART as u64) as usize);
        let mut part = vec![0; most];
        // It blocks on a disk, as any command does that copies a file: nothing else waits in the meantime.
        let len = match self.source.read(&mut part) {
            Ok(0) if self.left.is_some_and(|left| left > 0) => {
                return Poll::Ready(Some(Err(io::Error::other("what is sent has become shorter meanwhile"))));
            }
            Ok(0) => return Poll::Ready(None),
            Ok(len) => len,
            Err(error) => return Poll::Ready(Some(Err(error))),
        };
        part.truncate(len);
        self.left = self.left.map(|left| left - len as u64);
        (self.progress)(len as u64);
        Poll::Ready(Some(Ok(Frame::data(part.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Delivery {
    /// The next part of the payload; `None` after the last one.
    ///
    /// # Errors
    /// [`ClientError::BrokenOff`].
    pub async fn part(&mut self) -> Result<Option<Bytes>, ClientError> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|error| ClientError::BrokenOff {
                socket: self.socket.clone(),
                reason: error.to_string(),
            })?;
            if let Ok(part) = frame.into_data() {
                return Ok(Some(part));
            }
        }
        Ok(None)
    }
}

/// Path and parameters, with percent signs where they are needed (RFC 3986 §2.1).
fn target(path: &str, query: &[(&str, String)]) -> String {
    let mut target = path.to_owned();
    for (index, (name, value)) in query.iter().enumerate() {
        target.push(if index == 0 { '?' } else { '&' });
        target.push_str(name);
        target.push('=');
        for byte in value.bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' | b':' | b',' => {
                    target.push(byte.into());
                }
                _ => target.push_str(&format!("%{byte:02X}")),
            }
        }
    }
    target
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_written_so_that_they_are_read_back() {
        let query = [("destination", "dtn://gs2/a b&c".to_owned()), ("wait", "1s".to_owned())];
        assert_eq!(target("/x", &query), "/x?destination=dtn://gs2/a%20b%26c&wait=1s");
    }
}
