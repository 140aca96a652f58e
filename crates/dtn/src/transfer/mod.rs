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

use bentpipe_legs::Network;
use bentpipe_units::Span;
use serde::{Deserialize, Deserializer};
use tokio::task::JoinSet;

use crate::config::NodeConfig;
use crate::node::{Node, NodeError, SendOptions};
use crate::{Eid, EidPattern};

mod door;
mod envelope;
mod file;
mod folder_inlet;
mod folder_outlet;
mod http_inlet;
mod http_outlet;
mod network;
mod outlet;
mod turns;
mod undelivered;

use undelivered::Undelivered;

/// Connections that may wait for an HTTP inlet to accept them. While the node hangs they wait for nothing, so they are few.
pub(crate) const BACKLOG: i32 = 32;

/// `[[inlets]]`: where transfers come in.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum InletSettings {
    /// HTTP PUTs.
    Http {
        /// The address where they are taken, or a list of addresses. With a loopback address it takes connections that a rule of the
        /// proxy hands over (`action = "bundle"`), too: it is transparent.
        #[serde(deserialize_with = "one_or_more")]
        address: Vec<SocketAddr>,
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
        /// Without `server`: the networks of servers that they may go to. `0.0.0.0/0` and `::/0` do not comprise addresses of this host
        /// alone or of the local wire; they have to be said.
        #[serde(default)]
        to: Vec<Network>,
        /// Where those are kept that the server refuses for good; by default the folder `undelivered` in the node's store.
        undelivered: Option<PathBuf>,
    },
    /// Files of a folder.
    Folder {
        /// The service that they come for.
        service: String,
        /// Whose; others' are given up.
        from: EidPattern,
        /// The folder.
        folder: PathBuf,
        /// Where those are kept that can be no file there; by default the folder `undelivered` in the node's store.
        undelivered: Option<PathBuf>,
    },
}

/// Begins to take and to deliver transfers.
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
    for inlet in &config.inlets {
        match inlet {
            InletSettings::Http { address, to, lifetime } => {
                for listener in listeners.by_ref().take(address.len()) {
                    let inlet = http_inlet::Inlet::new(node.clone(), listener, options(to, *lifetime))
                        .map_err(NodeError::system("listen for HTTP PUTs".into()))?;
                    tasks.spawn(inlet.listen());
                }
            }
            InletSettings::Folder { folder, to, lifetime, settle } => {
                folder_inlet::check(folder)?;
                let inlet = folder_inlet::Inlet::new(folder.clone(), settle.get(), options(to, *lifetime));
                tasks.spawn(inlet.watch(node.clone()));
            }
        }
    }
    let aside = |folder: &Option<PathBuf>| {
        let folder = folder.clone().unwrap_or_else(|| config.node.store.join("undelivered"));
        Undelivered::new(folder, config.node.quota.get())
    };
    for outlet in &config.outlets {
        match outlet {
            OutletSettings::Http { service, from, server, to, undelivered } => {
                let outlet = http_outlet::HttpOutlet::new(*server, to.clone());
                let (node, endpoint) = (node.clone(), endpoint(node, service)?);
                tasks.spawn(outlet::serve(node, endpoint, from.clone(), aside(undelivered), outlet));
            }
            OutletSettings::Folder { service, from, folder, undelivered } => {
                folder_outlet::check(folder)?;
                let outlet = folder_outlet::FolderOutlet::new(folder.clone());
                let (node, endpoint) = (node.clone(), endpoint(node, service)?);
                tasks.spawn(outlet::serve(node, endpoint, from.clone(), aside(undelivered), outlet));
            }
        }
    }
    Ok(())
}

impl OutletSettings {
    /// Why it cannot be as it is written, if so.
    pub(crate) fn contradiction(&self) -> Option<String> {
        let Self::Http { service, server, to, .. } = self else { return None };
        match (server, to.is_empty()) {
            (None, true) => Some(format!(
                "the HTTP outlet of service \"{service}\" does not say where PUTs may go: write server = \"ADDRESS:PORT\", or \
                 to = [\"10.2.0.0/16\"], the networks of servers that they may name themselves"
            )),
            (Some(_), false) => Some(format!(
                "the HTTP outlet of service \"{service}\" has server and to: with server all PUTs go there, so leave to out"
            )),
            _ => None,
        }
    }
}

/// An address, or a list of them that is not empty.
fn one_or_more<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SocketAddr>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        One(String),
        More(Vec<String>),
    }
    let wanted = "write address = \"127.0.0.1:7690\", or address = [\"127.0.0.1:7690\", \"[::1]:7690\"]";
    let written = match Written::deserialize(deserializer) {
        Ok(Written::One(text)) => vec![text],
        Ok(Written::More(list)) if !list.is_empty() => list,
        _ => return Err(serde::de::Error::custom(format!("no address: {wanted}"))),
    };
    let parse = |text: &String| {
        text.parse()
            .map_err(|_| serde::de::Error::custom(format!("{text:?} is no address with a port; {wanted}")))
    };
    written.iter().map(parse).collect()
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
