//! The echo service: what comes to it goes back to its source, so that anybody can see whether a node can be
//! reached, and how long that takes.

use std::io::Read;
use std::time::Duration;

use tokio::task::block_in_place;

use crate::Eid;
use crate::bundle::{FileName, ReportRequests};
use crate::store::{Record, StoreError};

use super::{Node, Refused, SendOptions, clock};

/// The longest payload that is sent back, bytes; a longer one is acknowledged and dropped.
pub(crate) const LONGEST: u64 = 64 << 10;
/// How long the service waits after the store has failed.
const RETRY: Duration = Duration::from_secs(10);

/// The echo service of a node: `echo`, or 2047 of an `ipn` node, as NASA's HDTN has it.
pub fn default_service(node: &Eid) -> &'static str {
    if matches!(node, Eid::Ipn { .. }) { "2047" } else { "echo" }
}

impl Node {
    /// The endpoint of the echo service that a configuration names, or the [default](default_service) one.
    /// `None` if it is turned off with an empty name.
    ///
    /// # Errors
    /// The node cannot have this service.
    pub(crate) fn echo_endpoint(&self, service: Option<&str>) -> Result<Option<Eid>, crate::EidError> {
        match service.unwrap_or(default_service(&self.0.me)) {
            "" => Ok(None),
            service => self.0.me.with_service(service).map(Some),
        }
    }

    /// Sends back what comes to the endpoint, until it is cancelled.
    pub(crate) async fn run_echo(self, endpoint: Eid) {
        loop {
            let arrival = self.arrival();
            let Some(record) = self.next_delivery(&endpoint) else {
                arrival.await;
                continue;
            };
            if let Err(error) = block_in_place(|| self.echo(&endpoint, &record)) {
                tracing::warn!("cannot send back {}: {error}", record.bundle.id);
                self.release(record.key);
                tokio::time::sleep(RETRY).await;
            }
        }
    }

    fn echo(&self, endpoint: &Eid, record: &Record) -> Result<(), Refused> {
        let source = &record.bundle.id.source;
        // Two echo services must not send a bundle back and forth: to a service of its own name there is no
        // answer.
        let is_echo = source.service().is_some() && source.service() == endpoint.service();
        if *source != Eid::None && !is_echo && record.bundle.payload_len <= LONGEST {
            self.answer(endpoint, record)?;
        }
        self.acknowledge(record.key)?;
        Ok(())
    }

    fn answer(&self, endpoint: &Eid, record: &Record) -> Result<(), Refused> {
        let bundle = &record.bundle;
        let options = SendOptions {
            service: endpoint.service(),
            // The answer is of no use when the question is not.
            lifetime: Some(record.expires.since(clock())),
            priority: bundle.priority,
            reports: ReportRequests::default(),
            file_name: None::<FileName>,
            ..SendOptions::to(bundle.id.source.clone())
        };
        let mut payload = Vec::new();
        let read = self.store().read(&record.payload).take(LONGEST).read_to_end(&mut payload);
        read.map_err(|error| StoreError::io("read a payload of", self.store().folder(), error))?;
        let mut receiver = self.begin(self.bundle(&options)?, Some(bundle.payload_len))?;
        receiver.write(&payload)?;
        receiver.finish()
    }
}
