//! Tests that need root: network namespaces, eBPF, interception.

#[path = "../common/mod.rs"]
mod common;

mod boxes;
mod hybla;
mod outage;
mod reach;
mod results;
mod stations;
mod trial;
