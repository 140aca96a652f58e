//! Tests that need root: network namespaces, eBPF, interception.

#[path = "../common/mod.rs"]
mod common;

mod cross_traffic;
mod divert;
mod explicit;
mod hybla;
mod nftables;
mod parity;
mod route;
mod router;
mod router_device;
mod tun;
mod xcp;
