//! The program as its users run it.

#[path = "../common/mod.rs"]
mod common;

mod bad_input;
mod broken_configurations;
mod daemon_commands;
mod demo_cli;
mod doctor_cli;
mod dtn_commands;
mod interop_dtn7;
mod lab_cli;
mod manual_cli;
mod openwrt;
mod radius_cli;
mod results_doc;
mod sim_cli;
mod verify_cli;
