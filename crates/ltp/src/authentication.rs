//! Authentication of segments (RFC 5327 §2.1): a header extension says how, a trailer extension has the proof.
//!
//! The proof is over everything in front of it, the tag and the length of its own extension included. Nothing in
//! it counts: RFC 5327 has no protection against segments that are **sent again** by somebody else. What an old
//! segment can do is bounded by the sessions that are remembered.

use std::fmt;
use std::sync::Arc;

use ring::hmac;
use ring::rand::SecureRandom;
use ring::rsa;
use ring::signature::{self, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};

use crate::sdnv;

/// The tag of both extensions (RFC 5327 §2.1).
pub(crate) const TAG: u8 = 0;
/// An HMAC is cut to 80 bits.
const HMAC_LEN: usize = 10;
/// The key of the NULL cipher suite, which everybody has (RFC 5327 §2.1.3).
const NULL_KEY: [u8; 20] = [
    0xc3, 0x7b, 0x7e, 0x64, 0x92, 0x58, 0x43, 0x40, 0xbe, 0xd1, 0x22, 0x07, 0x80, 0x89, 0x41, 0x15, 0x50,
    0x68, 0xf7, 0x38,
];
/// The least and the most bytes of an HMAC's key: shorter ones are guessed, longer ones are hashed first.
pub const KEY_LENGTHS: std::ops::RangeInclusive<usize> = 16..=64;

/// A cipher suite with its keys, for both directions of the exchange with one peer. Keys are not shown.
#[derive(Clone)]
pub struct Authentication(Suite);

/// Where randomness is from: like the time, from the caller, as not every machine has a source.
pub type Random = Arc<dyn SecureRandom + Send + Sync>;

#[derive(Clone)]
enum Suite {
    Hmac { code: u8, key: hmac::Key },
    Rsa { own: Arc<rsa::KeyPair>, peer: UnparsedPublicKey<Arc<[u8]>>, random: Random },
}

/// The extensions of a segment (RFC 5326 §3.1.4) that authentication needs.
#[derive(Debug, Default)]
pub(crate) struct Extensions<'a> {
    /// The values of those of the header that are about authentication.
    pub(crate) header: Vec<&'a [u8]>,
    /// Tags and values of those of the trailer.
    pub(crate) trailer: Vec<(u8, &'a [u8])>,
    /// Nothing follows the last one.
    pub(crate) is_whole: bool,
}

/// A key that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnusableKey {
    /// An HMAC's key is too short or too long.
    #[error("an HMAC's key has 16 to 64 bytes, and this one {0}")]
    Length(usize),
    /// It is no private key of RSA, or a weak one.
    #[error("it is no private RSA key of 2048 to 4096 bits in the form PKCS#8: {0}")]
    Private(&'static str),
}

/// Why a segment is not authentic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotAuthentic {
    /// It says nothing, or has another cipher suite.
    #[error("it is not authenticated by {0}")]
    Missing(&'static str),
    /// It is not the last extension, or more bytes follow.
    #[error("its proof is not at its end")]
    NotLast,
    /// The proof is of another key or of another segment.
    #[error("its {0} is false: it has changed, or its sender has another key")]
    False(&'static str),
}

impl Authentication {
    /// HMAC-SHA1-80, cipher suite 0: the key is that of both ends.
    ///
    /// # Errors
    /// Its length is none of [`KEY_LENGTHS`].
    pub fn hmac_sha1_80(key: &[u8]) -> Result<Self, UnusableKey> {
        if !KEY_LENGTHS.contains(&key.len()) {
            return Err(UnusableKey::Length(key.len()));
        }
        Ok(Self(Suite::Hmac { code: 0, key: sha1(key) }))
    }

    /// RSA-SHA256, cipher suite 1, with signatures of PKCS#1 v1.5: this end's private key (PKCS#8, DER), and the
    /// peer's public one (`RSAPublicKey` of PKCS#1, DER; 2048 to 8192 bits). With a key of another form nothing
    /// of the peer is authentic. Signatures take randomness of `random`, which blinds their computation.
    ///
    /// # Errors
    /// The private key cannot be used.
    pub fn rsa_sha256(own: &[u8], peer: &[u8], random: Random) -> Result<Self, UnusableKey> {
        let own = rsa::KeyPair::from_pkcs8(own).map_err(|rejected| {
            UnusableKey::Private(match rejected.to_string().as_str() {
                "TooSmall" => "it is too short",
                "TooLarge" => "it is too long",
                "InvalidEncoding" => "it cannot be read",
                _ => "it is refused",
            })
        })?;
        let peer = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, Arc::from(peer));
        Ok(Self(Suite::Rsa { own: Arc::new(own), peer, random }))
    }

    /// The NULL cipher suite, 255: an HMAC whose key everybody has. It finds errors, and no enemies.
    pub fn null() -> Self {
        Self(Suite::Hmac { code: 255, key: sha1(&NULL_KEY) })
    }

    /// The suite's name in RFC 5327.
    pub fn name(&self) -> &'static str {
        match self.0 {
            Suite::Hmac { code: 0, .. } => "HMAC-SHA1-80",
            Suite::Hmac { .. } => "the NULL cipher suite",
            Suite::Rsa { .. } => "RSA-SHA256",
        }
    }

    /// Bytes that it adds to a segment.
    pub(crate) fn len(&self) -> usize {
        let proof = self.proof_len();
        // Tag, length and cipher suite; tag, length and proof.
        3 + 1 + sdnv::len(proof as u64) + proof
    }

    fn code(&self) -> u8 {
        match self.0 {
            Suite::Hmac { code, .. } => code,
            Suite::Rsa { .. } => 1,
        }
    }

    fn proof_len(&self) -> usize {
        match &self.0 {
            Suite::Hmac { .. } => HMAC_LEN,
            Suite::Rsa { own, .. } => own.public().modulus_len(),
        }
    }

    /// Appends the header extension.
    pub(crate) fn write_header(&self, out: &mut Vec<u8>) {
        // Which key it is the peer knows.
        out.extend([TAG, 1, self.code()]);
    }

    /// Appends the trailer extension to a segment of which only that is missing.
    pub(crate) fn write_trailer(&self, out: &mut Vec<u8>) {
        out.push(TAG);
        sdnv::write(self.proof_len() as u64, out);
        match &self.0 {
            Suite::Hmac { key, .. } => {
                let tag = hmac::sign(key, out);
                out.extend_from_slice(&tag.as_ref()[..HMAC_LEN]);
            }
            Suite::Rsa { own, random, .. } => {
                let mut proof = vec![0; own.public().modulus_len()];
                // It fails without randomness, which blinds the computation and does not change its result: the
                // peer drops the segment, as if it had been lost.
                let _ = own.sign(&signature::RSA_PKCS1_SHA256, &**random, out, &mut proof);
                out.extend(proof);
            }
        }
    }

    /// Whether a segment with these extensions is the peer's.
    ///
    /// # Errors
    /// [`NotAuthentic`].
    pub(crate) fn check(&self, segment: &[u8], extensions: &Extensions<'_>) -> Result<(), NotAuthentic> {
        let missing = NotAuthentic::Missing(self.name());
        if !extensions.header.iter().any(|value| value.first() == Some(&self.code())) {
            return Err(missing);
        }
        let proof = match extensions.trailer.last() {
            Some((TAG, proof)) => *proof,
            _ => return Err(missing),
        };
        if !extensions.is_whole {
            return Err(NotAuthentic::NotLast);
        }
        let proved = &segment[..segment.len() - proof.len()];
        let is_right = match &self.0 {
            Suite::Hmac { key, .. } => {
                proof.len() == HMAC_LEN && is_same(key, &hmac::sign(key, proved), proof)
            }
            Suite::Rsa { peer, .. } => peer.verify(proved, proof).is_ok(),
        };
        if is_right { Ok(()) } else { Err(NotAuthentic::False(self.name())) }
    }
}

impl fmt::Debug for Authentication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Authentication").field(&self.name()).finish()
    }
}

fn sha1(key: &[u8]) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, key)
}

/// Compares a cut HMAC in a time that does not depend on where it differs: those of the two are compared.
fn is_same(key: &hmac::Key, found: &hmac::Tag, expected: &[u8]) -> bool {
    hmac::verify(key, &found.as_ref()[..HMAC_LEN], hmac::sign(key, expected).as_ref()).is_ok()
}
