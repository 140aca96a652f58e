//! The token that requests over TCP must carry, if one is configured.

use std::fmt;
use std::fs::File;
use std::hint::black_box;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The minimum length: shorter tokens can be guessed.
const SHORTEST: usize = 16;
/// The maximum length, bytes.
const LONGEST: u64 = 4096;

/// A secret. Logs do not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// Why a token cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error("cannot read the token in {path} ({key}): {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The key of the configuration that names it.
        key: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// Every user of this host can read it.
    #[error(
        "others than its owner and group may read or change {path} ({key}); forbid it with: chmod o= {path}"
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// The key of the configuration that names it.
        key: &'static str,
    },
    /// It is too short, or has characters that a header or a URL cannot contain.
    #[error(
        "the first line of {path} ({key}) must have {SHORTEST} or more characters of A-Z a-z 0-9 -._~+/=; \
         make one with: openssl rand -hex 32 > {path}"
    )]
    Unfit {
        /// The file.
        path: PathBuf,
        /// The key of the configuration that names it.
        key: &'static str,
    },
}

impl Token {
    /// Reads the first line of a file that others cannot read. `key` is the key of the configuration that names
    /// the file.
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn load(path: &Path, key: &'static str) -> Result<Self, TokenError> {
        let failed = |source| TokenError::Read { path: path.to_owned(), key, source };
        let file = File::open(path).map_err(failed)?;
        if file.metadata().map_err(failed)?.mode() & 0o007 != 0 {
            return Err(TokenError::Open { path: path.to_owned(), key });
        }
        let mut text = String::new();
        file.take(LONGEST).read_to_string(&mut text).map_err(failed)?;
        let line = text.lines().next().unwrap_or_default();
        Self::parse(line).ok_or_else(|| TokenError::Unfit { path: path.to_owned(), key })
    }

    /// A token of RFC 6750 §2.1 (`b64token`), which fits into a header, a cookie and an address.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
        (text.len() >= SHORTEST && text.bytes().all(fits)).then(|| Self(text.to_owned()))
    }

    /// Whether a guess is right. The time does not depend on how much of it is right (CWE-208); it reveals
    /// only the length.
    pub fn is(&self, guess: &str) -> bool {
        let (known, guess) = (self.0.as_bytes(), guess.as_bytes());
        let differences = known.iter().zip(guess).fold(0, |sum, (a, b)| black_box(sum | (a ^ b)));
        known.len() == guess.len() && black_box(differences) == 0
    }

    /// The secret itself, for the cookie.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn load(text: &str, mode: u32) -> Result<Token, TokenError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        Token::load(&path, "admin.token_file")
    }

    #[test]
    fn it_is_the_first_line_without_space_around_it() {
        let token = load(" 0123456789abcdef \nsecond line\n", 0o640).unwrap();
        assert!(token.is("0123456789abcdef"));
        for guess in ["", "0123456789abcdeF", "0123456789abcde", "0123456789abcdef0", "second line"] {
            assert!(!token.is(guess), "{guess}");
        }
        assert!(!format!("{token:?}").contains("0123"));
    }

    #[test]
    fn a_file_that_is_open_to_others_is_refused() {
        for mode in [0o644, 0o604, 0o602] {
            assert!(matches!(load("0123456789abcdef", mode), Err(TokenError::Open { .. })), "{mode:o}");
        }
    }

    #[test]
    fn guessable_or_unencodable_tokens_are_refused() {
        for text in [
            "",
            "\n0123456789abcdef",
            "0123456789abcde",
            "0123456789;abcdef",
            "0123456789 abcdef",
            "ä123456789abcdef",
        ] {
            assert!(matches!(load(text, 0o600), Err(TokenError::Unfit { .. })), "{text}");
        }
        assert!(matches!(
            Token::load(Path::new("/nonexistent"), "admin.token_file"),
            Err(TokenError::Read { .. })
        ));
    }
}
