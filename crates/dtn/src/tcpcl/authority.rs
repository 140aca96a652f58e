//! Peers whose certificates an authority issues (RFC 9174 §4.4.3, §4.4.4): the chain has to lead to the authority, and
//! the certificate has to name the peer.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use tokio_rustls::rustls::{self, RootCertStore};

use super::identity::{IdentityError, read_file};
use super::names::Names;
use super::settings::Role;
use crate::Eid;

/// An authority, and the peers whose certificates it issues.
pub struct Authority {
    roots: Arc<RootCertStore>,
    clients: Arc<dyn ClientCertVerifier>,
    provider: Arc<CryptoProvider>,
    members: Vec<Member>,
}

/// A peer that has its certificate from an authority.
#[derive(Debug, Clone)]
pub struct Member {
    /// Its endpoint, which the certificate names as a bundle EID (NODE-ID).
    pub id: Eid,
    /// A URI in a certificate without a bundle EID may name it, too.
    pub by_uri: bool,
    /// The DNS name of its address, which may name it in a certificate without a bundle EID (DNS-ID).
    pub host: Option<String>,
}

impl Authority {
    /// The authority whose certificates are in a file, PEM.
    ///
    /// # Errors
    /// [`IdentityError`] if there is none, or one cannot be used.
    pub fn load(path: &Path, members: Vec<Member>) -> Result<Self, IdentityError> {
        let pem = read_file(path)?;
        Self::from_pem(&pem, members).map_err(|reason| IdentityError::Authority { path: path.into(), reason })
    }

    fn from_pem(pem: &[u8], members: Vec<Member>) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|error| error.to_string())?;
            roots.add(certificate).map_err(|error| error.to_string())?;
        }
        if roots.is_empty() {
            return Err("it has no certificate in PEM form".into());
        }
        let (roots, provider) = (Arc::new(roots), Arc::new(rustls::crypto::ring::default_provider()));
        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).build();
        let clients = clients.map_err(|error| error.to_string())?;
        Ok(Self { roots, clients, provider, members })
    }

    /// Whether the chain, the peer's certificate first, leads to this authority at this time. `role` is this node's.
    pub(super) fn verify(
        &self,
        chain: &[CertificateDer<'_>],
        role: Role,
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let (first, rest) = chain.split_first().ok_or(rustls::Error::NoCertificatesPresented)?;
        match role {
            Role::Active => verify_server_cert_signed_by_trust_anchor(
                &ParsedCertificate::try_from(first)?,
                &self.roots,
                rest,
                now,
                self.provider.signature_verification_algorithms.all,
            ),
            Role::Passive => self.clients.verify_client_cert(first, rest, now).map(drop),
        }
    }

    /// The peers that a certificate of this authority names.
    pub(super) fn named(&self, certificate: &CertificateDer<'_>) -> Vec<Eid> {
        let names = Names::of(certificate);
        let members = self.members.iter().filter(|member| member.is_named(&names, certificate));
        members.map(|member| member.id.clone()).collect()
    }
}

impl Member {
    fn is_named(&self, names: &Names, certificate: &CertificateDer<'_>) -> bool {
        let is_self = |name: &String| name.parse::<Eid>().is_ok_and(|id| id == self.id);
        // A certificate that says which node it is for is for no other (RFC 9174 §4.4.4).
        if !names.nodes.is_empty() {
            return names.nodes.iter().any(is_self);
        }
        (self.by_uri && names.uris.iter().any(is_self))
            || self.host.as_deref().is_some_and(|host| has_host(certificate, host))
    }
}

/// Whether a certificate names a host, also by a wildcard (RFC 9525 §6.3).
fn has_host(certificate: &CertificateDer<'_>, host: &str) -> bool {
    let (Ok(certificate), Ok(host)) = (ParsedCertificate::try_from(certificate), ServerName::try_from(host))
    else {
        return false;
    };
    verify_server_name(&certificate, &host).is_ok()
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("members", &self.members).finish_non_exhaustive()
    }
}
