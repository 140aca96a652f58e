//! Reading the configuration of a running node again: routes, contacts and keys for bundles.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::Eid;
use crate::app::ReloadReport;
use crate::config::{ConfigError, NodeConfig};
use crate::node::{KeyError, Node, Policies, clock};

/// Why a node goes on with its old configuration.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The node was not started with a file.
    #[error("this node was not started from a file, so there is none to read again; restart it instead")]
    NoFile,
    /// The file, or the contact plan that it names, is not accepted.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A key for bundles cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A route leads to a peer that the running node does not have.
    #[error("the route to {to} goes via {via}, which is a new peer; peers take a restart")]
    NewPeer {
        /// The destinations.
        to: String,
        /// The peer.
        via: Eid,
    },
}

/// Reads the configuration of a running node again. Clones are the same.
#[derive(Debug, Clone)]
pub struct Reloader(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    node: Node,
    file: Option<PathBuf>,
    /// What is in force, with the contacts of the contact plan.
    in_force: Mutex<NodeConfig>,
}

impl Reloader {
    pub(super) fn new(node: Node, file: Option<PathBuf>, in_force: NodeConfig) -> Self {
        Self(Arc::new(Inner { node, file, in_force: Mutex::new(in_force) }))
    }

    /// Reads the configuration again and puts its routes, contacts and keys in force. All waiting bundles are
    /// routed again. Nothing happens to sessions and to bundles that are being sent. Blocks on the disk.
    ///
    /// # Errors
    /// [`ReloadError`]: nothing has changed.
    pub fn reload(&self) -> Result<ReloadReport, ReloadError> {
        let outcome = self.try_reload();
        match &outcome {
            Ok(report) => log(report),
            Err(error) => {
                tracing::error!("cannot reload the configuration, the old one stays in force: {error}")
            }
        }
        outcome
    }

    fn try_reload(&self) -> Result<ReloadReport, ReloadError> {
        let Inner { node, file, in_force } = &*self.0;
        let mut in_force = in_force.lock().unwrap_or_else(PoisonError::into_inner);
        let (read, warnings) = load(file.as_deref().ok_or(ReloadError::NoFile)?)?;
        let is_known = |via: &Eid| in_force.peers.iter().any(|peer| peer.id == *via);
        if let Some(route) = read.routes.iter().find(|route| !is_known(&route.via)) {
            return Err(ReloadError::NewPeer { to: route.to.to_string(), via: route.via.clone() });
        }
        let policies = Policies::load(&read.security)?;
        // Nothing fails from here on.
        let mut next = in_force.clone();
        next.routes.clone_from(&read.routes);
        next.contacts.clone_from(&read.contacts);
        next.security.clone_from(&read.security);
        next.node.contact_plan.clone_from(&read.node.contact_plan);
        let report = ReloadReport {
            changed: changed(&in_force, &next),
            needs_restart: needs_restart(&next, &read),
            warnings,
        };
        node.set_policies(policies);
        node.set_routes(&next);
        *in_force = next;
        Ok(report)
    }
}

fn load(file: &Path) -> Result<(NodeConfig, Vec<String>), ConfigError> {
    let mut config = NodeConfig::load(file)?;
    let warnings = config.read_contact_plan(clock())?;
    Ok((config, warnings.iter().map(ToString::to_string).collect()))
}

/// The keys that are different of those that take effect at once. A key file may have another key under the same
/// name; all of them are read.
fn changed(old: &NodeConfig, new: &NodeConfig) -> Vec<String> {
    different(&[
        ("node.contact_plan", old.node.contact_plan != new.node.contact_plan),
        ("routes", old.routes != new.routes),
        ("contacts", old.contacts != new.contacts),
        ("security", old.security != new.security),
    ])
}

/// The keys that are different otherwise.
fn needs_restart(old: &NodeConfig, new: &NodeConfig) -> Vec<String> {
    let node = (&old.node, &new.node);
    let keys = different(&[
        ("node.id", node.0.id != node.1.id),
        ("node.store", node.0.store != node.1.store),
        ("node.quota", node.0.quota != node.1.quota),
        ("node.max_bundles", node.0.max_bundles != node.1.max_bundles),
        ("node.keep_free", node.0.keep_free != node.1.keep_free),
        ("node.socket", node.0.socket != node.1.socket),
        ("node.metrics", node.0.metrics != node.1.metrics),
        ("node.metrics_token_file", node.0.metrics_token_file != node.1.metrics_token_file),
        ("node.authority", node.0.authority != node.1.authority),
        ("node.certificate", node.0.certificate != node.1.certificate),
        ("node.key", node.0.key != node.1.key),
        ("node.lifetime", node.0.lifetime != node.1.lifetime),
        ("node.status_reports", node.0.status_reports != node.1.status_reports),
        ("node.echo", node.0.echo != node.1.echo),
        ("node.user", node.0.user != node.1.user),
        ("legs", old.legs != new.legs),
        ("terrestrial", old.terrestrial != new.terrestrial),
        ("listen", old.listen != new.listen),
        ("ltp", old.ltp != new.ltp),
        ("udp", old.udp != new.udp),
        ("peers", old.peers != new.peers),
        ("inlets", old.inlets != new.inlets),
        ("outlets", old.outlets != new.outlets),
    ]);
    if keys.is_empty() && old != new {
        return vec!["another key".into()];
    }
    keys
}

fn different(keys: &[(&str, bool)]) -> Vec<String> {
    keys.iter().filter(|(_, is_different)| *is_different).map(|(key, _)| (*key).to_owned()).collect()
}

fn log(report: &ReloadReport) {
    for warning in &report.warnings {
        tracing::warn!("{warning}");
    }
    for key in &report.needs_restart {
        tracing::warn!(
            "{key} has changed in the configuration, and keeps its old value until the node is restarted"
        );
    }
    match report.changed.is_empty() {
        true => {
            tracing::info!("read the configuration again: no route or contact has changed; keys were read")
        }
        false => tracing::info!("read the configuration again: {} changed", report.changed.join(", ")),
    }
}
