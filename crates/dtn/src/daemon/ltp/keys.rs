//! The keys by which segments of LTP are authenticated, from files.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bentpipe_ltp::{Authentication, KEY_LENGTHS};
use ring::rand::SystemRandom;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{PrivatePkcs8KeyDer, SubjectPublicKeyInfoDer};

use crate::Eid;
use crate::config::{LtpAuthentication, NodeConfig, PeerLtpSettings};
use crate::node::{KeyError, key_file};

/// What makes a pair of keys.
const GENPKEY: &str = "`openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out ltp.key` makes one";
const PUBOUT: &str = "`openssl pkey -in ltp.key -pubout` writes that of the peer's key";
/// The algorithm of RSA keys, with its parameters (RFC 8017 §A.1, RFC 5280 §4.1): DER.
const RSA: [u8; 15] = [0x30, 13, 6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 13, 1, 1, 1, 5, 0];

/// The keys of the peers that have some.
#[derive(Debug, Default)]
pub(in crate::daemon) struct Keys(BTreeMap<Eid, Authentication>);

impl Keys {
    /// Reads them.
    ///
    /// # Errors
    /// A key cannot be used, or others than its owner may read it.
    pub(in crate::daemon) fn load(config: &NodeConfig) -> Result<Self, KeyError> {
        let mut keys = BTreeMap::new();
        for peer in &config.peers {
            if let Some(authentication) = peer.ltp.as_ref().map(load).transpose()?.flatten() {
                keys.insert(peer.id.clone(), authentication);
            }
        }
        Ok(Self(keys))
    }

    /// Those of this peer.
    pub(super) fn of(&self, peer: &Eid) -> Option<Authentication> {
        self.0.get(peer).cloned()
    }
}

fn load(settings: &PeerLtpSettings) -> Result<Option<Authentication>, KeyError> {
    // The configuration has been checked: the files that are needed have names.
    let unnamed = Path::new("");
    let key = settings.key.as_deref().unwrap_or(unnamed);
    let peer_key = settings.peer_key.as_deref().unwrap_or(unnamed);
    match settings.authentication {
        None => Ok(None),
        Some(LtpAuthentication::Null) => Ok(Some(Authentication::null())),
        Some(LtpAuthentication::HmacSha1) => {
            let bytes = key_file::hmac(key, "16 to 64", |len| KEY_LENGTHS.contains(&len))?;
            Authentication::hmac_sha1_80(&bytes).map(Some).map_err(|why| unusable(key, &why.to_string()))
        }
        Some(LtpAuthentication::RsaSha256) => {
            let own = key_file::private(key)?;
            let own = PrivatePkcs8KeyDer::from_pem_slice(&own)
                .map_err(|_| not_pem(key, "private key (PKCS#8)", GENPKEY))?;
            let text =
                std::fs::read(peer_key).map_err(|source| KeyError::Read { path: peer_key.into(), source })?;
            let public = SubjectPublicKeyInfoDer::from_pem_slice(&text)
                .map_err(|_| not_pem(peer_key, "public key", PUBOUT))?;
            let public = rsa_key(&public).ok_or_else(|| unusable(peer_key, "it is no public key of RSA"))?;
            let keys =
                Authentication::rsa_sha256(own.secret_pkcs8_der(), public, Arc::new(SystemRandom::new()));
            keys.map(Some).map_err(|why| unusable(key, &why.to_string()))
        }
    }
}

fn not_pem(path: &Path, what: &'static str, remedy: &'static str) -> KeyError {
    KeyError::NotPem { path: path.into(), what, remedy }
}

fn unusable(path: &Path, reason: &str) -> KeyError {
    KeyError::Unusable { path: path.into(), reason: reason.into() }
}

/// The `RSAPublicKey` in a `SubjectPublicKeyInfo`: a sequence of the algorithm and a string of bits, whose first
/// byte says that none of them is unused.
fn rsa_key(info: &[u8]) -> Option<&[u8]> {
    let (0x30, info, []) = der(info)? else { return None };
    let (0x03, bits, []) = der(info.strip_prefix(&RSA)?)? else { return None };
    bits.strip_prefix(&[0])
}

/// The tag and the content of the first element, and what follows it.
fn der(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, first], mut rest) = bytes.split_first_chunk::<2>()?;
    let mut len = usize::from(first);
    if first & 0x80 != 0 {
        let (long, behind) =
            rest.split_at_checked(usize::from(first & 0x7f)).filter(|(long, _)| long.len() <= 4)?;
        len = long.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        rest = behind;
    }
    let (content, behind) = rest.split_at_checked(len)?;
    Some((tag, content, behind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const PRIVATE: &str = include_str!("../../../tests/keys/ltp.key");
    const PUBLIC: &str = include_str!("../../../tests/keys/ltp.pub");

    /// What is said of these files, which nobody else may read.
    fn outcome(authentication: LtpAuthentication, key: &str, peer_key: &str) -> Result<String, String> {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            Some(path)
        };
        let text = "address = \"192.0.2.7:1113\"";
        let mut settings: PeerLtpSettings = toml::from_str(text).unwrap();
        settings.authentication = Some(authentication);
        (settings.key, settings.peer_key) = (write("key", key), write("peer_key", peer_key));
        let keys = load(&settings).map_err(|error| error.to_string())?;
        Ok(keys.unwrap().name().to_owned())
    }

    #[test]
    fn keys_are_read_as_openssl_writes_them() {
        let rsa = outcome(LtpAuthentication::RsaSha256, PRIVATE, PUBLIC);
        assert_eq!(rsa.as_deref(), Ok("RSA-SHA256"));
        let hmac = outcome(LtpAuthentication::HmacSha1, "00112233445566778899aabbccddeeff\n", "");
        assert_eq!(hmac.as_deref(), Ok("HMAC-SHA1-80"));
    }

    #[test]
    fn what_is_no_key_is_named_with_its_remedy() {
        let rsa = |key, peer_key| outcome(LtpAuthentication::RsaSha256, key, peer_key).unwrap_err();
        let error = rsa("", PUBLIC);
        assert!(error.contains("/key has no private key") && error.contains("openssl genpkey"), "{error}");
        let error = rsa(PRIVATE, PRIVATE);
        assert!(error.contains("/peer_key has no public key") && error.contains("-pubout"), "{error}");
        // Of an elliptic curve.
        let of_a_curve = "-----BEGIN PUBLIC KEY-----\n\
            MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n-----END PUBLIC KEY-----\n";
        let error = rsa(PRIVATE, of_a_curve);
        assert!(error.contains("no public key of RSA"), "{error}");
        let error = outcome(LtpAuthentication::HmacSha1, "0011", "").unwrap_err();
        assert!(error.contains("16 to 64 bytes"), "{error}");
    }

    /// The peer's public key is found where it is: what the private half signs, it confirms.
    #[test]
    fn the_public_key_is_that_of_the_private_one() {
        use ring::signature::{self, RSA_PKCS1_2048_8192_SHA256, RsaKeyPair, UnparsedPublicKey};
        let own = PrivatePkcs8KeyDer::from_pem_slice(PRIVATE.as_bytes()).unwrap();
        let own = RsaKeyPair::from_pkcs8(own.secret_pkcs8_der()).unwrap();
        let mut proof = vec![0; own.public().modulus_len()];
        let random = ring::rand::SystemRandom::new();
        own.sign(&signature::RSA_PKCS1_SHA256, &random, b"text", &mut proof).unwrap();
        let public = SubjectPublicKeyInfoDer::from_pem_slice(PUBLIC.as_bytes()).unwrap();
        let public = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, rsa_key(&public).unwrap());
        public.verify(b"text", &proof).unwrap();
        for len in 0..PUBLIC.len() / 2 {
            assert!(rsa_key(&PUBLIC.as_bytes()[..len]).is_none());
        }
    }
}
