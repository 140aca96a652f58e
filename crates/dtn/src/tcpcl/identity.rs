//! The identity of a node: its certificate and key, as files.

use std::fmt::Write as _;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::names::BUNDLE_EID;
use crate::Eid;

/// A certificate and the key that belongs to it.
#[derive(Debug)]
pub struct Identity {
    /// The certificate that other nodes know.
    pub certificate: CertificateDer<'static>,
    /// Those between it and its authority, if there is one.
    pub intermediates: Vec<CertificateDer<'static>>,
    /// Its key.
    pub key: PrivateKeyDer<'static>,
}

/// What is wrong with a certificate, a key, or their files.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file contains something else.
    #[error("{} has no {what} in PEM form; `bentpipe dtn identity` makes one", path.display())]
    NotPem {
        /// The file.
        path: PathBuf,
        /// What was looked for.
        what: &'static str,
    },
    /// Others may read the key.
    #[error("the key in {} may be read by others (mode {mode:03o}); chmod 600 \
        {}", path.display(), path.display())]
    KeyNotPrivate {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A key or certificate could not be made.
    #[error("cannot make a certificate for {node}: {reason}")]
    Generate {
        /// The node.
        node: Eid,
        /// Why.
        reason: String,
    },
    /// The certificates of an authority cannot be used.
    #[error("cannot use {} as an authority: {reason}; it has to be a file with the certificates of authorities, PEM", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Certificate and key do not fit, or cannot be used.
    #[error("cannot use the certificate with its key: {0}; do they belong together?")]
    Unusable(String),
}

/// A new key, and a certificate for it that it signs itself; both as PEM. The certificate names the node as
/// RFC 9174 §4.4.1 wants it and lasts until the year 4096: it is trusted because it is configured, not for
/// its dates.
///
/// # Errors
/// [`IdentityError::Generate`] if `node` is nobody, or there is no randomness.
pub fn generate(node: &Eid) -> Result<(String, String), IdentityError> {
    let fault = |reason: String| IdentityError::Generate { node: node.clone(), reason };
    if !node.is_node() {
        return Err(fault("it is no node, only nodes have certificates".into()));
    }
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, node.to_string());
    params.key_usages = vec![rcgen::KeyUsagePurpose::DigitalSignature];
    // RFC 9174 §4.4.2: id-kp-bundleSecurity. Others that look at the purposes of TLS find them too.
    params.extended_key_usages = vec![
        rcgen::ExtendedKeyUsagePurpose::ServerAuth,
        rcgen::ExtendedKeyUsagePurpose::ClientAuth,
        rcgen::ExtendedKeyUsagePurpose::Other(vec![1, 3, 6, 1, 5, 5, 7, 3, 35]),
    ];
    let name = rcgen::CustomExtension::from_oid_content(&[2, 5, 29, 17], bundle_eid_names(node));
    params.custom_extensions = vec![name];
    let key = rcgen::KeyPair::generate().map_err(|error| fault(error.to_string()))?;
    let certificate = params.self_signed(&key).map_err(|error| fault(error.to_string()))?;
    Ok((certificate.pem(), key.serialize_pem()))
}

impl Identity {
    /// Reads both files.
    ///
    /// # Errors
    /// [`IdentityError`]; also if others than the key's owner may read it.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, IdentityError> {
        let read = |source| IdentityError::Read { path: key.into(), source };
        let mode = std::fs::metadata(key).map_err(read)?.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(IdentityError::KeyNotPrivate { path: key.into(), mode });
        }
        let pem = std::fs::read(key).map_err(read)?;
        let not_pem = |_| IdentityError::NotPem { path: key.into(), what: "private key" };
        let key = PrivateKeyDer::from_pem_slice(&pem).map_err(not_pem)?;
        let pem = read_file(certificate)?;
        let not_pem = || IdentityError::NotPem { path: certificate.into(), what: "certificate" };
        let (certificate, intermediates) = chain(&pem).ok_or_else(not_pem)?;
        Ok(Self { certificate, intermediates, key })
    }

    /// The same from the texts that [`generate`] returns.
    ///
    /// # Errors
    /// [`IdentityError::NotPem`].
    pub fn from_pem(certificate: &str, key: &str) -> Result<Self, IdentityError> {
        let not_pem = |what| IdentityError::NotPem { path: "the text".into(), what };
        let (certificate, intermediates) =
            chain(certificate.as_bytes()).ok_or_else(|| not_pem("certificate"))?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|_| not_pem("private key"))?;
        Ok(Self { certificate, intermediates, key })
    }
}

/// The certificates of a text, the first of them apart.
fn chain(pem: &[u8]) -> Option<(CertificateDer<'static>, Vec<CertificateDer<'static>>)> {
    let mut all: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().ok()?;
    let rest = all.split_off(all.len().min(1));
    Some((all.pop()?, rest))
}

pub(super) fn read_file(path: &Path) -> Result<Vec<u8>, IdentityError> {
    std::fs::read(path).map_err(|source| IdentityError::Read { path: path.into(), source })
}

/// Reads a certificate, such as a peer's.
///
/// # Errors
/// [`IdentityError`] if there is none.
pub fn load_certificate(path: &Path) -> Result<CertificateDer<'static>, IdentityError> {
    let pem = read_file(path)?;
    CertificateDer::from_pem_slice(&pem)
        .map_err(|_| IdentityError::NotPem { path: path.into(), what: "certificate" })
}

/// The fingerprint that people compare: the first 8 bytes of a certificate's SHA-256, as hexadecimal digits.
pub(crate) fn fingerprint(certificate: &CertificateDer<'_>) -> String {
    let provider = tokio_rustls::rustls::crypto::ring::default_provider();
    let suite = provider.cipher_suites.iter().find_map(|suite| match suite {
        tokio_rustls::rustls::SupportedCipherSuite::Tls13(suite)
            if suite.common.hash_provider.output_len() == 32 =>
        {
            Some(suite.common.hash_provider)
        }
        _ => None,
    });
    let mut text = String::new();
    for byte in suite.iter().flat_map(|hash| hash.hash(certificate).as_ref()[..8].to_vec()) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// GeneralNames with one otherName: id-on-bundleEID, 1.3.6.1.5.5.7.8.11, an IA5String (RFC 9174 §4.4.1, RFC
/// 5280 §4.2.1.6).
fn bundle_eid_names(node: &Eid) -> Vec<u8> {
    let oid = der(0x06, BUNDLE_EID);
    // Endpoints are visible ASCII, which is what an IA5String holds.
    let value = der(0xA0, &der(0x16, node.to_string().as_bytes()));
    der(0x30, &der(0xA0, &[oid, value].concat()))
}

/// Tag, length, value (X.690 §8.1), for values of less than 64 KiB.
fn der(tag: u8, value: &[u8]) -> Vec<u8> {
    let [high, low] = (value.len() as u16).to_be_bytes();
    let mut out = match value.len() {
        0..128 => vec![tag, low],
        128..256 => vec![tag, 0x81, low],
        _ => vec![tag, 0x82, high, low],
    };
    out.extend(value);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn node(text: &str) -> Eid {
        text.parse().unwrap()
    }

    #[test]
    fn a_certificate_names_its_node() {
        let (certificate, key) = generate(&node("dtn://gs1/")).unwrap();
        let identity = Identity::from_pem(&certificate, &key).unwrap();
        let name = bundle_eid_names(&node("dtn://gs1/"));
        assert_eq!(name[..4], [0x30, 26, 0xA0, 24]);
        assert!(identity.certificate.windows(name.len()).any(|window| window == name));
        assert_eq!(fingerprint(&identity.certificate).len(), 16);
    }

    #[test]
    fn only_nodes_get_certificates() {
        assert!(generate(&node("dtn://gs1/files")).unwrap_err().to_string().contains("no node"));
        let long = node(&format!("dtn://{}/", "x".repeat(1000)));
        let (certificate, key) = generate(&long).unwrap();
        assert!(Identity::from_pem(&certificate, &key).is_ok());
    }

    #[test]
    fn a_key_that_others_may_read_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let (cert_path, key_path) = (dir.path().join("node.crt"), dir.path().join("node.key"));
        let (certificate, key) = generate(&node("ipn:5.0")).unwrap();
        std::fs::write(&cert_path, certificate).unwrap();
        std::fs::write(&key_path, key).unwrap();
        let mode = |mode| std::fs::set_permissions(&key_path, std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o640);
        let error = Identity::load(&cert_path, &key_path).unwrap_err().to_string();
        assert!(error.contains("640") && error.contains("chmod 600"), "{error}");
        mode(0o600);
        assert!(Identity::load(&cert_path, &key_path).is_ok());
        let error = Identity::load(&key_path, &key_path).unwrap_err().to_string();
        assert!(error.contains("no certificate"), "{error}");
    }
}
