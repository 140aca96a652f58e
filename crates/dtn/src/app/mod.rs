//! The door for applications: HTTP over a Unix socket. docs/dtn.md documents it.

mod api;
mod body;
mod client;
mod metrics;

pub use api::{Sent, router};
pub use client::{Client, ClientError, Delivery, ReadBody};
