//! Parts of a run that are not part of the simulator: congestion controls and effects of links from outside,
//! for experiments.

use std::collections::BTreeMap;

use bentpipe_link::CustomEffect;
use bentpipe_tcp::Endpoint;
use bentpipe_tcp::congestion::{Algorithm, ControlFactory};

use crate::scenario::Scenario;

/// What a run gets from outside. A run is repeatable only if these are.
#[derive(Debug, Default)]
pub struct Extensions {
    /// What makes the congestion controls that TCP parameters call `custom:NAME`, by name.
    pub congestion: BTreeMap<String, ControlFactory>,
    /// Effects behind those of a direction of a link, in order.
    pub effects: Vec<LinkEffect>,
}

/// An effect, and where it acts.
#[derive(Debug)]
pub struct LinkEffect {
    /// Index of the link.
    pub link: usize,
    /// From the link's first node to its second.
    pub forward: bool,
    /// The effect.
    pub effect: Box<dyn CustomEffect>,
}

impl Extensions {
    /// An endpoint with the congestion control that its configuration names, where that comes from outside.
    pub(crate) fn equip(&self, endpoint: Endpoint, congestion: Algorithm) -> Endpoint {
        let Algorithm::Custom(name) = congestion else { return endpoint };
        let factory = self.congestion.get(name.as_str());
        let factory =
            factory.unwrap_or_else(|| panic!("the congestion control custom:{} is given", name.as_str()));
        endpoint.with_control(factory.clone())
    }
}

/// The names of the congestion controls from outside that a scenario uses.
pub(crate) fn custom_names(scenario: &Scenario) -> impl Iterator<Item = String> + '_ {
    let legs = scenario.flows.iter().flat_map(|flow| &flow.legs);
    legs.flat_map(|leg| [leg.sender.congestion, leg.receiver.congestion]).filter_map(|congestion| {
        if let Algorithm::Custom(name) = congestion { Some(name.as_str().to_owned()) } else { None }
    })
}
