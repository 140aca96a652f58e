//! The TCP state machine.

mod closed_forms_congestion;
mod congestion_properties;
mod endpoint;
mod pair;
mod xcp_parity;
