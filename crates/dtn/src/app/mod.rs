//! The interface for applications: HTTP over a Unix socket, as docs/dtn.md describes it.

mod api;
mod body;
mod client;
mod metrics;

pub use api::{Sent, router};
pub use client::{Client, ClientError, Delivery, ReadBody};
