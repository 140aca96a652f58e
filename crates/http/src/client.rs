//! The client. Its connections serve one request after another.

use std::io;
use std::path::{Path, PathBuf};

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::{Method, Request, Response, header};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use crate::connections::{BoxError, Connection, Connections, Payload, ReplyBody};
use crate::encode_query;

/// The most bytes of a reply that is read as a whole: a status with a hundred thousand flows.
const MAX_REPLY: usize = 128 << 20;

/// How error messages name a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Server {
    /// Its name with an article, as in "the daemon".
    pub name: &'static str,
    /// What to do where nothing listens.
    pub hint: &'static str,
}

/// A client of the server at a Unix socket. Requests need a tokio runtime.
#[derive(Debug, Clone)]
pub struct Client {
    server: Server,
    socket: PathBuf,
    pub(crate) connections: Connections,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nothing listens at the socket.
    #[error("cannot reach {} at {socket}: {source}; {}", server.name, server.hint)]
    NotRunning {
        /// The server.
        server: Server,
        /// The socket.
        socket: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The socket's mode does not let this user connect.
    #[error(
        "no permission to connect to {} at {socket}: run this as root, or join the socket's group: \
         usermod -aG $(stat -c %G {socket}) USER", server.name
    )]
    NotPermitted {
        /// The server.
        server: Server,
        /// The socket.
        socket: PathBuf,
    },
    /// The server replied with an error.
    #[error("{} refused: {reason}", server.name)]
    Refused {
        /// The server.
        server: Server,
        /// The HTTP status.
        status: u16,
        /// The server's explanation.
        reason: String,
        /// The whole reply.
        body: Bytes,
    },
    /// The connection ended before the reply was complete.
    #[error("the connection to {} at {socket} broke: {reason}; if it happens again, see the log of {}",
        server.name, server.name)]
    Disconnected {
        /// The server.
        server: Server,
        /// The socket.
        socket: PathBuf,
        /// What happened.
        reason: String,
    },
    /// The client cannot start.
    #[error("cannot start a client: {source}; check the limit of open files (ulimit -n)")]
    Start {
        /// The operating system's error.
        source: io::Error,
    },
}

impl Client {
    /// A client of the server at this socket. It does not connect yet.
    pub fn new(server: Server, socket: impl Into<PathBuf>) -> Self {
        Self { server, socket: socket.into(), connections: Connections::default() }
    }

    /// The socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Sends a request and returns the head of a successful reply.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn send<B>(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, String)],
        body: B,
    ) -> Result<Response<ReplyBody>, ClientError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let request = Request::builder()
            .method(method)
            .uri(encode_query(path, query))
            .header(header::HOST, "localhost")
            .body(body.map_err(Into::into).boxed_unsync())
            .map_err(|error| self.disconnected(error))?;
        self.exchange(request).await
    }

    /// Sends a JSON document and returns the head of a successful reply.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn send_json(
        &self,
        method: Method,
        path: &str,
        document: Bytes,
    ) -> Result<Response<ReplyBody>, ClientError> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "localhost")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(document).map_err(Into::into).boxed_unsync())
            .map_err(|error| self.disconnected(error))?;
        self.exchange(request).await
    }

    async fn exchange(&self, request: Request<Payload>) -> Result<Response<ReplyBody>, ClientError> {
        let (response, connection) = self.transmit(request).await?;
        let response = response.map(|body| ReplyBody::new(body, connection, &self.connections));
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status().as_u16();
        let body = self.read(response).await.unwrap_or_default();
        let document: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        let reason = document["error"].as_str().map_or_else(|| format!("it replied {status}"), str::to_owned);
        Err(ClientError::Refused { server: self.server, status, reason, body })
    }

    /// Sends a request over a connection that waits for one, or over a new one.
    async fn transmit(
        &self,
        mut request: Request<Payload>,
    ) -> Result<(Response<Incoming>, Connection), ClientError> {
        while let Some(mut connection) = self.connections.take().await {
            match connection.try_send_request(request).await {
                Ok(response) => return Ok((response, connection)),
                // The server has just closed it, and the request has not left.
                Err(mut failed) => match failed.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(self.disconnected(failed.into_error())),
                },
            }
        }
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| self.unreachable(error))?;
        let (mut connection, driver) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.disconnected(error))?;
        // The reply tells how the connection ended.
        tokio::spawn(async move { drop(driver.await) });
        let response = connection.send_request(request).await.map_err(|error| self.disconnected(error))?;
        Ok((response, connection))
    }

    /// Reads the whole body of a reply.
    ///
    /// # Errors
    /// [`ClientError::Disconnected`].
    pub async fn read(&self, response: Response<ReplyBody>) -> Result<Bytes, ClientError> {
        let body = Limited::new(response.into_body(), MAX_REPLY).collect().await;
        Ok(body.map_err(|error| self.disconnected(error))?.to_bytes())
    }

    /// Reads a reply that is a JSON document.
    ///
    /// # Errors
    /// [`ClientError::Disconnected`].
    pub async fn read_json<T: DeserializeOwned>(
        &self,
        response: Response<ReplyBody>,
    ) -> Result<T, ClientError> {
        let body = self.read(response).await?;
        serde_json::from_slice(&body).map_err(|error| self.disconnected(error))
    }

    fn unreachable(&self, source: io::Error) -> ClientError {
        let (server, socket) = (self.server, self.socket.clone());
        match source.kind() {
            io::ErrorKind::PermissionDenied => ClientError::NotPermitted { server, socket },
            _ => ClientError::NotRunning { server, socket, source },
        }
    }

    /// The error of a reply that ended early or makes no sense.
    pub fn disconnected(&self, reason: impl ToString) -> ClientError {
        let (server, socket, reason) = (self.server, self.socket.clone(), reason.to_string());
        ClientError::Disconnected { server, socket, reason }
    }
}
