//! Decoding bundles from untrusted bytes that arrive in pieces.

use super::Bundle;
use super::head::Head;
use super::wire::Tail;

/// The longest head that a [`Decoder`] takes, bytes: it is in memory.
pub const HEAD_LIMIT: usize = 64 << 10;

/// The most blocks that a bundle may have, the primary one and the payload counted.
pub const BLOCKS_LIMIT: usize = 128;

/// Bytes that are not a bundle, or not one that this node accepts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("malformed bundle: at byte {at}: {problem}; its sender is faulty")]
pub struct Malformed {
    /// Where, bytes from the beginning.
    pub at: u64,
    /// What is wrong.
    pub problem: Problem,
}

/// What is wrong with the bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Not the CBOR that bundles are made of.
    #[error("{0}")]
    Cbor(&'static str),
    /// Its blocks are more than is kept in memory.
    #[error("the blocks before the payload are longer than {0} bytes")]
    HeadTooLong(usize),
    /// It has more than [`BLOCKS_LIMIT`] blocks.
    #[error("there are more than {BLOCKS_LIMIT} blocks")]
    TooManyBlocks,
    /// Another version of the protocol.
    #[error("the version is {0}, only 7 is supported")]
    Version(u64),
    /// A block that is not made as its type has to be.
    #[error("{0}")]
    Block(&'static str),
    /// A block's bytes have changed on the way.
    #[error("the CRC of block {0} is wrong")]
    Crc(u64),
    /// The bundle is over, the bytes are not.
    #[error("there are more bytes after the end of the bundle")]
    Trailing,
    /// The bytes are over, the bundle is not.
    #[error("the bundle ends too early")]
    Truncated,
}

/// What [`Decoder::feed`] has found.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// All input has been taken, and more is needed; or the bundle is complete.
    More,
    /// All blocks before the payload's bytes.
    Head(Box<Bundle>),
    /// Bytes of the payload.
    Payload(&'a [u8]),
    /// The bundle is complete, and its CRCs are right.
    End,
}

/// Decodes a bundle as its bytes arrive. It holds the head, of [`HEAD_LIMIT`] bytes at the most, until it is
/// complete, and nothing of the payload.
#[derive(Debug)]
pub struct Decoder {
    state: State,
    at: u64,
    limit: usize,
}

#[derive(Debug)]
enum State {
    Head(Box<Head>),
    Payload {
        left: u64,
        tail: Tail,
    },
    Tail {
        expected: Vec<u8>,
        crc_len: usize,
        seen: usize,
    },
    Done,
    /// An error has been reported; this is it.
    Failed(Malformed),
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Decoder {
    /// A decoder for one bundle.
    pub fn new() -> Self {
        Self::with_limit(HEAD_LIMIT)
    }

    /// A decoder for one bundle whose head is no longer than `limit` bytes.
    pub fn with_limit(limit: usize) -> Self {
        Self { state: State::Head(Box::default()), at: 0, limit }
    }

    /// Takes bytes: how many, and what they make. To be called with the rest until it says [`Piece::More`];
    /// an end may need no bytes, so that it comes of an empty rest too. A payload of no bytes has no
    /// [`Piece::Payload`].
    ///
    /// # Errors
    /// The bytes are not a bundle. All later calls fail with the same error.
    pub fn feed<'a>(&mut self, input: &'a [u8]) -> Result<(usize, Piece<'a>), Malformed> {
        let result = match &mut self.state {
            State::Head(_) => self.feed_head(input),
            State::Payload { left, tail } => {
                let taken = usize::try_from(*left).map_or(input.len(), |left| left.min(input.len()));
                *left -= taken as u64;
                tail.update(&input[..taken]);
                self.at += taken as u64;
                if *left == 0 {
                    self.state = State::tail(tail.clone());
                }
                Ok((taken, if taken == 0 { Piece::More } else { Piece::Payload(&input[..taken]) }))
            }
            State::Tail { .. } => self.feed_tail(input),
            State::Done if input.is_empty() => Ok((0, Piece::More)),
            State::Done => Err(Malformed { at: self.at, problem: Problem::Trailing }),
            State::Failed(error) => Err(error.clone()),
        };
        result.inspect_err(|error| self.state = State::Failed(error.clone()))
    }

    /// No more bytes come.
    ///
    /// # Errors
    /// The bundle is not complete.
    pub fn finish(&self) -> Result<(), Malformed> {
        match &self.state {
            State::Done => Ok(()),
            State::Failed(error) => Err(error.clone()),
            _ => Err(Malformed { at: self.at, problem: Problem::Truncated }),
        }
    }

    fn feed_head<'a>(&mut self, input: &'a [u8]) -> Result<(usize, Piece<'a>), Malformed> {
        let State::Head(head) = &mut self.state else { return Ok((0, Piece::More)) };
        let mut taken = 0;
        while taken < input.len() {
            let room = self.limit - head.raw.len();
            if room == 0 {
                return Err(Malformed { at: self.at, problem: Problem::HeadTooLong(self.limit) });
            }
            let rest = &input[taken..];
            let at = head.item_start();
            let (step, started) = head
                .walker
                .step(&rest[..rest.len().min(room)])
                .map_err(|what| Malformed { at, problem: Problem::Cbor(what) })?;
            taken += step;
            self.at += step as u64;
            head.raw.extend_from_slice(&rest[..step]);
            if head.is_complete_after(started)? {
                let (bundle, tail) = head.bundle()?;
                self.state = State::payload(bundle.payload_len, tail);
                return Ok((taken, Piece::Head(Box::new(bundle))));
            }
        }
        Ok((taken, Piece::More))
    }

    fn feed_tail<'a>(&mut self, input: &'a [u8]) -> Result<(usize, Piece<'a>), Malformed> {
        let State::Tail { expected, crc_len, seen } = &mut self.state else { return Ok((0, Piece::More)) };
        let mut taken = 0;
        for (byte, wanted) in input.iter().zip(&expected[*seen..]) {
            if byte != wanted {
                let problem = match *seen {
                    0 if *crc_len > 0 => Problem::Block("after the payload its CRC has to come"),
                    at if at < *crc_len => Problem::Crc(1),
                    _ => Problem::Block("after the payload block the bundle has to end"),
                };
                return Err(Malformed { at: self.at, problem });
            }
            *seen += 1;
            taken += 1;
            self.at += 1;
        }
        if *seen < expected.len() {
            return Ok((taken, Piece::More));
        }
        self.state = State::Done;
        Ok((taken, Piece::End))
    }
}

impl State {
    fn payload(left: u64, tail: Tail) -> Self {
        if left == 0 { Self::tail(tail) } else { Self::Payload { left, tail } }
    }

    fn tail(tail: Tail) -> Self {
        let breaks = usize::from(tail.block_break) + usize::from(tail.bundle_break);
        let expected = tail.finish();
        Self::Tail { crc_len: expected.len() - breaks, expected, seen: 0 }
    }
}

impl Bundle {
    /// The bundle whose [`head`](Self::head) this is, all of it and no more.
    ///
    /// # Errors
    /// It is not a head.
    pub fn decode_head(head: &[u8]) -> Result<Self, Malformed> {
        let error = |at: usize, problem| Err(Malformed { at: at as u64, problem });
        match Decoder::with_limit(usize::MAX).feed(head)? {
            (taken, Piece::Head(bundle)) if taken == head.len() => Ok(*bundle),
            (taken, Piece::Head(_)) => error(taken, Problem::Trailing),
            (taken, _) => error(taken, Problem::Truncated),
        }
    }
}
