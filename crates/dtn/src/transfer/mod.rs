//! HTTP PUTs and files that travel as bundles: they enter at an *inlet* of one node and leave at an *outlet*
//! of another, however long the path between them is down.
//!
//! ```text
//! HTTP PUT ──► inlet ──┐                                     ┌──► outlet ──► HTTP PUT
//!                      ├─► envelope ─► bundles ─► envelope ──┤
//! a file ────► inlet ──┘                                     └──► outlet ──► a file
//! ```
//!
//! A PUT is idempotent (RFC 9110 §9.2.2), and so is writing a file: delivery at least once is enough. For
//! this reason no other method is accepted.

use std::path::PathBuf;

use bentpipe_units::Span;
use tokio::task::JoinSet;

use crate::bundle::ReportRequests;
use crate::config::{EgressSettings, IngressSettings, NodeConfig};
use crate::node::{Node, NodeError, SendOptions};
use crate::{Eid, EidPattern};

mod delivery_order;
mod egress;
mod envelope;
mod file;
mod folder_egress;
mod folder_ingress;
mod http_egress;
mod http_ingress;
mod network;
mod pausable_listener;
mod undelivered;

use egress::Outlet;
use undelivered::Undelivered;

/// Backlog of HTTP inlets. It is small because these connections wait in vain if the node hangs.
pub(crate) const BACKLOG: i32 = 32;

/// Starts all inlets and outlets.
///
/// # Errors
/// An address or a folder cannot be used.
pub(crate) async fn start(
    node: &Node,
    config: &NodeConfig,
    listeners: Vec<std::net::TcpListener>,
    tasks: &mut JoinSet<()>,
) -> Result<(), NodeError> {
    let mut listeners = listeners.into_iter();
    for ingress in &config.inlets {
        match ingress {
            IngressSettings::Http { address, to, lifetime, reports } => {
                for listener in listeners.by_ref().take(address.len()) {
                    let ingress =
                        http_ingress::Ingress::new(node.clone(), listener, options(to, *lifetime, *reports))
                            .map_err(NodeError::system("listen for HTTP PUTs".into()))?;
                    tasks.spawn(ingress.listen());
                }
            }
            IngressSettings::Folder { folder, to, lifetime, reports, settle } => {
                folder_ingress::check(folder)?;
                let options = options(to, *lifetime, *reports);
                let ingress = folder_ingress::Ingress::new(folder.clone(), settle.get(), options);
                tasks.spawn(ingress.watch(node.clone()));
            }
        }
    }
    let outlet = |service: &str, from: &EidPattern, undelivered: &Option<PathBuf>| {
        let endpoint = node.id().with_service(service);
        let endpoint = endpoint.map_err(|error| NodeError::Service(format!("an outlet: {error}")))?;
        let folder = undelivered.clone().unwrap_or_else(|| config.node.store.join("undelivered"));
        let undelivered = Undelivered::new(folder, config.node.quota.get());
        Ok::<_, NodeError>(Outlet { node: node.clone(), endpoint, from: from.clone(), undelivered })
    };
    for settings in &config.outlets {
        match settings {
            EgressSettings::Http { service, from, server, to, undelivered } => {
                let egress = http_egress::HttpEgress::new(*server, to.clone());
                tasks.spawn(outlet(service, from, undelivered)?.serve(egress));
            }
            EgressSettings::Folder { service, from, folder, undelivered } => {
                folder_egress::check(folder)?;
                let egress = folder_egress::FolderEgress::new(folder.clone());
                tasks.spawn(outlet(service, from, undelivered)?.serve(egress));
            }
        }
    }
    Ok(())
}

fn options(to: &Eid, lifetime: Option<Span>, reports: ReportRequests) -> SendOptions {
    SendOptions { lifetime: lifetime.map(Span::get), reports, ..SendOptions::to(to.clone()) }
}
