//! Legs over links in virtual time.

mod repair;
mod states;
mod world;
