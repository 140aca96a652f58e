//! A stored payload as the body of a reply.

use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::task::JoinHandle;

use crate::node::Node;
use crate::store::{Key, PayloadReader};

/// How long an application may take to acknowledge a bundle after its last byte.
const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes per read from the disk.
const PART: usize = 256 * 1024;

/// A payload on its way to an application. After its end the application has some time to acknowledge it. If
/// the application disconnects before, the bundle is available to others at once. One part is read ahead; a
/// slow application holds no thread.
pub(crate) struct PayloadBody {
    reading: Option<Reading>,
    left: u64,
    lease: Lease,
}

/// What comes next of a payload.
enum Reading {
    /// All that is left of a small one: for this no other thread is woken.
    Here(io::Result<Bytes>),
    /// A part, which a thread reads that may wait for the disk.
    Part(JoinHandle<(PayloadReader, io::Result<Bytes>)>),
}

/// While it exists, an application holds the bundle.
pub(super) struct Lease {
    node: Node,
    key: Key,
    number: u64,
    /// How long the application may take to acknowledge the bundle.
    grace: Duration,
}

impl Lease {
    /// The lease of a bundle that has just been taken for an application.
    pub(super) fn new(node: Node, key: Key) -> Self {
        let number = node.lease(key);
        Self { node, key, number, grace: Duration::ZERO }
    }

    /// All of it is on its way to the application, which now has some time to acknowledge it.
    pub(super) fn all_sent(&mut self) {
        self.grace = ACKNOWLEDGE_TIMEOUT;
    }
}

impl PayloadBody {
    pub(super) fn new(mut lease: Lease, payload: PayloadReader, len: u64) -> Self {
        if len == 0 {
            lease.all_sent();
        }
        let reading = if payload.is_small() { read_all(payload) } else { read_part(payload) };
        Self { reading: Some(reading), left: len, lease }
    }
}

fn read_all(mut payload: PayloadReader) -> Reading {
    let mut all = Vec::new();
    Reading::Here(payload.read_to_end(&mut all).map(|_| all.into()))
}

fn read_part(mut payload: PayloadReader) -> Reading {
    Reading::Part(tokio::task::spawn_blocking(move || {
        let mut part = vec![0; PART];
        let outcome = payload.read(&mut part).map(|len| {
            part.truncate(len);
            Bytes::from(part)
        });
        (payload, outcome)
    }))
}

impl Body for PayloadBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let (payload, part) = match self.reading.take() {
            None => return Poll::Ready(None),
            Some(Reading::Here(all)) => (None, all),
            Some(Reading::Part(mut reading)) => match Pin::new(&mut reading).poll(context) {
                Poll::Pending => {
                    self.reading = Some(Reading::Part(reading));
                    return Poll::Pending;
                }
                Poll::Ready(outcome) => {
                    let (payload, part) = outcome.map_err(io::Error::other)?;
                    (Some(payload), part)
                }
            },
        };
        match part {
            Ok(bytes) if bytes.is_empty() => Poll::Ready(None),
            Ok(bytes) => {
                self.left = self.left.saturating_sub(bytes.len() as u64);
                if self.left == 0 {
                    self.lease.all_sent();
                } else {
                    self.reading = payload.map(read_part);
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
        self.node.end_lease(self.key, self.number, self.grace);
    }
}
