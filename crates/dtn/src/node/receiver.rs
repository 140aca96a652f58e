//! Bundles on their way into the store.

use crate::Eid;
use crate::bundle::report::{ReasonCode, Status};
use crate::bundle::{Bundle, Decoder, Malformed, Piece};
use crate::store::{PayloadWriter, StoreError};
use crate::tcpcl::{Incoming, Refusal};

use super::{Node, clock};

/// The most bytes of blocks, payloads not counted, of all stored bundles. These blocks are in memory: usually
/// 20 MB for 100,000 bundles, but a peer may send 64 KiB with each.
const MAX_HEADS: u64 = 256 << 20;

/// A bundle of an application on its way into the store. Dropping it before [`finish`](Self::finish) removes
/// it.
#[derive(Debug)]
pub struct Receiver {
    node: Node,
    bundle: Bundle,
    writer: PayloadWriter,
}

/// Why a bundle was refused.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The node has it, or had it.
    #[error("the node has this bundle already")]
    Known,
    /// It is not a valid bundle.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// It is valid, but cannot be sent or kept.
    #[error("{0}")]
    Invalid(String),
    /// The blocks of all bundles would take too much memory.
    #[error("the blocks of all bundles would take {0} bytes of memory, the limit is {MAX_HEADS}")]
    NoMemory(u64),
    /// The store cannot take it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A bundle from another node on its way into the store.
pub(crate) struct PeerReceiver {
    node: Node,
    peer: Eid,
    decoder: Decoder,
    bundle: Option<Bundle>,
    writer: Option<PayloadWriter>,
    is_complete: bool,
}

impl Node {
    /// Begins to receive a bundle of an application. Its payload follows. Blocks on the disk.
    ///
    /// # Errors
    /// The store has no room.
    pub fn begin(&self, bundle: Bundle, announced: Option<u64>) -> Result<Receiver, Refused> {
        let writer = self.store().begin(announced)?;
        Ok(Receiver { node: self.clone(), bundle, writer })
    }
}

impl Receiver {
    /// Writes the next bytes of payload. Blocks on the disk.
    ///
    /// # Errors
    /// The store has no room.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        Ok(self.writer.write(bytes)?)
    }

    /// Completes the bundle: when this returns, the node is responsible for it. Blocks on the disk.
    ///
    /// # Errors
    /// The bundle is refused; nothing of it is stored.
    pub fn finish(self) -> Result<(), Refused> {
        let Self { node, mut bundle, writer } = self;
        bundle.payload_len = writer.len();
        node.accept(bundle, writer.finish()?, None)?;
        node.0.counters.originated.add(1);
        Ok(())
    }
}

impl PeerReceiver {
    pub(crate) fn new(node: Node, peer: Eid) -> Self {
        Self { node, peer, decoder: Decoder::new(), bundle: None, writer: None, is_complete: false }
    }

    fn take(&mut self, mut bytes: &[u8]) -> Result<(), Refused> {
        loop {
            let (consumed, piece) = self.decoder.feed(bytes)?;
            match piece {
                Piece::More => return Ok(()),
                Piece::Head(mut bundle) => {
                    self.check_head(&mut bundle)?;
                    self.writer = Some(self.node.store().begin(Some(bundle.payload_len))?);
                    self.bundle = Some(*bundle);
                }
                Piece::Payload(part) => {
                    if let Some(writer) = &mut self.writer {
                        writer.write(part)?;
                    }
                }
                Piece::End => self.is_complete = true,
            }
            bytes = &bytes[consumed..];
        }
    }

    /// Checks a bundle before its payload arrives.
    fn check_head(&self, bundle: &mut Bundle) -> Result<(), Refused> {
        if self.node.knows(&bundle.id) {
            return Err(Refused::Known);
        }
        let head_bytes =
            bundle.encoded_len().saturating_sub(bundle.payload_len) + self.node.queue().head_bytes();
        if head_bytes > MAX_HEADS {
            return Err(Refused::NoMemory(head_bytes));
        }
        let now = clock();
        if bundle.expires(now) <= now {
            self.node.report(bundle, Status::Deleted, ReasonCode::LIFETIME_EXPIRED);
            return Err(Refused::Invalid(format!("{} has expired", bundle.id)));
        }
        if let Some(hops) = bundle.hops
            && hops.count > hops.limit
        {
            self.node.report(bundle, Status::Deleted, ReasonCode::HOP_LIMIT_EXCEEDED);
            return Err(Refused::Invalid(format!("{} exceeds its hop limit", bundle.id)));
        }
        let unknown = bundle.process_unknown_blocks();
        if unknown.delete {
            self.node.report(bundle, Status::Deleted, ReasonCode::BLOCK_UNSUPPORTED);
            return Err(Refused::Invalid(format!(
                "{} has an unknown block that must be processed",
                bundle.id
            )));
        }
        if unknown.report {
            self.node.report_anyway(bundle, Status::Received, ReasonCode::BLOCK_UNSUPPORTED);
        }
        Ok(())
    }

    fn commit(self) -> Result<(), Refused> {
        let (Some(bundle), Some(writer), true) = (self.bundle, self.writer, self.is_complete) else {
            return Err(Refused::Invalid("the transfer ended before the bundle was complete".into()));
        };
        let len = bundle.payload_len;
        self.node.accept(bundle, writer.finish()?, Some(self.peer))?;
        self.node.0.counters.received.add(1);
        self.node.0.counters.received_bytes.add(len);
        Ok(())
    }

    /// Logs and counts a refusal, and returns the answer for the peer.
    fn refusal(node: &Node, peer: &Eid, why: &Refused) -> Refusal {
        let counters = &node.0.counters;
        if matches!(why, Refused::Known) {
            counters.duplicates.add(1);
            return Refusal::Completed;
        }
        counters.refused.add(1);
        tracing::warn!("refused a bundle from {peer}: {why}");
        match why {
            Refused::Store(_) | Refused::NoMemory(_) => Refusal::NoResources,
            _ => Refusal::NotAcceptable,
        }
    }
}

impl Incoming for PeerReceiver {
    fn write(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        self.take(bytes).map_err(|why| Self::refusal(&self.node, &self.peer, &why))
    }

    fn finish(self: Box<Self>) -> Result<(), Refusal> {
        let (node, peer) = (self.node.clone(), self.peer.clone());
        self.commit().map_err(|why| Self::refusal(&node, &peer, &why))
    }
}
