//! Tests that need root: network namespaces, eBPF, interception.

mod owner;
