//! The interface for applications: HTTP over a Unix socket, as docs/dtn.md describes it.

mod api;
mod batch;
mod body;
mod client;
mod metrics;
mod reload;

pub(crate) use api::metrics_router;
pub use api::{Acknowledged, Sent, router};
pub use batch::{Accepted, DeliveryLine};
pub use client::{Client, ClientError, Delivery, ReadBody, Received};
pub use reload::{Reload, ReloadReport, reload_router};
