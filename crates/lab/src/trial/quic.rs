//! Downloads by QUIC (RFC 9000), which no gateway splits: quinn at both ends, with its CUBIC.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use quinn::{ClientConfig, Connection, Endpoint, ServerConfig, TransportConfig, VarInt};
use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use super::READ_TIMEOUT;

/// The name in the server's certificate.
const NAME: &str = "server";
/// The windows of both ends, bytes: more than any of the laboratory's links holds with its queue, so that the
/// congestion control alone decides.
const WINDOW: u32 = 32 << 20;
/// A connection is given up after so long without a packet.
const IDLE: Duration = Duration::from_secs(60);

/// The keys of a server that its clients know.
pub(super) struct Keys(CertifiedKey<KeyPair>);

impl Keys {
    pub(super) fn new() -> io::Result<Self> {
        generate_simple_self_signed([NAME.to_owned()]).map(Self).map_err(io::Error::other)
    }

    fn server(&self) -> io::Result<ServerConfig> {
        let key = PrivateKeyDer::try_from(self.0.signing_key.serialize_der()).map_err(io::Error::other)?;
        let mut config =
            ServerConfig::with_single_cert(vec![self.0.cert.der().clone()], key).map_err(io::Error::other)?;
        config.transport_config(transport());
        Ok(config)
    }

    fn client(&self) -> io::Result<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.cert.der().clone()).map_err(io::Error::other)?;
        let mut config = ClientConfig::with_root_certificates(Arc::new(roots)).map_err(io::Error::other)?;
        config.transport_config(transport());
        Ok(config)
    }
}

fn transport() -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport
        .stream_receive_window(WINDOW.into())
        .receive_window(WINDOW.into())
        .send_window(WINDOW.into())
        .max_idle_timeout(Some(VarInt::from_u32(IDLE.as_millis() as u32).into()));
    Arc::new(transport)
}

/// Sends without end on a stream of each connection, until it is over.
pub(super) fn serve(at: SocketAddr, keys: &Keys, over: &AtomicBool) -> io::Result<()> {
    block_on(async {
        let endpoint = Endpoint::server(keys.server()?, at)?;
        while !over.load(Ordering::Relaxed) {
            if let Ok(Some(incoming)) = tokio::time::timeout(READ_TIMEOUT, endpoint.accept()).await {
                tokio::spawn(async move {
                    // The client's end is the end of the connection.
                    if let Ok(connection) = incoming.await {
                        let _ = fill(&connection).await;
                    }
                });
            }
        }
        Ok(())
    })
}

async fn fill(connection: &Connection) -> Result<(), quinn::WriteError> {
    let mut stream = connection.open_uni().await?;
    loop {
        stream.write_all(&[0; 1 << 16]).await?;
    }
}

/// Reads one such stream and counts its bytes, until it is over.
pub(super) fn read(server: SocketAddr, keys: &Keys, read: &AtomicU64, over: &AtomicBool) -> io::Result<()> {
    block_on(async {
        let mut endpoint = Endpoint::client(([0, 0, 0, 0], 0).into())?;
        endpoint.set_default_client_config(keys.client()?);
        let connection = endpoint.connect(server, NAME).map_err(io::Error::other)?.await?;
        let mut stream = connection.accept_uni().await?;
        let mut buffer = vec![0; 1 << 16];
        while !over.load(Ordering::Relaxed) {
            match tokio::time::timeout(READ_TIMEOUT, stream.read(&mut buffer)).await {
                Ok(Ok(Some(length))) => _ = read.fetch_add(length as u64, Ordering::Relaxed),
                Ok(Ok(None)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(Err(error)) => return Err(error.into()),
                Err(_) => {}
            }
        }
        Ok(())
    })
}

/// On this thread, whose namespace the sockets then have.
fn block_on<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}
