//! Transfers become HTTP PUTs.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bentpipe_http::ReadBody;
use bentpipe_legs::Network;
use http_body_util::BodyExt;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::{JoinSet, block_in_place};

use super::egress::{Egress, Failure, Transfer};
use super::envelope::Envelope;
use super::network;

/// How long a server may take to be connected.
const CONNECT_WITHIN: Duration = Duration::from_secs(30);
/// How long a server may take nothing, and say nothing after the last byte.
const STALLED_AFTER: Duration = Duration::from_secs(600);
/// Bytes of an answer's body that are read.
const MAX_ANSWER: usize = 64 * 1024;

/// See the module.
#[derive(Debug)]
pub(super) struct HttpEgress {
    server: Option<SocketAddr>,
    to: Vec<Network>,
}

/// A payload that tells that it goes on, and blocks on a disk without blocking others' tasks.
struct ProgressReader<R> {
    payload: R,
    bytes: Arc<AtomicU64>,
}

impl HttpEgress {
    /// An outlet to one server, or to those of some networks that transfers name.
    pub(super) fn new(server: Option<SocketAddr>, to: Vec<Network>) -> Self {
        Self { server, to }
    }

    fn server(&self, envelope: &Envelope) -> Result<SocketAddr, Failure> {
        match (self.server, envelope.server) {
            (Some(server), _) => Ok(server),
            (None, Some(server)) if network::allows(&self.to, server.ip()) => Ok(server),
            (None, Some(server)) => Err(Failure::Permanent(format!(
                "{server} is in none of the networks that this outlet's key to says"
            ))),
            (None, None) => Err(Failure::Permanent(
                "it names no server; say server = \"ADDRESS:PORT\" in the outlet for what comes from a folder".into(),
            )),
        }
    }
}

impl Egress for HttpEgress {
    fn place(&self, envelope: &Envelope) -> Result<String, Failure> {
        let server = self.server(envelope)?;
        let host = envelope.fields.iter().find(|(name, _)| name.eq_ignore_ascii_case("host"));
        let host = host.map(|(_, value)| String::from_utf8_lossy(value)).unwrap_or_default();
        Ok(format!("{server} {host} {}", envelope.target))
    }

    async fn deliver(&self, transfer: Transfer) -> Result<(), Failure> {
        let server = self.server(&transfer.envelope)?;
        let bytes = Arc::new(AtomicU64::new(0));
        let reader = ProgressReader { payload: transfer.body, bytes: bytes.clone() };
        let request = request(server, &transfer.envelope, ReadBody::new(reader, Some(transfer.len), |_| {}))?;
        tokio::select! {
            status = put(server, request) => classify(server, status.map_err(Failure::Temporary)?),
            () = stall(&bytes) => {
                Err(Failure::Temporary(format!("{server} has neither taken nor said anything for {STALLED_AFTER:?}")))
            }
        }
    }
}

/// Ends when nothing has been taken for a while.
async fn stall(bytes: &AtomicU64) {
    let mut before = None;
    loop {
        let now = bytes.load(Ordering::Relaxed);
        if before.replace(now) == Some(now) {
            return;
        }
        tokio::time::sleep(STALLED_AFTER).await;
    }
}

impl<R: Read> Read for ProgressReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let len = block_in_place(|| self.payload.read(into))?;
        self.bytes.fetch_add(len as u64, Ordering::Relaxed);
        Ok(len)
    }
}

fn request<B>(server: SocketAddr, envelope: &Envelope, body: B) -> Result<Request<B>, Failure> {
    let mut request = Request::put(envelope.target.as_str());
    for (name, value) in &envelope.fields {
        request = request.header(name.as_str(), value.as_slice());
    }
    if !envelope.fields.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        request = request.header("host", server.to_string());
    }
    request.body(body).map_err(|error| Failure::Permanent(format!("it makes no request: {error}")))
}

async fn put<B>(server: SocketAddr, request: Request<B>) -> Result<StatusCode, String>
where
    B: hyper::body::Body<Data = hyper::body::Bytes, Error = io::Error> + Send + Unpin + 'static,
{
    let stream = tokio::time::timeout(CONNECT_WITHIN, TcpStream::connect(server))
        .await
        .map_err(|_| format!("no answer of {server} within {CONNECT_WITHIN:?}"))?
        .map_err(|error| format!("cannot connect to {server}: {error}"))?;
    let broken = |error: hyper::Error| format!("the conversation with {server} broke off: {error}");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let mut connection = JoinSet::from_iter([async move { drop(connection.await) }]);
    let response = sender.send_request(request).await.map_err(broken)?;
    let status = response.status();
    // What it says besides is read so that the connection ends in order, and not kept; but not for ever.
    let (mut body, mut read) = (response.into_body(), 0);
    while let Some(Ok(frame)) = body.frame().await {
        read += frame.data_ref().map_or(0, hyper::body::Bytes::len);
        if read > MAX_ANSWER {
            break;
        }
    }
    connection.abort_all();
    Ok(status)
}

/// What an answer means (RFC 9110 §15).
fn classify(server: SocketAddr, status: StatusCode) -> Result<(), Failure> {
    let text = format!("{server} answered {status}");
    match status {
        _ if status.is_success() => Ok(()),
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS => {
            Err(Failure::Temporary(text))
        }
        // Another server may know the method, this one will not learn it.
        StatusCode::NOT_IMPLEMENTED | StatusCode::HTTP_VERSION_NOT_SUPPORTED => Err(Failure::Permanent(text)),
        _ if status.is_server_error() => Err(Failure::Temporary(text)),
        _ => Err(Failure::Permanent(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_answers_that_may_change_are_worth_another_try() {
        let server = "192.0.2.1:80".parse().unwrap();
        let classify = |code| classify(server, StatusCode::from_u16(code).unwrap());
        assert!(classify(201).is_ok() && classify(204).is_ok());
        assert!(
            matches!(classify(503), Err(Failure::Temporary(_)))
                && matches!(classify(429), Err(Failure::Temporary(_)))
        );
        assert!(
            matches!(classify(404), Err(Failure::Permanent(_)))
                && matches!(classify(501), Err(Failure::Permanent(_)))
                && matches!(classify(301), Err(Failure::Permanent(_)))
        );
    }
}
