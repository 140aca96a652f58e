//! The task that writes control messages and the segments of transfers.

use std::io;

use tokio::io::AsyncWriteExt;
use tokio::sync::watch;

use super::{CLOSE_TIMEOUT, Shared, Writer, shutdown_requested, until_over};
use crate::Eid;
use crate::convergence::{Outgoing, Refusal, blocking};
use crate::tcpcl::settings::EndedBy;

/// Small transfers are written together up to this size, bytes.
const BATCH: usize = 16 << 10;

/// Writes the remaining messages, with a timeout.
pub(super) async fn flush_and_close(shared: &Shared, writer: &mut Writer) {
    let mut out = Vec::new();
    shared.lock().take_control(&mut out, shared.now());
    let say = async {
        writer.write_all(&out).await?;
        writer.flush().await?;
        writer.shutdown().await
    };
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, say).await;
}

/// Writes until the session is over. Returns whether the last write was complete, so that another can follow.
pub(super) async fn write(
    shared: &Shared,
    writer: &mut Writer,
    shutdown: &mut watch::Receiver<bool>,
) -> bool {
    let mut buffer = Vec::new();
    let mut sending: Option<Box<dyn Outgoing>> = None;
    let mut terminating = *shutdown.borrow_and_update();
    if terminating {
        shared.lock().terminate(shared.now());
    }
    while !shared.is_over() {
        buffer.clear();
        loop {
            let before = buffer.len();
            if !fill(shared, &mut buffer, &mut sending) {
                return true;
            }
            // Small transfers are batched.
            if buffer.len() == before || buffer.len() >= BATCH {
                break;
            }
        }
        if buffer.is_empty() {
            wait(shared, shutdown, &mut terminating).await;
        } else if !put(shared, writer, &buffer, shutdown, &mut terminating).await {
            return false;
        }
    }
    true
}

/// Appends the next bytes to write, at most a segment. `false` if the session must end here.
fn fill(shared: &Shared, buffer: &mut Vec<u8>, sending: &mut Option<Box<dyn Outgoing>>) -> bool {
    let (limit, peer) = {
        let mut session = shared.lock();
        session.take_control(buffer, shared.now());
        if sending.as_ref().map(|outgoing| outgoing.handle()) != session.sending() {
            // It was refused.
            *sending = None;
        }
        (session.may_begin(), session.peer().cloned())
    };
    if let (None, Some(limit), Some(peer)) = (&*sending, limit, &peer) {
        *sending = begin(shared, peer, limit);
    }
    let Some(outgoing) = sending else { return true };
    let Some(next) = shared.lock().segment(buffer, shared.now()) else { return true };
    if let Err(error) = blocking(|| append(outgoing.as_mut(), buffer, next.len)) {
        // RFC 9174 has no other way to abort a transfer of one's own.
        let text = format!("a bundle for {} could not be read from the store: {error}", shared.place);
        shared.lock().abort(EndedBy::Us, text);
        buffer.clear();
        return false;
    }
    if next.end {
        *sending = None;
    }
    true
}

fn begin(shared: &Shared, peer: &Eid, limit: u64) -> Option<Box<dyn Outgoing>> {
    let outgoing = blocking(|| shared.agent.next(peer, limit))?;
    let (handle, len) = (outgoing.handle(), outgoing.len());
    if len > limit {
        tracing::error!(place = %shared.place, len, limit, "a bundle is longer than what was asked for");
        blocking(|| shared.agent.refused(peer, handle, Refusal::NoResources));
        return None;
    }
    // Meanwhile the session may have ended.
    let begun = {
        let mut session = shared.lock();
        let open = session.may_begin().is_some();
        if open {
            session.begin(handle, len);
        }
        open
    };
    if !begun {
        blocking(|| shared.agent.returned(peer, handle));
    }
    begun.then_some(outgoing)
}

fn append(outgoing: &mut dyn Outgoing, buffer: &mut Vec<u8>, len: usize) -> io::Result<()> {
    let begin = buffer.len();
    buffer.resize(begin + len, 0);
    let mut left = &mut buffer[begin..];
    while !left.is_empty() {
        match outgoing.read(left)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => left = left.get_mut(read..).unwrap_or_default(),
        }
    }
    Ok(())
}

/// Waits until there may be something to write.
async fn wait(shared: &Shared, shutdown: &mut watch::Receiver<bool>, terminating: &mut bool) {
    let peer = {
        let session = shared.lock();
        session.may_begin().and_then(|_| session.peer().cloned())
    };
    let ready = async {
        match &peer {
            Some(peer) => shared.agent.ready(peer).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = shared.wake.notified() => {}
        () = ready => {}
        () = shared.tick() => {}
        () = shutdown_requested(shutdown, *terminating) => end_in_order(shared, terminating),
    }
}

/// Writes the buffer; `false` if that was not possible or the session ended meanwhile.
async fn put(
    shared: &Shared,
    writer: &mut Writer,
    buffer: &[u8],
    shutdown: &mut watch::Receiver<bool>,
    terminating: &mut bool,
) -> bool {
    let whole = async {
        writer.write_all(buffer).await?;
        writer.flush().await
    };
    tokio::pin!(whole);
    loop {
        tokio::select! {
            biased;
            written = &mut whole => {
                if let Err(error) = &written {
                    // The reader may know better why the other end has closed: it may have said so.
                    let _ = tokio::time::timeout(CLOSE_TIMEOUT / 4, until_over(shared)).await;
                    shared.failed("writing", error);
                }
                return written.is_ok();
            }
            () = shared.tick() => {}
            () = shared.wake.notified() => {}
            () = shutdown_requested(shutdown, *terminating) => end_in_order(shared, terminating),
        }
        if shared.is_over() {
            // A last chance, so that the reason for the end can follow what is half written.
            return matches!(tokio::time::timeout(CLOSE_TIMEOUT, &mut whole).await, Ok(Ok(())));
        }
    }
}

fn end_in_order(shared: &Shared, terminating: &mut bool) {
    *terminating = true;
    shared.lock().terminate(shared.now());
}
