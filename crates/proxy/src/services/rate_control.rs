//! Explicit rates: the thread of [`RateController`] as a service.

use std::sync::Arc;

use bentpipe_legs::RateController;
use bentpipe_link::explicit::Memory;
use bentpipe_units::Rate;
use serde::{Deserialize, Serialize};

use super::{Context, Service};
use crate::error::Error;
use crate::snapshot::{Section, SnapshotError};
use crate::types::mailbox::Heartbeat;

/// It runs even if no leg has explicit rates: a reload may add one, which the watchdog supervises from then
/// on.
#[derive(Debug, Default)]
pub(super) struct RateControl {
    controller: Option<RateController>,
}

/// What a successor begins with.
#[derive(Debug, Serialize, Deserialize)]
struct Snapshot {
    /// The capacities that were measured, by the legs' names.
    capacities: Vec<(String, Rate)>,
}

impl Service for RateControl {
    fn name(&self) -> &'static str {
        "rate_control"
    }

    /// Flows that are taken over need their rates at once. It touches nothing of the predecessor's.
    fn resume(&mut self, section: Option<Section>, context: &Context) -> Result<(), Error> {
        // An older program hands over none.
        if let Some(Ok(Snapshot { capacities })) = section.map(Section::read) {
            context.shared.link_estimates.remember(capacities, Memory::Present);
        }
        self.start(context)
    }

    fn start(&mut self, context: &Context) -> Result<(), Error> {
        if self.controller.is_none() {
            let estimates = context.shared.link_estimates.clone();
            let senders = context.shared.senders.clone();
            self.controller = Some(RateController::start(&context.legs, estimates, senders)?);
        }
        Ok(())
    }

    /// After a failed upgrade; else it is not paused.
    fn unpause(&mut self, _context: &Context) -> Result<(), Error> {
        if let Some(controller) = &self.controller {
            controller.resume();
        }
        Ok(())
    }

    /// Two processes must not set the rate of one connection.
    fn pause(&mut self) {
        if let Some(controller) = &self.controller {
            controller.pause();
        }
    }

    fn snapshot(&self, context: &Context) -> Result<Option<Section>, SnapshotError> {
        Section::of(&Snapshot { capacities: context.shared.link_estimates.capacities() }).map(Some)
    }

    fn reload(&mut self, context: &Context) {
        if let Some(controller) = &self.controller {
            controller.replace(&context.legs);
        }
    }

    fn heartbeat(&self) -> Option<Arc<dyn Heartbeat>> {
        self.controller.as_ref().map(|controller| Arc::new(controller.waker()) as Arc<dyn Heartbeat>)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_handed_over_is_read() {
        let capacities = vec![("geo".to_owned(), Rate::from_bps(9_565_911).unwrap())];
        let section = Section::of(&Snapshot { capacities: capacities.clone() }).unwrap();
        assert_eq!(section.read::<Snapshot>().unwrap().capacities, capacities);
    }
}
