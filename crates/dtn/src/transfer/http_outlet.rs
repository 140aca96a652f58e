//! Transfers become HTTP PUTs.

use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::block_in_place;

use crate::app::Reading;
use crate::node::Node;
use crate::store::Record;

use super::envelope::{Envelope, NoTransfer};
use super::outlet::{Failure, Outlet};

/// How long a server may take to be connected.
const CONNECT_WITHIN: Duration = Duration::from_secs(30);
/// How long one attempt may take, the payload included.
const ANSWER_WITHIN: Duration = Duration::from_secs(3600);

/// See the module.
#[derive(Debug)]
pub(super) struct HttpOutlet {
    server: Option<SocketAddr>,
}

impl HttpOutlet {
    /// An outlet to one server, or to that which each transfer names.
    pub(super) fn new(server: Option<SocketAddr>) -> Self {
        Self { server }
    }
}

impl Outlet for HttpOutlet {
    async fn deliver(&self, node: &Node, record: &Record) -> Result<(), Failure> {
        let mut payload = node.store().read(&record.payload);
        let (envelope, head) =
            block_in_place(|| Envelope::read(&mut payload)).map_err(|error| match error {
                NoTransfer::Read(_) => Failure::ForNow(error.to_string()),
                NoTransfer::NotAPut(_) => Failure::ForGood(error.to_string()),
            })?;
        let server = self.server.or(envelope.server).ok_or_else(|| {
            Failure::ForGood("it names no server; say server = \"ADDRESS:PORT\" in the outlet for what comes from a folder".into())
        })?;
        let len = record.bundle.payload_len.saturating_sub(head as u64);
        let body = Reading::new(payload, Some(len), |_| {});
        let status = put(server, &envelope, body).await.map_err(Failure::ForNow)?;
        verdict(server, status)
    }
}

async fn put<B>(server: SocketAddr, envelope: &Envelope, body: B) -> Result<StatusCode, String>
where
    B: hyper::body::Body<Data = hyper::body::Bytes, Error = std::io::Error> + Send + Unpin + 'static,
{
    let stream = tokio::time::timeout(CONNECT_WITHIN, TcpStream::connect(server))
        .await
        .map_err(|_| format!("no answer of {server} within {CONNECT_WITHIN:?}"))?
        .map_err(|error| format!("cannot connect to {server}: {error}"))?;
    let broken = |error: hyper::Error| format!("the conversation with {server} broke off: {error}");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    let connection = tokio::spawn(connection);
    let mut request = Request::put(envelope.target.as_str());
    for (name, value) in &envelope.fields {
        request = request.header(name.as_str(), value.as_slice());
    }
    if !envelope.fields.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        request = request.header("host", server.to_string());
    }
    let request = request.body(body).map_err(|error| format!("it makes no request: {error}"))?;
    let answered = async {
        let response = sender.send_request(request).await.map_err(broken)?;
        let status = response.status();
        // What it says besides is read so that the connection ends in order, and not kept.
        let mut body = response.into_body();
        while let Some(Ok(_)) = body.frame().await {}
        Ok(status)
    };
    let outcome = tokio::time::timeout(ANSWER_WITHIN, answered).await;
    connection.abort();
    outcome.map_err(|_| format!("{server} has not answered within {ANSWER_WITHIN:?}"))?
}

/// What an answer means (RFC 9110 §15).
fn verdict(server: SocketAddr, status: StatusCode) -> Result<(), Failure> {
    let text = format!("{server} answered {status}");
    match status {
        _ if status.is_success() => Ok(()),
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS => {
            Err(Failure::ForNow(text))
        }
        _ if status.is_server_error() => Err(Failure::ForNow(text)),
        _ => Err(Failure::ForGood(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_answers_that_may_change_are_worth_another_try() {
        let server = "192.0.2.1:80".parse().unwrap();
        let verdict = |code| verdict(server, StatusCode::from_u16(code).unwrap());
        assert!(verdict(201).is_ok() && verdict(204).is_ok());
        assert!(
            matches!(verdict(503), Err(Failure::ForNow(_)))
                && matches!(verdict(429), Err(Failure::ForNow(_)))
        );
        assert!(
            matches!(verdict(404), Err(Failure::ForGood(_)))
                && matches!(verdict(301), Err(Failure::ForGood(_)))
        );
    }
}
