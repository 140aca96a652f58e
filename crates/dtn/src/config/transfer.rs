//! `[[inlets]]` and `[[outlets]]`: where HTTP PUTs and files enter and leave the network of bundle nodes.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bentpipe_config::{Address, List, Problem};
use bentpipe_legs::Network;
use bentpipe_units::Span;
use serde::{Deserialize, Deserializer};

use crate::bundle::ReportRequests;
use crate::{Eid, EidPattern};

/// `[[inlets]]`: where transfers enter.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename = "$tag:kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum IngressSettings {
    /// HTTP PUTs.
    Http {
        /// The address where they are taken, or a list of addresses. With a loopback address it takes
        /// connections that a rule of the proxy hands over (`action = "bundle"`), too: it is transparent.
        #[serde(deserialize_with = "addresses")]
        address: Vec<SocketAddr>,
        /// The destination.
        to: Eid,
        /// Their lifetime; by default the node's.
        lifetime: Option<Span>,
        /// The events that other nodes report to this one: `true` is delivery and deletion.
        #[serde(default, deserialize_with = "report_requests")]
        reports: ReportRequests,
    },
    /// Files of a folder, which leave it when the node has them.
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The destination.
        to: Eid,
        /// Their lifetime; by default the node's.
        lifetime: Option<Span>,
        /// The events that other nodes report to this one: `true` is delivery and deletion.
        #[serde(default, deserialize_with = "report_requests")]
        reports: ReportRequests,
        /// A file that has not changed for this long is complete.
        #[serde(default = "default_settle")]
        settle: Span,
    },
}

/// `[[outlets]]`: where transfers leave.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename = "$tag:kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum EgressSettings {
    /// HTTP PUTs to the original server or to a configured one.
    Http {
        /// The service that receives them.
        service: String,
        /// The accepted sources; transfers of others are deleted.
        from: EidPattern,
        /// The server that gets all of them.
        server: Option<SocketAddr>,
        /// Without `server`: the networks of servers that they may go to. `0.0.0.0/0` and `::/0` do not
        /// comprise addresses of this host alone or of the local wire; they have to be said.
        #[serde(default)]
        to: Vec<Network>,
        /// Where those are kept that the server refuses for good; by default the folder `undelivered` in the
        /// node's store.
        undelivered: Option<PathBuf>,
    },
    /// Files of a folder.
    Folder {
        /// The service that receives them.
        service: String,
        /// The accepted sources; transfers of others are deleted.
        from: EidPattern,
        /// The folder.
        folder: PathBuf,
        /// Where those are kept that can be no file there; by default the folder `undelivered` in the node's
        /// store.
        undelivered: Option<PathBuf>,
    },
}

impl EgressSettings {
    /// Checks that it says where PUTs go, and says it once.
    pub(super) fn check(&self) -> Result<(), Problem> {
        let Self::Http { server, to, .. } = self else { return Ok(()) };
        match (server, to.is_empty()) {
            (None, true) => Err(Problem::new(
                "it does not say where PUTs may go: write server = \"ADDRESS:PORT\", or to = \
                 [\"10.2.0.0/16\"], the networks of \
                 servers that they may name themselves",
            )),
            (Some(_), false) => Err(Problem::of("to", "with server all PUTs go there, so leave to out")),
            _ => Ok(()),
        }
    }
}

/// An address, or a list of them that is not empty.
fn addresses<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SocketAddr>, D::Error> {
    List::<Address>::deserialize(deserializer).map(|list| list.iter().map(|address| address.0).collect())
}

/// How the requested reports are written.
#[derive(Deserialize)]
#[serde(rename = "$shape", rename_all = "lowercase")]
enum Reports {
    Boolean(bool),
    List(List<ReportedStatus>),
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum ReportedStatus {
    Reception,
    Forwarding,
    Delivery,
    Deletion,
}

fn report_requests<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ReportRequests, D::Error> {
    let mut requests = ReportRequests::default();
    match Reports::deserialize(deserializer)? {
        Reports::Boolean(wanted) => (requests.delivery, requests.deletion) = (wanted, wanted),
        Reports::List(events) => events.iter().for_each(|event| match event {
            ReportedStatus::Reception => requests.reception = true,
            ReportedStatus::Forwarding => requests.forwarding = true,
            ReportedStatus::Delivery => requests.delivery = true,
            ReportedStatus::Deletion => requests.deletion = true,
        }),
    }
    Ok(requests)
}

fn default_settle() -> Span {
    Span(Duration::from_secs(2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NodeConfig;

    fn inlet(reports: &str) -> Result<ReportRequests, String> {
        let text = format!(
            "[node]\nid = \"dtn://a/\"\n[[inlets]]\nkind = \"folder\"\nfolder = \"in\"\nto = \"dtn://b/x\"\n{reports}\n"
        );
        match &NodeConfig::parse("node.toml", &text).map_err(|error| error.to_string())?.inlets[0] {
            IngressSettings::Http { reports, .. } | IngressSettings::Folder { reports, .. } => Ok(*reports),
        }
    }

    #[test]
    fn reports_are_requested_by_name_or_those_of_the_end() {
        let none = ReportRequests::default();
        let of_the_end = ReportRequests { delivery: true, deletion: true, ..none };
        assert_eq!((inlet(""), inlet("reports = false")), (Ok(none), Ok(none)));
        assert_eq!(inlet("reports = true"), Ok(of_the_end));
        assert_eq!(inlet("reports = [\"deletion\", \"delivery\"]"), Ok(of_the_end));
        let other = ReportRequests { reception: true, forwarding: true, ..none };
        assert_eq!(inlet("reports = [\"reception\", \"forwarding\"]"), Ok(other));
        for (wrong, says) in [("[]", "empty list"), ("[\"arrival\"]", "arrival"), ("\"yes\"", "reports")] {
            let error = inlet(&format!("reports = {wrong}")).unwrap_err();
            assert!(error.contains(says), "{wrong}: {error}");
        }
    }
}
