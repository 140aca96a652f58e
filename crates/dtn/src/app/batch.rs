//! Several bundles in one request or reply: for each a line, a JSON object, and the bytes of its payload.
//!
//! ```text
//! {"payload_bytes":5,"destination":"dtn://train/files"}
//! hello{"payload_bytes":3}
//! you
//! ```
//!
//! The keys of a line are those of the query of a single request or the headers of a single reply; what a line
//! does not say, the query says.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bentpipe_http::Failure;
use http_body_util::BodyExt;
use hyper::body::{Bytes, Frame};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::task::block_in_place;

use crate::Eid;
use crate::bundle::FileName;
use crate::node::{Node, Refused, SendOptions};
use crate::store::Record;

use super::body::{Lease, PayloadBody};

/// The media type.
pub(super) const MEDIA_TYPE: &str = "application/vnd.bentpipe.bundles";
/// The most bundles of a request.
const MAX_BUNDLES: usize = 10_000;
/// The longest line, bytes.
const MAX_LINE: usize = 4096;
/// The most bundles of a request that are on their way to the disk at a time.
const MAX_PENDING: usize = 1024;
/// A payload up to this length is read as a whole, bytes.
const SMALL: u64 = 64 << 10;
/// A reply has no more than about so many bytes of small payloads.
const MAX_SMALL: usize = 1 << 20;

/// The line of a bundle that is sent.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SendLine {
    payload_bytes: u64,
    destination: Option<Eid>,
    name: Option<FileName>,
}

/// What became of a bundle of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Accepted {
    /// It is in the store.
    Sent(super::Sent),
    /// It is not.
    Refused {
        /// Why.
        error: String,
    },
}

/// The line of a bundle that is delivered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryLine {
    /// Its number in the node's store, by which it is acknowledged.
    pub key: u64,
    /// Its ID.
    pub id: String,
    /// The endpoint that sent it.
    pub source: String,
    /// The endpoint that it was sent to.
    pub destination: String,
    /// When it was made, milliseconds since 2000 by the source's clock.
    pub created_ms: u64,
    /// The name of the file that it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Bytes of payload.
    pub payload_bytes: u64,
}

/// Sends all bundles of a body. The answer comes when all of them are in the store, or refused, in their order.
///
/// # Errors
/// The body is not what it should be. What came before that is accepted; the text says how many.
pub(super) async fn send(node: &Node, options: &SendOptions, body: Body) -> Result<Vec<Accepted>, Failure> {
    let mut input = Input { body, rest: Bytes::new() };
    let (mut pending, mut done) = (VecDeque::new(), Vec::new());
    let failed = loop {
        if done.len() + pending.len() >= MAX_BUNDLES {
            break input.line().await.map_or_else(Some, |line| line.map(|_| too_many()));
        }
        match next(node, options, &mut input).await {
            Ok(Some(receipt)) => pending.push_back(receipt),
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
        if pending.len() >= MAX_PENDING
            && let Some(receipt) = pending.pop_front()
        {
            done.push(outcome(receipt).await);
        }
    };
    for receipt in pending {
        done.push(outcome(receipt).await);
    }
    match failed {
        None => Ok(done),
        Some(error) => {
            let sent = done.iter().filter(|bundle| matches!(bundle, Accepted::Sent(_))).count();
            Err(Failure::bad_request(format!(
                "{error}; of the {} bundles before, {sent} were accepted",
                done.len()
            )))
        }
    }
}

fn too_many() -> String {
    format!("a request has at most {MAX_BUNDLES} bundles")
}

/// A bundle that has been handed over.
struct Receipt {
    sent: super::Sent,
    outcome: oneshot::Receiver<Result<(), Refused>>,
}

async fn outcome(receipt: Receipt) -> Accepted {
    let stopped = || Err(Refused::Invalid("the node is stopping".into()));
    match receipt.outcome.await.unwrap_or_else(|_| stopped()) {
        Ok(()) => Accepted::Sent(receipt.sent),
        Err(error) => Accepted::Refused { error: error.to_string() },
    }
}

/// Reads the next bundle and hands it over. What the node refuses is read to its end, and is no error here.
async fn next(node: &Node, options: &SendOptions, input: &mut Input) -> Result<Option<Receipt>, String> {
    let Some(line) = input.line().await? else { return Ok(None) };
    let line: SendLine = serde_json::from_slice(&line)
        .map_err(|error| format!("{:?} is no line of a bundle: {error}", String::from_utf8_lossy(&line)))?;
    let options = SendOptions {
        destination: line.destination.unwrap_or_else(|| options.destination.clone()),
        file_name: line.name.or_else(|| options.file_name.clone()),
        ..options.clone()
    };
    let (done, outcome) = oneshot::channel();
    let mut id = String::new();
    let mut receiver = node.bundle(&options).and_then(|bundle| {
        id = bundle.id.to_string();
        block_in_place(|| node.begin(bundle, Some(line.payload_bytes)))
    });
    let mut left = line.payload_bytes;
    while left > 0 {
        let part = input.part(left).await?;
        left -= part.len() as u64;
        if let Ok(writing) = &mut receiver
            && let Err(error) = block_in_place(|| writing.write(&part))
        {
            receiver = Err(error);
        }
    }
    let tell = move |result| drop(done.send(result));
    match receiver {
        Ok(receiver) => block_in_place(|| receiver.submit(tell)),
        Err(error) => tell(Err(error)),
    }
    Ok(Some(Receipt { sent: super::Sent { id, payload_bytes: line.payload_bytes }, outcome }))
}

/// A body as lines and bytes.
struct Input {
    body: Body,
    rest: Bytes,
}

impl Input {
    /// The next line, without its end; `None` at the end of the body.
    async fn line(&mut self) -> Result<Option<Vec<u8>>, String> {
        let mut line = Vec::new();
        loop {
            if self.rest.is_empty() && !self.fill().await? {
                return if line.is_empty() { Ok(None) } else { Err("the body ends within a line".into()) };
            }
            let end = self.rest.iter().position(|byte| *byte == b'\n');
            let part = self.rest.split_to(end.map_or(self.rest.len(), |end| end + 1));
            line.extend_from_slice(&part);
            if line.len() > MAX_LINE {
                return Err(format!("a line has more than {MAX_LINE} bytes"));
            }
            if end.is_some() {
                line.pop();
                return Ok(Some(line));
            }
        }
    }

    /// The next bytes, at most so many.
    async fn part(&mut self, most: u64) -> Result<Bytes, String> {
        if self.rest.is_empty() && !self.fill().await? {
            return Err("the body ends within a payload".into());
        }
        let len = usize::try_from(most).unwrap_or(usize::MAX).min(self.rest.len());
        Ok(self.rest.split_to(len))
    }

    /// Reads on; `false` at the end.
    async fn fill(&mut self) -> Result<bool, String> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|error| format!("the body broke off: {error}"))?;
            if let Ok(data) = frame.into_data()
                && !data.is_empty()
            {
                self.rest = data;
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The reply with several bundles: small ones, and at the end perhaps one that is not small.
pub(super) struct DeliveryBody {
    small: Option<Bytes>,
    leases: Vec<Lease>,
    large: Option<PayloadBody>,
}

impl DeliveryBody {
    /// The bundle, and what else can be delivered now, `most` bundles in all.
    pub(super) fn collect(node: &Node, endpoint: &Eid, first: Record, most: usize) -> Self {
        let mut all = Self { small: None, leases: Vec::new(), large: None };
        let (mut bytes, mut record, mut count) = (Vec::new(), first, 1);
        loop {
            let lease = Lease::new(node.clone(), record.key);
            let before = bytes.len();
            bytes.extend(line(&record));
            let mut payload = node.store().read(&record.payload);
            let len = record.bundle.payload_len;
            if len > SMALL {
                all.large = Some(PayloadBody::new(lease, payload, len));
                break;
            }
            match payload.read_to_end(&mut bytes) {
                Ok(read) if read as u64 == len => all.leases.push(lease),
                // Dropping its lease makes it available again; others may still be read.
                outcome => {
                    tracing::error!("cannot deliver {}: {outcome:?} of {len} bytes", record.bundle.id);
                    bytes.truncate(before);
                }
            }
            if count == most || bytes.len() >= MAX_SMALL {
                break;
            }
            match node.next_delivery(endpoint) {
                Some(next) => (record, count) = (next, count + 1),
                None => break,
            }
        }
        all.small = Some(bytes.into());
        all
    }
}

fn line(record: &Record) -> Vec<u8> {
    let bundle = &record.bundle;
    let line = DeliveryLine {
        key: record.key.0,
        id: bundle.id.to_string(),
        source: bundle.id.source.to_string(),
        destination: bundle.destination.to_string(),
        created_ms: bundle.id.created.millis(),
        name: bundle.file_name.as_ref().map(ToString::to_string),
        payload_bytes: bundle.payload_len,
    };
    let mut text = serde_json::to_vec(&line).unwrap_or_default();
    text.push(b'\n');
    text
}

impl hyper::body::Body for DeliveryBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if let Some(bytes) = self.small.take() {
            self.leases.iter_mut().for_each(Lease::all_sent);
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        match &mut self.large {
            Some(large) => Pin::new(large).poll_frame(context),
            None => Poll::Ready(None),
        }
    }
}
