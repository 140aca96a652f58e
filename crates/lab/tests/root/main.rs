//! Tests that need root: network namespaces, eBPF, interception.

#[path = "../common/mod.rs"]
mod common;

mod boxes;
mod counters;
mod hybla;
mod link_ends;
mod on_kernel;
mod outage;
mod reach;
mod results;
mod squid;
mod trial;
mod unsplit;
