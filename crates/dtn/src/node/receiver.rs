//! A bundle on its way into the store.

use crate::Eid;
use crate::bundle::report::{ReasonCode, Status};
use crate::bundle::{Bundle, Decoder, Malformed, Piece};
use crate::store::{PayloadWriter, StoreError};
use crate::tcpcl::{Incoming, Refusal};

use super::{Node, clock};

/// Bytes of all blocks but payloads of the bundles in the store, which are in memory: those of 100,000 bundles are 20 MB, but a peer may
/// send bundles that have 64 KiB each.
const MAX_HEADS: u64 = 256 << 20;

/// A bundle of an application on its way into the store: what is dropped before [`finish`](Self::finish) was never there.
#[derive(Debug)]
pub struct Receiver {
    node: Node,
    bundle: Bundle,
    writer: PayloadWriter,
}

/// Why a bundle was not taken.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// It is here, or was.
    #[error("the bundle is here already")]
    Known,
    /// It is not what a bundle has to be.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// Its blocks are well, but it cannot be sent or kept.
    #[error("{0}")]
    Unusable(String),
    /// The blocks of all bundles in the store, which are in memory, are too many bytes.
    #[error("the blocks of all bundles here would be {0} bytes and may be {MAX_HEADS}")]
    NoMemory(u64),
    /// The store does not take it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A bundle of another node on its way into the store.
pub(crate) struct PeerReceiver {
    node: Node,
    peer: Eid,
    decoder: Decoder,
    bundle: Option<Bundle>,
    writer: Option<PayloadWriter>,
    is_complete: bool,
}

impl Node {
    /// Begins to take a bundle of an application, whose payload follows. Blocks on the disk.
    ///
    /// # Errors
    /// The store has no room.
    pub fn begin(&self, bundle: Bundle, announced: Option<u64>) -> Result<Receiver, Refused> {
        let writer = self.store().begin(announced)?;
        Ok(Receiver { node: self.clone(), bundle, writer })
    }
}

impl Receiver {
    /// Takes the next bytes of payload. Blocks on the disk.
    ///
    /// # Errors
    /// The store has no room.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        Ok(self.writer.write(bytes)?)
    }

    /// All is here: when this returns, the node is responsible for the bundle. Blocks on the disk.
    ///
    /// # Errors
    /// It is not, and has nothing of it.
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
                    self.look_at(&mut bundle)?;
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

    /// What can be said of a bundle before its payload has come.
    fn look_at(&self, bundle: &mut Bundle) -> Result<(), Refused> {
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
            self.node.report(bundle, Status::Deleted, ReasonCode::LifetimeExpired);
            return Err(Refused::Unusable(format!("the time of {} is over", bundle.id)));
        }
        if let Some(hops) = bundle.hops
            && hops.count > hops.limit
        {
            self.node.report(bundle, Status::Deleted, ReasonCode::HopLimitExceeded);
            return Err(Refused::Unusable(format!("{} has passed too many nodes", bundle.id)));
        }
        let unknown = bundle.process_unknown_blocks();
        if unknown.delete {
            self.node.report(bundle, Status::Deleted, ReasonCode::BlockUnsupported);
            return Err(Refused::Unusable(format!(
                "{} has a block that this node does not know and must",
                bundle.id
            )));
        }
        if unknown.report {
            self.node.report_anyway(bundle, Status::Received, ReasonCode::BlockUnsupported);
        }
        Ok(())
    }

    fn keep(self) -> Result<(), Refused> {
        let (Some(bundle), Some(writer), true) = (self.bundle, self.writer, self.is_complete) else {
            return Err(Refused::Unusable("the transfer ended before the bundle did".into()));
        };
        let len = bundle.payload_len;
        self.node.accept(bundle, writer.finish()?, Some(self.peer))?;
        self.node.0.counters.received.add(1);
        self.node.0.counters.received_bytes.add(len);
        Ok(())
    }

    /// For the log, the counters, and the other node.
    fn refusal(node: &Node, peer: &Eid, why: &Refused) -> Refusal {
        let counters = &node.0.counters;
        if matches!(why, Refused::Known) {
            counters.duplicates.add(1);
            return Refusal::Completed;
        }
        counters.refused.add(1);
        tracing::warn!("refused a bundle of {peer}: {why}");
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
        self.keep().map_err(|why| Self::refusal(&node, &peer, &why))
    }
}
