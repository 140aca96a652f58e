//! Tests that need root: network namespaces, eBPF, interception.

#[path = "../operated/mod.rs"]
mod operated;

mod bundle_transfer;
mod cli;
mod doctor_config;
mod doctor_fix;
mod doctor_probe;
mod dtn;
mod killed;
mod link;
mod live_page;
mod newcomers;
mod protected_quic;
mod tls_front;
mod upgrade;
