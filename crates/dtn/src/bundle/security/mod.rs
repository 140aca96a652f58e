//! Security of bundles from their source to their destination: BPSec (RFC 9172) with its default contexts (RFC
//! 9173).
//!
//! **Integrity** is a *block integrity block* (BIB, type 11) of the context BIB-HMAC-SHA2, **confidentiality** a
//! *block confidentiality block* (BCB, type 12) of the context BCB-AES-GCM. A source adds them to a whole
//! bundle, before it is ever fragmented ([`Bundle::add_integrity`], [`Bundle::encrypt`]); its destination
//! decrypts ([`Bundle::decrypt`]) and then checks ([`Bundle::check_integrity`]) what it has joined again (RFC
//! 9172 §5.2). A block that is a target has no CRC (RFC 9173 §3.8.1, §4.8.1). All scope flags are set in what is
//! added, so that a result is of this bundle and of no other.
//!
//! **What is understood** are operations on the primary block and on the payload, HMAC with SHA-256, SHA-384
//! and SHA-512, AES-GCM with keys of 128 and 256 bits and an initialization vector of 96, and integrity blocks
//! that are encrypted. A key may come with a block, wrapped by one that both ends have ([`KeyEncryptionKey`]).
//! Other
//! contexts and other parameters are not understood, and reported as [unknown](SecurityFault::Unknown).
//!
//! **Operations of integrity on extension blocks** are checked too ([`Bundle::check_extension_blocks`]), but do
//! not decide about the bundle: a block that has changed is removed (RFC 9172 §5.1.2). Previous node, hop count
//! and bundle age stay even then. Every node that passes the bundle on has to change them (RFC 9171 §4.4), so
//! that only the first neighbour of the one that protected them, at best, finds them as they were.
//!
//! **Never both on one target.** If a payload is encrypted, its integrity block has to be, too (RFC 9172 §3.9),
//! by the same block (§3.8) and so with the same initialization vector, which ends the security of AES-GCM (RFC
//! 9173 §4.6). So a bundle that is given both has the payload encrypted, which authenticates it, and an
//! integrity block on the primary block. Bundles of other sources may have either form.

mod block;
mod confidentiality;
mod extensions;
mod integrity;
mod scope;
mod wrapping;

pub use confidentiality::{ConfidentialityKey, DECRYPTION_LIMIT, IV_LEN};
pub use extensions::ExtensionCheck;
pub use integrity::{CheckError, IntegrityKey};
pub use wrapping::KeyEncryptionKey;

use super::Bundle;
use super::blocks::Slot;
use super::report::ReasonCode;
use block::SecurityBlock;

/// The types of security blocks (RFC 9172 §11.1).
const INTEGRITY_BLOCK: u64 = 11;
const CONFIDENTIALITY_BLOCK: u64 = 12;
pub(super) const KINDS: [u64; 2] = [INTEGRITY_BLOCK, CONFIDENTIALITY_BLOCK];

/// What is said of wrapped keys.
const NO_WRAPPING_KEY: &str = "a wrapped key, and this node's policy has no key_encryption to unwrap it with";
const NOT_UNWRAPPED: &str =
    "a wrapped key that this node's key_encryption does not unwrap to one of a length that is used";

/// The numbers of the two blocks that are targets.
const PRIMARY: u64 = 0;
const PAYLOAD: u64 = 1;

/// Why the security operations of a bundle do not allow its delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SecurityFault {
    /// An operation that has to be there is not.
    #[error("the {0} is missing; is the policy of its source the same?")]
    Missing(&'static str),
    /// An operation cannot be understood.
    #[error("a security operation is not supported: {0}")]
    Unknown(&'static str),
    /// The payload is encrypted, and nothing here says with which key.
    #[error("its payload is encrypted and no [[security]] of this node has a key for it; add one")]
    Unexpected,
    /// An operation has failed: the bundle has changed, or the keys are not the same.
    #[error("the {0} is false: the bundle was changed on its way, or its source has another key")]
    Failed(&'static str),
    /// The operations break the rules of RFC 9172.
    #[error("its security blocks contradict RFC 9172: {0}; its source is faulty")]
    Conflicting(&'static str),
}

impl SecurityFault {
    /// The reason of the bundle's deletion (RFC 9172 §7.1).
    pub fn reason(self) -> ReasonCode {
        match self {
            Self::Missing(_) => ReasonCode::MISSING_SECURITY_OPERATION,
            Self::Unknown(_) => ReasonCode::UNKNOWN_SECURITY_OPERATION,
            Self::Unexpected => ReasonCode::UNEXPECTED_SECURITY_OPERATION,
            Self::Failed(_) => ReasonCode::FAILED_SECURITY_OPERATION,
            Self::Conflicting(_) => ReasonCode::CONFLICTING_SECURITY_OPERATION,
        }
    }
}

impl Bundle {
    /// Removes all security blocks: the destination of the bundle has accepted them (RFC 9172 §5.1).
    pub fn remove_security_blocks(&mut self) {
        self.received.slots.retain(|slot| !KINDS.contains(&slot.kind));
    }

    /// The security blocks of a type, with their contents.
    fn security_blocks(&self, kind: u64) -> impl Iterator<Item = (&Slot, &[u8])> {
        let of_kind = self.received.slots.iter().filter(move |slot| slot.kind == kind);
        of_kind.filter_map(|slot| Some((slot, slot.raw_content()?)))
    }

    /// The numbers of the blocks that are encrypted, as far as it can be read.
    fn encrypted_blocks(&self) -> Vec<u64> {
        let blocks = self.security_blocks(CONFIDENTIALITY_BLOCK);
        blocks.filter_map(|(_, content)| SecurityBlock::targets(content)).flatten().collect()
    }
}

#[cfg(test)]
mod tests;
