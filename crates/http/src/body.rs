//! A request's body that is read while it is sent.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};

/// Bytes per read.
const CHUNK: usize = 256 * 1024;

/// A body that is read from a source, such as a file, while it is sent. It is never in memory as a whole.
pub struct ReadBody<R, P> {
    source: R,
    left: Option<u64>,
    progress: P,
}

impl<R: io::Read, P: FnMut(u64)> ReadBody<R, P> {
    /// A body of `len` bytes, or of all that the source has. `progress` is called with the length of each
    /// chunk.
    pub fn new(source: R, len: Option<u64>, progress: P) -> Self {
        Self { source, left: len, progress }
    }
}

impl<R: io::Read + Unpin, P: FnMut(u64) + Unpin> Body for ReadBody<R, P> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let most = self.left.map_or(CHUNK, |left| left.min(CHUNK as u64) as usize);
        let mut chunk = vec![0; most];
        // This may block on a disk, as any command that copies a file; nothing else waits for this thread.
        let len = match self.source.read(&mut chunk) {
            Ok(0) if self.left.is_some_and(|left| left > 0) => {
                return Poll::Ready(Some(Err(io::Error::other("the source shrank while it was sent"))));
            }
            Ok(0) => return Poll::Ready(None),
            Ok(len) => len,
            Err(error) => return Poll::Ready(Some(Err(error))),
        };
        chunk.truncate(len);
        self.left = self.left.map(|left| left - len as u64);
        (self.progress)(len as u64);
        Poll::Ready(Some(Ok(Frame::data(chunk.into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
