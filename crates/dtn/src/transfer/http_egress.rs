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

/// Timeout of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout without progress, and of the answer.
const STALL_TIMEOUT: Duration = Duration::from_secs(600);
/// The most bytes of a reply's body that are read.
const MAX_ANSWER: usize = 64 * 1024;

/// HTTP servers that receive PUTs.
#[derive(Debug)]
pub(super) struct HttpEgress {
    server: Option<SocketAddr>,
    to: Vec<Network>,
}

/// A payload that counts its bytes, and blocks on the disk without blocking other tasks.
struct ProgressReader<R> {
    payload: R,
    bytes: Arc<AtomicU64>,
}

impl HttpEgress {
    /// An outlet to one server, or to the servers that transfers name, if they are in these networks.
    pub(super) fn new(server: Option<SocketAddr>, to: Vec<Network>) -> Self {
        Self { server, to }
    }

    fn server(&self, envelope: &Envelope) -> Result<SocketAddr, Failure> {
        match (self.server, envelope.server) {
            (Some(server), _) => Ok(server),
            (None, Some(server)) if network::allows(&self.to, server.ip()) => Ok(server),
            (None, Some(server)) => Err(Failure::Permanent(format!(
                "{server} is in none of the networks in this outlet's key to"
            ))),
            (None, None) => Err(Failure::Permanent(
                "it names no server; say server = \"ADDRESS:PORT\" in the outlet for what comes from a folder".into(),
            )),
        }
    }
}

impl Egress for HttpEgress {
    fn target(&self, envelope: &Envelope) -> Result<String, Failure> {
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
                Err(Failure::Temporary(format!("{server} made no progress for {STALL_TIMEOUT:?}")))
            }
        }
    }
}

/// Completes when no bytes have been sent for a while.
async fn stall(bytes: &AtomicU64) {
    let mut before = None;
    loop {
        let now = bytes.load(Ordering::Relaxed);
        if before.replace(now) == Some(now) {
            return;
        }
        tokio::time::sleep(STALL_TIMEOUT).await;
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
    request.body(body).map_err(|error| Failure::Permanent(format!("cannot make a request of it: {error}")))
}

async fn put<B>(server: SocketAddr, request: Request<B>) -> Result<StatusCode, String>
where
    B: hyper::body::Body<Data = hyper::body::Bytes, Error = io::Error> + Send + Unpin + 'static,
{
    let stream = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(server))
        .await
        .map_err(|_| format!("no answer from {server} within {CONNECT_TIMEOUT:?}"))?
        .map_err(|error| format!("cannot connect to {server}: {error}"))?;
    let broken = |error: hyper::Error| format!("the connection to {server} failed: {error}");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let mut connection = JoinSet::from_iter([async move { drop(connection.await) }]);
    let response = sender.send_request(request).await.map_err(broken)?;
    let status = response.status();
    // The body is read, up to a limit, so that the connection closes in order.
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

/// The meaning of a status (RFC 9110 §15).
fn classify(server: SocketAddr, status: StatusCode) -> Result<(), Failure> {
    let text = format!("{server} answered {status}");
    match status {
        _ if status.is_success() => Ok(()),
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS => {
            Err(Failure::Temporary(text))
        }
        // The server does not support the method; a retry does not help.
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
