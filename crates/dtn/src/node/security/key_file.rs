//! Files with a key for BPSec or LTP: hexadecimal digits on one line.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::bundle::security::{ConfidentialityKey, IntegrityKey, KeyEncryptionKey};

/// What is wrong with a key file.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// It cannot be read.
    #[error("cannot read the key {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others may read it.
    #[error("the key in {} may be read by others (mode {mode:03o}); chmod 600 \
        {}", path.display(), path.display())]
    NotPrivate {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It contains no key of RSA.
    #[error("{} has no {what} in PEM form; {remedy}", path.display())]
    NotPem {
        /// The file.
        path: PathBuf,
        /// Which kind of key it should have.
        what: &'static str,
        /// What makes one.
        remedy: &'static str,
    },
    /// Its key cannot be used.
    #[error("cannot use the key in {}: {reason}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// It contains something else.
    #[error("{} does not have a key of {lengths} bytes as hexadecimal digits; `openssl rand -hex 32` makes \
        one", path.display())]
    NotAKey {
        /// The file.
        path: PathBuf,
        /// The lengths that there are.
        lengths: &'static str,
    },
}

/// A key for integrity: its length says which HMAC it is for.
pub(super) fn integrity(path: &Path) -> Result<IntegrityKey, KeyError> {
    read(path, IntegrityKey::new, "32, 48 or 64")
}

/// A key for confidentiality.
pub(super) fn confidentiality(path: &Path) -> Result<ConfidentialityKey, KeyError> {
    read(path, ConfidentialityKey::new, "16 or 32")
}

/// A key that unwraps keys.
pub(super) fn key_encryption(path: &Path) -> Result<KeyEncryptionKey, KeyError> {
    read(path, KeyEncryptionKey::new, "16, 24 or 32")
}

fn read<T>(path: &Path, key: fn(&[u8]) -> Option<T>, lengths: &'static str) -> Result<T, KeyError> {
    let text = private(path)?;
    let bytes = bytes_of(text.trim_ascii());
    bytes.as_deref().and_then(key).ok_or_else(|| KeyError::NotAKey { path: path.into(), lengths })
}

/// A key for HMACs of any length between these, in words.
pub(crate) fn hmac(
    path: &Path,
    lengths: &'static str,
    is_length: fn(usize) -> bool,
) -> Result<Vec<u8>, KeyError> {
    let bytes = bytes_of(private(path)?.trim_ascii()).filter(|bytes| is_length(bytes.len()));
    bytes.ok_or_else(|| KeyError::NotAKey { path: path.into(), lengths })
}

/// The bytes of a file that nobody but its owner may read.
pub(crate) fn private(path: &Path) -> Result<Vec<u8>, KeyError> {
    let cannot_read = |source| KeyError::Read { path: path.into(), source };
    let mode = std::fs::metadata(path).map_err(cannot_read)?.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(KeyError::NotPrivate { path: path.into(), mode });
    }
    std::fs::read(path).map_err(cannot_read)
}

/// The bytes that hexadecimal digits stand for.
fn bytes_of(digits: &[u8]) -> Option<Vec<u8>> {
    let value = |digit: u8| u8::try_from(char::from(digit).to_digit(16)?).ok();
    let (pairs, []) = digits.as_chunks::<2>() else { return None };
    pairs.iter().map(|[high, low]| Some(value(*high)? << 4 | value(*low)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_is_private_and_of_a_length_that_there_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let write = |text: &str, mode| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        write(&"aB".repeat(32), 0o600);
        assert!(integrity(&path).is_ok() && confidentiality(&path).is_ok());
        write(&format!("{}\n", "01".repeat(16)), 0o600);
        assert!(confidentiality(&path).is_ok());
        let error = integrity(&path).unwrap_err().to_string();
        assert!(error.contains("32, 48 or 64 bytes"), "{error}");
        for wrong in ["", "abc", "zz", "key = 00", "0", &"00".repeat(33), &"+1".repeat(16), "ü"] {
            write(wrong, 0o600);
            assert!(matches!(confidentiality(&path), Err(KeyError::NotAKey { .. })), "{wrong}");
        }
        write(&"00".repeat(32), 0o640);
        let error = integrity(&path).unwrap_err().to_string();
        assert!(error.contains("640") && error.contains("chmod 600"), "{error}");
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(integrity(&path), Err(KeyError::Read { .. })));
    }
}
