//! TLS 1.3 between nodes that know each other's certificates.
//!
//! Trust is a list: a certificate is that of a peer if it is, byte for byte, the one configured for it. Its
//! dates and its issuer do not matter; that the other end has its key, the handshake proves. Both ends show
//! certificates. Nothing is resumed, so that what is taken off the list is trusted no more from the next
//! session on.

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

use super::identity::{Identity, IdentityError, fingerprint};
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
    peers: Arc<Pinned>,
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
        let fault = |error: rustls::Error| IdentityError::Unusable(error.to_string());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let peers = Arc::new(Pinned { peers: peers.into_iter().collect(), provider: provider.clone() });
        let Identity { certificate, key } = identity;
        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(fault)?
            .dangerous()
            .with_custom_certificate_verifier(peers.clone())
            .with_client_auth_cert(vec![certificate.clone()], key.clone_key())
            .map_err(fault)?;
        client.resumption = rustls::client::Resumption::disabled();
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(fault)?
            .with_client_cert_verifier(peers.clone())
            .with_single_cert(vec![certificate], key)
            .map_err(fault)?;
        server.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(Self { client: Arc::new(client), server: Arc::new(server), peers })
    }

    /// Does the handshake. Returns the peer that the certificate belongs to.
    ///
    /// # Errors
    /// The reason, as a sentence for the log.
    pub(super) async fn handshake(
        &self,
        role: Role,
        stream: TcpStream,
        place: &str,
        address: IpAddr,
    ) -> Result<(TlsStream<TcpStream>, Eid), String> {
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
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let peer = shown.and_then(|certificate| self.peers.peer(certificate)).cloned();
        let peer = peer.ok_or_else(|| format!("the node at {place} showed no certificate that is known"))?;
        Ok((stream, peer))
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
        rustls::Error::InvalidCertificate(why) => {
            format!("the certificate of the node at {place} cannot be used: {why}")
        }
        rustls::Error::AlertReceived(
            AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateRequired
            | AlertDescription::AccessDenied
            | AlertDescription::UnsupportedCertificate,
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

/// The certificates of the peers.
#[derive(Debug)]
struct Pinned {
    peers: Vec<(Eid, CertificateDer<'static>)>,
    provider: Arc<CryptoProvider>,
}

/// A certificate of no configured peer.
#[derive(Debug, thiserror::Error)]
#[error(
    "it is none of the {peers} that are configured (SHA-256 begins with {fingerprint}); was it renewed, or \
     is it another node?"
)]
struct UnknownCertificate {
    peers: usize,
    fingerprint: String,
}

impl Pinned {
    fn peer(&self, certificate: &CertificateDer<'_>) -> Option<&Eid> {
        self.peers.iter().find(|(_, pinned)| pinned == certificate).map(|(peer, _)| peer)
    }

    fn verify(&self, certificate: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        if self.peer(certificate).is_some() {
            return Ok(());
        }
        let unknown = UnknownCertificate { peers: self.peers.len(), fingerprint: fingerprint(certificate) };
        Err(CertificateError::Other(rustls::OtherError(Arc::new(unknown))).into())
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

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.verify(end_entity).map(|()| ServerCertVerified::assertion())
    }

    verify_signatures!();
}

impl ClientCertVerifier for Pinned {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.verify(end_entity).map(|()| ClientCertVerified::assertion())
    }

    verify_signatures!();
}
