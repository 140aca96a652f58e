//! Configuration files: TOML into checked values, and one form for every error.
//!
//! A file is read in three steps. [`Document::load`] parses it into a tree in which each value knows its
//! line; [`Document::set`] may write [`Setting`]s from a command line over it. [`Document::read`] then
//! deserialises any type that derives [`serde::Deserialize`], and refuses unknown keys where the type says
//! `deny_unknown_fields`. What no single value can be blamed for is checked by the caller, who makes a
//! [`Problem`] with the path of the key; [`Document::read_checked`] finds its line. All errors of a file are
//! reported at once, [`Fault`]s that read alike:
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
mod place;
mod reading;
mod setting;
pub mod shipped;
mod text;
mod values;

pub use document::{Checked, Document, MAX_FILE};
pub use error::{Error, Fault, InTable, Problem, unknown};
pub use node::{MAX_NAME, Node, Value};
pub use place::Place;
pub use reading::Checks;
pub use setting::{NotASetting, Setting};
pub use values::{Address, Bytes, DateTime, Keyword, List, Name, Off, Or, Plain, Positive, Scalar, SpanFrom};
pub use values::{Whole, Written};
