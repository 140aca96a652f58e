//! What gateways run beside bentpipe, the real programs, each with a gateway of its own: connections are
//! split or pass with a line in the log, none waits for long, and what a firewall forbids stays forbidden.
//!
//! `make neighbours` runs them and puts what they found into the table of `docs/neighbours.md`.

#[path = "../common/mod.rs"]
mod common;

mod attempt;
mod devices;
mod filters;
mod firewalls;
mod invalid;
mod nat;
mod neighbour;
mod observer;
mod routing;
mod row;
mod services;
mod shell;
mod silence;
mod tracking;
mod trial;
