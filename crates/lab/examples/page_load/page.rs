//! The page, and its server's certificate, which nobody has signed.

use std::error::Error;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::Response;
use rcgen::{CertifiedKey, KeyPair, PublicKeyData};
use sha2::{Digest, Sha256};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::version::TLS13;

/// The page itself and its objects, together.
pub(crate) const OBJECTS: usize = 60;
/// All of them, bytes.
pub(crate) const BYTES: usize = 1_900_000;

/// A key and its certificate.
pub(crate) struct Identity(CertifiedKey<KeyPair>);

impl Identity {
    pub(crate) fn new() -> Result<Self, Box<dyn Error>> {
        Ok(Self(rcgen::generate_simple_self_signed(["page.example".to_owned()])?))
    }

    /// TLS 1.3 for one protocol (ALPN).
    pub(crate) fn tls(&self, protocol: &str) -> Result<ServerConfig, Box<dyn Error>> {
        let key = PrivateKeyDer::try_from(self.0.signing_key.serialize_der())?;
        let mut config = ServerConfig::builder_with_protocol_versions(&[&TLS13])
            .with_no_client_auth()
            .with_single_cert(vec![self.0.cert.der().clone()], key)?;
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        Ok(config)
    }

    /// The SHA-256 of its public key, as Chromium wants it.
    pub(crate) fn fingerprint(&self) -> String {
        STANDARD.encode(Sha256::digest(self.0.signing_key.subject_public_key_info()))
    }
}

/// The head and the body of the answer to a path.
pub(crate) fn answer(path: &str) -> (Response<()>, Bytes) {
    let (kind, body) = match path {
        "/" => ("text/html", document()),
        _ => ("text/javascript", object()),
    };
    let head = Response::builder().header("content-type", kind).header("cache-control", "no-store");
    (head.body(()).expect("the header is valid"), body)
}

/// What is left of the bytes when the objects have theirs. When it is complete it tells its times, and in the
/// element `times` those of its objects.
fn document() -> Bytes {
    let scripts: String =
        (1..OBJECTS).map(|number| format!("<script async src=\"/{number}.js\"></script>\n")).collect();
    let head = "<!doctype html><link rel=icon href=data:,><title>loading</title><script>\
                addEventListener('load', () => {\
                const page = performance.getEntriesByType('navigation')[0];\
                const times = document.createElement('pre'); times.id = 'times';\
                times.textContent = [page, ...performance.getEntriesByType('resource')].map(found =>\
                [found.startTime, found.responseStart, found.responseEnd].join(' ')).join(';');\
                document.body.append(times);\
                document.title = ['loaded', page.responseStart, page.loadEventStart, page.nextHopProtocol]\
                .join(' '); });</script>\n";
    let rest = BYTES - (OBJECTS - 1) * (BYTES / OBJECTS) - head.len() - scripts.len();
    format!("{head}{scripts}<!--{}-->", " ".repeat(rest - "<!---->".len())).into()
}

/// A script that does nothing.
fn object() -> Bytes {
    format!("/*{}*/", " ".repeat(BYTES / OBJECTS - "/**/".len())).into()
}
