//! Operations of integrity on extension blocks.

use ring::hmac;

use super::super::Bundle;
use super::super::blocks::{CHANGING, Slot};
use super::super::cbor::{Item, put};
use super::INTEGRITY_BLOCK;
use super::integrity::{IntegrityKey, expected, understood};
use super::scope::{self, Header};
use crate::Eid;

/// What an operation of integrity says of an extension block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtensionCheck {
    /// The block's type.
    pub kind: u64,
    /// The block's number.
    pub number: u64,
    /// Who protects it.
    pub source: Eid,
    /// Whether the block is as it was when it was protected.
    pub is_right: bool,
    /// Every node that passes the bundle on changes blocks of this type (RFC 9171 §4.4): that one has changed
    /// means nothing.
    pub changes_on_the_way: bool,
}

impl Bundle {
    /// Checks the operations of integrity on extension blocks with this key, over the blocks as they have come.
    /// Operations that are encrypted or that are not understood are left out, and so are blocks that are not
    /// there any more: a node that did not know them may have removed them (RFC 9171 §5.6).
    pub fn check_extension_blocks(&self, key: &IntegrityKey) -> Vec<ExtensionCheck> {
        let encrypted = self.encrypted_blocks();
        let blocks = self.security_blocks(INTEGRITY_BLOCK);
        let readable = blocks.filter(|(slot, _)| !encrypted.contains(&slot.number));
        let mut checks = Vec::new();
        for (security, content) in readable {
            let Ok((block, hmac, scope)) = understood(key, content) else { continue };
            for (number, results) in block.targets.iter().zip(&block.results) {
                let target = self.received.slots.iter().find(|slot| slot.number == *number);
                let Some((slot, content)) = target.and_then(|slot| Some((slot, self.slot_content(slot)?)))
                else {
                    continue;
                };
                let protected = self.protected_block(slot, &content, scope, Header::of(security));
                let is_right =
                    expected(results).is_ok_and(|expected| hmac::verify(&hmac, &protected, expected).is_ok());
                checks.push(ExtensionCheck {
                    kind: slot.kind,
                    number: *number,
                    source: block.source.clone(),
                    is_right,
                    changes_on_the_way: CHANGING.contains(&slot.kind),
                });
            }
        }
        checks
    }

    /// What is integrity-protected of an extension block (RFC 9173 §3.7).
    pub(super) fn protected_block(
        &self,
        slot: &Slot,
        content: &[u8],
        scope: u64,
        security: Header,
    ) -> Vec<u8> {
        let mut out = scope::bytes(self, scope, Some(Header::of(slot)), security);
        put(&mut out, [Item::Bytes(content.len() as u64)]);
        out.extend_from_slice(content);
        out
    }

    /// A block's content: of one that is a field in its canonical form (RFC 9172 §4).
    fn slot_content(&self, slot: &Slot) -> Option<Vec<u8>> {
        match &slot.raw {
            Some(_) => slot.raw_content().map(<[u8]>::to_vec),
            None => self.content(slot.kind),
        }
    }
}
