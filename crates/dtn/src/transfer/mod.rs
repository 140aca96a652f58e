//! HTTP PUTs and files that travel as bundles: what comes in at an *inlet* of one node comes out at an *outlet* of another, however
//! long the way between them is down.
//!
//! ```text
//! HTTP PUT ──► inlet ──┐                                     ┌──► outlet ──► HTTP PUT
//!                      ├─► envelope ─► bundles ─► envelope ──┤
//! a file ────► inlet ──┘                                     └──► outlet ──► a file
//! ```
//!
//! A PUT may be repeated without harm (RFC 9110 §9.2.2), and so may the writing of a file: so what is delivered at least once does
//! what was wanted. That is why no other method travels.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bentpipe_units::Span;
use serde::Deserialize;
use tokio::task::JoinSet;

use crate::node::{Node, NodeError, SendOptions};
use crate::{Eid, EidPattern};

mod envelope;
mod folder_inlet;
mod folder_outlet;
mod http_inlet;
mod http_outlet;
mod outlet;

/// `[[inlets]]`: where transfers come in.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum InletSettings {
    /// HTTP PUTs.
    Http {
        /// The address where they are taken. With a loopback address it takes connections that a rule of the proxy hands over
        /// (`action = "bundle"`), too: it is transparent.
        address: SocketAddr,
        /// Who gets them.
        to: Eid,
        /// How long they are of use; by default what the node says.
        lifetime: Option<Span>,
    },
    /// Files of a folder, which leave it when the node has them.
    Folder {
        /// The folder.
        folder: PathBuf,
        /// Who gets them.
        to: Eid,
        /// How long they are of use; by default what the node says.
        lifetime: Option<Span>,
        /// A file that has not changed for this long is complete.
        #[serde(default = "default_settle")]
        settle: Span,
    },
}

/// `[[outlets]]`: where transfers come out.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum OutletSettings {
    /// HTTP PUTs, to the server that the PUT was meant for, or to one that is said here.
    Http {
        /// The service that they come for.
        service: String,
        /// Whose; others' are given up.
        from: EidPattern,
        /// The server that gets all of them.
        server: Option<SocketAddr>,
    },
    /// Files of a folder.
    Folder {
        /// The service that they come for.
        service: String,
        /// Whose; others' are given up.
        from: EidPattern,
        /// The folder.
        folder: PathBuf,
    },
}

/// Begins to take and to deliver transfers.
///
/// # Errors
/// An address or a folder cannot be used.
pub(crate) async fn start(
    node: &Node,
    inlets: &[InletSettings],
    listeners: Vec<std::net::TcpListener>,
    outlets: &[OutletSettings],
    tasks: &mut JoinSet<()>,
) -> Result<(), NodeError> {
    let mut listeners = listeners.into_iter();
    for inlet in inlets {
        match inlet {
            InletSettings::Http { to, lifetime, .. } => {
                let Some(listener) = listeners.next() else { continue };
                let listener = tokio::net::TcpListener::from_std(listener)
                    .map_err(NodeError::system("listen for HTTP PUTs".into()))?;
                tasks.spawn(http_inlet::listen(node.clone(), listener, options(to, *lifetime)));
            }
            InletSettings::Folder { folder, to, lifetime, settle } => {
                folder_inlet::check(folder)?;
                let inlet = folder_inlet::Inlet::new(folder.clone(), settle.get(), options(to, *lifetime));
                tasks.spawn(inlet.watch(node.clone()));
            }
        }
    }
    for outlet in outlets {
        match outlet {
            OutletSettings::Http { service, from, server } => {
                let outlet = http_outlet::HttpOutlet::new(*server);
                tasks.spawn(outlet::serve(node.clone(), endpoint(node, service)?, from.clone(), outlet));
            }
            OutletSettings::Folder { service, from, folder } => {
                folder_outlet::check(folder)?;
                let outlet = folder_outlet::FolderOutlet::new(folder.clone());
                tasks.spawn(outlet::serve(node.clone(), endpoint(node, service)?, from.clone(), outlet));
            }
        }
    }
    Ok(())
}

fn endpoint(node: &Node, service: &str) -> Result<Eid, NodeError> {
    node.id().with_service(service).map_err(|error| NodeError::Outlet { reason: error.to_string() })
}

fn options(to: &Eid, lifetime: Option<Span>) -> SendOptions {
    SendOptions {
        destination: to.clone(),
        service: None,
        lifetime: lifetime.map(Span::get),
        priority: crate::bundle::Priority::default(),
        hop_limit: None,
        must_not_fragment: false,
        reports: crate::bundle::ReportRequests::default(),
    }
}

fn default_settle() -> Span {
    Span(Duration::from_secs(2))
}
