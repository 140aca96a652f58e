//! What the tests on the real kernel share.

use std::time::Duration;

use bentpipe_lab::topology;
use bentpipe_link::LinkConfig;
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
    topology::symmetric(rate, Duration::from_millis(rtt_ms), Probability::new(per).unwrap())
}
