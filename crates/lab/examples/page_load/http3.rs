//! The page by HTTP/3 (RFC 9114): quinn's QUIC, with its windows as they are.

use std::error::Error;
use std::net::UdpSocket;
use std::sync::Arc;

use bentpipe_lab::quic::Congestion;
use bytes::Bytes;
use h3::server::{Connection, RequestResolver};
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Endpoint, EndpointConfig, Incoming, ServerConfig, TokioRuntime, TransportConfig};
use tokio::runtime::Runtime;

use crate::page::{self, Identity};

/// A running server; it ends with this value.
pub(crate) struct Server {
    _runtime: Runtime,
}

type Failure = Box<dyn Error + Send + Sync>;
type Quic = h3_quinn::Connection;

impl Server {
    pub(crate) fn start(
        socket: UdpSocket,
        identity: &Identity,
        congestion: Congestion,
    ) -> Result<Self, Box<dyn Error>> {
        let crypto = QuicServerConfig::try_from(identity.tls("h3")?)?;
        let mut config = ServerConfig::with_crypto(Arc::new(crypto));
        let mut transport = TransportConfig::default();
        transport.congestion_controller_factory(congestion.factory());
        config.transport_config(Arc::new(transport));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let endpoint = {
            let _inside = runtime.enter();
            Endpoint::new(EndpointConfig::default(), Some(config), socket, Arc::new(TokioRuntime))?
        };
        runtime.spawn(async move {
            while let Some(client) = endpoint.accept().await {
                tokio::spawn(serve(client));
            }
        });
        Ok(Self { _runtime: runtime })
    }
}

async fn serve(client: Incoming) -> Result<(), Failure> {
    let mut connection = Connection::new(Quic::new(client.await?)).await?;
    while let Some(request) = connection.accept().await? {
        tokio::spawn(answer(request));
    }
    Ok(())
}

async fn answer(request: RequestResolver<Quic, Bytes>) -> Result<(), Failure> {
    let (request, mut stream) = request.resolve_request().await?;
    let (head, body) = page::answer(request.uri().path());
    stream.send_response(head).await?;
    stream.send_data(body).await?;
    Ok(stream.finish().await?)
}
