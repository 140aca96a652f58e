//! The router of XCP and of P-XCP: it tells each sender by how much its rate is to change.

pub mod control;
