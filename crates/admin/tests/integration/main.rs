//! The daemon's outside, over HTTP and its sockets.

#[path = "../common/mod.rs"]
mod common;
#[path = "../served/mod.rs"]
mod served;

mod history_http;
mod http;
mod live_page;
mod monitoring;
mod sockets;
