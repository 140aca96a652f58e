//! Configuration files: TOML into checked values, and one form for every error.
//!
//! A file is read in three steps. [`Document::load`] parses it into a tree in which each value knows its
//! line; [`Document::set`] may write [`Setting`]s from a command line over it. [`Document::read`] then
//! deserialises any type that derives [`serde::Deserialize`], and refuses unknown keys where the type says
//! `deny_unknown_fields`. What no single value can be blamed for is checked by the caller, who returns a
//! [`Problem`] with the path of the key; [`Document::error`] finds its line. So every error reads alike:
//!
//! ```text
//! bentpipe.toml:3: legs.satellite.rate: "10X" is not a bit rate: unknown unit "X"; write for example 10M, …
//! geo.toml with link.satellite.per=2: link.satellite.per: "2" is not a probability: it must lie between …
//! ```
//!
//! Values with bounds, and values that may be written in several ways, are types of this crate ([`Whole`],
//! [`Or`], [`List`]).

mod de;
mod document;
mod error;
mod node;
mod setting;
pub mod shipped;
mod values;

pub use document::{Document, MAX_FILE};
pub use error::{Error, InTable, Place, Problem, unknown};
pub use node::{MAX_NAME, Node, Value};
pub use setting::{NotASetting, Setting};
pub use values::{Address, Bytes, DateTime, Keyword, List, Name, Off, Or, Plain, Positive, Scalar, SpanFrom};
pub use values::{Whole, Written};
