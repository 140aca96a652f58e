//! Bundle nodes, their sessions, their store and what they transfer.

#[path = "../node_common/mod.rs"]
mod node_common;
#[path = "../store_common/mod.rs"]
mod store_common;
#[path = "../tcpcl_common/mod.rs"]
mod tcpcl_common;
#[path = "../transfer_common/mod.rs"]
mod transfer_common;

mod node_applications;
mod node_authority;
mod node_behaviour;
mod node_conformance;
mod node_hostile;
mod node_kill;
mod node_ltp;
mod node_metrics;
mod node_names;
mod node_plan;
mod node_security;
mod node_udp;
mod store;
mod store_descriptors;
mod store_kill;
mod store_model;
mod store_order;
mod tcpcl_hostile;
mod tcpcl_sessions;
mod transfer_status;
mod transfers;
