//! Keys that come with the bundle, wrapped by a key that both ends have (RFC 9173 §3.3.2, §4.3.3: AES key wrap,
//! RFC 3394).

use std::fmt;
use std::sync::Arc;

use aes_kw::{AesKw, KeyInit, KwAes128, KwAes192, KwAes256};

/// What AES key wrap adds to a key, bytes.
const ADDED: usize = 8;
/// The longest key that is unwrapped, bytes: that of HMAC with SHA-512.
const LONGEST: usize = 64;

/// A key that wraps keys. It is not shown.
#[derive(Clone)]
pub struct KeyEncryptionKey(Arc<Cipher>);

enum Cipher {
    Aes128(KwAes128),
    Aes192(KwAes192),
    Aes256(KwAes256),
}

impl KeyEncryptionKey {
    /// A key of 16, 24 or 32 bytes; `None` for another length.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let cipher = match bytes.len() {
            16 => Cipher::Aes128(AesKw::new_from_slice(bytes).ok()?),
            24 => Cipher::Aes192(AesKw::new_from_slice(bytes).ok()?),
            32 => Cipher::Aes256(AesKw::new_from_slice(bytes).ok()?),
            _ => return None,
        };
        Some(Self(Arc::new(cipher)))
    }

    /// The wrapped key; `None` if it was wrapped with another key, or has changed.
    pub(super) fn unwrap_key(&self, wrapped: &[u8]) -> Option<Vec<u8>> {
        let len = wrapped.len().checked_sub(ADDED).filter(|len| *len <= LONGEST)?;
        let mut key = vec![0; len];
        let unwrapped = match &*self.0 {
            Cipher::Aes128(cipher) => cipher.unwrap_key(wrapped, &mut key),
            Cipher::Aes192(cipher) => cipher.unwrap_key(wrapped, &mut key),
            Cipher::Aes256(cipher) => cipher.unwrap_key(wrapped, &mut key),
        };
        unwrapped.is_ok().then_some(key)
    }
}

impl fmt::Debug for KeyEncryptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyEncryptionKey").finish_non_exhaustive()
    }
}
