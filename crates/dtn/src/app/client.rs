//! The client of a node's Unix socket, for commands and tests.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bentpipe_http::{Client as HttpClient, ReplyBody, Server, decode_percent};
pub use bentpipe_http::{ClientError, ReadBody};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Body, Bytes};
use hyper::{Method, StatusCode};
use serde::de::DeserializeOwned;

use super::{Accepted, Acknowledged, DeliveryLine, ReloadReport, Sent};
use crate::bundle::FileName;

/// The node, in error messages.
const NODE: Server = Server { name: "the node", hint: "is `bentpipe dtn run` running there?" };

/// A client of a node's Unix socket.
#[derive(Debug, Clone)]
pub struct Client(HttpClient);

/// A bundle that a node has delivered with others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// What the node says of it.
    pub line: DeliveryLine,
    /// Its payload.
    pub payload: Bytes,
}

/// A bundle that a node delivers.
#[derive(Debug)]
pub struct Delivery {
    /// Its number in the node's store, by which it is acknowledged.
    pub key: u64,
    /// Its ID.
    pub id: String,
    /// The endpoint that sent it.
    pub source: String,
    /// The name of the file that the payload was.
    pub file_name: Option<FileName>,
    /// Bytes of payload.
    pub len: u64,
    client: HttpClient,
    body: ReplyBody,
}

impl Client {
    /// A client of the node at this socket. It does not connect yet.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self(HttpClient::new(NODE, socket))
    }

    /// The socket.
    pub fn socket(&self) -> &Path {
        self.0.socket()
    }

    /// Sends a payload; `query` has the parameters of `POST /bundles`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn send<B>(&self, query: &[(&str, String)], payload: B) -> Result<Sent, ClientError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let response = self.0.send(Method::POST, "/bundles", query, payload).await?;
        self.0.read_json(response).await
    }

    /// The next bundle for a service; waits at most `wait` for one.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn next(&self, service: &str, wait: Duration) -> Result<Option<Delivery>, ClientError> {
        let query = [("service", service.to_owned()), ("wait", format!("{}ms", wait.as_millis()))];
        let response = self.0.send(Method::GET, "/bundles/next", &query, Empty::new()).await?;
        if response.status() == StatusCode::NO_CONTENT {
            return Ok(None);
        }
        let header = |name: &str| {
            let value = response.headers().get(name).and_then(|value| value.to_str().ok());
            value.map(str::to_owned).ok_or_else(|| self.0.disconnected(format!("its reply has no {name}")))
        };
        let number = |name: &str| {
            let value = header(name)?;
            value.parse().map_err(|_| self.0.disconnected(format!("its {name} is not a number")))
        };
        let file_name = header("bundle-name")
            .ok()
            .and_then(|name| String::from_utf8(decode_percent(&name)?).ok()?.parse().ok());
        Ok(Some(Delivery {
            key: number("bundle-key")?,
            id: header("bundle-id")?,
            source: header("bundle-source")?,
            file_name,
            len: number("content-length")?,
            client: self.0.clone(),
            body: response.into_body(),
        }))
    }

    /// Acknowledges a bundle: the node deletes it.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn acknowledge(&self, key: u64) -> Result<(), ClientError> {
        let path = format!("/bundles/{key}/acknowledge");
        self.0.send(Method::POST, &path, &[], Empty::new()).await.map(drop)
    }

    /// Sends payloads; `query` has the parameters of `POST /bundles/batch`. The outcomes are in their order.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn send_all(
        &self,
        query: &[(&str, String)],
        payloads: &[&[u8]],
    ) -> Result<Vec<Accepted>, ClientError> {
        let mut body = Vec::with_capacity(payloads.iter().map(|payload| payload.len() + 32).sum());
        for payload in payloads {
            body.extend(format!("{{\"payload_bytes\":{}}}\n", payload.len()).into_bytes());
            body.extend_from_slice(payload);
        }
        let body = Full::new(Bytes::from(body));
        let response = self.0.send(Method::POST, "/bundles/batch", query, body).await?;
        self.0.read_json(response).await
    }

    /// The next bundles for a service, at most `most`; waits at most `wait` for the first. All of them are in
    /// memory.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn next_all(
        &self,
        service: &str,
        wait: Duration,
        most: usize,
    ) -> Result<Vec<Received>, ClientError> {
        let wait = format!("{}ms", wait.as_millis());
        let query = [("service", service.to_owned()), ("wait", wait), ("max", most.to_string())];
        let response = self.0.send(Method::GET, "/bundles/next", &query, Empty::new()).await?;
        if response.status() == StatusCode::NO_CONTENT {
            return Ok(Vec::new());
        }
        let mut rest = self.0.read(response).await?;
        let mut received = Vec::new();
        while !rest.is_empty() {
            let broken = || self.0.disconnected("its reply ends within a bundle");
            let end = rest.iter().position(|byte| *byte == b'\n').ok_or_else(broken)?;
            let line = rest.split_to(end + 1);
            let line: DeliveryLine =
                serde_json::from_slice(&line).map_err(|error| self.0.disconnected(error))?;
            let len = usize::try_from(line.payload_bytes).unwrap_or(usize::MAX);
            if len > rest.len() {
                return Err(broken());
            }
            received.push(Received { line, payload: rest.split_to(len) });
        }
        Ok(received)
    }

    /// Acknowledges bundles: the node deletes them, in one transaction.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn acknowledge_all(&self, keys: &[u64]) -> Result<Acknowledged, ClientError> {
        let body = serde_json::to_vec(keys).unwrap_or_default();
        let response = self.0.send_json(Method::POST, "/bundles/acknowledge", Bytes::from(body)).await?;
        self.0.read_json(response).await
    }

    /// Has the node read its configuration again.
    ///
    /// # Errors
    /// [`ClientError`]: the node goes on with the old one.
    pub async fn reload(&self) -> Result<ReloadReport, ClientError> {
        let response = self.0.send(Method::POST, "/reload", &[], Empty::new()).await?;
        self.0.read_json(response).await
    }

    /// A JSON document of the node, such as `/status`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, String)],
    ) -> Result<T, ClientError> {
        let response = self.0.send(Method::GET, path, query, Empty::new()).await?;
        self.0.read_json(response).await
    }
}

impl Delivery {
    /// The next part of the payload; `None` after the last one.
    ///
    /// # Errors
    /// [`ClientError::Disconnected`].
    pub async fn part(&mut self) -> Result<Option<Bytes>, ClientError> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|error| self.client.disconnected(error))?;
            if let Ok(part) = frame.into_data() {
                return Ok(Some(part));
            }
        }
        Ok(None)
    }
}
