//! A stored payload as the body of an answer.

use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::sync::mpsc;

use crate::node::Node;
use crate::store::{Key, PayloadReader};

/// Bytes that are read from the disk at once.
const PART: usize = 256 * 1024;
/// Parts that may wait for a slow reader.
const AHEAD: usize = 4;

/// A payload on its way to an application. When it ends, or the application goes away, the bundle is another's unless it is
/// acknowledged in time.
pub(crate) struct PayloadBody {
    parts: mpsc::Receiver<io::Result<Bytes>>,
    left: u64,
    _lease: Lease,
}

/// As long as it lives, the bundle is an application's.
struct Lease {
    node: Node,
    key: Key,
    /// What the application has after the last byte to acknowledge it.
    grace: Duration,
}

impl PayloadBody {
    pub(crate) fn new(node: Node, key: Key, payload: PayloadReader, len: u64, grace: Duration) -> Self {
        let (sender, parts) = mpsc::channel(AHEAD);
        tokio::task::spawn_blocking(move || pump(payload, &sender));
        Self { parts, left: len, _lease: Lease { node, key, grace } }
    }
}

fn pump(mut payload: PayloadReader, parts: &mpsc::Sender<io::Result<Bytes>>) {
    loop {
        let mut part = vec![0; PART];
        let outcome = payload.read(&mut part).map(|len| {
            part.truncate(len);
            Bytes::from(part)
        });
        let is_over = outcome.as_ref().map_or(true, Bytes::is_empty);
        if outcome.as_ref().is_ok_and(Bytes::is_empty) || parts.blocking_send(outcome).is_err() || is_over {
            return;
        }
    }
}

impl Body for PayloadBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let part = std::task::ready!(self.parts.poll_recv(context));
        if let Some(Ok(bytes)) = &part {
            self.left = self.left.saturating_sub(bytes.len() as u64);
        }
        Poll::Ready(part.map(|part| part.map(Frame::data)))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let (node, key, grace) = (self.node.clone(), self.key, self.grace);
        // Without a runtime the node ends, and its next start has the bundle for whoever asks.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                tokio::time::sleep(grace).await;
                node.release(key);
            });
        }
    }
}
