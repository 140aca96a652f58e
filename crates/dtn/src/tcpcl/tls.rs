//! TLS 1.3 between nodes that know each other's certificates, or an authority that issues them.
//!
//! Trust is a list: a certificate is that of a peer if it is, byte for byte, the one configured for it. Its
//! dates and its issuer do not matter; that the other end has its key, the handshake proves. Of a peer with an
//! [`Authority`] instead, both count, and the names in the certificate. Both ends show certificates. Nothing is
//! resumed, so that what is taken off the list is trusted no more from the next session on.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::{
    self, AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName,
    ServerConfig, SignatureScheme,
};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use super::authority::Authority;
use super::identity::{Identity, IdentityError, fingerprint};
use super::names::Names;
use super::settings::Role;
use crate::Eid;

/// Whether a session speaks TLS.
#[derive(Debug, Clone)]
pub enum Tls {
    /// Never: it is not offered.
    Off,
    /// If the other end offers it too. An attacker in between can take the offer away.
    Offer(Arc<TlsConfig>),
    /// Always: without it there is no session.
    Require(Arc<TlsConfig>),
}

/// What the TLS of all sessions of a node needs.
pub struct TlsConfig {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    peers: Arc<Trusted>,
}

impl TlsConfig {
    /// For a node with this identity that trusts these peers by these certificates.
    ///
    /// # Errors
    /// [`IdentityError::Unusable`] if certificate and key do not fit.
    pub fn new(
        identity: Identity,
        peers: impl IntoIterator<Item = (Eid, CertificateDer<'static>)>,
    ) -> Result<Self, IdentityError> {
        Self::with_authorities(identity, peers, Vec::new())
    }

    /// The same for a node that trusts other peers by certificates of these authorities.
    ///
    /// # Errors
    /// [`IdentityError::Unusable`] if certificate and key do not fit.
    pub fn with_authorities(
        identity: Identity,
        peers: impl IntoIterator<Item = (Eid, CertificateDer<'static>)>,
        authorities: Vec<Authority>,
    ) -> Result<Self, IdentityError> {
        let fault = |error: rustls::Error| IdentityError::Unusable(error.to_string());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let pinned = peers.into_iter().collect();
        let peers = Arc::new(Trusted { pinned, authorities, provider: provider.clone() });
        let Identity { certificate, intermediates, key } = identity;
        let chain: Vec<_> = std::iter::once(certificate).chain(intermediates).collect();
        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(fault)?
            .dangerous()
            .with_custom_certificate_verifier(peers.clone())
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(fault)?;
        client.resumption = rustls::client::Resumption::disabled();
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(fault)?
            .with_client_cert_verifier(peers.clone())
            .with_single_cert(chain, key)
            .map_err(fault)?;
        server.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(Self { client: Arc::new(client), server: Arc::new(server), peers })
    }

    /// Does the handshake. Returns the peer that the certificate belongs to, or those that it names.
    ///
    /// # Errors
    /// The reason, as a sentence for the log.
    pub(super) async fn handshake(
        &self,
        role: Role,
        stream: TcpStream,
        place: &str,
        address: IpAddr,
    ) -> Result<(TlsStream<TcpStream>, Vec<Eid>), String> {
        let result = match role {
            Role::Active => {
                let connector = TlsConnector::from(self.client.clone());
                connector.connect(ServerName::from(address), stream).await.map(TlsStream::from)
            }
            Role::Passive => TlsAcceptor::from(self.server.clone()).accept(stream).await.map(TlsStream::from),
        };
        let stream = result.map_err(|error| {
            explain(&error, place)
                .unwrap_or_else(|| format!("the TLS handshake with the node at {place} failed: {error}"))
        })?;
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let peers = self.peers.peers(chain, role, UnixTime::now());
        let peers = peers.map_err(|_| format!("the node at {place} showed no certificate that is known"))?;
        Ok((stream, peers))
    }
}

impl fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConfig").field("peers", &self.peers).finish_non_exhaustive()
    }
}

/// The sentence for an error of TLS, wherever it comes up: with TLS 1.3 a client learns only from its first
/// read that its certificate was not taken. `None` if it is no error of TLS.
pub(super) fn explain(error: &std::io::Error, place: &str) -> Option<String> {
    let tls = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    Some(match tls {
        rustls::Error::NoCertificatesPresented => {
            format!("the node at {place} showed no certificate; it needs one of its own")
        }
        rustls::Error::InvalidCertificate(CertificateError::Other(why)) => {
            format!("the node at {place} showed a certificate that is not trusted here: {why}")
        }
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            format!(
                "the certificate of the node at {place} is that of no configured peer and from no configured \
                 authority; it has to show the certificates between it and the authority, too"
            )
        }
        rustls::Error::InvalidCertificate(
            why @ (CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. }),
        ) => {
            format!(
                "the certificate of the node at {place} cannot be used now: {why}; renew it, or check both \
                 nodes' clocks"
            )
        }
        rustls::Error::InvalidCertificate(why) => {
            format!("the certificate of the node at {place} cannot be used: {why}")
        }
        rustls::Error::AlertReceived(
            AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateRequired
            | AlertDescription::AccessDenied
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateExpired,
        ) => format!("the node at {place} does not trust this node's certificate; configure it there"),
        rustls::Error::AlertReceived(AlertDescription::ProtocolVersion)
        | rustls::Error::PeerIncompatible(_) => {
            format!("the node at {place} does not speak TLS 1.3 as it is needed here: {tls}")
        }
        rustls::Error::InvalidMessage(_) => {
            format!("the node at {place} offered TLS and then did not speak it: {tls}")
        }
        _ => format!("the TLS session with the node at {place} failed: {tls}"),
    })
}

/// The certificates of the peers, and the authorities that may issue them.
#[derive(Debug)]
struct Trusted {
    pinned: Vec<(Eid, CertificateDer<'static>)>,
    authorities: Vec<Authority>,
    provider: Arc<CryptoProvider>,
}

/// A certificate of no configured peer.
#[derive(Debug, thiserror::Error)]
enum UnknownCertificate {
    #[error(
        "it is none of the {peers} that are configured (SHA-256 begins with {fingerprint}); was it renewed, or \
         is it another node?"
    )]
    NotPinned { peers: usize, fingerprint: String },
    #[error(
        "its authority is known, but it names no peer that is configured with this authority: {names}; a node's \
         certificate names it as a bundle EID in its subjectAltName"
    )]
    NoPeer { names: String },
}

impl UnknownCertificate {
    fn into_error(self) -> rustls::Error {
        CertificateError::Other(rustls::OtherError(Arc::new(self))).into()
    }
}

impl Trusted {
    /// The peers that this chain, the peer's certificate first, may belong to; at least one.
    fn peers(
        &self,
        chain: &[CertificateDer<'_>],
        role: Role,
        now: UnixTime,
    ) -> Result<Vec<Eid>, rustls::Error> {
        let certificate = chain.first().ok_or(rustls::Error::NoCertificatesPresented)?;
        let pinned = self.pinned.iter().filter(|(_, pinned)| pinned == certificate);
        let pinned: Vec<Eid> = pinned.map(|(peer, _)| peer.clone()).collect();
        if !pinned.is_empty() {
            return Ok(pinned);
        }
        let (mut peers, mut error) = (Vec::new(), None);
        for authority in &self.authorities {
            match authority.verify(chain, role, now) {
                Ok(()) => {
                    peers.extend(authority.named(certificate));
                    let names = Names::of(certificate).to_string();
                    error = Some(UnknownCertificate::NoPeer { names }.into_error());
                }
                Err(why) => error = error.or(Some(why)),
            }
        }
        if !peers.is_empty() {
            return Ok(peers);
        }
        Err(error.unwrap_or_else(|| {
            let fingerprint = fingerprint(certificate);
            UnknownCertificate::NotPinned { peers: self.pinned.len(), fingerprint }.into_error()
        }))
    }

    fn verify(
        &self,
        first: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        role: Role,
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        let chain: Vec<CertificateDer<'_>> = std::iter::once(first).chain(rest).cloned().collect();
        self.peers(&chain, role, now).map(drop)
    }
}

/// The methods that verify signatures, which both traits of rustls demand.
macro_rules! verify_signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            let algorithms = &self.provider.signature_verification_algorithms;
            verify_tls12_signature(message, certificate, signed, algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            let algorithms = &self.provider.signature_verification_algorithms;
            verify_tls13_signature(message, certificate, signed, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.provider.signature_verification_algorithms.supported_schemes()
        }
    };
}

impl ServerCertVerifier for Trusted {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.verify(end_entity, intermediates, Role::Active, now).map(|()| ServerCertVerified::assertion())
    }

    verify_signatures!();
}

impl ClientCertVerifier for Trusted {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.verify(end_entity, intermediates, Role::Passive, now).map(|()| ClientCertVerified::assertion())
    }

    verify_signatures!();
}
