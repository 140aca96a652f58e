//! The senders that are compared: ours as a change of ns-3's defaults, ns-3's as its options.

use std::time::Duration;

use bentpipe_tcp::Config;
use bentpipe_tcp::congestion::{Algorithm, Components};

use crate::scene::as_ns3;

/// A pair of senders that is compared.
pub(crate) struct Pair {
    /// What both are.
    pub(crate) name: &'static str,
    /// How our sender differs from [`as_ns3`].
    change: fn(Config) -> Config,
    /// ns-3's options.
    pub(crate) ns3: &'static [&'static str],
}

impl Pair {
    /// Our sender.
    pub(crate) fn ours(&self) -> Config {
        (self.change)(as_ns3())
    }
}

/// The pairs that do the same by their specifications.
pub(crate) const PAIRS: &[Pair] = &[
    Pair { name: "NewReno, bytes counted", change: |config| config, ns3: &["--congestion=linux-reno"] },
    Pair {
        name: "NewReno, every segment acknowledged",
        change: every_segment,
        ns3: &["--congestion=newreno", "--delack=1"],
    },
    Pair { name: "NewReno, ACKs counted", change: acks_counted, ns3: &["--congestion=newreno"] },
    Pair { name: "CUBIC", change: cubic, ns3: &["--congestion=cubic"] },
    Pair {
        name: "NewReno, bytes counted, RTO at least 3 s",
        change: long_floor,
        ns3: &["--congestion=linux-reno", "--rto-min=3s"],
    },
    Pair {
        name: "NewReno, every segment acknowledged, RTO at least 3 s",
        change: |config| long_floor(every_segment(config)),
        ns3: &["--congestion=newreno", "--delack=1", "--rto-min=3s"],
    },
    Pair {
        name: "NewReno, ACKs counted, RTO at least 3 s",
        change: |config| long_floor(acks_counted(config)),
        ns3: &["--congestion=newreno", "--rto-min=3s"],
    },
    Pair {
        name: "CUBIC, RTO at least 3 s",
        change: |config| long_floor(cubic(config)),
        ns3: &["--congestion=cubic", "--rto-min=3s"],
    },
    Pair {
        name: "CUBIC, RFC 6675 recovery, RTO at least 3 s",
        change: |config| Config { proportional_rate_reduction: false, ..long_floor(cubic(config)) },
        ns3: &["--congestion=cubic", "--rto-min=3s", "--recovery=classic"],
    },
];

/// Hybla at a ρ of 24, beside the one of ns-3.
pub(crate) const HYBLA: &[Pair] = &[
    Pair {
        name: "Hybla as bentpipe has it",
        change: |config| hybla(config, Components::ALL),
        ns3: &["--congestion=hybla"],
    },
    Pair {
        name: "Hybla as published",
        change: |config| hybla(config, Components::PUBLISHED),
        ns3: &["--congestion=hybla"],
    },
    Pair {
        name: "Hybla with its growth alone",
        change: |config| hybla(config, Components { pacing: false, hoe: false, ..Components::PUBLISHED }),
        ns3: &["--congestion=hybla"],
    },
    Pair {
        name: "Hybla with a ρ of 1: NewReno",
        change: |config| {
            let rho = Components { rho: false, pacing: false, hoe: false, ..Components::PUBLISHED };
            acks_counted(hybla(config, rho))
        },
        ns3: &["--congestion=hybla"],
    },
];

fn every_segment(config: Config) -> Config {
    Config { delayed_ack: None, ..config }
}

fn long_floor(mut config: Config) -> Config {
    config.rto.min = Duration::from_secs(3);
    config
}

fn cubic(config: Config) -> Config {
    Config { congestion: Algorithm::Cubic, ..config }
}

/// RFC 5681 without byte counting: each acknowledgement opens slow start's window by one segment at the most.
pub(crate) fn acks_counted(config: Config) -> Config {
    Config { byte_counting_limit: Some(1), ..config }
}

fn hybla(config: Config, components: Components) -> Config {
    Config { congestion: Algorithm::Hybla(components), ..config }
}
