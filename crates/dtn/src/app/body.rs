//! A stored payload as the body of an answer.

use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::task::JoinHandle;

use crate::node::Node;
use crate::store::{Key, PayloadReader};

/// What an application has, after the last byte of a bundle, to acknowledge it.
const GRACE: Duration = Duration::from_secs(60);
/// Bytes that are read from the disk at once.
const PART: usize = 256 * 1024;
/// A payload on its way to an application. When it ends, the application has some time to acknowledge it; when the application goes away
/// before, the bundle is another's at once. One part is read ahead; who reads slowly holds no thread.
pub(crate) struct PayloadBody {
    reading: Option<JoinHandle<(PayloadReader, io::Result<Bytes>)>>,
    left: u64,
    lease: Lease,
}

/// As long as it lives, the bundle is an application's.
struct Lease {
    node: Node,
    key: Key,
    number: u64,
    /// What the application has after the last byte to acknowledge it.
    grace: Duration,
}

impl PayloadBody {
    pub(crate) fn new(node: Node, key: Key, payload: PayloadReader, len: u64) -> Self {
        let number = node.lease(key);
        let grace = if len == 0 { GRACE } else { Duration::ZERO };
        Self { reading: Some(read(payload)), left: len, lease: Lease { node, key, number, grace } }
    }
}

fn read(mut payload: PayloadReader) -> JoinHandle<(PayloadReader, io::Result<Bytes>)> {
    tokio::task::spawn_blocking(move || {
        let mut part = vec![0; PART];
        let outcome = payload.read(&mut part).map(|len| {
            part.truncate(len);
            Bytes::from(part)
        });
        (payload, outcome)
    })
}

impl Body for PayloadBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let Some(reading) = &mut self.reading else { return Poll::Ready(None) };
        let outcome = std::task::ready!(Pin::new(reading).poll(context));
        self.reading = None;
        let (payload, part) = outcome.map_err(io::Error::other)?;
        match part {
            Ok(bytes) if bytes.is_empty() => Poll::Ready(None),
            Ok(bytes) => {
                self.left = self.left.saturating_sub(bytes.len() as u64);
                if self.left > 0 {
                    self.reading = Some(read(payload));
                } else {
                    self.lease.grace = GRACE;
                }
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Err(error) => Poll::Ready(Some(Err(error))),
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let (node, key, number, grace) = (self.node.clone(), self.key, self.number, self.grace);
        if grace.is_zero() {
            return node.end_lease(key, number);
        }
        // Without a runtime the node ends, and its next start has the bundle for whoever asks.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                tokio::time::sleep(grace).await;
                node.end_lease(key, number);
            });
        }
    }
}
