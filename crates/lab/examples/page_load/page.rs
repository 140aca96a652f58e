//! The page and its server: HTTP/2 over TLS 1.3, with a certificate of its own that nobody has signed.

use std::error::Error;
use std::net::TcpListener;
use std::sync::Arc;

use bytes::Bytes;
use h2::server::{SendResponse, handshake};
use http::Response;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::version::TLS13;

/// The page itself and its objects, together.
const OBJECTS: usize = 60;
/// All of them, bytes.
pub(crate) const BYTES: usize = 1_900_000;

/// A running server; it ends with this value.
pub(crate) struct Page {
    _runtime: Runtime,
}

impl Page {
    pub(crate) fn serve(listener: TcpListener) -> Result<Self, Box<dyn Error>> {
        let acceptor = TlsAcceptor::from(Arc::new(tls()?));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        listener.set_nonblocking(true)?;
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        runtime.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                // A browser opens connections that it does not use.
                tokio::spawn(answer(acceptor.clone(), client));
            }
        });
        Ok(Self { _runtime: runtime })
    }
}

fn tls() -> Result<ServerConfig, Box<dyn Error>> {
    let own = rcgen::generate_simple_self_signed(["page.example".to_owned()])?;
    let key = PrivateKeyDer::try_from(own.signing_key.serialize_der())?;
    let mut config = ServerConfig::builder_with_protocol_versions(&[&TLS13])
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

async fn answer(acceptor: TlsAcceptor, client: TcpStream) -> Result<(), Box<dyn Error + Send + Sync>> {
    client.set_nodelay(true)?;
    let mut connection = handshake(acceptor.accept(client).await?).await?;
    while let Some(request) = connection.accept().await {
        let (request, respond) = request?;
        send(request.uri().path(), respond)?;
    }
    Ok(())
}

fn send(path: &str, mut respond: SendResponse<Bytes>) -> Result<(), h2::Error> {
    let (kind, body) = match path {
        "/" => ("text/html", document()),
        _ => ("text/javascript", object()),
    };
    let head = Response::builder().header("content-type", kind).header("cache-control", "no-store");
    let head = head.body(()).expect("the header is valid");
    // All that the browser's window has room for leaves at once.
    respond.send_response(head, false)?.send_data(body, true)
}

/// What is left of the bytes when the objects have theirs; it tells when it is complete.
fn document() -> Bytes {
    let scripts: String =
        (1..OBJECTS).map(|number| format!("<script async src=\"/{number}.js\"></script>\n")).collect();
    let head = "<!doctype html><link rel=icon href=data:,><title>loading</title><script>\
                addEventListener('load', () => {\
                const page = performance.getEntriesByType('navigation')[0];\
                document.title = 'loaded ' + page.responseStart + ' ' + page.loadEventStart; });</script>\n";
    let rest = BYTES - (OBJECTS - 1) * (BYTES / OBJECTS) - head.len() - scripts.len();
    format!("{head}{scripts}<!--{}-->", " ".repeat(rest - "<!---->".len())).into()
}

/// A script that does nothing.
fn object() -> Bytes {
    format!("/*{}*/", " ".repeat(BYTES / OBJECTS - "/**/".len())).into()
}
