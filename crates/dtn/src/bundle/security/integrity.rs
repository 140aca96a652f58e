//! Block integrity blocks of the context BIB-HMAC-SHA2 (RFC 9173 §3).

use std::fmt;
use std::io::{self, Read};

use ring::hmac;

use super::super::blocks::{REPLICATE, Slot, free_number};
use super::super::cbor::{Item, put};
use super::super::{Bundle, CrcType};
use super::block::{SecurityBlock, Value};
use super::scope::{self, Header};
use super::wrapping::KeyEncryptionKey;
use super::{INTEGRITY_BLOCK, KINDS, NO_WRAPPING_KEY, NOT_UNWRAPPED, PAYLOAD, PRIMARY, SecurityFault};
use crate::Eid;

/// BIB-HMAC-SHA2 (RFC 9173 §5.1).
const CONTEXT: u64 = 1;
/// Its parameters (RFC 9173 §3.3).
const VARIANT: u64 = 1;
const WRAPPED_KEY: u64 = 2;
const SCOPE: u64 = 3;
/// Its result (RFC 9173 §3.4).
const EXPECTED_HMAC: u64 = 1;

/// How much of a payload is read at a time, bytes.
const STEP: usize = 64 << 10;

/// A key for integrity. It is not shown.
#[derive(Clone)]
pub struct IntegrityKey {
    bytes: Box<[u8]>,
    variant: Variant,
    wrapping: Option<KeyEncryptionKey>,
}

/// Which SHA-2, by its number (RFC 9173 §3.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Variant {
    Sha256 = 5,
    Sha384 = 6,
    Sha512 = 7,
}

/// Why a bundle's integrity could not be confirmed.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// It is not given.
    #[error(transparent)]
    Fault(#[from] SecurityFault),
    /// The payload cannot be read.
    #[error("cannot read the payload: {0}")]
    Read(#[from] io::Error),
}

/// What a bundle's integrity blocks have confirmed so far.
#[derive(Debug, Default)]
struct Confirmed {
    primary: bool,
    payload: bool,
    /// Targets with an operation, whether it was understood or not.
    targets: Vec<u64>,
    /// Why an operation could not be understood.
    unknown: Option<&'static str>,
}

impl IntegrityKey {
    /// A key of 32, 48 or 64 bytes, for HMAC with SHA-256, SHA-384 or SHA-512; `None` for another length.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let variant = match bytes.len() {
            32 => Variant::Sha256,
            48 => Variant::Sha384,
            64 => Variant::Sha512,
            _ => return None,
        };
        Some(Self::with(variant, bytes))
    }

    /// A key of any length, and the variant that is added with it.
    pub(super) fn with(variant: Variant, bytes: &[u8]) -> Self {
        Self { bytes: bytes.into(), variant, wrapping: None }
    }

    /// The same, and keys that come with a bundle are unwrapped by this one.
    #[must_use]
    pub fn unwrapping_by(self, wrapping: Option<KeyEncryptionKey>) -> Self {
        Self { wrapping, ..self }
    }

    fn hmac(&self, variant: Variant) -> hmac::Key {
        let algorithm = match variant {
            Variant::Sha256 => hmac::HMAC_SHA256,
            Variant::Sha384 => hmac::HMAC_SHA384,
            Variant::Sha512 => hmac::HMAC_SHA512,
        };
        hmac::Key::new(algorithm, &self.bytes)
    }
}

impl fmt::Debug for IntegrityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IntegrityKey").field("variant", &self.variant).finish_non_exhaustive()
    }
}

impl Bundle {
    /// Adds a block of integrity over the primary block and, if its bytes are given, the payload, in the name
    /// of the node `source`. Both lose their CRC. Nothing that is under it may change afterwards.
    ///
    /// # Errors
    /// The payload cannot be read, or has another length than the bundle says.
    pub fn add_integrity(
        &mut self,
        key: &IntegrityKey,
        source: &Eid,
        payload: Option<&mut dyn Read>,
    ) -> io::Result<()> {
        self.primary_crc = CrcType::None;
        if payload.is_some() {
            self.payload_crc = CrcType::None;
        }
        // In every fragment: its primary block may be without a CRC only beside this one (RFC 9171 §4.3.1).
        let number = free_number(&self.received.slots);
        let slot = Slot { kind: INTEGRITY_BLOCK, number, flags: REPLICATE, crc: CrcType::Crc32, raw: None };
        let block = self.integrity_block(key, scope::ALL, Header::of(&slot), source, payload)?;
        self.received.slots.push(slot.with_content(&block.encode()));
        Ok(())
    }

    /// The security block of [`add_integrity`](Self::add_integrity).
    pub(super) fn integrity_block(
        &self,
        key: &IntegrityKey,
        scope: u64,
        header: Header,
        source: &Eid,
        payload: Option<&mut dyn Read>,
    ) -> io::Result<SecurityBlock> {
        let hmac = key.hmac(key.variant);
        let primary = hmac::sign(&hmac, &self.protected_primary(scope, header, true));
        let mut signed = vec![(PRIMARY, primary)];
        if let Some(payload) = payload {
            signed.push((PAYLOAD, self.payload_hmac(&hmac, scope, header, payload)?));
        }
        let result = |tag: &hmac::Tag| vec![(EXPECTED_HMAC, Value::Bytes(tag.as_ref().into()))];
        Ok(SecurityBlock {
            targets: signed.iter().map(|(target, _)| *target).collect(),
            context: CONTEXT,
            source: source.clone(),
            parameters: vec![(VARIANT, Value::Uint(key.variant as u64)), (SCOPE, Value::Uint(scope))],
            results: signed.iter().map(|(_, tag)| result(tag)).collect(),
        })
    }

    /// Checks all operations of integrity on the primary block and on the payload with this key, and that both
    /// are confirmed: the primary block also where it is in the scope of the payload's operation, and the
    /// payload also if `is_authenticated` says that it was decrypted. `payload` begins to read the payload.
    ///
    /// Blocks that are still encrypted are not checked (RFC 9172 §3.9). Operations on extension blocks are those
    /// of [`check_extension_blocks`](Self::check_extension_blocks).
    ///
    /// # Errors
    /// [`CheckError`].
    pub fn check_integrity<R: Read>(
        &self,
        key: &IntegrityKey,
        is_authenticated: bool,
        mut payload: impl FnMut() -> R,
    ) -> Result<(), CheckError> {
        let encrypted = self.encrypted_blocks();
        let mut confirmed = Confirmed { payload: is_authenticated, ..Confirmed::default() };
        for (slot, content) in self.security_blocks(INTEGRITY_BLOCK) {
            if encrypted.contains(&slot.number) {
                confirmed.unknown = Some("a block of integrity is encrypted and could not be decrypted");
                continue;
            }
            self.note_targets(&mut confirmed, content)?;
            match understood(key, content) {
                Ok((block, hmac, scope)) => {
                    let header = Header::of(slot);
                    for (&target, result) in block.targets.iter().zip(&block.results) {
                        let is_right = match target {
                            PRIMARY => self.is_primary_right(&hmac, scope, header, expected(result)?),
                            PAYLOAD => {
                                let tag = self.payload_hmac(&hmac, scope, header, &mut payload())?;
                                is_same(&hmac, tag.as_ref(), expected(result)?)
                            }
                            _ => continue,
                        };
                        if !is_right {
                            return Err(SecurityFault::Failed("integrity").into());
                        }
                        confirmed.payload |= target == PAYLOAD;
                        confirmed.primary |= target == PRIMARY || scope & scope::PRIMARY_BLOCK != 0;
                    }
                }
                Err(what) => confirmed.unknown = Some(what),
            }
        }
        match (confirmed.primary && confirmed.payload, confirmed.unknown) {
            (true, _) => Ok(()),
            (false, Some(what)) => Err(SecurityFault::Unknown(what).into()),
            (false, None) => Err(SecurityFault::Missing("integrity").into()),
        }
    }

    /// Refuses a second operation on the same target (RFC 9172 §3.2), and one on a security block (§3.7).
    fn note_targets(&self, confirmed: &mut Confirmed, content: &[u8]) -> Result<(), SecurityFault> {
        for target in SecurityBlock::targets(content).unwrap_or_default() {
            if confirmed.targets.contains(&target) {
                return Err(SecurityFault::Conflicting("two blocks of integrity have the same target"));
            }
            let mut blocks = self.received.slots.iter();
            if blocks.any(|slot| slot.number == target && KINDS.contains(&slot.kind)) {
                return Err(SecurityFault::Conflicting(
                    "a block of integrity has a security block as target",
                ));
            }
            confirmed.targets.push(target);
        }
        Ok(())
    }

    /// RFC 9173 Appendix A.3 has the primary block as a byte string, and other implementations do; by the words
    /// of §3.7, and erratum 9192, it stands there as it is. Both are right: neither can be made without the
    /// key, or taken for the form of something else.
    fn is_primary_right(&self, hmac: &hmac::Key, scope: u64, header: Header, expected: &[u8]) -> bool {
        [true, false].into_iter().any(|as_string| {
            let protected = self.protected_primary(scope, header, as_string);
            hmac::verify(hmac, &protected, expected).is_ok()
        })
    }

    /// What is integrity-protected of the primary block (RFC 9173 §3.7).
    fn protected_primary(&self, scope: u64, header: Header, as_string: bool) -> Vec<u8> {
        let mut out = scope::bytes(self, scope, None, header);
        let primary = self.primary_with(CrcType::None);
        if as_string {
            put(&mut out, [Item::Bytes(primary.len() as u64)]);
        }
        out.extend(primary);
        out
    }

    /// The HMAC of the payload (RFC 9173 §3.7, §3.8), which is read to its end.
    fn payload_hmac(
        &self,
        hmac: &hmac::Key,
        scope: u64,
        header: Header,
        payload: &mut dyn Read,
    ) -> io::Result<hmac::Tag> {
        let mut context = hmac::Context::with_key(hmac);
        let mut head = scope::bytes(self, scope, Some(Header::of_payload(self)), header);
        put(&mut head, [Item::Bytes(self.payload_len)]);
        context.update(&head);
        let (mut buffer, mut len) = (vec![0; STEP], 0);
        loop {
            let read = match payload.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            context.update(&buffer[..read]);
            len += read as u64;
        }
        if len != self.payload_len {
            let text = format!("{len} bytes of payload, the bundle has {}", self.payload_len);
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
        }
        Ok(context.sign())
    }
}

/// A block of the context that is known, with its key and its scope.
pub(super) fn understood(
    key: &IntegrityKey,
    content: &[u8],
) -> Result<(SecurityBlock, hmac::Key, u64), &'static str> {
    let block = SecurityBlock::decode(content)?;
    if block.context != CONTEXT {
        return Err("a security context other than BIB-HMAC-SHA2");
    }
    let (mut variant, mut scope, mut unwrapped) = (Variant::Sha384, scope::ALL, None);
    for parameter in &block.parameters {
        match parameter {
            (VARIANT, Value::Uint(5)) => variant = Variant::Sha256,
            (VARIANT, Value::Uint(6)) => variant = Variant::Sha384,
            (VARIANT, Value::Uint(7)) => variant = Variant::Sha512,
            (SCOPE, Value::Uint(flags @ 0..=scope::ALL)) => scope = *flags,
            (WRAPPED_KEY, Value::Bytes(wrapped)) => {
                let by = key.wrapping.as_ref().ok_or(NO_WRAPPING_KEY)?;
                unwrapped = Some(by.unwrap_key(wrapped).ok_or(NOT_UNWRAPPED)?);
            }
            _ => return Err("a parameter of BIB-HMAC-SHA2 that is not known"),
        }
    }
    let hmac = match unwrapped {
        Some(bytes) => IntegrityKey::with(variant, &bytes).hmac(variant),
        None => key.hmac(variant),
    };
    Ok((block, hmac, scope))
}

pub(super) fn expected(results: &[(u64, Value)]) -> Result<&[u8], SecurityFault> {
    match results {
        [(EXPECTED_HMAC, Value::Bytes(expected))] => Ok(expected),
        _ => Err(SecurityFault::Conflicting("an operation of integrity has one result, its HMAC")),
    }
}

/// Compares two HMACs in a time that does not depend on where they differ: those of the two are compared.
fn is_same(key: &hmac::Key, found: &[u8], expected: &[u8]) -> bool {
    hmac::verify(key, found, hmac::sign(key, expected).as_ref()).is_ok()
}
