//! Engines over links in virtual time.

mod authentication;
mod contacts;
mod faults;
mod transfers;
mod world;
