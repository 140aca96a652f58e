//! What the tests on the real kernel share.

use std::time::Duration;

use bentpipe_link::{DirectionConfig, LinkConfig};
use bentpipe_testbed::{Need, require};
use bentpipe_units::{Probability, Rate};

const NEEDS: &[Need] =
    &[Need::Privileges, Need::Namespaces, Need::Tun, Need::Program("ip"), Need::Program("nft")];

/// Whether this machine cannot run the tests; says why.
pub(crate) fn missing() -> bool {
    match require(NEEDS) {
        Ok(()) => false,
        Err(missing) => {
            println!("skipped: needs root: {missing}");
            true
        }
    }
}

/// A link that is the same both ways.
#[allow(dead_code, reason = "not every test makes its own link")]
pub(crate) fn symmetric(rate: Rate, rtt_ms: u64, per: f64) -> LinkConfig {
    let direction = DirectionConfig {
        rate: Some(rate),
        delay: Duration::from_millis(rtt_ms) / 2,
        per: Probability::new(per).unwrap(),
        ..Default::default()
    };
    LinkConfig { forward: direction.clone(), reverse: direction }
}
