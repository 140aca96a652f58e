//! What a security operation binds its target to (RFC 9173 §3.3.3, §4.3.4).

use super::super::Bundle;
use super::super::blocks::Slot;
use super::super::cbor::{Item, put};
use super::PAYLOAD;

/// The primary block is in the scope.
pub(super) const PRIMARY_BLOCK: u64 = 1;
/// So are type, number and flags of the target.
const TARGET_HEADER: u64 = 2;
/// So are those of the security block.
const SECURITY_HEADER: u64 = 4;
/// All flags there are, which is also what their absence means.
pub(super) const ALL: u64 = 7;

/// The flags of blocks that RFC 9171 §4.2.4 assigns; the canonical form has no others (RFC 9172 §4).
const ASSIGNED_FLAGS: u64 = 0x17;

/// A block's type, number and flags.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    pub(super) kind: u64,
    pub(super) number: u64,
    pub(super) flags: u64,
}

impl Header {
    pub(super) fn of(slot: &Slot) -> Self {
        Self { kind: slot.kind, number: slot.number, flags: slot.flags }
    }

    /// That of the bundle's payload block.
    pub(super) fn of_payload(bundle: &Bundle) -> Self {
        Self { kind: PAYLOAD, number: PAYLOAD, flags: bundle.received.payload_flags }
    }

    fn put(self, out: &mut Vec<u8>) {
        let flags = self.flags & ASSIGNED_FLAGS;
        put(out, [self.kind, self.number, flags].map(Item::Uint));
    }
}

/// The scope flags and what they stand for: the additional authenticated data (RFC 9173 §4.7.2), and what
/// stands before the target's content in what is integrity-protected (§3.7). Without a `target` that is the
/// primary block, whose own form is not added again.
pub(super) fn bytes(bundle: &Bundle, flags: u64, target: Option<Header>, security: Header) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    put(&mut out, [Item::Uint(flags)]);
    if let Some(target) = target {
        if flags & PRIMARY_BLOCK != 0 {
            out.extend(bundle.own_primary());
        }
        if flags & TARGET_HEADER != 0 {
            target.put(&mut out);
        }
    }
    if flags & SECURITY_HEADER != 0 {
        security.put(&mut out);
    }
    out
}
