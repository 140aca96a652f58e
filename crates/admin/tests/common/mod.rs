//! What tests of the live page and of its data share.

// Each test file takes what it needs.
#![allow(dead_code)]

pub(crate) mod daemon;
pub(crate) mod webdriver;
