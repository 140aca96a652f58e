//! The page in a headless Chromium: it must say what a native run says, to the last bit.

#[path = "../../../admin/tests/common/webdriver.rs"]
#[expect(dead_code, reason = "the tests of the live page need more of it")]
mod webdriver;

mod built;
mod identical;
mod page;
