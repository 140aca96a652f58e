//! Engines over links in virtual time.

mod contacts;
mod faults;
mod transfers;
mod world;
