//! The link model and the agents at its ends.

#[path = "../common/mod.rs"]
mod common;

mod ack_filter;
mod arq;
mod delayed_dup_ack;
mod fates;
mod ip_packet;
mod profiles;
mod statistics;
