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

#[cfg(test)]
mod tests {
    use bentpipe_link::PassingPacket;
    use bentpipe_tcp::congestion::NewReno;

    use super::*;
    use crate::file::Source;
    use crate::{RunResult, Unobserved, run_with};

    const TEXT: &str = r#"
duration = "60s"
[[link]]
name = "sat"
between = ["a", "b"]
rate = "10M"
delay = "100ms"
per = "2%"
[tcp.t]
congestion = "newreno"
[[flow]]
name = "f"
from = "a"
to = "b"
bytes = "1MB"
tcp = "t"
"#;

    fn go(congestion: &str, extensions: Extensions) -> RunResult {
        let source = Source::parse("s.toml", TEXT).unwrap().with_custom(["mine".to_owned()]);
        let setting = format!("tcp.t.congestion={congestion}").parse().unwrap();
        run_with(&source.with(&[setting]).unwrap(), 1, &mut Unobserved, extensions)
    }

    #[test]
    fn a_control_from_outside_is_the_one_that_its_factory_makes() {
        let mut extensions = Extensions::default();
        let factory = ControlFactory::new(|parameters| Box::new(NewReno::new(parameters)));
        extensions.congestion.insert("mine".to_owned(), factory);
        let built_in = go("newreno", Extensions::default());
        assert_eq!(go("custom:mine", extensions), built_in);
        assert!(go("cubic", Extensions::default()) != built_in, "the control matters here");
    }

    #[test]
    fn a_control_that_nobody_gives_is_no_scenario() {
        let source = Source::parse("s.toml", TEXT).unwrap();
        let text = |name: &str| {
            let setting = format!("tcp.t.congestion={name}").parse().unwrap();
            source.with(&[setting]).unwrap_err().to_string()
        };
        assert!(text("custom:mine").contains("there is no congestion control custom:mine"));
        for wrong in ["custom:", "custom:a b", &format!("custom:{}", "x".repeat(33))] {
            assert!(text(wrong).contains("is not a congestion control"), "{wrong}");
        }
    }

    #[test]
    fn an_effect_acts_in_its_direction_only() {
        #[derive(Debug)]
        struct LoseAll;
        impl CustomEffect for LoseAll {
            fn apply(&mut self, packet: &mut PassingPacket) {
                packet.is_lost = true;
            }
        }
        let effects = vec![LinkEffect { link: 0, forward: false, effect: Box::new(LoseAll) }];
        let link = go("newreno", Extensions { effects, ..Extensions::default() }).links.remove(0);
        assert!(link.reverse.offered > 0 && link.reverse.delivered == 0, "{link:?}");
        assert!(link.forward.delivered > 0, "{link:?}");
    }
}
