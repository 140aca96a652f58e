//! Block confidentiality blocks of the context BCB-AES-GCM (RFC 9173 §4).

use std::fmt;

use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use super::super::blocks::{REPLICATE, Slot, free_number};
use super::super::{Bundle, CrcType};
use super::block::{Entry, SecurityBlock, Value};
use super::scope::{self, Header};
use super::wrapping::KeyEncryptionKey;
use super::{
    CONFIDENTIALITY_BLOCK, INTEGRITY_BLOCK, NO_WRAPPING_KEY, NOT_UNWRAPPED, PAYLOAD, PRIMARY, SecurityFault,
};
use crate::Eid;

/// BCB-AES-GCM (RFC 9173 §5.1).
const CONTEXT: u64 = 2;
/// Its parameters (RFC 9173 §4.3).
const IV: u64 = 1;
const VARIANT: u64 = 2;
const WRAPPED_KEY: u64 = 3;
const SCOPE: u64 = 4;
/// Its result (RFC 9173 §4.4).
const TAG: u64 = 1;

/// The longest payload that is encrypted or decrypted, bytes. Nothing of a payload may be used before all of it
/// has been authenticated, and `ring` does that in memory.
pub const DECRYPTION_LIMIT: u64 = 64 << 20;

/// The length of an initialization vector, bytes. RFC 9173 §4.3.1 allows 8 to 16 and recommends this.
pub const IV_LEN: usize = 12;

/// The length of an authentication tag, bytes.
const TAG_LEN: usize = 16;

/// What is said of a payload beyond the limit.
const TOO_LONG: SecurityFault =
    SecurityFault::Unknown("payloads of more than 64 MiB are neither encrypted nor decrypted");

/// A key for confidentiality. It is not shown.
#[derive(Clone)]
pub struct ConfidentialityKey {
    key: LessSafeKey,
    variant: u64,
    wrapping: Option<KeyEncryptionKey>,
}

/// What the operations of a block have in common.
struct Context {
    key: ConfidentialityKey,
    iv: [u8; IV_LEN],
    scope: u64,
    header: Header,
}

impl ConfidentialityKey {
    /// A key of 16 or 32 bytes, for A128GCM or A256GCM; `None` for another length.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let (algorithm, variant) = match bytes.len() {
            16 => (&AES_128_GCM, 1),
            32 => (&AES_256_GCM, 3),
            _ => return None,
        };
        let key = UnboundKey::new(algorithm, bytes).ok()?;
        Some(Self { key: LessSafeKey::new(key), variant, wrapping: None })
    }

    /// The same, and keys that come with a bundle are unwrapped by this one.
    #[must_use]
    pub fn unwrapping_by(self, wrapping: Option<KeyEncryptionKey>) -> Self {
        Self { wrapping, ..self }
    }
}

impl fmt::Debug for ConfidentialityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfidentialityKey").field("variant", &self.variant).finish_non_exhaustive()
    }
}

impl Bundle {
    /// Encrypts the payload, `payload`, in the name of the node `source`. Its block loses its CRC. The primary
    /// block may not change afterwards. With one key no `iv` may be used twice (RFC 9173 §4.6).
    ///
    /// # Errors
    /// It is longer than [`DECRYPTION_LIMIT`].
    pub fn encrypt(
        &mut self,
        key: &ConfidentialityKey,
        source: &Eid,
        iv: [u8; IV_LEN],
        payload: &mut [u8],
    ) -> Result<(), SecurityFault> {
        self.payload_crc = CrcType::None;
        // RFC 9172 §3.8: in every fragment, if the payload is a target.
        let number = free_number(&self.received.slots);
        let slot =
            Slot { kind: CONFIDENTIALITY_BLOCK, number, flags: REPLICATE, crc: CrcType::Crc32, raw: None };
        let context = Context { key: key.clone(), iv, scope: scope::ALL, header: Header::of(&slot) };
        let tag = context.seal(self, Header::of_payload(self), payload)?;
        let block = SecurityBlock {
            targets: vec![PAYLOAD],
            context: CONTEXT,
            source: source.clone(),
            parameters: vec![
                (IV, Value::Bytes(iv.as_slice().into())),
                (VARIANT, Value::Uint(key.variant)),
                (SCOPE, Value::Uint(scope::ALL)),
            ],
            results: vec![vec![(TAG, Value::Bytes(tag.into()))]],
        };
        self.received.slots.push(slot.with_content(&block.encode()));
        Ok(())
    }

    /// Whether the payload is short enough to be encrypted and decrypted.
    ///
    /// # Errors
    /// It is longer than [`DECRYPTION_LIMIT`].
    pub fn check_length(&self) -> Result<(), SecurityFault> {
        // The tag may be a part of it.
        let limit = DECRYPTION_LIMIT + TAG_LEN as u64;
        if self.payload_len > limit { Err(TOO_LONG) } else { Ok(()) }
    }

    /// Whether the payload is encrypted. It counts as encrypted if a block of confidentiality does not say in a
    /// way that can be read what it encrypts.
    pub fn is_encrypted(&self) -> bool {
        let mut blocks = self.received.slots.iter().filter(|slot| slot.kind == CONFIDENTIALITY_BLOCK);
        blocks.any(|slot| {
            let targets = slot.raw_content().and_then(SecurityBlock::targets);
            targets.is_none_or(|targets| targets.contains(&PAYLOAD))
        })
    }

    /// Decrypts the payload, `payload`, and blocks of integrity, and removes the blocks of confidentiality.
    /// Other blocks that are encrypted are removed (RFC 9172 §5.1.1), and so are blocks of integrity that
    /// cannot be decrypted. The bundle and the payload are useless if it fails.
    ///
    /// # Errors
    /// The payload is not encrypted or cannot be decrypted, or the bundle's security blocks contradict the rules.
    pub fn decrypt(&mut self, key: &ConfidentialityKey, payload: &mut Vec<u8>) -> Result<(), SecurityFault> {
        self.check_targets()?;
        let blocks: Vec<(Header, Box<[u8]>)> = self
            .security_blocks(CONFIDENTIALITY_BLOCK)
            .map(|(slot, content)| (Header::of(slot), content.into()))
            .collect();
        let mut is_decrypted = false;
        for (header, content) in &blocks {
            is_decrypted |= self.decrypt_targets(key, *header, content, payload)?;
        }
        self.received.slots.retain(|slot| slot.kind != CONFIDENTIALITY_BLOCK);
        if is_decrypted { Ok(()) } else { Err(SecurityFault::Missing("encryption of the payload")) }
    }

    /// Refuses two operations on one target (RFC 9172 §3.2), and targets that must not be encrypted (§3.8).
    fn check_targets(&self) -> Result<(), SecurityFault> {
        let targets = self.encrypted_blocks();
        let is_repeated = |(index, target): (usize, &u64)| targets[..index].contains(target);
        if targets.iter().enumerate().any(is_repeated) {
            return Err(SecurityFault::Conflicting("a block is encrypted twice"));
        }
        let mut blocks = self.received.slots.iter();
        let is_target = |slot: &Slot| slot.kind == CONFIDENTIALITY_BLOCK && targets.contains(&slot.number);
        if targets.contains(&PRIMARY) || blocks.any(is_target) {
            return Err(SecurityFault::Conflicting(
                "the primary block or a block of confidentiality is encrypted",
            ));
        }
        Ok(())
    }

    /// Decrypts the targets of one block of confidentiality; whether the payload is one of them.
    fn decrypt_targets(
        &mut self,
        key: &ConfidentialityKey,
        header: Header,
        content: &[u8],
        payload: &mut Vec<u8>,
    ) -> Result<bool, SecurityFault> {
        // What cannot be read may be about the payload.
        let targets = SecurityBlock::targets(content).unwrap_or_else(|| vec![PAYLOAD]);
        let (block, context) = match understood(key, header, content) {
            Ok(understood) => understood,
            Err(what) if targets.contains(&PAYLOAD) => return Err(SecurityFault::Unknown(what)),
            Err(_) => {
                targets.iter().for_each(|target| self.remove_block(*target));
                return Ok(false);
            }
        };
        for (&target, results) in block.targets.iter().zip(&block.results) {
            if target == PAYLOAD {
                context.open(self, Header::of_payload(self), results, payload)?;
                self.payload_len = payload.len() as u64;
            } else if self.decrypt_block(&context, target, results).is_none() {
                self.remove_block(target);
            }
        }
        Ok(block.targets.contains(&PAYLOAD))
    }

    /// Decrypts a block of integrity; `None` if it is another one, or cannot be decrypted.
    fn decrypt_block(&mut self, context: &Context, number: u64, results: &[Entry]) -> Option<()> {
        let slots = &self.received.slots;
        let index = slots.iter().position(|slot| slot.number == number && slot.kind == INTEGRITY_BLOCK)?;
        let slot = slots[index].clone();
        let mut content = slot.raw_content()?.to_vec();
        context.open(self, Header::of(&slot), results, &mut content).ok()?;
        self.received.slots[index] = slot.with_content(&content);
        Some(())
    }

    fn remove_block(&mut self, number: u64) {
        self.received.slots.retain(|slot| slot.number != number || slot.raw.is_none());
    }
}

impl Context {
    /// Encrypts in place; the tag.
    fn seal(&self, bundle: &Bundle, target: Header, text: &mut [u8]) -> Result<Vec<u8>, SecurityFault> {
        if text.len() as u64 > DECRYPTION_LIMIT {
            return Err(TOO_LONG);
        }
        let aad = Aad::from(scope::bytes(bundle, self.scope, Some(target), self.header));
        let nonce = Nonce::assume_unique_for_key(self.iv);
        let sealed = self.key.key.seal_in_place_separate_tag(nonce, aad, text);
        // It fails beyond 64 GiB.
        sealed.map(|tag| tag.as_ref().to_vec()).map_err(|_| TOO_LONG)
    }

    /// Decrypts in place. The tag is a result, or without one the end of the ciphertext (RFC 9173 §4.4).
    fn open(
        &self,
        bundle: &Bundle,
        target: Header,
        results: &[Entry],
        text: &mut Vec<u8>,
    ) -> Result<(), SecurityFault> {
        match results {
            [] => {}
            [(TAG, Value::Bytes(tag))] if tag.len() == TAG_LEN => text.extend_from_slice(tag),
            _ => {
                return Err(SecurityFault::Conflicting(
                    "an operation of confidentiality has one result, its tag",
                ));
            }
        }
        let aad = Aad::from(scope::bytes(bundle, self.scope, Some(target), self.header));
        let nonce = Nonce::assume_unique_for_key(self.iv);
        let opened = self.key.key.open_in_place(nonce, aad, text);
        let len = opened.map_err(|_| SecurityFault::Failed("authentication of its ciphertext"))?.len();
        text.truncate(len);
        Ok(())
    }
}

/// A block of the context that is known.
fn understood(
    key: &ConfidentialityKey,
    header: Header,
    content: &[u8],
) -> Result<(SecurityBlock, Context), &'static str> {
    let block = SecurityBlock::decode(content)?;
    if block.context != CONTEXT {
        return Err("a security context other than BCB-AES-GCM");
    }
    // A256GCM and all flags are the defaults (RFC 9173 §4.3.2, §4.3.4).
    let (mut iv, mut variant, mut scope, mut key) = (None, 3, scope::ALL, key.clone());
    for parameter in &block.parameters {
        match parameter {
            (IV, Value::Bytes(bytes)) => {
                iv =
                    Some(bytes[..].try_into().map_err(|_| "an initialization vector of other than 96 bits")?);
            }
            (VARIANT, Value::Uint(number)) => variant = *number,
            (SCOPE, Value::Uint(flags @ 0..=scope::ALL)) => scope = *flags,
            (WRAPPED_KEY, Value::Bytes(wrapped)) => {
                let by = key.wrapping.as_ref().ok_or(NO_WRAPPING_KEY)?;
                let unwrapped = by.unwrap_key(wrapped).and_then(|bytes| ConfidentialityKey::new(&bytes));
                key = unwrapped.ok_or(NOT_UNWRAPPED)?;
            }
            _ => return Err("a parameter of BCB-AES-GCM that is not known"),
        }
    }
    if variant != key.variant {
        return Err("the payload is encrypted with a key of another length than this node's");
    }
    let iv = iv.ok_or("a block of confidentiality without an initialization vector")?;
    Ok((block, Context { key, iv, scope, header }))
}
