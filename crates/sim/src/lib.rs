//! TCP over satellite links in virtual time.
//!
//! The same link model as in the testbed and the same TCP in every run: a [`Scenario`] and a seed give the
//! same results, to the byte, on any machine and on any number of threads.
#![forbid(unsafe_code)]
#![deny(clippy::disallowed_methods)]

mod bundles;
pub mod columns;
mod events;
pub mod extensions;
pub mod file;
mod flow;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod link_end;
pub mod ltp;
pub mod manifest;
mod network;
mod observer;
mod occupancy;
mod packet;
mod packet_log;
mod packets;
mod protect;
mod recorder;
mod results;
pub mod scenario;
pub mod sweep;
pub mod tables;
mod trace;
mod udp;
mod world;

pub use observer::{
    CaptureEvent, CapturedContent, CapturedPacket, Observer, OfferedPacket, PacketStep, SenderEvent,
    Unobserved,
};
pub use packet_log::PacketLog;
pub use protect::ProtectResult;
pub use results::{
    BundleResult, FlowOutcome, FlowResult, LegResult, LinkEndResult, LinkResult, RunResult, SplitterResult,
};
pub use scenario::Scenario;
pub use trace::{SampleSink, Samples, Trace, TraceContent, TraceError};
pub use udp::{UdpArrivals, UdpReceiverResult, UdpResult};
pub use world::{run, run_with};
