//! The page by HTTP/2 over TLS 1.3 and TCP.

use std::error::Error;
use std::net::TcpListener;
use std::sync::Arc;

use h2::server::handshake;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;

use crate::page::{self, Identity};

/// A running server; it ends with this value.
pub(crate) struct Server {
    _runtime: Runtime,
}

impl Server {
    pub(crate) fn start(listener: TcpListener, identity: &Identity) -> Result<Self, Box<dyn Error>> {
        let acceptor = TlsAcceptor::from(Arc::new(identity.tls("h2")?));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        listener.set_nonblocking(true)?;
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        runtime.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                // A browser opens connections that it does not use.
                tokio::spawn(serve(acceptor.clone(), client));
            }
        });
        Ok(Self { _runtime: runtime })
    }
}

async fn serve(acceptor: TlsAcceptor, client: TcpStream) -> Result<(), Box<dyn Error + Send + Sync>> {
    client.set_nodelay(true)?;
    let mut connection = handshake(acceptor.accept(client).await?).await?;
    while let Some(request) = connection.accept().await {
        let (request, mut respond) = request?;
        let (head, body) = page::answer(request.uri().path());
        // All that the browser's window has room for leaves at once.
        respond.send_response(head, false)?.send_data(body, true)?;
    }
    Ok(())
}
