//! What `packet_paths` and `snooped_flow` share: three namespaces on a line of veth pairs, and medians of
//! rounds.

use std::error::Error;
use std::time::Duration;

use bentpipe_testbed::{Namespace, veth};

pub(crate) type Outcome<T> = Result<T, Box<dyn Error>>;

pub(crate) struct Line {
    pub(crate) near: Namespace,
    pub(crate) gateway: Namespace,
    pub(crate) far: Namespace,
}

impl Line {
    pub(crate) fn new() -> Outcome<Self> {
        let [near, gateway, far] = ["near", "gateway", "far"].map(Namespace::new);
        let (near, gateway, far) = (near?, gateway?, far?);
        for (host, name, number) in [(&near, "ground0", 1), (&far, "sat0", 2)] {
            veth(&gateway, name, host, "up0")?;
            gateway.ip(&format!("addr add 10.77.{number}.1/24 dev {name}"))?;
            host.ip(&format!("addr add 10.77.{number}.2/24 dev up0"))?;
            host.ip(&format!("route add default via 10.77.{number}.1"))?;
        }
        gateway.sysctl("net.ipv4.ip_forward", "1")?;
        Ok(Self { near, gateway, far })
    }
}

/// The arguments `[SECONDS [ROUNDS]]`.
pub(crate) fn seconds_and_rounds() -> Outcome<(Duration, usize)> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<f64>());
    let length = Duration::from_secs_f64(numbers.next().unwrap_or(Ok(1.0))?);
    Ok((length, numbers.next().unwrap_or(Ok(5.0))? as usize))
}

pub(crate) fn median<T>(all: &[T], of: impl Fn(&T) -> f64) -> f64 {
    let mut sorted: Vec<f64> = all.iter().map(of).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}
