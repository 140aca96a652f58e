//! Tests that need root: network namespaces, eBPF, interception.

#[path = "../node_common/mod.rs"]
mod node_common;
#[path = "../store_common/mod.rs"]
mod store_common;

mod node;
mod store;
