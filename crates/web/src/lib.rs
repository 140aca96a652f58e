//! The simulator for a page in a browser: a scenario's text and a seed in, results and curves out.
//!
//! The page is in `page/`; `scripts/web` builds this crate for WebAssembly and puts all of it into one file.
//! Natively it is the same code, so that a test can compare what both say.
#![deny(clippy::disallowed_methods)]
#![deny(unsafe_code)]

#[cfg(target_arch = "wasm32")]
mod border;
mod curves;
mod document;
mod limit;

pub use document::{Error, FILE, run};
