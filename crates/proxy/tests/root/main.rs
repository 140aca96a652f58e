//! Tests that need root: network namespaces, eBPF, interception.

#[path = "../common/mod.rs"]
mod common;

mod access_log;
mod boxes;
mod bundle;
#[cfg(debug_assertions)]
mod counters;
mod dead_worker;
mod endings;
mod explicit;
mod fail_open;
mod faithful;
mod fast_open;
mod floods;
mod handover;
mod hostile;
mod interfaces;
mod interruptions;
mod keepalive;
mod lifecycle;
mod limits;
mod local_user;
mod many;
mod neighbours;
mod overload;
mod pacing_cap;
mod policy;
mod policy_model;
mod protect;
mod relay;
mod reload;
mod router;
mod snoop;
mod snoop_pace;
mod symmetric;
mod telemetry;
mod transparency;
mod weights;
mod without;
