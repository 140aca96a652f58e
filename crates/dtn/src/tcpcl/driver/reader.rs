//! The task that reads, and passes transfers to the agent.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};

use super::{Reader, Shared};
use crate::Eid;
use crate::convergence::{Incoming, Outcome, Refusal, blocking};
use crate::tcpcl::message::MAX_HEAD;
use crate::tcpcl::session::Event;
use crate::tcpcl::settings::EndedBy;

/// Bytes per read. The buffer has room for one more message without data.
const READ_BUFFER: usize = 256 << 10;
/// How often a reader that waits for the disk looks whether its session is over.
const CONGESTION_CHECK: Duration = Duration::from_millis(100);
/// The most bytes that are read after the end, so that closing does not reset the connection.
const MAX_AFTER_END: usize = 1 << 20;

/// Ends the session if the reader panics.
struct Failed<'a>(&'a Shared);

impl Drop for Failed<'_> {
    fn drop(&mut self) {
        let text = format!("the session with {} failed in this node; its log says where", self.0.place);
        self.0.lock().abort(EndedBy::Us, text);
        self.0.wake.notify_one();
    }
}

/// Reads until the session is over or the peer has closed.
pub(super) async fn read(shared: Arc<Shared>, mut reader: Reader) {
    let mut buffer = vec![0; READ_BUFFER + MAX_HEAD].into_boxed_slice();
    let mut filled = 0;
    let _guard = Failed(&shared);
    let mut input = InputHandler { shared: &shared, peer: None, incoming: None };
    while !shared.is_over() {
        match read_some(&mut reader, &mut buffer[filled..]).await {
            Ok(0) => shared.ended(),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => shared.ended(),
            Err(error) => shared.failed("reading", &error),
            Ok(len) => {
                filled += len;
                loop {
                    let used = blocking(|| input.take(&buffer[..filled]));
                    buffer.copy_within(used..filled, 0);
                    filled -= used;
                    if !shared.lock().is_congested() {
                        break;
                    }
                    shared.wake.notify_one();
                    until_decongested(&shared).await;
                }
            }
        }
        shared.wake.notify_one();
    }
    drop(input);
    let mut left = MAX_AFTER_END;
    while let Ok(len @ 1..) = read_some(&mut reader, &mut buffer).await
        && len < left
    {
        left -= len;
    }
}

/// Waits until transfers have an outcome. Meanwhile nothing is read, so that the peer's TCP has to wait.
async fn until_decongested(shared: &Shared) {
    shared.lock().set_busy(true, shared.now());
    while shared.lock().is_congested() {
        // The session may end by itself.
        let _ = tokio::time::timeout(CONGESTION_CHECK, shared.resolved.notified()).await;
    }
    shared.lock().set_busy(false, shared.now());
}

/// Reads all available bytes: at least one, or the end. TLS returns single records, which would be too many
/// calls of the agent.
async fn read_some(reader: &mut Reader, buffer: &mut [u8]) -> io::Result<usize> {
    poll_fn(|context| {
        let mut read = ReadBuf::new(buffer);
        loop {
            let before = read.filled().len();
            match Pin::new(&mut *reader).poll_read(context, &mut read) {
                Poll::Pending if before > 0 => return Poll::Ready(Ok(before)),
                Poll::Pending => return Poll::Pending,
                // The next read returns the error again.
                Poll::Ready(Err(_)) if before > 0 => return Poll::Ready(Ok(before)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) if read.filled().len() == before || read.remaining() == 0 => {
                    return Poll::Ready(Ok(read.filled().len()));
                }
                Poll::Ready(Ok(())) => {}
            }
        }
    })
    .await
}

/// Passes input to the agent.
struct InputHandler<'a> {
    shared: &'a Arc<Shared>,
    peer: Option<Eid>,
    incoming: Option<Box<dyn Incoming>>,
}

impl InputHandler<'_> {
    /// Processes the complete messages in `input`; returns the number of bytes.
    fn take(&mut self, input: &[u8]) -> usize {
        let shared = self.shared;
        shared.lock().set_busy(true, shared.now());
        let mut used = 0;
        while !shared.lock().is_congested() {
            let (len, event) = shared.lock().receive(&input[used..], shared.now());
            used += len;
            match event {
                Some(event) => self.on_event(event),
                None if len == 0 => break,
                None => {}
            }
            if used == input.len() && shared.is_over() {
                break;
            }
        }
        shared.lock().set_busy(false, shared.now());
        used
    }

    fn on_event(&mut self, event: Event<'_>) {
        let (shared, agent) = (self.shared, &self.shared.agent);
        match (event, self.peer.clone()) {
            (Event::Introduced(peer), _) => self.admit(peer),
            (Event::Begin { announced }, Some(peer)) => match agent.receive(&peer, announced) {
                Ok(incoming) => self.incoming = Some(incoming),
                Err(why) => self.refuse(why),
            },
            (Event::Data(bytes), _) => {
                let written = self.incoming.as_mut().map_or(Err(Refusal::Retransmit), |i| i.write(bytes));
                written.unwrap_or_else(|why| self.refuse(why));
            }
            (Event::Complete(ticket), _) => {
                let later = Arc::clone(shared);
                let outcome = Outcome::new(move |outcome| {
                    let now = later.now();
                    later.lock().finished(ticket, outcome, now);
                    later.wake.notify_one();
                    later.resolved.notify_one();
                });
                // Without one, the outcome is dropped: it has to be sent again.
                if let Some(incoming) = self.incoming.take() {
                    incoming.finish(outcome);
                }
            }
            (Event::Abandoned, _) => self.incoming = None,
            (Event::Sent(handle), Some(peer)) => agent.sent(&peer, handle),
            (Event::Refused(handle, why), Some(peer)) => agent.refused(&peer, handle, why),
            // There are no transfers before the peer is admitted, and TLS starts before this task.
            (Event::StartTls | Event::Begin { .. } | Event::Sent(_) | Event::Refused(..), _) => {}
        }
    }

    fn admit(&mut self, peer: Eid) {
        let shared = self.shared;
        let proven = shared.lock().proven().cloned();
        match shared.agent.admit(&peer, proven.as_ref()) {
            Ok(()) => {
                shared.lock().admit(shared.now());
                shared.established.notify_one();
                self.peer = Some(peer);
            }
            Err(why) => shared.lock().reject_peer(&why),
        }
    }

    fn refuse(&mut self, why: Refusal) {
        self.incoming = None;
        self.shared.lock().refuse(why);
    }
}
