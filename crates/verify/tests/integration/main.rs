//! Runs without a fault, in which nothing is found; faults planted in the link, each of which is; and logs
//! that are none.

mod bad_input;
mod faults;
mod scenarios;
