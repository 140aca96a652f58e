//! Tests that need root: network namespaces, eBPF, interception.

#[path = "../common/mod.rs"]
mod common;

mod behind_link;
mod link;
mod namespace;
mod stations;
mod xcp;
