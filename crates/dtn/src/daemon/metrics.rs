//! The metrics over TCP, for those who collect them from elsewhere: read only, and nothing else.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;

use axum::middleware::from_fn_with_state;
use bentpipe_http::auth::{self, Auth};
use bentpipe_http::{Token, server, tcp};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::app;
use crate::config::NodeSettings;
use crate::node::{Node, NodeError};

/// The reply to all but questions.
const READ_ONLY: &str = "TCP is read only, and has /metrics; everything else is on the socket, node.socket";

/// A bound socket, and what requests there need.
#[derive(Debug)]
pub(super) struct MetricsListener {
    listener: StdListener,
    auth: Auth,
}

impl MetricsListener {
    /// Binds the configured address, if there is one. Call it while the process may still read the token's file.
    pub(super) fn bind(settings: &NodeSettings) -> Result<Option<Self>, NodeError> {
        let Some(address) = settings.metrics.map(|address| address.0) else { return Ok(None) };
        let token = settings.metrics_token_file.as_deref();
        let token = token.map(|path| Token::load(path, "node.metrics_token_file")).transpose()?;
        let action = format!(
            "listen for readers of metrics at {address} (node.metrics; another process may have the port)"
        );
        let bound = || {
            let listener = StdListener::from(tcp::listen(address)?);
            io::Result::Ok((listener.local_addr()?, listener))
        };
        let (address, listener) = bound().map_err(NodeError::system(action))?;
        Ok(Some(Self { listener, auth: Auth::new(address, token, READ_ONLY) }))
    }

    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers until the node stops.
    pub(super) async fn serve(self, node: Node, stop: watch::Receiver<bool>) {
        let listener = match TcpListener::from_std(self.listener) {
            Ok(listener) => listener,
            Err(error) => return tracing::error!("cannot serve metrics over TCP: {error}"),
        };
        let auth = Arc::new(self.auth);
        let router = app::metrics_router(node).layer(from_fn_with_state(auth, auth::require));
        server::accept(stop, || listener.accept(), |(stream, _)| (stream, router.clone())).await;
    }
}
