//! Tests that need root: network namespaces, eBPF, interception.

#[path = "../common/mod.rs"]
mod common;

mod agents;
mod behind_link;
mod link;
mod namespace;
mod xcp;
