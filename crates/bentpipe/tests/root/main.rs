//! Tests that need root: network namespaces, eBPF, interception.

#[path = "../operated/mod.rs"]
mod operated;

mod bundle_transfer;
mod cli;
mod doctor_fix;
mod doctor_probe;
mod dtn;
mod live_page;
mod newcomers;
mod upgrade;
