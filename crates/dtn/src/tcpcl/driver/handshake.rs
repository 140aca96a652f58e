//! The handshake that opens a session: contact headers and TLS.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::{CLOSE_TIMEOUT, Reader, Shared, Writer, shutdown_requested, until_over};
use crate::tcpcl::message::CONTACT_LEN;
use crate::tcpcl::session::Event;
use crate::tcpcl::settings::{EndedBy, Role};
use crate::tcpcl::tls::Tls;

/// Exchanges contact headers, and starts TLS if both sides want it; `None` if the session ended.
pub(super) async fn open(
    shared: &Arc<Shared>,
    stream: TcpStream,
    role: Role,
    tls: &Tls,
    address: IpAddr,
    shutdown: &mut watch::Receiver<bool>,
) -> Option<(Reader, Writer)> {
    let opened = tokio::select! {
        opened = contact(shared, stream, role, tls, address) => opened,
        () = until_over(shared) => None,
        () = shutdown_requested(shutdown, false) => {
            shared.lock().terminate(shared.now());
            None
        }
    };
    opened.filter(|_| !shared.is_over())
}

async fn contact(
    shared: &Arc<Shared>,
    mut stream: TcpStream,
    role: Role,
    tls: &Tls,
    address: IpAddr,
) -> Option<(Reader, Writer)> {
    let mut out = Vec::new();
    shared.lock().take_control(&mut out, shared.now());
    let mut header = [0; CONTACT_LEN];
    let read = async {
        stream.write_all(&out).await?;
        stream.read_exact(&mut header).await
    };
    match read.await {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            shared.ended();
            return None;
        }
        Err(error) => {
            shared.failed("exchanging contact headers", &error);
            return None;
        }
    }
    out.clear();
    let event = {
        let mut session = shared.lock();
        let event = session.receive_contact(header, shared.now());
        session.take_control(&mut out, shared.now());
        event
    };
    if let Err(error) = stream.write_all(&out).await {
        shared.failed("exchanging contact headers", &error);
        return None;
    }
    if shared.is_over() {
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, stream.shutdown()).await;
        return None;
    }
    let (Some(Event::StartTls), Tls::Offer(config) | Tls::Require(config)) = (event, tls) else {
        let (reader, writer) = stream.into_split();
        return Some((Box::new(reader), Box::new(writer)));
    };
    match config.handshake(role, stream, &shared.place, address).await {
        Ok((stream, proven)) => {
            shared.lock().tls_done(proven);
            let (reader, writer) = tokio::io::split(stream);
            Some((Box::new(reader), Box::new(writer)))
        }
        Err(text) => {
            shared.lock().abort(EndedBy::Us, text);
            None
        }
    }
}
