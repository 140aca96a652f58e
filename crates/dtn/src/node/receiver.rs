//! Bundles on their way into the store.

use crate::Eid;
use crate::bundle::report::{ReasonCode, Status};
use crate::bundle::{Bundle, Decoder, Malformed, Piece, Unprocessable};
use crate::convergence::{Incoming, Outcome, Refusal};
use crate::store::{PayloadWriter, StoreError};

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
    /// Another has brought the same bundle at the same time, and it could not be stored.
    #[error("the same bundle came twice at a time, and could not be stored; send it again")]
    Again,
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
    head: Option<Received>,
    is_complete: bool,
}

/// A bundle whose head has arrived.
struct Received {
    bundle: Bundle,
    fate: Fate,
    /// The reason for which a block asks for a reception report.
    report: Option<ReasonCode>,
}

/// What becomes of a bundle when all of it has arrived.
enum Fate {
    Kept(PayloadWriter),
    /// It is deleted for this reason. It is received all the same: whoever is refused it keeps it and offers
    /// it again.
    Deleted(ReasonCode),
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
        let folder = self.node.store().folder().to_owned();
        let (done, outcome) = std::sync::mpsc::sync_channel(1);
        self.submit(move |result| drop(done.send(result)));
        outcome.recv().unwrap_or_else(|_| Err(StoreError::Stopped(folder).into()))
    }

    /// The same without waiting: when `done` says so, the node is responsible for the bundle. Blocks on the
    /// disk while a payload that is a file is brought there.
    pub fn submit(self, done: impl FnOnce(Result<(), Refused>) + Send + 'static) {
        let Self { node, mut bundle, writer } = self;
        bundle.payload_len = writer.len();
        match writer.finish() {
            Ok(payload) => {
                let counting = node.clone();
                node.accept(bundle, payload, None, move |outcome| {
                    counting.0.counters.originated.add(u64::from(outcome.is_ok()));
                    done(outcome);
                });
            }
            Err(error) => done(Err(error.into())),
        }
    }
}

impl PeerReceiver {
    pub(crate) fn new(node: Node, peer: Eid) -> Self {
        Self { node, peer, decoder: Decoder::new(), head: None, is_complete: false }
    }

    fn take(&mut self, mut bytes: &[u8]) -> Result<(), Refused> {
        loop {
            let (consumed, piece) = self.decoder.feed(bytes)?;
            match piece {
                Piece::More => return Ok(()),
                Piece::Head(bundle) => self.head = Some(self.examine(*bundle)?),
                Piece::Payload(part) => {
                    if let Some(Received { fate: Fate::Kept(writer), .. }) = &mut self.head {
                        writer.write(part)?;
                    }
                }
                Piece::End => self.is_complete = true,
            }
            bytes = &bytes[consumed..];
        }
    }

    /// Decides on a bundle before its payload arrives (RFC 9171 §5.6).
    fn examine(&self, mut bundle: Bundle) -> Result<Received, Refused> {
        if self.is_known(&bundle) {
            return Err(Refused::Known);
        }
        let now = clock();
        let Unprocessable { report, delete } = bundle.process_unknown_blocks();
        let is_beyond = bundle.hops.is_some_and(|hops| hops.count > hops.limit);
        let why = if bundle.expires(now) <= now {
            Some(ReasonCode::LIFETIME_EXPIRED)
        } else {
            is_beyond.then_some(ReasonCode::HOP_LIMIT_EXCEEDED).or(delete)
        };
        let fate = match why {
            Some(why) => Fate::Deleted(why),
            None => Fate::Kept(self.open(&bundle)?),
        };
        Ok(Received { bundle, fate, report })
    }

    fn is_known(&self, bundle: &Bundle) -> bool {
        let (node, id) = (&self.node, &bundle.id);
        if node.passed_on().is_repeated_by(id, &self.peer) {
            return true;
        }
        // What comes back may still be in the index, although it has gone.
        if node.knows(id) && !node.passed_on().went_to(id).is_empty() {
            node.remove_acknowledged(None);
        }
        node.knows(id)
    }

    fn open(&self, bundle: &Bundle) -> Result<PayloadWriter, Refused> {
        let head_bytes =
            bundle.encoded_len().saturating_sub(bundle.payload_len) + self.node.queue().head_bytes();
        if head_bytes > MAX_HEADS {
            return Err(Refused::NoMemory(head_bytes));
        }
        Ok(self.node.store().begin(Some(bundle.payload_len))?)
    }

    /// Hands the bundle over; `done` learns what becomes of it.
    fn commit(self, done: impl FnOnce(Result<(), Refused>) + Send + 'static) {
        let Self { node, peer, head, is_complete, .. } = self;
        let (Some(Received { bundle, fate, report }), true) = (head, is_complete) else {
            let why = "the transfer ended before the bundle was complete";
            return done(Err(Refused::Invalid(why.into())));
        };
        let (len, counting) = (bundle.payload_len, node.clone());
        let asked = report.map(|why| (bundle.clone(), why));
        let done = move |outcome: Result<(), Refused>| {
            if outcome.is_ok() {
                counting.0.counters.received.add(1);
                counting.0.counters.received_bytes.add(len);
                // Only of a new bundle.
                if let Some((bundle, why)) = asked {
                    counting.report_anyway(&bundle, Status::Received, why);
                }
            }
            done(outcome);
        };
        match fate {
            Fate::Kept(writer) => match writer.finish() {
                Ok(payload) => node.accept(bundle, payload, Some(peer), done),
                Err(error) => done(Err(error.into())),
            },
            Fate::Deleted(why) => node.delete_received(bundle, why, done),
        }
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
            Refused::Again => Refusal::Retransmit,
            _ => Refusal::NotAcceptable,
        }
    }
}

impl Incoming for PeerReceiver {
    fn write(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        self.take(bytes).map_err(|why| Self::refusal(&self.node, &self.peer, &why))
    }

    fn finish(self: Box<Self>, outcome: Outcome) {
        let (node, peer) = (self.node.clone(), self.peer.clone());
        self.commit(move |result| {
            outcome.tell(result.map_err(|why| Self::refusal(&node, &peer, &why)));
        });
    }
}
